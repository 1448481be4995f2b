//! Workers that run on threads of their own: what each needs for its gradients, and which rows are its own.

use super::mixing::WorkerVectors;
use super::{Engine, GradientTask, Model, Score, Split};
use crate::data::{Dataset, Images, Pick, Sampler};
use crate::optimizer::{Optimizer, StepContext};
use rayon::prelude::*;
use std::sync::Arc;

/// Examples that a model is scored on at a time.
const SCORED_AT_ONCE: usize = 256;

/// An engine whose workers can be on threads of their own.
pub trait ConcurrentEngine: Engine {
    /// Every worker's vectors for itself.
    fn split(&mut self) -> ConcurrentWorkers<'_>;
}

/// What all workers have in common.
pub struct EngineContext {
    pub(super) model: Arc<dyn Model>,
    pub(super) data: Arc<Dataset>,
    pub(super) sampler: Sampler,
    pub(super) optimizer: Arc<dyn Optimizer>,
    /// How many times as long each worker shall take; as long as it takes where there is none.
    pub(super) slow: Vec<(usize, f64)>,
}

/// One worker's rows.
pub struct WorkerSlices<'a> {
    /// Its model.
    pub model: &'a mut [f32],
    /// Its running statistics.
    pub statistics: &'a mut [f32],
    /// The algorithm's vectors.
    pub state_vectors: Vec<&'a mut [f32]>,
    /// Its step.
    pub update: &'a mut [f32],
    /// Its optimizer's state vectors.
    pub optimizer_state: Vec<&'a mut [f32]>,
}

/// An engine taken apart, for workers on threads of their own.
pub struct ConcurrentWorkers<'a> {
    /// What all have in common.
    pub shared: &'a EngineContext,
    /// Everyone's rows.
    pub workers: Vec<WorkerSlices<'a>>,
}

impl EngineContext {
    /// The names of the optimizer's state vectors.
    pub(crate) fn optimizer_state_names(&self) -> Vec<&'static str> {
        self.optimizer.state_vectors()
    }

    /// A worker's gradient at `parameters` on one of its batches, made into its step.
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
        let score = self.model.gradient(parameters, statistics, &batch, update);
        let context = StepContext { index: task.batch, learning_rate: task.rate };
        self.optimizer.direction(context, parameters, optimizer_state, update);
        let rate = task.rate as f32;
        update.iter_mut().for_each(|u| *u *= rate);
        if let Some((_, factor)) = self.slow.iter().find(|(slow, _)| *slow == worker) {
            std::thread::sleep(began.elapsed().mul_f64((factor - 1.0).max(0.0)));
        }
        score
    }

    /// Scores a model on some images, in parallel over pieces of fixed size. A piece becomes numbers
    /// where it is scored: a whole test set as numbers can be larger than all models.
    fn score(&self, parameters: &[f32], statistics: &[f32], images: &Images, indices: &[u32]) -> Score {
        let piece = |part: &[u32]| {
            let picks = part.iter().map(|&image| Pick::whole(image));
            let batch = self.data.scaling.batch(images, picks);
            self.model.score(parameters, statistics, &batch)
        };
        let scores: Vec<Score> = indices.par_chunks(SCORED_AT_ONCE).map(piece).collect();
        scores.into_iter().fold(Score::default(), Score::join)
    }

    /// How a model does on the test set, or on a worker's own share.
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

    /// The mean over [some batches](Sampler::estimation_batches) out of the images of this worker and all
    /// who are with it.
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
