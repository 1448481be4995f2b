//! Eigenvalues and single eigenvectors of symmetric matrices.
//!
//! Householder reflections make the matrix tridiagonal, the QL method finds the eigenvalues of that, and inverse
//! iteration an eigenvector where one is asked for: Golub and Van Loan, "Matrix Computations", chapter 8.

use super::{Matrix, add_multiple, dot};

impl Matrix {
    /// Returns the eigenvalues of a symmetric matrix, of which only the lower half is read, in increasing order.
    ///
    /// # Panics
    /// If an entry is not finite.
    ///
    /// ```
    /// # use upwash_topology::Matrix;
    /// let values = Matrix::from_fn(2, 2, |i, j| if i == j { 1.0 } else { -3.0 }).symmetric_eigenvalues();
    /// assert!((values[0] + 2.0).abs() < 1e-15 && (values[1] - 4.0).abs() < 1e-15);
    /// ```
    pub fn symmetric_eigenvalues(&self) -> Vec<f64> {
        Tridiagonal::of(self.clone()).eigenvalues()
    }

    /// Returns an eigenvalue of a symmetric matrix, by its index in increasing order, and a unit eigenvector.
    pub(crate) fn symmetric_eigenvector(&self, index: usize) -> (f64, Vec<f64>) {
        let reduced = Tridiagonal::of(self.clone());
        let value = reduced.eigenvalues()[index];
        (value, reduced.eigenvector(value))
    }
}

/// A tridiagonal matrix T with Q T Q' = A.
struct Tridiagonal {
    diagonal: Vec<f64>,
    /// Below the diagonal: one entry less.
    below: Vec<f64>,
    /// Q is a product of I - factor v v', of which column k holds v from row k + 1 on.
    reflections: Matrix,
    factors: Vec<f64>,
}

impl Tridiagonal {
    fn of(mut a: Matrix) -> Self {
        let n = a.rows;
        assert!(a.entries.iter().all(|entry| entry.is_finite()), "a matrix of finite numbers");
        let (mut diagonal, mut below, mut factors) = (vec![0.0; n], vec![0.0; n.saturating_sub(1)], vec![0.0; n]);
        // The reflection of the last column, v, and w: columns further right still miss the update - v w' - w v'.
        let (mut v, mut w) = (vec![0.0; n], vec![0.0; n]);
        for k in 0..n {
            subtract_update(&mut a.column_mut(k)[k..], &v[k..], &w[k..]);
            diagonal[k] = a[(k, k)];
            if k + 1 == n {
                break;
            }
            let (factor, norm) = reflect(&mut a.column_mut(k)[k + 1..]);
            (factors[k], below[k]) = (factor, norm);
            // One pass over what remains makes up for the update and multiplies by the new reflection.
            let mut new_v = vec![0.0; n];
            new_v[k + 1..].copy_from_slice(&a.column(k)[k + 1..]);
            let mut product = vec![0.0; n];
            for j in k + 1..n {
                let column = &mut a.column_mut(j)[j..];
                subtract_update(column, &v[j..], &w[j..]);
                let along = dot(column, &new_v[j..]);
                product[j] += along;
                add_multiple(&mut product[j + 1..], new_v[j], &column[1..]);
            }
            let overlap = 0.5 * factor * factor * dot(&product[k + 1..], &new_v[k + 1..]);
            product[k + 1..].iter_mut().zip(&new_v[k + 1..]).for_each(|(p, v)| *p = factor * *p - overlap * v);
            (v, w) = (new_v, product);
        }
        Self { diagonal, below, reflections: a, factors }
    }

    /// Returns the eigenvalues in increasing order, by the QL method with Wilkinson's shifts.
    fn eigenvalues(&self) -> Vec<f64> {
        let n = self.diagonal.len();
        let (mut d, mut e) = (self.diagonal.clone(), self.below.clone());
        e.push(0.0);
        for first in 0..n {
            // Three steps for an eigenvalue are usual; a matrix of finite numbers never takes a hundred.
            for _ in 0..100 {
                let is_split = |&m: &usize| e[m].abs() <= f64::EPSILON * (d[m].abs() + d[m + 1].abs());
                let last = (first..n - 1).find(is_split).unwrap_or(n - 1);
                if last == first {
                    break;
                }
                ql_step(&mut d, &mut e, first, last);
            }
        }
        d.sort_unstable_by(f64::total_cmp);
        d
    }

    /// Returns a unit eigenvector of A for an eigenvalue.
    fn eigenvector(&self, value: f64) -> Vec<f64> {
        let n = self.diagonal.len();
        // Any start does that is not orthogonal to the eigenvector by chance.
        let mut x: Vec<f64> = (0..n).map(|i| 1.0 + (0.618_034 * i as f64).fract()).collect();
        for _ in 0..4 {
            normalize(&mut x);
            self.solve_shifted(value, &mut x);
        }
        normalize(&mut x);
        for k in (0..n.saturating_sub(1)).rev() {
            let v = &self.reflections.column(k)[k + 1..];
            let along = self.factors[k] * dot(v, &x[k + 1..]);
            add_multiple(&mut x[k + 1..], -along, v);
        }
        x
    }

    /// Solves (T - shift I) x = right in place, with pivots that would be zero replaced by tiny ones.
    fn solve_shifted(&self, shift: f64, right: &mut [f64]) {
        let n = right.len();
        let size = self.diagonal.iter().chain(&self.below).fold(0.0f64, |size, x| size.max(x.abs()));
        let tiny = (f64::EPSILON * size).max(1e-200); // not 0 for a matrix of zeros
        // Rows of the upper triangle: pivot and the two entries to the right of it.
        let mut rows: Vec<[f64; 3]> = Vec::with_capacity(n);
        let above = |i: usize| self.below.get(i).copied().unwrap_or(0.0);
        let mut row = [self.diagonal[0] - shift, above(0), 0.0];
        for i in 1..n {
            let mut next = [above(i - 1), self.diagonal[i] - shift, above(i)];
            if next[0].abs() > row[0].abs() {
                std::mem::swap(&mut next, &mut row);
                right.swap(i - 1, i);
            }
            row[0] = away_from_zero(row[0], tiny);
            let factor = next[0] / row[0];
            right[i] -= factor * right[i - 1];
            rows.push(row);
            row = [next[1] - factor * row[1], next[2] - factor * row[2], 0.0];
        }
        row[0] = away_from_zero(row[0], tiny);
        rows.push(row);
        for i in (0..n).rev() {
            let known = (1..3).filter(|k| i + k < n).map(|k| rows[i][k] * right[i + k]).sum::<f64>();
            right[i] = (right[i] - known) / rows[i][0];
        }
    }
}

fn away_from_zero(x: f64, tiny: f64) -> f64 {
    if x.abs() < tiny { tiny } else { x }
}

fn normalize(x: &mut [f64]) {
    // Scaled first: the solution of a nearly singular system may be too large to be squared.
    let largest = x.iter().fold(f64::MIN_POSITIVE, |largest: f64, x| largest.max(x.abs()));
    x.iter_mut().for_each(|x| *x /= largest);
    let norm = dot(x, x).sqrt();
    x.iter_mut().for_each(|x| *x /= norm);
}

/// Subtracts column 0 of v w' + w v'.
fn subtract_update(column: &mut [f64], v: &[f64], w: &[f64]) {
    let (v0, w0) = (v[0], w[0]);
    column.iter_mut().zip(v).zip(w).for_each(|((entry, v), w)| *entry -= v * w0 + w * v0);
}

/// Replaces x by a v such that (I - factor v v') x has only its first entry. Returns the factor and that entry.
fn reflect(x: &mut [f64]) -> (f64, f64) {
    let rest = dot(&x[1..], &x[1..]);
    if rest == 0.0 {
        let first = std::mem::replace(&mut x[0], 0.0);
        return (0.0, first);
    }
    let norm = (x[0] * x[0] + rest).sqrt();
    let end = if x[0] > 0.0 { -norm } else { norm };
    x[0] -= end;
    (2.0 / (x[0] * x[0] + rest), end)
}

/// One implicit step on the rows from `first` to `last`, which are not split.
fn ql_step(d: &mut [f64], e: &mut [f64], first: usize, last: usize) {
    let slope = (d[first + 1] - d[first]) / (2.0 * e[first]);
    let root = slope.hypot(1.0).copysign(slope);
    let mut g = d[last] - d[first] + e[first] / (slope + root);
    let (mut sine, mut cosine, mut p) = (1.0, 1.0, 0.0);
    for i in (first..last).rev() {
        let (f, b) = (sine * e[i], cosine * e[i]);
        let r = (f * f + g * g).sqrt();
        e[i + 1] = r;
        if r == 0.0 {
            // The matrix splits here: finish this step early.
            d[i + 1] -= p;
            e[last] = 0.0;
            return;
        }
        (sine, cosine) = (f / r, g / r);
        g = d[i + 1] - p;
        let s = (d[i] - g) * sine + 2.0 * cosine * b;
        p = sine * s;
        d[i + 1] = g + p;
        g = cosine * s - b;
    }
    d[first] -= p;
    e[first] = g;
    e[last] = 0.0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    fn check(a: &Matrix) {
        let values = a.symmetric_eigenvalues();
        let size = a.max_norm().max(1e-300);
        let sum_of_squares: f64 = values.iter().map(|value| value * value).sum();
        assert!((values.iter().sum::<f64>() - a.trace()).abs() <= 1e-12 * size * a.rows as f64);
        assert!((sum_of_squares - a.inner(a)).abs() <= 1e-11 * size * size * (a.rows * a.rows) as f64);
        for index in [0, a.rows / 2, a.rows - 1] {
            let (value, vector) = a.symmetric_eigenvector(index);
            assert_eq!(value, values[index]);
            let product = a * &Matrix { rows: a.rows, columns: 1, entries: vector.clone() };
            let residual = product.entries.iter().zip(&vector).map(|(a, x)| (a - value * x).abs()).fold(0.0, f64::max);
            assert!(residual <= 1e-12 * size * a.rows as f64, "{} rows, {index}: {residual}", a.rows);
            assert!((dot(&vector, &vector) - 1.0).abs() <= 1e-12);
        }
    }

    #[test]
    fn random_matrices_have_their_eigenvalues_and_vectors() {
        for n in [1, 2, 3, 5, 20, 131] {
            let mut stream = Stream::new(3, "a symmetric matrix", &[n as u64]);
            let mut a = Matrix::zeros(n, n);
            for j in 0..n {
                for i in 0..=j {
                    a[(i, j)] = stream.uniform() - 0.5;
                    a[(j, i)] = a[(i, j)];
                }
            }
            check(&a);
            check(&a.scaled(1e-9));
        }
    }

    #[test]
    fn matrices_that_split_have_theirs_too() {
        check(&Matrix::identity(6));
        check(&Matrix::zeros(4, 4));
        check(&Matrix::from_fn(9, 9, |i, j| if i == j { i as f64 } else { 0.0 }));
        check(&Matrix::from_fn(12, 12, |i, j| if i / 3 == j / 3 { 1.0 } else { 0.0 }));
    }

    /// A path's Laplacian has the eigenvalues 2 - 2 cos(pi k / n).
    #[test]
    fn path_has_the_known_spectrum() {
        let n = 200;
        let path = crate::Graph::new(n, (1..n).map(|i| (i - 1, i))).unwrap();
        for (k, value) in path.laplacian().symmetric_eigenvalues().into_iter().enumerate() {
            let exact = 2.0 - 2.0 * (std::f64::consts::PI * k as f64 / n as f64).cos();
            assert!((value - exact).abs() < 1e-13, "{k}: {value} {exact}");
        }
    }
}
