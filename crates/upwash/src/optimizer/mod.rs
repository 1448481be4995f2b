//! Local optimizers and learning rates.
//!
//! An [`Optimizer`] turns a worker's gradient into the direction of its step. It sees flat vectors only. The engine
//! stores, saves and restores its state vectors.

mod schedule;
mod sgd;

pub use schedule::{Decay, LearningRate};
pub use sgd::Sgd;

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
