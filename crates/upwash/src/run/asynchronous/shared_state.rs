//! Vectors of workers that several threads share, with a lock for each worker.

use super::super::{Progress, Snapshot};
use crate::engine::{ConcurrentWorkers, EngineContext, Score, Split, WorkerSlices, consensus_distance};
use crate::ids::{RowIndex, WorkerId};
use crate::transport::Placement;
use std::sync::{Mutex, MutexGuard};

/// A worker's vectors and scalars, all as of the same step.
pub(super) struct WorkerState<'a> {
    pub(super) model: &'a mut [f32],
    pub(super) statistics: &'a mut [f32],
    pub(super) optimizer_state: Vec<&'a mut [f32]>,
    /// The algorithm's scalar.
    pub(super) scalar: f64,
    /// The worker's clock, and the times until which it is busy sending and receiving, in simulated seconds.
    pub(super) clock: f64,
    pub(super) ports: [f64; 2],
}

/// The workers of this process.
pub(super) struct SharedState<'a> {
    pub(super) context: &'a EngineContext,
    placement: Placement,
    rows: Vec<Mutex<WorkerState<'a>>>,
}

/// Copies of what a gradient changes besides the step. They are stored together with the step.
#[derive(Clone)]
pub(super) struct LocalState {
    pub(super) statistics: Vec<f32>,
    pub(super) optimizer_state: Vec<Vec<f32>>,
}

/// Borrows vectors in the form that an optimizer takes.
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

    pub(super) fn store_local(&mut self, local: &LocalState) {
        self.statistics.copy_from_slice(&local.statistics);
        for (own, new) in self.optimizer_state.iter_mut().zip(&local.optimizer_state) {
            own.copy_from_slice(new);
        }
    }
}

impl<'a> SharedState<'a> {
    /// Creates the state of the workers of this process. Also returns the buffer for each worker's step.
    pub(super) fn new(
        workers: ConcurrentWorkers<'a>,
        placement: Placement,
        progress: &Progress,
    ) -> (Self, Vec<&'a mut [f32]>) {
        let (mut rows, mut updates) = (Vec::new(), Vec::new());
        for (worker, slices) in placement.own().zip(workers.workers) {
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
            // Steps that were in progress when a run was stopped are computed again.
            updates.push(update);
        }
        let context = workers.shared;
        let state = Self { context, placement, rows };
        (state, updates)
    }

    /// The row of a worker of this process.
    pub(super) fn row_of(&self, worker: WorkerId) -> RowIndex {
        self.placement.row_of(worker).expect("only workers of this process are locked")
    }

    /// Locks a worker of this process.
    pub(super) fn lock(&self, worker: WorkerId) -> MutexGuard<'_, WorkerState<'a>> {
        lock(&self.rows[self.row_of(worker)])
    }

    /// The row of a worker, and copies of its model and statistics, if it is in this process.
    fn copy(&self, worker: WorkerId) -> Option<(usize, Vec<f32>, Vec<f32>)> {
        let row = self.placement.row_of(worker)?;
        let state = lock(&self.rows[row]);
        Some((row.0, state.model.to_vec(), state.statistics.to_vec()))
    }

    pub(super) fn score(&self, worker: WorkerId, split: Split) -> Option<Score> {
        let (row, model, statistics) = self.copy(worker)?;
        Some(self.context.score_split(row, split, &model, &statistics))
    }

    pub(super) fn score_estimated(&self, worker: WorkerId) -> Option<Score> {
        let (row, model, _) = self.copy(worker)?;
        let statistics = self.context.estimate_statistics(row, &model);
        Some(self.context.score_split(row, Split::Test, &model, &statistics))
    }

    pub(super) fn consensus_distance(&self, workers: &[WorkerId]) -> f64 {
        let copies = workers.iter().filter_map(|&worker| self.copy(worker));
        let models: Vec<Vec<f32>> = copies.map(|(_, model, _)| model).collect();
        let models: Vec<&[f32]> = models.iter().map(Vec::as_slice).collect();
        consensus_distance(&models)
    }

    /// A consistent snapshot of all workers: none can mix while it is taken. Calls `complete` while all are locked.
    pub(super) fn snapshot(
        &self,
        progress: &Progress,
        complete: impl FnOnce(&mut Progress, &[MutexGuard<'_, WorkerState<'a>>]),
    ) -> Snapshot {
        let rows: Vec<_> = self.rows.iter().map(lock).collect();
        let mut progress = progress.clone();
        for (worker, row) in self.placement.with_workers(&rows) {
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
    // A thread that panicked has stopped all others. They only have to reach their end.
    mutex.lock().unwrap_or_else(|error| error.into_inner())
}
