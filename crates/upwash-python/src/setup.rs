//! What a run is made of, as Python gives it.

use crate::algorithm::{PythonAlgorithm, Watched};
use crate::dataset::PyDataset;
use crate::errors::{Class, OrRaise};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use upwash::Trainer;
use upwash::algorithm::Method;
use upwash::config::Config;
use upwash::data::Dataset;
use upwash::experiment::{CustomParts, ExternalLoop};

/// The configuration of a run and the parts that replace those that it names.
pub(crate) struct Setup {
    pub(crate) config: Config,
    /// Where the files lie that the configuration names.
    pub(crate) files: PathBuf,
    pub(crate) dataset: Option<Arc<Dataset>>,
    pub(crate) algorithm: Option<PythonAlgorithm>,
    /// The algorithm as other threads see it; of none, nothing is ever known.
    pub(crate) watched: Watched,
}

impl Setup {
    /// `config` is TOML, and `sets` are assignments `key=value`.
    pub(crate) fn read(
        py: Python<'_>,
        config: &str,
        sets: &[String],
        files: PathBuf,
        dataset: Option<&Bound<'_, PyDataset>>,
        algorithm: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let algorithm = algorithm.map(PythonAlgorithm::new).transpose()?;
        Ok(Self {
            config: Config::parse(config, sets).or_raise(py)?,
            files,
            dataset: dataset.map(|dataset| Arc::clone(&dataset.get().0)),
            watched: algorithm.as_ref().map(|algorithm| algorithm.watched.clone()).unwrap_or_default(),
            algorithm,
        })
    }

    pub(crate) fn trainer(self) -> Trainer<'static> {
        let mut trainer = Trainer::new(self.config).files_in(self.files);
        if let Some(dataset) = self.dataset {
            trainer = trainer.dataset(dataset);
        }
        if let Some(algorithm) = self.algorithm {
            trainer = trainer.algorithm(algorithm);
        }
        trainer
    }

    /// The parts of a run whose training loop is in Python.
    pub(crate) fn with_loop(self, training_loop: ExternalLoop, model: String) -> (Config, PathBuf, CustomParts) {
        let (config, files, parts) = self.custom_parts();
        (config, files, CustomParts { training_loop: Some(training_loop), model: Some(model), ..parts })
    }

    pub(crate) fn custom_parts(self) -> (Config, PathBuf, CustomParts) {
        let algorithm = self.algorithm.map(|algorithm| Method::Synchronous(Box::new(algorithm)));
        let parts = CustomParts { dataset: self.dataset, algorithm, ..CustomParts::default() };
        (self.config, self.files, parts)
    }
}

/// A configuration as JSON, as TOML.
#[pyfunction]
pub(crate) fn toml_of_json(py: Python<'_>, json: &str) -> PyResult<String> {
    let table = serde_json::from_str::<toml::Table>(json);
    let table = table.map_err(|error| Class::Config.error(py, format!("the configuration: {error}")))?;
    toml::to_string(&table).map_err(|error| Class::Config.error(py, format!("the configuration: {error}")))
}

/// A configuration in TOML, as JSON.
#[pyfunction]
pub(crate) fn json_of_toml(py: Python<'_>, text: &str) -> PyResult<String> {
    let table = text.parse::<toml::Table>().map_err(|error| Class::Config.error(py, error.to_string()))?;
    serde_json::to_string(&table).map_err(|error| Class::Config.error(py, error.to_string()))
}
