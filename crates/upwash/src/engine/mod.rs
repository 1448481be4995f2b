//! Engines: they own the replicas of the workers in this process and compute with them.

mod concurrent;
mod cpu;
mod distances;
mod external;
mod mixing;
mod native;
mod shared;
mod spec;

pub use concurrent::{ConcurrentEngine, ConcurrentWorkers, EngineContext, WorkerSlices};
pub(crate) use cpu::consensus_distance;
pub use cpu::{CpuEngine, Model};
pub use external::{ExternalEngine, ExternalState};
pub use mixing::{MixOptions, RemoteRow, WorkerVectors, exchange};
pub use native::{Instructions, NativeModel, native_engine};
pub use shared::{EngineHost, EngineShare, share};
pub use spec::{EngineSpec, StateRows};

use crate::algorithm::{Outgoing, RowPlan};
use crate::ids::RowIndex;
pub use crate::model::State;
use crate::model::{Layout, Replica};

/// The score of a model on some examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Score {
    /// The mean loss per example.
    pub loss: f64,
    /// The number of examples that were classified correctly.
    pub correct: usize,
    /// The number of examples.
    pub examples: usize,
    /// The number of examples of batches whose gradient was clipped.
    #[serde(default)]
    pub clipped: usize,
}

impl Score {
    /// The fraction of examples that were classified correctly.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.examples.max(1) as f64
    }

    /// Combines the scores on two sets of examples.
    pub fn join(self, other: Self) -> Self {
        let examples = self.examples + other.examples;
        let sum = self.loss * self.examples as f64 + other.loss * other.examples as f64;
        let (correct, clipped) = (self.correct + other.correct, self.clipped + other.clipped);
        Self { loss: sum / examples.max(1) as f64, correct, examples, clipped }
    }
}

/// The examples that a model is scored on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The test set.
    Test,
    /// A worker's own shard of the training set.
    LocalTrain,
}

/// Why an engine operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The device failed or is out of memory.
    #[error("{0}")]
    Device(String),
    /// The workers need more memory than there is.
    #[error("{0}")]
    Memory(String),
    /// A saved state or attached vector does not fit this engine.
    #[error("{0}")]
    Mismatch(String),
    /// This engine does not support the operation.
    #[error("{0}")]
    Unsupported(String),
    /// The thread that owns a shared engine has ended.
    #[error("the thread that owns the shared engine has ended")]
    HostGone,
}

/// Finds the array of this name in a saved state and checks its length.
pub fn saved<'a>(state: &'a State, name: &str, expected: usize) -> Result<&'a [f32], EngineError> {
    let found = state.iter().find(|(saved, _)| saved == name);
    let missing = || EngineError::Mismatch(format!("`{name}` is missing from the saved state"));
    let (_, saved) = found.ok_or_else(missing)?;
    if saved.len() != expected {
        let found = saved.len();
        let what = format!("`{name}` has {found} values in the saved state, not {expected}");
        return Err(EngineError::Mismatch(what));
    }
    Ok(saved)
}

/// A request to compute a worker's next gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientTask {
    /// The index of the worker's batch: in a synchronous algorithm, the round.
    pub batch: u64,
    /// The learning rate.
    pub rate: f64,
}

/// The first message of each worker of an exchange that has not been carried out yet, in this process and in others.
#[derive(Clone, Copy, Debug)]
pub struct MessagesToMeasure<'a> {
    /// The message of each row of the engine.
    pub messages: &'a [Outgoing],
    /// The rows of other processes, whose indices follow.
    pub remote_rows: &'a [RemoteRow],
    /// The options of the exchange.
    pub options: MixOptions,
}

impl MessagesToMeasure<'_> {
    /// The message of a row of another process, or else the message of this engine's row, from `own`.
    fn vector<'v>(&'v self, own: &'v [Vec<f32>], row: RowIndex) -> Result<&'v [f32], EngineError> {
        let remote = |index: usize| self.remote_rows.get(index).and_then(|remote| remote.messages.first());
        match own.get(row.0) {
            Some(vector) => Ok(vector),
            None => remote(row.0 - own.len())
                .map(|buffer| &buffer[..])
                .ok_or_else(|| EngineError::Mismatch(format!("row {} has sent no message to measure", row.0))),
        }
    }
}

/// All replicas of one process: one row for each of its workers.
pub trait Engine {
    /// The number of workers.
    fn workers(&self) -> usize;

    /// The layout of a model's tensors in its flat vector.
    fn layout(&self) -> &Layout;

    /// Computes the gradients of the workers that have a task and turns each into a step u = rate x direction, which is
    /// stored until the worker's next step. Returns the score of each of these models on its batch, before the step.
    fn step(&mut self, tasks: &[Option<GradientTask>]) -> Result<Vec<Option<Score>>, EngineError>;

    /// Carries out an exchange. Plans come in increasing order of their rows. Indices of remote rows start at
    /// [`workers`](Self::workers).
    fn exchange(
        &mut self,
        plans: &[RowPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    ) -> Result<(), EngineError>;

    /// Writes a worker's message as it is sent to another process: its content, or the compressed difference from its
    /// public copy.
    fn write_outgoing(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        options: MixOptions,
        into: &mut [f32],
    ) -> Result<(), EngineError>;

    /// Like [`write_outgoing`](Self::write_outgoing), but returns a new vector.
    fn outgoing(&mut self, row: RowIndex, message: &Outgoing, options: MixOptions) -> Result<Vec<f32>, EngineError> {
        let mut vector = vec![0.0; self.layout().parameter_count()];
        self.write_outgoing(row, message, options, &mut vector)?;
        Ok(vector)
    }

    /// The Euclidean distance between the messages of each pair of rows.
    fn distances(
        &mut self,
        measured: MessagesToMeasure<'_>,
        pairs: &[(RowIndex, RowIndex)],
    ) -> Result<Vec<f64>, EngineError> {
        let rows = measured.messages.iter().enumerate();
        let own = rows.map(|(row, message)| self.outgoing(RowIndex(row), message, measured.options));
        let own: Vec<Vec<f32>> = own.collect::<Result<_, _>>()?;
        let vectors =
            |&(one, other): &(RowIndex, RowIndex)| Ok((measured.vector(&own, one)?, measured.vector(&own, other)?));
        let pairs: Vec<(&[f32], &[f32])> = pairs.iter().map(vectors).collect::<Result<_, EngineError>>()?;
        Ok(distances::distances(&pairs))
    }

    /// For each pair of a local row and any row, the loss of the second one's message, taken as a model, on the batch of
    /// the first one's worker in this round.
    fn message_losses(
        &mut self,
        measured: MessagesToMeasure<'_>,
        pairs: &[(RowIndex, RowIndex)],
    ) -> Result<Vec<f64>, EngineError> {
        let _ = (measured, pairs);
        let what =
            "algorithm.leaders = \"verified\" needs an engine that can score received models: use the CPU engine";
        Err(EngineError::Unsupported(what.into()))
    }

    /// Replaces every worker's running statistics by a weighted sum, with one list of weights per worker. Indices of
    /// remote rows start at [`workers`](Self::workers).
    fn mix_statistics(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), EngineError>;

    /// A worker's running statistics.
    fn statistics(&mut self, row: RowIndex) -> Result<Vec<f32>, EngineError>;

    /// Whether an external training loop owns gradients, optimizer and data, so that this engine cannot score models.
    fn is_external(&self) -> bool {
        false
    }

    /// Scores a worker's model.
    fn score(&mut self, row: RowIndex, split: Split) -> Result<Score, EngineError>;

    /// The average of some workers' models, with batch-norm statistics estimated for it.
    fn average(&mut self, rows: &[RowIndex]) -> Result<Replica, EngineError>;

    /// A replica of `parameters` that belongs to no worker. Its statistics are estimated on the data of the worker in
    /// `row` and of all workers in the same run.
    fn estimated(&mut self, row: RowIndex, parameters: Vec<f32>) -> Result<Replica, EngineError>;

    /// Scores a replica on the test set.
    fn score_replica(&mut self, replica: &Replica) -> Result<Score, EngineError>;

    /// The root mean square distance of some workers' models from their average.
    fn consensus_distance(&mut self, rows: &[RowIndex]) -> Result<f64, EngineError>;

    /// The state that must be saved to resume later: arrays by name.
    fn state(&mut self) -> Result<State, EngineError>;

    /// Restores a state that [`state`](Self::state) returned.
    fn restore(&mut self, state: &State) -> Result<(), EngineError>;

    /// This engine as a [`ConcurrentEngine`], if its workers can run on separate threads.
    fn concurrent(&mut self) -> Option<&mut dyn ConcurrentEngine> {
        None
    }
}
