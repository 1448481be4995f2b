//! Algorithms as rounds.
//!
//! Stack the workers' models as the rows of X, and their local steps (learning rate times the
//! optimizer's direction) as U. A round of most synchronous algorithms is X' = A X - C U, with small
//! sparse A and C that change from round to round; some keep a few more vectors for every worker. An
//! [`Algorithm`] says what each worker sends and what its vectors become: short sums, with numbers as
//! weights. It never touches a tensor, a thread or a socket, and it computes worker i's row from what
//! worker i knows (the schedule, and the messages that it got), so that it runs unchanged in one
//! process and over a network. An [`Asynchronous`] algorithm says the same for two workers that meet.
//!
//! Both are made from a configuration by a [`Definition`] in a [`Registry`].

mod asynchronous;
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
mod downpour;
mod dpsgd;
mod easgd;
mod gosgd;
mod gossip_pga;
mod gradient_tracking;
mod local_sgd;
mod lsgd;
mod matcha;
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
pub use d2::D2;
pub use definition::{Definition, Method, Registry};
pub use downpour::Downpour;
pub use dpsgd::Dpsgd;
pub use easgd::Easgd;
pub use exchange::Exchange;
pub use gosgd::GoSgd;
pub use gossip_pga::GossipPga;
pub use gradient_tracking::GradientTracking;
pub use leaders::{LeaderCoefficients, LeaderScope, Variant};
pub use local_sgd::LocalSgd;
pub use lsgd::Lsgd;
pub use matcha::MatchaSgd;
pub use options::{OptionInfo, Options};
pub use parameter_server::ParameterServer;
pub use plan::{Assignment, Combination, Differences, InitialValue, Outgoing, Plan, StateVector, Vector, WorkerPlan};
pub use qg_momentum::QgMomentum;
pub use row_plan::RowPlan;
pub use sgp::Sgp;
pub use slowmo::SlowMo;

use upwash_topology::{Graph, Round, Schedule};

/// What a message says of its sender beside the vector.
///
/// ```
/// use upwash::algorithm::WorkerStats;
/// let stats = WorkerStats { loss: Some(0.7), degree: 3, scalar: 1.0 };
/// assert_eq!(stats.degree, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerStats {
    /// The sender's loss on its batch: of this round, or of the one before where the message leaves
    /// before the gradient; none where there was no such round, or for a server.
    pub loss: Option<f64>,
    /// How many links of the sender are up in this round.
    pub degree: usize,
    /// A number that the algorithm keeps for every worker, 1 at first: push-sum's weight.
    pub scalar: f64,
}

impl WorkerStats {
    /// The lower loss comes first; one that is not known comes last.
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

/// What is the same for all workers in an exchange.
///
/// ```
/// use upwash::algorithm::ExchangeContext;
/// use upwash_topology::Schedule;
/// let round = Schedule::one_peer_exponential(4).round(0);
/// assert_eq!(ExchangeContext::new(&round, 0.1).workers(), 4);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ExchangeContext<'a> {
    /// The links and weights in force.
    pub round: &'a Round,
    /// Which of the round's exchanges this is, from 0.
    pub exchange: usize,
    /// gamma, the learning rate of this round.
    pub rate: f64,
    /// That of the round before; in the first round, the same.
    pub previous_rate: f64,
    /// The momentum that was asked for.
    pub momentum: f64,
    /// The worker that has no data but everyone's attention.
    pub server: Option<usize>,
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

    /// How many workers there are, a server included.
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

/// What worker `worker` knows when it mixes.
///
/// ```
/// use upwash::algorithm::{WorkerStats, ExchangeContext, LocalView};
/// use upwash_topology::{GraphSpec, Schedule, Weights};
/// let ring = "ring:4".parse::<GraphSpec>()?.build()?;
/// let round = Schedule::fixed(&ring, &Weights::Optimal)?.round(0);
/// let stats = WorkerStats { loss: Some(1.0), degree: 2, scalar: 1.0 };
/// let received = [(1, stats), (3, stats)];
/// let view = LocalView { worker: 0, context: ExchangeContext::new(&round, 0.1), own: stats, received: &received };
/// assert_eq!(view.weights(false).len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LocalView<'a> {
    /// Who mixes.
    pub worker: usize,
    /// What is the same for all.
    pub context: ExchangeContext<'a>,
    /// Its own stats, as it sent them.
    pub own: WorkerStats,
    /// The stats of the messages that it got, by sender, in increasing order.
    pub received: &'a [(usize, WorkerStats)],
}

impl LocalView<'_> {
    /// Row i of W, the mixing matrix in force, or of (I + W)/2 where it is to be lazy.
    ///
    /// ```
    /// # use upwash::algorithm::{WorkerStats, ExchangeContext, LocalView};
    /// let round = upwash_topology::Schedule::one_peer_exponential(2).round(0);
    /// let own = WorkerStats { loss: None, degree: 1, scalar: 1.0 };
    /// let view = LocalView { worker: 0, context: ExchangeContext::new(&round, 0.1), own, received: &[(1, own)] };
    /// assert_eq!(view.weights(true), [(0, 0.75), (1, 0.25)]);
    /// ```
    pub fn weights(&self, lazy: bool) -> Vec<(usize, f64)> {
        let mut row = self.context.round.mixing().row(self.worker).to_vec();
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

/// Which links an algorithm wants.
///
/// ```
/// use upwash::algorithm::{Algorithm, Links, MatchaSgd};
/// assert_eq!(MatchaSgd::default().links(), Links::Matcha { budget: 0.5 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Links {
    /// Those of the configured graph, as configured.
    Configured,
    /// The configured graph's matchings, drawn by MATCHA.
    Matcha {
        /// The part of the links in an average round.
        budget: f64,
    },
    /// None: it does not go by a graph.
    None,
}

/// What an algorithm can be checked against before the first round.
#[derive(Clone, Copy, Debug)]
pub struct Preflight<'a> {
    /// The graph as it is configured.
    pub graph: &'a Graph,
    /// Which links are up when.
    pub schedule: &'a Schedule,
    /// Who weighs its own model 0 or less in some round.
    pub weak: &'a [usize],
    /// Every (sender, receiver) that there is in some round.
    pub links: &'a [(usize, usize)],
}

impl Preflight<'_> {
    /// Two workers of whom the second never hears of the first, however long it takes.
    pub fn unreached(&self) -> Option<(usize, usize)> {
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

/// A synchronous algorithm. Only [`plan`](Self::plan) must be given: everyone then sends its stepped
/// model to its neighbors in every round.
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
    /// What worker `view.worker`'s vectors become in this exchange.
    fn plan(&self, view: &LocalView<'_>) -> Plan;

    /// The algorithm that this one is built upon: what is not given here is as there.
    fn base(&self) -> Option<&dyn Algorithm> {
        None
    }

    /// What worker `view.worker` sends; nothing has been received yet.
    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        match self.base() {
            Some(base) => base.messages(view),
            None => vec![Outgoing::stepped()],
        }
    }

    /// The exchanges of round `round`, one after the other; the gradients come before the first.
    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        match self.base() {
            Some(base) => base.exchanges(round),
            None => vec![Exchange::Neighbors],
        }
    }

    /// The vectors that it keeps for every worker.
    fn state_vectors(&self) -> Vec<StateVector> {
        match self.base() {
            Some(base) => base.state_vectors(),
            None => vec![],
        }
    }

    /// Which links it wants.
    fn links(&self) -> Links {
        match self.base() {
            Some(base) => base.links(),
            None => Links::Configured,
        }
    }

    /// The algorithm in words, with what sets it apart from others of its kind.
    fn display_name(&self) -> String {
        format!("{self:?}")
    }

    /// Whether it needs a worker that has no data but is linked with all others.
    fn has_server(&self) -> bool {
        self.base().is_some_and(|base| base.has_server())
    }

    /// Whether links that go one way, with weights that are no average, are no harm to it.
    fn supports_directed(&self) -> bool {
        self.base().is_some_and(|base| base.supports_directed())
    }

    /// Whether AL-DSGD can lead it: everyone sees its neighbors' models, and a pull towards one of
    /// them breaks nothing.
    fn supports_leaders(&self) -> bool {
        false
    }

    /// Where a model stays and goes a part of the way towards the average, x' = y + step (W c - c) as
    /// CHOCO does, that part.
    fn consensus_step(&self) -> Option<f64> {
        None
    }

    /// Whether workers start alike unless the configuration says otherwise.
    fn starts_equal(&self) -> bool {
        self.base().is_some_and(|base| base.starts_equal())
    }

    /// Whether the configured momentum is its own, and not the optimizer's.
    fn owns_momentum(&self) -> bool {
        self.base().is_some_and(|base| base.owns_momentum())
    }

    /// Whether the graphs, orders and links of the code released with the AL-DSGD paper go with it,
    /// unless others are given.
    fn is_released(&self) -> bool {
        self.base().is_some_and(|base| base.is_released())
    }

    /// What makes it impossible on this graph, with the remedy.
    fn check(&self, preflight: &Preflight<'_>) -> Result<(), String> {
        match self.base() {
            Some(base) => base.check(preflight),
            None => Ok(()),
        }
    }

    /// What a user should know of it on this graph.
    fn warnings(&self, preflight: &Preflight<'_>) -> Vec<String> {
        match self.base() {
            Some(base) => base.warnings(preflight),
            None => vec![],
        }
    }
}
