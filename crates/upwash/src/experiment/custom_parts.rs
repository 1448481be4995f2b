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
        if let Some(method) = &self.algorithm {
            config.algorithm.name = custom(&method.display_name());
            config.algorithm.options.clear();
        }
        let model = config.model.to_string();
        for (key, name, is_supplied) in [
            ("model", &model, self.model.is_some()),
            ("data.name", &config.data.name, self.dataset.is_some()),
            ("training.optimizer", &config.training.optimizer, self.optimizer.is_some()),
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
