//! The CPU engine: every replica in one flat buffer, workers in parallel, each on one thread.

use crate::algorithm::{Assignment, InitialValue, Outgoing, Vector, WorkerPlan};
use crate::data::{Batch, Dataset, Images, Pick, Sampler};
use crate::engine::{Engine, GradientTask, Score, Split, State, saved};
use crate::engine::{EngineSpec, StateRows};
use crate::engine::{MixOptions, RemoteRow, WorkerVectors, exchange};
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
pub struct CpuEngine {
    shared: EngineContext,
    /// A row for each worker in each of these.
    models: Vec<f32>,
    updates: Vec<f32>,
    velocities: Vec<f32>,
    statistics: Vec<f32>,
    /// The algorithm's vectors, by name.
    state_vectors: Vec<(String, Vec<f32>)>,
    /// Whether steps are in flight between rounds.
    keeps_updates: bool,
}

/// What all workers have in common.
pub struct EngineContext {
    model: Arc<dyn Model>,
    data: Arc<Dataset>,
    sampler: Sampler,
    sgd: Sgd,
    /// How many times as long each worker shall take; as long as it takes where there is none.
    slow: Vec<(usize, f64)>,
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
    /// Its optimizer's velocity.
    pub velocity: &'a mut [f32],
}

/// A fleet taken apart, for workers on threads of their own.
pub struct ConcurrentWorkers<'a> {
    /// What all have in common.
    pub shared: &'a EngineContext,
    /// Everyone's rows.
    pub workers: Vec<WorkerSlices<'a>>,
}

impl CpuEngine {
    /// A replica of `model` for each of the spec.
    pub fn new(model: Arc<dyn Model>, spec: &EngineSpec) -> Self {
        let workers = spec.starts.len();
        let width = model.layout().parameter_count();
        let first = |&(seed, worker): &(u64, u64)| model.start(seed, worker);
        let models: Vec<f32> = spec.starts.iter().flat_map(first).collect();
        let velocities = if spec.sgd.has_velocity() {
            workers * width
        } else {
            0
        };
        let state_vector = |state_vector: &StateRows| {
            let mut rows = models.clone();
            for (row, start) in rows.chunks_exact_mut(width).zip(&state_vector.starts) {
                if *start == InitialValue::Zero {
                    row.fill(0.0);
                }
            }
            (state_vector.name.clone(), rows)
        };
        Self {
            state_vectors: spec.state_vectors.iter().map(state_vector).collect(),
            keeps_updates: spec.keeps_updates,
            models,
            updates: vec![0.0; workers * width],
            velocities: vec![0.0; velocities],
            statistics: model.start_statistics().repeat(workers),
            shared: EngineContext {
                model,
                data: Arc::clone(&spec.data),
                sampler: spec.sampler.clone(),
                sgd: spec.sgd,
                slow: spec.slow.clone(),
            },
        }
    }

    fn row<'a>(&self, buffer: &'a [f32], worker: usize) -> &'a [f32] {
        let width = buffer.len() / self.workers();
        &buffer[worker * width..][..width]
    }

    fn models_of(&self, workers: &[usize]) -> Vec<&[f32]> {
        let model = |&worker: &usize| self.row(&self.models, worker);
        workers.iter().map(model).collect()
    }

    /// What the fleet holds and a checkpoint keeps: updates only where they are in flight.
    fn kept(&mut self) -> Vec<(String, &mut Vec<f32>)> {
        let mut kept = vec![
            ("models".to_string(), &mut self.models),
            ("velocities".into(), &mut self.velocities),
            ("statistics".into(), &mut self.statistics),
        ];
        if self.keeps_updates {
            kept.push(("updates".into(), &mut self.updates));
        }
        let state_vectors = self.state_vectors.iter_mut();
        kept.extend(state_vectors.map(|(name, array)| (name.clone(), array)));
        kept
    }

    /// The rows of some workers, who come in increasing order.
    fn lanes_of(&mut self, workers: &[usize]) -> (&EngineContext, Vec<WorkerSlices<'_>>) {
        let all = self.workers();
        let mut state_vectors: Vec<_> = self
            .state_vectors
            .iter_mut()
            .map(|(_, array)| rows(array, all, workers).into_iter())
            .collect();
        let rest = rows(&mut self.statistics, all, workers)
            .into_iter()
            .zip(rows(&mut self.updates, all, workers))
            .zip(rows(&mut self.velocities, all, workers));
        let lane = |(model, ((statistics, update), velocity))| WorkerSlices {
            model,
            statistics,
            update,
            velocity,
            state_vectors: state_vectors
                .iter_mut()
                .filter_map(Iterator::next)
                .collect(),
        };
        let models = rows(&mut self.models, all, workers).into_iter();
        let lanes = models.zip(rest).map(lane).collect();
        (&self.shared, lanes)
    }
}

impl EngineContext {
    /// A worker's gradient at `parameters` on one of its batches, made into its step.
    pub fn gradient(
        &self,
        worker: usize,
        turn: GradientTask,
        parameters: &[f32],
        statistics: &mut [f32],
        update: &mut [f32],
        velocity: &mut [f32],
    ) -> Score {
        let began = std::time::Instant::now();
        let batch = self.sampler.batch(&self.data, worker, turn.batch);
        let score = self.model.gradient(parameters, statistics, &batch, update);
        self.sgd.direct(parameters, velocity, update);
        let rate = turn.rate as f32;
        update.iter_mut().for_each(|u| *u *= rate);
        if let Some((_, factor)) = self.slow.iter().find(|(slow, _)| *slow == worker) {
            std::thread::sleep(began.elapsed().mul_f64((factor - 1.0).max(0.0)));
        }
        score
    }

    /// Scores a model on some images, in parallel over pieces of fixed size. A piece becomes numbers
    /// where it is scored: a whole test set as numbers can be larger than all models.
    fn score(
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

    /// How a model does on the test set, or on a worker's own share.
    pub fn score_part(
        &self,
        worker: usize,
        part: Split,
        parameters: &[f32],
        statistics: &[f32],
    ) -> Score {
        match part {
            Split::Test => {
                let all: Vec<u32> = (0..self.data.test.len() as u32).collect();
                self.score(parameters, statistics, &self.data.test, &all)
            }
            Split::LocalTrain => {
                let share = &self.sampler.shares().images[worker];
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
        let estimates: Vec<Vec<f32>> = (0..batches)
            .into_par_iter()
            .map(|k| self.model.batch_statistics(parameters, &batch(k)))
            .collect();
        for (index, value) in statistics.iter_mut().enumerate() {
            let sum: f64 = estimates
                .iter()
                .map(|estimate| f64::from(estimate[index]))
                .sum();
            *value = (sum / batches as f64) as f32;
        }
        statistics
    }
}

impl Engine for CpuEngine {
    fn workers(&self) -> usize {
        self.shared.sampler.shares().images.len()
    }

    fn layout(&self) -> &Layout {
        self.shared.model.layout()
    }

    fn step(&mut self, turns: &[Option<GradientTask>]) -> Vec<Option<Score>> {
        let due = turns.iter().enumerate();
        let due: Vec<(usize, GradientTask)> =
            due.filter_map(|(i, turn)| Some((i, (*turn)?))).collect();
        let workers: Vec<usize> = due.iter().map(|(worker, _)| *worker).collect();
        let (shared, lanes) = self.lanes_of(&workers);
        let found: Vec<Score> = lanes
            .into_par_iter()
            .zip(&due)
            .map(|(lane, &(worker, turn))| {
                let WorkerSlices {
                    model,
                    statistics,
                    update,
                    velocity,
                    ..
                } = lane;
                shared.gradient(worker, turn, model, statistics, update, velocity)
            })
            .collect();
        let mut scores = vec![None; turns.len()];
        for (worker, score) in workers.into_iter().zip(found) {
            scores[worker] = Some(score);
        }
        scores
    }

    fn exchange_with(
        &mut self,
        parts: &[WorkerPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    ) {
        let (all, workers): (_, Vec<usize>) = (
            self.workers(),
            parts.iter().map(|part| part.worker).collect(),
        );
        let (_, lanes) = self.lanes_of(&workers);
        let rows = lanes.into_iter().map(WorkerSlices::into_row).collect();
        let mut parts = parts.to_vec();
        parts.extend(
            (all..)
                .zip(&remote_rows)
                .map(|(row, remote)| remote.part(row)),
        );
        exchange(rows, &remote_rows, &parts, options);
    }

    fn write_outgoing(
        &mut self,
        worker: usize,
        message: &Outgoing,
        options: MixOptions,
        into: &mut [f32],
    ) {
        let (_, lanes) = self.lanes_of(&[worker]);
        for lane in lanes {
            let row = lane.into_row();
            row.write_outgoing(message, &options.draw(worker), into);
        }
    }

    fn statistics(&mut self, worker: usize) -> Vec<f32> {
        self.row(&self.statistics, worker).to_vec()
    }

    fn mix_statistics(&mut self, weights: &[Vec<(usize, f64)>], remote_rows: Vec<Vec<f32>>) {
        let workers: Vec<usize> = (0..self.workers()).collect();
        let statistics = rows(&mut self.statistics, workers.len(), &workers);
        let row = |model| WorkerVectors {
            model,
            step: &[],
            state_vectors: vec![],
        };
        let part = |(worker, messages): (usize, &Vec<(usize, f64)>)| WorkerPlan {
            worker,
            messages: vec![Outgoing::model()],
            plan: Assignment::mixed(Vector::Model, messages.clone()).into(),
        };
        let remote = |statistics: Vec<f32>| RemoteRow {
            messages: vec![statistics.into()],
        };
        let remote_rows: Vec<RemoteRow> = remote_rows.into_iter().map(remote).collect();
        let mut parts: Vec<_> = weights.iter().enumerate().map(part).collect();
        let heard = (workers.len()..).zip(&remote_rows);
        parts.extend(heard.map(|(row, remote)| remote.part(row)));
        let rows = statistics.into_iter().map(row).collect();
        exchange(rows, &remote_rows, &parts, MixOptions::default());
    }

    fn score(&mut self, worker: usize, part: Split) -> Score {
        let (model, statistics) = (
            self.row(&self.models, worker),
            self.row(&self.statistics, worker),
        );
        self.shared.score_part(worker, part, model, statistics)
    }

    fn average(&mut self, workers: &[usize]) -> Replica {
        let parameters = average(&self.models_of(workers));
        self.estimated(workers[0], parameters)
    }

    fn estimated(&mut self, worker: usize, parameters: Vec<f32>) -> Replica {
        let statistics = self.shared.estimate_statistics(worker, &parameters);
        Replica {
            parameters,
            statistics,
        }
    }

    fn score_replica(&mut self, replica: &Replica) -> Score {
        let Replica {
            parameters,
            statistics,
        } = replica;
        self.shared
            .score_part(0, Split::Test, parameters, statistics)
    }

    fn state(&mut self) -> State {
        let kept = self.kept().into_iter();
        kept.map(|(name, array)| (name, array.clone())).collect()
    }

    fn restore(&mut self, state: &State) -> Result<(), String> {
        for (name, array) in self.kept() {
            let numbers = saved(state, &name, array.len())?;
            array.copy_from_slice(numbers);
        }
        Ok(())
    }

    fn consensus_distance(&self, workers: &[usize]) -> f64 {
        consensus_distance(&self.models_of(workers))
    }

    fn lanes(&mut self) -> Option<ConcurrentWorkers<'_>> {
        let everyone: Vec<usize> = (0..self.workers()).collect();
        let (shared, workers) = self.lanes_of(&everyone);
        Some(ConcurrentWorkers { shared, workers })
    }
}

impl<'a> WorkerSlices<'a> {
    fn into_row(self) -> WorkerVectors<'a> {
        WorkerVectors {
            model: self.model,
            step: self.update,
            state_vectors: self.state_vectors,
        }
    }
}

/// The average of some vectors.
fn average(vectors: &[&[f32]]) -> Vec<f32> {
    let width = vectors.first().map_or(0, |vector| vector.len());
    let mut sums = vec![0.0f64; width];
    for vector in vectors {
        let pairs = sums.iter_mut().zip(*vector);
        pairs.for_each(|(sum, &x)| *sum += f64::from(x));
    }
    let count = vectors.len() as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// The root mean square distance of some vectors from their average.
pub(crate) fn consensus_distance(vectors: &[&[f32]]) -> f64 {
    let average = average(vectors);
    let squared = |vector: &&[f32]| -> f64 {
        let pairs = vector.iter().zip(&average);
        pairs.map(|(x, mean)| f64::from(x - mean).powi(2)).sum()
    };
    let total: f64 = vectors.iter().map(squared).sum();
    (total / vectors.len() as f64).sqrt()
}

/// Some of a buffer's `count` rows, in increasing order; the rows of an empty buffer are empty.
fn rows<'a>(mut buffer: &'a mut [f32], count: usize, chosen: &[usize]) -> Vec<&'a mut [f32]> {
    let width = buffer.len() / count;
    let mut passed = 0;
    let row = |&row: &usize| {
        let rest = std::mem::take(&mut buffer);
        let (_, rest) = rest.split_at_mut((row - passed) * width);
        let (found, rest) = rest.split_at_mut(width);
        (buffer, passed) = (rest, row + 1);
        found
    };
    chosen.iter().map(row).collect()
}
