//! The CPU engine: every replica in one flat buffer, workers in parallel, each on one thread.

use crate::algorithm::{Message, Plan};
use crate::data::{Batch, Dataset, Images, Pick, Sampler};
use crate::engine::{ESTIMATION_BATCHES, Engine, Part, Score, State, saved};
use crate::mix::mix;
use crate::model::{Layout, Replica};
use crate::optimizer::Sgd;
use rayon::prelude::*;
use std::sync::Arc;

/// A network as the fleet sees it: functions of flat vectors. One value serves all workers, from
/// several threads.
pub trait Model: Send + Sync {
    /// Which tensor is where in its vectors.
    fn layout(&self) -> &Layout;

    /// Starting parameters of a worker.
    fn start(&self, seed: u64, worker: u64) -> Vec<f32>;

    /// Starting statistics.
    fn start_statistics(&self) -> Vec<f32>;

    /// The mean loss over a batch and its gradient, in training mode: statistics move a tenth of
    /// the way to the batch's.
    fn gradient(
        &self,
        parameters: &[f32],
        statistics: &mut [f32],
        batch: &Batch,
        gradient: &mut [f32],
    ) -> Score;

    /// How a model with these statistics does on a batch.
    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score;

    /// The batch's own statistics, for estimating a model's anew.
    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32>;
}

/// Images that a model is scored on at a time.
const SCORED_AT_ONCE: usize = 256;

/// All replicas of this process, on the CPU.
pub struct Fleet {
    model: Arc<dyn Model>,
    data: Arc<Dataset>,
    sampler: Sampler,
    sgd: Sgd,
    /// A row for each worker in each of these.
    models: Vec<f32>,
    updates: Vec<f32>,
    velocities: Vec<f32>,
    statistics: Vec<f32>,
}

/// Where workers start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Each from its own random weights, as the paper's Algorithm 1 says.
    #[default]
    Different,
    /// All from the same.
    Equal,
}

impl Fleet {
    /// A replica of `model` for each of the sampler's workers.
    pub fn new(
        model: Arc<dyn Model>,
        data: Arc<Dataset>,
        sampler: Sampler,
        sgd: Sgd,
        start: Start,
        seed: u64,
    ) -> Self {
        let workers = sampler.shares().images.len();
        let width = model.layout().parameter_count();
        let statistics = model.start_statistics();
        let first = |worker: u64| match start {
            Start::Different => model.start(seed, worker),
            Start::Equal => model.start(seed, 0),
        };
        Self {
            models: (0..workers as u64).flat_map(first).collect(),
            updates: vec![0.0; workers * width],
            velocities: vec![
                0.0;
                if sgd.has_velocity() {
                    workers * width
                } else {
                    0
                }
            ],
            statistics: statistics.repeat(workers),
            model,
            data,
            sampler,
            sgd,
        }
    }

    fn width(&self) -> usize {
        self.model.layout().parameter_count()
    }

    fn row<'a>(&self, buffer: &'a [f32], worker: usize) -> &'a [f32] {
        let width = buffer.len() / self.workers();
        &buffer[worker * width..][..width]
    }

    fn average_parameters(&self) -> Vec<f32> {
        let (workers, width) = (self.workers(), self.width());
        let mut average = vec![0.0f64; width];
        for row in self.models.chunks_exact(width) {
            average
                .iter_mut()
                .zip(row)
                .for_each(|(sum, &x)| *sum += f64::from(x));
        }
        average
            .into_iter()
            .map(|sum| (sum / workers as f64) as f32)
            .collect()
    }

    /// Scores a model on some images, in parallel over pieces of fixed size. A piece becomes numbers
    /// where it is scored: a whole test set as numbers can be larger than all models.
    fn score_model(
        &self,
        parameters: &[f32],
        statistics: &[f32],
        images: &Images,
        indices: &[u32],
    ) -> Score {
        let piece = |part: &[u32]| {
            let picks = part.iter().map(|&image| Pick::whole(image));
            let batch = self.data.scaling.batch(images, picks);
            self.model.score(parameters, statistics, &batch)
        };
        let scores: Vec<Score> = indices.par_chunks(SCORED_AT_ONCE).map(piece).collect();
        scores.into_iter().fold(Score::default(), Score::join)
    }

    /// The mean over some batches out of all workers' images.
    fn estimate_statistics(&self, parameters: &[f32]) -> Vec<f32> {
        let mut statistics = self.model.start_statistics();
        if statistics.is_empty() {
            return statistics;
        }
        let batch = |k: usize| {
            let picks = self.sampler.mixed_picks(self.data.augmentation, k as u64);
            self.data.scaling.batch(&self.data.train, picks.into_iter())
        };
        let estimates: Vec<Vec<f32>> = (0..ESTIMATION_BATCHES)
            .into_par_iter()
            .map(|k| self.model.batch_statistics(parameters, &batch(k)))
            .collect();
        for (index, value) in statistics.iter_mut().enumerate() {
            let sum: f64 = estimates
                .iter()
                .map(|estimate| f64::from(estimate[index]))
                .sum();
            *value = (sum / ESTIMATION_BATCHES as f64) as f32;
        }
        statistics
    }

    fn score_on_test(&self, parameters: &[f32], statistics: &[f32]) -> Score {
        let all: Vec<u32> = (0..self.data.test.len() as u32).collect();
        self.score_model(parameters, statistics, &self.data.test, &all)
    }
}

impl Engine for Fleet {
    fn workers(&self) -> usize {
        self.sampler.shares().images.len()
    }

    fn layout(&self) -> &Layout {
        self.model.layout()
    }

    fn step(&mut self, round: u64, rate: f64) -> Vec<Score> {
        let (width, workers) = (self.width(), self.workers());
        let held = self.model.layout().statistic_count();
        let Self {
            model,
            data,
            sampler,
            sgd,
            models,
            updates,
            velocities,
            statistics,
        } = self;
        // Rows of no width would end the walk at once: give every worker an (empty) row of its own.
        let mut velocity_rows: Vec<&mut [f32]> =
            rows(velocities, velocities_width(*sgd, width), workers);
        let mut statistic_rows: Vec<&mut [f32]> = rows(statistics, held, workers);
        updates
            .par_chunks_exact_mut(width)
            .zip(models.par_chunks_exact(width))
            .zip(velocity_rows.par_iter_mut())
            .zip(statistic_rows.par_iter_mut())
            .enumerate()
            .map(|(worker, (((update, parameters), velocity), statistics))| {
                let batch = sampler.batch(data, worker, round);
                let score = model.gradient(parameters, statistics, &batch, update);
                sgd.direct(parameters, velocity, update);
                update.iter_mut().for_each(|u| *u *= rate as f32);
                score
            })
            .collect()
    }

    fn mix(&mut self, message: Message, plans: &[Plan]) {
        let width = self.width();
        mix(&mut self.models, &self.updates, width, message, plans);
    }

    fn mix_statistics(&mut self, plans: &[Plan]) {
        let width = self.model.layout().statistic_count();
        mix(&mut self.statistics, &[], width, Message::Model, plans);
    }

    fn score(&mut self, worker: usize, part: Part) -> Score {
        let (model, statistics) = (
            self.row(&self.models, worker),
            self.row(&self.statistics, worker),
        );
        match part {
            Part::Test => self.score_on_test(model, statistics),
            Part::Share => {
                let share = &self.sampler.shares().images[worker];
                self.score_model(model, statistics, &self.data.train, share)
            }
        }
    }

    fn average(&mut self) -> Replica {
        let parameters = self.average_parameters();
        let statistics = self.estimate_statistics(&parameters);
        Replica {
            parameters,
            statistics,
        }
    }

    fn score_replica(&mut self, replica: &Replica) -> Score {
        self.score_on_test(&replica.parameters, &replica.statistics)
    }

    fn state(&self) -> State {
        // Updates are made anew in every round.
        let named = |(name, array): (&str, &Vec<f32>)| (name.into(), array.clone());
        [
            ("models", &self.models),
            ("velocities", &self.velocities),
            ("statistics", &self.statistics),
        ]
        .map(named)
        .to_vec()
    }

    fn restore(&mut self, state: &State) -> Result<(), String> {
        for (name, array) in [
            ("models", &mut self.models),
            ("velocities", &mut self.velocities),
            ("statistics", &mut self.statistics),
        ] {
            let numbers = saved(state, name, array.len())?;
            array.copy_from_slice(numbers);
        }
        Ok(())
    }

    fn consensus_distance(&self) -> f64 {
        let average = self.average_parameters();
        let squared = |row: &[f32]| -> f64 {
            row.iter()
                .zip(&average)
                .map(|(x, mean)| f64::from(x - mean).powi(2))
                .sum()
        };
        let total: f64 = self.models.chunks_exact(self.width()).map(squared).sum();
        (total / self.workers() as f64).sqrt()
    }
}

fn velocities_width(sgd: Sgd, width: usize) -> usize {
    if sgd.has_velocity() { width } else { 0 }
}

/// `count` rows of a buffer, which may be empty ones.
fn rows(buffer: &mut [f32], width: usize, count: usize) -> Vec<&mut [f32]> {
    if width == 0 {
        return (0..count).map(|_| Default::default()).collect();
    }
    buffer.chunks_exact_mut(width).collect()
}
