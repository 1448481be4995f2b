//! MATCHA: which matchings to use how often, for a given budget of communication.
//!
//! Wang, Sahu, Yang, Joshi, Kar: "MATCHA: Speeding up decentralized SGD via matching decomposition
//! sampling". In every round each matching is up with its own probability, independently of the
//! others; the probabilities are those that keep the expected graph best connected.

use crate::graph::weighted_laplacian;
use crate::spectrum::eigenvalues;
use crate::{Graph, Matching, alpha, probabilities};
use faer::Mat;

/// Probabilities and alpha for one graph and one budget.
///
/// ```
/// use upwash_topology::{GraphSpec, Matcha};
///
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let matcha = Matcha::solve(&l1, 0.5)?;
/// assert!((matcha.lambda2() - 0.561202).abs() < 1e-4);
/// assert!((matcha.alpha() - 0.396430).abs() < 1e-3);
/// assert!((matcha.rho() - 0.643975).abs() < 1e-4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Matcha {
    graph: Graph,
    budget: f64,
    probabilities: Vec<f64>,
    lambda2: f64,
    upper_bound: f64,
    /// For every worker, the alpha of its piece of the graph.
    alphas: Vec<f64>,
    alpha: f64,
    rho: f64,
}

/// Why there is no MATCHA for a graph.
///
/// ```
/// use upwash_topology::{GraphSpec, Matcha, MatchaError};
/// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
/// let error = Matcha::solve(&ring, 1.5).unwrap_err();
/// assert_eq!(error, MatchaError::Budget(1.5));
/// assert!(error.to_string().starts_with("a communication budget of 1.5"));
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MatchaError {
    /// A budget that is not above 0 and at most 1.
    #[error(
        "a communication budget of {0} is not above 0 and at most 1: it is the part of the links used in an average round"
    )]
    Budget(f64),
    /// So many links that the probabilities would take hours.
    #[error("probabilities for {0} links would take hours: at most {MAX_LINKS} (a budget of 1 needs none)")]
    TooManyLinks(usize),
}

/// A step of the solver looks at all pairs of links: these take some seconds.
const MAX_LINKS: usize = 40_000;

impl Matcha {
    /// Finds the probabilities that maximise lambda_2 of the expected Laplacian, at most
    /// `budget` times the number of matchings in all, and the alpha that minimises rho.
    ///
    /// A graph in several pieces is treated piece by piece: what is maximised is the smallest
    /// lambda_2 of any piece, and each has its own alpha.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Matcha::solve(&ring, 1.0)?.probabilities(), [1.0, 1.0]); // D-PSGD
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn solve(graph: &Graph, budget: f64) -> Result<Self, MatchaError> {
        if !(budget > 0.0 && budget <= 1.0) {
            return Err(MatchaError::Budget(budget));
        }
        if budget < 1.0 && graph.edges().len() > MAX_LINKS {
            return Err(MatchaError::TooManyLinks(graph.edges().len()));
        }
        let matchings = graph.matchings();
        // Workers without a link have nothing to decide.
        let pieces: Vec<Vec<usize>> = graph.pieces().into_iter().filter(|piece| piece.len() > 1).collect();
        let cap = budget * matchings.len() as f64;
        let (probabilities, upper_bound) = if budget == 1.0 || matchings.is_empty() {
            (vec![1.0; matchings.len()], None)
        } else {
            let (matchings, pieces) = without_loners(matchings, &pieces, graph.nodes());
            let solution = probabilities::maximise(&matchings, &pieces, cap);
            (tidy(solution.probabilities, cap), Some(solution.upper_bound))
        };

        let mut solved = Self {
            alphas: vec![0.0; graph.nodes()],
            alpha: 0.0,
            rho: if graph.nodes() == 1 { 0.0 } else { 1.0 },
            lambda2: f64::INFINITY,
            upper_bound: 0.0,
            graph: graph.clone(),
            budget,
            probabilities,
        };
        let mean = solved.weighted_laplacian(|p| p);
        // E[L^2] = (E L)^2 + 2 sum p (1 - p) L_j, because L_j^2 = 2 L_j for a matching.
        let square = &mean * &mean + solved.weighted_laplacian(|p| 2.0 * p * (1.0 - p));
        let mut largest = 0;
        for piece in &pieces {
            let part = |matrix: &Mat<f64>| Mat::from_fn(piece.len(), piece.len(), |i, j| matrix[(piece[i], piece[j])]);
            let (mean, square) = (part(&mean), part(&square));
            let (alpha, rho) = alpha::minimise(mean.as_ref(), square.as_ref());
            piece.iter().for_each(|&worker| solved.alphas[worker] = alpha);
            solved.lambda2 = solved.lambda2.min(eigenvalues(mean.as_ref())[1]);
            if piece.len() > largest {
                (largest, solved.alpha) = (piece.len(), alpha);
            }
            if piece.len() == graph.nodes() {
                solved.rho = rho;
            }
        }
        if pieces.is_empty() {
            solved.lambda2 = 0.0;
        }
        solved.upper_bound = upper_bound.unwrap_or(solved.lambda2);
        Ok(solved)
    }

    /// sum_j weight(p_j) L_j.
    pub(crate) fn weighted_laplacian(&self, weight: impl Fn(f64) -> f64) -> Mat<f64> {
        let links = self.matchings().iter().zip(&self.probabilities).flat_map(|(links, &p)| {
            let weight = weight(p);
            links.iter().map(move |&edge| (edge, weight))
        });
        weighted_laplacian(self.graph.nodes(), links)
    }

    /// The graph.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Matcha::solve(&ring, 0.5)?.graph(), &ring);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The matchings that the probabilities belong to.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// assert_eq!(matcha.matchings().len(), matcha.probabilities().len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matchings(&self) -> &[Matching] {
        self.graph.matchings()
    }

    /// The part of the links that is used in an average round.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// assert_eq!(matcha.budget(), 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn budget(&self) -> f64 {
        self.budget
    }

    /// How likely each matching is to be up in a round, to six digits.
    ///
    /// The optimum can be flat: machines whose arithmetic differs may find other probabilities of
    /// the same lambda_2. Workers on several machines should be given the same ones.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// assert!((matcha.probabilities()[0] - 0.5).abs() < 1e-3); // a ring's two halves are alike
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    /// lambda_2 of the expected Laplacian; the smallest of any piece where there are several.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// assert!((matcha.lambda2() - 0.5 * 0.585786).abs() < 1e-5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lambda2(&self) -> f64 {
        self.lambda2
    }

    /// A lambda_2 that no probabilities within the budget can exceed, from the dual program: the
    /// proof that [`lambda2`](Self::lambda2) is the optimum.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let matcha = Matcha::solve(&"paper:L1".parse::<GraphSpec>()?.build()?, 0.3)?;
    /// assert!(matcha.upper_bound() / matcha.lambda2() < 1.0001);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upper_bound(&self) -> f64 {
        self.upper_bound
    }

    /// The alpha of W = I - alpha L that minimises rho (of the largest piece, where there are
    /// several).
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// assert!((matcha.alpha() - 0.607369).abs() < 1e-4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// The alpha of each worker's piece of the graph.
    pub(crate) fn alphas(&self) -> &[f64] {
        &self.alphas
    }

    /// rho = ||E[W'W] - J||: by how much an average round shrinks the squared disagreement, at
    /// worst. 1 where the graph is not connected.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// assert!((matcha.rho() - 0.783905).abs() < 1e-5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rho(&self) -> f64 {
        self.rho
    }
}

/// The same problem with the workers that have links numbered 0, 1, 2, ...
fn without_loners(matchings: &[Matching], pieces: &[Vec<usize>], nodes: usize) -> (Vec<Matching>, Vec<Vec<usize>>) {
    let mut new = vec![usize::MAX; nodes];
    pieces.iter().flatten().enumerate().for_each(|(index, &node)| new[node] = index);
    let matching = |links: &Matching| links.iter().map(|&(u, v)| (new[u], new[v])).collect();
    let piece = |members: &Vec<usize>| members.iter().map(|&node| new[node]).collect();
    (matchings.iter().map(matching).collect(), pieces.iter().map(piece).collect())
}

/// Rounds to six digits of the largest without going over the cap: what lies behind is the
/// solver's noise.
fn tidy(probabilities: Vec<f64>, cap: f64) -> Vec<f64> {
    let largest = probabilities.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let steps_to_one = 10f64.powi(6 - largest.log10().ceil() as i32);
    let mut steps: Vec<f64> = probabilities.iter().map(|p| (p * steps_to_one).round()).collect();
    let mut over = steps.iter().sum::<f64>() - (cap * steps_to_one + 1e-3).floor();
    // Rounding moves the sum by half a step a matching at most; take the excess off the largest.
    while over > 0.0 {
        let largest = (0..steps.len()).max_by(|&a, &b| steps[a].total_cmp(&steps[b]));
        let Some(largest) = largest else { break };
        steps[largest] -= 1.0;
        over -= 1.0;
    }
    steps.into_iter().map(|count| count / steps_to_one).collect()
}
