//! Local optimizers and learning rates.
//!
//! An [`Optimizer`] turns a worker's gradient into the direction of its step. It sees flat vectors only. The engine
//! stores, saves and restores its state vectors.

mod adamw;
mod lion;
mod muon;
mod schedule;
mod sgd;
mod weight_decay;

pub use adamw::AdamW;
pub use lion::Lion;
pub use muon::Muon;
pub use schedule::{Decay, LearningRate};
pub use sgd::Sgd;
pub use weight_decay::WeightDecay;

use crate::model::Layout;
use std::sync::Arc;

/// The context of a step, apart from its vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepContext {
    /// The number of steps that the worker took before this one.
    pub index: u64,
    /// The learning rate. The engine multiplies the direction by it.
    pub learning_rate: f64,
}

/// A local optimizer. The worker's model x becomes x - rate x direction.
///
/// ```
/// use upwash::optimizer::{Optimizer, StepContext};
///
/// /// Every coordinate moves by the learning rate.
/// #[derive(Debug)]
/// struct SignSgd;
///
/// impl Optimizer for SignSgd {
///     fn direction(&self, _: StepContext, _: &[f32], _: &mut [&mut [f32]], gradient: &mut [f32]) {
///         gradient.iter_mut().for_each(|g| *g = g.signum());
///     }
/// }
/// ```
pub trait Optimizer: std::fmt::Debug + Send + Sync {
    /// Replaces the gradient by the direction of the step and updates the worker's state vectors, which come in the
    /// order of [`state_vectors`](Self::state_vectors).
    fn direction(&self, context: StepContext, parameters: &[f32], state: &mut [&mut [f32]], gradient: &mut [f32]);

    /// The names, in checkpoints, of each worker's state vectors. They start at zero.
    fn state_vectors(&self) -> Vec<&'static str> {
        vec![]
    }

    /// The same optimizer for a model with this layout, if it treats tensors differently. Engines ask for it before the
    /// first step.
    fn for_layout(&self, layout: &Layout) -> Option<Arc<dyn Optimizer>> {
        let _ = layout;
        None
    }

    /// The optimizer's name in the configuration of a run.
    fn name(&self) -> String {
        let name = format!("{self:?}");
        name.split([' ', '{', '(']).next().unwrap_or_default().to_lowercase()
    }

    /// This optimizer as [`Sgd`], if it is one. GPU engines have a kernel for it.
    fn as_sgd(&self) -> Option<Sgd> {
        None
    }
}

/// Shortens a gradient to a norm, as PyTorch's `clip_grad_norm_` does. Returns whether it was longer.
///
/// ```
/// let mut gradient = [3.0, 4.0];
/// assert!(upwash::optimizer::clip(&mut gradient, 1.0));
/// assert!((gradient[0] - 0.6).abs() < 1e-6);
/// ```
pub fn clip(gradient: &mut [f32], norm: f64) -> bool {
    let squares: f64 = gradient.iter().map(|g| f64::from(*g).powi(2)).sum();
    let factor = norm / (squares.sqrt() + 1e-6);
    if factor < 1.0 {
        gradient.iter_mut().for_each(|g| *g *= factor as f32);
    }
    factor < 1.0
}
