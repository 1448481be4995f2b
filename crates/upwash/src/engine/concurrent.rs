//! Workers on separate threads: what each needs to compute gradients, and its rows of the engine.

use super::mixing::WorkerVectors;
use super::{Engine, GradientTask, Model, Score, Split};
use crate::data::{Dataset, Images, Pick, Sampler};
use crate::optimizer::{Optimizer, StepContext, clip};
use rayon::prelude::*;
use std::sync::Arc;

/// The number of examples that a model is scored on at a time.
const SCORE_BATCH: usize = 256;

/// An engine whose workers can run on separate threads.
pub trait ConcurrentEngine: Engine {
    /// Splits the engine into the vectors of each worker.
    fn split(&mut self) -> ConcurrentWorkers<'_>;
}

/// What all workers of an engine share.
pub struct EngineContext {
    pub(super) model: Arc<dyn Model>,
    pub(super) data: Arc<Dataset>,
    pub(super) sampler: Sampler,
    pub(super) optimizer: Arc<dyn Optimizer>,
    /// The largest norm of a gradient, if gradients are clipped.
    pub(super) clip: Option<f64>,
    /// Workers that are slowed down, each with its factor.
    pub(super) slow: Vec<(usize, f64)>,
}

/// The rows of one worker.
pub struct WorkerSlices<'a> {
    /// Its model.
    pub model: &'a mut [f32],
    /// Its running statistics.
    pub statistics: &'a mut [f32],
    /// The algorithm's state vectors.
    pub state_vectors: Vec<&'a mut [f32]>,
    /// Its step.
    pub update: &'a mut [f32],
    /// Its optimizer's state vectors.
    pub optimizer_state: Vec<&'a mut [f32]>,
}

/// An engine split into its workers, for separate threads.
pub struct ConcurrentWorkers<'a> {
    /// What all workers share.
    pub shared: &'a EngineContext,
    /// The rows of each worker.
    pub workers: Vec<WorkerSlices<'a>>,
}

impl EngineContext {
    /// The names of the optimizer's state vectors.
    pub(crate) fn optimizer_state_names(&self) -> Vec<&'static str> {
        self.optimizer.state_vectors()
    }

    /// Computes a worker's gradient at `parameters` on one of its batches and turns it into the worker's step.
    pub fn gradient(
        &self,
        worker: usize,
        task: GradientTask,
        parameters: &[f32],
        statistics: &mut [f32],
        update: &mut [f32],
        optimizer_state: &mut [&mut [f32]],
    ) -> Score {
        let began = std::time::Instant::now();
        let batch = self.sampler.batch(&self.data, worker, task.batch);
        let mut score = self.model.gradient(parameters, statistics, &batch, update);
        if let Some(norm) = self.clip
            && clip(update, norm)
        {
            score.clipped = score.examples;
        }
        let context = StepContext { index: task.batch, learning_rate: task.rate };
        self.optimizer.direction(context, parameters, optimizer_state, update);
        let rate = task.rate as f32;
        update.iter_mut().for_each(|u| *u *= rate);
        if let Some((_, factor)) = self.slow.iter().find(|(slow, _)| *slow == worker) {
            std::thread::sleep(began.elapsed().mul_f64((factor - 1.0).max(0.0)));
        }
        score
    }

    /// The loss of a model on one of a worker's batches. Infinite if it is not a number.
    pub(super) fn batch_loss(&self, worker: usize, batch: u64, parameters: &[f32], statistics: &[f32]) -> f64 {
        let batch = self.sampler.batch(&self.data, worker, batch);
        let loss = self.model.score(parameters, statistics, &batch).loss;
        if loss.is_nan() { f64::INFINITY } else { loss }
    }

    /// Scores a model on some images, in parallel over batches of fixed size. Images are converted to floats batch by
    /// batch: a whole test set of floats can be larger than all models.
    fn score(&self, parameters: &[f32], statistics: &[f32], images: &Images, indices: &[u32]) -> Score {
        let score = |indices: &[u32]| {
            let picks = indices.iter().map(|&image| Pick::whole(image));
            let batch = self.data.scaling.batch(images, picks);
            self.model.score(parameters, statistics, &batch)
        };
        let scores: Vec<Score> = indices.par_chunks(SCORE_BATCH).map(score).collect();
        scores.into_iter().fold(Score::default(), Score::join)
    }

    /// Scores a model on the test set or on a worker's own shard.
    pub fn score_split(&self, worker: usize, split: Split, parameters: &[f32], statistics: &[f32]) -> Score {
        match split {
            Split::Test => {
                let all: Vec<u32> = (0..self.data.test.len() as u32).collect();
                self.score(parameters, statistics, &self.data.test, &all)
            }
            Split::LocalTrain => {
                let share = &self.sampler.shards().images[worker];
                self.score(parameters, statistics, &self.data.train, share)
            }
        }
    }

    /// Estimates the statistics of a model: the mean over [some batches](Sampler::estimation_batches) of the images of
    /// this worker and of all workers in the same run.
    pub(crate) fn estimate_statistics(&self, worker: usize, parameters: &[f32]) -> Vec<f32> {
        let mut statistics = self.model.start_statistics();
        if statistics.is_empty() {
            return statistics;
        }
        let batch = |k: usize| {
            let augmentation = self.data.augmentation;
            let picks = self.sampler.mixed_picks(worker, augmentation, k as u64);
            self.data.scaling.batch(&self.data.train, picks.into_iter())
        };
        let batches = self.sampler.estimation_batches();
        let estimates: Vec<Vec<f32>> =
            (0..batches).into_par_iter().map(|k| self.model.batch_statistics(parameters, &batch(k))).collect();
        for (index, value) in statistics.iter_mut().enumerate() {
            let sum: f64 = estimates.iter().map(|estimate| f64::from(estimate[index])).sum();
            *value = (sum / batches as f64) as f32;
        }
        statistics
    }
}

impl<'a> WorkerSlices<'a> {
    pub(super) fn into_row(self) -> WorkerVectors<'a> {
        WorkerVectors { model: self.model, step: self.update, state_vectors: self.state_vectors }
    }
}
