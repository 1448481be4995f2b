//! The CPU engine: all replicas in flat buffers, workers in parallel, each on one thread.

use super::concurrent::{ConcurrentEngine, ConcurrentWorkers, EngineContext, WorkerSlices};
use super::mixing::{MixOptions, RemoteRow, exchange, mix_statistics};
use super::spec::{EngineSpec, StateRows};
use super::{Engine, EngineError, GradientTask, MessagesToMeasure, Score, Split, State, saved};
use crate::algorithm::{InitialValue, Outgoing, RowPlan};
use crate::data::Batch;
use crate::ids::RowIndex;
use crate::model::{Layout, Replica};
use rayon::prelude::*;
use std::sync::Arc;

/// A network as the engine sees it: functions of flat vectors. All workers share one value, from several threads.
pub trait Model: Send + Sync {
    /// The model's name in the configuration of a run.
    fn name(&self) -> String {
        let name = std::any::type_name::<Self>();
        let name = name.split('<').next().unwrap_or_default();
        name.rsplit("::").next().unwrap_or_default().to_owned()
    }

    /// The layout of the tensors in its flat vectors.
    fn layout(&self) -> &Layout;

    /// The starting parameters of a worker.
    fn start(&self, seed: u64, worker: u64) -> Vec<f32>;

    /// The starting statistics.
    fn start_statistics(&self) -> Vec<f32>;

    /// Computes the mean loss over a batch and its gradient, in training mode: running statistics move a tenth of the
    /// way to those of the batch.
    fn gradient(&self, parameters: &[f32], statistics: &mut [f32], batch: &Batch, gradient: &mut [f32]) -> Score;

    /// Scores the model with these statistics on a batch.
    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score;

    /// The statistics of one batch, for estimating the statistics of a model anew.
    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32>;
}

/// All replicas of this process, on the CPU.
pub struct CpuEngine {
    shared: EngineContext,
    /// The models: one row per worker, as in the other buffers.
    models: Vec<f32>,
    updates: Vec<f32>,
    statistics: Vec<f32>,
    /// The optimizer's state vectors, by name.
    optimizer_state: Vec<(&'static str, Vec<f32>)>,
    /// The algorithm's state vectors, by name.
    state_vectors: Vec<(String, Vec<f32>)>,
    /// Whether steps are in flight between rounds.
    keeps_updates: bool,
}

impl CpuEngine {
    /// Creates a replica of `model` for each worker of `spec`.
    pub fn new(model: Arc<dyn Model>, spec: &EngineSpec) -> Self {
        let workers = spec.starts.len();
        let width = model.layout().parameter_count();
        let first = |&(seed, worker): &(u64, u64)| model.start(seed, worker);
        let models: Vec<f32> = spec.starts.iter().flat_map(first).collect();
        let optimizer_state = spec.optimizer.state_vectors().into_iter();
        let zeros = |name| (name, vec![0.0; workers * width]);
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
            optimizer_state: optimizer_state.map(zeros).collect(),
            statistics: model.start_statistics().repeat(workers),
            shared: EngineContext {
                optimizer: spec.optimizer.for_layout(model.layout()).unwrap_or_else(|| Arc::clone(&spec.optimizer)),
                clip: spec.clip,
                model,
                data: Arc::clone(&spec.data),
                sampler: spec.sampler.clone(),
                slow: spec.slow.clone(),
            },
        }
    }

    fn row<'a>(&self, buffer: &'a [f32], row: RowIndex) -> &'a [f32] {
        let width = buffer.len() / self.workers();
        &buffer[row.0 * width..][..width]
    }

    fn models_of(&self, rows: &[RowIndex]) -> Vec<&[f32]> {
        let model = |&row: &RowIndex| self.row(&self.models, row);
        rows.iter().map(model).collect()
    }

    /// The arrays that a checkpoint stores. It stores updates only if they are in flight between rounds.
    fn checkpointed(&mut self) -> Vec<(String, &mut Vec<f32>)> {
        let mut arrays = vec![("models".to_string(), &mut self.models)];
        let optimizer_state = self.optimizer_state.iter_mut();
        arrays.extend(optimizer_state.map(|(name, array)| (name.to_string(), array)));
        arrays.push(("statistics".into(), &mut self.statistics));
        if self.keeps_updates {
            arrays.push(("updates".into(), &mut self.updates));
        }
        let state_vectors = self.state_vectors.iter_mut();
        arrays.extend(state_vectors.map(|(name, array)| (name.clone(), array)));
        arrays
    }

    /// The rows of some workers, given in increasing order.
    fn slices_of(&mut self, workers: &[usize]) -> (&EngineContext, Vec<WorkerSlices<'_>>) {
        let all = self.workers();
        let state_vectors = self.state_vectors.iter_mut();
        let mut state_vectors: Vec<_> = state_vectors.map(|(_, array)| rows(array, all, workers).into_iter()).collect();
        let optimizer_state = self.optimizer_state.iter_mut();
        let mut optimizer_state: Vec<_> =
            optimizer_state.map(|(_, array)| rows(array, all, workers).into_iter()).collect();
        let rest = rows(&mut self.statistics, all, workers).into_iter().zip(rows(&mut self.updates, all, workers));
        let next = |arrays: &mut Vec<std::vec::IntoIter<_>>| arrays.iter_mut().filter_map(Iterator::next).collect();
        let slices = |(model, (statistics, update))| WorkerSlices {
            model,
            statistics,
            update,
            optimizer_state: next(&mut optimizer_state),
            state_vectors: next(&mut state_vectors),
        };
        let models = rows(&mut self.models, all, workers).into_iter();
        let slices = models.zip(rest).map(slices).collect();
        (&self.shared, slices)
    }
}

impl Engine for CpuEngine {
    fn workers(&self) -> usize {
        self.shared.sampler.shards().images.len()
    }

    fn layout(&self) -> &Layout {
        self.shared.model.layout()
    }

    fn step(&mut self, tasks: &[Option<GradientTask>]) -> Result<Vec<Option<Score>>, EngineError> {
        let due = tasks.iter().enumerate();
        let due: Vec<(usize, GradientTask)> = due.filter_map(|(i, task)| Some((i, (*task)?))).collect();
        let workers: Vec<usize> = due.iter().map(|(worker, _)| *worker).collect();
        let (shared, slices) = self.slices_of(&workers);
        let found: Vec<Score> = slices
            .into_par_iter()
            .zip(&due)
            .map(|(slices, &(worker, task))| {
                let WorkerSlices { model, statistics, update, mut optimizer_state, .. } = slices;
                let state = &mut optimizer_state;
                shared.gradient(worker, task, model, statistics, update, state)
            })
            .collect();
        let mut scores = vec![None; tasks.len()];
        for (worker, score) in workers.into_iter().zip(found) {
            scores[worker] = Some(score);
        }
        Ok(scores)
    }

    fn exchange(
        &mut self,
        plans: &[RowPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    ) -> Result<(), EngineError> {
        let taking_part: Vec<usize> = plans.iter().map(|plan| plan.row.0).collect();
        let remote = (self.workers()..).zip(&remote_rows);
        let remote = remote.map(|(row, remote)| remote.row_plan(RowIndex(row)));
        let plans: Vec<RowPlan> = plans.iter().cloned().chain(remote).collect();
        let (_, slices) = self.slices_of(&taking_part);
        let rows = slices.into_iter().map(WorkerSlices::into_row).collect();
        exchange(rows, &remote_rows, &plans, options);
        Ok(())
    }

    fn write_outgoing(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        options: MixOptions,
        into: &mut [f32],
    ) -> Result<(), EngineError> {
        let (_, slices) = self.slices_of(&[row.0]);
        for slices in slices {
            let vectors = slices.into_row();
            vectors.write_outgoing(message, &options.draw(row), into);
        }
        Ok(())
    }

    fn message_losses(
        &mut self,
        measured: MessagesToMeasure<'_>,
        pairs: &[(RowIndex, RowIndex)],
    ) -> Result<Vec<f64>, EngineError> {
        let rows = measured.messages.iter().enumerate();
        let own = rows.map(|(row, message)| self.outgoing(RowIndex(row), message, measured.options));
        let own: Vec<Vec<f32>> = own.collect::<Result<_, _>>()?;
        let batch = measured.options.round;
        let loss = |&(receiver, sender): &(RowIndex, RowIndex)| {
            let statistics = self.row(&self.statistics, receiver);
            Ok(self.shared.batch_loss(receiver.0, batch, measured.vector(&own, sender)?, statistics))
        };
        pairs.par_iter().map(loss).collect()
    }

    fn statistics(&mut self, row: RowIndex) -> Result<Vec<f32>, EngineError> {
        Ok(self.row(&self.statistics, row).to_vec())
    }

    fn mix_statistics(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), EngineError> {
        let workers: Vec<usize> = (0..self.workers()).collect();
        let rows = rows(&mut self.statistics, workers.len(), &workers);
        mix_statistics(rows, weights, remote_rows);
        Ok(())
    }

    fn score(&mut self, row: RowIndex, split: Split) -> Result<Score, EngineError> {
        let (model, statistics) = (self.row(&self.models, row), self.row(&self.statistics, row));
        Ok(self.shared.score_split(row.0, split, model, statistics))
    }

    fn average(&mut self, rows: &[RowIndex]) -> Result<Replica, EngineError> {
        let parameters = average(&self.models_of(rows));
        self.estimated(rows[0], parameters)
    }

    fn estimated(&mut self, row: RowIndex, parameters: Vec<f32>) -> Result<Replica, EngineError> {
        let statistics = self.shared.estimate_statistics(row.0, &parameters);
        Ok(Replica { parameters, statistics })
    }

    fn score_replica(&mut self, replica: &Replica) -> Result<Score, EngineError> {
        let Replica { parameters, statistics } = replica;
        Ok(self.shared.score_split(0, Split::Test, parameters, statistics))
    }

    fn state(&mut self) -> Result<State, EngineError> {
        let arrays = self.checkpointed().into_iter();
        Ok(arrays.map(|(name, array)| (name, array.clone())).collect())
    }

    fn restore(&mut self, state: &State) -> Result<(), EngineError> {
        for (name, array) in self.checkpointed() {
            let values = saved(state, &name, array.len())?;
            array.copy_from_slice(values);
        }
        Ok(())
    }

    fn consensus_distance(&mut self, rows: &[RowIndex]) -> Result<f64, EngineError> {
        Ok(consensus_distance(&self.models_of(rows)))
    }

    fn concurrent(&mut self) -> Option<&mut dyn ConcurrentEngine> {
        Some(self)
    }
}

impl ConcurrentEngine for CpuEngine {
    fn split(&mut self) -> ConcurrentWorkers<'_> {
        let all: Vec<usize> = (0..self.workers()).collect();
        let (shared, workers) = self.slices_of(&all);
        ConcurrentWorkers { shared, workers }
    }
}

/// The average of some vectors.
pub(super) fn average(vectors: &[&[f32]]) -> Vec<f32> {
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

/// The chosen ones of a buffer's `count` rows, in increasing order. The rows of an empty buffer are empty.
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
