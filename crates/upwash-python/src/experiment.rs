//! `upwash.Experiment`: everything that is fixed before the first round.

use crate::arrays::{self, RunNumber};
use crate::compute::detached;
use crate::dataset::PyDataset;
use crate::errors::{Class, OrRaise};
use crate::graph::PyGraph;
use crate::schedule::PySchedule;
use crate::setup::Setup;
use numpy::ndarray::Array;
use numpy::{IntoPyArray, PyArray1, PyArrayDyn};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Arc;
use upwash::algorithm::Registry;
use upwash::experiment::{DataPaths, DatasetCache, Experiment};

/// Examples and their labels.
type Batch<'py> = (Bound<'py, PyArrayDyn<f32>>, Bound<'py, PyArray1<i64>>);

#[pyclass(frozen, name = "NativeExperiment", module = "upwash._upwash")]
pub(crate) struct PyExperiment(Arc<Experiment>);

/// The tensors of a flat vector, by name.
pub(crate) fn tensors<'py>(
    py: Python<'py>,
    slots: &[upwash::model::Slot],
    vector: &[f32],
    into: &Bound<'py, PyDict>,
) -> PyResult<()> {
    for slot in slots {
        let tensor = Array::from_shape_vec(slot.shape.clone(), slot.of(vector).to_vec());
        let tensor = tensor.map_err(|error| Class::Internal.error(py, error.to_string()))?;
        into.set_item(&slot.name, tensor.into_pyarray(py))?;
    }
    Ok(())
}

impl PyExperiment {
    fn check_batch(&self, py: Python<'_>, worker: RunNumber, round: RunNumber) -> PyResult<(usize, u64)> {
        let (worker, round) = (usize::from(worker), arrays::check_round(py, round)?);
        let shards = &self.0.sampler.shards().images;
        match shards.get(worker).is_some_and(|shard| !shard.is_empty()) {
            true => Ok((worker, round)),
            false => {
                let text = format!("worker {worker} has no data: {} workers are numbered from 0", shards.len());
                Err(Class::Config.error(py, text))
            }
        }
    }
}

#[pymethods]
impl PyExperiment {
    #[new]
    fn new(
        py: Python<'_>,
        config: &str,
        sets: Vec<String>,
        files: PathBuf,
        dataset: Option<&Bound<'_, PyDataset>>,
        algorithm: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let setup = Setup::read(py, config, &sets, files, dataset, algorithm)?;
        let watched = setup.watched.clone();
        let prepared = detached(py, move || {
            let (config, files, parts) = setup.custom_parts();
            let paths = DataPaths { files, ..DataPaths::standard() };
            Experiment::prepare_custom(config, &paths, &Registry::standard(), &mut DatasetCache::default(), parts)
        })?;
        if let Some(error) = watched.failure(py) {
            return Err(error);
        }
        Ok(Self(Arc::new(prepared.or_raise(py)?)))
    }

    /// The resolved configuration, in TOML.
    #[getter]
    fn config_toml(&self) -> String {
        self.0.config.to_toml()
    }

    #[getter]
    fn algorithm(&self) -> String {
        self.0.algorithm_name()
    }

    #[getter]
    fn graph_name(&self) -> String {
        self.0.graph_name()
    }

    #[getter]
    fn graph(&self) -> PyGraph {
        PyGraph::named(self.0.graph.clone(), self.0.config.graph.topology.clone())
    }

    #[getter]
    fn schedule(&self) -> PySchedule {
        self.0.schedule.clone().into()
    }

    #[getter]
    fn workers(&self) -> usize {
        self.0.workers()
    }

    #[getter]
    fn server(&self) -> Option<usize> {
        self.0.server.map(usize::from)
    }

    #[getter]
    fn rounds(&self) -> u64 {
        self.0.rounds()
    }

    #[getter]
    fn rounds_per_epoch(&self) -> u64 {
        self.0.sampler.rounds_per_epoch()
    }

    #[getter]
    fn parameters(&self) -> usize {
        self.0.network.layout().parameter_count()
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.0.warnings.clone()
    }

    /// The indices of each worker's training examples.
    #[getter]
    fn shards<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyArray1<i64>>> {
        let shards = &self.0.sampler.shards().images;
        shards.iter().map(|shard| arrays::integers(py, shard.iter().map(|&index| index as usize))).collect()
    }

    /// The indices of the training examples in a worker's batch.
    fn indices<'py>(
        &self,
        py: Python<'py>,
        worker: RunNumber,
        round: RunNumber,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (worker, round) = self.check_batch(py, worker, round)?;
        let experiment = Arc::clone(&self.0);
        let indices = detached(py, move || experiment.sampler.indices(worker, round))?;
        Ok(arrays::integers(py, indices.into_iter().map(|index| index as usize)))
    }

    /// A worker's batch: scaled and augmented examples, and their labels.
    fn batch<'py>(&self, py: Python<'py>, worker: RunNumber, round: RunNumber) -> PyResult<Batch<'py>> {
        let (worker, round) = self.check_batch(py, worker, round)?;
        let experiment = Arc::clone(&self.0);
        let batch = detached(py, move || experiment.sampler.batch(&experiment.data, worker, round))?;
        let [channels, height, width] = self.0.data.train.shape;
        let pixels = Array::from_shape_vec(vec![batch.labels.len(), channels, height, width], batch.pixels);
        let pixels = pixels.map_err(|error| Class::Internal.error(py, error.to_string()))?;
        let labels = arrays::integers(py, batch.labels.into_iter().map(usize::from));
        Ok((pixels.into_pyarray(py), labels))
    }

    /// The weights from which a worker starts.
    fn initial_model<'py>(&self, py: Python<'py>, worker: RunNumber) -> PyResult<Bound<'py, PyDict>> {
        let worker = usize::from(worker);
        let starts = self.0.engine_spec().starts;
        let Some(&(seed, number)) = starts.get(worker) else {
            let text = format!("worker {worker}: workers are numbered 0 to {}", starts.len() - 1);
            return Err(Class::Config.error(py, text));
        };
        let experiment = Arc::clone(&self.0);
        let (parameters, statistics) = detached(py, move || {
            let network = &experiment.network;
            (network.start(seed, number), network.start_statistics())
        })?;
        let (layout, model) = (self.0.network.layout(), PyDict::new(py));
        tensors(py, &layout.parameters, &parameters, &model)?;
        tensors(py, &layout.statistics, &statistics, &model)?;
        Ok(model)
    }

    fn __repr__(&self) -> String {
        format!("<upwash.Experiment: {} on {}>", self.0.algorithm_name(), self.0.graph_name())
    }
}
