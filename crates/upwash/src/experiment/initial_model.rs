//! The model from which all workers start, if a configuration names one.

use super::ExperimentError;
use crate::config::{Config, Start};
use crate::model::{ModelFile, Network};
use std::path::Path;
use std::sync::Arc;

/// The name of the model to start from in the directory of a run.
pub const INITIAL_MODEL_FILE: &str = "initial-model.safetensors";

/// Reads the model to start from, if there is one. Its path becomes absolute.
pub(super) fn read(
    config: &mut Config,
    folder: &Path,
    network: &Network,
) -> Result<Option<Arc<ModelFile>>, ExperimentError> {
    let training = &mut config.training;
    let Some(path) = &mut training.initial_model else {
        return Ok(None);
    };
    if training.start == Some(Start::Different) {
        let what = "training.start = \"different\": with training.initial_model, all workers start from that model; \
                    remove one of them";
        return Err(ExperimentError::Conflict(what.into()));
    }
    *path = std::path::absolute(folder.join(&*path)).unwrap_or_else(|_| folder.join(&*path));
    let file = ModelFile::read(path)?;
    // The layout of a custom model is only known to its engine, where the run checks it.
    if !network.layers.is_empty() {
        file.replica(&network.layout())?;
    }
    Ok(Some(Arc::new(file)))
}
