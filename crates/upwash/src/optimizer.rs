//! Stochastic gradient descent on flat vectors, by PyTorch's conventions, and learning rates.

/// Momentum and weight decay.
///
/// ```
/// use upwash::optimizer::Sgd;
/// let sgd = Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
/// let (mut velocity, mut direction) = ([1.0], [0.5]); // a gradient of 0.5
/// sgd.direct(&[0.0], &mut velocity, &mut direction);
/// assert_eq!(direction, [1.4]); // 0.9 * 1 + 0.5
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// How much of the velocity is kept.
    pub momentum: f64,
    /// Look ahead along the velocity.
    pub nesterov: bool,
    /// What is added of the parameters to their gradient.
    pub weight_decay: f64,
}

impl Sgd {
    /// Turns a gradient into the direction to step along: g + decay x, then v = momentum v + g, then
    /// v, or g + momentum v with Nesterov. The velocity must start as 0.
    pub fn direct(&self, parameters: &[f32], velocity: &mut [f32], gradient: &mut [f32]) {
        let (momentum, decay) = (self.momentum as f32, self.weight_decay as f32);
        if decay != 0.0 {
            gradient
                .iter_mut()
                .zip(parameters)
                .for_each(|(g, x)| *g += decay * x);
        }
        if momentum == 0.0 {
            return;
        }
        for (g, v) in gradient.iter_mut().zip(velocity) {
            *v = momentum * *v + *g;
            *g = if self.nesterov {
                *g + momentum * *v
            } else {
                *v
            };
        }
    }

    /// Whether a velocity has to be kept at all.
    pub fn has_velocity(&self) -> bool {
        self.momentum != 0.0
    }
}

/// The learning rate of each round.
///
/// ```
/// use upwash::optimizer::Rate;
/// let rate = Rate { start: 0.4, warmup_epochs: 0.0, decay: upwash::optimizer::Decay::Steps {
///     at: vec![100.0, 150.0], factor: 0.1,
/// } };
/// assert!((rate.at(120.0, 200.0) - 0.04).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// The rate after warm-up.
    pub start: f64,
    /// It grows from 0 to `start` over so many epochs.
    pub warmup_epochs: f64,
    /// What becomes of it then.
    pub decay: Decay,
}

/// How a learning rate falls.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Decay {
    /// It does not.
    Constant,
    /// It is multiplied by `factor` at each of these epochs.
    Steps {
        /// The epochs.
        at: Vec<f64>,
        /// The factor.
        factor: f64,
    },
    /// Along half a cosine to 0 at the last epoch.
    Cosine,
}

impl Rate {
    /// The rate after `epoch` epochs (with parts) of `epochs` in all.
    pub fn at(&self, epoch: f64, epochs: f64) -> f64 {
        if epoch < self.warmup_epochs {
            return self.start * epoch / self.warmup_epochs;
        }
        let factor = match &self.decay {
            Decay::Constant => 1.0,
            Decay::Steps { at, factor } => {
                // Epochs are sums of rounds: forgive the last bit.
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

    /// torch.optim.SGD's documented steps worked by hand: x = [1, -2], gradients [0.5, 1], [0.25, -0.5].
    #[test]
    fn two_steps_as_pytorch_takes_them() {
        let gradients = [[0.5f32, 1.0], [0.25, -0.5]];
        let run = |sgd: Sgd| {
            let (mut x, mut v) = ([1.0f32, -2.0], [0.0f32; 2]);
            for gradient in gradients {
                let mut direction = gradient;
                sgd.direct(&x, &mut v, &mut direction);
                x.iter_mut().zip(direction).for_each(|(x, d)| *x -= 0.1 * d);
            }
            x
        };
        let close = |found: [f32; 2], known: [f32; 2]| {
            found
                .iter()
                .zip(known)
                .for_each(|(x, y)| assert!((x - y).abs() < 1e-6, "{found:?}"));
        };
        close(run(Sgd::default()), [0.925, -2.05]);
        let momentum = Sgd {
            momentum: 0.9,
            ..Default::default()
        };
        close(run(momentum), [0.88, -2.14]);
        close(
            run(Sgd {
                nesterov: true,
                ..momentum
            }),
            [0.817, -2.176],
        );
        let decay = Sgd {
            weight_decay: 0.01,
            ..momentum
        };
        close(run(decay), [0.877151, -2.134102]);
    }

    #[test]
    fn rates_warm_up_and_fall() {
        let rate = |decay, warmup_epochs| Rate {
            start: 1.0,
            warmup_epochs,
            decay,
        };
        assert_eq!(rate(Decay::Constant, 0.0).at(7.0, 10.0), 1.0);
        assert_eq!(rate(Decay::Constant, 4.0).at(1.0, 10.0), 0.25);
        let steps = rate(
            Decay::Steps {
                at: vec![2.0, 4.0],
                factor: 0.5,
            },
            0.0,
        );
        assert_eq!(
            [1.9, 2.0, 3.9, 4.0].map(|e| steps.at(e, 10.0)),
            [1.0, 0.5, 0.5, 0.25]
        );
        let cosine = rate(Decay::Cosine, 2.0);
        assert!((cosine.at(6.0, 10.0) - 0.5).abs() < 1e-12);
        assert!(cosine.at(10.0, 10.0).abs() < 1e-12);
    }
}
