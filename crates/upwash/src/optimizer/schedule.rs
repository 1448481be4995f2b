//! Learning rate schedules.

/// The learning rate of each round.
///
/// ```
/// use upwash::optimizer::LearningRate;
/// let rate = LearningRate { start: 0.4, warmup_epochs: 0.0, decay: upwash::optimizer::Decay::Steps {
///     at: vec![100.0, 150.0], factor: 0.1,
/// } };
/// assert!((rate.at(120.0, 200.0) - 0.04).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRate {
    /// The rate after warm-up.
    pub start: f64,
    /// The number of epochs over which the rate grows from 0 to `start`.
    pub warmup_epochs: f64,
    /// How the rate falls after warm-up.
    pub decay: Decay,
}

/// How a learning rate falls after warm-up.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Decay {
    /// It stays constant.
    Constant,
    /// It is multiplied by `factor` at each epoch in `at`.
    Steps {
        /// The epochs.
        at: Vec<f64>,
        /// The factor.
        factor: f64,
    },
    /// It follows half a cosine and reaches 0 at the last epoch.
    Cosine,
}

impl LearningRate {
    /// The rate after `epoch` (possibly fractional) of `epochs` epochs.
    pub fn at(&self, epoch: f64, epochs: f64) -> f64 {
        if epoch < self.warmup_epochs {
            return self.start * epoch / self.warmup_epochs;
        }
        let factor = match &self.decay {
            Decay::Constant => 1.0,
            Decay::Steps { at, factor } => {
                // Epochs are sums of rounds: tolerate rounding.
                factor.powi(at.iter().filter(|&&step| epoch + 1e-9 >= step).count() as i32)
            }
            Decay::Cosine => {
                let done = (epoch - self.warmup_epochs) / (epochs - self.warmup_epochs).max(1e-9);
                0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos())
            }
        };
        self.start * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_warms_up_and_decays() {
        let rate = |decay, warmup_epochs| LearningRate { start: 1.0, warmup_epochs, decay };
        assert_eq!(rate(Decay::Constant, 0.0).at(7.0, 10.0), 1.0);
        assert_eq!(rate(Decay::Constant, 4.0).at(1.0, 10.0), 0.25);
        let steps = rate(Decay::Steps { at: vec![2.0, 4.0], factor: 0.5 }, 0.0);
        assert_eq!([1.9, 2.0, 3.9, 4.0].map(|e| steps.at(e, 10.0)), [1.0, 0.5, 0.5, 0.25]);
        let cosine = rate(Decay::Cosine, 2.0);
        assert!((cosine.at(6.0, 10.0) - 0.5).abs() < 1e-12);
        assert!(cosine.at(10.0, 10.0).abs() < 1e-12);
    }
}
