//! Which worker is in which process.

use crate::ids::{RowIndex, WorkerId};
use std::ops::Range;

/// The workers of each process: blocks of consecutive ids, whose sizes differ by at most one.
///
/// ```
/// use upwash::transport::Placement;
/// let second = Placement::new(8, 3, 1); // eight workers in three processes; this is the second
/// assert_eq!(second.own(), 2..5);
/// assert_eq!(second.process_of(7), 2);
/// assert_eq!(second.row_of(4), Some(upwash::RowIndex(2)));
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

    /// The workers of a process.
    pub fn workers_of(&self, process: usize) -> Range<usize> {
        let first = |process: usize| process * self.workers / self.processes;
        first(process)..first(process + 1)
    }

    /// The workers of this process.
    pub fn own(&self) -> Range<usize> {
        self.workers_of(self.this)
    }

    /// The process of a worker.
    pub fn process_of(&self, worker: usize) -> usize {
        // The last process whose first worker does not come after this one.
        let guess = worker * self.processes / self.workers;
        (guess..self.processes).take_while(|&process| self.workers_of(process).start <= worker).last().unwrap_or(guess)
    }

    /// The row of a worker in this process's engine; `None` if the worker is in another process.
    pub fn row_of(&self, worker: WorkerId) -> Option<RowIndex> {
        let own = self.own();
        own.contains(&worker).then(|| RowIndex(worker - own.start))
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
                let listed: Vec<usize> = (0..processes).flat_map(|p| all.workers_of(p)).collect();
                assert_eq!(listed, (0..workers).collect::<Vec<_>>());
                for worker in 0..workers {
                    assert!(all.workers_of(all.process_of(worker)).contains(&worker));
                }
            }
        }
    }
}
