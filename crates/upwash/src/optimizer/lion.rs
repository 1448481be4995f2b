//! Lion: Chen et al. (2023), "Symbolic Discovery of Optimization Algorithms".

use super::{Optimizer, StepContext, WeightDecay};
use crate::model::Layout;
use std::sync::Arc;

/// Lion: every coordinate moves by the learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    /// The factors of the momentum in the direction, and in the next momentum.
    pub betas: [f64; 2],
    /// The weight decay.
    pub weight_decay: WeightDecay,
}

impl Default for Lion {
    fn default() -> Self {
        Self { betas: [0.9, 0.99], weight_decay: WeightDecay::new(0.0, false) }
    }
}

impl Optimizer for Lion {
    fn state_vectors(&self) -> Vec<&'static str> {
        vec!["velocities"]
    }

    /// The direction is sign(b1 m + (1 - b1) g) + decay x, with sign(0) = 0; then m = b2 m + (1 - b2) g.
    fn direction(&self, _: StepContext, parameters: &[f32], state: &mut [&mut [f32]], gradient: &mut [f32]) {
        let [momentum] = state else { return };
        let [beta1, beta2] = self.betas.map(|beta| beta as f32);
        let [rest1, rest2] = self.betas.map(|beta| (1.0 - beta) as f32);
        for (g, m) in gradient.iter_mut().zip(momentum.iter_mut()) {
            let mixed = beta1 * *m + rest1 * *g;
            *m = beta2 * *m + rest2 * *g;
            *g = if mixed == 0.0 { 0.0 } else { mixed.signum() };
        }
        self.weight_decay.add_to(gradient, parameters);
    }

    fn for_layout(&self, layout: &Layout) -> Option<Arc<dyn Optimizer>> {
        Some(Arc::new(Self { weight_decay: self.weight_decay.for_layout(layout), ..self.clone() }))
    }
}
