//! The links and mixing weights of one round.

use crate::{Edge, Mixing};
use std::sync::Arc;

/// The links and mixing weights of one round of a schedule.
///
/// ```
/// use upwash_topology::{GraphSpec, Schedule};
/// let ring = "ring:4".parse::<GraphSpec>()?.build()?;
/// let round = Schedule::alternating(&ring).round(1);
/// assert_eq!(round.links(), [(0, 3), (1, 2)]);
/// assert_eq!(round.mixing().weight(0, 3), 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    pub(super) index: u64,
    pub(super) copy: usize,
    pub(super) pattern: Arc<Pattern>,
}

/// Links and weights without a round number. Identical rounds share one pattern.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pattern {
    pub(super) links: Vec<Edge>,
    pub(super) directed: bool,
    pub(super) matchings: Vec<usize>,
    pub(super) mixing: Mixing,
}

impl Round {
    /// Returns the number of the round, counted from 0.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::one_peer_exponential(4).round(9).index(), 9);
    /// ```
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns the index of the graph that a dynamic schedule uses in this round; 0 for other schedules.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Order, Schedule, Weights, paper_relabelings};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let rotating = Schedule::fixed(&l1, &Weights::Optimal)?
    ///     .rotating(&paper_relabelings(), Order::InTurn { start: 1 })?;
    /// assert_eq!([0, 1, 2].map(|k| rotating.round(k).copy()), [1, 2, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn copy(&self) -> usize {
        self.copy
    }

    /// Returns the links that are up, as (sender, receiver) for a directed round. An exact average has no links,
    /// because it is one collective operation and not an exchange between neighbors.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::one_peer_exponential(4).round(1).links()[0], (0, 2));
    /// ```
    pub fn links(&self) -> &[Edge] {
        &self.pattern.links
    }

    /// Returns whether models travel in only one direction over each link.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert!(Schedule::one_peer_exponential(4).round(0).is_directed());
    /// ```
    pub fn is_directed(&self) -> bool {
        self.pattern.directed
    }

    /// Returns the indices of the active matchings, if the schedule is based on matchings.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Schedule};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Schedule::released_flags(&l1)?.round(0).matchings(), [1]); // the second one
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matchings(&self) -> &[usize] {
        &self.pattern.matchings
    }

    /// Returns the mixing matrix of the round.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::one_peer_exponential(4).round(0).mixing().row(1), [(0, 0.5), (1, 0.5)]);
    /// ```
    pub fn mixing(&self) -> &Mixing {
        &self.pattern.mixing
    }

    /// Returns the workers whose models `worker` receives in this round.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let round = Schedule::one_peer_exponential(4).round(0);
    /// assert_eq!(round.senders(0).collect::<Vec<_>>(), [3]);
    /// ```
    pub fn senders(&self, worker: usize) -> impl Iterator<Item = usize> + '_ {
        self.mixing().row(worker).iter().map(|entry| entry.0).filter(move |&sender| sender != worker)
    }

    /// Returns the number of workers that each worker sends to in this round.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let round = Schedule::directed(3, &[(0, 1), (0, 2), (1, 0)])?.round(0);
    /// assert_eq!(round.receiver_counts(), [2, 1, 0]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn receiver_counts(&self) -> Vec<usize> {
        let nodes = self.mixing().nodes();
        if !self.is_directed() {
            return (0..nodes).map(|worker| self.degree(worker)).collect();
        }
        let mut counts = vec![0; nodes];
        for (sender, _) in self.links() {
            counts[*sender] += 1;
        }
        counts
    }

    /// Returns this round with new mixing rows for some workers, for example after links have failed. Each row is
    /// sorted by sender and includes the worker itself.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// let round = Schedule::one_peer_exponential(4).round(0).with_rows([(1, vec![(1, 1.0)])]);
    /// assert_eq!(round.degree(1), 0);
    /// ```
    #[must_use]
    pub fn with_rows(&self, rows: impl IntoIterator<Item = (usize, Vec<(usize, f64)>)>) -> Self {
        let mut pattern = (*self.pattern).clone();
        for (worker, row) in rows {
            pattern.mixing.set_row(worker, row);
        }
        Self { pattern: Arc::new(pattern), ..*self }
    }

    /// Returns the number of models that `worker` receives in this round: its degree in the graph of links that are up.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Schedule, Weights};
    /// let star = "star:5".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Schedule::fixed(&star, &Weights::Metropolis)?.round(0).degree(0), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn degree(&self, worker: usize) -> usize {
        self.mixing().row(worker).len() - 1
    }
}

impl Pattern {
    /// Returns every (sender, receiver).
    pub(super) fn directed_edges(&self) -> impl Iterator<Item = Edge> + '_ {
        (0..self.mixing.nodes()).flat_map(|receiver| {
            let row = self.mixing.row(receiver).iter();
            row.map(move |(sender, _)| (*sender, receiver)).filter(|(sender, receiver)| sender != receiver)
        })
    }

    /// Relabels the workers. `relabeling` must be a permutation; `Schedule::rotating` checks it.
    pub(super) fn relabeled(&self, relabeling: &[usize]) -> Self {
        let worker_at = crate::graph::inverse(relabeling, relabeling.len()).expect("a permutation");
        let mut links: Vec<Edge> = self
            .links
            .iter()
            .map(|&(u, v)| (worker_at[u], worker_at[v]))
            .map(|(u, v)| if self.directed { (u, v) } else { (u.min(v), u.max(v)) })
            .collect();
        links.sort_unstable();
        Self {
            links,
            directed: self.directed,
            matchings: self.matchings.clone(),
            mixing: self.mixing.relabeled(relabeling).expect("a permutation"),
        }
    }
}
