//! AdamW: Loshchilov and Hutter (2019), "Decoupled Weight Decay Regularization", with PyTorch's conventions.

use super::{Optimizer, StepContext, WeightDecay};
use crate::model::Layout;
use std::sync::Arc;

/// AdamW.
///
/// ```
/// use upwash::optimizer::{AdamW, Optimizer, StepContext};
/// let (mut first, mut second, mut direction) = ([0.0], [0.0], [0.5]); // a gradient of 0.5
/// let mut state = [&mut first[..], &mut second[..]];
/// AdamW::default().direction(StepContext::default(), &[0.0], &mut state, &mut direction);
/// assert!((direction[0] - 1.0).abs() < 1e-6); // the first step has the size of the learning rate
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// The factors of the running means of gradients and of their squares.
    pub betas: [f64; 2],
    /// What is added to the root of the mean square.
    pub epsilon: f64,
    /// The weight decay.
    pub weight_decay: WeightDecay,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: WeightDecay::new(0.01, false) }
    }
}

impl AdamW {
    /// Replaces gradients by directions without decay. `index` is the number of earlier steps.
    pub(super) fn adapt(&self, index: u64, first: &mut [f32], second: &mut [f32], gradient: &mut [f32]) {
        let steps = i32::try_from(index).unwrap_or(i32::MAX).saturating_add(1);
        let [unbias, unbias_square] = self.betas.map(|beta| 1.0 / (1.0 - beta.powi(steps)));
        let [beta1, beta2] = self.betas.map(|beta| beta as f32);
        let [rest1, rest2] = self.betas.map(|beta| (1.0 - beta) as f32);
        let (unbias, unbias_root, epsilon) = (unbias as f32, unbias_square.sqrt() as f32, self.epsilon as f32);
        for ((g, m), v) in gradient.iter_mut().zip(first).zip(second) {
            *m = beta1 * *m + rest1 * *g;
            *v = beta2 * *v + rest2 * *g * *g;
            *g = unbias * *m / (unbias_root * v.sqrt() + epsilon);
        }
    }
}

impl Optimizer for AdamW {
    fn state_vectors(&self) -> Vec<&'static str> {
        vec!["first_moments", "second_moments"]
    }

    /// m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2, both divided by what they would be if all gradients were 1. The
    /// direction is m / (sqrt(v) + epsilon) + decay x.
    fn direction(&self, context: StepContext, parameters: &[f32], state: &mut [&mut [f32]], gradient: &mut [f32]) {
        let [first, second] = state else { return };
        self.adapt(context.index, first, second, gradient);
        self.weight_decay.add_to(gradient, parameters);
    }

    fn for_layout(&self, layout: &Layout) -> Option<Arc<dyn Optimizer>> {
        Some(Arc::new(Self { weight_decay: self.weight_decay.for_layout(layout), ..self.clone() }))
    }
}
