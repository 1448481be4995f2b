//! Algorithms without rounds: a worker that has a gradient meets one other, and nobody waits for all.

use super::{Outgoing, Plan, WorkerPlan};
use upwash_topology::random::Stream;

/// A worker whose gradient is there.
#[derive(Clone, Copy, Debug)]
pub struct AsyncStep<'a> {
    /// Who.
    pub worker: usize,
    /// Its gradients so far, without this one.
    pub step: u64,
    /// Its neighbors in the graph.
    pub neighbors: &'a [usize],
    /// The worker that has no data but everyone's attention.
    pub server: Option<usize>,
    /// How many workers have data.
    pub training: usize,
    /// The number that the algorithm keeps for it, 1 at first.
    pub scalar: f64,
    /// What all random choices depend on.
    pub seed: u64,
}

impl AsyncStep<'_> {
    /// Random numbers for this step.
    pub fn random(&self) -> Stream {
        Stream::new(self.seed, "meeting", &[self.worker as u64, self.step])
    }

    /// One of its neighbors, each as likely as any other.
    pub fn random_neighbor(&self) -> Option<usize> {
        let count = self.neighbors.len();
        (count > 0).then(|| self.neighbors[self.random().below(count)])
    }
}

/// What two workers that meet send each other.
///
/// ```
/// use upwash::algorithm::{AdPsgd, Asynchronous, PairExchange};
/// assert_eq!(AdPsgd.pair_exchange(), PairExchange::Swap);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairExchange {
    /// Both send at the same time.
    Swap,
    /// The worker sends, and then gets an answer.
    PushAndPull,
    /// The worker sends, and goes on.
    Push,
}

/// What happens when two workers meet, or one is alone: both rows at once.
#[derive(Clone, Debug, PartialEq)]
pub struct PairwiseUpdate {
    /// Of the worker whose step it is, and of whom it meets.
    pub plans: Vec<WorkerPlan>,
}

impl PairwiseUpdate {
    /// How many messages travel.
    pub fn messages(&self, exchange: PairExchange) -> u64 {
        Self::message_count(self.plans.len(), exchange)
    }

    /// How many messages travel in an exchange between so many workers.
    pub(crate) fn message_count(workers: usize, exchange: PairExchange) -> u64 {
        match (workers, exchange) {
            (0 | 1, _) => 0,
            (_, PairExchange::Push) => 1,
            (_, PairExchange::Swap | PairExchange::PushAndPull) => 2,
        }
    }

    /// The worker keeps to itself: x' = x - u. Its message, if anyone takes it, is its stepped model.
    pub fn alone(worker: usize) -> Self {
        let plan = WorkerPlan { worker, messages: vec![Outgoing::stepped()], plan: Plan::alone() };
        Self { plans: vec![plan] }
    }
}

/// An asynchronous algorithm. What it says is carried out in virtual time or on threads; only the two
/// workers of a update are held up by it.
pub trait Asynchronous: std::fmt::Debug + Send + Sync {
    /// Whom the worker meets.
    fn partner(&self, step: &AsyncStep<'_>) -> Option<usize>;

    /// What becomes of both; the partner comes with its number.
    fn update(&self, step: &AsyncStep<'_>, partner: Option<(usize, f64)>) -> PairwiseUpdate;

    /// What two that meet send each other.
    fn pair_exchange(&self) -> PairExchange {
        PairExchange::Swap
    }

    /// By how many gradients a worker may be ahead of the slowest one; it waits when it would be more.
    fn staleness(&self) -> Option<u64> {
        None
    }

    /// Whether it needs a worker that has no data but is linked with all others.
    fn has_server(&self) -> bool {
        false
    }

    /// The algorithm in words.
    fn display_name(&self) -> String {
        format!("{self:?}")
    }
}
