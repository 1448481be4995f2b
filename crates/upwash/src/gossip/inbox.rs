//! What was heard from other processes in an exchange, and the rows of an engine that it has there.

use crate::algorithm::{WorkerPlan, WorkerStats};
use crate::engine::RemoteRow;
use crate::transport::{Placement, TransportError};
use std::collections::{BTreeMap, BTreeSet};
use upwash_topology::Round;

/// What was heard in an exchange.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Whom from: row by row behind those of this process.
    pub(crate) senders: Vec<usize>,
    pub(crate) remote_rows: Vec<RemoteRow>,
    /// Their statistics, if they came along.
    pub(crate) statistics: Vec<Vec<f32>>,
    /// What each said of itself, and who of them holds all of its links.
    pub(crate) reports: BTreeMap<usize, WorkerStats>,
    pub(crate) whole: BTreeSet<usize>,
    /// The mean of all is the last remote.
    pub(crate) has_mean: bool,
    /// What every worker says of itself, as far as it is known here.
    pub(crate) stats: Vec<WorkerStats>,
    /// The links that are in force where some have failed.
    pub(crate) links: Option<Round>,
}

impl Inbox {
    /// The row of a worker in an engine with these remote_rows; an error where it was not heard, which only
    /// algorithms meet that do not go by links.
    fn row(
        &self,
        worker: usize,
        placement: &Placement,
        round: u64,
    ) -> Result<usize, TransportError> {
        let from = worker;
        match (
            placement.row_of(worker),
            self.senders.binary_search(&worker),
        ) {
            (Some(row), _) => Ok(row),
            (None, Ok(remote)) => Ok(placement.own().len() + remote),
            (None, Err(_)) => Err(TransportError::Missing { from, round }),
        }
    }

    /// Parts by the rows of an engine instead of the workers' numbers.
    pub(crate) fn localise(
        &self,
        parts: &mut [WorkerPlan],
        placement: &Placement,
        round: u64,
    ) -> Result<(), TransportError> {
        let mean = placement.own().len() + self.remote_rows.len().saturating_sub(1);
        for part in parts {
            for assignment in &mut part.plan.assignments {
                // What has no weight was perhaps not even sent; a worker's own message is always there, and
                // the others are compared with it.
                let own = part.worker;
                assignment
                    .messages
                    .retain(|entry| entry.1 != 0.0 || entry.0 == own);
                for entry in &mut assignment.messages {
                    entry.0 = self.row(entry.0, placement, round)?;
                }
                if self.has_mean && assignment.mean != 0.0 {
                    assignment.messages.push((mean, assignment.mean));
                    assignment.mean = 0.0;
                }
            }
            part.worker = self.row(part.worker, placement, round)?;
        }
        Ok(())
    }

    /// The rows of this process out of weights for all workers.
    pub(crate) fn weights(
        &self,
        all: Vec<Vec<(usize, f64)>>,
        placement: &Placement,
        round: u64,
    ) -> Result<Vec<Vec<(usize, f64)>>, TransportError> {
        let own = placement.own();
        if self.has_mean {
            return Ok(vec![vec![(own.len(), 1.0)]; own.len()]);
        }
        let mut rows = all;
        rows.truncate(own.end);
        rows.drain(..own.start);
        for entry in rows.iter_mut().flatten() {
            entry.0 = self.row(entry.0, placement, round)?;
        }
        Ok(rows)
    }
}
