//! Exchanges in which all processes take part: a mean, and a choice among the messages of all workers.

use super::GossipError;
use super::exchange::{ExchangeJob, Gossip};
use super::inbox::Inbox;
use crate::algorithm::{WorkerPlan, WorkerStats};
use crate::engine::{Engine, RemoteRow};
use crate::ids::WorkerId;
use crate::transport::{Buffer, Message, Transport, TransportError};

impl Gossip<'_> {
    /// All workers send their stats to all others. Then the models that some plan uses are sent.
    pub(crate) fn choose(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &mut [WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, GossipError> {
        let receivers: Vec<usize> = self.other_processes().collect();
        let announcement = |worker: WorkerId| Message {
            from: worker,
            round: job.options.round,
            exchange: job.exchange_number() - 1,
            stats: stats[worker],
            whole: true,
            fresh: false,
            restart: self.restart,
            values: Buffer::default(),
        };
        let announcements = self.placement.own().map(|w| (announcement(w), receivers.clone()));
        let others: Vec<WorkerId> = WorkerId::all(stats.len()).filter(|&w| !self.is_local(w)).collect();
        transport.begin_exchange(announcements.collect(), &others)?;
        let announcements = transport.finish_exchange(job.exchange_number() - 1)?;
        // All workers must choose from the same stats.
        let announced: Vec<WorkerId> = announcements.iter().map(|message| message.from).collect();
        if let Some(&from) = others.iter().find(|other| !announced.contains(other)) {
            let round = job.options.round;
            return Err(TransportError::Missing { from, round }.into());
        }
        for message in announcements {
            stats[message.from] = message.stats;
        }
        let ExchangeJob { algorithm, exchange, context, .. } = job;
        let plans = job.checked(exchange.plans(*algorithm, context, stats))?;
        let used = |plan: &WorkerPlan| -> Vec<WorkerId> {
            let used = plan.plan.assignments.iter().flat_map(|assignment| &assignment.messages);
            let others = used.map(|entry| entry.0).filter(|&from| from != plan.worker);
            others.collect()
        };
        let senders: Vec<Vec<WorkerId>> = plans.iter().map(used).collect();
        self.post(job, stats, &senders, engine, transport)?;
        self.receive(job, engine, transport)
    }

    /// Computes the mean of all workers' messages, as one additional remote row.
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
        let mut vector_count = 0;
        for worker in self.placement.own() {
            let outgoing = self.outgoing(worker, stats[worker], job);
            vector_count = outgoing.len();
            let row = self.placement.row_of(worker).unwrap_or_default();
            if Some(worker) == self.experiment.server {
                continue;
            }
            let mut values = Vec::new();
            for vector in &outgoing {
                values.extend(engine.outgoing(row, vector, job.options)?);
            }
            if job.statistics {
                values.extend(engine.statistics(row)?);
            }
            if sum.is_empty() {
                sum = values;
            } else {
                sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
            }
            count += 1.0;
        }
        let statistics = job.statistic_count(engine);
        sum.resize(vector_count * width + statistics, 0.0);
        sum.push(count);
        transport.all_reduce(job.exchange_number(), &mut sum)?;
        let count = sum.pop().unwrap_or(1.0);
        sum.iter_mut().for_each(|x| *x /= count);
        let statistics = sum.split_off(vector_count * width);
        let messages = match vector_count {
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
