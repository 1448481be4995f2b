//! `upwash.View` and `upwash.Received`: what a worker knows in an exchange.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use upwash::{LocalView, WorkerId, WorkerStats};
use upwash_topology::Round;

/// What a worker knows when it mixes: the argument of `upwash.Algorithm.plan`.
#[pyclass(frozen, name = "View", module = "upwash")]
pub(crate) struct PyView {
    round: Round,
    /// The worker.
    #[pyo3(get)]
    worker: usize,
    /// The index of the exchange in its round, from 0.
    #[pyo3(get)]
    exchange: usize,
    /// The learning rate of this round.
    #[pyo3(get)]
    learning_rate: f64,
    /// The learning rate of the previous round; in the first round, of this one.
    #[pyo3(get)]
    previous_learning_rate: f64,
    /// The configured momentum.
    #[pyo3(get)]
    momentum: f64,
    /// The worker that has no data and serves the others, if there is one.
    #[pyo3(get)]
    server: Option<usize>,
    own: WorkerStats,
    received: Vec<(WorkerId, WorkerStats)>,
}

impl PyView {
    pub(crate) fn new(view: &LocalView<'_>) -> Self {
        let context = &view.context;
        Self {
            round: context.round.clone(),
            worker: view.worker.0,
            exchange: context.exchange,
            learning_rate: context.rate,
            previous_learning_rate: context.previous_rate,
            momentum: context.momentum,
            server: context.server.map(usize::from),
            own: view.own,
            received: view.received.to_vec(),
        }
    }
}

/// An unknown loss counts as the worst one.
fn loss(stats: &WorkerStats) -> f64 {
    stats.loss.unwrap_or(f64::INFINITY)
}

#[pymethods]
impl PyView {
    /// The number of the round, from 0.
    #[getter]
    fn round(&self) -> u64 {
        self.round.index()
    }

    /// The number of workers.
    #[getter]
    fn workers(&self) -> usize {
        self.round.mixing().nodes()
    }

    /// The worker's own loss on its batch; infinite if it is not known yet.
    #[getter]
    fn loss(&self) -> f64 {
        loss(&self.own)
    }

    /// The number of the worker's links that are up.
    #[getter]
    fn degree(&self) -> usize {
        self.own.degree
    }

    /// The worker's own scalar.
    #[getter]
    fn scalar(&self) -> f64 {
        self.own.scalar
    }

    /// The messages that arrived, in increasing order of their senders.
    #[getter]
    fn received(&self) -> Vec<PyReceived> {
        self.received.iter().map(|&(worker, stats)| PyReceived { worker: worker.0, stats }).collect()
    }

    /// This worker's row of the mixing matrix W of the round, or of (I + W) / 2: a weight for each sender.
    #[pyo3(signature = (*, lazy = false))]
    fn weights<'py>(&self, py: Python<'py>, lazy: bool) -> PyResult<Bound<'py, PyDict>> {
        let context = upwash::algorithm::ExchangeContext::new(&self.round, self.learning_rate);
        let view = LocalView { worker: self.worker.into(), context, own: self.own, received: &[] };
        let row = PyDict::new(py);
        for (sender, weight) in view.weights(lazy) {
            row.set_item(sender.0, weight)?;
        }
        Ok(row)
    }

    fn __repr__(&self) -> String {
        let (worker, round, senders) = (self.worker, self.round.index(), self.received.len());
        format!("<upwash.View of worker {worker} in round {round}: {senders} messages>")
    }
}

/// What a message tells about its sender.
#[pyclass(frozen, name = "Received", module = "upwash")]
pub(crate) struct PyReceived {
    /// The sender.
    #[pyo3(get)]
    worker: usize,
    stats: WorkerStats,
}

#[pymethods]
impl PyReceived {
    /// The sender's loss on its batch; infinite if it is not known yet.
    #[getter]
    fn loss(&self) -> f64 {
        loss(&self.stats)
    }

    /// The number of the sender's links that are up.
    #[getter]
    fn degree(&self) -> usize {
        self.stats.degree
    }

    /// The sender's scalar.
    #[getter]
    fn scalar(&self) -> f64 {
        self.stats.scalar
    }

    fn __repr__(&self) -> String {
        let (worker, loss, degree) = (self.worker, loss(&self.stats), self.stats.degree);
        format!("<upwash.Received from worker {worker}: loss {loss:.4}, degree {degree}>")
    }
}
