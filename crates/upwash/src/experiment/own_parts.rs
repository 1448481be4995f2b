//! What a program brings itself.

use super::ExperimentError;
use crate::algorithm::Method;
use crate::config::Config;
use crate::data::Dataset;
use crate::model::{CUSTOM, ModelSpec};
use crate::optimizer::Optimizer;
use std::sync::Arc;

/// What a program brings itself, in place of what a configuration names. Configurations name it `custom:NAME`.
#[derive(Debug, Default)]
pub struct OwnParts {
    /// The name of its model, whose engine the program makes.
    pub model: Option<String>,
    /// Its data.
    pub dataset: Option<Arc<Dataset>>,
    /// Its algorithm.
    pub algorithm: Option<Method>,
    /// Its local optimizer.
    pub optimizer: Option<Arc<dyn Optimizer>>,
}

impl OwnParts {
    /// Makes the configuration name what the program brings, and refuses names of what it does not bring.
    pub(super) fn name_in(&self, config: &mut Config) -> Result<(), ExperimentError> {
        let own = |name: &str| format!("{CUSTOM}{name}");
        if let Some(model) = &self.model {
            config.model = ModelSpec::Custom(model.clone());
        }
        if let Some(data) = &self.dataset {
            config.data.name = own(&data.name);
        }
        if let Some(optimizer) = &self.optimizer {
            config.training.optimizer = own(&optimizer.name());
        }
        if let Some(method) = &self.algorithm {
            config.algorithm.name = own(&method.display_name());
            config.algorithm.options.clear();
        }
        let model = config.model.to_string();
        for (key, name, is_own) in [
            ("model", &model, self.model.is_some()),
            ("data.name", &config.data.name, self.dataset.is_some()),
            ("training.optimizer", &config.training.optimizer, self.optimizer.is_some()),
            ("algorithm.name", &config.algorithm.name, self.algorithm.is_some()),
        ] {
            if name.starts_with(CUSTOM) && !is_own {
                return Err(ExperimentError::Conflict(format!(
                    "{key} = \"{name}\" is part of another program: run it with that one, which brings it"
                )));
            }
        }
        Ok(())
    }
}
