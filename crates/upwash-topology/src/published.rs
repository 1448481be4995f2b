//! The AL-DSGD paper's two theorems, evaluated as printed, and their errors.
//!
//! The module exists for comparison with the correct results ([`Leaders`](crate::Leaders)). Do not rely on any of its
//! numbers.

use crate::Matcha;
use crate::spectrum::norm;

/// Theorem 1 as proved in the paper's appendix B. It gives ranges of alpha, and of omega = 2 w_N = 2 w_T, for which it
/// claims that averaging contracts.
///
/// Its errors:
/// - It also requires ||E[W~ W~']|| < 1, which never holds: W~'s columns sum to 1, so the norm is at least 1. (The
///   condition is not needed either.)
/// - Its k must exceed lambda_max^2 / (2 zeta), where zeta = ||sum p_j (1 - p_j) L_j||. With D-PSGD every p_j is 1,
///   zeta is 0, and no k is large enough: the ranges are empty.
/// - It assumes that |1 - alpha lambda_2| is the largest |1 - alpha lambda|, which holds only for alpha up to 2 /
///   (lambda_2 + lambda_max). The range that it gives can lie above that limit.
/// - It prints lambda_max as the smallest of the graphs' largest eigenvalues.
///
/// ```
/// use upwash_topology::{GraphSpec, Matcha, published::Theorem1};
///
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let matcha = Theorem1::of(&Matcha::solve(&l1, 0.5)?);
/// assert!(matcha.w_best_below < 0.0044); // the paper's experiments use 0.1
/// let dpsgd = Theorem1::of(&Matcha::solve(&l1, 1.0)?);
/// assert_eq!(dpsgd.alpha, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Theorem1 {
    /// lambda_2 of the expected Laplacian.
    pub lambda_min: f64,
    /// The largest eigenvalue of the expected Laplacian.
    pub lambda_max: f64,
    /// ||sum p_j (1 - p_j) L_j||.
    pub zeta: f64,
    /// The proof's k must be larger than this. The ranges below are for the smallest k.
    pub k_above: f64,
    /// The open range of alpha, or `None` if no k is large enough.
    pub alpha: Option<(f64, f64)>,
    /// The upper limit of w_N = w_T for the smallest alpha of the range, or 0 if the range is empty.
    pub w_best_below: f64,
    /// The largest alpha for which the proof holds, a condition that the theorem omits.
    pub alpha_limit: f64,
    /// Whether the whole published range of alpha is within `alpha_limit`.
    pub alpha_within_limit: bool,
}

impl Theorem1 {
    /// Evaluates the theorem for MATCHA on a graph (D-PSGD is budget 1). Relabeled copies have the same eigenvalues, so
    /// dynamic graphs give the same result.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Matcha, published::Theorem1};
    /// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
    /// assert!(Theorem1::of(&Matcha::solve(&ring, 0.5)?).zeta > 0.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(matcha: &Matcha) -> Self {
        let m = matcha.graph().nodes();
        let values = matcha.weighted_laplacian(|p| p).symmetric_eigenvalues();
        let lambda = values.get(1).copied().unwrap_or(0.0).max(0.0);
        let lambda_max = values.last().copied().unwrap_or(0.0);
        let zeta = norm(&matcha.weighted_laplacian(|p| p * (1.0 - p)));
        let exists = zeta > 1e-9 && lambda > 1e-9;
        let k = if exists {
            1f64.max(8.0 * zeta / (lambda * lambda) - 1.0).max(lambda_max * lambda_max / (2.0 * zeta))
        } else {
            f64::INFINITY
        };
        let denominator = (k + 1.0).powi(2) * lambda * lambda + 2.0 * k * k * zeta;
        let alpha = exists.then(|| {
            let low = (k + 1.0).powi(2) * lambda / denominator;
            (low, ((k + 1.0).powi(2) + k) * lambda / denominator)
        });
        let alpha_limit = 2.0 / (lambda + lambda_max);
        Self {
            lambda_min: lambda,
            lambda_max,
            zeta,
            k_above: k,
            alpha,
            w_best_below: alpha.map_or(0.0, |(low, _)| (1.0 - low * lambda) / (4.0 * k * (m as f64).sqrt())),
            alpha_limit,
            alpha_within_limit: alpha.is_some_and(|(_, high)| high <= alpha_limit),
        }
    }
}

/// The constants of Theorem 2.
///
/// The graph and the method determine `rho` (Theorem 1), `alpha`, `omega` and `workers`; the training determines
/// `gamma`, `lambda` and `rounds`. The remaining constants describe the problem, by the paper's Assumption 1.
/// `lipschitz` bounds how fast gradients change (L), `slope` how fast losses change (beta), `noise` the standard
/// deviation of a stochastic gradient (sigma), `heterogeneity` the distance of local gradients from the global gradient
/// (zeta), and `spread` the distance of a worker from its leaders (Delta). `gap` is F(x_1) - F*.
///
/// ```
/// use upwash_topology::published::Theorem2;
/// let theorem = Theorem2 {
///     rho: 0.61, alpha: 2.0 / 7.0, omega: 0.2, workers: 8, gamma: 0.001, lambda: 0.1, rounds: 1e9,
///     lipschitz: 1.0, slope: 1.0, noise: 1.0, heterogeneity: 0.0, spread: 0.5, gap: 1.0,
/// };
/// assert!(theorem.step_is_small_enough());
/// // With a fixed lambda, as in the experiments, the bound stays above 8 lambda beta Delta for any
/// // number of rounds.
/// assert!(theorem.bound() > 8.0 * 0.1 * 1.0 * 0.5);
/// // With the theorem's lambda = sqrt(m/K) it goes to 0.
/// let rate = (8.0 / theorem.rounds).sqrt();
/// let gamma = rate / ((1.0 - theorem.omega) * (1.0 - theorem.alpha)).sqrt();
/// assert!(Theorem2 { lambda: rate, gamma, ..theorem }.bound() < 0.01);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Theorem2 {
    /// The contraction factor.
    pub rho: f64,
    /// The alpha of W = I - alpha L.
    pub alpha: f64,
    /// w_N + w_T.
    pub omega: f64,
    /// m: the number of workers.
    pub workers: usize,
    /// The learning rate.
    pub gamma: f64,
    /// lambda_N + lambda_T, the coefficients of the pull toward the leaders.
    pub lambda: f64,
    /// K: the number of rounds.
    pub rounds: f64,
    /// L: the Lipschitz constant of the gradients.
    pub lipschitz: f64,
    /// beta: the Lipschitz constant of the losses.
    pub slope: f64,
    /// sigma: the standard deviation of a stochastic gradient.
    pub noise: f64,
    /// zeta: the distance of local gradients from the global gradient.
    pub heterogeneity: f64,
    /// Delta: the distance of workers from their leaders.
    pub spread: f64,
    /// F(x_1) - F*.
    pub gap: f64,
}

/// Returns the largest gamma times L that Theorem 2 allows as printed, and the one that its proof uses. `None` if rho
/// is not below 1 or (1 - alpha)(1 - omega) is not positive.
///
/// The statement requires (1 - alpha)(1 - omega) gamma L <= min(1, 1/sqrt(rho) - 1), while the proof "recalls" a
/// quarter of that. Under the printed condition the proof's 1 / (1 - 2 D), D = 6 eta^2 L^2 rho / (1 - sqrt(rho))^2, can
/// be negative, and the proof fails.
///
/// ```
/// use upwash_topology::published::step_limits;
/// let (printed, proved) = step_limits(0.608637, 2.0 / 7.0, 0.2).unwrap();
/// assert!((printed / proved - 4.0).abs() < 1e-9);
/// assert_eq!(step_limits(1.2, 2.0 / 7.0, 0.2), None); // the theorem assumes rho < 1
/// ```
pub fn step_limits(rho: f64, alpha: f64, omega: f64) -> Option<(f64, f64)> {
    let root = 1.0 / rho.sqrt() - 1.0;
    let scale = (1.0 - alpha) * (1.0 - omega);
    (rho < 1.0 && scale > 0.0).then(|| (root.min(1.0) / scale, (root / 4.0).min(1.0) / scale))
}

impl Theorem2 {
    /// Returns eta = (1 - alpha)(1 - omega) gamma, which the paper takes to be the step of the workers' average.
    ///
    /// The paper makes two errors here. The diagonal of I - alpha L is 1 - alpha deg(i), which is 1 - alpha only where
    /// every degree is 1. And W~ does not preserve the average, so the step of the average is not the plain mean of the
    /// workers' steps.
    ///
    /// ```
    /// # use upwash_topology::published::Theorem2;
    /// # let theorem = Theorem2 { rho: 0.5, alpha: 0.5, omega: 0.5, workers: 8, gamma: 0.4, lambda: 0.0,
    /// #     rounds: 1.0, lipschitz: 1.0, slope: 0.0, noise: 0.0, heterogeneity: 0.0, spread: 0.0, gap: 1.0 };
    /// assert_eq!(theorem.eta(), 0.1); // gamma 0.4, alpha and omega 0.5
    /// ```
    pub fn eta(&self) -> f64 {
        (1.0 - self.alpha) * (1.0 - self.omega) * self.gamma
    }

    /// Returns whether gamma satisfies the condition as printed.
    ///
    /// ```
    /// # use upwash_topology::published::Theorem2;
    /// # let theorem = Theorem2 { rho: 0.5, alpha: 0.5, omega: 0.5, workers: 8, gamma: 4.0, lambda: 0.0,
    /// #     rounds: 1.0, lipschitz: 1.0, slope: 0.0, noise: 0.0, heterogeneity: 0.0, spread: 0.0, gap: 1.0 };
    /// assert!(!theorem.step_is_small_enough()); // rho 0.5 allows eta L up to 0.41, gamma 4 makes it 1
    /// ```
    pub fn step_is_small_enough(&self) -> bool {
        let limits = step_limits(self.rho, self.alpha, self.omega);
        limits.is_some_and(|(printed, _)| self.gamma * self.lipschitz <= printed)
    }

    /// Returns the bound on the mean squared gradient over the rounds, as printed. It has three terms: the initial gap,
    /// 8 gap / (eta K); noise and pull, 8 M / eta; and disagreement, the rest.
    ///
    /// The part 8 lambda beta Delta of 8 M / eta does not depend on gamma or K. It vanishes with lambda, which the
    /// theorem sets to sqrt(m/K); the experiments keep lambda at 0.2.
    ///
    /// ```
    /// # use upwash_topology::published::Theorem2;
    /// # let theorem = Theorem2 { rho: 0.25, alpha: 0.5, omega: 0.5, workers: 8, gamma: 0.4, lambda: 0.0,
    /// #     rounds: 100.0, lipschitz: 1.0, slope: 0.0, noise: 0.0, heterogeneity: 0.0, spread: 0.0, gap: 1.0 };
    /// assert!((theorem.bound() - 0.8).abs() < 1e-12); // eta 0.1, K 100, gap 1, no noise: 8 / 10
    /// ```
    pub fn bound(&self) -> f64 {
        let (eta, l, m) = (self.eta(), self.lipschitz, self.workers as f64);
        let (sigma2, delta) = (self.noise * self.noise, self.spread);
        let noise_and_pull = eta * eta * l * sigma2 / (2.0 * m)
            + self.lambda * eta * self.slope * delta
            + self.lambda * eta * eta * l * self.slope * delta
            + self.lambda.powi(2) * eta * eta * l * delta * delta / 2.0;
        let root = self.rho.sqrt();
        let disagreement = 8.0 * eta * eta * l * l * self.rho / (1.0 - root)
            * ((m * sigma2 + (self.lambda * delta).powi(2)) / (m * (1.0 + root))
                + 3.0 * self.heterogeneity.powi(2) / (1.0 - root));
        8.0 * self.gap / (eta * self.rounds) + 8.0 * noise_and_pull / eta + disagreement
    }
}
