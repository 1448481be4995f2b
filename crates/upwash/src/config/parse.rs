//! How a configuration is read, and what is said of one that cannot be used.

use super::{Config, DecayName, TrainingConfig};
use std::fmt::Display;

/// More epochs than anyone can wait for.
const MOST: u64 = 1_000_000_000;

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not TOML, or not what is expected there.
    #[error("{0}")]
    Toml(String),
    /// `--set` that is not key=value.
    #[error("--set {0}: write key=value, as training.epochs=10")]
    Set(String),
    /// A value out of range.
    #[error("{key} = {value}: {must}")]
    Value {
        /// Which key.
        key: String,
        /// What it is.
        value: String,
        /// What it must be.
        must: String,
    },
}

impl Config {
    /// From TOML, with `key=value` replacements on top.
    pub fn parse(text: &str, replacements: &[String]) -> Result<Self, ConfigError> {
        let mut table: toml::Table = text.parse().map_err(in_text)?;
        for replacement in replacements {
            let mut alone = toml::Table::new();
            set(&mut alone, replacement)?;
            if let Err(error) = alone.try_into::<Self>() {
                let what = explain(&error, error.message());
                return Err(ConfigError::Toml(format!("--set {replacement}: {what}")));
            }
            set(&mut table, replacement)?;
        }
        let config: Self = table.try_into().map_err(|error: toml::de::Error| {
            // What is wrong in the text is said with its place there, if it is that.
            let found = toml::from_str::<Self>(text).map_err(|found| {
                let same = found.message() == error.message();
                same.then(|| in_text(found))
            });
            let here = ConfigError::Toml(explain(&error, error.message()));
            found.err().flatten().unwrap_or(here)
        })?;
        config.check()?;
        Ok(config)
    }

    /// As TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration can be written")
    }

    /// Values that are out of range.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.network.check()?;
        self.training.check()?;
        let (data, graph) = (&self.data, &self.graph);
        let seed = i64::try_from(self.seed).is_ok();
        require(seed, "seed", &self.seed, "at most 9223372036854775807")?;
        for (key, count) in [("data.train_examples", data.train_examples), ("data.test_examples", data.test_examples)] {
            require(count != Some(0), key, &0, "at least 1")?;
        }
        require(graph.copies > 0, "graph.copies", &0, "at least 1")?;
        let must = format!("below graph.copies = {}", graph.copies);
        let is_copy = graph.first_copy < graph.copies;
        require(is_copy, "graph.first_copy", &graph.first_copy, &must)
    }
}

impl TrainingConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let require = |holds: bool, key: &str, value: &dyn Display, must: &str| {
            require(holds, &format!("training.{key}"), value, must)
        };
        let is_above = |x: f64| x > 0.0 && x.is_finite();
        let from_zero = |x: f64| x >= 0.0 && x.is_finite();
        let (epochs, batch, rate) = (self.epochs, self.batch_size, self.learning_rate);
        let most = "from 1 to 1,000,000,000";
        require((1..=MOST).contains(&epochs), "epochs", &epochs, most)?;
        let is_batch = (1..=1_000_000).contains(&batch);
        require(is_batch, "batch_size", &batch, "from 1 to 1,000,000")?;
        require(is_above(rate), "learning_rate", &rate, "a finite number above 0")?;
        let is_known = self.optimizer == "sgd" || self.optimizer.starts_with(crate::model::CUSTOM);
        require(is_known, "optimizer", &self.optimizer, "\"sgd\"")?;
        let has_steps = self.decay == DecayName::Steps;
        let must = "go together: `decay = \"steps\"` and the epochs of its steps";
        let at = format!("{:?}", self.decay_at);
        let go_together = has_steps != self.decay_at.is_empty();
        require(go_together, "decay_at and decay", &at, must)?;
        for at in &self.decay_at {
            require(from_zero(*at), "decay_at", at, "epochs from 0 on")?;
        }
        let every = self.test_every.max(self.checkpoint_every);
        let key = "test_every and checkpoint_every";
        require(every <= MOST, key, &every, "at most 1,000,000,000")?;
        require(self.test_every > 0, "test_every", &0, "at least 1")?;
        let warmup = self.warmup_epochs;
        require(from_zero(warmup), "warmup_epochs", &warmup, "at least 0")?;
        let factor = self.decay_factor;
        let is_factor = factor > 0.0 && factor <= 1.0;
        require(is_factor, "decay_factor", &factor, "above 0 and at most 1")?;
        let momentum = self.momentum;
        let is_part = (0.0..1.0).contains(&momentum);
        require(is_part, "momentum", &momentum, "at least 0 and below 1")?;
        let decay = self.weight_decay;
        require(from_zero(decay), "weight_decay", &decay, "at least 0")?;
        let has_momentum = !self.nesterov || momentum > 0.0;
        require(has_momentum, "nesterov", &true, "with a momentum above 0 only")
    }
}

/// An error that says what a value must be, unless that holds.
fn require(holds: bool, key: &str, value: &dyn Display, must: &str) -> Result<(), ConfigError> {
    match holds {
        true => Ok(()),
        false => Err(ConfigError::Value { key: key.into(), value: value.to_string(), must: must.into() }),
    }
}

/// A key of a nested table and its value: TOML where it parses as such, otherwise a string.
fn set(table: &mut toml::Table, replacement: &str) -> Result<(), ConfigError> {
    let wrong = || ConfigError::Set(replacement.into());
    let (key, value) = replacement.split_once('=').ok_or_else(wrong)?;
    let value = value.trim();
    let parsed = format!("value = {value}").parse::<toml::Table>().ok();
    let value = parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| toml::Value::String(value.into()));
    let mut path: Vec<&str> = key.trim().split('.').collect();
    let last = path.pop().filter(|last| !last.is_empty()).ok_or_else(wrong)?;
    let mut here = table;
    for part in path {
        let next = here.entry(part).or_insert_with(|| toml::Table::new().into());
        here = next.as_table_mut().ok_or_else(wrong)?;
    }
    here.insert(last.into(), value);
    Ok(())
}

/// The parser's words, and for an unknown key the known one that looks most like it.
fn explain(error: &toml::de::Error, text: &str) -> String {
    let quoted: Vec<&str> = error.message().split('`').skip(1).step_by(2).collect();
    let nearest = quoted.split_first().and_then(|(unknown, known)| {
        let distance = |known: &&&str| strsim::damerau_levenshtein(known, unknown);
        known.iter().min_by_key(distance).filter(|known| distance(known) <= 3)
    });
    let unknown = error.message().starts_with("unknown");
    match nearest {
        Some(nearest) if unknown => format!("{}\ndid you mean `{nearest}`?", text.trim_end()),
        _ => text.trim_end().into(),
    }
}

/// With its place in the text.
fn in_text(error: toml::de::Error) -> ConfigError {
    ConfigError::Toml(explain(&error, &error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolved_configuration_reads_back_as_itself() {
        let text = "seed = 7\nmodel = \"cnn\"\n[algorithm]\nname = \"matcha\"\nbudget = 0.3\n\
                    [graph]\ntopology = \"torus:4x4\"\nweights = \"alpha=0.2\"\n";
        let config = Config::parse(text, &[]).unwrap();
        assert_eq!(Config::parse(&config.to_toml(), &[]).unwrap(), config);
        assert_eq!(Config::parse("", &[]).unwrap(), Config::default());
    }

    #[test]
    fn replacements_win() {
        let sets = ["training.learning_rate=0.5", "graph.topology=ring:5", "seed=3"].map(String::from);
        let config = Config::parse("seed = 1\n", &sets).unwrap();
        assert_eq!((config.seed, config.training.learning_rate), (3, 0.5));
        assert_eq!(config.graph.topology.to_string(), "ring:5");
        for bad in ["training.learning_rate", "=3", "training.=3", "seed.x=1"] {
            assert!(Config::parse("seed = 1", &[bad.into()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_mistake_is_where_it_was_made() {
        let text = "seed = 1\n\n[training]\nlearning_rat = 0.1\n";
        let said = |text: &str, sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
            Config::parse(text, &sets).unwrap_err().to_string()
        };
        for sets in [&[][..], &["seed=2"], &["seed=2", "training.epochs=3"]] {
            assert!(said(text, sets).contains("line 4"), "{sets:?}");
        }
        let error = said("seed = 1\n", &["seed=2", "training.learning_rat=3", "seed=4"]);
        assert!(error.starts_with("--set training.learning_rat=3: "), "{error}");
        assert!(error.contains("did you mean `learning_rate`?"), "{error}");
        assert!(!error.contains("line"), "{error}");
        let error = said("", &["graph.topology=ring:1"]);
        assert!(error.starts_with("--set graph.topology=ring:1: "), "{error}");
        // What is wrong is named, not what is replaced.
        let text = "seed = \"x\"\n[training]\nlearning_rat = 1\n";
        assert!(said(text, &["seed=3"]).contains("learning_rat"));
        let error = said("seed = \"x\"\n", &["training.learning_rat=3", "seed=3"]);
        assert!(error.starts_with("--set training.learning_rat=3: "), "{error}");
        // What is replaced need not be right.
        let sets = ["seed=3".to_string()];
        assert_eq!(Config::parse("seed = \"x\"\n", &sets).unwrap().seed, 3);
    }

    #[test]
    fn mistakes_are_named_with_what_was_meant() {
        for (text, said) in [
            ("[training]\nepoch = 3\n", "did you mean `epochs`?"),
            ("[trainings]\n", "did you mean `training`?"),
            ("[training]\nlearning_rate = -0.1\n", "training.learning_rate = -0.1: a finite number above 0"),
            ("[training]\ndecay_factor = -0.1\n", "training.decay_factor = -0.1: above 0"),
            ("[training]\nwarmup_epochs = -1.0\n", "training.warmup_epochs = -1: at least 0"),
            ("[training]\nbatch_size = 0\n", "training.batch_size = 0: from 1 to"),
            ("[training]\ndecay_at = [3.0]\n", "go together"),
            ("[training]\ndecay = \"steps\"\n", "go together"),
            ("[training]\ndecay = \"steps\"\ndecay_at = [-5.0]\n", "training.decay_at = -5: epochs from 0 on"),
            ("[training]\nepochs = 9223372036854775807\n", "from 1 to 1,000,000,000"),
            ("[training]\nmomentum = 1.0\n", "below 1"),
            ("[graph]\ntopology = \"rign:8\"\n", "did you mean `ring`?"),
            ("model = \"resnet\"\n", "model `resnet` is unknown"),
            ("seed = \n", "line 1"),
        ] {
            let error = Config::parse(text, &[]).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
