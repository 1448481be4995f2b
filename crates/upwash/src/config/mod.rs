//! What a run is told: TOML, with defaults for all but little of it.

mod clock;
mod network;
mod parse;

pub use clock::{ClockConfig, Duplex, NetworkName, PerLink, PerWorker, Preset};
pub use network::{NetworkConfig, PeerConfig, WirePrecision};
pub use parse::ConfigError;

use crate::data::Partition;
use crate::model::ModelSpec;
use crate::optimizer::{Decay, LearningRate, Sgd};
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
    /// How many workers there are: the graph's size, stated once more to be safe, or left out.
    pub workers: Option<usize>,
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
    /// What time would pass elsewhere.
    pub clock: ClockConfig,
    /// How processes find each other; nothing for one process.
    #[serde(skip_serializing_if = "NetworkConfig::is_default")]
    pub network: NetworkConfig,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// `digits` is part of the program, `synthetic:...` is made up; see `upwash data list`.
    pub name: String,
    /// How images are shared out: balanced, iid, dirichlet:ALPHA, shards:N.
    #[serde(with = "spelled")]
    pub partition: Partition,
    /// Train on the first so many images only.
    pub train_examples: Option<usize>,
    /// Test on the first so many images only.
    pub test_examples: Option<usize>,
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
    /// Which of its links are up in a round (MATCHA has its own way); as the variant has it if not
    /// given.
    pub links: Option<Links>,
    /// Links that go one way, (sender, receiver), instead of the topology's; for sgp.
    pub directed_edges: Option<Vec<(usize, usize)>>,
    /// Through how many relabelled copies the workers rotate; 1 is no rotation.
    pub copies: usize,
    /// Which copy comes first.
    pub first_copy: usize,
    /// Whose relabelings those are; as the variant has it if not given.
    pub relabelings: Option<Relabelings>,
    /// In which order they come; as the variant has it if not given.
    pub order: Option<CopyOrder>,
}

/// Which links of the graph are up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Links {
    /// All of them, always.
    Whole,
    /// As in the code released with the paper: the second and the first matching in turn.
    Released,
    /// The matchings in turn.
    Alternating,
    /// A random matching.
    RandomMatching,
    /// Not the graph's: in round k to the worker 2^k further on.
    OnePeerExponential,
    /// Not the graph's: in every round to the workers 1, 2, 4, ... further on.
    Exponential,
}

/// Where a rotation's relabelings come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relabelings {
    /// A search for balanced ones.
    Balanced,
    /// The paper's L1, L2 and L3 (eight workers, at most three copies).
    Paper,
}

/// In which order a rotation's copies come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyOrder {
    /// One after the other.
    InTurn,
    /// Drawn for every round.
    Random,
    /// As in the released code, by the batch's number in its epoch.
    Released,
}

/// `[algorithm]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AlgorithmConfig {
    /// As `upwash algorithms` lists them.
    pub name: String,
    /// Its options, and those of its base where it has one.
    #[serde(flatten)]
    pub options: toml::Table,
}

/// `[training]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// How often the largest share is gone through.
    pub epochs: u64,
    /// Examples in a worker's batch.
    pub batch_size: usize,
    /// The learning rate.
    pub learning_rate: f64,
    /// Epochs over which it grows from 0.
    pub warmup_epochs: f64,
    /// constant, steps or cosine.
    pub decay: DecayName,
    /// With steps: the epochs at which it is multiplied ...
    pub decay_at: Vec<f64>,
    /// ... by this.
    pub decay_factor: f64,
    /// The local optimizer: sgd, or a program's own.
    #[serde(skip_serializing_if = "is_sgd")]
    pub optimizer: String,
    /// Momentum.
    pub momentum: f64,
    /// Nesterov's.
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: f64,
    /// different or equal; as the algorithm has it if not given.
    pub start: Option<Start>,
    /// How asynchronous algorithms are run: in virtual-time, reproducibly, or on threads.
    pub asynchronous: Execution,
    /// Running statistics of batch normalisation: local or averaged.
    pub statistics: Statistics,
    /// Whether the loss on a worker's whole share is measured too, whenever it is tested.
    pub local_train_loss: bool,
    /// Test every so many epochs (and at the end).
    pub test_every: u64,
    /// Write a checkpoint every so many rounds (and when interrupted); 0 for none.
    pub checkpoint_every: u64,
}

const SGD: &str = "sgd";

fn is_sgd(name: &str) -> bool {
    name == SGD
}

/// How an asynchronous algorithm is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// One event after the other, by the clock of the cost model: the same in every run.
    #[default]
    VirtualTime,
    /// A thread for every worker, as fast as each can.
    Threads,
}

/// What becomes of batch normalisation's running statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Statistics {
    /// Every worker keeps its own, as in the released code.
    #[default]
    Local,
    /// Averaged with the neighbors' in every round, with Metropolis weights: a negative weight
    /// could make a variance negative.
    Averaged,
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
            workers: None,
            model: ModelSpec::Mlp(vec![64]),
            data: DataConfig::default(),
            graph: GraphConfig::default(),
            algorithm: AlgorithmConfig::default(),
            training: TrainingConfig::default(),
            clock: ClockConfig::default(),
            network: NetworkConfig::default(),
        }
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self { name: "digits".into(), partition: Partition::Balanced, train_examples: None, test_examples: None }
    }
}

impl Default for GraphConfig {
    fn default() -> Self {
        Self {
            topology: GraphSpec::Paper(1, 13),
            weights: Weights::Optimal,
            links: None,
            directed_edges: None,
            copies: 1,
            first_copy: 0,
            relabelings: None,
            order: None,
        }
    }
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        Self { name: "al-dsgd".into(), options: toml::Table::new() }
    }
}

impl Default for TrainingConfig {
    fn default() -> Self {
        Self {
            epochs: 20,
            batch_size: 16,
            learning_rate: 0.05,
            warmup_epochs: 0.0,
            decay: DecayName::Constant,
            decay_at: vec![],
            decay_factor: 0.1,
            optimizer: SGD.into(),
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
            start: None,
            asynchronous: Execution::VirtualTime,
            statistics: Statistics::Local,
            local_train_loss: false,
            test_every: 1,
            checkpoint_every: 500,
        }
    }
}

/// Where workers start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Each from its own random weights, as the paper's Algorithm 1 says.
    #[default]
    Different,
    /// All from the same.
    Equal,
}

impl TrainingConfig {
    /// The optimizer.
    pub fn sgd(&self) -> Sgd {
        Sgd { momentum: self.momentum, nesterov: self.nesterov, weight_decay: self.weight_decay }
    }

    /// The learning rate of each round.
    pub fn rate(&self) -> LearningRate {
        let decay = match self.decay {
            DecayName::Constant => Decay::Constant,
            DecayName::Steps => Decay::Steps { at: self.decay_at.clone(), factor: self.decay_factor },
            DecayName::Cosine => Decay::Cosine,
        };
        LearningRate { start: self.learning_rate, warmup_epochs: self.warmup_epochs, decay }
    }
}

/// Values that are spelled as one string.
mod spelled {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<T: std::fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: std::str::FromStr<Err: std::fmt::Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
