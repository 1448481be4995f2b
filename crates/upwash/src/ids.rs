//! Identifiers of workers and of engine rows.

/// A worker of a run, in any process: its node in the graph. Algorithms, graphs, events and messages use worker IDs.
pub type WorkerId = usize;

/// A row of one process's engine: one of its workers or, after those, a message received from another process.
/// Only [`Placement`](crate::transport::Placement) and the inbox of an exchange map rows to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowIndex(pub usize);
