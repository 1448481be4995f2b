//! Training algorithms, described exchange by exchange.
//!
//! Stack the workers' models as the rows of X and their local steps (learning rate times the optimizer's direction) as
//! the rows of U. A round of most synchronous algorithms is X' = A X - C U, with small sparse A and C that change from
//! round to round. Some algorithms keep additional state vectors for every worker. An [`Algorithm`] defines what each
//! worker sends and what its vectors become, as short weighted sums. It never touches a tensor, a thread or a socket.
//!
//! More than a third of this file is documentation of what an algorithm can define.
//! It computes row i from what worker i knows (the schedule and the messages it has received), so it runs unchanged in
//! one process and over a network. An [`Asynchronous`] algorithm defines the same for the two workers of a pairwise
//! update.
//!
//! A [`Definition`] in a [`Registry`] builds either kind from a configuration.

mod asynchronous;
mod check;
mod clipping;
mod definition;
mod exchange;
mod leaders;
mod options;
mod plan;
mod row_plan;

mod ad_psgd;
mod al_dsgd;
mod all_reduce;
mod async_easgd;
mod choco;
mod d2;
mod decentlam;
mod diloco;
mod downpour;
mod dpsgd;
mod easgd;
mod epidemic;
mod gosgd;
mod gossip_pga;
mod gradient_tracking;
mod local_sgd;
mod lsgd;
mod matcha;
mod noloco;
mod parameter_server;
mod qg_momentum;
mod sgp;
mod slowmo;

pub use ad_psgd::AdPsgd;
pub use al_dsgd::AlDsgd;
pub use all_reduce::AllReduce;
pub use async_easgd::AsyncEasgd;
pub use asynchronous::{AsyncStep, Asynchronous, PairExchange, PairwiseUpdate};
pub use choco::Choco;
pub(crate) use clipping::clip;
pub use clipping::clipping_radius;
pub use d2::D2;
pub use decentlam::DecentLaM;
pub use definition::{Definition, Method, Registry};
pub use diloco::DiLoCo;
pub use downpour::Downpour;
pub use dpsgd::Dpsgd;
pub use easgd::Easgd;
pub use epidemic::Epidemic;
pub use exchange::Exchange;
pub(crate) use exchange::VerifiedLosses;
pub use gosgd::GoSgd;
pub use gossip_pga::GossipPga;
pub use gradient_tracking::GradientTracking;
pub use leaders::{LeaderCoefficients, LeaderScope, Variant};
pub use local_sgd::LocalSgd;
pub use lsgd::Lsgd;
pub use matcha::MatchaSgd;
pub use noloco::NoLoCo;
pub use options::{OptionInfo, Options};
pub use parameter_server::ParameterServer;
pub use plan::{Assignment, Combination, Differences, InitialValue, Outgoing, Plan, StateVector, Vector, WorkerPlan};
pub use qg_momentum::QgMomentum;
pub use row_plan::RowPlan;
pub use sgp::Sgp;
pub use slowmo::SlowMo;

use crate::ids::WorkerId;
use upwash_topology::{Graph, Round, Schedule};

/// What a message tells about its sender, besides the vector.
///
/// ```
/// use upwash::algorithm::WorkerStats;
/// let stats = WorkerStats { loss: Some(0.7), degree: 3, scalar: 1.0 };
/// assert_eq!(stats.degree, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerStats {
    /// The sender's loss on its batch: of this round, or of the previous one if the message leaves before the gradient
    /// is computed. `None` if there was no such round, and for a server.
    pub loss: Option<f64>,
    /// The number of the sender's links that are up in this round.
    pub degree: usize,
    /// A scalar that the algorithm keeps for every worker, such as the push-sum weight. It starts at 1.
    pub scalar: f64,
}

impl WorkerStats {
    /// Whether the scalar can be that of one of so many workers. Weights are positive, and their sum is about the number
    /// of workers.
    ///
    /// ```
    /// # use upwash::algorithm::WorkerStats;
    /// let stats = |scalar| WorkerStats { loss: None, degree: 1, scalar };
    /// assert!(stats(0.5).has_plausible_scalar(8));
    /// assert!(![f64::NAN, 1e-300, -1.0, 1e3].iter().any(|&scalar| stats(scalar).has_plausible_scalar(8)));
    /// ```
    pub fn has_plausible_scalar(&self, workers: usize) -> bool {
        (1e-12..=4.0 * workers as f64).contains(&self.scalar)
    }

    /// Orders by loss, lowest first. An unknown loss comes last.
    ///
    /// ```
    /// # use upwash::algorithm::WorkerStats;
    /// let stats = |loss| WorkerStats { loss, degree: 1, scalar: 1.0 };
    /// assert!(stats(Some(0.5)).by_loss(&stats(None)).is_lt());
    /// ```
    pub fn by_loss(&self, other: &Self) -> std::cmp::Ordering {
        let loss = |stats: &Self| stats.loss.unwrap_or(f64::INFINITY);
        loss(self).total_cmp(&loss(other))
    }
}

/// The context of an exchange that all workers share.
///
/// ```
/// use upwash::algorithm::ExchangeContext;
/// use upwash_topology::Schedule;
/// let round = Schedule::one_peer_exponential(4).round(0);
/// assert_eq!(ExchangeContext::new(&round, 0.1).workers(), 4);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ExchangeContext<'a> {
    /// The links that are up and their mixing weights.
    pub round: &'a Round,
    /// The index of this exchange in its round, from 0.
    pub exchange: usize,
    /// The learning rate of this round, gamma.
    pub rate: f64,
    /// The learning rate of the previous round. In the first round it equals `rate`.
    pub previous_rate: f64,
    /// The configured momentum.
    pub momentum: f64,
    /// The server, if there is one: a worker without data that is linked with all others.
    pub server: Option<WorkerId>,
}

impl<'a> ExchangeContext<'a> {
    /// The first exchange of a round, without momentum and without a server.
    ///
    /// ```
    /// # use upwash::algorithm::ExchangeContext;
    /// # let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// assert_eq!(ExchangeContext::new(&round, 0.1).exchange, 0);
    /// ```
    pub fn new(round: &'a Round, rate: f64) -> Self {
        Self { round, exchange: 0, rate, previous_rate: rate, momentum: 0.0, server: None }
    }

    /// The number of workers, including a server.
    ///
    /// ```
    /// # use upwash::algorithm::ExchangeContext;
    /// # let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// assert_eq!(ExchangeContext::new(&round, 0.1).workers(), 4);
    /// ```
    pub fn workers(&self) -> usize {
        self.round.mixing().nodes()
    }
}

/// What a worker knows when it mixes.
///
/// ```
/// use upwash::{WorkerId, algorithm::{WorkerStats, ExchangeContext, LocalView}};
/// use upwash_topology::{GraphSpec, Schedule, Weights};
/// let ring = "ring:4".parse::<GraphSpec>()?.build()?;
/// let round = Schedule::fixed(&ring, &Weights::Optimal)?.round(0);
/// let stats = WorkerStats { loss: Some(1.0), degree: 2, scalar: 1.0 };
/// let received = [1, 3].map(|sender| (WorkerId(sender), stats));
/// let context = ExchangeContext::new(&round, 0.1);
/// let view = LocalView { worker: WorkerId(0), context, own: stats, received: &received };
/// assert_eq!(view.weights(false).len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LocalView<'a> {
    /// The worker.
    pub worker: WorkerId,
    /// The context that all workers share.
    pub context: ExchangeContext<'a>,
    /// The worker's stats, as it sent them.
    pub own: WorkerStats,
    /// The sender and stats of each received message, in increasing order of senders.
    pub received: &'a [(WorkerId, WorkerStats)],
}

impl LocalView<'_> {
    /// This worker's row of the mixing matrix W of the round, or of (I + W)/2 if `lazy`.
    ///
    /// ```
    /// # use upwash::{WorkerId, algorithm::{WorkerStats, ExchangeContext, LocalView}};
    /// let round = upwash_topology::Schedule::one_peer_exponential(2).round(0);
    /// let own = WorkerStats { loss: None, degree: 1, scalar: 1.0 };
    /// let (context, received) = (ExchangeContext::new(&round, 0.1), [(WorkerId(1), own)]);
    /// let view = LocalView { worker: WorkerId(0), context, own, received: &received };
    /// assert_eq!(view.weights(true), [(WorkerId(0), 0.75), (WorkerId(1), 0.25)]);
    /// ```
    pub fn weights(&self, lazy: bool) -> Vec<(WorkerId, f64)> {
        let row = self.context.round.mixing().row(self.worker.0).iter();
        let mut row: Vec<_> = row.map(|&(sender, weight)| (WorkerId(sender), weight)).collect();
        if lazy {
            for (sender, weight) in &mut row {
                *weight *= 0.5;
                if *sender == self.worker {
                    *weight += 0.5;
                }
            }
        }
        row
    }
}

/// The links that an algorithm uses.
///
/// ```
/// use upwash::algorithm::{Algorithm, Links, MatchaSgd};
/// assert_eq!(MatchaSgd::default().links(), Links::Matcha { budget: 0.5 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Links {
    /// The links of the configured graph, as configured.
    Configured,
    /// Matchings of the configured graph, drawn by MATCHA.
    Matcha {
        /// The expected fraction of matchings that are active in a round.
        budget: f64,
    },
    /// Random pairs of linked workers, drawn anew in every round.
    RandomPairs,
    /// A random directed graph in every round, whatever the configured one.
    RandomOut {
        /// The number of workers that each worker sends to.
        fanout: u64,
    },
    /// No links: the algorithm does not use a graph.
    None,
}

/// What starts afresh, at all workers in the same round, after workers were lost or have returned: what the algorithm
/// relies on for all workers together, such as a sum that stays 0.
///
/// ```
/// use upwash::algorithm::{Algorithm, Dpsgd, Sgp};
/// assert!(Dpsgd::default().restart().is_nothing());
/// assert!(Sgp.restart().scalars); // the weights have their sum again
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// Whether scalars become 1.
    pub scalars: bool,
    /// State vectors, each with the one whose value it gets; `None` for 0.
    pub state_vectors: Vec<(usize, Option<usize>)>,
}

impl Restart {
    /// Whether nothing starts afresh.
    pub fn is_nothing(&self) -> bool {
        !self.scalars && self.state_vectors.is_empty()
    }
}

/// What an algorithm is checked against before the first round.
#[derive(Clone, Copy, Debug)]
pub struct Preflight<'a> {
    /// The configured graph.
    pub graph: &'a Graph,
    /// Which links are up in which round.
    pub schedule: &'a Schedule,
    /// The workers that weigh their own model 0 or less in some round.
    pub nonpositive_self_weight: &'a [usize],
    /// Every (sender, receiver) pair that is linked in some round.
    pub links: &'a [(usize, usize)],
}

impl Preflight<'_> {
    /// A (sender, receiver) pair such that nothing the sender sends ever reaches the receiver, not even indirectly.
    pub fn unreachable_pair(&self) -> Option<(usize, usize)> {
        let nodes = self.graph.nodes();
        let reach = |flip: bool| {
            let mut next = vec![vec![]; nodes];
            for &(from, to) in self.links {
                let (from, to) = if flip { (to, from) } else { (from, to) };
                next[from].push(to);
            }
            let (mut seen, mut queue) = (vec![false; nodes], vec![0]);
            while let Some(node) = queue.pop() {
                if !std::mem::replace(&mut seen[node], true) {
                    queue.extend(&next[node]);
                }
            }
            seen.iter().position(|seen| !seen)
        };
        let to = reach(false).map(|to| (0, to));
        to.or_else(|| reach(true).map(|from| (from, 0)))
    }
}

/// A synchronous algorithm. Only [`plan`](Self::plan) is required. By default, every worker sends its stepped model to
/// its neighbors in every round.
///
/// ```
/// use upwash::algorithm::{Algorithm, Assignment, Plan, Vector, LocalView};
///
/// /// Every worker averages with the neighbor that reports the lowest loss.
/// #[derive(Debug)]
/// struct FollowTheBest;
///
/// impl Algorithm for FollowTheBest {
///     fn plan(&self, view: &LocalView<'_>) -> Plan {
///         let best = view.received.iter().min_by(|a, b| a.1.by_loss(&b.1));
///         let mut model = Assignment::mixed(Vector::Model, vec![(view.worker, 0.5)]);
///         model.add(best.map_or(view.worker, |(sender, _)| *sender), 0.5);
///         model.into()
///     }
/// }
/// ```
pub trait Algorithm: std::fmt::Debug + Send + Sync {
    /// The new values of the vectors of worker `view.worker` in this exchange.
    fn plan(&self, view: &LocalView<'_>) -> Plan;

    /// The algorithm that this one wraps, if any. Most provided methods delegate to it.
    fn base(&self) -> Option<&dyn Algorithm> {
        None
    }

    /// The messages that worker `view.worker` sends. Nothing has been received yet.
    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        match self.base() {
            Some(base) => base.messages(view),
            None => vec![Outgoing::stepped()],
        }
    }

    /// The exchanges of round `round`, in order. Gradients are computed before the first.
    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        match self.base() {
            Some(base) => base.exchanges(round),
            None => vec![Exchange::Neighbors],
        }
    }

    /// The state vectors that it keeps for every worker.
    fn state_vectors(&self) -> Vec<StateVector> {
        match self.base() {
            Some(base) => base.state_vectors(),
            None => vec![],
        }
    }

    /// What starts afresh after workers were lost or have returned.
    fn restart(&self) -> Restart {
        self.base().map_or_else(Restart::default, |base| base.restart())
    }

    /// The links that it uses.
    fn links(&self) -> Links {
        match self.base() {
            Some(base) => base.links(),
            None => Links::Configured,
        }
    }

    /// A readable name, with the options that distinguish this instance.
    fn display_name(&self) -> String {
        format!("{self:?}")
    }

    /// Whether it needs a server: a worker without data that is linked with all others.
    fn has_server(&self) -> bool {
        self.base().is_some_and(|base| base.has_server())
    }

    /// Whether it supports directed links, whose weights need not preserve the average.
    fn supports_directed(&self) -> bool {
        self.base().is_some_and(|base| base.supports_directed())
    }

    /// Whether AL-DSGD can wrap it: workers see their neighbors' models, and a pull toward one of them breaks no
    /// invariant.
    fn supports_leaders(&self) -> bool {
        false
    }

    /// Whether workers may clip the messages of their neighbors: they see the neighbors' models in every exchange, and a
    /// lower weight of one of them breaks no invariant. See [`clipping_radius`].
    fn supports_clipping(&self) -> bool {
        false
    }

    /// Whether workers clip the messages of their neighbors.
    fn clips(&self) -> bool {
        self.base().is_some_and(|base| base.clips())
    }

    /// Whether receivers evaluate the models that are sent to them, and do not rely on the losses that senders claim.
    fn verifies_leaders(&self) -> bool {
        self.base().is_some_and(|base| base.verifies_leaders())
    }

    /// The consensus step size, if models move only part of the way toward the average: x' = y + step (W c - c), as in
    /// CHOCO.
    fn consensus_step(&self) -> Option<f64> {
        None
    }

    /// Whether all workers start from the same model by default.
    fn starts_equal(&self) -> bool {
        self.base().is_some_and(|base| base.starts_equal())
    }

    /// Whether the algorithm applies the configured momentum itself, instead of the optimizer.
    fn owns_momentum(&self) -> bool {
        self.base().is_some_and(|base| base.owns_momentum())
    }

    /// Whether what it does depends on the workers' losses. A training loop that reports none cannot use it.
    fn needs_losses(&self) -> bool {
        self.base().is_some_and(|base| base.needs_losses())
    }

    /// Whether it uses the graphs, orders and links of the code released with the AL-DSGD paper by default.
    fn is_released(&self) -> bool {
        self.base().is_some_and(|base| base.is_released())
    }

    /// Checks that it can run on this graph. The error names the remedy.
    fn check(&self, preflight: &Preflight<'_>) -> Result<(), String> {
        match self.base() {
            Some(base) => base.check(preflight),
            None => Ok(()),
        }
    }

    /// The error of an algorithm that can fail, such as one that is written in another language. Such an algorithm
    /// returns any plan after a failure: the run ends with this error, and no plan of the exchange is carried out.
    fn failure(&self) -> Option<String> {
        self.base().and_then(|base| base.failure())
    }

    /// A checksum of what the name and the options of a custom algorithm do not say, such as its code. A run can only be
    /// resumed with the same checksum. 0 stands for nothing.
    fn fingerprint(&self) -> u32 {
        self.base().map_or(0, |base| base.fingerprint())
    }

    /// Warnings for the user about this algorithm on this graph.
    fn warnings(&self, preflight: &Preflight<'_>) -> Vec<String> {
        match self.base() {
            Some(base) => base.warnings(preflight),
            None => vec![],
        }
    }
}
