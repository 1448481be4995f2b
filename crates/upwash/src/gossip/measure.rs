//! What workers measure about the messages that they received, if the algorithm asks for it.

use super::exchange::{ExchangeJob, Gossip};
use super::inbox::Inbox;
use crate::algorithm::{Exchange, VerifiedLosses};
use crate::engine::{Engine, EngineError, MessagesToMeasure};
use crate::ids::{RowIndex, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// The measurements of the local workers.
#[derive(Default)]
pub(crate) struct Measurements {
    /// For each local worker, the distances of its neighbors' messages from its own. Empty if nothing is clipped.
    pub(super) distances: Vec<Vec<(WorkerId, f64)>>,
    /// The losses of sent models on the receivers' batches.
    pub(super) losses: Option<VerifiedLosses>,
}

impl Gossip<'_> {
    /// Measures distances if the algorithm clips, and losses if leaders are verified.
    pub(crate) fn measure(
        &self,
        job: &ExchangeJob<'_>,
        inbox: &Inbox,
        engine: &mut dyn Engine,
    ) -> Result<Measurements, EngineError> {
        let mut measurements = Measurements::default();
        let algorithm = job.algorithm;
        let by_links = matches!(job.exchange, Exchange::Neighbors | Exchange::Early);
        if !by_links || !(algorithm.clips() || algorithm.verifies_leaders()) {
            return Ok(measurements);
        }
        let (own, context) = (self.placement.own(), job.context_in(inbox));
        let message = |worker| self.outgoing(worker, inbox.stats[worker], job).into_iter().next().unwrap_or_default();
        let messages = own.clone().map(message).collect::<Vec<_>>();
        let measured = MessagesToMeasure { messages: &messages, remote_rows: &inbox.remote_rows, options: job.options };
        let row = |worker| inbox.row(worker, &self.placement, job.options.round).ok();
        // A neighbor that sent nothing is not measured, and its weight is zero.
        let senders = |worker: WorkerId| {
            let senders = job.exchange.senders(worker, &context);
            senders.filter_map(move |sender| Some((worker, sender, (row(worker)?, row(sender)?))))
        };
        let links: Vec<(WorkerId, WorkerId, (RowIndex, RowIndex))> = own.clone().flat_map(senders).collect();
        if algorithm.clips() {
            // The two ends of a link are equally far from each other.
            let ends = |(one, other): (RowIndex, RowIndex)| (one.min(other), one.max(other));
            let pairs: Vec<_> = links.iter().map(|link| ends(link.2)).collect::<BTreeSet<_>>().into_iter().collect();
            let found = engine.distances(measured, &pairs)?;
            let found: BTreeMap<_, f64> = pairs.into_iter().zip(found).collect();
            measurements.distances = vec![vec![]; own.len()];
            for (_, sender, rows) in &links {
                let distance = found.get(&ends(*rows)).copied().unwrap_or(f64::NAN);
                measurements.distances[rows.0].push((*sender, distance));
            }
        }
        if algorithm.verifies_leaders() {
            let itself = |worker: WorkerId| Some((worker, worker, (row(worker)?, row(worker)?)));
            let links: Vec<_> = links.into_iter().chain(own.filter_map(itself)).collect();
            let pairs: Vec<_> = links.iter().map(|link| link.2).collect();
            let losses = engine.message_losses(measured, &pairs)?;
            let losses = links.iter().zip(losses).map(|((worker, sender, _), loss)| ((*worker, *sender), loss));
            measurements.losses = Some(losses.collect());
        }
        Ok(measurements)
    }
}
