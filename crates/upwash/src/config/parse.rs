//! Parses and validates configurations.

use super::{Config, DecayName, Overrides, TrainingConfig, explain};
use std::fmt::Display;

/// The upper limit for epochs and intervals, far beyond any practical run.
const MAX_COUNT: u64 = 1_000_000_000;

/// The reason why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not TOML, or a key or a type is wrong.
    #[error("{0}")]
    Toml(String),
    /// The argument of `--set` is not `key=value`.
    #[error("--set {0}: write key=value, for example training.epochs=10")]
    Set(String),
    /// The argument of `--set` has several lines.
    #[error("--set {0}: write one line, and one --set for each value")]
    SetLines(String),
    /// The argument of `--unset` is not in the configuration.
    #[error("--unset {key}: the configuration does not have this key{hint}")]
    Unset {
        /// The key.
        key: String,
        /// A suggestion on a line of its own, or nothing.
        hint: String,
    },
    /// A value is out of range.
    #[error("{key} = {value}: {must}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What the value must be.
        must: String,
    },
}

impl Config {
    /// Parses TOML, applies the `key=value` assignments and validates the result.
    pub fn parse(text: &str, assignments: &[String]) -> Result<Self, ConfigError> {
        Self::parse_with(text, &Overrides { set: assignments.to_vec(), unset: vec![] })
    }

    /// Parses TOML, applies the overrides and validates the result.
    pub fn parse_with(text: &str, overrides: &Overrides) -> Result<Self, ConfigError> {
        let with_position = |error: &toml::de::Error| ConfigError::Toml(explain::with_position(error));
        let mut table: toml::Table = text.parse().map_err(|error| with_position(&error))?;
        let inherited = overrides.apply(&mut table)?;
        let mut config: Self = table.try_into().map_err(|error: toml::de::Error| {
            // The table has no positions. If the text alone gives the same error, report it with its line.
            let located = toml::from_str::<Self>(text).err();
            let is_same = |located: &toml::de::Error| overrides.is_empty() || located.message() == error.message();
            let located = located.filter(is_same);
            let unlocated = || ConfigError::Toml(explain::without_position(&error));
            located.as_ref().map_or_else(unlocated, with_position)
        })?;
        config.algorithm.inherited = inherited;
        config.check()?;
        Ok(config)
    }

    /// Formats the configuration as TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration is serializable")
    }

    /// Checks that all values are in range.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.network.check()?;
        self.training.check()?;
        let (data, graph) = (&self.data, &self.graph);
        let seed = i64::try_from(self.seed).is_ok();
        require(seed, "seed", &self.seed, "must be at most 9223372036854775807")?;
        for (key, count) in [("data.train_examples", data.train_examples), ("data.test_examples", data.test_examples)] {
            require(count != Some(0), key, &0, "must be at least 1")?;
        }
        let is_size = data.image_size.is_none_or(|size| (1..=4096).contains(&size));
        require(is_size, "data.image_size", &data.image_size.unwrap_or(0), "must be from 1 to 4096")?;
        require(graph.copies > 0, "graph.copies", &0, "must be at least 1")?;
        let must = format!("must be below graph.copies = {}", graph.copies);
        let is_copy = graph.first_copy < graph.copies;
        require(is_copy, "graph.first_copy", &graph.first_copy, &must)
    }
}

impl TrainingConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let require = |is_valid: bool, key: &str, value: &dyn Display, must: &str| {
            require(is_valid, &format!("training.{key}"), value, must)
        };
        let is_positive = |x: f64| x > 0.0 && x.is_finite();
        let is_nonnegative = |x: f64| x >= 0.0 && x.is_finite();
        let (epochs, batch, rate) = (self.epochs, self.batch_size, self.learning_rate);
        let must = "must be from 1 to 1,000,000,000";
        require((1..=MAX_COUNT).contains(&epochs), "epochs", &epochs, must)?;
        let is_batch_size = (1..=1_000_000).contains(&batch);
        require(is_batch_size, "batch_size", &batch, "must be from 1 to 1,000,000")?;
        require(is_positive(rate), "learning_rate", &rate, "must be a finite number above 0")?;
        self.check_optimizer()?;
        let has_steps = self.decay == DecayName::Steps;
        let must = "must list the epochs of the steps with training.decay = \"steps\", and must be empty otherwise";
        let at = format!("{:?}", self.decay_at);
        let is_consistent = has_steps != self.decay_at.is_empty();
        require(is_consistent, "decay_at", &at, must)?;
        for at in &self.decay_at {
            require(is_nonnegative(*at), "decay_at", at, "must be at least 0")?;
        }
        let every = self.test_every.max(self.checkpoint_every);
        let key = "test_every and checkpoint_every";
        require(every <= MAX_COUNT, key, &every, "must be at most 1,000,000,000")?;
        require(self.test_every > 0, "test_every", &0, "must be at least 1")?;
        let warmup = self.warmup_epochs;
        require(is_nonnegative(warmup), "warmup_epochs", &warmup, "must be at least 0")?;
        let factor = self.decay_factor;
        let is_factor = factor > 0.0 && factor <= 1.0;
        require(is_factor, "decay_factor", &factor, "must be above 0 and at most 1")?;
        let is_fraction = |x: f64| (0.0..1.0).contains(&x);
        let must = "must be at least 0 and below 1";
        let momentum = self.momentum.unwrap_or(0.9);
        require(is_fraction(momentum), "momentum", &momentum, must)?;
        if let Some(betas) = self.betas {
            let shown = format!("{betas:?}");
            require(betas.into_iter().all(is_fraction), "betas", &shown, "each must be at least 0 and below 1")?;
        }
        let epsilon = self.epsilon.unwrap_or(1e-8);
        require(is_positive(epsilon), "epsilon", &epsilon, "must be a finite number above 0")?;
        let clip = self.clip.unwrap_or(1.0);
        require(is_positive(clip), "clip", &clip, "must be a finite number above 0")?;
        let decay = self.weight_decay.unwrap_or(0.0);
        require(is_nonnegative(decay), "weight_decay", &decay, "must be at least 0")?;
        let has_momentum = self.nesterov != Some(true) || momentum > 0.0;
        require(has_momentum, "nesterov", &true, "requires training.momentum above 0")
    }
}

/// Returns an error that says what a value must be, unless it is valid.
fn require(is_valid: bool, key: &str, value: &dyn Display, must: &str) -> Result<(), ConfigError> {
    match is_valid {
        true => Ok(()),
        false => Err(ConfigError::Value { key: key.into(), value: value.to_string(), must: must.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_survives_a_round_trip_through_toml() {
        let text = "seed = 7\nmodel = \"cnn\"\n[algorithm]\nname = \"matcha\"\nbudget = 0.3\n\
                    [graph]\ntopology = \"torus:4x4\"\nweights = \"alpha=0.2\"\n";
        let config = Config::parse(text, &[]).unwrap();
        assert_eq!(Config::parse(&config.to_toml(), &[]).unwrap(), config);
        assert_eq!(Config::parse("", &[]).unwrap(), Config::default());
    }

    #[test]
    fn overrides_replace_values_of_the_text() {
        let sets = ["training.learning_rate=0.5", "graph.topology=ring:5", "seed=3"].map(String::from);
        let config = Config::parse("seed = 1\n", &sets).unwrap();
        assert_eq!((config.seed, config.training.learning_rate), (3, 0.5));
        assert_eq!(config.graph.topology.to_string(), "ring:5");
        for bad in ["training.learning_rate", "=3", "training.=3", "seed.x=1"] {
            assert!(Config::parse("seed = 1", &[bad.into()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_name_the_line_or_the_override_at_fault() {
        let text = "seed = 1\n\n[training]\nlearning_rat = 0.1\n";
        let error_of = |text: &str, sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
            Config::parse(text, &sets).unwrap_err().to_string()
        };
        for sets in [&[][..], &["seed=2"], &["seed=2", "training.epochs=3"]] {
            assert!(error_of(text, sets).contains("line 4"), "{sets:?}");
        }
        let error = error_of("seed = 1\n", &["seed=2", "training.learning_rat=3", "seed=4"]);
        assert!(error.starts_with("--set training.learning_rat=3: "), "{error}");
        assert!(error.contains("did you mean `learning_rate`?"), "{error}");
        assert!(!error.contains("line"), "{error}");
        let error = error_of("", &["graph.topology=ring:1"]);
        assert!(error.starts_with("--set graph.topology=ring:1: "), "{error}");
        // The error names the remaining mistake, not the one that an override replaces.
        let text = "seed = \"x\"\n[training]\nlearning_rat = 1\n";
        assert!(error_of(text, &["seed=3"]).contains("learning_rat"));
        let error = error_of("seed = \"x\"\n", &["training.learning_rat=3", "seed=3"]);
        assert!(error.starts_with("--set training.learning_rat=3: "), "{error}");
        // A value that is overridden may be invalid.
        let sets = ["seed=3".to_string()];
        assert_eq!(Config::parse("seed = \"x\"\n", &sets).unwrap().seed, 3);
    }

    #[test]
    fn errors_name_the_valid_values() {
        for (text, expected) in [
            ("[training]\nepoch = 3\n", "did you mean `epochs`?"),
            ("[trainings]\n", "did you mean `training`?"),
            ("[training]\nlearning_rate = -0.1\n", "training.learning_rate = -0.1: must be a finite number above 0"),
            ("[training]\ndecay_factor = -0.1\n", "training.decay_factor = -0.1: must be above 0"),
            ("[training]\nwarmup_epochs = -1.0\n", "training.warmup_epochs = -1: must be at least 0"),
            ("[training]\nbatch_size = 0\n", "training.batch_size = 0: must be from 1 to"),
            ("[training]\ndecay_at = [3.0]\n", "training.decay_at = [3.0]: must list"),
            ("[training]\ndecay = \"steps\"\n", "training.decay_at = []: must list"),
            ("[training]\ndecay = \"steps\"\ndecay_at = [-5.0]\n", "training.decay_at = -5: must be at least 0"),
            ("[training]\nepochs = 9223372036854775807\n", "from 1 to 1,000,000,000"),
            ("[training]\nmomentum = 1.0\n", "below 1"),
            ("[graph]\ntopology = \"rign:8\"\n", "did you mean `ring`?"),
            ("model = \"resnet\"\n", "model `resnet` is unknown"),
            ("seed = \n", "line 1"),
        ] {
            let error = Config::parse(text, &[]).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
