//! What a process received from others in an exchange, and the engine rows that hold it.

use crate::algorithm::{RowPlan, WorkerPlan, WorkerStats};
use crate::engine::RemoteRow;
use crate::ids::{RowIndex, WorkerId};
use crate::transport::{Placement, TransportError};
use std::collections::{BTreeMap, BTreeSet};
use upwash_topology::Round;

/// What a process received in an exchange.
#[derive(Default)]
pub(crate) struct Inbox {
    /// The senders of the remote rows. An engine places these rows behind the rows of local workers.
    pub(crate) senders: Vec<WorkerId>,
    pub(crate) remote_rows: Vec<RemoteRow>,
    /// The senders' batch-norm statistics, if they were sent along.
    pub(crate) statistics: Vec<Vec<f32>>,
    /// The senders' stats, and those senders that have all of their links up.
    pub(crate) received_stats: BTreeMap<WorkerId, WorkerStats>,
    pub(crate) intact: BTreeSet<WorkerId>,
    /// Whether the last remote row is the mean of all messages.
    pub(crate) has_mean: bool,
    /// Every worker's stats, as far as this process knows them.
    pub(crate) stats: Vec<WorkerStats>,
    /// The links that are up, if some have failed.
    pub(crate) links: Option<Round>,
}

impl Inbox {
    /// The row of a worker in an engine with these remote rows. Returns an error if nothing was received from the
    /// worker, which can only happen to algorithms that do not exchange along links.
    pub(crate) fn row(&self, worker: WorkerId, placement: &Placement, round: u64) -> Result<RowIndex, TransportError> {
        let remote = |index: usize| RowIndex(placement.own().len() + index);
        match (placement.row_of(worker), self.senders.binary_search(&worker)) {
            (Some(row), _) => Ok(row),
            (None, Ok(index)) => Ok(remote(index)),
            (None, Err(_)) => Err(TransportError::Missing { from: worker, round }),
        }
    }

    /// Translates plans from workers to the rows of an engine.
    pub(crate) fn row_plans(
        &self,
        plans: Vec<WorkerPlan>,
        placement: &Placement,
        round: u64,
    ) -> Result<Vec<RowPlan>, TransportError> {
        let mean = placement.own().len() + self.remote_rows.len().saturating_sub(1);
        let mut row_plans = Vec::with_capacity(plans.len());
        for mut plan in plans {
            let own = plan.worker;
            for assignment in &mut plan.plan.assignments {
                // A message without weight may not have been sent. A worker's own message is always present, and
                // the others are compared with it.
                let messages = &mut assignment.messages;
                messages.retain(|entry| entry.1 != 0.0 || entry.0 == own);
            }
            let mut plan = plan.at_rows(|worker| self.row(worker, placement, round))?;
            for assignment in &mut plan.plan.assignments {
                if self.has_mean && assignment.mean != 0.0 {
                    let weight = std::mem::take(&mut assignment.mean);
                    assignment.messages.push((RowIndex(mean), weight));
                }
            }
            row_plans.push(plan);
        }
        Ok(row_plans)
    }

    /// Selects the rows of this process from the weights of all workers.
    pub(crate) fn row_weights(
        &self,
        all: Vec<Vec<(WorkerId, f64)>>,
        placement: &Placement,
        round: u64,
    ) -> Result<Vec<Vec<(RowIndex, f64)>>, TransportError> {
        let own = placement.own_range();
        if self.has_mean {
            return Ok(vec![vec![(RowIndex(own.len()), 1.0)]; own.len()]);
        }
        let row = |(worker, weight): &(WorkerId, f64)| Ok((self.row(*worker, placement, round)?, *weight));
        let rows = all[own].iter();
        rows.map(|weights| weights.iter().map(row).collect()).collect()
    }
}
