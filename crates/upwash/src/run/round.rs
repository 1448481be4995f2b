//! One round of a synchronous algorithm: everything that is fixed when it begins.

use super::RunError;
use super::session::Session;
use crate::algorithm::{Algorithm, Exchange, ExchangeContext, WorkerStats};
use crate::config::Statistics;
use crate::engine::MixOptions;
use crate::engine::{Engine, GradientTask};
use crate::gossip::{ExchangeJob, Gossip};
use crate::ids::{RowIndex, WorkerId};
use crate::transport::{Placement, Transport};
use upwash_topology::Round;

/// The round in progress.
pub(super) struct CurrentRound<'a> {
    algorithm: &'a dyn Algorithm,
    pub(super) index: u64,
    /// The scheduled round, with all of its links up.
    active: Round,
    /// The number of receivers of each worker.
    degrees: Vec<usize>,
    exchanges: Vec<Exchange>,
    rate: f64,
    previous_rate: f64,
    momentum: f64,
    server: Option<WorkerId>,
    server_row: Option<RowIndex>,
    averages_statistics: bool,
    placement: Placement,
    /// Each worker's stats before its step. Messages that leave early carry them.
    early_stats: Vec<WorkerStats>,
    /// Each worker's clock when the round began.
    pub(super) started: Vec<f64>,
}

impl<'a> CurrentRound<'a> {
    pub(super) fn new(session: &Session<'a>, algorithm: &'a dyn Algorithm, placement: &Placement) -> Self {
        let (experiment, index) = (session.experiment, session.progress.round);
        let active = experiment.schedule.round(index);
        let training = &experiment.config.training;
        let mut round = Self {
            algorithm,
            index,
            degrees: active.receiver_counts(),
            active,
            exchanges: algorithm.exchanges(index),
            rate: session.rate(index as f64),
            previous_rate: session.rate(index.saturating_sub(1) as f64),
            momentum: training.sgd().momentum,
            server: experiment.server,
            server_row: experiment.server.and_then(|server| placement.row_of(server)),
            averages_statistics: training.statistics == Statistics::Averaged,
            placement: placement.clone(),
            early_stats: vec![],
            started: session.progress.clocks.clone(),
        };
        round.early_stats = round.stats(session);
        round
    }

    /// Replaces the configured learning rates of this round and the previous one.
    pub(super) fn set_rate(&mut self, rate: f64, previous: f64) {
        (self.rate, self.previous_rate) = (rate, previous);
    }

    /// Each worker's current stats.
    fn stats(&self, session: &Session<'_>) -> Vec<WorkerStats> {
        let (losses, scalars) = (&session.progress.losses, &session.progress.scalars);
        let worker_stats =
            |(worker, &degree): (usize, &usize)| WorkerStats { loss: losses[worker], degree, scalar: scalars[worker] };
        self.degrees.iter().enumerate().map(worker_stats).collect()
    }

    /// Each worker's stats in an exchange: those from before its step if messages leave early, or the current ones.
    pub(super) fn stats_for(&self, job: &ExchangeJob<'_>, session: &Session<'_>) -> Vec<WorkerStats> {
        match job.exchange {
            Exchange::Early => self.early_stats.clone(),
            _ => self.stats(session),
        }
    }

    /// Sends the messages that leave before the gradients are computed.
    pub(super) fn post_early(
        &mut self,
        gossip: &mut Gossip<'_>,
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), RunError> {
        let mut stats = std::mem::take(&mut self.early_stats);
        let posted = match self.jobs().next() {
            Some(job) => gossip.post_early(&job, &mut stats, engine, transport),
            None => Ok(()),
        };
        self.early_stats = stats;
        Ok(posted?)
    }

    /// One gradient task for each local worker that has data.
    pub(super) fn gradient_tasks(&self, session: &Session<'_>, rows: usize) -> Vec<Option<GradientTask>> {
        let mut tasks = vec![None; rows];
        for row in self.placement.rows_of(&session.local) {
            let (batch, rate) = (self.index, self.rate);
            tasks[row] = Some(GradientTask { batch, rate });
        }
        tasks
    }

    /// The exchanges of the round, in order.
    pub(super) fn jobs(&self) -> impl Iterator<Item = ExchangeJob<'_>> {
        let last = self.exchanges.len().saturating_sub(1);
        let job = move |(position, &exchange): (usize, &Exchange)| ExchangeJob {
            algorithm: self.algorithm,
            exchange,
            context: ExchangeContext {
                round: &self.active,
                exchange: position,
                rate: self.rate,
                previous_rate: self.previous_rate,
                momentum: self.momentum,
                server: self.server,
            },
            options: MixOptions {
                server: self.server_row,
                round: self.index,
                worker_offset: self.placement.worker_at(RowIndex(0)).0 as isize,
                is_last: position == last,
                ..Default::default()
            },
            // Nothing bounds the statistics of a liar, so workers that clip keep their own.
            statistics: self.averages_statistics
                && position == 0
                && mixes_statistics(exchange)
                && !self.algorithm.clips(),
        };
        self.exchanges.iter().enumerate().map(job)
    }
}

/// Whether this kind of exchange averages batch-norm running statistics.
fn mixes_statistics(exchange: Exchange) -> bool {
    matches!(exchange, Exchange::Neighbors | Exchange::Early | Exchange::Mean | Exchange::Server)
}
