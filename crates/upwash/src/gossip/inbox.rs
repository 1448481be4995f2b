//! What was heard from other processes in an exchange, and the rows of an engine that it has there.

use crate::algorithm::{RowPlan, WorkerPlan, WorkerStats};
use crate::engine::RemoteRow;
use crate::ids::{RowIndex, WorkerId};
use crate::transport::{Placement, TransportError};
use std::collections::{BTreeMap, BTreeSet};
use upwash_topology::Round;

/// What was heard in an exchange.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Whom from: row by row behind those of this process.
    pub(crate) senders: Vec<WorkerId>,
    pub(crate) remote_rows: Vec<RemoteRow>,
    /// Their statistics, if they came along.
    pub(crate) statistics: Vec<Vec<f32>>,
    /// What each said of itself, and who of them holds all of its links.
    pub(crate) received_stats: BTreeMap<usize, WorkerStats>,
    pub(crate) whole: BTreeSet<usize>,
    /// The mean of all is the last remote.
    pub(crate) has_mean: bool,
    /// What every worker says of itself, as far as it is known here.
    pub(crate) stats: Vec<WorkerStats>,
    /// The links that are in force where some have failed.
    pub(crate) links: Option<Round>,
}

impl Inbox {
    /// The row of a worker in an engine with these remote rows; an error where it was not heard, which only
    /// algorithms meet that do not go by links.
    fn row(&self, worker: WorkerId, placement: &Placement, round: u64) -> Result<RowIndex, TransportError> {
        let remote = |place: usize| RowIndex(placement.own().len() + place);
        match (placement.row_of(worker), self.senders.binary_search(&worker)) {
            (Some(row), _) => Ok(row),
            (None, Ok(place)) => Ok(remote(place)),
            (None, Err(_)) => Err(TransportError::Missing { from: worker, round }),
        }
    }

    /// Plans by the rows of an engine instead of workers.
    pub(crate) fn row_plans(
        &self,
        plans: Vec<WorkerPlan>,
        placement: &Placement,
        round: u64,
    ) -> Result<Vec<RowPlan>, TransportError> {
        let mean = placement.own().len() + self.remote_rows.len().saturating_sub(1);
        let mut found = Vec::with_capacity(plans.len());
        for mut plan in plans {
            let own = plan.worker;
            for assignment in &mut plan.plan.assignments {
                // What has no weight was perhaps not even sent; a worker's own message is always there, and
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
            found.push(plan);
        }
        Ok(found)
    }

    /// The rows of this process out of weights for all workers.
    pub(crate) fn row_weights(
        &self,
        all: Vec<Vec<(WorkerId, f64)>>,
        placement: &Placement,
        round: u64,
    ) -> Result<Vec<Vec<(RowIndex, f64)>>, TransportError> {
        let own = placement.own();
        if self.has_mean {
            return Ok(vec![vec![(RowIndex(own.len()), 1.0)]; own.len()]);
        }
        let row = |(worker, weight): &(WorkerId, f64)| Ok((self.row(*worker, placement, round)?, *weight));
        let rows = all[own].iter();
        rows.map(|weights| weights.iter().map(row).collect()).collect()
    }
}
