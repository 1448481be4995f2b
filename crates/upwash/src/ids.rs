//! Identifiers of workers and of engine rows.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Index, IndexMut};

/// A worker of a run, in any process: its node in the graph. Algorithms, events and messages use worker IDs. They index
/// lists with an entry for each worker.
///
/// ```
/// use upwash::WorkerId;
/// let losses: Vec<f64> = vec![0.5, 0.25];
/// let best = WorkerId::all(2).min_by(|a, b| losses[*a].total_cmp(&losses[*b]));
/// assert_eq!(best, Some(WorkerId(1)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub usize);

impl WorkerId {
    /// All workers of a run with this many.
    pub fn all(workers: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..workers).map(Self)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<usize> for WorkerId {
    fn from(node: usize) -> Self {
        Self(node)
    }
}

impl From<WorkerId> for usize {
    fn from(worker: WorkerId) -> Self {
        worker.0
    }
}

/// A row of one process's engine: one of its workers or, after those, a message received from another process.
/// Only [`Placement`](crate::transport::Placement) and the inbox of an exchange map rows to workers. It indexes lists with an
/// entry for each row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowIndex(pub usize);

impl RowIndex {
    /// The row of a worker in an engine that holds all workers.
    pub fn in_one_process(worker: WorkerId) -> Self {
        Self(worker.0)
    }
}

/// Entries of a list with the IDs of their workers, for tests.
#[cfg(test)]
pub(crate) fn with_ids<T, const N: usize>(entries: [(usize, T); N]) -> [(WorkerId, T); N] {
    entries.map(|(worker, entry)| (worker.into(), entry))
}

/// Lets an identifier index lists with an entry for each of what it identifies.
macro_rules! index_lists {
    ($id:ty: $($list:ty),*) => {$(
        impl<T> Index<$id> for $list {
            type Output = T;

            fn index(&self, id: $id) -> &T {
                &self[id.0]
            }
        }

        impl<T> IndexMut<$id> for $list {
            fn index_mut(&mut self, id: $id) -> &mut T {
                &mut self[id.0]
            }
        }
    )*};
}

index_lists!(WorkerId: [T], Vec<T>);
index_lists!(RowIndex: [T], Vec<T>);
