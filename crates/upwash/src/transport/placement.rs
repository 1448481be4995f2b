//! Which worker is in which process.

use crate::ids::{RowIndex, WorkerId};
use std::ops::Range;

/// The workers of each process: blocks of consecutive numbers, of sizes that differ by one at most.
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
    /// `workers` in `processes`, seen from process `this`.
    ///
    /// # Panics
    /// If there are more processes than workers, or `this` is none of them.
    pub fn new(workers: usize, processes: usize, this: usize) -> Self {
        assert!(processes <= workers && this < processes, "a worker each");
        Self { workers, processes, this }
    }

    /// How many workers there are in all.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// How many processes there are.
    pub fn processes(&self) -> usize {
        self.processes
    }

    /// The number of this process.
    pub fn this(&self) -> usize {
        self.this
    }

    /// Whether all workers are in this process.
    pub fn is_whole(&self) -> bool {
        self.processes == 1
    }

    /// The workers of a process.
    pub fn of(&self, process: usize) -> Range<usize> {
        let first = |process: usize| process * self.workers / self.processes;
        first(process)..first(process + 1)
    }

    /// The workers of this process.
    pub fn own(&self) -> Range<usize> {
        self.of(self.this)
    }

    /// Where a worker is.
    pub fn process_of(&self, worker: usize) -> usize {
        // The last process whose first worker is not behind it.
        let guess = worker * self.processes / self.workers;
        (guess..self.processes).take_while(|&process| self.of(process).start <= worker).last().unwrap_or(guess)
    }

    /// Which row of this process's engine is its.
    pub fn row_of(&self, worker: WorkerId) -> Option<RowIndex> {
        let own = self.own();
        own.contains(&worker).then(|| RowIndex(worker - own.start))
    }

    /// The rows of those of these workers that are in this process.
    pub fn rows_of(&self, workers: &[WorkerId]) -> Vec<RowIndex> {
        workers.iter().filter_map(|&worker| self.row_of(worker)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_is_in_one_process() {
        for workers in 1..20 {
            for processes in 1..=workers {
                let all = Placement::new(workers, processes, 0);
                let listed: Vec<usize> = (0..processes).flat_map(|p| all.of(p)).collect();
                assert_eq!(listed, (0..workers).collect::<Vec<_>>());
                for worker in 0..workers {
                    assert!(all.of(all.process_of(worker)).contains(&worker));
                }
            }
        }
    }
}
