//! How AL-DSGD mixes: base weights, plus a share of the best and of the best-connected neighbor.
//!
//! With W the base's matrix, N(i) worker i's best and T(i) its best-connected candidate (its
//! neighbors and itself), and w = w_best + w_degree, row i of AL-DSGD's matrix is
//!
//! ```text
//! A_i = (1 - w) W_i + w_best e_N(i) + w_degree e_T(i)
//! ```
//!
//! The paper writes models as columns: its W~ is the transpose of A. What shrinks is the
//! disagreement (I - J) X, by rho = ||E[A'(I - J) A]|| a round at worst. The paper's Theorem 1 also
//! asks for ||E[A'A]|| < 1, which no such A can have (apply it to the all-ones vector) and no proof
//! needs: because A 1 = 1, (I - J) A = (I - J) A (I - J), so that E||(I - J) A_n ... A_1 X||^2 is at
//! most the product of the rho times ||(I - J) X||^2. No independence is needed for that.

use crate::spectrum::{disagreement, norm};
use crate::{Graph, Mixing};
use faer::Mat;

/// The extra weights of the two leaders.
///
/// ```
/// use upwash_topology::LeaderWeights;
/// let weights: LeaderWeights = "0.1,0.2".parse().unwrap();
/// assert!((weights.total() - 0.3).abs() < 1e-12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct LeaderWeights {
    /// w_N: for the best candidate.
    pub best: f64,
    /// w_T: for the best-connected candidate.
    pub degree: f64,
}

impl LeaderWeights {
    /// Both together.
    ///
    /// ```
    /// # use upwash_topology::LeaderWeights;
    /// assert_eq!(LeaderWeights { best: 0.25, degree: 0.25 }.total(), 0.5);
    /// ```
    pub fn total(self) -> f64 {
        self.best + self.degree
    }
}

/// Two leaders' weights that cannot be.
///
/// ```
/// use upwash_topology::LeaderWeights;
/// let error = "0.6,0.6".parse::<LeaderWeights>().unwrap_err();
/// assert!(error.to_string().contains("their sum at most 1"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not w_best,w_degree: write two numbers, as 0.1,0.1, both at least 0 and their sum at most 1")]
pub struct LeaderWeightsError(
    /// What was written.
    pub String,
);

impl std::str::FromStr for LeaderWeights {
    type Err = LeaderWeightsError;

    fn from_str(text: &str) -> Result<Self, LeaderWeightsError> {
        let numbers: Option<Vec<f64>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
        let fits = |weight: f64| (0.0..=1.0).contains(&weight);
        match numbers.as_deref() {
            Some(&[best, degree]) if fits(best) && fits(degree) && best + degree <= 1.0 => Ok(Self { best, degree }),
            _ => Err(LeaderWeightsError(text.into())),
        }
    }
}

/// AL-DSGD's averaging on one graph, with candidates as far as the neighbors, each worker itself
/// included, and ties going to the lowest index.
///
/// ```
/// use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
///
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let w = Weights::Optimal.mixing(&l1)?;
/// let leaders = Leaders::new(&l1, &w, LeaderWeights { best: 0.1, degree: 0.1 });
/// // Leaders shrink disagreement a little faster than plain averaging does (0.653777).
/// assert!((leaders.contraction_random() - 0.608637).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Leaders {
    /// Each worker's candidates, in increasing order.
    candidates: Vec<Vec<usize>>,
    pieces: Vec<Vec<usize>>,
    base: Mat<f64>,
    weights: LeaderWeights,
}

impl Leaders {
    /// AL-DSGD over `base` on `graph`.
    ///
    /// # Panics
    /// If the two differ in size.
    ///
    /// ```
    /// # use upwash_topology::{Graph, LeaderWeights, Leaders, Weights};
    /// let pair = Graph::new(2, [(0, 1)])?;
    /// let w = Weights::Optimal.mixing(&pair)?;
    /// let leaders = Leaders::new(&pair, &w, LeaderWeights { best: 0.1, degree: 0.1 });
    /// assert_eq!(leaders.degree_leaders(), [0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(graph: &Graph, base: &Mixing, weights: LeaderWeights) -> Self {
        assert_eq!(graph.nodes(), base.nodes(), "a mixing matrix of another graph");
        let candidates = (0..graph.nodes()).map(|i| graph.closed_neighborhood(i)).collect();
        Self { candidates, pieces: graph.pieces(), base: base.to_dense(), weights }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.candidates.len()
    }

    pub(crate) fn candidates(&self) -> &[Vec<usize>] {
        &self.candidates
    }

    pub(crate) fn pieces(&self) -> &[Vec<usize>] {
        &self.pieces
    }

    pub(crate) fn base(&self) -> &Mat<f64> {
        &self.base
    }

    pub(crate) fn weights(&self) -> LeaderWeights {
        self.weights
    }

    /// Each worker's best-connected candidate.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let path = "path:4".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Optimal.mixing(&path)?;
    /// let leaders = Leaders::new(&path, &w, LeaderWeights { best: 0.1, degree: 0.1 });
    /// assert_eq!(leaders.degree_leaders(), [1, 1, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn degree_leaders(&self) -> Vec<usize> {
        let links = |worker: usize| self.candidates[worker].len() as f64;
        self.choose(|candidate| -links(candidate))
    }

    /// Each worker's candidate of the lowest loss.
    ///
    /// # Panics
    /// If there are not as many losses as workers.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let path = "path:4".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Optimal.mixing(&path)?;
    /// let leaders = Leaders::new(&path, &w, LeaderWeights { best: 0.1, degree: 0.1 });
    /// assert_eq!(leaders.best_leaders(&[0.5, 4.0, 13.5, 4.5]), [0, 0, 1, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn best_leaders(&self, losses: &[f64]) -> Vec<usize> {
        assert_eq!(losses.len(), self.nodes(), "a loss for every worker");
        self.choose(|candidate| losses[candidate])
    }

    fn choose(&self, cost: impl Fn(usize) -> f64) -> Vec<usize> {
        let by_cost = |a: &&usize, b: &&usize| cost(**a).total_cmp(&cost(**b));
        let least = |list: &Vec<usize>| list.iter().min_by(by_cost).copied().unwrap_or(0);
        self.candidates.iter().map(least).collect()
    }

    /// A for given leaders.
    ///
    /// ```
    /// # use upwash_topology::{Graph, LeaderWeights, Leaders, Weights};
    /// let pair = Graph::new(2, [(0, 1)])?;
    /// let w = Weights::Optimal.mixing(&pair)?;
    /// let leaders = Leaders::new(&pair, &w, LeaderWeights { best: 0.2, degree: 0.0 });
    /// let a = leaders.matrix(&[1, 1], &[0, 0]);
    /// assert!((a[(0, 1)] - 0.6).abs() < 1e-12); // 0.8 * 0.5 + 0.2
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matrix(&self, best: &[usize], degree: &[usize]) -> Mat<f64> {
        let mut a = (1.0 - self.weights.total()) * &self.base;
        for i in 0..self.nodes() {
            a[(i, best[i])] += self.weights.best;
            a[(i, degree[i])] += self.weights.degree;
        }
        a
    }

    /// rho for given leaders.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Optimal.mixing(&l1)?;
    /// let leaders = Leaders::new(&l1, &w, LeaderWeights { best: 0.1, degree: 0.1 });
    /// let best = leaders.best_leaders(&[0., 1., 2., 3., 4., 5., 6., 7.]);
    /// let rho = leaders.contraction(&best, &leaders.degree_leaders());
    /// assert!((rho - 0.694105).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contraction(&self, best: &[usize], degree: &[usize]) -> f64 {
        let a = self.matrix(best, degree);
        norm((a.transpose() * disagreement(self.nodes()) * &a).as_ref())
    }

    /// rho when every order of the losses is as likely as any other: exact, at any size.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Optimal.mixing(&ring)?;
    /// let none = Leaders::new(&ring, &w, LeaderWeights { best: 0.0, degree: 0.0 });
    /// assert!((none.contraction_random() - w.contraction()).abs() < 1e-12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contraction_random(&self) -> f64 {
        norm(self.second_moment(&disagreement(self.nodes())).as_ref())
    }

    /// rho per round of several rounds in turn, with new random losses in each:
    /// ||E[A_1' ... A_n'(I - J) A_n ... A_1]||^(1/n).
    ///
    /// # Panics
    /// If there are no rounds.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let none = LeaderWeights { best: 0.0, degree: 0.0 };
    /// let turn = ["paper:L1", "paper:L2", "paper:L3"].map(|name| {
    ///     let graph = name.parse::<GraphSpec>().unwrap().build().unwrap();
    ///     Leaders::new(&graph, &Weights::Optimal.mixing(&graph).unwrap(), none)
    /// });
    /// // Rotation alone: 0.464 instead of 0.654.
    /// assert!((Leaders::contraction_of_turn(&turn) - 0.464269).abs() < 1e-6);
    /// ```
    pub fn contraction_of_turn(rounds: &[Self]) -> f64 {
        let nodes = rounds.first().expect("at least one round").nodes();
        let last_to_first = rounds.iter().rev();
        let moment = last_to_first.fold(disagreement(nodes), |middle, round| round.second_moment(&middle));
        norm(moment.as_ref()).powf(1.0 / rounds.len() as f64)
    }

    /// E[A' M A] over random losses. With A = B + w_best S, S the best leaders, it needs the
    /// probabilities of pairs of leaders only: E[S' M S] sums M_ab P(N(a) = j, N(b) = l).
    pub(crate) fn second_moment(&self, middle: &Mat<f64>) -> Mat<f64> {
        // As if all leaders were chosen independently, ...
        let expected = self.expected_matrix();
        let mut moment = expected.transpose() * middle * &expected;
        // ... and what the pairs with common candidates add to that.
        let square = self.weights.best * self.weights.best;
        for (a, b) in self.overlapping_pairs() {
            let (u, v) = (&self.candidates[a], &self.candidates[b]);
            let factor = square * middle[(a, b)];
            let independent = 1.0 / (u.len() * v.len()) as f64;
            joint(u, v, |j, l, together| moment[(j, l)] += factor * (together - independent));
        }
        moment
    }

    /// Ordered pairs of workers that have a candidate in common, each with itself included.
    fn overlapping_pairs(&self) -> Vec<(usize, usize)> {
        let reach = |a: usize| {
            let mut near: Vec<usize> =
                self.candidates[a].iter().flat_map(|&j| self.candidates[j].iter().copied()).collect();
            near.sort_unstable();
            near.dedup();
            near.into_iter().map(move |b| (a, b))
        };
        (0..self.nodes()).flat_map(reach).collect()
    }

    /// E[A] over random losses.
    pub(crate) fn expected_matrix(&self) -> Mat<f64> {
        let mut mean = (1.0 - self.weights.total()) * &self.base;
        for (i, leader) in self.degree_leaders().into_iter().enumerate() {
            mean[(i, leader)] += self.weights.degree;
            let share = self.weights.best / self.candidates[i].len() as f64;
            self.candidates[i].iter().for_each(|&j| mean[(i, j)] += share);
        }
        mean
    }
}

/// P(j has the lowest loss in U and l the lowest in V) when all orders are equally likely, for all
/// j in U and l in V. One of the two is the lowest of the union; it must not be a candidate of the
/// other's.
fn joint(u: &[usize], v: &[usize], mut visit: impl FnMut(usize, usize, f64)) {
    let outside = |list: &[usize], other: &[usize]| -> Vec<bool> {
        list.iter().map(|member| other.binary_search(member).is_err()).collect()
    };
    let (u_only, v_only) = (outside(u, v), outside(v, u));
    let union = (u.len() + v_only.iter().filter(|&&only| only).count()) as f64;
    for (&j, &j_only) in u.iter().zip(&u_only) {
        for (&l, &l_only) in v.iter().zip(&v_only) {
            let l_first = if l_only { 1.0 / u.len() as f64 } else { 0.0 };
            let j_first = if j_only { 1.0 / v.len() as f64 } else { 0.0 };
            visit(j, l, if j == l { 1.0 } else { l_first + j_first } / union);
        }
    }
}
