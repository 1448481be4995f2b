//! An exchange between workers in several processes, and the state that is kept between exchanges.

use super::GossipError;
use super::inbox::Inbox;
use crate::algorithm::{Algorithm, Exchange, ExchangeContext, LocalView, Outgoing, WorkerPlan, WorkerStats};
use crate::config::WirePrecision;
use crate::engine::{Engine, MixOptions};
use crate::experiment::Experiment;
use crate::ids::WorkerId;
use crate::transport::{Encoding, Placement};
use std::collections::{HashMap, HashSet};

/// One exchange of one round, as all processes know it.
#[derive(Clone, Copy)]
pub(crate) struct ExchangeJob<'a> {
    pub(crate) algorithm: &'a dyn Algorithm,
    pub(crate) exchange: Exchange,
    pub(crate) context: ExchangeContext<'a>,
    pub(crate) options: MixOptions,
    /// Whether batch-norm running statistics are sent along.
    pub(crate) statistics: bool,
}

impl ExchangeJob<'_> {
    /// The number of its messages. Announcements, which carry only the sender's stats, have the number before it.
    pub(super) fn exchange_number(&self) -> u32 {
        2 * self.context.exchange as u32 + 1
    }

    /// The context, with the links that are up.
    pub(crate) fn context_in<'b>(&'b self, inbox: &'b Inbox) -> ExchangeContext<'b> {
        ExchangeContext { round: inbox.links.as_ref().unwrap_or(self.context.round), ..self.context }
    }

    /// The plans, unless the algorithm failed while it computed them.
    pub(super) fn checked(&self, plans: Vec<WorkerPlan>) -> Result<Vec<WorkerPlan>, GossipError> {
        match self.algorithm.failure() {
            None => Ok(plans),
            Some(what) => Err(GossipError::Algorithm(what)),
        }
    }

    /// Whether its messages leave before the gradients are computed.
    pub(crate) fn leaves_early(&self) -> bool {
        self.exchange == Exchange::Early && self.context.exchange == 0
    }

    /// The number of statistics that are sent along.
    pub(super) fn statistic_count(&self, engine: &dyn Engine) -> usize {
        match self.statistics {
            true => engine.layout().statistic_count(),
            false => 0,
        }
    }
}

/// The state of a process that is kept between exchanges.
pub(crate) struct Gossip<'a> {
    pub(super) experiment: &'a Experiment,
    pub(crate) placement: Placement,
    /// The encoding of vectors that the algorithm does not compress.
    pub(super) encoding: Encoding,
    /// Public copies of workers in other processes, by sender and message index.
    pub(crate) public_copies: HashMap<(WorkerId, usize), Vec<f32>>,
    /// Pairs of a local worker and a process that has received the worker's full public copy.
    pub(super) full_copies_sent: HashSet<(WorkerId, usize)>,
    /// Local workers that do not have all of their links up in this round.
    pub(crate) degraded: HashSet<WorkerId>,
    /// The round in which all workers restart what the algorithm relies on.
    pub(crate) restart: Option<u64>,
    /// Whether another restart must follow that one, because links have changed so late that not all may hear of it.
    restarts_again: bool,
}

impl<'a> Gossip<'a> {
    pub(crate) fn new(experiment: &'a Experiment, placement: Placement) -> Self {
        Self {
            experiment,
            placement,
            encoding: match experiment.config.network.precision {
                WirePrecision::F32 => Encoding::F32,
                WirePrecision::Bf16 => Encoding::Bf16,
            },
            public_copies: HashMap::new(),
            full_copies_sent: HashSet::new(),
            degraded: HashSet::new(),
            restart: None,
            restarts_again: false,
        }
    }

    /// Plans a restart of all workers, when links have changed before this round: late enough that all hear of it.
    pub(crate) fn plan_restart(&mut self, round: u64) {
        self.add_restart(round + self.placement.workers() as u64);
    }

    /// Learns from a message of this round when all workers restart. A restart in a distant round is not credible.
    pub(super) fn learn_restart(&mut self, round: u64, restart: Option<u64>) {
        let latest = round + 2 * self.placement.workers() as u64;
        if let Some(restart) = restart.filter(|&restart| restart > round && restart <= latest) {
            self.add_restart(restart);
        }
    }

    /// Of several restarts the earliest counts, and another one follows it. If the latest counted, links that change all
    /// the time would put it off forever.
    fn add_restart(&mut self, restart: u64) {
        self.restarts_again |= self.restart.is_some_and(|known| known != restart);
        self.restart = Some(self.restart.map_or(restart, |known| known.min(restart)));
    }

    /// Whether all workers restart before this round.
    pub(crate) fn take_restart(&mut self, round: u64) -> bool {
        let restarts = self.restart.take_if(|restart| *restart <= round).is_some();
        if restarts && std::mem::take(&mut self.restarts_again) {
            self.plan_restart(round);
        }
        restarts
    }

    /// Forgets a worker that was lost or has rejoined: what was sent before does not count any more.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        let process = self.placement.process_of(worker);
        self.full_copies_sent.retain(|(_, receiver)| *receiver != process);
        self.public_copies.retain(|(sender, _), _| *sender != worker);
    }

    /// The workers from which a worker receives messages, in any process.
    pub(crate) fn senders(&self, worker: WorkerId, job: &ExchangeJob<'_>) -> Vec<WorkerId> {
        match (job.exchange, &self.experiment.required_senders) {
            // Public copies are kept up to date at every worker that will need them.
            (Exchange::Neighbors | Exchange::Early, Some(senders)) => senders[worker].clone(),
            _ => job.exchange.senders(worker, &job.context).collect(),
        }
    }

    /// The other processes with a worker that receives from this local worker.
    pub(super) fn receiving_processes(&self, worker: WorkerId, senders: &[Vec<WorkerId>]) -> Vec<usize> {
        let receives = |process: &usize| {
            let mut remote = senders[self.placement.range_of(*process)].iter();
            remote.any(|senders| senders.contains(&worker))
        };
        self.other_processes().filter(receives).collect()
    }

    pub(super) fn other_processes(&self) -> impl Iterator<Item = usize> + use<> {
        let this = self.placement.this();
        (0..self.placement.processes()).filter(move |&process| process != this)
    }

    pub(crate) fn is_local(&self, worker: WorkerId) -> bool {
        self.placement.row_of(worker).is_some()
    }

    /// The messages that a worker sends in an exchange.
    pub(super) fn outgoing(&self, worker: WorkerId, stats: WorkerStats, job: &ExchangeJob<'_>) -> Vec<Outgoing> {
        job.algorithm.messages(&LocalView { worker, context: job.context, own: stats, received: &[] })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::Config;
    use crate::experiment::DataPaths;

    #[test]
    fn links_that_change_all_the_time_do_not_put_off_a_restart() {
        let config = Config::parse("graph.topology = \"ring:6\"\nalgorithm.name = \"sgp\"\n", &[]).unwrap();
        let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
        let mut gossip = Gossip::new(&experiment, Placement::new(6, 6, 0));
        let mut restarts = vec![];
        for round in 0..30 {
            if gossip.take_restart(round) {
                restarts.push(round);
            }
            // Links change before each of the first rounds, and another worker announces a later restart.
            if round < 13 {
                gossip.plan_restart(round);
                gossip.learn_restart(round, Some(round + 8));
            }
        }
        // The last one is late enough that all have heard of the last change.
        assert_eq!(restarts, [6, 12, 18, 24]);
        assert_eq!(gossip.restart, None);
    }
}
