//! Parts of an experiment that the embedding program supplies.

use super::ExperimentError;
use crate::algorithm::Method;
use crate::config::Config;
use crate::data::Dataset;
use crate::model::{CUSTOM, LayerSpec, ModelSpec};
use crate::optimizer::Optimizer;
use std::sync::Arc;

/// Parts that the embedding program supplies in place of those that a configuration names. In the resolved
/// configuration their names are `custom:NAME`.
#[derive(Debug, Default)]
pub struct CustomParts {
    /// The name of a custom model. The program also builds the engine for it.
    pub model: Option<String>,
    /// The layers of the custom model, if it is a network.
    pub layers: Option<Vec<LayerSpec>>,
    /// A custom data set.
    pub dataset: Option<Arc<Dataset>>,
    /// A custom algorithm.
    pub algorithm: Option<Method>,
    /// A custom local optimizer.
    pub optimizer: Option<Arc<dyn Optimizer>>,
    /// An external training loop, which has its own model, data and optimizer.
    pub training_loop: Option<ExternalLoop>,
}

/// What an external training loop says about itself. Its [`Node`](crate::Node) needs neither data nor an optimizer.
#[derive(Clone, Debug)]
pub struct ExternalLoop {
    /// The name of its data.
    pub data: String,
    /// The name of its optimizer.
    pub optimizer: String,
    /// The number of rounds, if the loop knows it. Otherwise it ends the run itself.
    pub rounds: Option<u64>,
    /// The number of rounds after which an epoch ends.
    pub rounds_per_epoch: u64,
    /// The number of examples in a batch.
    pub batch_size: usize,
    /// A checksum of what must be the same in all processes, such as the shapes of the model's tensors.
    pub fingerprint: u32,
}

impl ExternalLoop {
    /// The number of epochs of a loop that does not know it: the most that a configuration can have.
    const UNKNOWN_EPOCHS: u64 = 1_000_000_000;

    /// The number of rounds after which the run is over in any case.
    pub(super) fn last_round(&self) -> u64 {
        self.rounds.unwrap_or(Self::UNKNOWN_EPOCHS.saturating_mul(self.rounds_per_epoch))
    }
}

impl CustomParts {
    /// Writes the names of the custom parts into the configuration. Fails if the configuration names a custom part that
    /// the program does not supply.
    pub(super) fn write_names(&self, config: &mut Config) -> Result<(), ExperimentError> {
        let custom = |name: &str| format!("{CUSTOM}{name}");
        if let Some(model) = &self.model {
            config.model = ModelSpec::Custom(model.clone());
        }
        if let Some(data) = &self.dataset {
            config.data.name = custom(&data.name);
        }
        if let Some(optimizer) = &self.optimizer {
            config.training.optimizer = custom(&optimizer.name());
        }
        if let Some(training_loop) = &self.training_loop {
            config.data.name = custom(&training_loop.data);
            config.training.optimizer = custom(&training_loop.optimizer);
            config.training.batch_size = training_loop.batch_size;
            config.training.epochs = training_loop.last_round().div_ceil(training_loop.rounds_per_epoch.max(1));
        }
        if let Some(method) = &self.algorithm {
            config.algorithm.name = custom(&method.display_name());
            config.algorithm.options.clear();
        }
        let (model, is_external) = (config.model.to_string(), self.training_loop.is_some());
        for (key, name, is_supplied) in [
            ("model", &model, self.model.is_some()),
            ("data.name", &config.data.name, self.dataset.is_some() || is_external),
            ("training.optimizer", &config.training.optimizer, self.optimizer.is_some() || is_external),
            ("algorithm.name", &config.algorithm.name, self.algorithm.is_some()),
        ] {
            if name.starts_with(CUSTOM) && !is_supplied {
                return Err(ExperimentError::Conflict(format!(
                    "{key} = \"{name}\" is supplied by another program: run this configuration with that program"
                )));
            }
        }
        Ok(())
    }
}
