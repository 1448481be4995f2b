//! Workers' vectors that several threads use, each behind a lock.

use super::super::{Progress, Snapshot};
use crate::engine::{ConcurrentWorkers, EngineContext, Score, Split, WorkerSlices, consensus_distance};
use std::sync::{Mutex, MutexGuard};

/// A worker's vectors and numbers, all as of the same step.
pub(super) struct WorkerState<'a> {
    pub(super) model: &'a mut [f32],
    pub(super) statistics: &'a mut [f32],
    pub(super) optimizer_state: Vec<&'a mut [f32]>,
    /// The algorithm's scalar.
    pub(super) scalar: f64,
    /// Its clock, and until when it is sending and receiving: simulated seconds.
    pub(super) clock: f64,
    pub(super) ports: [f64; 2],
}

/// The workers of this process.
pub(super) struct SharedState<'a> {
    pub(super) context: &'a EngineContext,
    /// The first of them; the others follow.
    first: usize,
    rows: Vec<Mutex<WorkerState<'a>>>,
}

/// Copies of what a gradient changes beside the step. They become the worker's together with the step.
#[derive(Clone)]
pub(super) struct LocalState {
    pub(super) statistics: Vec<f32>,
    pub(super) optimizer_state: Vec<Vec<f32>>,
}

/// Vectors as an optimizer takes them.
pub(super) fn slices(vectors: &mut [Vec<f32>]) -> Vec<&mut [f32]> {
    vectors.iter_mut().map(|vector| &mut vector[..]).collect()
}

impl WorkerState<'_> {
    pub(super) fn local(&self) -> LocalState {
        LocalState {
            statistics: self.statistics.to_vec(),
            optimizer_state: self.optimizer_state.iter().map(|v| v.to_vec()).collect(),
        }
    }

    pub(super) fn keep(&mut self, local: &LocalState) {
        self.statistics.copy_from_slice(&local.statistics);
        for (own, new) in self.optimizer_state.iter_mut().zip(&local.optimizer_state) {
            own.copy_from_slice(new);
        }
    }
}

impl<'a> SharedState<'a> {
    /// The workers from `first` on, and where each takes its steps.
    pub(super) fn new(workers: ConcurrentWorkers<'a>, first: usize, progress: &Progress) -> (Self, Vec<&'a mut [f32]>) {
        let (mut rows, mut updates) = (Vec::new(), Vec::new());
        for (worker, slices) in (first..).zip(workers.workers) {
            let WorkerSlices { model, statistics, update, optimizer_state, .. } = slices;
            let ports = progress.asynchronous.as_ref().map(|state| state.ports[worker]);
            rows.push(Mutex::new(WorkerState {
                model,
                statistics,
                optimizer_state,
                scalar: progress.scalars[worker],
                clock: progress.clocks[worker],
                ports: ports.unwrap_or_default(),
            }));
            // Steps that were in flight when a run was stopped are computed anew.
            updates.push(update);
        }
        let context = workers.shared;
        let state = Self { context, first, rows };
        (state, updates)
    }

    /// A worker of this process, locked.
    pub(super) fn lock(&self, worker: usize) -> MutexGuard<'_, WorkerState<'a>> {
        lock(&self.rows[worker - self.first])
    }

    fn row(&self, worker: usize) -> Option<usize> {
        let row = worker.checked_sub(self.first);
        row.filter(|&row| row < self.rows.len())
    }

    /// A copy of a worker's model and statistics, if it is here.
    fn copy(&self, worker: usize) -> Option<(usize, Vec<f32>, Vec<f32>)> {
        let row = self.row(worker)?;
        let state = lock(&self.rows[row]);
        Some((row, state.model.to_vec(), state.statistics.to_vec()))
    }

    pub(super) fn score(&self, worker: usize, split: Split) -> Option<Score> {
        let (row, model, statistics) = self.copy(worker)?;
        Some(self.context.score_split(row, split, &model, &statistics))
    }

    pub(super) fn score_estimated(&self, worker: usize) -> Option<Score> {
        let (row, model, _) = self.copy(worker)?;
        let statistics = self.context.estimate_statistics(row, &model);
        Some(self.context.score_split(row, Split::Test, &model, &statistics))
    }

    pub(super) fn consensus_distance(&self, workers: &[usize]) -> f64 {
        let copies = workers.iter().filter_map(|&worker| self.copy(worker));
        let models: Vec<Vec<f32>> = copies.map(|(_, model, _)| model).collect();
        let models: Vec<&[f32]> = models.iter().map(Vec::as_slice).collect();
        consensus_distance(&models)
    }

    /// All workers as of one moment: nobody mixes while they are copied. `complete` is called while they are locked.
    pub(super) fn snapshot(
        &self,
        progress: &Progress,
        complete: impl FnOnce(&mut Progress, &[MutexGuard<'_, WorkerState<'a>>]),
    ) -> Snapshot {
        let rows: Vec<_> = self.rows.iter().map(lock).collect();
        let mut progress = progress.clone();
        for (worker, row) in (self.first..).zip(&rows) {
            progress.scalars[worker] = row.scalar;
            progress.clocks[worker] = row.clock;
        }
        complete(&mut progress, &rows);
        let models: Vec<f32> = rows.iter().flat_map(|row| row.model.to_vec()).collect();
        let statistics = rows.iter().flat_map(|row| row.statistics.to_vec());
        let mut state = vec![
            ("updates".to_string(), vec![0.0; models.len()]),
            ("models".into(), models),
            ("statistics".into(), statistics.collect()),
        ];
        for (index, name) in self.context.optimizer_state_names().into_iter().enumerate() {
            let vectors = rows.iter().flat_map(|row| row.optimizer_state[index].to_vec());
            state.push((name.into(), vectors.collect()));
        }
        (progress, state)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked has stopped all others: what is left is to get to the end.
    mutex.lock().unwrap_or_else(|error| error.into_inner())
}
