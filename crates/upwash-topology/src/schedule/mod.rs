//! Schedules: which links are up in round k, and with which mixing weights.
//!
//! A schedule is a pure function of its seed and the round number. Round 10,000 can be computed without the rounds
//! before it, and every worker computes the same result. A third of this file is documentation with examples, one for each
//! constructor.

mod finite_time;
mod order;
mod round;

pub use order::Order;
pub use round::Round;

use crate::graph::{MAX_EDGES, MAX_NODES};
use crate::random::Stream;
use crate::{Edge, Graph, GraphError, Matcha, Mixing, WeightError, Weights};
use round::Pattern;
use std::sync::Arc;

/// A rule that determines the links and mixing weights of every round.
///
/// ```
/// use upwash_topology::{GraphSpec, Order, Rotation, Schedule, Weights};
///
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let rotation = Rotation::balance(&l1, 2)?;
/// let schedule = Schedule::fixed(&l1, &Weights::Optimal)?
///     .rotating(rotation.relabelings(), Order::InTurn { start: 0 })?
///     .averaging_every(100)?;
/// assert_eq!(schedule.round(99).degree(0), 7); // an exact average of all workers
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    nodes: usize,
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    /// Repeats a list of patterns.
    Cycle(Vec<Arc<Pattern>>),
    Matcha {
        matcha: Arc<Matcha>,
        weights: Weights,
        seed: u64,
    },
    RandomMatching {
        graph: Arc<Graph>,
        seed: u64,
    },
    RandomOut {
        fanout: usize,
        seed: u64,
    },
    Relabeled {
        base: Arc<Schedule>,
        relabeling: Vec<usize>,
    },
    Dynamic {
        copies: Vec<Schedule>,
        order: Order,
    },
    Averaging {
        base: Box<Schedule>,
        average: Arc<Pattern>,
        every: u64,
    },
}

/// The reason why a schedule is invalid.
///
/// ```
/// use upwash_topology::{Graph, Schedule, ScheduleError};
/// let pair = Graph::new(2, [(0, 1)])?;
/// assert_eq!(Schedule::released_flags(&pair).unwrap_err(), ScheduleError::OneMatching);
/// # Ok::<(), upwash_topology::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The released code needs a graph with at least two matchings.
    #[error(
        "the released code alternates between a graph's first two matchings, but this graph has fewer: use another graph or another schedule"
    )]
    OneMatching,
    /// The dynamic schedule has no graphs.
    #[error("a dynamic schedule needs at least one graph")]
    NoGraphs,
    /// The graphs of a dynamic schedule differ in size.
    #[error(
        "graph {copy} of the dynamic schedule has {found} workers, but the first has {expected}: use graphs of one size"
    )]
    Sizes {
        /// The index of the graph.
        copy: usize,
        /// The size of that graph.
        found: usize,
        /// The size of the first graph.
        expected: usize,
    },
    /// The released order supports at most three graphs.
    #[error("the released order supports one, two or three graphs, not {0}")]
    ReleasedOrder(usize),
    /// A number of rounds is 0.
    #[error("{0} must be at least 1 round")]
    ZeroRounds(&'static str),
    /// A custom matrix cannot be used with links that change from round to round.
    #[error(
        "a custom matrix cannot be used with links that change from round to round: use optimal, metropolis, uniform or alpha=NUMBER"
    )]
    GivenWeights,
    /// The one-peer hypercube needs a power of two.
    #[error(
        "the one-peer hypercube needs a number of workers that is a power of two, not {0}: use base-2, which reaches the \
         exact average of any number of workers"
    )]
    NotPowerOfTwo(usize),
    /// The weights are invalid.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The relabeling is invalid.
    #[error(transparent)]
    Relabeling(#[from] GraphError),
}

impl Schedule {
    /// Uses the whole graph in every round, as D-PSGD does.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Schedule, Weights};
    /// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Schedule::fixed(&ring, &Weights::Optimal)?.round(3).links(), ring.edges());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fixed(graph: &Graph, weights: &Weights) -> Result<Self, ScheduleError> {
        let mixing = weights.mixing(graph)?;
        let matchings = (0..graph.matchings().len()).collect();
        Ok(Self::cycle(graph.nodes(), [(graph.edges().to_vec(), matchings, mixing)]))
    }

    /// Activates each matching with its own probability, independently in every round, and mixes with MATCHA's alpha.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha, Schedule};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// let schedule = Schedule::matcha(&matcha, 7);
    /// let links: usize = (0..1000).map(|k| schedule.round(k).links().len()).sum();
    /// assert!((3700..4300).contains(&links)); // half of 8 links in each of 1000 rounds
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matcha(matcha: &Matcha, seed: u64) -> Self {
        let rule = Rule::Matcha { matcha: matcha.clone().into(), weights: Weights::Optimal, seed };
        Self { nodes: matcha.graph().nodes(), rule }
    }

    /// Draws matchings as [`matcha`](Self::matcha) does, and applies `weights` to the links that are up.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha, Schedule, Weights};
    /// let matcha = Matcha::solve(&"paper:L1".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// let schedule = Schedule::matcha_with(&matcha, Weights::Metropolis, 7)?;
    /// assert!(schedule.round(5).mixing().without_positive_diagonal().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matcha_with(matcha: &Matcha, weights: Weights, seed: u64) -> Result<Self, ScheduleError> {
        match weights {
            Weights::Given(_) => return Err(ScheduleError::GivenWeights),
            // Report an invalid alpha here rather than in some later round.
            Weights::Alpha(_) => drop(weights.mixing(matcha.graph())?),
            _ => {}
        }
        let rule = Rule::Matcha { matcha: matcha.clone().into(), weights, seed };
        Ok(Self { nodes: matcha.graph().nodes(), rule })
    }

    /// Uses the graph's matchings one after the other, one per round. Linked workers average their two models.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Schedule};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Schedule::alternating(&l1).round(9).matchings(), [4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn alternating(graph: &Graph) -> Self {
        let nodes = graph.nodes();
        let pairs = |(index, links): (usize, &Vec<Edge>)| {
            let mixing = Mixing::laplacian(nodes, links, |_| 0.5);
            (links.clone(), vec![index], mixing)
        };
        Self::cycle(nodes, graph.matchings().iter().enumerate().map(pairs))
    }

    /// The one-peer exponential graph: in round k each worker i sends to worker i + 2^(k mod log2 n) (mod n) and takes
    /// the mean of its own model and the one it receives. If the number of workers n is a power of two, log2 n rounds
    /// give the exact average.
    ///
    /// # Panics
    /// If there are no workers.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let schedule = Schedule::one_peer_exponential(8);
    /// let hops = [0, 1, 2, 3].map(|k| schedule.round(k).links()[0].1);
    /// assert_eq!(hops, [1, 2, 4, 1]);
    /// ```
    pub fn one_peer_exponential(nodes: usize) -> Self {
        assert!(nodes > 0, "no workers");
        let hops = (0..).map(|power| 1usize << power).take_while(|&hop| hop < nodes);
        let round = |hop: usize| {
            let row = |i: usize| {
                let mut row = vec![(i, 0.5), ((i + nodes - hop) % nodes, 0.5)];
                row.sort_unstable_by_key(|entry| entry.0);
                row
            };
            let links = (0..nodes).map(|i| (i, (i + hop) % nodes)).collect();
            (links, vec![], Mixing::from_rows((0..nodes).map(row).collect()))
        };
        let mut schedule = Self::cycle(nodes, hops.map(round));
        if let Rule::Cycle(patterns) = &mut schedule.rule {
            patterns.iter_mut().for_each(|pattern| Arc::make_mut(pattern).directed = true);
        }
        schedule
    }

    /// The number of rounds after which the links repeat; `None` if they are drawn at random or depend on the round otherwise.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::one_peer_exponential(8).period(), Some(3));
    /// ```
    pub fn period(&self) -> Option<usize> {
        match &self.rule {
            Rule::Cycle(patterns) => Some(patterns.len()),
            _ => None,
        }
    }

    /// Uses all given directed links in every round. Each worker gives equal weight to its own model and to each model
    /// it receives. This preserves the workers' average only if every worker receives from as many workers as it sends
    /// to; otherwise use push-sum weights.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let schedule = Schedule::directed(3, &[(0, 1), (1, 2), (2, 0), (0, 2)])?;
    /// assert_eq!(schedule.round(5).senders(2).collect::<Vec<_>>(), [0, 1]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn directed(nodes: usize, directed_edges: &[Edge]) -> Result<Self, GraphError> {
        if nodes > MAX_NODES || directed_edges.len() > MAX_EDGES {
            return Err(GraphError::TooLarge { nodes, edges: directed_edges.len() });
        }
        let mut links = directed_edges.to_vec();
        links.sort_unstable();
        for (index, &(from, to)) in links.iter().enumerate() {
            if from.max(to) >= nodes {
                let node = from.max(to);
                return Err(GraphError::OutOfRange { node, nodes });
            }
            if from == to {
                return Err(GraphError::SelfLoop { node: from });
            }
            if index > 0 && links[index - 1] == (from, to) {
                return Err(GraphError::DuplicateEdge { u: from, v: to });
            }
        }
        let rule = Rule::Cycle(vec![Arc::new(directed_pattern(nodes, links))]);
        Ok(Self { nodes, rule })
    }

    /// The directed exponential graph: each worker i sends to workers i + 1, i + 2, i + 4, ... (mod n). Every worker
    /// receives from as many workers as it sends to, so the average is preserved.
    ///
    /// # Panics
    /// If there are no workers, or more than a graph can have.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::exponential(8).round(0).senders(0).collect::<Vec<_>>(), [4, 6, 7]);
    /// ```
    pub fn exponential(nodes: usize) -> Self {
        assert!(nodes > 0, "no workers");
        let hops = (0..).map(|power| 1usize << power);
        let directed_edges: Vec<Edge> = hops
            .take_while(|&hop| hop < nodes)
            .flat_map(|hop| (0..nodes).map(move |i| (i, (i + hop) % nodes)))
            .collect();
        Self::directed(nodes, &directed_edges).expect("hops below the size are distinct")
    }

    /// Draws a random maximal matching of the graph in every round. Linked workers average their two models.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Schedule};
    /// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
    /// let round = Schedule::random_matching(&ring, 1).round(0);
    /// assert!((0..8).all(|worker| round.degree(worker) <= 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn random_matching(graph: &Graph, seed: u64) -> Self {
        let rule = Rule::RandomMatching { graph: graph.clone().into(), seed };
        Self { nodes: graph.nodes(), rule }
    }

    /// Lets every worker send to `fanout` random others in every round. A worker gives equal weight to its own model and to each
    /// that it receives, which preserves the average in expectation only.
    ///
    /// # Panics
    /// If there are not so many others.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let round = Schedule::random_out(8, 2, 1).round(0);
    /// assert_eq!(round.links().len(), 16);
    /// ```
    pub fn random_out(nodes: usize, fanout: usize, seed: u64) -> Self {
        assert!(fanout < nodes, "{fanout} receivers among {nodes} workers");
        Self { nodes, rule: Rule::RandomOut { fanout, seed } }
    }

    /// The schedule that the code released with the AL-DSGD and MATCHA papers runs under the name D-PSGD. It does not
    /// use the whole graph, but its second matching in rounds 0, 2, 4, ... and its first in rounds 1, 3, 5, ..., with
    /// the alpha of the whole graph. On L1 these two matchings leave the graph in two connected components.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Schedule};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let schedule = Schedule::released_flags(&l1)?;
    /// assert_eq!(schedule.round(0).links(), [(1, 7), (3, 6)]);
    /// assert!((schedule.round(0).mixing().weight(1, 7) - 2.0 / 7.0).abs() < 1e-9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn released_flags(graph: &Graph) -> Result<Self, ScheduleError> {
        let whole = Weights::Optimal.mixing(graph)?;
        let matchings = graph.matchings();
        if matchings.len() < 2 {
            return Err(ScheduleError::OneMatching);
        }
        let one = |index: usize| {
            let links = matchings[index].clone();
            let weight = |&(u, v): &Edge| (u, v, whole.weight(u, v));
            let mixing = Mixing::symmetric(graph.nodes(), links.iter().map(weight));
            (links, vec![index], mixing)
        };
        Ok(Self::cycle(graph.nodes(), [one(1), one(0)]))
    }

    /// Combines the schedules of several graphs. Each schedule counts only the rounds in which it is used (except in a
    /// random order, where all use the common round number).
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Order, Schedule};
    /// let copies = ["paper:L1", "paper:L2", "paper:L3"]
    ///     .map(|name| Schedule::released_flags(&name.parse::<GraphSpec>()?.build()?).map_err(Box::from))
    ///     .into_iter()
    ///     .collect::<Result<Vec<_>, Box<dyn std::error::Error>>>()?;
    /// let schedule = Schedule::dynamic(copies, Order::Released { rounds_per_epoch: 49 })?;
    /// assert_eq!([0, 1, 2, 3].map(|k| schedule.round(k).copy()), [1, 0, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dynamic(copies: Vec<Self>, order: Order) -> Result<Self, ScheduleError> {
        let nodes = copies.first().ok_or(ScheduleError::NoGraphs)?.nodes;
        if let Some(copy) = copies.iter().position(|copy| copy.nodes != nodes) {
            return Err(ScheduleError::Sizes { copy, found: copies[copy].nodes, expected: nodes });
        }
        if let Order::Released { rounds_per_epoch } = order {
            if rounds_per_epoch == 0 {
                return Err(ScheduleError::ZeroRounds("an epoch"));
            }
            if copies.len() > 3 {
                return Err(ScheduleError::ReleasedOrder(copies.len()));
            }
        }
        Ok(Self { nodes, rule: Rule::Dynamic { copies, order } })
    }

    /// Rotates through relabeled copies of this schedule. In copy c, worker k takes the position of worker
    /// `relabelings[c][k]` of this schedule.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha, Order, Schedule, paper_relabelings};
    /// let matcha = Matcha::solve(&"paper:L1".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// let rotating = Schedule::matcha(&matcha, 7)
    ///     .rotating(&paper_relabelings(), Order::Random { seed: 7 })?;
    /// assert_eq!(rotating.nodes(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rotating(self, relabelings: &[Vec<usize>], order: Order) -> Result<Self, ScheduleError> {
        let (nodes, base) = (self.nodes, Arc::new(self));
        let copy = |relabeling: &Vec<usize>| -> Result<Self, ScheduleError> {
            crate::graph::inverse(relabeling, nodes)?;
            let rule = match &base.rule {
                // Relabel fixed patterns once rather than in every round.
                Rule::Cycle(patterns) => {
                    let moved = patterns.iter().map(|pattern| pattern.relabeled(relabeling).into());
                    Rule::Cycle(moved.collect())
                }
                _ => Rule::Relabeled { base: Arc::clone(&base), relabeling: relabeling.clone() },
            };
            Ok(Self { nodes, rule })
        };
        let copies = relabelings.iter().map(copy).collect::<Result<_, _>>()?;
        Self::dynamic(copies, order)
    }

    /// Replaces every `rounds`-th round by an exact average of all workers, as in Gossip-PGA. With `rounds` = 4 these
    /// are rounds 3, 7, 11, ... They have no [`links`](Round::links).
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let schedule = Schedule::one_peer_exponential(8).averaging_every(4)?;
    /// assert_eq!([2, 3].map(|k| schedule.round(k).degree(0)), [1, 7]);
    /// # Ok::<(), upwash_topology::ScheduleError>(())
    /// ```
    pub fn averaging_every(self, rounds: u64) -> Result<Self, ScheduleError> {
        if rounds == 0 {
            return Err(ScheduleError::ZeroRounds("the period of full averaging"));
        }
        let nodes = self.nodes;
        let average =
            Arc::new(Pattern { links: vec![], directed: false, matchings: vec![], mixing: Mixing::average(nodes) });
        let rule = Rule::Averaging { base: Box::new(self), average, every: rounds };
        Ok(Self { nodes, rule })
    }

    /// Returns the number of workers.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::one_peer_exponential(8).nodes(), 8);
    /// ```
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the links and mixing weights of round `index`.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let schedule = Schedule::one_peer_exponential(8);
    /// assert_eq!(schedule.round(1_000_000_000).links()[0], (0, 2));
    /// ```
    pub fn round(&self, index: u64) -> Round {
        let (copy, pattern) = self.pattern(0, index);
        Round { index, copy, pattern }
    }

    /// Returns every (sender, receiver) that can occur in some round, however rarely.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha, Schedule};
    /// let ring = "ring:4".parse::<GraphSpec>()?.build()?;
    /// let rare = Schedule::matcha(&Matcha::solve(&ring, 0.001)?, 7);
    /// assert_eq!(rare.possible_links().len(), 8); // four links, both ways
    /// assert_eq!(Schedule::one_peer_exponential(4).possible_links().len(), 8); // to the next two workers
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn possible_links(&self) -> Vec<Edge> {
        let both_ways = |links: &[Edge]| -> Vec<Edge> {
            let links = links.iter();
            links.flat_map(|&(u, v)| [(u, v), (v, u)]).collect()
        };
        let mut all: Vec<Edge> = match &self.rule {
            Rule::Cycle(patterns) => patterns.iter().flat_map(|pattern| pattern.directed_edges()).collect(),
            Rule::Matcha { matcha, .. } => {
                let matchings = matcha.matchings().iter().zip(matcha.probabilities());
                let used = matchings.filter(|(_, probability)| **probability > 0.0);
                used.flat_map(|(links, _)| both_ways(links)).collect()
            }
            Rule::RandomMatching { graph, .. } => both_ways(graph.edges()),
            Rule::RandomOut { .. } => {
                let pairs = (0..self.nodes).flat_map(|from| (0..self.nodes).map(move |to| (from, to)));
                pairs.filter(|(from, to)| from != to).collect()
            }
            Rule::Relabeled { base, relabeling } => {
                let worker_at = crate::graph::inverse(relabeling, relabeling.len()).expect("a permutation");
                let links = base.possible_links().into_iter();
                links.map(|(u, v)| (worker_at[u], worker_at[v])).collect()
            }
            Rule::Dynamic { copies, .. } => copies.iter().flat_map(Self::possible_links).collect(),
            Rule::Averaging { base, average, .. } => {
                let links = base.possible_links().into_iter();
                links.chain(average.directed_edges()).collect()
            }
        };
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the round of [`matcha`](Self::matcha) in which exactly the matchings `active` are active.
    pub(crate) fn matcha_round(matcha: &Matcha, active: Vec<usize>) -> Round {
        Round { index: 0, copy: 0, pattern: matcha_pattern(matcha, &Weights::Optimal, active).into() }
    }

    fn cycle(nodes: usize, rounds: impl IntoIterator<Item = (Vec<Edge>, Vec<usize>, Mixing)>) -> Self {
        let pattern = |(links, matchings, mixing)| Arc::new(Pattern { links, directed: false, matchings, mixing });
        let mut patterns: Vec<_> = rounds.into_iter().map(pattern).collect();
        if patterns.is_empty() {
            patterns.push(pattern((vec![], vec![], Mixing::symmetric(nodes, []))));
        }
        Self { nodes, rule: Rule::Cycle(patterns) }
    }

    /// Returns the index of the copy and its pattern. `stream_id` separates the random draws of different copies.
    fn pattern(&self, stream_id: u64, index: u64) -> (usize, Arc<Pattern>) {
        match &self.rule {
            Rule::Cycle(patterns) => (0, Arc::clone(&patterns[(index % patterns.len() as u64) as usize])),
            Rule::Matcha { matcha, weights, seed } => {
                let mut stream = Stream::new(*seed, "matcha", &[stream_id, index]);
                let draws = matcha.probabilities().iter().map(|&p| stream.uniform() < p);
                let active = draws.enumerate().filter_map(|(j, is_active)| is_active.then_some(j)).collect();
                (0, matcha_pattern(matcha, weights, active).into())
            }
            Rule::RandomMatching { graph, seed } => {
                let mut links = graph.edges().to_vec();
                Stream::new(*seed, "random matching", &[stream_id, index]).shuffle(&mut links);
                let mut free = vec![true; graph.nodes()];
                links.retain(|&(u, v)| {
                    let both = free[u] && free[v];
                    if both {
                        (free[u], free[v]) = (false, false);
                    }
                    both
                });
                links.sort_unstable();
                let mixing = Mixing::laplacian(graph.nodes(), &links, |_| 0.5);
                (0, Pattern { links, directed: false, matchings: vec![], mixing }.into())
            }
            Rule::RandomOut { fanout, seed } => {
                let mut links = Vec::with_capacity(self.nodes * fanout);
                for sender in 0..self.nodes {
                    let mut stream = Stream::new(*seed, "random receivers", &[stream_id, index, sender as u64]);
                    let first = links.len();
                    while links.len() < first + fanout {
                        let other = stream.below(self.nodes - 1);
                        let link = (sender, other + usize::from(other >= sender));
                        if !links[first..].contains(&link) {
                            links.push(link);
                        }
                    }
                }
                (0, directed_pattern(self.nodes, links).into())
            }
            Rule::Relabeled { base, relabeling } => {
                let (copy, pattern) = base.pattern(stream_id, index);
                (copy, pattern.relabeled(relabeling).into())
            }
            Rule::Dynamic { copies, order } => {
                let (copy, round) = order.graph_at(copies.len(), index);
                let stream_id = stream_id.wrapping_mul(0x1_0000).wrapping_add(copy as u64 + 1);
                (copy, copies[copy].pattern(stream_id, round).1)
            }
            Rule::Averaging { average, every, .. } if (index + 1).is_multiple_of(*every) => (0, Arc::clone(average)),
            Rule::Averaging { base, .. } => base.pattern(stream_id, index),
        }
    }
}

/// Distinct directed links, with equal weights of a worker's own model and of each that it receives.
fn directed_pattern(nodes: usize, mut links: Vec<Edge>) -> Pattern {
    links.sort_unstable();
    let mut rows: Vec<Vec<usize>> = (0..nodes).map(|i| vec![i]).collect();
    links.iter().for_each(|&(from, to)| rows[to].push(from));
    let row = |mut senders: Vec<usize>| {
        senders.sort_unstable();
        let weight = 1.0 / senders.len() as f64;
        senders.into_iter().map(|sender| (sender, weight)).collect()
    };
    let mixing = Mixing::from_rows(rows.into_iter().map(row).collect());
    Pattern { links, directed: true, matchings: vec![], mixing }
}

/// Returns the links of the `active` matchings with their mixing weights.
fn matcha_pattern(matcha: &Matcha, weights: &Weights, active: Vec<usize>) -> Pattern {
    let nodes = matcha.graph().nodes();
    let mut links: Vec<Edge> = active.iter().flat_map(|&j| matcha.matchings()[j].clone()).collect();
    links.sort_unstable();
    let mixing = match weights {
        Weights::Optimal => Mixing::laplacian(nodes, &links, |node| matcha.alphas()[node]),
        weights => {
            let graph = Graph::new(nodes, links.iter().copied());
            let mixing = graph.map(|graph| weights.mixing(&graph));
            mixing.expect("links of a simple graph").expect("weights checked when the schedule was created")
        }
    };
    Pattern { links, directed: false, matchings: active, mixing }
}
