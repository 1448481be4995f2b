//! Exchanges whose workers are in several processes: what is sent where, and what is received.

use super::inbox::Inbox;
use crate::algorithm::{Algorithm, Exchange, ExchangeContext, LocalView, Outgoing, WorkerStats};
use crate::config::WirePrecision;
use crate::engine::{Engine, MixOptions};
use crate::experiment::Experiment;
use crate::transport::{Encoding, Placement};
use std::collections::{HashMap, HashSet};

/// One exchange of one round, as all processes know it.
#[derive(Clone, Copy)]
pub(crate) struct ExchangeJob<'a> {
    pub(crate) algorithm: &'a dyn Algorithm,
    pub(crate) exchange: Exchange,
    pub(crate) context: ExchangeContext<'a>,
    pub(crate) options: MixOptions,
    /// Whether running statistics go along.
    pub(crate) statistics: bool,
}

impl ExchangeJob<'_> {
    /// The number of its messages; those that only say how their sender did have the one before.
    pub(super) fn number(&self) -> u32 {
        2 * self.context.exchange as u32 + 1
    }

    /// The context with the links that are in force.
    pub(crate) fn context_in<'b>(&'b self, inbox: &'b Inbox) -> ExchangeContext<'b> {
        ExchangeContext { round: inbox.links.as_ref().unwrap_or(self.context.round), ..self.context }
    }

    /// Whether its messages leave before the gradients are known.
    pub(crate) fn leaves_early(&self) -> bool {
        self.exchange == Exchange::Early && self.context.exchange == 0
    }

    /// How many statistics go along.
    pub(super) fn statistic_count(&self, engine: &dyn Engine) -> usize {
        match self.statistics {
            true => engine.layout().statistic_count(),
            false => 0,
        }
    }
}

/// What is kept from exchange to exchange.
pub(crate) struct Gossip<'a> {
    pub(super) experiment: &'a Experiment,
    pub(crate) placement: Placement,
    /// How vectors travel that are not compressed by the algorithm.
    pub(super) encoding: Encoding,
    /// Others' public copies, by sender and message.
    pub(super) copies: HashMap<(usize, usize), Vec<f32>>,
    /// Who (of here) has sent its public copy whole to which process.
    pub(super) introduced: HashSet<(usize, usize)>,
    /// Who (of here) does not hold all links that it should have in this round.
    pub(crate) broken: HashSet<usize>,
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
            copies: HashMap::new(),
            introduced: HashSet::new(),
            broken: HashSet::new(),
        }
    }

    /// Someone was lost, or has come back: what was told it before does not count any more.
    pub(crate) fn forget(&mut self, worker: usize) {
        let process = self.placement.process_of(worker);
        self.introduced.retain(|(_, place)| *place != process);
        self.copies.retain(|(sender, _), _| *sender != worker);
    }

    /// Whom a worker hears, wherever they are.
    pub(crate) fn senders(&self, worker: usize, job: &ExchangeJob<'_>) -> Vec<usize> {
        match (job.exchange, &self.experiment.required_senders) {
            // Public copies are kept up to date wherever they will be needed.
            (Exchange::Neighbors | Exchange::Early, Some(senders)) => senders[worker].clone(),
            _ => job.exchange.senders(worker, &job.context).collect(),
        }
    }

    /// The processes in which someone hears a worker of this one.
    pub(super) fn places(&self, worker: usize, hears: &[Vec<usize>]) -> Vec<usize> {
        let hears = |process: &usize| {
            let mut there = hears[self.placement.of(*process)].iter();
            there.any(|senders| senders.contains(&worker))
        };
        self.other_processes().filter(hears).collect()
    }

    pub(super) fn other_processes(&self) -> impl Iterator<Item = usize> + use<> {
        let this = self.placement.this();
        (0..self.placement.processes()).filter(move |&process| process != this)
    }

    /// Whether all workers are in this process: nothing travels.
    pub(crate) fn is_local(&self) -> bool {
        self.placement.is_whole()
    }

    pub(crate) fn is_here(&self, worker: usize) -> bool {
        self.placement.row_of(worker).is_some()
    }

    /// What a worker sends in an exchange.
    pub(super) fn outgoing(&self, worker: usize, stats: WorkerStats, job: &ExchangeJob<'_>) -> Vec<Outgoing> {
        job.algorithm.messages(&LocalView { worker, context: job.context, own: stats, received: &[] })
    }
}
