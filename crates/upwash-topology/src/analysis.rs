//! The complete analysis of a graph in one object, which `upwash topology analyze --json` prints. Long
//! because every field is documented.

use crate::leaders::{LeaderWeights, Leaders};
use crate::published::{Theorem1, step_limits};
use crate::spectrum::{Spectrum, disagreement, norm};
use crate::worst::safe_total_weight;
use crate::{Graph, Matcha, MatchaError, Matching, Matrix, Mixing, Order, Rotation, RotationError, Schedule, Weights};

/// The optional parts of an analysis.
///
/// ```
/// use upwash_topology::AnalysisOptions;
/// let options = AnalysisOptions { budget: Some(0.5), ..Default::default() };
/// assert_eq!(options.rotate, None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AnalysisOptions {
    /// Analyze MATCHA with this budget, the expected fraction of matchings active in a round.
    pub budget: Option<f64>,
    /// Analyze a rotation through this many copies of the graph.
    pub rotate: Option<usize>,
    /// Analyze AL-DSGD with these leader weights.
    pub leaders: Option<LeaderWeights>,
}

/// The reason why a graph cannot be analyzed.
///
/// ```
/// use upwash_topology::{Analysis, AnalysisOptions, GraphSpec};
/// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
/// let options = AnalysisOptions { budget: Some(2.0), ..Default::default() };
/// assert!(Analysis::of(&ring, options).is_err());
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// MATCHA cannot be solved for this graph and budget.
    #[error(transparent)]
    Matcha(#[from] MatchaError),
    /// The rotation is invalid.
    #[error(transparent)]
    Rotation(#[from] RotationError),
    /// The graph is too large: computing its spectra would take too long.
    #[error(
        "{nodes} workers are too many to analyze: at most {MAX_NODES} are supported, whose spectra take some minutes"
    )]
    TooLarge {
        /// The number of workers.
        nodes: usize,
    },
}

const MAX_NODES: usize = 4096;

/// The analysis of a graph.
///
/// ```
/// use upwash_topology::{Analysis, AnalysisOptions, GraphSpec};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let analysis = Analysis::of(&l1, AnalysisOptions::default())?;
/// assert!((analysis.dpsgd.rho - 0.653777).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
pub struct Analysis {
    /// The number of workers.
    pub nodes: usize,
    /// The number of links.
    pub edges: usize,
    /// The degree of each worker.
    pub degrees: Vec<usize>,
    /// Whether the graph is connected.
    pub connected: bool,
    /// The connected components if there are several, otherwise empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<Vec<usize>>,
    /// The second smallest eigenvalue of the Laplacian; 0 if the graph is not connected.
    pub lambda2: f64,
    /// The largest eigenvalue of the Laplacian.
    pub lambda_max: f64,
    /// Matchings that cover the graph.
    pub matchings: Vec<Matching>,
    /// Averaging over the whole graph with the optimal alpha.
    pub dpsgd: Contraction,
    /// Averaging with Metropolis-Hastings weights.
    pub metropolis: Contraction,
    /// Averaging with equal weights for a worker and each of its neighbors.
    pub uniform: Contraction,
    /// MATCHA, if a budget was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matcha: Option<MatchaAnalysis>,
    /// Rotation, if a number of copies was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationAnalysis>,
    /// AL-DSGD over the whole graph, if leader weights were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub al_dsgd: Option<LeaderAnalysis>,
    /// Links that reach the exact average of so many workers in a known number of rounds.
    pub finite_time: Vec<FiniteTime>,
}

/// Links that change from round to round and reach the exact average.
///
/// ```
/// # use upwash_topology::FiniteTime;
/// let ways = FiniteTime::of(6);
/// assert_eq!(ways.iter().map(|way| (way.links, way.rounds)).collect::<Vec<_>>()[0], ("base-2", 4));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FiniteTime {
    /// The name of the links in configurations.
    pub links: &'static str,
    /// The number of rounds.
    pub rounds: usize,
    /// The most links of a worker in a round.
    pub peers: usize,
}

impl FiniteTime {
    /// All for a number of workers, except Base-(k+1) graphs that are no faster than one with fewer links.
    #[must_use]
    pub fn of(nodes: usize) -> Vec<Self> {
        let mut all = Vec::new();
        if nodes < 2 {
            return all;
        }
        if nodes.is_power_of_two() {
            let rounds = nodes.ilog2() as usize;
            all.extend(["one-peer-exponential", "one-peer-hypercube"].map(|links| Self { links, rounds, peers: 1 }));
        }
        let mut fastest = usize::MAX;
        for (peers, links) in (1..).zip(["base-2", "base-3", "base-4", "base-5"]) {
            let rounds = Schedule::base(nodes, peers).period().unwrap_or(usize::MAX);
            if rounds < fastest {
                all.push(Self { links, rounds, peers });
                fastest = rounds;
            }
        }
        all
    }
}

/// How fast averaging drives the workers to agreement.
///
/// ```
/// # use upwash_topology::{Analysis, AnalysisOptions, GraphSpec};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let dpsgd = Analysis::of(&l1, AnalysisOptions::default())?.dpsgd;
/// assert_eq!(dpsgd.mixing_rounds, Some(22)); // 0.653777^(22/2) < 0.01
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
pub struct Contraction {
    /// The alpha of I - alpha L, if the weights have one. If the graph has several components, that of the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// The worst-case factor by which a round shrinks the squared disagreement.
    pub rho: f64,
    /// 1 - sqrt(rho).
    pub spectral_gap: f64,
    /// The number of rounds that shrink disagreement to a hundredth, or `None` if it does not shrink.
    pub mixing_rounds: Option<u64>,
    /// Workers whose own weight is not positive. The paper's Algorithm 1, as written, makes them climb their own loss.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_positive_diagonal: Vec<usize>,
}

/// MATCHA on the graph.
///
/// ```
/// # use upwash_topology::{Analysis, AnalysisOptions, GraphSpec};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let options = AnalysisOptions { budget: Some(0.5), ..Default::default() };
/// let matcha = Analysis::of(&l1, options)?.matcha.unwrap();
/// assert!((matcha.expected_links - 7.7255).abs() < 1e-3); // of 12
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
pub struct MatchaAnalysis {
    /// The budget: the expected fraction of matchings active in a round.
    pub budget: f64,
    /// The activation probability of each matching.
    pub probabilities: Vec<f64>,
    /// lambda_2 of the expected Laplacian (the smallest over the connected components).
    pub lambda2: f64,
    /// An upper bound on lambda_2 over all probabilities within the budget, which certifies the optimum.
    pub lambda2_upper_bound: f64,
    /// The expected number of links that are up in a round.
    pub expected_links: f64,
    /// MATCHA's alpha and rho.
    #[serde(flatten)]
    pub contraction: Contraction,
    /// Theorem 1 of the AL-DSGD paper, as printed.
    pub published_theorem1: Theorem1,
    /// AL-DSGD over MATCHA with random losses, if leader weights were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub al_dsgd: Option<MatchaLeaders>,
}

/// AL-DSGD over MATCHA.
///
/// ```
/// # use upwash_topology::{Analysis, AnalysisOptions, GraphSpec, LeaderWeights};
/// let options = AnalysisOptions {
///     budget: Some(0.5),
///     leaders: Some(LeaderWeights { best: 0.0, degree: 0.0 }),
///     ..Default::default()
/// };
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let matcha = Analysis::of(&l1, options)?.matcha.unwrap();
/// let leaders = matcha.al_dsgd.unwrap();
/// assert!((leaders.rho_random - matcha.contraction.rho).abs() < 1e-9); // no weight, no effect
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
pub struct MatchaLeaders {
    /// rho in expectation over random losses and random matchings.
    pub rho_random: f64,
    /// Whether `rho_random` covers all draws of matchings (`true`) or a sample of them (`false`).
    pub exact: bool,
    /// A limit on w_best + w_degree below which averaging contracts for any leaders.
    pub w_safe: f64,
}

/// A rotation of the workers over the nodes of the graph.
///
/// ```
/// # use upwash_topology::{Analysis, AnalysisOptions, GraphSpec};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let options = AnalysisOptions { rotate: Some(2), ..Default::default() };
/// let rotation = Analysis::of(&l1, options)?.rotation.unwrap();
/// assert_eq!(rotation.expected_degrees, [3.0; 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
pub struct RotationAnalysis {
    /// The node that each worker takes in each copy.
    pub relabelings: Vec<Vec<usize>>,
    /// Each worker's degree, averaged over the copies.
    pub expected_degrees: Vec<f64>,
    /// The variance of the expected degrees.
    pub degree_variance: f64,
    /// lambda_2 of the mean Laplacian.
    pub lambda2_mean: f64,
    /// rho per round of plain averaging, over a full cycle through the copies.
    pub rho: f64,
    /// rho per round of AL-DSGD with random losses, if leader weights were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rho_random: Option<f64>,
}

/// AL-DSGD on the graph.
///
/// ```
/// # use upwash_topology::{Analysis, AnalysisOptions, GraphSpec};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let options = AnalysisOptions { leaders: "0.1,0.1".parse().ok(), ..Default::default() };
/// let al_dsgd = Analysis::of(&l1, options)?.al_dsgd.unwrap();
/// assert!((al_dsgd.rho_random - 0.608637).abs() < 1e-6);
/// assert!((al_dsgd.w_safe - 0.11666).abs() < 1e-5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
pub struct LeaderAnalysis {
    /// The leader weights.
    pub weights: LeaderWeights,
    /// rho in expectation over random losses.
    pub rho_random: f64,
    /// rho for the worst leaders (an upper bound if `rho_worst_exact` is false).
    pub rho_worst: f64,
    /// Whether every choice of leaders was tried.
    pub rho_worst_exact: bool,
    /// The leaders with the largest rho found (the largest of all if `rho_worst_exact` is true).
    pub worst_leaders: Vec<usize>,
    /// The rho of `worst_leaders`.
    pub rho_worst_found: f64,
    /// A limit on w_best + w_degree below which averaging contracts for any leaders.
    pub w_safe: f64,
    /// The fraction of the workers' steps that reaches the consensus model, for the rules `sound` and `released`.
    pub step_factor: f64,
    /// The same for the rule `written`, which scales each step by (1 - w) W_ii.
    pub step_factor_written: f64,
    /// The number of equally influential workers that would average out as much noise, for `sound` and `released`.
    pub effective_workers: f64,
    /// The same for the rule `written`.
    pub effective_workers_written: f64,
    /// ||A'1 - 1||, root mean square: how unequally a round weights the workers.
    pub mean_drift: f64,
    /// The weight of each worker in the consensus model.
    pub influence: Vec<f64>,
    /// The largest gamma L that the paper's Theorem 2 allows as printed, or `None` if rho is not below 1.
    pub published_step_limit: Option<f64>,
    /// The largest gamma L for which the proof of Theorem 2 works, or `None` if rho is not below 1.
    pub published_step_limit_proved: Option<f64>,
    /// Theorem 1 of the paper, as printed, for D-PSGD.
    pub published_theorem1: Theorem1,
}

impl Analysis {
    /// Analyzes a graph.
    ///
    /// ```
    /// # use upwash_topology::{Analysis, AnalysisOptions, Graph};
    /// let two_components = Graph::new(4, [(0, 1), (2, 3)])?;
    /// let analysis = Analysis::of(&two_components, AnalysisOptions::default())?;
    /// assert!(!analysis.connected);
    /// assert_eq!(analysis.dpsgd.rho, 1.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(graph: &Graph, options: AnalysisOptions) -> Result<Self, AnalysisError> {
        if graph.nodes() > MAX_NODES {
            return Err(AnalysisError::TooLarge { nodes: graph.nodes() });
        }
        let components = graph.components();
        let connected = components.len() == 1;
        let spectrum = Spectrum::of(graph);
        let [optimal, metropolis, uniform] = [Weights::Optimal, Weights::Metropolis, Weights::Uniform]
            .map(|weights| weights.mixing(graph).expect("these weights fit every graph"));
        let alpha = if connected { spectrum.best_alpha() } else { alpha_of_largest(&optimal, &components) };
        let contraction = |mixing: &Mixing, alpha| {
            let rho = if connected { mixing.contraction() } else { 1.0 };
            Contraction::new(alpha, rho, mixing.without_positive_diagonal())
        };
        let matcha = options.budget.map(|budget| Matcha::solve(graph, budget)).transpose()?;
        let rotation = options.rotate.map(|copies| Rotation::balance(graph, copies)).transpose()?;
        Ok(Self {
            nodes: graph.nodes(),
            edges: graph.edges().len(),
            degrees: graph.degrees(),
            connected,
            lambda2: spectrum.lambda2(),
            lambda_max: spectrum.lambda_max(),
            matchings: graph.matchings().to_vec(),
            dpsgd: contraction(&optimal, Some(alpha)),
            metropolis: contraction(&metropolis, None),
            uniform: contraction(&uniform, None),
            matcha: matcha.map(|matcha| MatchaAnalysis::new(&matcha, options.leaders)),
            rotation: rotation.map(|rotation| RotationAnalysis::new(graph, &rotation, options.leaders)),
            al_dsgd: options.leaders.map(|weights| LeaderAnalysis::new(graph, &optimal, weights, alpha)),
            finite_time: FiniteTime::of(graph.nodes()),
            pieces: if connected { vec![] } else { components },
        })
    }
}

/// Returns the alpha of the largest connected component, which is the weight of any of its links.
fn alpha_of_largest(mixing: &Mixing, components: &[Vec<usize>]) -> f64 {
    let largest = components.iter().max_by_key(|component| component.len());
    let worker = largest.and_then(|component| component.first()).copied().unwrap_or(0);
    let link = mixing.row(worker).iter().find(|entry| entry.0 != worker);
    link.map_or(0.0, |entry| entry.1)
}

impl Contraction {
    /// Describes averaging of which only rho is known.
    ///
    /// ```
    /// use upwash_topology::Contraction;
    /// assert_eq!(Contraction::from_rho(0.01).mixing_rounds, Some(2));
    /// assert_eq!(Contraction::from_rho(1.0).mixing_rounds, None);
    /// ```
    pub fn from_rho(rho: f64) -> Self {
        Self::new(None, rho, vec![])
    }

    fn new(alpha: Option<f64>, rho: f64, without_positive_diagonal: Vec<usize>) -> Self {
        let mixing_rounds = match rho {
            // An exact average takes one round; rho.ln() would be infinite.
            rho if rho < 1e-12 => Some(1),
            rho if rho < 1.0 - 1e-12 => Some((1e-4f64.ln() / rho.ln()).ceil() as u64),
            _ => None,
        };
        let spectral_gap = (1.0 - rho.sqrt()).max(0.0);
        Self { alpha, rho, spectral_gap, mixing_rounds, without_positive_diagonal }
    }
}

impl MatchaAnalysis {
    fn new(matcha: &Matcha, leaders: Option<LeaderWeights>) -> Self {
        let links = matcha.matchings().iter().zip(matcha.probabilities());
        Self {
            budget: matcha.budget(),
            probabilities: matcha.probabilities().to_vec(),
            lambda2: matcha.lambda2(),
            lambda2_upper_bound: matcha.upper_bound(),
            expected_links: links.fold(0.0, |sum, (links, p)| sum + links.len() as f64 * p),
            contraction: Contraction::new(Some(matcha.alpha()), matcha.rho(), vec![]),
            published_theorem1: Theorem1::of(matcha),
            al_dsgd: leaders.map(|weights| MatchaLeaders::new(matcha, weights)),
        }
    }
}

impl MatchaLeaders {
    /// Sums over all sets of active matchings where that is affordable, otherwise over a sample of rounds.
    fn new(matcha: &Matcha, weights: LeaderWeights) -> Self {
        let nodes = matcha.graph().nodes();
        let uncertain: Vec<usize> = (0..matcha.matchings().len())
            .filter(|&j| (1e-9..1.0 - 1e-9).contains(&matcha.probabilities()[j]))
            .collect();
        let projection = disagreement(nodes);
        let moment = |round: &crate::Round| {
            let graph = Graph::new(nodes, round.links().iter().copied()).expect("links of a simple graph");
            Leaders::new(&graph, round.mixing(), weights).second_moment(&projection)
        };
        // Each set costs about n^3 operations.
        let affordable = 20_000_000_000 / (nodes * nodes * nodes) as u64;
        let exact = uncertain.len() <= 20 && 1 << uncertain.len() <= affordable.min(1024);
        let mut sum = Matrix::zeros(nodes, nodes);
        if exact {
            for set in 0..1u32 << uncertain.len() {
                let chosen = |bit: usize| set >> bit & 1 == 1;
                let mut probability = 1.0;
                let mut active: Vec<usize> =
                    (0..matcha.matchings().len()).filter(|&j| matcha.probabilities()[j] >= 1.0 - 1e-9).collect();
                for (bit, &j) in uncertain.iter().enumerate() {
                    let p = matcha.probabilities()[j];
                    probability *= if chosen(bit) { p } else { 1.0 - p };
                    active.extend(chosen(bit).then_some(j));
                }
                sum += &moment(&Schedule::matcha_round(matcha, active)).scaled(probability);
            }
        } else {
            let schedule = Schedule::matcha(matcha, 0);
            let draws = affordable.clamp(16, 256);
            for index in 0..draws {
                sum += &moment(&schedule.round(index)).scaled(1.0 / draws as f64);
            }
        }
        let most_candidates = matcha.graph().degrees().into_iter().max().unwrap_or(0) + 1;
        Self { rho_random: norm(&sum), exact, w_safe: safe_total_weight(matcha.rho(), most_candidates) }
    }
}

impl RotationAnalysis {
    fn new(graph: &Graph, rotation: &Rotation, leaders: Option<LeaderWeights>) -> Self {
        let schedule = Schedule::fixed(graph, &Weights::Optimal)
            .and_then(|fixed| fixed.rotating(rotation.relabelings(), Order::default()))
            .expect("a rotation of this graph");
        let rho_of_cycle = |weights: LeaderWeights| {
            let copy = |(index, relabeling): (usize, &Vec<usize>)| {
                let graph = graph.relabeled(relabeling).expect("a relabeling of this graph");
                Leaders::new(&graph, schedule.round(index as u64).mixing(), weights)
            };
            let rounds: Vec<Leaders> = rotation.relabelings().iter().enumerate().map(copy).collect();
            Leaders::contraction_of_cycle(&rounds)
        };
        Self {
            relabelings: rotation.relabelings().to_vec(),
            expected_degrees: rotation.expected_degrees().to_vec(),
            degree_variance: rotation.degree_variance(),
            lambda2_mean: rotation.lambda2_mean(),
            rho: rho_of_cycle(LeaderWeights { best: 0.0, degree: 0.0 }),
            rho_random: leaders.map(rho_of_cycle),
        }
    }
}

impl LeaderAnalysis {
    fn new(graph: &Graph, base: &Mixing, weights: LeaderWeights, alpha: f64) -> Self {
        let leaders = Leaders::new(graph, base, weights);
        let rho_random = leaders.contraction_random();
        let worst = leaders.contraction_worst();
        let sound = leaders.mean_shift_random();
        let written = sound.with_steps(&leaders.written_steps());
        let limits = step_limits(rho_random, alpha, weights.total());
        let dpsgd = Matcha::solve(graph, 1.0).expect("a budget of 1 is valid for every graph");
        Self {
            weights,
            rho_random,
            rho_worst: worst.bound,
            rho_worst_exact: worst.exact,
            worst_leaders: worst.leaders,
            rho_worst_found: worst.found,
            w_safe: leaders.safe_total_weight(),
            step_factor: sound.step_factor,
            step_factor_written: written.step_factor,
            effective_workers: sound.effective_workers,
            effective_workers_written: written.effective_workers,
            mean_drift: sound.mean_drift,
            influence: sound.influence,
            published_step_limit: limits.map(|(printed, _)| printed),
            published_step_limit_proved: limits.map(|(_, proved)| proved),
            published_theorem1: Theorem1::of(&dpsgd),
        }
    }
}
