//! Eigenvalues, and quantities derived from them.

use crate::{Graph, Matrix};

/// The eigenvalues of a graph's Laplacian, in increasing order.
///
/// ```
/// use upwash_topology::{GraphSpec, Spectrum};
/// let spectrum = Spectrum::of(&"complete:4".parse::<GraphSpec>()?.build()?);
/// assert!((spectrum.lambda2() - 4.0).abs() < 1e-12);
/// assert!((spectrum.lambda_max() - 4.0).abs() < 1e-12);
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Spectrum {
    values: Vec<f64>,
}

impl Spectrum {
    /// Computes the spectrum. The computation is dense: a graph of n nodes takes 8 n^2 bytes and about n^3 operations.
    ///
    /// ```
    /// # use upwash_topology::{Graph, Spectrum};
    /// let edge = Spectrum::of(&Graph::new(2, [(0, 1)])?);
    /// assert_eq!(edge.values().len(), 2);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn of(graph: &Graph) -> Self {
        let mut values = graph.laplacian().symmetric_eigenvalues();
        // One eigenvalue per connected component is 0: make it exactly 0 instead of 1e-16.
        values[..graph.components().len()].fill(0.0);
        Self { values }
    }

    /// Returns all eigenvalues, in increasing order. One per connected component is exactly 0.
    ///
    /// ```
    /// # use upwash_topology::{Graph, Spectrum};
    /// assert_eq!(Spectrum::of(&Graph::new(2, [])?).values(), [0.0, 0.0]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the algebraic connectivity. It is exactly 0 if the graph is not connected (or has one node).
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Spectrum};
    /// let ring = Spectrum::of(&"ring:8".parse::<GraphSpec>()?.build()?);
    /// assert!((ring.lambda2() - (2.0 - 2f64.sqrt())).abs() < 1e-12);
    /// # Ok::<(), upwash_topology::SpecError>(())
    /// ```
    pub fn lambda2(&self) -> f64 {
        self.values.get(1).copied().unwrap_or(0.0)
    }

    /// Returns the largest eigenvalue.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Spectrum};
    /// let ring = Spectrum::of(&"ring:8".parse::<GraphSpec>()?.build()?);
    /// assert!((ring.lambda_max() - 4.0).abs() < 1e-12);
    /// # Ok::<(), upwash_topology::SpecError>(())
    /// ```
    pub fn lambda_max(&self) -> f64 {
        self.values.last().copied().unwrap_or(0.0)
    }

    /// Returns the alpha for which I - alpha L shrinks disagreement fastest, 2 / (lambda_2 + lambda_max), or 0 if the
    /// graph has no links.
    ///
    /// ```
    /// # use upwash_topology::{Graph, Spectrum};
    /// assert_eq!(Spectrum::of(&Graph::new(2, [(0, 1)])?).best_alpha(), 0.5);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn best_alpha(&self) -> f64 {
        let smallest = self.values.iter().copied().find(|&value| value > 0.0);
        smallest.map_or(0.0, |smallest| round_to_12_decimals(2.0 / (smallest + self.lambda_max())))
    }
}

/// Rounds to 12 decimals, so that machines whose results differ in the last bits use the same number.
pub(crate) fn round_to_12_decimals(value: f64) -> f64 {
    (value * 1e12).round() / 1e12
}

/// Returns the spectral norm of a symmetric matrix.
pub(crate) fn norm(matrix: &Matrix) -> f64 {
    matrix.symmetric_eigenvalues().iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// Returns the largest eigenvalue of a symmetric matrix and a unit eigenvector for it.
pub(crate) fn top_eigenvector(matrix: &Matrix) -> (f64, Vec<f64>) {
    matrix.symmetric_eigenvector(matrix.rows() - 1)
}

/// Returns (I - J) A: A with the mean of each column subtracted.
pub(crate) fn centered(matrix: &Matrix) -> Matrix {
    let n = matrix.rows() as f64;
    let means: Vec<f64> = (0..matrix.columns()).map(|j| matrix.column(j).iter().sum::<f64>() / n).collect();
    Matrix::from_fn(matrix.rows(), matrix.columns(), |i, j| matrix[(i, j)] - means[j])
}

/// Returns ||A'(I - J) A||, the worst-case factor by which A shrinks the squared disagreement.
pub(crate) fn contraction(matrix: &Matrix) -> f64 {
    let centered = centered(matrix);
    norm(&(&centered.transpose() * &centered))
}

/// Returns I - J, the projection onto the disagreement.
pub(crate) fn disagreement(n: usize) -> Matrix {
    centered(&Matrix::identity(n))
}
