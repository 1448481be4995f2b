//! Stochastic gradient descent with momentum, with PyTorch's conventions.

use super::{Optimizer, StepContext};

/// SGD with momentum and weight decay.
///
/// ```
/// use upwash::optimizer::{Optimizer, Sgd, StepContext};
/// let sgd = Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
/// let (mut velocity, mut direction) = ([1.0], [0.5]); // a gradient of 0.5
/// sgd.direction(StepContext::default(), &[0.0], &mut [&mut velocity], &mut direction);
/// assert_eq!(direction, [1.4]); // 0.9 * 1 + 0.5
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// The factor that the velocity is multiplied by in every step.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// The factor times the parameters that is added to their gradient.
    pub weight_decay: f64,
}

impl Optimizer for Sgd {
    fn state_vectors(&self) -> Vec<&'static str> {
        match self.momentum == 0.0 {
            true => vec![],
            false => vec!["velocities"],
        }
    }

    /// g = g + decay x, then v = momentum v + g. The direction is v, or g + momentum v with Nesterov.
    fn direction(&self, _: StepContext, parameters: &[f32], state: &mut [&mut [f32]], gradient: &mut [f32]) {
        let (momentum, decay) = (self.momentum as f32, self.weight_decay as f32);
        if decay != 0.0 {
            let pairs = gradient.iter_mut().zip(parameters);
            pairs.for_each(|(g, x)| *g += decay * x);
        }
        let [velocity] = state else { return };
        for (g, v) in gradient.iter_mut().zip(velocity.iter_mut()) {
            *v = momentum * *v + *g;
            *g = match self.nesterov {
                true => *g + momentum * *v,
                false => *v,
            };
        }
    }

    fn as_sgd(&self) -> Option<Sgd> {
        Some(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documented steps of torch.optim.SGD, worked by hand: x = [1, -2], gradients [0.5, 1], [0.25, -0.5].
    #[test]
    fn two_steps_match_pytorch() {
        let gradients = [[0.5f32, 1.0], [0.25, -0.5]];
        let run = |sgd: Sgd| {
            let (mut x, mut v) = ([1.0f32, -2.0], [0.0f32; 2]);
            for gradient in gradients {
                let mut direction = gradient;
                let mut state = [&mut v[..]];
                let state = &mut state[..sgd.state_vectors().len()];
                sgd.direction(StepContext::default(), &x, state, &mut direction);
                x.iter_mut().zip(direction).for_each(|(x, d)| *x -= 0.1 * d);
            }
            x
        };
        let close = |found: [f32; 2], known: [f32; 2]| {
            found.iter().zip(known).for_each(|(x, y)| assert!((x - y).abs() < 1e-6, "{found:?}"));
        };
        close(run(Sgd::default()), [0.925, -2.05]);
        let momentum = Sgd { momentum: 0.9, ..Default::default() };
        close(run(momentum), [0.88, -2.14]);
        close(run(Sgd { nesterov: true, ..momentum }), [0.817, -2.176]);
        let decay = Sgd { weight_decay: 0.01, ..momentum };
        close(run(decay), [0.877151, -2.134102]);
    }
}
