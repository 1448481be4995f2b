//! Plans in terms of engine rows, as engines carry them out.

use super::{Assignment, Outgoing, Plan, WorkerPlan};
use crate::ids::{RowIndex, WorkerId};

impl WorkerPlan {
    /// Converts worker IDs to rows of an engine.
    pub fn at_rows<E>(self, row_of: impl Fn(WorkerId) -> Result<RowIndex, E>) -> Result<RowPlan, E> {
        let Plan { assignments, scalar, leaders } = self.plan;
        let convert = |assignment: Assignment| {
            let messages = assignment.messages.into_iter();
            let messages = messages.map(|(sender, weight)| Ok((row_of(sender)?, weight)));
            Ok(Assignment {
                target: assignment.target,
                own: assignment.own,
                messages: messages.collect::<Result<_, E>>()?,
                message_index: assignment.message_index,
                mean: assignment.mean,
            })
        };
        let assignments = assignments.into_iter().map(convert);
        Ok(RowPlan {
            row: row_of(self.worker)?,
            messages: self.messages,
            plan: Plan { assignments: assignments.collect::<Result<_, E>>()?, scalar, leaders },
        })
    }

    /// Converts worker IDs to rows of an engine that holds all workers.
    pub fn in_one_process(self) -> RowPlan {
        let row_of = |worker| Ok::<_, std::convert::Infallible>(RowIndex::in_one_process(worker));
        match self.at_rows(row_of) {
            Ok(plan) => plan,
        }
    }
}

/// The plan of one row in an exchange, as an engine carries it out.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPlan {
    /// The row.
    pub row: RowIndex,
    /// The messages that it sends.
    pub messages: Vec<Outgoing>,
    /// The new values of its vectors.
    pub plan: Plan<RowIndex>,
}
