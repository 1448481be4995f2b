//! Dense matrices of double-precision numbers: products in [`product`], linear systems in [`solve`], eigenvalues in
//! [`eigen`].
//!
//! The graphs of this crate have at most some thousands of workers, and a few algorithms of textbooks serve them. No
//! sum depends on the width of a processor's vectors or on the number of threads, so that results are the same to the
//! last bit on every machine.

mod eigen;
mod product;
mod solve;

pub(crate) use solve::Cholesky;
use std::ops::{Add, AddAssign, Index, IndexMut, Sub};

/// A dense matrix.
///
/// ```
/// use upwash_topology::Matrix;
/// let a = Matrix::from_fn(2, 3, |i, j| (i + 10 * j) as f64);
/// assert_eq!((a.rows(), a.columns(), a[(1, 2)]), (2, 3, 21.0));
/// assert_eq!((&a * &a.transpose())[(0, 1)], 0.0 * 1.0 + 10.0 * 11.0 + 20.0 * 21.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    /// Column by column.
    entries: Vec<f64>,
}

impl Matrix {
    /// Creates a matrix from a function of row and column.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::from_fn(2, 1, |i, _| i as f64).column(0), [0.0, 1.0]);
    /// ```
    pub fn from_fn(rows: usize, columns: usize, entry: impl Fn(usize, usize) -> f64) -> Self {
        let mut entries = Vec::with_capacity(rows * columns);
        (0..columns).for_each(|j| entries.extend((0..rows).map(|i| entry(i, j))));
        Self { rows, columns, entries }
    }

    /// Creates a matrix of zeros.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::zeros(2, 2).max_norm(), 0.0);
    /// ```
    pub fn zeros(rows: usize, columns: usize) -> Self {
        Self { rows, columns, entries: vec![0.0; rows * columns] }
    }

    /// Creates an identity matrix.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::identity(3).trace(), 3.0);
    /// ```
    pub fn identity(size: usize) -> Self {
        Self::from_fn(size, size, |i, j| f64::from(i == j))
    }

    /// Returns the number of rows.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::zeros(2, 3).rows(), 2);
    /// ```
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::zeros(2, 3).columns(), 3);
    /// ```
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns a column.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::identity(2).column(1), [0.0, 1.0]);
    /// ```
    pub fn column(&self, j: usize) -> &[f64] {
        &self.entries[j * self.rows..][..self.rows]
    }

    pub(crate) fn column_mut(&mut self, j: usize) -> &mut [f64] {
        &mut self.entries[j * self.rows..][..self.rows]
    }

    /// Returns the transposed matrix.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::from_fn(1, 2, |_, j| j as f64).transpose().column(0), [0.0, 1.0]);
    /// ```
    pub fn transpose(&self) -> Self {
        Self::from_fn(self.columns(), self.rows, |i, j| self[(j, i)])
    }

    /// Returns the matrix times a number.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::identity(2).scaled(3.0).column(0), [3.0, 0.0]);
    /// ```
    pub fn scaled(mut self, factor: f64) -> Self {
        self.entries.iter_mut().for_each(|entry| *entry *= factor);
        self
    }

    /// Returns the sum of the diagonal.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::from_fn(2, 2, |i, j| (i + j) as f64).trace(), 2.0);
    /// ```
    pub fn trace(&self) -> f64 {
        (0..self.rows.min(self.columns())).map(|i| self[(i, i)]).sum()
    }

    /// Returns the largest absolute value of an entry.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// assert_eq!(Matrix::from_fn(2, 1, |i, _| -(i as f64)).max_norm(), 1.0);
    /// ```
    pub fn max_norm(&self) -> f64 {
        self.entries.iter().fold(0.0, |largest, entry| entry.abs().max(largest))
    }

    /// Returns the sum of the products of entries in the same place, tr(A'B).
    pub(crate) fn inner(&self, other: &Self) -> f64 {
        dot(&self.entries, &other.entries)
    }
}

impl Index<(usize, usize)> for Matrix {
    type Output = f64;

    fn index(&self, (i, j): (usize, usize)) -> &f64 {
        &self.column(j)[i]
    }
}

impl IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut f64 {
        &mut self.column_mut(j)[i]
    }
}

impl AddAssign<&Matrix> for Matrix {
    fn add_assign(&mut self, other: &Self) {
        assert_eq!((self.rows, self.columns()), (other.rows, other.columns()), "matrices of one shape");
        self.entries.iter_mut().zip(&other.entries).for_each(|(a, b)| *a += b);
    }
}

impl Add<&Matrix> for Matrix {
    type Output = Self;

    fn add(mut self, other: &Self) -> Self {
        self += other;
        self
    }
}

impl Sub<&Matrix> for Matrix {
    type Output = Self;

    fn sub(mut self, other: &Self) -> Self {
        assert_eq!((self.rows, self.columns()), (other.rows, other.columns()), "matrices of one shape");
        self.entries.iter_mut().zip(&other.entries).for_each(|(a, b)| *a -= b);
        self
    }
}

/// The number of columns that [`add_columns`] adds at once: each entry of the sum is then read and written once for all
/// of them.
const TOGETHER: usize = 8;

/// Adds columns of `matrix`, from `first` on and times `factors`, to `sum`. If `sum` is shorter than a column, it stands
/// for its last rows.
fn add_columns(sum: &mut [f64], matrix: &Matrix, first: usize, factors: &[f64]) {
    let skip = matrix.rows - sum.len();
    let (groups, rest) = factors.as_chunks::<TOGETHER>();
    for (factors, group) in groups.iter().zip(0..) {
        let columns: [&[f64]; TOGETHER] = std::array::from_fn(|k| &matrix.column(first + group * TOGETHER + k)[skip..]);
        for (i, total) in sum.iter_mut().enumerate() {
            (0..TOGETHER).for_each(|k| *total += factors[k] * columns[k][i]);
        }
    }
    for (&factor, j) in rest.iter().zip(first + groups.len() * TOGETHER..) {
        add_multiple(sum, factor, &matrix.column(j)[skip..]);
    }
}

/// Adds `factor` times `values` to `sum`.
fn add_multiple(sum: &mut [f64], factor: f64, values: &[f64]) {
    sum.iter_mut().zip(values).for_each(|(total, value)| *total += factor * value);
}

/// Returns the sum of the products of two vectors' entries, as eight partial sums that a processor computes at once.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        (0..8).for_each(|k| sums[k] += a[k] * b[k]);
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}
