//! Workers and rows: whose number a number is.

/// A worker of a run, wherever it is: its node in the graph. Algorithms, graphs, events and messages speak of workers.
pub type WorkerId = usize;

/// A row of one process's engine: one of its workers, or behind those, something that was received from another process.
/// Only [`Placement`](crate::transport::Placement) and the inbox of an exchange know which worker that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowIndex(pub usize);
