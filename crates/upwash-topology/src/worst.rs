//! Worst-case contraction over all choices of leaders.
//!
//! rho is convex in A, and A is a convex combination of (1 - w) W + w S over the possible leader maps S. The worst case
//! is therefore a single leader map that is used for both kinds of leader, with the whole weight w.

use crate::random::Stream;
use crate::spectrum::{centered, contraction, top_eigenvector};
use crate::{Leaders, Matrix};

/// The largest rho over all choices of leaders, or bounds on it.
///
/// ```
/// use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let w = Weights::Optimal.mixing(&l1)?;
/// let worst = Leaders::new(&l1, &w, LeaderWeights { best: 0.1, degree: 0.1 }).contraction_worst();
/// assert!(worst.exact);
/// assert!((worst.bound - 0.876673839650).abs() < 1e-9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct WorstCase {
    /// An upper bound on rho over all choices of leaders.
    pub bound: f64,
    /// The largest rho found; equal to `bound` if `exact` is true.
    pub found: f64,
    /// The leaders that reach `found`, used for both kinds.
    pub leaders: Vec<usize>,
    /// Whether every choice of leaders was tried.
    pub exact: bool,
}

/// The largest number of leader maps that are enumerated.
const MAX_MAPS: f64 = 100_000.0;
/// The largest number of workers for which leader maps are enumerated.
const MAX_NODES: usize = 12;

impl Leaders {
    /// Returns the worst-case rho. It is exact for small graphs; for large ones it is an upper bound, together with the
    /// worst leaders found by a local search.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let torus = "torus:8x8".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Metropolis.mixing(&torus)?;
    /// let worst = Leaders::new(&torus, &w, LeaderWeights { best: 0.01, degree: 0.01 }).contraction_worst();
    /// assert!(!worst.exact && worst.found <= worst.bound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contraction_worst(&self) -> WorstCase {
        let maps: f64 = self.candidates().iter().map(|list| list.len() as f64).product();
        if maps <= MAX_MAPS && self.nodes() <= MAX_NODES {
            let (found, leaders) = self.worst_by_enumeration();
            return WorstCase { bound: found, found, leaders, exact: true };
        }
        let (found, leaders) = self.worst_by_search();
        WorstCase { bound: self.worst_bound(), found, leaders, exact: false }
    }

    /// Returns a limit on w_best + w_degree below which averaging contracts for any leaders. It is the w at which the
    /// bound of [`contraction_worst`](Self::contraction_worst) for large graphs reaches 1, (1 - sqrt(rho)) /
    /// (sqrt(d_max + 1) - sqrt(rho)) with the base's rho.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Optimal.mixing(&l1)?;
    /// let leaders = Leaders::new(&l1, &w, LeaderWeights { best: 0.1, degree: 0.1 });
    /// assert!((leaders.safe_total_weight() - 0.11666).abs() < 1e-5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn safe_total_weight(&self) -> f64 {
        safe_total_weight(contraction(self.base()), self.most_candidates())
    }

    fn most_candidates(&self) -> usize {
        self.candidates().iter().map(Vec::len).max().unwrap_or(1)
    }

    /// Returns ((1 - w) sqrt(rho) + w sqrt(d_max + 1))^2. This bound follows from the triangle inequality: a leader has
    /// at most as many followers as candidates, so ||S||^2 <= d_max + 1.
    fn worst_bound(&self) -> f64 {
        let w = self.weights().total();
        let rho = contraction(self.base());
        ((1.0 - w) * rho.sqrt() + w * (self.most_candidates() as f64).sqrt()).powi(2)
    }

    /// Enumerates all leader maps, like the digits of an odometer.
    fn worst_by_enumeration(&self) -> (f64, Vec<usize>) {
        let n = self.nodes();
        let mut digits = vec![0; n];
        let mut worst = (f64::NEG_INFINITY, vec![]);
        loop {
            let leaders: Vec<usize> = (0..n).map(|i| self.candidates()[i][digits[i]]).collect();
            let rho = self.contraction(&leaders, &leaders);
            if rho > worst.0 + 1e-12 {
                worst = (rho, leaders);
            }
            let Some(position) = (0..n).find(|&i| digits[i] + 1 < self.candidates()[i].len()) else {
                return worst;
            };
            digits[position] += 1;
            digits[..position].fill(0);
        }
    }

    /// Local search: alternates between the direction that the current leaders stretch most and the leaders that
    /// stretch that direction most. rho never decreases along the way. The search starts from the best-connected
    /// leaders, from each worker leading itself, and from random leaders.
    fn worst_by_search(&self) -> (f64, Vec<usize>) {
        const RANDOM_STARTS: u64 = 8;
        let random = |start: u64| {
            let mut stream = Stream::new(start, "worst leaders", &[]);
            self.candidates().iter().map(|list| list[stream.below(list.len())]).collect()
        };
        let starts: Vec<Vec<usize>> = [self.degree_leaders(), (0..self.nodes()).collect()]
            .into_iter()
            .chain((0..RANDOM_STARTS).map(random))
            .collect();
        let mut worst = (f64::NEG_INFINITY, vec![]);
        for mut leaders in starts {
            let mut rho = f64::NEG_INFINITY;
            for _ in 0..20 {
                let a = centered(&self.matrix(&leaders, &leaders));
                let (value, right) = top_eigenvector(&(&a.transpose() * &a));
                if value <= rho + 1e-12 {
                    break;
                }
                rho = value;
                if rho > worst.0 {
                    worst = (rho, leaders.clone());
                }
                let left = &a * &Matrix::from_fn(self.nodes(), 1, |i, _| right[i]); // already centered
                for (i, list) in self.candidates().iter().enumerate() {
                    let pull = |j: usize| left[(i, 0)] * right[j];
                    let strongest = list.iter().copied().max_by(|&a, &b| pull(a).total_cmp(&pull(b)));
                    leaders[i] = strongest.unwrap_or(i);
                }
            }
        }
        worst
    }
}

/// Returns the w at which ((1 - w) sqrt(rho) + w sqrt(`most_candidates`))^2 is 1.
pub(crate) fn safe_total_weight(rho: f64, most_candidates: usize) -> f64 {
    let root = rho.sqrt();
    if root >= 1.0 {
        return 0.0;
    }
    ((1.0 - root) / ((most_candidates as f64).sqrt() - root)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use crate::{GraphSpec, LeaderWeights, Leaders, Weights};

    /// On graphs small enough to enumerate, the bound is at least the worst case and the search at most.
    #[test]
    fn bound_and_search_enclose_the_worst_case() {
        for spec in ["paper:L1", "ring:8", "star:6", "path:7", "complete:5", "paper:L2@7"] {
            let graph = spec.parse::<GraphSpec>().unwrap().build().unwrap();
            let base = Weights::Optimal.mixing(&graph).unwrap();
            for weight in [0.02, 0.1, 0.3] {
                let weights = LeaderWeights { best: weight, degree: weight / 2.0 };
                let leaders = Leaders::new(&graph, &base, weights);
                let exact = leaders.worst_by_enumeration().0;
                let found = leaders.worst_by_search().0;
                assert!(leaders.worst_bound() >= exact, "{spec} {weight}");
                assert!(found <= exact + 1e-12 && found > 0.8 * exact, "{spec}: {found}, {exact}");
            }
        }
    }
}
