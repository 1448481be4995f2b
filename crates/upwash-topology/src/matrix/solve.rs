//! Linear systems.

use super::product::add_product;
use super::{Matrix, add_columns, add_multiple, dot};
use rayon::prelude::*;

/// The factor L of a positive definite matrix L L'.
pub(crate) struct Cholesky {
    /// Below and on the diagonal; what is above it has no meaning.
    factor: Matrix,
}

/// The number of columns whose sums over earlier columns are computed at the same time.
const BLOCK: usize = 64;

impl Cholesky {
    /// Factors a symmetric matrix, of which only the lower half is read, or returns `None` if it is not positive
    /// definite.
    pub(crate) fn of(mut matrix: Matrix) -> Option<Self> {
        let n = matrix.rows;
        for start in (0..n).step_by(BLOCK) {
            let width = BLOCK.min(n - start);
            // Columns to the left are finished: subtract their products from the columns of this block.
            let mut sums = vec![0.0; (n - start) * width];
            let left = |i: usize, k: usize| matrix[(start + i, k)];
            add_product(&mut sums, (n - start, start), left, |k, j| matrix[(start + j, k)]);
            for (j, sum) in (start..).zip(sums.chunks_exact_mut(n - start)) {
                let sum = &mut sum[j - start..];
                let row: Vec<f64> = (start..j).map(|k| matrix[(j, k)]).collect();
                add_columns(sum, &matrix, start, &row);
                let column = &mut matrix.column_mut(j)[j..];
                column.iter_mut().zip(sum).for_each(|(entry, sum)| *entry -= *sum);
                let pivot = column[0];
                if !(pivot > 0.0 && pivot.is_finite()) {
                    return None;
                }
                let root = pivot.sqrt();
                column.iter_mut().for_each(|entry| *entry /= root);
            }
        }
        Some(Self { factor: matrix })
    }

    /// Returns the inverse of the matrix that was factored.
    pub(crate) fn inverse(&self) -> Matrix {
        let n = self.factor.rows;
        let mut inverse = Matrix::zeros(n, n);
        inverse.entries.par_chunks_mut(n * LANES).enumerate().with_min_len(1 + (1 << 16) / (n * n)).for_each(
            |(group, columns)| {
                let first = group * LANES;
                let mut solved = vec![[0.0; LANES]; n - first];
                (0..columns.len() / n).for_each(|lane| solved[lane][lane] = 1.0);
                self.solve_from(first, &mut solved);
                for (lane, column) in columns.chunks_exact_mut(n).enumerate() {
                    column[first..].iter_mut().zip(&solved).for_each(|(entry, row)| *entry = row[lane]);
                }
            },
        );
        // Only rows from the first column of a group on were computed: the rest is the same, mirrored.
        for j in 0..n {
            for i in 0..j / LANES * LANES {
                inverse[(i, j)] = inverse[(j, i)];
            }
        }
        inverse
    }

    /// Solves for several right sides at once, which start with `first` zeros; neither side has those rows.
    fn solve_from(&self, first: usize, rows: &mut [[f64; LANES]]) {
        let n = self.factor.rows;
        for k in first..n {
            let (done, below) = rows.split_at_mut(k - first + 1);
            let column = &self.factor.column(k)[k..];
            let row = &mut done[k - first];
            row.iter_mut().for_each(|x| *x /= column[0]);
            for (entry, other) in column[1..].iter().zip(below) {
                (0..LANES).for_each(|lane| other[lane] -= entry * row[lane]);
            }
        }
        for k in (first..n).rev() {
            let (above, below) = rows.split_at_mut(k - first + 1);
            let column = &self.factor.column(k)[k..];
            let row = &mut above[k - first];
            for (entry, other) in column[1..].iter().zip(below) {
                (0..LANES).for_each(|lane| row[lane] -= entry * other[lane]);
            }
            row.iter_mut().for_each(|x| *x /= column[0]);
        }
    }
}

/// The number of right sides that are solved at once.
const LANES: usize = 16;

impl Matrix {
    /// Solves A x = b by elimination with partial pivoting. Entries of x are not finite if A is singular.
    pub(crate) fn solve(mut self, mut right: Vec<f64>) -> Vec<f64> {
        let n = self.rows;
        assert_eq!((self.columns(), right.len()), (n, n), "as many equations as unknowns");
        for k in 0..n {
            let by_size = |&a: &usize, &b: &usize| self[(a, k)].abs().total_cmp(&self[(b, k)].abs());
            let pivot = (k..n).rev().max_by(by_size).unwrap_or(k);
            right.swap(k, pivot);
            (0..n).for_each(|j| self.column_mut(j).swap(k, pivot));
            let (left, others) = self.entries.split_at_mut((k + 1) * n);
            let column = &mut left[k * n..][k..];
            let (diagonal, factors) = column.split_at_mut(1);
            factors.iter_mut().for_each(|factor| *factor /= diagonal[0]);
            let eliminate = |top: f64, below: &mut [f64]| add_multiple(below, -top, factors);
            others.par_chunks_mut(n).with_min_len(1 + (1 << 16) / n).for_each(|other| {
                let top = other[k];
                eliminate(top, &mut other[k + 1..]);
            });
            let top = right[k];
            eliminate(top, &mut right[k + 1..]);
        }
        for k in (0..n).rev() {
            right[k] /= self[(k, k)];
            let (above, solved) = right.split_at_mut(k);
            add_multiple(above, -solved[0], &self.column(k)[..k]);
        }
        right
    }

    /// Returns v'Av of a symmetric matrix.
    pub(crate) fn quadratic_form(&self, v: &[f64]) -> f64 {
        v.iter().enumerate().map(|(j, x)| x * dot(self.column(j), v)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    fn random(n: usize) -> Matrix {
        let mut stream = Stream::new(7, "a system", &[n as u64]);
        let entries: Vec<f64> = (0..n * n).map(|_| stream.uniform() - 0.5).collect();
        Matrix { rows: n, columns: n, entries }
    }

    #[test]
    fn inverse_times_matrix_is_the_identity() {
        for n in [1, 2, 7, 16, 17, 65, 150] {
            let a = random(n);
            let positive = &a * &a.transpose() + &Matrix::identity(n);
            let inverse = Cholesky::of(positive.clone()).unwrap().inverse();
            let error = (&inverse * &positive - &Matrix::identity(n)).max_norm();
            assert!(error < 1e-12 * n as f64, "{n}: {error}");
        }
    }

    #[test]
    fn factoring_finds_out_whether_a_matrix_is_positive_definite() {
        for n in [1, 2, 70] {
            let a = random(n);
            // Of rank n, and with 1e-6 less in one direction than the smallest eigenvalue allows.
            let positive = &a * &a.transpose();
            let smallest = positive.symmetric_eigenvalues()[0];
            let shifted = |by: f64| positive.clone() - &Matrix::identity(n).scaled(by);
            assert!(Cholesky::of(shifted(smallest * 0.999)).is_some());
            assert!(Cholesky::of(shifted(smallest * 1.001)).is_none());
        }
    }

    #[test]
    fn solution_fulfills_the_equations() {
        for n in [1, 2, 9, 130] {
            let (a, x) = (random(n), random(n).column(n / 2).to_vec());
            let product = &a * &Matrix { rows: n, columns: 1, entries: x.clone() };
            let solved = a.solve(product.entries);
            let error = solved.iter().zip(&x).fold(0.0, |worst: f64, (a, b)| worst.max((a - b).abs()));
            assert!(error < 1e-9, "{n}: {error}");
        }
        // A zero in the corner needs another pivot.
        assert_eq!(Matrix::from_fn(2, 2, |i, j| f64::from(i != j)).solve(vec![3.0, 4.0]), [4.0, 3.0]);
        assert!(Matrix::zeros(2, 2).solve(vec![1.0, 1.0]).iter().any(|x| !x.is_finite()));
    }
}
