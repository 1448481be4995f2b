//! Engines: they own the replicas that live in this process.

mod cpu;
mod mixing;
mod shared;
mod spec;

pub(crate) use cpu::consensus_distance;
pub use cpu::{ConcurrentWorkers, CpuEngine, EngineContext, Model, WorkerSlices};
pub use mixing::{MixOptions, RemoteRow, WorkerVectors, exchange};
pub use shared::{EngineHost, EngineShare, share};
pub use spec::{EngineSpec, StateRows};

use crate::algorithm;
use crate::model::{Layout, Replica};

/// How a model did on some images.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Score {
    /// Mean loss an image.
    pub loss: f64,
    /// How many images were classified correctly.
    pub correct: usize,
    /// How many images there were.
    pub images: usize,
}

impl Score {
    /// The part that was classified correctly.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.images.max(1) as f64
    }

    /// Two scores as one.
    pub fn join(self, other: Self) -> Self {
        let images = self.images + other.images;
        let sum = self.loss * self.images as f64 + other.loss * other.images as f64;
        Self {
            loss: sum / images.max(1) as f64,
            correct: self.correct + other.correct,
            images,
        }
    }
}

/// Which images a model is scored on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The test set.
    Test,
    /// A worker's own share of the training set.
    LocalTrain,
}

/// What an engine must keep for going on later: arrays by name.
pub type State = Vec<(String, Vec<f32>)>;

/// The array of this name in a state, if it has the expected length; says what does not fit.
pub fn saved<'a>(state: &'a State, name: &str, expected: usize) -> Result<&'a [f32], String> {
    let found = state.iter().find(|(saved, _)| saved == name);
    let (_, saved) = found.ok_or_else(|| format!("`{name}` is missing"))?;
    if saved.len() != expected {
        let found = saved.len();
        return Err(format!("`{name}` has {found} numbers, not {expected}"));
    }
    Ok(saved)
}

/// A worker's next gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientTask {
    /// Which of its batches: in step, the round.
    pub batch: u64,
    /// The learning rate.
    pub rate: f64,
}

/// All replicas of one process.
pub trait Engine {
    /// How many there are.
    fn workers(&self) -> usize;

    /// The gradients of those who have a turn, each made into a step u = rate x direction that is kept
    /// until the worker's next one. Says how each of their models did on its batch, before the step.
    fn step(&mut self, turns: &[Option<GradientTask>]) -> Vec<Option<Score>>;

    /// Carries out an exchange between the parts' workers, who come in increasing order, and remote_rows, who
    /// have the numbers behind all workers.
    fn exchange_with(
        &mut self,
        parts: &[algorithm::WorkerPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    );

    /// The same without remote_rows.
    fn exchange(&mut self, parts: &[algorithm::WorkerPlan], options: MixOptions) {
        self.exchange_with(parts, vec![], options);
    }

    /// Writes what a worker's message is on its way to another process: its content, or the compressed
    /// difference from its public copy.
    fn write_outgoing(
        &mut self,
        worker: usize,
        message: &algorithm::Outgoing,
        options: MixOptions,
        into: &mut [f32],
    );

    /// The same as a vector.
    fn outgoing(
        &mut self,
        worker: usize,
        message: &algorithm::Outgoing,
        options: MixOptions,
    ) -> Vec<f32> {
        let mut vector = vec![0.0; self.layout().parameter_count()];
        self.write_outgoing(worker, message, options, &mut vector);
        vector
    }

    /// Everyone's running statistics become this weighted sum of others': a row for each worker. Remote rows'
    /// statistics have the numbers behind all workers.
    fn mix_statistics(&mut self, rows: &[Vec<(usize, f64)>], remote_rows: Vec<Vec<f32>>);

    /// A worker's running statistics.
    fn statistics(&mut self, worker: usize) -> Vec<f32>;

    /// How a worker's model does.
    fn score(&mut self, worker: usize, part: Split) -> Score;

    /// The average of some workers' models, with batch-normalisation statistics estimated anew for it.
    fn average(&mut self, workers: &[usize]) -> Replica;

    /// A model that is no worker's, with statistics estimated for it on the images of `worker` and all
    /// who are with it.
    fn estimated(&mut self, worker: usize, parameters: Vec<f32>) -> Replica;

    /// How a model does on the test set.
    fn score_replica(&mut self, replica: &Replica) -> Score;

    /// The root mean square distance of some workers' models from their average.
    fn consensus_distance(&self, workers: &[usize]) -> f64;

    /// Everyone's vectors for itself, where workers can be run on threads of their own.
    fn lanes(&mut self) -> Option<ConcurrentWorkers<'_>> {
        None
    }

    /// Which tensor of a model is where.
    fn layout(&self) -> &Layout;

    /// All that must be kept for going on later, by name.
    fn state(&mut self) -> State;

    /// Takes back what [`state`](Self::state) gave; says what does not fit.
    fn restore(&mut self, state: &State) -> Result<(), String>;
}
