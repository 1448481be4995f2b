//! Exchanges in which all processes take part: a mean, and a choice among all.

use super::GossipError;
use super::exchange::{ExchangeJob, Gossip};
use super::inbox::Inbox;
use crate::algorithm::{WorkerPlan, WorkerStats};
use crate::engine::{Engine, RemoteRow};
use crate::transport::{Buffer, Message, Transport, TransportError};

impl Gossip<'_> {
    /// Everyone tells everyone how it did; then the models that are used by someone travel.
    pub(crate) fn choose(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &mut [WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, GossipError> {
        let everywhere: Vec<usize> = self.other_processes().collect();
        let announcement = |worker: usize| Message {
            from: worker,
            round: job.options.round,
            exchange: job.number() - 1,
            stats: stats[worker],
            whole: true,
            fresh: false,
            values: Buffer::default(),
        };
        let announcements = self.placement.own().map(|w| (announcement(w), everywhere.clone()));
        let others: Vec<usize> = (0..stats.len()).filter(|&w| !self.is_here(w)).collect();
        transport.begin_exchange(announcements.collect(), &others)?;
        let announcements = transport.finish_exchange(job.number() - 1)?;
        // Everyone must choose from the same.
        let came: Vec<usize> = announcements.iter().map(|message| message.from).collect();
        if let Some(&from) = others.iter().find(|other| !came.contains(other)) {
            let round = job.options.round;
            return Err(TransportError::Missing { from, round }.into());
        }
        for message in announcements {
            stats[message.from] = message.stats;
        }
        let ExchangeJob { algorithm, exchange, context, .. } = job;
        let parts = exchange.parts(*algorithm, context, stats);
        let used = |(worker, part): (usize, &WorkerPlan)| -> Vec<usize> {
            let used = part.plan.assignments.iter().flat_map(|sum| &sum.messages);
            let others = used.map(|entry| entry.0).filter(|&from| from != worker);
            others.collect()
        };
        let hears: Vec<Vec<usize>> = parts.iter().enumerate().map(used).collect();
        self.post(job, stats, &hears, engine, transport)?;
        self.receive(job, engine, transport)
    }

    /// The mean of everyone's messages, as one more remote.
    pub(crate) fn average(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &[WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, GossipError> {
        let width = engine.layout().parameter_count();
        let mut sum: Vec<f32> = Vec::new();
        let mut count = 0.0;
        let mut count_of_vectors = 0;
        for worker in self.placement.own() {
            let outgoing = self.outgoing(worker, stats[worker], job);
            count_of_vectors = outgoing.len();
            let row = self.placement.row_of(worker).unwrap_or_default();
            if Some(worker) == self.experiment.server {
                continue;
            }
            let mut all = Vec::new();
            for vector in &outgoing {
                all.extend(engine.outgoing(row, vector, job.options)?);
            }
            if job.statistics {
                all.extend(engine.statistics(row)?);
            }
            if sum.is_empty() {
                sum = all;
            } else {
                sum.iter_mut().zip(all).for_each(|(sum, x)| *sum += x);
            }
            count += 1.0;
        }
        let statistics = job.statistic_count(engine);
        sum.resize(count_of_vectors * width + statistics, 0.0);
        sum.push(count);
        transport.all_reduce(job.number(), &mut sum)?;
        let count = sum.pop().unwrap_or(1.0);
        sum.iter_mut().for_each(|x| *x /= count);
        let statistics = sum.split_off(count_of_vectors * width);
        let messages = match count_of_vectors {
            1 => vec![sum.into()],
            _ => sum.chunks_exact(width.max(1)).map(|message| message.to_vec().into()).collect(),
        };
        Ok(Inbox {
            remote_rows: vec![RemoteRow { messages }],
            statistics: vec![statistics],
            has_mean: true,
            ..Inbox::default()
        })
    }
}
