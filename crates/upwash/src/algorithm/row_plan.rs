//! Plans by the rows of an engine, in which engines carry them out.

use super::{Assignment, Outgoing, Plan, WorkerPlan};
use crate::ids::{RowIndex, WorkerId};

impl WorkerPlan {
    /// The same by rows of an engine.
    pub fn at_rows<E>(self, row_of: impl Fn(WorkerId) -> Result<RowIndex, E>) -> Result<RowPlan, E> {
        let Plan { assignments, scalar, leaders } = self.plan;
        let assignment = |sum: Assignment| {
            let messages = sum.messages.into_iter();
            let messages = messages.map(|(sender, weight)| Ok((row_of(sender)?, weight)));
            Ok(Assignment {
                target: sum.target,
                own: sum.own,
                messages: messages.collect::<Result<_, E>>()?,
                message_index: sum.message_index,
                mean: sum.mean,
            })
        };
        let assignments = assignments.into_iter().map(assignment);
        Ok(RowPlan {
            row: row_of(self.worker)?,
            messages: self.messages,
            plan: Plan { assignments: assignments.collect::<Result<_, E>>()?, scalar, leaders },
        })
    }

    /// The same where all workers are rows of one engine.
    pub fn in_one_process(self) -> RowPlan {
        let row_of = |worker| Ok::<_, std::convert::Infallible>(RowIndex(worker));
        match self.at_rows(row_of) {
            Ok(plan) => plan,
        }
    }
}

/// A row's part in an exchange, as an engine carries it out.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPlan {
    /// Whose.
    pub row: RowIndex,
    /// What it sends.
    pub messages: Vec<Outgoing>,
    /// What its vectors become.
    pub plan: Plan<RowIndex>,
}
