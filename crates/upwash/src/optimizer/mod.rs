//! Local optimizers, and learning rates.
//!
//! An [`Optimizer`] turns a worker's gradient into the direction of its step. It sees flat vectors only: its own state
//! vectors are kept, saved and restored by the engine.

mod schedule;
mod sgd;

pub use schedule::{Decay, LearningRate};
pub use sgd::Sgd;

/// What is known about a step beside its vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepContext {
    /// The worker's steps before this one.
    pub index: u64,
    /// The learning rate, by which the engine multiplies the direction.
    pub learning_rate: f64,
}

/// A local optimizer: the worker's model becomes x - rate x direction.
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
    /// Replaces a gradient by the direction of the step, and updates the worker's state vectors, which come in the order
    /// of their names.
    fn direction(&self, context: StepContext, parameters: &[f32], state: &mut [&mut [f32]], gradient: &mut [f32]);

    /// The names, in checkpoints, of the vectors that it keeps for each worker. They are zero at first.
    fn state_vectors(&self) -> Vec<&'static str> {
        vec![]
    }

    /// Its name in the configuration of a run.
    fn name(&self) -> String {
        let name = format!("{self:?}");
        name.split([' ', '{', '(']).next().unwrap_or_default().to_lowercase()
    }

    /// The optimizer as SGD, if it is: engines on a GPU have a kernel for that one.
    fn as_sgd(&self) -> Option<Sgd> {
        None
    }
}
