//! Mixing matrices.

use crate::spectrum::contraction;
use crate::{Edge, Graph, GraphError, Matrix};
use std::sync::Arc;

/// A sparse mixing matrix. Row i holds the weights with which worker i combines the models into its next one.
///
/// Every row sums to 1. The matrices that [`Weights`](crate::Weights) builds from a graph also preserve the workers'
/// average, because their columns sum to 1, except for `uniform` weights. All but `uniform` and custom ones are
/// symmetric.
///
/// ```
/// use upwash_topology::{Graph, Weights};
/// let w = Weights::Metropolis.mixing(&Graph::new(3, [(0, 1), (1, 2)])?)?;
/// assert_eq!(w.row(0)[1], (1, 1.0 / 3.0)); // one third from its neighbor, the rest from itself
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Mixing {
    /// Reference-counted, because all rows of an average are the same.
    rows: Vec<Arc<[(usize, f64)]>>,
}

impl Mixing {
    /// Returns I - alpha L over `edges`, where `alpha` gives the value for a node's connected component.
    pub(crate) fn laplacian(nodes: usize, edges: &[Edge], alpha: impl Fn(usize) -> f64) -> Self {
        Self::symmetric(nodes, edges.iter().map(|&(u, v)| (u, v, alpha(u))))
    }

    /// Builds a symmetric matrix from the weight of every link. The diagonal makes each row sum to 1.
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

    /// Builds a matrix from rows whose entries are sorted by column. The caller has validated them.
    pub(crate) fn from_rows(rows: Vec<Vec<(usize, f64)>>) -> Self {
        Self { rows: rows.into_iter().map(Arc::from).collect() }
    }

    pub(crate) fn set_row(&mut self, worker: usize, row: Vec<(usize, f64)>) {
        self.rows[worker] = row.into();
    }

    /// Returns J, the exact average: every worker takes the mean of all models.
    ///
    /// ```
    /// use upwash_topology::Mixing;
    /// assert!(Mixing::average(4).contraction() < 1e-30);
    /// ```
    pub fn average(nodes: usize) -> Self {
        let row: Arc<[_]> = (0..nodes).map(|j| (j, 1.0 / nodes as f64)).collect();
        Self { rows: vec![row; nodes] }
    }

    /// Returns the number of workers.
    ///
    /// ```
    /// # use upwash_topology::Mixing;
    /// assert_eq!(Mixing::average(4).nodes(), 4);
    /// ```
    pub fn nodes(&self) -> usize {
        self.rows.len()
    }

    /// Returns the row of `worker` as (worker, weight) pairs, in increasing order of the worker.
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

    /// Returns the weight that worker `to` gives to the model of worker `from`.
    ///
    /// ```
    /// # use upwash_topology::Mixing;
    /// assert_eq!(Mixing::average(4).weight(0, 3), 0.25);
    /// ```
    pub fn weight(&self, to: usize, from: usize) -> f64 {
        let row = &self.rows[to];
        row.binary_search_by_key(&from, |entry| entry.0).map_or(0.0, |found| row[found].1)
    }

    /// Returns (I + W) / 2, which has no negative eigenvalues, at the price of slower mixing.
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
                Err(index) => row.insert(index, (i, 0.5)),
            }
            row
        };
        Self::from_rows(self.rows.iter().enumerate().map(half).collect())
    }

    /// Returns the matrix with its workers relabeled: worker k gets row `relabeling[k]` of this matrix.
    ///
    /// ```
    /// # use upwash_topology::{Graph, Weights};
    /// let w = Weights::Metropolis.mixing(&Graph::new(3, [(0, 1)])?)?;
    /// assert_eq!(w.relabeled(&[2, 0, 1])?.row(0), [(0, 1.0)]); // worker 0 is now the isolated one
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relabeled(&self, relabeling: &[usize]) -> Result<Self, GraphError> {
        let worker_at = crate::graph::inverse(relabeling, self.nodes())?;
        let moved = |&node: &usize| {
            let mut row: Vec<_> = self.rows[node].iter().map(|&(j, weight)| (worker_at[j], weight)).collect();
            row.sort_unstable_by_key(|entry| entry.0);
            row
        };
        Ok(Self::from_rows(relabeling.iter().map(moved).collect()))
    }

    /// Returns the matrix in dense form.
    ///
    /// ```
    /// # use upwash_topology::Mixing;
    /// assert_eq!(Mixing::average(2).to_dense()[(0, 1)], 0.5);
    /// ```
    pub fn to_dense(&self) -> Matrix {
        let mut dense = Matrix::zeros(self.nodes(), self.nodes());
        for (i, row) in self.rows.iter().enumerate() {
            for &(j, weight) in row.iter() {
                dense[(i, j)] = weight;
            }
        }
        dense
    }

    /// Returns rho = ||W'(I - J) W||, the worst-case factor by which one round shrinks the squared disagreement. For a
    /// doubly stochastic W it equals ||W'W - J||. It is 1 if the graph is not connected.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Weights};
    /// let w = Weights::Optimal.mixing(&"ring:8".parse::<GraphSpec>()?.build()?)?;
    /// assert!((w.contraction() - 0.554311).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contraction(&self) -> f64 {
        contraction(&self.to_dense())
    }

    /// Returns whether the matrix is symmetric (within 1e-12).
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

    /// Returns the smallest eigenvalue of a symmetric matrix. Below -1/3 some methods diverge; near -1 mixing
    /// overshoots.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Weights};
    /// let w = Weights::Optimal.mixing(&"ring:4".parse::<GraphSpec>()?.build()?)?;
    /// assert!((w.smallest_eigenvalue() + 1.0 / 3.0).abs() < 1e-9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn smallest_eigenvalue(&self) -> f64 {
        let values = self.to_dense().symmetric_eigenvalues();
        values.into_iter().fold(f64::INFINITY, f64::min)
    }

    /// Returns the workers whose own weight is not positive. A gradient step scaled by that weight stands still or
    /// increases the loss.
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

    /// Returns the first nonzero entry that is neither on the diagonal nor on a link of `graph`, if any.
    pub(crate) fn entry_without_link(&self, graph: &Graph) -> Option<(usize, usize)> {
        self.rows.iter().enumerate().find_map(|(i, row)| {
            let without_link = |&&(j, weight): &&(usize, f64)| {
                weight != 0.0 && i != j && graph.neighbors(i).binary_search(&j).is_err()
            };
            row.iter().find(without_link).map(|&(j, _)| (i, j))
        })
    }
}
