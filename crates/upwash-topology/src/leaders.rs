//! AL-DSGD's mixing matrix: base weights plus extra weight for the best and the best-connected neighbor.
//!
//! Let W be the base's mixing matrix and w = w_best + w_degree. Worker i's candidates are its neighbors and itself;
//! N(i) is the best candidate and T(i) the best-connected one. Row i of AL-DSGD's matrix is then
//!
//! ```text
//! A_i = (1 - w) W_i + w_best e_N(i) + w_degree e_T(i)
//! ```
//!
//! The paper writes models as columns: its W~ is the transpose of A. A round shrinks the squared norm of the
//! disagreement (I - J) X by a factor of at most rho = ||E[A'(I - J) A]||. The paper's Theorem 1 also requires
//! ||E[A'A]|| < 1, which no such A satisfies (apply it to the all-ones vector) and no proof needs: because A 1 = 1,
//! (I - J) A equals (I - J) A (I - J), so E||(I - J) A_n ... A_1 X||^2 is at most the product of the rho times
//! ||(I - J) X||^2. This does not require independence.

use crate::spectrum::{contraction, disagreement, norm};
use crate::{Graph, Matrix, Mixing};

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
    /// Returns w = w_best + w_degree.
    ///
    /// ```
    /// # use upwash_topology::LeaderWeights;
    /// assert_eq!(LeaderWeights { best: 0.25, degree: 0.25 }.total(), 0.5);
    /// ```
    pub fn total(self) -> f64 {
        self.best + self.degree
    }
}

/// Text that is not a valid pair of leader weights.
///
/// ```
/// use upwash_topology::LeaderWeights;
/// let error = "0.6,0.6".parse::<LeaderWeights>().unwrap_err();
/// assert!(error.to_string().contains("their sum at most 1"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid leader weights `{0}`: write w_best,w_degree as two numbers, such as 0.1,0.1, both at least 0 and their sum at most 1"
)]
pub struct LeaderWeightsError(
    /// The text.
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

/// AL-DSGD's averaging on one graph. A worker's candidates are its neighbors and itself; ties go to the lowest index.
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
    components: Vec<Vec<usize>>,
    base: Matrix,
    weights: LeaderWeights,
}

impl Leaders {
    /// Creates AL-DSGD's averaging over the mixing matrix `base` of `graph`.
    ///
    /// # Panics
    /// If `graph` and `base` differ in size.
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
        assert_eq!(graph.nodes(), base.nodes(), "the graph and its mixing matrix differ in size");
        let candidates = (0..graph.nodes()).map(|i| graph.closed_neighborhood(i)).collect();
        Self { candidates, components: graph.components(), base: base.to_dense(), weights }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.candidates.len()
    }

    pub(crate) fn candidates(&self) -> &[Vec<usize>] {
        &self.candidates
    }

    pub(crate) fn components(&self) -> &[Vec<usize>] {
        &self.components
    }

    pub(crate) fn base(&self) -> &Matrix {
        &self.base
    }

    pub(crate) fn weights(&self) -> LeaderWeights {
        self.weights
    }

    /// Returns each worker's best-connected candidate.
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

    /// Returns each worker's candidate with the lowest loss.
    ///
    /// # Panics
    /// If the number of losses differs from the number of workers.
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
        assert_eq!(losses.len(), self.nodes(), "one loss per worker");
        self.choose(|candidate| losses[candidate])
    }

    fn choose(&self, cost: impl Fn(usize) -> f64) -> Vec<usize> {
        let by_cost = |a: &&usize, b: &&usize| cost(**a).total_cmp(&cost(**b));
        let least = |list: &Vec<usize>| list.iter().min_by(by_cost).copied().unwrap_or(0);
        self.candidates.iter().map(least).collect()
    }

    /// Returns A for given leaders.
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
    pub fn matrix(&self, best: &[usize], degree: &[usize]) -> Matrix {
        let mut a = self.base.clone().scaled(1.0 - self.weights.total());
        for i in 0..self.nodes() {
            a[(i, best[i])] += self.weights.best;
            a[(i, degree[i])] += self.weights.degree;
        }
        a
    }

    /// Returns rho for given leaders.
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
        contraction(&self.matrix(best, degree))
    }

    /// Returns rho when every order of the losses is equally likely. The result is exact for any number of workers.
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
        norm(&self.second_moment(&disagreement(self.nodes())))
    }

    /// Returns rho per round of a sequence of rounds with new random losses in each: ||E[A_1' ... A_n'(I - J) A_n ...
    /// A_1]||^(1/n).
    ///
    /// # Panics
    /// If there are no rounds.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let none = LeaderWeights { best: 0.0, degree: 0.0 };
    /// let cycle = ["paper:L1", "paper:L2", "paper:L3"].map(|name| {
    ///     let graph = name.parse::<GraphSpec>().unwrap().build().unwrap();
    ///     Leaders::new(&graph, &Weights::Optimal.mixing(&graph).unwrap(), none)
    /// });
    /// // Rotation alone: 0.464 instead of 0.654.
    /// assert!((Leaders::contraction_of_cycle(&cycle) - 0.464269).abs() < 1e-6);
    /// ```
    pub fn contraction_of_cycle(rounds: &[Self]) -> f64 {
        let nodes = rounds.first().expect("at least one round").nodes();
        let last_to_first = rounds.iter().rev();
        let moment = last_to_first.fold(disagreement(nodes), |middle, round| round.second_moment(&middle));
        norm(&moment).powf(1.0 / rounds.len() as f64)
    }

    /// Returns E[A' M A] over random losses. With A = B + w_best S, where S selects the best leaders, it needs only the
    /// probabilities of pairs of leaders: E[S' M S] sums M_ab P(N(a) = j, N(b) = l).
    pub(crate) fn second_moment(&self, middle: &Matrix) -> Matrix {
        // First treat all leaders as chosen independently.
        let expected = self.expected_matrix();
        let mut moment = &(&expected.transpose() * middle) * &expected;
        // Then add the correction for pairs of workers with common candidates.
        let square = self.weights.best * self.weights.best;
        for (a, b) in self.overlapping_pairs() {
            let (u, v) = (&self.candidates[a], &self.candidates[b]);
            let factor = square * middle[(a, b)];
            let independent = 1.0 / (u.len() * v.len()) as f64;
            joint_probabilities(u, v, |j, l, joint| moment[(j, l)] += factor * (joint - independent));
        }
        moment
    }

    /// Returns the ordered pairs of workers that share a candidate, including each worker with itself.
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

    /// Returns E[A] over random losses.
    pub(crate) fn expected_matrix(&self) -> Matrix {
        let mut mean = self.base.clone().scaled(1.0 - self.weights.total());
        for (i, leader) in self.degree_leaders().into_iter().enumerate() {
            mean[(i, leader)] += self.weights.degree;
            let share = self.weights.best / self.candidates[i].len() as f64;
            self.candidates[i].iter().for_each(|&j| mean[(i, j)] += share);
        }
        mean
    }
}

/// Visits P(j has the lowest loss in U and l the lowest in V), when all orders are equally likely, for all j in U and l
/// in V. Unless j = l, one of the two is the lowest of the union, and that one must not be in the other's set.
fn joint_probabilities(u: &[usize], v: &[usize], mut visit: impl FnMut(usize, usize, f64)) {
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
