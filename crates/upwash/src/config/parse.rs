//! How a configuration is read, and what is said of one that cannot be used.

use super::{Config, DecayName, TrainingConfig};

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
        let wrong = |key: &str, value: &dyn std::fmt::Display, must: &str| {
            Err(ConfigError::Value {
                key: key.into(),
                value: value.to_string(),
                must: must.into(),
            })
        };
        self.network.check()?;
        let TrainingConfig {
            epochs,
            batch_size,
            learning_rate,
            momentum,
            weight_decay,
            ..
        } = self.training;
        if self.seed > i64::MAX as u64 {
            return wrong("seed", &self.seed, "at most 9223372036854775807");
        }
        if epochs == 0 || epochs > MOST {
            return wrong("training.epochs", &epochs, "from 1 to 1,000,000,000");
        }
        if batch_size == 0 || batch_size > 1_000_000 {
            return wrong("training.batch_size", &batch_size, "from 1 to 1,000,000");
        }
        if !(learning_rate > 0.0 && learning_rate.is_finite()) {
            return wrong(
                "training.learning_rate",
                &learning_rate,
                "a finite number above 0",
            );
        }
        let optimizer = &self.training.optimizer;
        if optimizer != "sgd" && !optimizer.starts_with(crate::model::CUSTOM) {
            return wrong("training.optimizer", optimizer, "\"sgd\"");
        }
        let steps = self.training.decay == DecayName::Steps;
        if steps == self.training.decay_at.is_empty() {
            let must = "go together: `decay = \"steps\"` and the epochs of its steps";
            let value = format!("{:?}", self.training.decay_at);
            return wrong("training.decay_at and decay", &value, must);
        }
        let mut at = self.training.decay_at.iter();
        if let Some(at) = at.find(|at| !(**at >= 0.0 && at.is_finite())) {
            return wrong("training.decay_at", at, "epochs from 0 on");
        }
        if self.training.test_every > MOST || self.training.checkpoint_every > MOST {
            let value = self.training.test_every.max(self.training.checkpoint_every);
            let key = "training.test_every and checkpoint_every";
            return wrong(key, &value, "at most 1,000,000,000");
        }
        let TrainingConfig {
            warmup_epochs,
            decay_factor,
            ..
        } = self.training;
        if !(warmup_epochs >= 0.0 && warmup_epochs.is_finite()) {
            return wrong("training.warmup_epochs", &warmup_epochs, "at least 0");
        }
        if !(decay_factor > 0.0 && decay_factor <= 1.0) {
            return wrong(
                "training.decay_factor",
                &decay_factor,
                "above 0 and at most 1",
            );
        }
        if !(0.0..1.0).contains(&momentum) {
            return wrong("training.momentum", &momentum, "at least 0 and below 1");
        }
        if !(weight_decay >= 0.0 && weight_decay.is_finite()) {
            return wrong("training.weight_decay", &weight_decay, "at least 0");
        }
        if self.training.nesterov && momentum == 0.0 {
            return wrong("training.nesterov", &true, "with a momentum above 0 only");
        }
        if self.training.test_every == 0 {
            return wrong("training.test_every", &0, "at least 1");
        }
        for (key, images) in [
            ("data.train_examples", self.data.train_examples),
            ("data.test_examples", self.data.test_examples),
        ] {
            if images == Some(0) {
                return wrong(key, &0, "at least 1");
            }
        }
        if self.graph.copies == 0 {
            return wrong("graph.copies", &0, "at least 1");
        }
        if self.graph.first_copy >= self.graph.copies {
            let must = format!("below graph.copies = {}", self.graph.copies);
            return wrong("graph.first_copy", &self.graph.first_copy, &must);
        }
        Ok(())
    }
}

/// A key of a nested table and its value: TOML where it parses as such, otherwise a string.
fn set(table: &mut toml::Table, replacement: &str) -> Result<(), ConfigError> {
    let wrong = || ConfigError::Set(replacement.into());
    let (key, value) = replacement.split_once('=').ok_or_else(wrong)?;
    let value = value.trim();
    let parsed = format!("value = {value}").parse::<toml::Table>().ok();
    let value = parsed
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(value.into()));
    let mut path: Vec<&str> = key.trim().split('.').collect();
    let last = path
        .pop()
        .filter(|last| !last.is_empty())
        .ok_or_else(wrong)?;
    let mut here = table;
    for part in path {
        let next = here
            .entry(part)
            .or_insert_with(|| toml::Table::new().into());
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
        known
            .iter()
            .min_by_key(distance)
            .filter(|known| distance(known) <= 3)
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
        let sets = [
            "training.learning_rate=0.5",
            "graph.topology=ring:5",
            "seed=3",
        ]
        .map(String::from);
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
        let error = said(
            "seed = 1\n",
            &["seed=2", "training.learning_rat=3", "seed=4"],
        );
        assert!(
            error.starts_with("--set training.learning_rat=3: "),
            "{error}"
        );
        assert!(error.contains("did you mean `learning_rate`?"), "{error}");
        assert!(!error.contains("line"), "{error}");
        let error = said("", &["graph.topology=ring:1"]);
        assert!(
            error.starts_with("--set graph.topology=ring:1: "),
            "{error}"
        );
        // What is wrong is named, not what is replaced.
        let text = "seed = \"x\"\n[training]\nlearning_rat = 1\n";
        assert!(said(text, &["seed=3"]).contains("learning_rat"));
        let error = said("seed = \"x\"\n", &["training.learning_rat=3", "seed=3"]);
        assert!(
            error.starts_with("--set training.learning_rat=3: "),
            "{error}"
        );
        // What is replaced need not be right.
        let sets = ["seed=3".to_string()];
        assert_eq!(Config::parse("seed = \"x\"\n", &sets).unwrap().seed, 3);
    }

    #[test]
    fn mistakes_are_named_with_what_was_meant() {
        for (text, said) in [
            ("[training]\nepoch = 3\n", "did you mean `epochs`?"),
            ("[trainings]\n", "did you mean `training`?"),
            (
                "[training]\nlearning_rate = -0.1\n",
                "training.learning_rate = -0.1: a finite number above 0",
            ),
            (
                "[training]\ndecay_factor = -0.1\n",
                "training.decay_factor = -0.1: above 0",
            ),
            (
                "[training]\nwarmup_epochs = -1.0\n",
                "training.warmup_epochs = -1: at least 0",
            ),
            (
                "[training]\nbatch_size = 0\n",
                "training.batch_size = 0: from 1 to",
            ),
            ("[training]\ndecay_at = [3.0]\n", "go together"),
            ("[training]\ndecay = \"steps\"\n", "go together"),
            (
                "[training]\ndecay = \"steps\"\ndecay_at = [-5.0]\n",
                "training.decay_at = -5: epochs from 0 on",
            ),
            (
                "[training]\nepochs = 9223372036854775807\n",
                "from 1 to 1,000,000,000",
            ),
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
