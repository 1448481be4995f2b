//! Engines: they own the replicas that live in this process.

use crate::algorithm::{Message, Plan};
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
pub enum Part {
    /// The test set.
    Test,
    /// A worker's own share of the training set.
    Share,
}

/// What an engine must keep for going on later: arrays by name.
pub type State = Vec<(String, Vec<f32>)>;

/// Batches over which an averaged model's statistics are estimated.
pub const ESTIMATION_BATCHES: usize = 16;

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

/// All replicas of one process.
pub trait Engine {
    /// How many there are.
    fn workers(&self) -> usize;

    /// Everyone's gradient on the round's batch, made into a step u = rate x direction that is kept
    /// for mixing. Says how each model did on its batch, before the step.
    fn step(&mut self, round: u64, rate: f64) -> Vec<Score>;

    /// X' = A X - C U.
    fn mix(&mut self, message: Message, plans: &[Plan]);

    /// The same for running statistics, which have no updates: the plans' messages alone count.
    fn mix_statistics(&mut self, plans: &[Plan]);

    /// How a worker's model does.
    fn score(&mut self, worker: usize, part: Part) -> Score;

    /// The average of all models, with batch-normalisation statistics estimated anew for it.
    fn average(&mut self) -> Replica;

    /// How a model does on the test set.
    fn score_replica(&mut self, replica: &Replica) -> Score;

    /// The root mean square distance of the models from their average.
    fn consensus_distance(&self) -> f64;

    /// Which tensor of a model is where.
    fn layout(&self) -> &Layout;

    /// All that must be kept for going on later, by name.
    fn state(&self) -> State;

    /// Takes back what [`state`](Self::state) gave; says what does not fit.
    fn restore(&mut self, state: &State) -> Result<(), String>;
}
