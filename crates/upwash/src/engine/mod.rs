//! Engines: they own the replicas that live in this process.

mod concurrent;
mod cpu;
mod external;
mod mixing;
mod shared;
mod spec;

pub use concurrent::{ConcurrentEngine, ConcurrentWorkers, EngineContext, WorkerSlices};
pub(crate) use cpu::consensus_distance;
pub use cpu::{CpuEngine, Model};
pub use external::{ExternalEngine, ExternalState};
pub use mixing::{MixOptions, RemoteRow, WorkerVectors, exchange};
pub use shared::{EngineHost, EngineShare, share};
pub use spec::{EngineSpec, StateRows};

use crate::algorithm::{Outgoing, RowPlan};
use crate::ids::RowIndex;
pub use crate::model::State;
use crate::model::{Layout, Replica};

/// How a model did on some examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Score {
    /// Mean loss an example.
    pub loss: f64,
    /// How many examples were classified correctly.
    pub correct: usize,
    /// How many examples there were.
    pub examples: usize,
}

impl Score {
    /// The part that was classified correctly.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.examples.max(1) as f64
    }

    /// Two scores as one.
    pub fn join(self, other: Self) -> Self {
        let examples = self.examples + other.examples;
        let sum = self.loss * self.examples as f64 + other.loss * other.examples as f64;
        Self { loss: sum / examples.max(1) as f64, correct: self.correct + other.correct, examples }
    }
}

/// Which examples a model is scored on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The test set.
    Test,
    /// A worker's own share of the training set.
    LocalTrain,
}

/// Why an engine cannot do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The device that computes has failed, or has no memory left.
    #[error("{0}")]
    Device(String),
    /// A saved state is not this engine's.
    #[error("{0}")]
    Mismatch(String),
    /// This engine cannot do that at all.
    #[error("{0}")]
    Unsupported(String),
    /// The thread that owns a shared engine has ended.
    #[error("the engine that this run shares with others has ended")]
    HostGone,
}

/// The array of this name in a state, if it has the expected length.
pub fn saved<'a>(state: &'a State, name: &str, expected: usize) -> Result<&'a [f32], EngineError> {
    let found = state.iter().find(|(saved, _)| saved == name);
    let missing = || EngineError::Mismatch(format!("`{name}` is missing"));
    let (_, saved) = found.ok_or_else(missing)?;
    if saved.len() != expected {
        let found = saved.len();
        let what = format!("`{name}` has {found} numbers, not {expected}");
        return Err(EngineError::Mismatch(what));
    }
    Ok(saved)
}

/// A worker's next gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientTask {
    /// Which of its batches: in a synchronous algorithm, the round.
    pub batch: u64,
    /// The learning rate.
    pub rate: f64,
}

/// All replicas of one process, a row for each of its workers.
pub trait Engine {
    /// How many there are.
    fn workers(&self) -> usize;

    /// Which tensor of a model is where.
    fn layout(&self) -> &Layout;

    /// Computes the gradients of the workers that have a task, and makes each of them a step u = rate x direction, which
    /// is kept until the worker's next one. Returns how each of their models did on its batch, before the step.
    fn step(&mut self, tasks: &[Option<GradientTask>]) -> Result<Vec<Option<Score>>, EngineError>;

    /// Carries out an exchange between the plans' rows, which come in increasing order, and remote rows, which are
    /// numbered from [`workers`](Self::workers) on.
    fn exchange(
        &mut self,
        plans: &[RowPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    ) -> Result<(), EngineError>;

    /// Writes what a worker's message is on its way to another process: its content, or the compressed
    /// difference from its public copy.
    fn write_outgoing(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        options: MixOptions,
        into: &mut [f32],
    ) -> Result<(), EngineError>;

    /// The same as a vector.
    fn outgoing(&mut self, row: RowIndex, message: &Outgoing, options: MixOptions) -> Result<Vec<f32>, EngineError> {
        let mut vector = vec![0.0; self.layout().parameter_count()];
        self.write_outgoing(row, message, options, &mut vector)?;
        Ok(vector)
    }

    /// Replaces every worker's running statistics by a weighted sum: a list of weights for each worker. Remote rows'
    /// statistics are numbered from [`workers`](Self::workers) on.
    fn mix_statistics(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), EngineError>;

    /// A worker's running statistics.
    fn statistics(&mut self, row: RowIndex) -> Result<Vec<f32>, EngineError>;

    /// Whether gradients, optimizer and data are somebody else's, so that models cannot be scored here.
    fn is_external(&self) -> bool {
        false
    }

    /// How a worker's model does.
    fn score(&mut self, row: RowIndex, split: Split) -> Result<Score, EngineError>;

    /// The average of some workers' models, with batch-norm statistics estimated for it.
    fn average(&mut self, rows: &[RowIndex]) -> Result<Replica, EngineError>;

    /// A model that is no worker's, with statistics estimated for it on the data of `row` and all that are with it.
    fn estimated(&mut self, row: RowIndex, parameters: Vec<f32>) -> Result<Replica, EngineError>;

    /// How a model does on the test set.
    fn score_replica(&mut self, replica: &Replica) -> Result<Score, EngineError>;

    /// The root mean square distance of some workers' models from their average.
    fn consensus_distance(&mut self, rows: &[RowIndex]) -> Result<f64, EngineError>;

    /// All that must be kept for going on later, by name.
    fn state(&mut self) -> Result<State, EngineError>;

    /// Takes back what [`state`](Self::state) gave.
    fn restore(&mut self, state: &State) -> Result<(), EngineError>;

    /// The engine as one whose workers can be on threads of their own, if it is one.
    fn concurrent(&mut self) -> Option<&mut dyn ConcurrentEngine> {
        None
    }
}
