//! Finds the alpha that minimizes rho(alpha) = ||E[W'W] - J|| for W = I - alpha L with a random L.
//!
//! With L-bar = E[L] and K = E[L'L], rho is the largest v'(I - 2 alpha L-bar + alpha^2 K) v over unit vectors v that
//! sum to 0. It is thus a maximum of convex parabolas in alpha, one for each v. A cutting-plane method finds the best
//! alpha: minimize the maximum of the parabolas known so far, find the worst v at that point, and add its parabola.
//! This takes about five eigenvectors, where a golden-section search takes forty.

use crate::Matrix;
use crate::spectrum::top_eigenvector;

/// The parabola 1 - 2 alpha `linear` + alpha^2 `square`.
struct Parabola {
    linear: f64,
    square: f64,
}

impl Parabola {
    fn at(&self, alpha: f64) -> f64 {
        1.0 - 2.0 * alpha * self.linear + alpha * alpha * self.square
    }
}

/// Returns the best alpha and its rho, given the expected Laplacian and the expected squared Laplacian of one connected
/// component.
pub(crate) fn minimize(mean: &Matrix, square: &Matrix) -> (f64, f64) {
    let n = mean.rows();
    if n == 1 {
        return (0.0, 0.0);
    }
    // Start near the minimum of the average parabola.
    let largest = (0..n).map(|i| square[(i, i)]).fold(0.0, f64::max);
    let mut alpha = mean.trace() / n as f64 / largest;
    let mut parabolas: Vec<Parabola> = Vec::new();
    let mut best = (alpha, f64::INFINITY);
    for _ in 0..60 {
        let matrix = Matrix::from_fn(n, n, |i, j| {
            let identity = if i == j { 1.0 } else { 0.0 } - 1.0 / n as f64;
            identity - 2.0 * alpha * mean[(i, j)] + alpha * alpha * square[(i, j)]
        });
        let (rho, v) = top_eigenvector(&matrix);
        if rho < best.1 {
            best = (alpha, rho);
        }
        parabolas.push(Parabola { linear: mean.quadratic_form(&v), square: square.quadratic_form(&v) });
        let (next, bound) = minimize_maximum(&parabolas);
        if best.1 - bound < 1e-12 {
            break;
        }
        alpha = next;
    }
    (crate::spectrum::round_to_12_decimals(best.0), best.1)
}

/// Returns the point at which the maximum of the parabolas is smallest, and its value there. The maximum is convex, and
/// its minimum lies between the minima of the individual parabolas.
fn minimize_maximum(parabolas: &[Parabola]) -> (f64, f64) {
    let minima = parabolas.iter().map(|parabola| parabola.linear / parabola.square);
    let (mut low, mut high) = minima.fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
    let highest = |x: f64| {
        let by_value = |a: &&Parabola, b: &&Parabola| a.at(x).total_cmp(&b.at(x));
        parabolas.iter().max_by(by_value).map(|p| (p.at(x), p.square * x - p.linear))
    };
    // Bisect on the slope of the highest parabola.
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        match highest(middle) {
            Some((_, slope)) if slope < 0.0 => low = middle,
            _ => high = middle,
        }
    }
    let x = 0.5 * (low + high);
    (x, highest(x).map_or(0.0, |(value, _)| value))
}
