//! The examples and batches of each worker: `upwash.partition` and `upwash.Sampler`.

use crate::arrays::{self, RunNumber};
use crate::errors::{Class, OrRaise};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use upwash::data::{Images, Partition, Sampler};

/// Splits labeled examples among workers, and draws their batches.
#[pyclass(frozen, name = "NativeSampler", module = "upwash._upwash")]
pub(crate) struct PySampler(Sampler);

#[pymethods]
impl PySampler {
    #[new]
    fn new(
        py: Python<'_>,
        labels: PyReadonlyArray1<'_, u8>,
        workers: RunNumber,
        partition: &str,
        batch_size: RunNumber,
        seed: RunNumber,
    ) -> PyResult<Self> {
        let (workers, batch_size, seed) = (usize::from(workers), usize::from(batch_size), seed.0);
        let partition: Partition = partition.parse().or_raise(py)?;
        let labels = labels.as_array().to_vec();
        let classes = labels.iter().max().map_or(1, |&last| usize::from(last) + 1);
        let examples = Images { shape: [0; 3], pixels: vec![], labels };
        let shards = py.detach(|| partition.split(&examples, classes, workers, seed)).or_raise(py)?;
        match batch_size {
            0 => Err(Class::Data.error(py, "batch_size = 0: a batch has at least one example")),
            _ => Ok(Self(Sampler::new(shards, batch_size, seed))),
        }
    }

    #[getter]
    fn rounds_per_epoch(&self) -> u64 {
        self.0.rounds_per_epoch()
    }

    /// The indices of each worker's examples.
    #[getter]
    fn shards<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyArray1<i64>>> {
        let shards = self.0.shards().images.iter();
        shards.map(|shard| arrays::integers(py, shard.iter().map(|&index| index as usize))).collect()
    }

    /// The indices of the examples in a worker's batch.
    fn indices<'py>(
        &self,
        py: Python<'py>,
        worker: RunNumber,
        round: RunNumber,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (worker, round) = (usize::from(worker), arrays::check_round(py, round)?);
        match self.0.shards().images.get(worker) {
            Some(shard) if !shard.is_empty() => {
                let indices = py.detach(|| self.0.indices(worker, round));
                Ok(arrays::integers(py, indices.into_iter().map(|index| index as usize)))
            }
            _ => Err(Class::Data.error(py, format!("worker {worker} has no examples: workers are numbered from 0"))),
        }
    }
}
