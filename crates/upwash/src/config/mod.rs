//! The configuration of a run: TOML, with a default for almost every key.

mod clock;
mod explain;
mod network;
mod optimizer;
mod overrides;
mod parse;

pub use clock::{ClockConfig, Duplex, NetworkName, PerLink, PerWorker, Preset};
pub(crate) use explain::suggestion;
pub use network::{NetworkConfig, PeerConfig, WirePrecision};
pub use overrides::Overrides;
pub use parse::ConfigError;

use crate::data::{Augmentation, OwnData, Partition};
use crate::model::ModelSpec;
use crate::optimizer::{Decay, LearningRate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use upwash_topology::{GraphSpec, Weights};

/// The complete configuration of a run.
///
/// ```
/// use upwash::config::Config;
/// let config = Config::parse("[graph]\ntopology = \"ring:4\"\n", &["training.epochs=3".into()])?;
/// assert_eq!(config.training.epochs, 3);
/// assert_eq!(config.model.to_string(), "mlp:64");
/// # Ok::<(), upwash::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of workers, as an optional cross-check: it must equal the number of nodes of the graph.
    pub workers: Option<usize>,
    /// The network to train, for example `mlp:64` or `resnet20`, or `file:NET.toml` for a file that lists its layers.
    #[serde(with = "as_string")]
    #[schemars(with = "String")]
    pub model: ModelSpec,
    /// The data set and how it is split among the workers.
    pub data: DataConfig,
    /// The communication graph.
    pub graph: GraphConfig,
    /// The training algorithm and its options.
    pub algorithm: AlgorithmConfig,
    /// Epochs, batch size, learning rate and optimizer.
    pub training: TrainingConfig,
    /// The cost model that simulates compute and network time.
    pub clock: ClockConfig,
    /// How processes reach each other. A run in one process does not need it.
    #[serde(skip_serializing_if = "NetworkConfig::is_default")]
    pub network: NetworkConfig,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// The data set: `digits` is built in, `synthetic:...` is generated; `upwash data list` prints the others. Own data:
    /// `images:FOLDER` with a folder of PNG or JPEG files for each class, `arrays:FILE` with a file `.npz` or
    /// `.safetensors`.
    pub name: String,
    /// How training images are split among the workers: `balanced`, `iid`, `dirichlet:ALPHA` or `shards:N`.
    #[serde(with = "as_string")]
    #[schemars(with = "String")]
    pub partition: Partition,
    /// Train only on this many images, the first ones of the training set.
    pub train_examples: Option<usize>,
    /// Test only on this many images, the first ones of the test set.
    pub test_examples: Option<usize>,
    /// With `images:FOLDER`: scale the shorter side of every image to this many pixels, and crop the center to a square.
    pub image_size: Option<usize>,
    /// The random augmentation of training images. The default is `crop-and-flip` for CIFAR and `none` for other data.
    pub augmentation: Option<Augmentation>,
}

/// `[graph]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GraphConfig {
    /// The topology, in the notation of `upwash topology list`. Its number of nodes is the number of workers.
    #[schemars(with = "String")]
    pub topology: GraphSpec,
    /// The mixing weights: `optimal`, `metropolis`, `uniform` or `alpha=NUMBER`.
    #[serde(with = "as_string")]
    #[schemars(with = "String")]
    pub weights: Weights,
    /// Which links of the graph are up in a round. MATCHA chooses them itself. The default depends on the variant of
    /// the algorithm.
    pub links: Option<Links>,
    /// Directed links, as (sender, receiver), that replace the links of the topology. Only for `sgp`.
    pub directed_edges: Option<Vec<(usize, usize)>>,
    /// The number of relabeled copies of the graph that the rounds rotate through; 1 means no rotation.
    pub copies: usize,
    /// The index of the copy that the rotation starts with.
    pub first_copy: usize,
    /// Where the relabelings come from. The default depends on the variant of the algorithm.
    pub relabelings: Option<Relabelings>,
    /// The order of the copies. The default depends on the variant of the algorithm.
    pub order: Option<CopyOrder>,
}

/// Which links are up in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Links {
    /// All links of the graph, in every round.
    Whole,
    /// As in the code released with the paper: the second and the first matching alternate.
    Released,
    /// One matching per round, in cyclic order.
    Alternating,
    /// One random matching per round.
    RandomMatching,
    /// Ignores the links of the graph: in round k, worker i of n sends to worker i + 2^(k mod log2 n), modulo n.
    OnePeerExponential,
    /// Ignores the links of the graph: in every round, worker i of n sends to the workers i + 1, i + 2, i + 4, ...,
    /// modulo n.
    Exponential,
    /// Ignores the links of the graph: in round k, workers whose numbers differ in bit k mod log2 n average. For powers of
    /// two, which reach the exact average after log2 n rounds.
    OnePeerHypercube,
    /// Ignores the links of the graph: the Base-2 graph, in which a worker has at most one link in a round, and which
    /// reaches the exact average of any number of workers in a known number of rounds.
    #[serde(rename = "base-2")]
    Base2,
    /// The same with at most two links for each worker.
    #[serde(rename = "base-3")]
    Base3,
    /// The same with at most three.
    #[serde(rename = "base-4")]
    Base4,
    /// The same with at most four.
    #[serde(rename = "base-5")]
    Base5,
}

/// Where the relabelings of a rotation come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Relabelings {
    /// A search for relabelings that balance the degrees of the workers.
    Balanced,
    /// The graphs L1, L2 and L3 of the paper (eight workers, at most three copies).
    Paper,
}

/// The order in which a rotation uses its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CopyOrder {
    /// In cyclic order.
    InTurn,
    /// A random copy in every round.
    Random,
    /// As in the released code: by the index of the batch within its epoch.
    Released,
}

/// `[algorithm]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AlgorithmConfig {
    /// The name of the algorithm, as listed by `upwash algorithms`.
    pub name: String,
    /// The options of the algorithm, including those of its base algorithm if it has one.
    #[serde(flatten)]
    #[schemars(skip)]
    pub options: toml::Table,
    /// Options that come from the text of a configuration whose algorithm an override has replaced. The algorithm that
    /// runs may not have them.
    #[serde(skip)]
    pub inherited: Vec<String>,
}

/// `[training]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// The number of passes over the largest shard.
    pub epochs: u64,
    /// The number of examples in the batch of a worker.
    pub batch_size: usize,
    /// The learning rate after the warmup and before any decay.
    pub learning_rate: f64,
    /// The number of epochs over which the learning rate grows from 0.
    pub warmup_epochs: f64,
    /// The shape of the decay: `constant`, `steps` or `cosine`.
    pub decay: DecayName,
    /// With `decay = "steps"`: the epochs at which the learning rate is multiplied by `decay_factor`.
    pub decay_at: Vec<f64>,
    /// With `decay = "steps"`: the factor of each step.
    pub decay_factor: f64,
    /// The local optimizer: `sgd`, `adamw`, `lion` or `muon`, or `custom:NAME` for one that the embedding program
    /// supplies.
    #[serde(skip_serializing_if = "is_sgd")]
    pub optimizer: String,
    /// The momentum coefficient: of `sgd` (0.9 by default) and `muon` (0.95).
    pub momentum: Option<f64>,
    /// Whether the momentum is Nesterov momentum: of `sgd` (by default not) and `muon` (by default it is).
    pub nesterov: Option<bool>,
    /// The weight decay coefficient: 0 by default for `sgd` and `lion`, 0.01 for `adamw`, 0.1 for `muon`. Only `sgd` adds
    /// it to the gradient.
    pub weight_decay: Option<f64>,
    /// The two factors of the running means of `adamw`, of `lion`, and of `muon` for parameters that are not matrices:
    /// `[0.9, 0.999]` by default, and `[0.9, 0.99]` for `lion`.
    pub betas: Option<[f64; 2]>,
    /// What `adamw`, and `muon` for parameters that are not matrices, add to the root of the mean square: 1e-8 by
    /// default.
    pub epsilon: Option<f64>,
    /// Whether `adamw`, `lion` and `muon` also apply weight decay to biases and to the parameters of normalizations. The
    /// default is false.
    pub decay_norms_and_biases: Option<bool>,
    /// The largest norm of a worker's gradient: longer ones are shortened to it before the optimizer sees them.
    pub clip: Option<f64>,
    /// Whether the initial weights of the workers are `different` or `equal`. The default depends on the algorithm.
    pub start: Option<Start>,
    /// A model from which all workers start: `model.safetensors` of another run, or a file with the same tensors.
    pub initial_model: Option<PathBuf>,
    /// Whether to keep the best averaged model of all evaluations as `best.safetensors`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_best: bool,
    /// How asynchronous algorithms run: in `virtual-time`, which is reproducible, or on `threads`.
    pub asynchronous: Execution,
    /// The running statistics of batch normalization: `local` or `averaged`.
    pub statistics: Statistics,
    /// Whether each evaluation also measures the loss of each worker on its whole shard.
    pub local_train_loss: bool,
    /// The number of epochs between evaluations. The end of the run is always evaluated.
    pub test_every: u64,
    /// The number of rounds between checkpoints; 0 disables them. An interrupted run writes one as well.
    pub checkpoint_every: u64,
}

fn is_sgd(name: &str) -> bool {
    name == optimizer::SGD
}

/// How an asynchronous algorithm runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// As a discrete-event simulation on the clock of the cost model. Every run gives the same result.
    #[default]
    VirtualTime,
    /// With one thread per worker, each at its own speed.
    Threads,
}

/// How the running statistics of batch normalization are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Statistics {
    /// Every worker keeps its own statistics, as in the released code.
    #[default]
    Local,
    /// Neighbors average their statistics in every round. The weights are Metropolis weights, because a negative
    /// weight could make a variance negative.
    Averaged,
}

/// How the learning rate decays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecayName {
    /// It does not decay.
    #[default]
    Constant,
    /// By `decay_factor` at each epoch of `decay_at`.
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
        Self {
            name: "digits".into(),
            partition: Partition::Balanced,
            train_examples: None,
            test_examples: None,
            image_size: None,
            augmentation: None,
        }
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
        Self { name: "al-dsgd".into(), options: toml::Table::new(), inherited: vec![] }
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
            optimizer: optimizer::SGD.into(),
            momentum: None,
            nesterov: None,
            weight_decay: None,
            betas: None,
            epsilon: None,
            decay_norms_and_biases: None,
            clip: None,
            start: None,
            initial_model: None,
            keep_best: false,
            asynchronous: Execution::VirtualTime,
            statistics: Statistics::Local,
            local_train_loss: false,
            test_every: 1,
            checkpoint_every: 500,
        }
    }
}

/// How the workers initialize their models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Each worker draws its own random weights, as in Algorithm 1 of the paper.
    #[default]
    Different,
    /// All workers start from the same weights.
    Equal,
}

impl DataConfig {
    /// The same, with the path of own data reduced to its last name.
    pub(crate) fn without_folder(&self) -> Self {
        let name = OwnData::parse(&self.name).map(|own| own.without_folder().to_string());
        Self { name: name.unwrap_or_else(|| self.name.clone()), ..self.clone() }
    }
}

impl TrainingConfig {
    /// The learning-rate schedule.
    pub fn rate(&self) -> LearningRate {
        let decay = match self.decay {
            DecayName::Constant => Decay::Constant,
            DecayName::Steps => Decay::Steps { at: self.decay_at.clone(), factor: self.decay_factor },
            DecayName::Cosine => Decay::Cosine,
        };
        LearningRate { start: self.learning_rate, warmup_epochs: self.warmup_epochs, decay }
    }
}

/// Serializes values as strings, by `Display` and `FromStr`.
mod as_string {
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
