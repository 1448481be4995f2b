//! Solver for MATCHA's activation probabilities: maximize lambda_2(sum_j p_j L_j) over 0 <= p <= 1 and sum_j p_j <=
//! cap.
//!
//! As a semidefinite program: maximize t subject to S = sum_j p_j L_j - t Q + P >= 0, where P projects onto the vectors
//! that averaging cannot change (those constant on each connected component) and Q = I - P. The dual variable is a Y >=
//! 0 on Q. The solver is the primal-dual interior-point method of Helmberg, Kojima and Monteiro. It is fast because of
//! the structure of L_j, a sum of b b' with b = e_u - e_v over the links of a matching: an entry of the linear system,
//! tr(L_i S^-1 L_j Y), is a sum over pairs of links of a product of two differences. A general-purpose solver treats S
//! as n^2 unknowns; this one has only as many unknowns as there are matchings, plus one.
//!
//! Every iterate certifies its own quality. S >= 0 shows that lambda_2 >= t. Any Y >= 0 on Q, scaled to trace 1, shows
//! that lambda_2(sum p_j L_j) <= sum p_j tr(L_j Y) for every p.

use crate::Matching;
use crate::graph::add_link;
use crate::matrix::{Cholesky, Matrix, dot};
use rayon::prelude::*;

/// The relative gap between the bounds on the optimum at which the solver stops.
const TOLERANCE: f64 = 1e-8;
/// The maximum number of steps. The solver needs 10 to 50.
const MAX_STEPS: usize = 100;

/// The optimal probabilities, and an upper bound on lambda_2 over all feasible probabilities.
pub(crate) struct Solution {
    pub(crate) probabilities: Vec<f64>,
    pub(crate) upper_bound: f64,
}

/// Solves the problem for `matchings`, whose graph has the given connected `components`. The probabilities sum to at
/// most `cap`.
pub(crate) fn maximize(matchings: &[Matching], components: &[Vec<usize>], cap: f64) -> Solution {
    let problem = Problem::new(matchings, components, cap);
    let mut point = problem.start();
    let mut upper_bound = problem.upper_bound(&point.y);
    let mut centering = 0.3;
    for _ in 0..MAX_STEPS {
        if upper_bound - point.t <= TOLERANCE * upper_bound {
            break;
        }
        let mu = centering * problem.complementarity(&point);
        let Some(step) = problem.direction(&point, mu) else {
            break;
        };
        // The longest steps that stay in the interior. Primal and dual steps may differ in length.
        let primal = problem.step_length(|length| problem.is_primal_feasible(&point, &step, length));
        let dual = problem.step_length(|length| problem.is_dual_feasible(&point, &step, length));
        problem.advance(&mut point, &step, primal, dual);
        upper_bound = upper_bound.min(problem.upper_bound(&point.y));
        // Long steps mean that the central path is nearly straight, so aim further along it.
        centering = (1.0 - primal.min(dual)).powi(2).clamp(0.05, 0.7);
        if primal.max(dual) < 1e-8 {
            break; // the limit of double precision; the upper bound tells how good the point is
        }
    }
    Solution { probabilities: point.bounds.iter().map(|bound| bound.p).collect(), upper_bound }
}

struct Problem {
    /// Links (u, v, index of their matching), ordered by matching.
    links: Vec<(usize, usize, usize)>,
    matchings: usize,
    cap: f64,
    /// The projection P.
    projection: Matrix,
    /// The number of connected components.
    components: usize,
}

/// A probability with the multipliers of p >= 0 and p <= 1.
#[derive(Clone, Copy)]
struct Bound {
    p: f64,
    low: f64,
    high: f64,
}

/// A primal-dual point, or a step between two.
struct Point {
    bounds: Vec<Bound>,
    t: f64,
    y: Matrix,
    /// The multiplier of the budget.
    budget: f64,
}

impl Problem {
    fn new(matchings: &[Matching], components: &[Vec<usize>], cap: f64) -> Self {
        let nodes = components.iter().map(Vec::len).sum();
        let mut projection = Matrix::zeros(nodes, nodes);
        for component in components {
            for &u in component {
                for &v in component {
                    projection[(u, v)] = 1.0 / component.len() as f64;
                }
            }
        }
        let links = matchings
            .iter()
            .enumerate()
            .flat_map(|(j, matching)| matching.iter().map(move |&(u, v)| (u, v, j)))
            .collect();
        Self { links, matchings: matchings.len(), cap, projection, components: components.len() }
    }

    fn nodes(&self) -> usize {
        self.projection.rows()
    }

    /// The dimension of Q.
    fn rank(&self) -> f64 {
        (self.nodes() - self.components) as f64
    }

    /// Returns the starting point: equal probabilities slightly within the budget, a t for which S is positive
    /// definite, and multipliers for which all complementarity products are equal.
    fn start(&self) -> Point {
        let p = 0.95 * (self.cap / self.matchings as f64).min(1.0);
        let laplacian = self.combination(&vec![p; self.matchings], 0.0);
        let t = 0.5 * laplacian.symmetric_eigenvalues()[self.components];
        let slack = self.combination(&vec![p; self.matchings], t) + &self.projection;
        // S^-1 on Q, and mu such that Y = mu S^-1 has trace 1.
        let inverse = Cholesky::of(slack).expect("t is below lambda_2").inverse() - &self.projection;
        let mu = 1.0 / inverse.trace();
        let y = inverse.scaled(mu);
        let bound = Bound { p, low: mu / p, high: mu / (1.0 - p) };
        let budget = mu / (self.cap - p * self.matchings as f64);
        Point { bounds: vec![bound; self.matchings], t, y, budget }
    }

    /// Returns sum_j p_j L_j - t Q.
    fn combination(&self, p: &[f64], t: f64) -> Matrix {
        let mut sum = self.projection.clone().scaled(t);
        for i in 0..self.nodes() {
            sum[(i, i)] -= t;
        }
        for &(u, v, j) in &self.links {
            add_link(&mut sum, (u, v), p[j]);
        }
        sum
    }

    /// Returns (sum_j p_j L_j - t Q) Y for a Y on Q, link by link.
    fn combination_times(&self, p: &[f64], t: f64, y: &Matrix) -> Matrix {
        let mut product = y.clone().scaled(-t);
        for j in 0..self.nodes() {
            let (from, to) = (y.column(j), product.column_mut(j));
            for &(u, v, matching) in &self.links {
                let difference = p[matching] * (from[u] - from[v]);
                to[u] += difference;
                to[v] -= difference;
            }
        }
        product
    }

    /// Returns S.
    fn slack(&self, point: &Point) -> Matrix {
        let p: Vec<f64> = point.bounds.iter().map(|bound| bound.p).collect();
        self.combination(&p, point.t) + &self.projection
    }

    /// Returns the unused part of the budget.
    fn remaining(&self, point: &Point) -> f64 {
        self.cap - point.bounds.iter().map(|bound| bound.p).sum::<f64>()
    }

    /// Returns the mean product of a slack and its multiplier, which is 0 at the optimum.
    fn complementarity(&self, point: &Point) -> f64 {
        let of_bound = |bound: &Bound| bound.p * bound.low + (1.0 - bound.p) * bound.high;
        let scalars = point.bounds.iter().map(of_bound).sum::<f64>();
        let matrix = self.slack(point).inner(&point.y); // Y P = 0
        let count = self.rank() + (2 * self.matchings + 1) as f64;
        (matrix + scalars + self.remaining(point) * point.budget) / count
    }

    /// Returns the largest sum of p_j tr(L_j Y) / tr(Y) over all feasible p, reached by taking the best matchings
    /// first.
    fn upper_bound(&self, y: &Matrix) -> f64 {
        let mut scores = vec![0.0; self.matchings];
        for &(u, v, j) in &self.links {
            scores[j] += y[(u, u)] + y[(v, v)] - 2.0 * y[(u, v)];
        }
        scores.sort_unstable_by(|a, b| b.total_cmp(a));
        let whole = self.cap.floor() as usize;
        let first: f64 = scores.iter().take(whole).sum();
        let rest = (self.cap - whole as f64) * scores.get(whole).copied().unwrap_or(0.0);
        (first + rest) / y.trace()
    }

    /// Returns the Newton step that makes every product of slack and multiplier equal to `mu` to first order. All
    /// fields of the result are changes. `None` if the step cannot be computed.
    fn direction(&self, point: &Point, mu: f64) -> Option<Point> {
        let m = self.matchings;
        let z = Cholesky::of(self.slack(point))?.inverse();
        let y = &point.y;

        // For every link b: b'Zb, b'ZYb, and (b'Zf)(f'Yb) summed over the links f of each matching.
        let per_link: Vec<(f64, f64, Vec<f64>)> = self
            .links
            .par_iter()
            .map(|&(u, v, _)| {
                let difference = |matrix: &Matrix| -> Vec<f64> {
                    matrix.column(u).iter().zip(matrix.column(v)).map(|(a, b)| a - b).collect()
                };
                let (zb, yb) = (difference(&z), difference(y));
                let mut row = vec![0.0; m];
                for &(a, b, j) in &self.links {
                    row[j] += (zb[a] - zb[b]) * (yb[a] - yb[b]);
                }
                (zb[u] - zb[v], dot(&zb, &yb), row)
            })
            .collect();

        let remaining = self.remaining(point);
        let mut system = Matrix::zeros(m + 1, m + 1);
        let mut right = vec![0.0; m + 1];
        for (&(_, _, j), (trace, with_t, row)) in self.links.iter().zip(&per_link) {
            right[j] += mu * trace;
            system[(j, m)] -= with_t;
            system[(m, j)] -= with_t;
            row.iter().enumerate().for_each(|(k, value)| system[(j, k)] += value);
        }
        for (j, &Bound { p, low, high }) in point.bounds.iter().enumerate() {
            right[j] += mu * (1.0 / p - 1.0 / (1.0 - p) - 1.0 / remaining);
            system[(j, j)] += low / p + high / (1.0 - p);
            (0..m).for_each(|k| system[(j, k)] += point.budget / remaining);
        }
        // On P, Z is the identity, which is not part of the program.
        let trace = z.trace() - self.components as f64;
        right[m] = 1.0 - mu * trace;
        system[(m, m)] = z.inner(y);
        let mut dp = system.solve(right);
        if dp.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let dt = dp.pop()?;

        // dY = mu Z - Y - (Z dS Y + Y dS Z) / 2, and its scalar counterpart for the bounds.
        let half = &z * &self.combination_times(&dp, dt, y);
        let n = self.nodes();
        let dy = Matrix::from_fn(n, n, |i, j| {
            mu * (z[(i, j)] - self.projection[(i, j)]) - y[(i, j)] - 0.5 * (half[(i, j)] + half[(j, i)])
        });
        let change = |(&Bound { p, low, high }, &dp): (&Bound, &f64)| Bound {
            p: dp,
            low: (mu - low * dp) / p - low,
            high: (mu + high * dp) / (1.0 - p) - high,
        };
        let bounds = point.bounds.iter().zip(&dp).map(change).collect();
        let budget = (mu + point.budget * dp.iter().sum::<f64>()) / remaining - point.budget;
        Some(Point { bounds, t: dt, y: dy, budget })
    }

    fn is_primal_feasible(&self, from: &Point, step: &Point, length: f64) -> bool {
        let p: Vec<f64> = from.bounds.iter().zip(&step.bounds).map(|(x, d)| x.p + length * d.p).collect();
        p.iter().all(|&p| p > 0.0 && p < 1.0)
            && p.iter().sum::<f64>() < self.cap
            && Cholesky::of(self.combination(&p, from.t + length * step.t) + &self.projection).is_some()
    }

    fn is_dual_feasible(&self, from: &Point, step: &Point, length: f64) -> bool {
        let positive = |(x, d): (&Bound, &Bound)| x.low + length * d.low > 0.0 && x.high + length * d.high > 0.0;
        from.bounds.iter().zip(&step.bounds).all(positive)
            && from.budget + length * step.budget > 0.0
            && Cholesky::of(step.y.clone().scaled(length) + &from.y + &self.projection).is_some()
    }

    /// Returns a little less than the longest step length up to 1 that is feasible.
    fn step_length(&self, is_feasible: impl Fn(f64) -> bool) -> f64 {
        let lengths = std::iter::successors(Some(1.0), |length| Some(length * 0.8));
        let longest = lengths.take(100).find(|&length| is_feasible(length));
        longest.map_or(0.0, |length| if length == 1.0 { 0.99 } else { 0.9 * length })
    }

    fn advance(&self, point: &mut Point, step: &Point, primal: f64, dual: f64) {
        for (x, d) in point.bounds.iter_mut().zip(&step.bounds) {
            x.p += primal * d.p;
            x.low += dual * d.low;
            x.high += dual * d.high;
        }
        point.t += primal * step.t;
        point.budget += dual * step.budget;
        point.y += &step.y.clone().scaled(dual);
    }
}
