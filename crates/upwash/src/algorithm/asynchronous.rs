//! Algorithms without rounds: a worker with a new gradient exchanges messages with one other, and never waits for all.

use super::{Outgoing, Plan, WorkerPlan};
use crate::ids::WorkerId;
use upwash_topology::random::Stream;

/// A worker that has just computed a gradient.
#[derive(Clone, Copy, Debug)]
pub struct AsyncStep<'a> {
    /// The worker.
    pub worker: WorkerId,
    /// The number of gradients that it computed before this one.
    pub step: u64,
    /// Its neighbors, as nodes of the graph.
    pub neighbors: &'a [usize],
    /// The server, if there is one: a worker without data that is linked with all others.
    pub server: Option<WorkerId>,
    /// The number of workers with data.
    pub training: usize,
    /// The scalar that the algorithm keeps for the worker. It starts at 1.
    pub scalar: f64,
    /// The seed of all random choices.
    pub seed: u64,
}

impl AsyncStep<'_> {
    /// The random stream of this step.
    pub fn random(&self) -> Stream {
        Stream::new(self.seed, "meeting", &[self.worker.0 as u64, self.step])
    }

    /// One of the worker's neighbors, drawn uniformly.
    pub fn random_neighbor(&self) -> Option<WorkerId> {
        let count = self.neighbors.len();
        (count > 0).then(|| self.neighbors[self.random().below(count)].into())
    }
}

/// Which messages the two workers of a pairwise update send.
///
/// ```
/// use upwash::algorithm::{AdPsgd, Asynchronous, PairExchange};
/// assert_eq!(AdPsgd.pair_exchange(), PairExchange::Swap);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairExchange {
    /// Both workers send at the same time.
    Swap,
    /// The worker sends, then receives a reply.
    PushAndPull,
    /// The worker sends and does not wait.
    Push,
}

/// An update of two workers at once, or of one worker alone.
#[derive(Clone, Debug, PartialEq)]
pub struct PairwiseUpdate {
    /// The plan of the worker whose step this is, then that of its partner, if any.
    pub plans: Vec<WorkerPlan>,
}

impl PairwiseUpdate {
    /// The number of messages that are sent.
    pub fn messages(&self, exchange: PairExchange) -> u64 {
        Self::message_count(self.plans.len(), exchange)
    }

    /// The number of messages that an update of `workers` workers sends.
    pub(crate) fn message_count(workers: usize, exchange: PairExchange) -> u64 {
        match (workers, exchange) {
            (0 | 1, _) => 0,
            (_, PairExchange::Push) => 1,
            (_, PairExchange::Swap | PairExchange::PushAndPull) => 2,
        }
    }

    /// The worker takes its step alone: x' = x - u. Its message, if a partner uses it, is its stepped model.
    pub fn alone(worker: WorkerId) -> Self {
        let plan = WorkerPlan { worker, messages: vec![Outgoing::stepped()], plan: Plan::alone() };
        Self { plans: vec![plan] }
    }
}

/// An asynchronous algorithm. It runs in virtual time or on threads. An update blocks only the workers that it updates.
pub trait Asynchronous: std::fmt::Debug + Send + Sync {
    /// The partner of the worker in this step, if any.
    fn partner(&self, step: &AsyncStep<'_>) -> Option<WorkerId>;

    /// The update of the worker and its partner, which is given with its scalar.
    fn update(&self, step: &AsyncStep<'_>, partner: Option<(WorkerId, f64)>) -> PairwiseUpdate;

    /// Which messages the two workers of an update send.
    fn pair_exchange(&self) -> PairExchange {
        PairExchange::Swap
    }

    /// The number of gradients by which a worker may be ahead of the slowest one. It waits rather than exceed it.
    fn staleness(&self) -> Option<u64> {
        None
    }

    /// Whether it needs a server: a worker without data that is linked with all others.
    fn has_server(&self) -> bool {
        false
    }

    /// A readable name.
    fn display_name(&self) -> String {
        format!("{self:?}")
    }
}
