//! Which worker is in which process.

use crate::ids::{RowIndex, WorkerId};
use std::ops::Range;

/// The workers of each process: blocks of consecutive ids, whose sizes differ by at most one.
///
/// ```
/// use upwash::{RowIndex, WorkerId, transport::Placement};
/// let second = Placement::new(8, 3, 1); // eight workers in three processes; this is the second
/// assert_eq!(second.own_range(), 2..5);
/// assert_eq!(second.process_of(WorkerId(7)), 2);
/// assert_eq!(second.row_of(WorkerId(4)), Some(RowIndex(2)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    workers: usize,
    processes: usize,
    this: usize,
}

impl Placement {
    /// Places `workers` in `processes`, as seen from process `this`.
    ///
    /// # Panics
    /// If there are more processes than workers, or if `this` is not one of the processes.
    pub fn new(workers: usize, processes: usize, this: usize) -> Self {
        assert!(processes <= workers && this < processes, "every process needs a worker, and `this` must be a process");
        Self { workers, processes, this }
    }

    /// The total number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The number of processes.
    pub fn processes(&self) -> usize {
        self.processes
    }

    /// The index of this process.
    pub fn this(&self) -> usize {
        self.this
    }

    /// Whether all workers are in this process. What follows from it has names of its own.
    fn is_whole(&self) -> bool {
        self.processes == 1
    }

    /// Whether there are other processes to exchange messages with.
    pub fn has_others(&self) -> bool {
        !self.is_whole()
    }

    /// Whether the engine of this process has the rows of all workers. It can then average and compare all models, and
    /// its checkpoints are complete without those of other processes.
    pub fn has_all_rows(&self) -> bool {
        self.is_whole()
    }

    /// Whether traffic and time are simulated, because nothing is really sent.
    pub fn simulates_costs(&self) -> bool {
        self.is_whole()
    }

    /// Whether this process alone decides when a run pauses, and when it writes checkpoints. Several processes must write
    /// theirs in the same rounds.
    pub fn decides_alone(&self) -> bool {
        self.is_whole()
    }

    /// The subdirectory of this process in a run directory that several processes share.
    pub fn subdirectory(&self) -> Option<String> {
        (!self.is_whole()).then(|| format!("rank-{}", self.this))
    }

    /// The numbers of a process's workers, as a range of lists with an entry for each worker.
    pub fn range_of(&self, process: usize) -> Range<usize> {
        let first = |process: usize| process * self.workers / self.processes;
        first(process)..first(process + 1)
    }

    /// The workers of a process.
    pub fn workers_of(
        &self,
        process: usize,
    ) -> impl DoubleEndedIterator<Item = WorkerId> + ExactSizeIterator + Clone + use<> {
        self.range_of(process).map(WorkerId)
    }

    /// The numbers of this process's workers, as a range of lists with an entry for each worker.
    pub fn own_range(&self) -> Range<usize> {
        self.range_of(self.this)
    }

    /// The workers of this process, in the order of their rows.
    pub fn own(&self) -> impl DoubleEndedIterator<Item = WorkerId> + ExactSizeIterator + Clone + use<> {
        self.workers_of(self.this)
    }

    /// The process of a worker.
    pub fn process_of(&self, worker: WorkerId) -> usize {
        // The last process whose first worker does not come after this one.
        let guess = worker.0 * self.processes / self.workers;
        let begins = |process: &usize| self.range_of(*process).start <= worker.0;
        (guess..self.processes).take_while(begins).last().unwrap_or(guess)
    }

    /// The row of a worker in this process's engine; `None` if the worker is in another process.
    pub fn row_of(&self, worker: WorkerId) -> Option<RowIndex> {
        let own = self.own_range();
        own.contains(&worker.0).then(|| RowIndex(worker.0 - own.start))
    }

    /// The worker of a row of this process's engine.
    pub fn worker_at(&self, row: RowIndex) -> WorkerId {
        WorkerId(self.own_range().start + row.0)
    }

    /// The entries of a list with one for each row of this process's engine, with their workers.
    pub fn with_workers<'r, T>(&self, rows: &'r [T]) -> impl Iterator<Item = (WorkerId, &'r T)> + use<'r, T> {
        self.own().zip(rows)
    }

    /// The rows of those workers that are in this process.
    pub fn rows_of(&self, workers: &[WorkerId]) -> Vec<RowIndex> {
        workers.iter().filter_map(|&worker| self.row_of(worker)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_is_in_exactly_one_process() {
        for workers in 1..20 {
            for processes in 1..=workers {
                let all = Placement::new(workers, processes, 0);
                let listed: Vec<WorkerId> = (0..processes).flat_map(|p| all.workers_of(p)).collect();
                assert_eq!(listed, WorkerId::all(workers).collect::<Vec<_>>());
                for worker in WorkerId::all(workers) {
                    assert!(all.range_of(all.process_of(worker)).contains(&worker.0));
                }
            }
        }
    }
}
