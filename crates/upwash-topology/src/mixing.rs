//! A mixing matrix: what each worker takes from whom.

use crate::spectrum::{contraction, eigenvalues};
use crate::{Edge, Graph, GraphError};
use faer::Mat;
use std::sync::Arc;

/// A sparse matrix over the workers; row i holds what worker i's next model is made of.
///
/// Every row sums to 1. The matrices that a [`Weights`](crate::Weights) makes from a graph are
/// symmetric too, so that the workers' average is kept, except for `uniform` ones.
///
/// ```
/// use upwash_topology::{Graph, Weights};
/// let w = Weights::Metropolis.mixing(&Graph::new(3, [(0, 1), (1, 2)])?)?;
/// assert_eq!(w.row(0)[1], (1, 1.0 / 3.0)); // a third of its neighbor, the rest its own
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Mixing {
    /// Shared, because the rows of an average are all the same.
    rows: Vec<Arc<[(usize, f64)]>>,
}

impl Mixing {
    /// I - alpha L over `edges`, with an alpha for each node's piece of the graph.
    pub(crate) fn laplacian(nodes: usize, edges: &[Edge], alpha: impl Fn(usize) -> f64) -> Self {
        Self::symmetric(nodes, edges.iter().map(|&(u, v)| (u, v, alpha(u))))
    }

    /// From the weight of every link; the diagonal is what is left to 1.
    pub(crate) fn symmetric(nodes: usize, links: impl IntoIterator<Item = (usize, usize, f64)>) -> Self {
        let mut rows: Vec<Vec<(usize, f64)>> = (0..nodes).map(|i| vec![(i, 1.0)]).collect();
        for (u, v, weight) in links {
            rows[u].push((v, weight));
            rows[v].push((u, weight));
        }
        for row in &mut rows {
            row[0].1 -= row[1..].iter().map(|entry| entry.1).sum::<f64>();
            row.sort_unstable_by_key(|entry| entry.0);
        }
        Self::from_rows(rows)
    }

    /// From rows whose columns are in order; the caller has checked them.
    pub(crate) fn from_rows(rows: Vec<Vec<(usize, f64)>>) -> Self {
        Self { rows: rows.into_iter().map(Arc::from).collect() }
    }

    pub(crate) fn set_row(&mut self, worker: usize, row: Vec<(usize, f64)>) {
        self.rows[worker] = row.into();
    }

    /// Everyone takes the average of all: J.
    ///
    /// ```
    /// use upwash_topology::Mixing;
    /// assert!(Mixing::average(4).contraction() < 1e-30);
    /// ```
    pub fn average(nodes: usize) -> Self {
        let row: Arc<[_]> = (0..nodes).map(|j| (j, 1.0 / nodes as f64)).collect();
        Self { rows: vec![row; nodes] }
    }

    /// How many workers there are.
    ///
    /// ```
    /// # use upwash_topology::Mixing;
    /// assert_eq!(Mixing::average(4).nodes(), 4);
    /// ```
    pub fn nodes(&self) -> usize {
        self.rows.len()
    }

    /// Row i: (worker, weight) in increasing order of the worker.
    ///
    /// # Panics
    /// If there is no such worker.
    ///
    /// ```
    /// # use upwash_topology::Mixing;
    /// assert_eq!(Mixing::average(2).row(1), [(0, 0.5), (1, 0.5)]);
    /// ```
    pub fn row(&self, worker: usize) -> &[(usize, f64)] {
        &self.rows[worker]
    }

    /// What worker `to` takes from worker `from`.
    ///
    /// ```
    /// # use upwash_topology::Mixing;
    /// assert_eq!(Mixing::average(4).weight(0, 3), 0.25);
    /// ```
    pub fn weight(&self, to: usize, from: usize) -> f64 {
        let row = &self.rows[to];
        row.binary_search_by_key(&from, |entry| entry.0).map_or(0.0, |found| row[found].1)
    }

    /// (I + W) / 2: no eigenvalue is negative any more, at the price of slower mixing.
    ///
    /// ```
    /// # use upwash_topology::Mixing;
    /// assert_eq!(Mixing::average(2).lazy().row(0), [(0, 0.75), (1, 0.25)]);
    /// ```
    pub fn lazy(&self) -> Self {
        let half = |(i, row): (usize, &Arc<[(usize, f64)]>)| {
            let mut row: Vec<_> = row.iter().map(|&(j, weight)| (j, weight / 2.0)).collect();
            match row.binary_search_by_key(&i, |entry| entry.0) {
                Ok(found) => row[found].1 += 0.5,
                Err(place) => row.insert(place, (i, 0.5)),
            }
            row
        };
        Self::from_rows(self.rows.iter().enumerate().map(half).collect())
    }

    /// The same matrix when worker k stands at place `places[k]` of this one.
    ///
    /// ```
    /// # use upwash_topology::{Graph, Weights};
    /// let w = Weights::Metropolis.mixing(&Graph::new(3, [(0, 1)])?)?;
    /// assert_eq!(w.relabelled(&[2, 0, 1])?.row(0), [(0, 1.0)]); // worker 0 stands alone now
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relabelled(&self, places: &[usize]) -> Result<Self, GraphError> {
        let worker_at = crate::graph::inverse(places, self.nodes())?;
        let moved = |&place: &usize| {
            let mut row: Vec<_> = self.rows[place].iter().map(|&(j, weight)| (worker_at[j], weight)).collect();
            row.sort_unstable_by_key(|entry| entry.0);
            row
        };
        Ok(Self::from_rows(places.iter().map(moved).collect()))
    }

    /// The whole matrix.
    ///
    /// ```
    /// # use upwash_topology::Mixing;
    /// assert_eq!(Mixing::average(2).to_dense()[(0, 1)], 0.5);
    /// ```
    pub fn to_dense(&self) -> Mat<f64> {
        let mut dense = Mat::zeros(self.nodes(), self.nodes());
        for (i, row) in self.rows.iter().enumerate() {
            for &(j, weight) in row.iter() {
                dense[(i, j)] = weight;
            }
        }
        dense
    }

    /// rho = ||W'(I - J) W||: by how much one round shrinks the squared disagreement, at worst. For
    /// a doubly stochastic W that is ||W'W - J||. 1 where the graph is not connected.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Weights};
    /// let w = Weights::Optimal.mixing(&"ring:8".parse::<GraphSpec>()?.build()?)?;
    /// assert!((w.contraction() - 0.554311).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contraction(&self) -> f64 {
        contraction(self.to_dense().as_ref())
    }

    /// Whether everyone takes from everyone as much as it gives.
    ///
    /// ```
    /// # use upwash_topology::{Mixing, Schedule};
    /// assert!(Mixing::average(3).is_symmetric());
    /// assert!(!Schedule::exponential(8).round(0).mixing().is_symmetric());
    /// ```
    pub fn is_symmetric(&self) -> bool {
        let entries = |(i, row): (usize, &Arc<[(usize, f64)]>)| {
            let others = row.iter();
            others.clone().all(|&(j, weight)| (self.weight(j, i) - weight).abs() < 1e-12)
        };
        self.rows.iter().enumerate().all(entries)
    }

    /// The smallest eigenvalue of a symmetric matrix: below -1/3 some methods diverge, near -1 mixing
    /// overshoots.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Weights};
    /// let w = Weights::Optimal.mixing(&"ring:4".parse::<GraphSpec>()?.build()?)?;
    /// assert!((w.smallest_eigenvalue() + 1.0 / 3.0).abs() < 1e-9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn smallest_eigenvalue(&self) -> f64 {
        let values = eigenvalues(self.to_dense().as_ref());
        values.into_iter().fold(f64::INFINITY, f64::min)
    }

    /// Workers whose own weight is not positive: an update scaled by it stands still or climbs.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Weights};
    /// let w = Weights::Optimal.mixing(&"paper:L1".parse::<GraphSpec>()?.build()?)?;
    /// assert_eq!(w.without_positive_diagonal(), [1, 3, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn without_positive_diagonal(&self) -> Vec<usize> {
        (0..self.nodes()).filter(|&i| self.weight(i, i) <= 1e-12).collect()
    }

    /// Whether the links of `graph` are all that it uses; else the first entry that is not one.
    pub(crate) fn entry_off(&self, graph: &Graph) -> Option<(usize, usize)> {
        self.rows.iter().enumerate().find_map(|(i, row)| {
            let off = |&&(j, weight): &&(usize, f64)| {
                weight != 0.0 && i != j && graph.neighbors(i).binary_search(&j).is_err()
            };
            row.iter().find(off).map(|&(j, _)| (i, j))
        })
    }
}
