//! How AL-DSGD shifts the workers' average.

use crate::matrix::dot;
use crate::{Leaders, Matrix};

/// The weight of each worker in the consensus model.
///
/// Leaders with many followers weigh more than other workers. The workers therefore agree on a weighted mean rather
/// than the plain mean, and training minimizes a weighted objective. This bias matters when the workers' data differ.
///
/// ```
/// use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let w = Weights::Optimal.mixing(&l1)?;
/// let none = Leaders::new(&l1, &w, LeaderWeights { best: 0.0, degree: 0.0 }).mean_shift_random();
/// assert!((none.effective_workers - 8.0).abs() < 1e-9); // plain averaging: all weigh the same
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct MeanShift {
    /// The weight of each worker in the consensus model; sums to 1.
    pub influence: Vec<f64>,
    /// The fraction of the workers' steps that reaches the consensus model: the sum of influence times c, where c is 1
    /// for `sound` and `released` and (1 - w) W_ii for `written`.
    pub step_factor: f64,
    /// The number of equally influential workers that would average out as much noise.
    pub effective_workers: f64,
    /// ||A'1 - 1||, as root mean square if losses are random. One round moves the mean of m models by at most 1/m of
    /// this times the norm of their disagreement.
    pub mean_drift: f64,
}

impl Leaders {
    /// Returns the shift of the mean under random losses, for the rules that do not scale the step (`sound` and
    /// `released`).
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let star = "star:8".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Metropolis.mixing(&star)?;
    /// let shift = Leaders::new(&star, &w, LeaderWeights { best: 0.1, degree: 0.1 }).mean_shift_random();
    /// assert!((shift.step_factor - 1.0).abs() < 1e-12);
    /// assert!(shift.influence[0] > shift.influence[1]); // the center weighs more
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mean_shift_random(&self) -> MeanShift {
        let n = self.nodes();
        // E[A'J A] n is E[(A'1)(A'1)'], and E||A'1 - 1||^2 follows from it, because A 1 = 1.
        let ones = Matrix::from_fn(n, n, |_, _| 1.0);
        let sums = self.second_moment(&ones);
        let mean = self.expected_matrix();
        let mean_drift = (sums.trace() - n as f64).max(0.0).sqrt();
        MeanShift::new(influence(&mean, self.components()), &vec![1.0; n], mean_drift)
    }

    /// Returns the shift of the mean under given leaders. `steps` is the fraction of its step that each worker keeps: 1
    /// for `sound` and `released`, [`written_steps`](Self::written_steps) for `written`.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Optimal.mixing(&l1)?;
    /// let leaders = Leaders::new(&l1, &w, LeaderWeights { best: 0.1, degree: 0.1 });
    /// let best = leaders.best_leaders(&[0., 1., 2., 3., 4., 5., 6., 7.]);
    /// let shift = leaders.mean_shift(&best, &leaders.degree_leaders(), &[1.0; 8]);
    /// // Models that start as 0, 1, ..., 7 end at 2.986, not at their mean of 3.5.
    /// let end: f64 = shift.influence.iter().enumerate().map(|(i, share)| i as f64 * share).sum();
    /// assert!((end - 2.985706).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mean_shift(&self, best: &[usize], degree: &[usize], steps: &[f64]) -> MeanShift {
        let a = self.matrix(best, degree);
        let column = |j: usize| a.column(j).iter().sum::<f64>();
        let mean_drift = (0..self.nodes()).map(|j| (column(j) - 1.0).powi(2)).sum::<f64>().sqrt();
        MeanShift::new(influence(&a, self.components()), steps, mean_drift)
    }

    /// Returns the shift of the mean under random losses for the rule `written`, which scales each worker's step by (1
    /// - w) W_ii.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Optimal.mixing(&l1)?;
    /// let leaders = Leaders::new(&l1, &w, LeaderWeights { best: 0.1, degree: 0.1 });
    /// assert!(leaders.mean_shift_random_written().step_factor < 0.1); // hardly any step is left
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mean_shift_random_written(&self) -> MeanShift {
        self.mean_shift_random().with_steps(&self.written_steps())
    }

    /// Returns the fraction of its step that each worker keeps under the rule `written`: (1 - w) W_ii.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, LeaderWeights, Leaders, Weights};
    /// let path = "path:4".parse::<GraphSpec>()?.build()?;
    /// let w = Weights::Optimal.mixing(&path)?; // its inner workers have own weight 0
    /// let leaders = Leaders::new(&path, &w, LeaderWeights { best: 0.1, degree: 0.1 });
    /// assert_eq!(leaders.written_steps(), [0.4, 0.0, 0.0, 0.4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn written_steps(&self) -> Vec<f64> {
        (0..self.nodes()).map(|i| (1.0 - self.weights().total()) * self.base()[(i, i)]).collect()
    }
}

impl MeanShift {
    fn new(influence: Vec<f64>, steps: &[f64], mean_drift: f64) -> Self {
        let parts: Vec<f64> = influence.iter().zip(steps).map(|(share, step)| share * step).collect();
        let step_factor: f64 = parts.iter().sum();
        let squares: f64 = parts.iter().map(|part| part * part).sum();
        let effective_workers = if squares > 0.0 { step_factor * step_factor / squares } else { 0.0 };
        Self { influence, step_factor, effective_workers, mean_drift }
    }

    /// Returns the same shift when worker i keeps the fraction `steps[i]` of its step.
    ///
    /// # Panics
    /// If the number of steps differs from the number of workers.
    ///
    /// ```
    /// # use upwash_topology::{Graph, LeaderWeights, Leaders, Weights};
    /// let pair = Graph::new(2, [(0, 1)])?;
    /// let w = Weights::Optimal.mixing(&pair)?;
    /// let even = Leaders::new(&pair, &w, LeaderWeights { best: 0.0, degree: 0.0 }).mean_shift_random();
    /// assert_eq!(even.with_steps(&[1.0, 0.0]).effective_workers, 1.0); // one of the two learns
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_steps(&self, steps: &[f64]) -> Self {
        assert_eq!(steps.len(), self.influence.len(), "one step per worker");
        Self::new(self.influence.clone(), steps, self.mean_drift)
    }
}

/// Returns the left eigenvector of A for the eigenvalue 1, scaled to sum to 1: the weights of the mean that repeated
/// averaging with a fixed A converges to. Each connected component weighs in proportion to its number of workers.
fn influence(a: &Matrix, components: &[Vec<usize>]) -> Vec<f64> {
    let mut shares = vec![0.0; a.rows()];
    for component in components {
        let size = component.len();
        let block = Matrix::from_fn(size, size, |i, j| a[(component[i], component[j])]);
        for (&worker, share) in component.iter().zip(stationary(&block)) {
            shares[worker] = share * size as f64 / a.rows() as f64;
        }
    }
    shares
}

/// Returns the left eigenvector for the eigenvalue 1, scaled to sum to 1, of a matrix whose rows sum to 1.
fn stationary(a: &Matrix) -> Vec<f64> {
    let n = a.rows();
    // (A' - I + 1 1'/n) pi = 1/n: the last term makes the system regular and pi sum to 1.
    let system = Matrix::from_fn(n, n, |i, j| a[(j, i)] - if i == j { 1.0 } else { 0.0 } + 1.0 / n as f64);
    let found = system.solve(vec![1.0 / n as f64; n]);
    let residual = (0..n).map(|j| (dot(a.column(j), &found) - found[j]).abs()).fold(0.0, f64::max);
    if residual < 1e-9 && (found.iter().sum::<f64>() - 1.0).abs() < 1e-9 {
        return found;
    }
    // The eigenvector is not unique: several groups of workers follow only each other (w near 1). Take the limit that
    // starts from equal shares.
    let half = |i: usize, j: usize| 0.5 * (a[(i, j)] + if i == j { 1.0 } else { 0.0 });
    let mut power = Matrix::from_fn(n, n, half);
    (0..30).for_each(|_| power = &power * &power);
    (0..n).map(|j| power.column(j).iter().sum::<f64>() / n as f64).collect()
}
