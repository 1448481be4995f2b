//! Which links are up in round k, and with which weights.
//!
//! A schedule is a pure function of its seed and the round: round 10,000 needs no replay, and every
//! worker that asks gets the same answer.

mod order;
mod round;

pub use order::Order;
pub use round::Round;

use crate::random::Stream;
use crate::{Edge, Graph, GraphError, Matcha, Mixing, WeightError, Weights};
use round::Pattern;
use std::sync::Arc;

/// A rule for every round.
///
/// ```
/// use upwash_topology::{GraphSpec, Order, Rotation, Schedule, Weights};
///
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let rotation = Rotation::balance(&l1, 2)?;
/// let schedule = Schedule::fixed(&l1, &Weights::Optimal)?
///     .rotating(rotation.relabelings(), Order::InTurn { start: 0 })?
///     .averaging_every(100)?;
/// assert_eq!(schedule.round(99).degree(0), 7); // everyone with everyone
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    nodes: usize,
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    /// These, in turn.
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
    Relabelled {
        base: Arc<Schedule>,
        places: Vec<usize>,
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

/// Why a schedule cannot be made.
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
    /// The released code alternates between two matchings.
    #[error(
        "the released code alternates between a graph's first two matchings, and this graph has fewer: take another graph or another schedule"
    )]
    OneMatching,
    /// A dynamic schedule of nothing.
    #[error("a dynamic schedule needs at least one graph")]
    NoGraphs,
    /// The graphs of a dynamic schedule differ in size.
    #[error("graph {copy} of the dynamic schedule has {found} workers, the first has {expected}")]
    Sizes {
        /// Which one.
        copy: usize,
        /// Its size.
        found: usize,
        /// The first one's.
        expected: usize,
    },
    /// The released order is made for two or three graphs.
    #[error("the released order is for one, two or three graphs, not {0}")]
    ReleasedOrder(usize),
    /// A number of rounds that must not be 0.
    #[error("{0} must be at least 1 round")]
    ZeroRounds(&'static str),
    /// A matrix of the user's own cannot follow links that come and go.
    #[error(
        "a given matrix cannot be used with links that change from round to round: use optimal, metropolis, uniform or alpha="
    )]
    GivenWeights,
    /// The weights are wrong.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The relabeling is wrong.
    #[error(transparent)]
    Relabeling(#[from] GraphError),
}

impl Schedule {
    /// The whole graph in every round: D-PSGD.
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

    /// Each matching up with its own probability, drawn anew for every round, with MATCHA's alpha.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha, Schedule};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// let schedule = Schedule::matcha(&matcha, 7);
    /// let links: usize = (0..1000).map(|k| schedule.round(k).links().len()).sum();
    /// assert!((3700..4300).contains(&links)); // half of 8 links, a thousand times
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matcha(matcha: &Matcha, seed: u64) -> Self {
        let rule = Rule::Matcha { matcha: matcha.clone().into(), weights: Weights::Optimal, seed };
        Self { nodes: matcha.graph().nodes(), rule }
    }

    /// [`matcha`](Self::matcha)'s draws with other weights, taken from the links that are up.
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
            // Found wrong here rather than in some later round.
            Weights::Alpha(_) => drop(weights.mixing(matcha.graph())?),
            _ => {}
        }
        let rule = Rule::Matcha { matcha: matcha.clone().into(), weights, seed };
        Ok(Self { nodes: matcha.graph().nodes(), rule })
    }

    /// The graph's matchings in turn, one a round; linked workers take each other's average.
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

    /// One-peer exponential: in round k everyone sends to the worker 2^(k mod log2 n) places
    /// further, and takes the mean of what it has and what it gets. With a power of two of workers,
    /// log2 n rounds are an exact average.
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

    /// Directed links, all of them in every round; who hears so many takes the same part of each and of
    /// its own. That keeps the workers' average only where everyone hears as many as hear it: elsewhere
    /// push-sum must weigh.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let schedule = Schedule::directed(3, &[(0, 1), (1, 2), (2, 0), (0, 2)])?;
    /// assert_eq!(schedule.round(5).senders(2).collect::<Vec<_>>(), [0, 1]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn directed(nodes: usize, directed_edges: &[Edge]) -> Result<Self, GraphError> {
        let mut rows: Vec<Vec<usize>> = (0..nodes).map(|i| vec![i]).collect();
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
                return Err(GraphError::DoubledEdge { u: from, v: to });
            }
            rows[to].push(from);
        }
        let row = |mut senders: Vec<usize>| {
            senders.sort_unstable();
            let part = 1.0 / senders.len() as f64;
            senders.into_iter().map(|sender| (sender, part)).collect()
        };
        let mixing = Mixing::from_rows(rows.into_iter().map(row).collect());
        let pattern = Pattern { links, directed: true, matchings: vec![], mixing };
        let rule = Rule::Cycle(vec![Arc::new(pattern)]);
        Ok(Self { nodes, rule })
    }

    /// The directed exponential graph: everyone sends to the workers 1, 2, 4, ... places further on.
    /// Everyone hears as many as hear it, so that the average is kept.
    ///
    /// # Panics
    /// If there are no workers.
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

    /// A random maximal matching of the graph in every round; linked workers take each other's
    /// average.
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

    /// What the code released with the AL-DSGD and MATCHA papers runs under the name D-PSGD: not
    /// the whole graph, but its second matching in rounds 0, 2, 4, ... and its first in rounds 1,
    /// 3, 5, ..., with the alpha of the whole graph. On L1 these two leave the graph in two pieces.
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

    /// Several graphs, each with its own schedule and its own count of rounds (except in a random
    /// order, where all go by the common one).
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

    /// Relabelled copies of this schedule: in copy c, worker k stands where worker
    /// `relabelings[c][k]` stands here.
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
        let copy = |places: &Vec<usize>| -> Result<Self, ScheduleError> {
            crate::graph::inverse(places, nodes)?;
            let rule = match &base.rule {
                // What is known already is moved once, not in every round.
                Rule::Cycle(patterns) => {
                    let moved = patterns.iter().map(|pattern| pattern.relabelled(places).into());
                    Rule::Cycle(moved.collect())
                }
                _ => Rule::Relabelled { base: Arc::clone(&base), places: places.clone() },
            };
            Ok(Self { nodes, rule })
        };
        let copies = relabelings.iter().map(copy).collect::<Result<_, _>>()?;
        Self::dynamic(copies, order)
    }

    /// The same, but that every `rounds`-th round is an exact average of all: Gossip-PGA. With
    /// `rounds` = 4 these are rounds 3, 7, 11, ... They have no [`links`](Round::links).
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

    /// How many workers there are.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::one_peer_exponential(8).nodes(), 8);
    /// ```
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// What is up in round `index`.
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

    /// Every (sender, receiver) that there can be in some round, however rarely.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha, Schedule};
    /// let ring = "ring:4".parse::<GraphSpec>()?.build()?;
    /// let rare = Schedule::matcha(&Matcha::solve(&ring, 0.001)?, 7);
    /// assert_eq!(rare.possible_links().len(), 8); // four links, both ways
    /// assert_eq!(Schedule::one_peer_exponential(4).possible_links().len(), 8); // to the next, and the one after it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn possible_links(&self) -> Vec<Edge> {
        let both_ways = |links: &[Edge]| -> Vec<Edge> {
            let links = links.iter();
            links.flat_map(|&(u, v)| [(u, v), (v, u)]).collect()
        };
        let mut all: Vec<Edge> = match &self.rule {
            Rule::Cycle(patterns) => patterns.iter().flat_map(|one| one.directed_edges()).collect(),
            Rule::Matcha { matcha, .. } => {
                let matchings = matcha.matchings().iter().zip(matcha.probabilities());
                let used = matchings.filter(|(_, probability)| **probability > 0.0);
                used.flat_map(|(links, _)| both_ways(links)).collect()
            }
            Rule::RandomMatching { graph, .. } => both_ways(graph.edges()),
            Rule::Relabelled { base, places } => {
                let worker_at = crate::graph::inverse(places, places.len()).expect("a permutation");
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

    /// The round of [`matcha`](Self::matcha) in which just these matchings are up.
    pub(crate) fn matcha_round(matcha: &Matcha, up: Vec<usize>) -> Round {
        Round { index: 0, copy: 0, pattern: active(matcha, &Weights::Optimal, up).into() }
    }

    fn cycle(nodes: usize, rounds: impl IntoIterator<Item = (Vec<Edge>, Vec<usize>, Mixing)>) -> Self {
        let pattern = |(links, matchings, mixing)| Arc::new(Pattern { links, directed: false, matchings, mixing });
        let mut patterns: Vec<_> = rounds.into_iter().map(pattern).collect();
        if patterns.is_empty() {
            patterns.push(pattern((vec![], vec![], Mixing::symmetric(nodes, []))));
        }
        Self { nodes, rule: Rule::Cycle(patterns) }
    }

    /// The copy and what is up; `lane` keeps the draws of different copies apart.
    fn pattern(&self, lane: u64, index: u64) -> (usize, Arc<Pattern>) {
        match &self.rule {
            Rule::Cycle(patterns) => (0, Arc::clone(&patterns[(index % patterns.len() as u64) as usize])),
            Rule::Matcha { matcha, weights, seed } => {
                let mut stream = Stream::new(*seed, "matcha", &[lane, index]);
                let draws = matcha.probabilities().iter().map(|&p| stream.uniform() < p);
                let up = draws.enumerate().filter_map(|(j, up)| up.then_some(j)).collect();
                (0, active(matcha, weights, up).into())
            }
            Rule::RandomMatching { graph, seed } => {
                let mut links = graph.edges().to_vec();
                Stream::new(*seed, "random matching", &[lane, index]).shuffle(&mut links);
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
            Rule::Relabelled { base, places } => {
                let (copy, pattern) = base.pattern(lane, index);
                (copy, pattern.relabelled(places).into())
            }
            Rule::Dynamic { copies, order } => {
                let (copy, count) = order.turn(copies.len(), index);
                let lane = lane.wrapping_mul(0x1_0000).wrapping_add(copy as u64 + 1);
                (copy, copies[copy].pattern(lane, count).1)
            }
            Rule::Averaging { average, every, .. } if (index + 1).is_multiple_of(*every) => (0, Arc::clone(average)),
            Rule::Averaging { base, .. } => base.pattern(lane, index),
        }
    }
}

/// The links of the matchings that are `up`, weighted.
fn active(matcha: &Matcha, weights: &Weights, up: Vec<usize>) -> Pattern {
    let nodes = matcha.graph().nodes();
    let mut links: Vec<Edge> = up.iter().flat_map(|&j| matcha.matchings()[j].clone()).collect();
    links.sort_unstable();
    let mixing = match weights {
        Weights::Optimal => Mixing::laplacian(nodes, &links, |node| matcha.alphas()[node]),
        weights => {
            let graph = Graph::new(nodes, links.iter().copied());
            let mixing = graph.map(|graph| weights.mixing(&graph));
            mixing.expect("links of a simple graph").expect("checked when the schedule was made")
        }
    };
    Pattern { links, directed: false, matchings: up, mixing }
}
