//! What a run is told: TOML, with defaults for all but little of it.

use crate::algorithm::{LeaderScope, Variant};
use crate::data::Partition;
use crate::fleet::Start;
use crate::model::ModelSpec;
use crate::optimizer::{Decay, Rate, Sgd};
use serde::{Deserialize, Serialize};
use upwash_topology::{GraphSpec, Weights};

/// A whole configuration.
///
/// ```
/// use upwash::config::Config;
/// let config = Config::parse("[graph]\ntopology = \"ring:4\"\n", &["training.epochs=3".into()])?;
/// assert_eq!(config.training.epochs, 3);
/// assert_eq!(config.model.to_string(), "mlp:64");
/// # Ok::<(), upwash::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What all random choices depend on.
    pub seed: u64,
    /// The network, as `mlp:64` or `resnet20`.
    #[serde(with = "spelled")]
    pub model: ModelSpec,
    /// What is trained on.
    pub data: DataConfig,
    /// Who talks to whom.
    pub graph: GraphConfig,
    /// How.
    pub algorithm: AlgorithmConfig,
    /// For how long, and with which steps.
    pub training: TrainingConfig,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// `digits` is part of the program.
    pub name: String,
    /// How images are shared out: balanced, iid, dirichlet:ALPHA, shards:N.
    #[serde(with = "spelled")]
    pub partition: Partition,
}

/// `[graph]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GraphConfig {
    /// As `upwash topology list` spells them; its size is the number of workers.
    pub topology: GraphSpec,
    /// optimal, metropolis, uniform or alpha=NUMBER.
    #[serde(with = "spelled")]
    pub weights: Weights,
    /// Which of its links are up in a round (MATCHA has its own way).
    pub links: Links,
    /// Through how many relabelled copies the workers rotate; 1 is no rotation.
    pub copies: usize,
    /// Whose relabellings those are.
    pub relabellings: Relabellings,
    /// In which order they come.
    pub order: CopyOrder,
}

/// Which links of the graph are up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Links {
    /// All of them, always.
    #[default]
    Whole,
    /// As in the code released with the paper: the second and the first matching in turn.
    Released,
    /// The matchings in turn.
    Alternating,
    /// A random matching.
    RandomMatching,
    /// Not the graph's: in round k to the worker 2^k further on.
    OnePeerExponential,
}

/// Where a rotation's relabellings come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relabellings {
    /// A search for balanced ones.
    #[default]
    Balanced,
    /// The paper's L1, L2 and L3 (eight workers, at most three copies).
    Paper,
}

/// In which order a rotation's copies come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyOrder {
    /// One after the other.
    #[default]
    InTurn,
    /// Drawn for every round.
    Random,
    /// As in the released code, by the batch's number in its epoch.
    Released,
}

/// `[algorithm]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlgorithmConfig {
    /// dpsgd, matcha or al-dsgd.
    pub name: AlgorithmName,
    /// What al-dsgd leads: dpsgd or matcha.
    pub base: Base,
    /// MATCHA's part of the links in an average round.
    pub budget: f64,
    /// Exchange models from before the local step.
    pub combine_first: bool,
    /// Which rule of al-dsgd: sound, written or released.
    pub variant: Variant,
    /// Who can lead: closed (itself too) or neighbours-only.
    pub leaders: LeaderScope,
    /// Extra weight of the best neighbour; the variant's own if not given.
    pub w_best: Option<f64>,
    /// Extra weight of the best-connected neighbour.
    pub w_degree: Option<f64>,
    /// Force towards the best neighbour.
    pub lambda_best: Option<f64>,
    /// Force towards the best-connected neighbour.
    pub lambda_degree: Option<f64>,
}

/// The algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlgorithmName {
    /// D-PSGD.
    Dpsgd,
    /// MATCHA.
    Matcha,
    /// AL-DSGD over `base`.
    #[default]
    AlDsgd,
}

/// What AL-DSGD leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// D-PSGD.
    #[default]
    Dpsgd,
    /// MATCHA.
    Matcha,
}

/// `[training]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// How often the largest share is gone through.
    pub epochs: u64,
    /// Images in a worker's batch.
    pub batch: usize,
    /// The learning rate.
    pub rate: f64,
    /// Epochs over which it grows from 0.
    pub warmup_epochs: f64,
    /// constant, steps or cosine.
    pub decay: DecayName,
    /// With steps: the epochs at which it is multiplied ...
    pub decay_at: Vec<f64>,
    /// ... by this.
    pub decay_factor: f64,
    /// Momentum.
    pub momentum: f64,
    /// Nesterov's.
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: f64,
    /// different or equal.
    pub start: Start,
    /// Test every so many epochs (and at the end).
    pub test_every: u64,
    /// Write a checkpoint every so many rounds (and when interrupted); 0 for none.
    pub checkpoint_every: u64,
}

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayName {
    /// It does not.
    #[default]
    Constant,
    /// At `decay_at`.
    Steps,
    /// Along a cosine.
    Cosine,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 1,
            model: ModelSpec::Mlp(vec![64]),
            data: DataConfig::default(),
            graph: GraphConfig::default(),
            algorithm: AlgorithmConfig::default(),
            training: TrainingConfig::default(),
        }
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            name: "digits".into(),
            partition: Partition::Balanced,
        }
    }
}

impl Default for GraphConfig {
    fn default() -> Self {
        Self {
            topology: GraphSpec::Paper(1, 13),
            weights: Weights::Optimal,
            links: Links::Whole,
            copies: 1,
            relabellings: Relabellings::Balanced,
            order: CopyOrder::InTurn,
        }
    }
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        Self {
            name: AlgorithmName::AlDsgd,
            base: Base::Dpsgd,
            budget: 0.5,
            combine_first: false,
            variant: Variant::Sound,
            leaders: LeaderScope::Closed,
            w_best: None,
            w_degree: None,
            lambda_best: None,
            lambda_degree: None,
        }
    }
}

impl Default for TrainingConfig {
    fn default() -> Self {
        Self {
            epochs: 20,
            batch: 16,
            rate: 0.05,
            warmup_epochs: 0.0,
            decay: DecayName::Constant,
            decay_at: vec![],
            decay_factor: 0.1,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
            start: Start::Different,
            test_every: 1,
            checkpoint_every: 500,
        }
    }
}

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
        key: &'static str,
        /// What it is.
        value: String,
        /// What it must be.
        must: String,
    },
}

impl Config {
    /// From TOML, with `key=value` replacements on top.
    pub fn parse(text: &str, replacements: &[String]) -> Result<Self, ConfigError> {
        let mut table: toml::Table = text.parse().map_err(explain)?;
        for replacement in replacements {
            set(&mut table, replacement)?;
        }
        // Errors are explained with their place in the text where that is possible.
        let config: Self = if replacements.is_empty() {
            toml::from_str(text).map_err(explain)?
        } else {
            table.try_into().map_err(explain)?
        };
        config.check()?;
        Ok(config)
    }

    /// As TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration can be written")
    }

    /// Values that are out of range.
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key, value: &dyn std::fmt::Display, must: &str| {
            Err(ConfigError::Value {
                key,
                value: value.to_string(),
                must: must.into(),
            })
        };
        let TrainingConfig {
            epochs,
            batch,
            rate,
            momentum,
            weight_decay,
            ..
        } = self.training;
        if epochs == 0 {
            return wrong("training.epochs", &epochs, "at least 1");
        }
        if batch == 0 {
            return wrong("training.batch", &batch, "at least 1");
        }
        if !(rate > 0.0 && rate.is_finite()) {
            return wrong("training.rate", &rate, "above 0");
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
        if !(self.algorithm.budget > 0.0 && self.algorithm.budget <= 1.0) {
            return wrong(
                "algorithm.budget",
                &self.algorithm.budget,
                "above 0 and at most 1",
            );
        }
        if self.graph.copies == 0 {
            return wrong("graph.copies", &0, "at least 1");
        }
        let pull = self.algorithm.pull();
        for (key, value) in [
            ("algorithm.w_best", pull.w_best),
            ("algorithm.w_degree", pull.w_degree),
            ("algorithm.lambda_best", pull.lambda_best),
            ("algorithm.lambda_degree", pull.lambda_degree),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return wrong(key, &value, "at least 0");
            }
        }
        if pull.w_best + pull.w_degree > 1.0 {
            let sum = pull.w_best + pull.w_degree;
            return wrong("algorithm.w_best + w_degree", &sum, "at most 1");
        }
        Ok(())
    }
}

impl TrainingConfig {
    /// The optimizer.
    pub fn sgd(&self) -> Sgd {
        Sgd {
            momentum: self.momentum,
            nesterov: self.nesterov,
            weight_decay: self.weight_decay,
        }
    }

    /// The learning rate of each round.
    pub fn rate(&self) -> Rate {
        let decay = match self.decay {
            DecayName::Constant => Decay::Constant,
            DecayName::Steps => Decay::Steps {
                at: self.decay_at.clone(),
                factor: self.decay_factor,
            },
            DecayName::Cosine => Decay::Cosine,
        };
        Rate {
            start: self.rate,
            warmup_epochs: self.warmup_epochs,
            decay,
        }
    }
}

/// A key of a nested table and its value: TOML where it parses as such, otherwise a string.
fn set(table: &mut toml::Table, replacement: &str) -> Result<(), ConfigError> {
    let wrong = || ConfigError::Set(replacement.into());
    let (key, value) = replacement.split_once('=').ok_or_else(wrong)?;
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
fn explain(error: toml::de::Error) -> ConfigError {
    let text = error.to_string();
    let quoted: Vec<&str> = error.message().split('`').skip(1).step_by(2).collect();
    let nearest = quoted.split_first().and_then(|(unknown, known)| {
        let distance = |known: &&&str| strsim::damerau_levenshtein(known, unknown);
        known
            .iter()
            .min_by_key(distance)
            .filter(|known| distance(known) <= 3)
    });
    let unknown = error.message().starts_with("unknown");
    ConfigError::Toml(match nearest {
        Some(nearest) if unknown => format!("{}\ndid you mean `{nearest}`?", text.trim_end()),
        _ => text.trim_end().into(),
    })
}

/// Values that are spelled as one string.
mod spelled {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<T: std::fmt::Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: std::str::FromStr<Err: std::fmt::Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
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
        let sets = ["training.rate=0.5", "graph.topology=ring:5", "seed=3"].map(String::from);
        let config = Config::parse("seed = 1\n", &sets).unwrap();
        assert_eq!((config.seed, config.training.rate), (3, 0.5));
        assert_eq!(config.graph.topology.to_string(), "ring:5");
        for bad in ["training.rate", "=3", "training.=3", "seed.x=1"] {
            assert!(Config::parse("seed = 1", &[bad.into()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn mistakes_are_named_with_what_was_meant() {
        for (text, said) in [
            ("[training]\nepoch = 3\n", "did you mean `epochs`?"),
            ("[trainings]\n", "did you mean `training`?"),
            ("[algorithm]\nname = \"dspgd\"\n", "did you mean `dpsgd`?"),
            ("[training]\nrate = -0.1\n", "training.rate = -0.1: above 0"),
            ("[training]\nbatch = 0\n", "training.batch = 0: at least 1"),
            ("[training]\nmomentum = 1.0\n", "below 1"),
            (
                "[algorithm]\nw_best = 0.7\nw_degree = 0.7\n",
                "w_best + w_degree = 1.4: at most 1",
            ),
            (
                "[algorithm]\nbudget = 0.0\n",
                "algorithm.budget = 0: above 0",
            ),
            ("[graph]\ntopology = \"rign:8\"\n", "did you mean `ring`?"),
            ("model = \"resnet\"\n", "model `resnet` is unknown"),
            ("seed = \n", "line 1"),
        ] {
            let error = Config::parse(text, &[]).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
