//! The local optimizers by name, with their options.

use super::{ConfigError, TrainingConfig};
use crate::model::CUSTOM;
use crate::optimizer::{AdamW, Lion, Muon, Optimizer, Sgd, WeightDecay};
use std::sync::Arc;

/// SGD with momentum, the default.
pub(super) const SGD: &str = "sgd";

/// The built-in optimizers with the keys of `[training]` that are their options.
const OPTIMIZERS: [(&str, &[&str]); 4] = [
    (SGD, &["momentum", "nesterov", "weight_decay"]),
    ("adamw", &["betas", "epsilon", "weight_decay", "decay_norms_and_biases"]),
    ("lion", &["betas", "weight_decay", "decay_norms_and_biases"]),
    ("muon", &["momentum", "nesterov", "betas", "epsilon", "weight_decay", "decay_norms_and_biases"]),
];

impl TrainingConfig {
    /// Refuses optimizers that do not exist, and options that the optimizer does not have.
    pub(super) fn check_optimizer(&self) -> Result<(), ConfigError> {
        let error = |key: &str, value: &str, must: String| {
            Err(ConfigError::Value { key: format!("training.{key}"), value: value.into(), must })
        };
        let name = match self.optimizer.starts_with(CUSTOM) {
            true => SGD,
            false => &self.optimizer,
        };
        let names: Vec<&str> = OPTIMIZERS.iter().map(|(name, _)| *name).collect();
        let Some((_, options)) = OPTIMIZERS.iter().find(|(known, _)| *known == name) else {
            let hint = crate::names::hint(name, names.iter().copied());
            return error("optimizer", name, format!("must be one of {}{hint}", names.join(", ")));
        };
        let given = [
            ("momentum", self.momentum.map(|x| x.to_string())),
            ("nesterov", self.nesterov.map(|x| x.to_string())),
            ("weight_decay", self.weight_decay.map(|x| x.to_string())),
            ("betas", self.betas.map(|x| format!("{x:?}"))),
            ("epsilon", self.epsilon.map(|x| x.to_string())),
            ("decay_norms_and_biases", self.decay_norms_and_biases.map(|x| x.to_string())),
        ];
        for (key, value) in given {
            if let Some(value) = value.filter(|_| !options.contains(&key)) {
                let having = OPTIMIZERS.iter().filter(|(_, options)| options.contains(&key)).map(|(name, _)| *name);
                let having = having.collect::<Vec<_>>().join(", ");
                let what = format!("is an option of {having}, not of {name}, whose options are {}", options.join(", "));
                return error(key, &value, what);
            }
        }
        Ok(())
    }

    /// Writes out the default of every option that the optimizer has. The options of a custom optimizer are its own; it
    /// is listed with those of SGD, which algorithms with a momentum of their own use.
    pub fn fill_in_optimizer(&mut self) {
        let (adamw, lion, muon) = (AdamW::default(), Lion::default(), Muon::default());
        let decay = |decay: &WeightDecay| (Some(decay.factor), Some(decay.includes_norms_and_biases));
        let (momentum, nesterov, betas, epsilon, (weight_decay, all_decay)) = match self.optimizer.as_str() {
            "adamw" => (None, None, Some(adamw.betas), Some(adamw.epsilon), decay(&adamw.weight_decay)),
            "lion" => (None, None, Some(lion.betas), None, decay(&lion.weight_decay)),
            "muon" => {
                let AdamW { betas, epsilon, weight_decay } = &muon.others;
                (Some(muon.momentum), Some(muon.nesterov), Some(*betas), Some(*epsilon), decay(weight_decay))
            }
            _ => (Some(0.9), Some(false), None, None, (Some(0.0), None)),
        };
        self.momentum = self.momentum.or(momentum);
        self.nesterov = self.nesterov.or(nesterov);
        self.weight_decay = self.weight_decay.or(weight_decay);
        self.betas = self.betas.or(betas);
        self.epsilon = self.epsilon.or(epsilon);
        self.decay_norms_and_biases = self.decay_norms_and_biases.or(all_decay);
    }

    /// The SGD optimizer with the configured momentum and weight decay.
    pub fn sgd(&self) -> Sgd {
        let Self { momentum, nesterov, weight_decay, .. } = self.with_optimizer_options();
        Sgd {
            momentum: momentum.unwrap_or_default(),
            nesterov: nesterov.unwrap_or_default(),
            weight_decay: weight_decay.unwrap_or_default(),
        }
    }

    /// The configured optimizer, if it is built in.
    pub fn built_in_optimizer(&self) -> Arc<dyn Optimizer> {
        let all = self.with_optimizer_options();
        let decays_all = all.decay_norms_and_biases.unwrap_or_default();
        let weight_decay = WeightDecay::new(all.weight_decay.unwrap_or_default(), decays_all);
        let (betas, epsilon) = (all.betas.unwrap_or_default(), all.epsilon.unwrap_or_default());
        match self.optimizer.as_str() {
            "adamw" => Arc::new(AdamW { betas, epsilon, weight_decay }),
            "lion" => Arc::new(Lion { betas, weight_decay }),
            "muon" => {
                let others = AdamW { betas, epsilon, weight_decay };
                Arc::new(Muon::new(all.momentum.unwrap_or_default(), all.nesterov.unwrap_or_default(), others))
            }
            _ => Arc::new(self.sgd()),
        }
    }

    fn with_optimizer_options(&self) -> Self {
        let mut all = self.clone();
        all.fill_in_optimizer();
        all
    }
}
