//! The exchange between workers, in one process or in several: which messages are sent and received, which links are
//! up, and how the engine mixes the models. If all workers are in one process, nothing is sent, and every row is local.

mod collective;
mod exchange;
mod inbox;
mod link_failure;
mod measure;
mod receive;
mod send;

pub(crate) use exchange::{ExchangeJob, Gossip};
pub(crate) use inbox::Inbox;
pub(crate) use measure::Measurements;

use crate::algorithm::{Exchange, WorkerPlan, WorkerStats, clip};
use crate::engine::{Engine, EngineError};
use crate::transport::{Transport, TransportError};

/// Why an exchange failed.
#[derive(Debug)]
pub(crate) enum GossipError {
    Transport(TransportError),
    Engine(EngineError),
    /// The algorithm itself failed.
    Algorithm(String),
}

impl From<TransportError> for GossipError {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

impl From<EngineError> for GossipError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl Gossip<'_> {
    /// Sends the messages that leave before the gradients are computed, so that they travel in the meantime.
    pub(crate) fn post_early(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &mut [WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), GossipError> {
        if !self.placement.has_others() || !job.leaves_early() {
            return Ok(());
        }
        self.observe_links(job, stats, transport);
        self.send(job, stats, engine, transport)
    }

    /// Sends the messages that have not left yet, and receives. The inbox holds all that local workers learn.
    pub(crate) fn exchange(
        &mut self,
        job: &ExchangeJob<'_>,
        mut stats: Vec<WorkerStats>,
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, GossipError> {
        let mut inbox = match job.exchange {
            _ if !self.placement.has_others() => Inbox::default(),
            Exchange::Nothing => Inbox::default(),
            Exchange::Mean => self.average(job, &stats, engine, transport)?,
            Exchange::Chosen => self.choose(job, &mut stats, engine, transport)?,
            _ => {
                if !job.leaves_early() {
                    self.observe_links(job, &mut stats, transport);
                    self.send(job, &stats, engine, transport)?;
                }
                self.receive(job, engine, transport)?
            }
        };
        for (&sender, &received) in &inbox.received_stats {
            stats[sender] = received;
        }
        if matches!(job.exchange, Exchange::Neighbors | Exchange::Early) {
            inbox.links = self.reweighted(job.context.round, &stats, &inbox, transport);
        }
        inbox.stats = stats;
        Ok(inbox)
    }

    /// Computes each local worker's plan from what the worker knows and has measured.
    pub(crate) fn plans(
        &self,
        job: &ExchangeJob<'_>,
        inbox: &Inbox,
        measurements: &Measurements,
    ) -> Result<Vec<WorkerPlan>, GossipError> {
        let (own, context) = (self.placement.own(), job.context_in(inbox));
        let losses = measurements.losses.as_ref();
        let plans = job.exchange.plans_of(own, job.algorithm, &context, &inbox.stats, losses);
        let mut plans = job.checked(plans)?;
        for (plan, distances) in plans.iter_mut().zip(&measurements.distances) {
            clip(&mut plan.plan, plan.worker, distances);
        }
        Ok(plans)
    }

    /// Lets the engine carry out all plans at once, and mix batch-norm statistics if they are exchanged.
    pub(crate) fn apply(
        &self,
        job: &ExchangeJob<'_>,
        plans: Vec<WorkerPlan>,
        inbox: Inbox,
        engine: &mut dyn Engine,
    ) -> Result<(), GossipError> {
        let (placement, round) = (&self.placement, job.options.round);
        let weights = job.statistics.then(|| {
            let weights = job.exchange.safe_weights(&job.context_in(&inbox));
            inbox.row_weights(weights, placement, round)
        });
        let weights = weights.transpose()?;
        let plans = inbox.row_plans(plans, placement, round)?;
        engine.exchange(&plans, inbox.remote_rows, job.options)?;
        if let Some(weights) = weights {
            engine.mix_statistics(&weights, inbox.statistics)?;
        }
        Ok(())
    }
}
