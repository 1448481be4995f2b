//! MATCHA: activation probabilities of matchings for a given communication budget.
//!
//! Wang, Sahu, Yang, Joshi, Kar: "MATCHA: Speeding up decentralized SGD via matching decomposition sampling". In every
//! round each matching is active with its own probability, independently of the others. The probabilities are chosen so
//! that the expected graph is as well connected as possible.
//!
//! The budget is the expected fraction of *matchings* that are active in a round. It is not the expected fraction of
//! links, because matchings differ in size: on `paper:L1`, budget 0.5 uses 7.73 of 12 links (64 %) in an average round.

use crate::graph::weighted_laplacian;
use crate::{Graph, Matching, Matrix, alpha, probabilities};

/// MATCHA's activation probabilities and alpha for one graph and one budget.
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
    /// For every worker, the alpha of its connected component.
    alphas: Vec<f64>,
    alpha: f64,
    rho: f64,
}

/// The reason why MATCHA cannot be solved for a graph and a budget.
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
    /// The budget is not above 0 and at most 1.
    #[error(
        "a communication budget of {0} is out of range: it must be above 0 and at most 1 \
         (it is the expected fraction of matchings active in a round)"
    )]
    Budget(f64),
    /// The graph has too many links: computing the probabilities would take hours.
    #[error(
        "computing probabilities for {0} links would take hours: at most {MAX_LINKS} links are supported \
         (a budget of 1 needs no probabilities)"
    )]
    TooManyLinks(usize),
}

/// The largest number of links for which probabilities are computed. Each step of the solver visits all pairs of links,
/// which takes some seconds at this size.
const MAX_LINKS: usize = 40_000;

impl Matcha {
    /// Finds the probabilities that maximize lambda_2 of the expected Laplacian, and the alpha that minimizes rho. The
    /// probabilities sum to at most `budget` times the number of matchings.
    ///
    /// If the graph is not connected, the probabilities maximize the smallest lambda_2 over its connected components,
    /// and each component has its own alpha.
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
        // Isolated workers do not take part in the optimization.
        let components: Vec<Vec<usize>> =
            graph.components().into_iter().filter(|component| component.len() > 1).collect();
        let cap = budget * matchings.len() as f64;
        let (probabilities, upper_bound) = if budget == 1.0 || matchings.is_empty() {
            (vec![1.0; matchings.len()], None)
        } else {
            let (matchings, components) = without_isolated(matchings, &components, graph.nodes());
            let solution = probabilities::maximize(&matchings, &components, cap);
            (rounded(solution.probabilities, cap), Some(solution.upper_bound))
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
        let square = &mean * &mean + &solved.weighted_laplacian(|p| 2.0 * p * (1.0 - p));
        let mut largest = 0;
        for component in &components {
            let size = component.len();
            let block = |matrix: &Matrix| Matrix::from_fn(size, size, |i, j| matrix[(component[i], component[j])]);
            let (mean, square) = (block(&mean), block(&square));
            let (alpha, rho) = alpha::minimize(&mean, &square);
            component.iter().for_each(|&worker| solved.alphas[worker] = alpha);
            solved.lambda2 = solved.lambda2.min(mean.symmetric_eigenvalues()[1]);
            if size > largest {
                (largest, solved.alpha) = (size, alpha);
            }
            if size == graph.nodes() {
                solved.rho = rho;
            }
        }
        if components.is_empty() {
            solved.lambda2 = 0.0;
        }
        solved.upper_bound = upper_bound.unwrap_or(solved.lambda2);
        Ok(solved)
    }

    /// Returns sum_j weight(p_j) L_j.
    pub(crate) fn weighted_laplacian(&self, weight: impl Fn(f64) -> f64) -> Matrix {
        let links = self.matchings().iter().zip(&self.probabilities).flat_map(|(links, &p)| {
            let weight = weight(p);
            links.iter().map(move |&edge| (edge, weight))
        });
        weighted_laplacian(self.graph.nodes(), links)
    }

    /// Returns the graph.
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

    /// Returns the matchings, in the same order as the probabilities.
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

    /// Returns the budget: the expected fraction of matchings active in a round.
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

    /// Returns the probability of each matching to be active in a round, to six digits.
    ///
    /// The optimum can be flat: machines whose arithmetic differs may find different probabilities with the same
    /// lambda_2. Workers on several machines should be given the same probabilities.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha};
    /// let matcha = Matcha::solve(&"ring:8".parse::<GraphSpec>()?.build()?, 0.5)?;
    /// assert!((matcha.probabilities()[0] - 0.5).abs() < 1e-3); // a ring's two matchings are equivalent
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    /// Returns lambda_2 of the expected Laplacian. If the graph is not connected, it is the smallest over the
    /// components.
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

    /// Returns a lambda_2 that no probabilities within the budget can exceed. It comes from the dual program and proves
    /// that [`lambda2`](Self::lambda2) is the optimum.
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

    /// Returns the alpha of W = I - alpha L that minimizes rho. If the graph is not connected, it is that of the
    /// largest component.
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

    /// Returns, for each worker, the alpha of its connected component.
    pub(crate) fn alphas(&self) -> &[f64] {
        &self.alphas
    }

    /// Returns rho = ||E[W'W] - J||, the worst-case factor by which a round shrinks the expected squared disagreement.
    /// It is 1 if the graph is not connected.
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

/// Removes isolated workers from the problem by renumbering the others 0, 1, 2, ...
fn without_isolated(
    matchings: &[Matching],
    components: &[Vec<usize>],
    nodes: usize,
) -> (Vec<Matching>, Vec<Vec<usize>>) {
    let mut new = vec![usize::MAX; nodes];
    components.iter().flatten().enumerate().for_each(|(index, &node)| new[node] = index);
    let matching = |links: &Matching| links.iter().map(|&(u, v)| (new[u], new[v])).collect();
    let component = |members: &Vec<usize>| members.iter().map(|&node| new[node]).collect();
    (matchings.iter().map(matching).collect(), components.iter().map(component).collect())
}

/// Rounds the probabilities to six digits of the largest without exceeding the cap. Further digits are solver noise.
fn rounded(probabilities: Vec<f64>, cap: f64) -> Vec<f64> {
    let largest = probabilities.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let steps_to_one = 10f64.powi(6 - largest.log10().ceil() as i32);
    let mut steps: Vec<f64> = probabilities.iter().map(|p| (p * steps_to_one).round()).collect();
    let mut over = steps.iter().sum::<f64>() - (cap * steps_to_one + 1e-3).floor();
    // Rounding changes the sum by at most half a step per matching; take any excess off the largest.
    while over > 0.0 {
        let largest = (0..steps.len()).max_by(|&a, &b| steps[a].total_cmp(&steps[b]));
        let Some(largest) = largest else { break };
        steps[largest] -= 1.0;
        over -= 1.0;
    }
    steps.into_iter().map(|count| count / steps_to_one).collect()
}
