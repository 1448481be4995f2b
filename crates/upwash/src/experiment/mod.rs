//! Prepares everything that a run needs from its configuration: data, schedule and algorithm. One file, because a
//! quarter of it lists what an experiment consists of and why one cannot be prepared.

mod custom_parts;
mod data;
mod identity;
mod initial_model;
mod links;
mod resolve;
mod warnings;

pub use custom_parts::{CustomParts, ExternalLoop};
pub use data::{DataPaths, DatasetCache, load};
pub(crate) use identity::{ALGORITHM_CHECKSUM, DATA_CHECKSUM};
pub use initial_model::INITIAL_MODEL_FILE;

use crate::algorithm::{Links, Method, Registry, StateVector};
use crate::clock::Clock;
use crate::config::{self, AlgorithmConfig, Config, ConfigError};
use crate::data::{Dataset, OwnData, OwnDataError, PartitionError, Sampler, StoreError, SyntheticError};
use crate::engine::{CpuEngine, EngineSpec, Model, StateRows};
use crate::ids::WorkerId;
use crate::model::{ModelFile, ModelFileError, ModelInfo, Network};
use crate::optimizer::{Muon, Optimizer, Sgd};
use std::sync::Arc;
use upwash_topology::{Graph, GraphError, MatchaError, RotationError, Schedule, ScheduleError, SpecError, Weights};

/// Everything that is fixed before the first round.
///
/// ```
/// use upwash::{config::Config, experiment::{Experiment, DataPaths}};
/// let experiment = Experiment::prepare(Config::default(), &DataPaths::default())?;
/// assert_eq!(experiment.workers(), 8);
/// # Ok::<(), upwash::experiment::ExperimentError>(())
/// ```
#[derive(Debug)]
pub struct Experiment {
    /// The configuration, with all defaults resolved.
    pub config: Config,
    /// The data set.
    pub data: Arc<Dataset>,
    /// The graph before any rotation.
    pub graph: Graph,
    /// The links and mixing weights of each round.
    pub schedule: Schedule,
    /// The relabeling of each copy of the graph: the node at which each worker is. Empty if there is no rotation.
    pub relabelings: Vec<Vec<usize>>,
    /// The algorithm.
    pub method: Method,
    /// The server, if the algorithm needs one: a worker that has no data and is linked to all others.
    pub server: Option<WorkerId>,
    /// The cost model for simulated time.
    pub clock: Clock,
    /// For each worker, the senders whose messages it must receive in every round, whichever links are up. Only for
    /// algorithms whose workers keep copies of each other's models, which must stay up to date.
    pub required_senders: Option<Vec<Vec<WorkerId>>>,
    /// The batches of each worker.
    pub sampler: Sampler,
    /// The network.
    pub network: Network,
    /// Warnings to show to the user before the run starts.
    pub warnings: Vec<String>,
    /// The model from which all workers start, if there is one.
    pub initial_model: Option<Arc<ModelFile>>,
    /// The custom optimizer, if the program supplies one.
    custom_optimizer: Option<Arc<dyn Optimizer>>,
    /// The external training loop, if there is one.
    training_loop: Option<ExternalLoop>,
}

/// The reason why an experiment cannot be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// A value is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The graph cannot be built.
    #[error(transparent)]
    Graph(#[from] SpecError),
    /// MATCHA cannot be applied to the graph.
    #[error(transparent)]
    Matcha(#[from] MatchaError),
    /// The rotation is invalid.
    #[error(transparent)]
    Rotation(#[from] RotationError),
    /// The schedule cannot be built.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The images cannot be split among the workers.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The data set cannot be loaded.
    #[error(transparent)]
    Data(#[from] StoreError),
    /// Own data cannot be loaded.
    #[error(transparent)]
    OwnData(#[from] OwnDataError),
    /// The options of a synthetic data set are invalid.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// The model to start from cannot be used.
    #[error("training.initial_model: {0}")]
    InitialModel(#[from] ModelFileError),
    /// The directed links are invalid.
    #[error("graph.directed_edges: {0}")]
    DirectedEdges(GraphError),
    /// Settings that exclude each other.
    #[error("{0}")]
    Conflict(String),
}

impl Experiment {
    /// Prepares the experiment that `config` describes, with the built-in algorithms.
    pub fn prepare(config: Config, paths: &DataPaths) -> Result<Self, ExperimentError> {
        Self::prepare_with(config, paths, &Registry::standard())
    }

    /// Like [`prepare`](Self::prepare), for one of several experiments: the cache keeps the last data set, so that it
    /// is not loaded again.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upwash::{config::Config, experiment::{Experiment, DataPaths, DatasetCache}};
    /// let mut cache = DatasetCache::default();
    /// let mut next = |text: &str| -> Result<_, Box<dyn std::error::Error>> {
    ///     Ok(Experiment::prepare_next(Config::parse(text, &[])?, &DataPaths::default(), &mut cache)?.data)
    /// };
    /// let (one, other) = (next("seed = 1")?, next("seed = 2")?);
    /// assert!(Arc::ptr_eq(&one, &other));
    /// assert_eq!(next("[data]\ntrain_examples = 100")?.train.len(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare_next(config: Config, paths: &DataPaths, cache: &mut DatasetCache) -> Result<Self, ExperimentError> {
        let registry = Registry::standard();
        Self::prepare_custom(config, paths, &registry, cache, CustomParts::default())
    }

    /// Like [`prepare`](Self::prepare), with the algorithms of a registry.
    pub fn prepare_with(config: Config, paths: &DataPaths, registry: &Registry) -> Result<Self, ExperimentError> {
        let cache = &mut DatasetCache::default();
        Self::prepare_custom(config, paths, registry, cache, CustomParts::default())
    }

    /// Like [`prepare_with`](Self::prepare_with), with the parts that the embedding program supplies.
    pub fn prepare_custom(
        mut config: Config,
        paths: &DataPaths,
        registry: &Registry,
        cache: &mut DatasetCache,
        custom: CustomParts,
    ) -> Result<Self, ExperimentError> {
        custom.write_names(&mut config)?;
        config.check()?;
        let mut warnings = registry.drop_inherited(&mut config.algorithm, &config.graph);
        let AlgorithmConfig { name, options, .. } = &config.algorithm;
        let (method, read) = match custom.algorithm {
            Some(method) => (method, vec![]),
            None => registry.build(name, options, &config.graph)?,
        };
        resolve::resolve(&mut config, &method, read);
        config.graph.topology = config.graph.topology.located_in(&paths.files);
        config.model = config.model.located_in(&paths.files);
        if let Some(own) = OwnData::parse(&config.data.name) {
            config.data.name = own.located_in(&paths.files).to_string();
        }
        let graph = config.graph.topology.build()?;
        check_workers(&config, &graph)?;
        let server = links::server(&config, &method, &graph)?;
        let data = match (custom.dataset, &custom.training_loop) {
            (Some(dataset), _) => data::adjusted(dataset, &config.data),
            (None, Some(training_loop)) => Arc::new(Dataset::unknown(&training_loop.data)),
            (None, None) => cache.data(&config.data, &paths.data)?,
        };
        let sampler = match &custom.training_loop {
            Some(ExternalLoop { batch_size, rounds_per_epoch, .. }) => {
                Sampler::without_data(graph.nodes(), *batch_size, *rounds_per_epoch)
            }
            None => sampler(&config, &data, graph.nodes(), server)?,
        };
        let relabelings = links::relabelings(&config.graph, &method, &graph)?;
        let rounds_per_epoch = sampler.rounds_per_epoch();
        let schedule = links::schedule(&config, &method, &graph, &relabelings, rounds_per_epoch)?;
        let network = match &custom.layers {
            Some(layers) => Network::described(data.train.shape, data.classes, layers),
            None => config.model.build(data.train.shape, data.classes),
        };
        let network = network.map_err(|error| ExperimentError::Conflict(format!("the model: {error}")))?;
        check_size(&config, &network, graph.nodes(), method.state_vectors().len())?;
        // An external training loop refuses such algorithms itself.
        if custom.optimizer.is_none() && custom.training_loop.is_none() {
            check_optimizer(&config, &method, custom.model.is_none().then_some(&network))?;
        }
        let initial_model = initial_model::read(&mut config, &paths.files, &network)?;
        let clock = Clock::new(&config.clock, graph.nodes(), server, config.seed)?;
        warnings.extend(data.notices.iter().cloned());
        let rounds = config.training.epochs.saturating_mul(rounds_per_epoch);
        warnings.extend(links::check(&method, &graph, &schedule, rounds)?);
        let required_senders = links::required_senders(&method, &schedule);
        let mut experiment = Self {
            data,
            method,
            server,
            clock,
            required_senders,
            graph,
            schedule,
            relabelings,
            sampler,
            network,
            warnings,
            initial_model,
            custom_optimizer: custom.optimizer,
            training_loop: custom.training_loop,
            config,
        };
        experiment.add_warnings();
        Ok(experiment)
    }

    /// The number of workers, including a server.
    pub fn workers(&self) -> usize {
        self.graph.nodes()
    }

    /// Whether an external training loop takes the steps, with a model, data and an optimizer that are not known here.
    pub fn is_external(&self) -> bool {
        self.training_loop.is_some()
    }

    /// Whether the number of rounds is known. An external training loop may end when it likes.
    pub fn has_end(&self) -> bool {
        self.training_loop.as_ref().is_none_or(|training_loop| training_loop.rounds.is_some())
    }

    /// The total number of rounds.
    pub fn rounds(&self) -> u64 {
        match &self.training_loop {
            Some(training_loop) => training_loop.last_round(),
            None => self.config.training.epochs.saturating_mul(self.sampler.rounds_per_epoch()),
        }
    }

    /// The workers that have data: all but the server.
    pub fn training_workers(&self) -> Vec<WorkerId> {
        WorkerId::all(self.workers()).filter(|&worker| Some(worker) != self.server).collect()
    }

    /// The workers with which `worker` ever exchanges a message: its neighbors over all rounds, or all others.
    pub fn contacts(&self, worker: WorkerId) -> Vec<WorkerId> {
        links::contacts(&self.method, &self.schedule, &self.graph, self.rounds(), worker)
    }

    /// The local optimizer. It has no momentum if the algorithm applies the momentum itself.
    pub fn optimizer(&self) -> Arc<dyn Optimizer> {
        if let Some(custom) = &self.custom_optimizer {
            return Arc::clone(custom);
        }
        let training = &self.config.training;
        match self.method.synchronous() {
            Some(algorithm) if algorithm.owns_momentum() => {
                Arc::new(Sgd { momentum: 0.0, nesterov: false, ..training.sgd() })
            }
            _ => training.built_in_optimizer(),
        }
    }

    /// The specification of an engine that holds all workers of the experiment.
    pub fn engine_spec(&self) -> EngineSpec {
        let (config, workers) = (&self.config, self.workers());
        let is_equal = config.training.start == Some(config::Start::Equal);
        let start = |worker: u64| (config.seed, if is_equal { 0 } else { worker });
        let rows = |vector: &StateVector| StateRows { name: vector.name.into(), starts: vec![vector.start; workers] };
        EngineSpec {
            data: Arc::clone(&self.data),
            network: self.network.clone(),
            sampler: self.sampler.clone(),
            optimizer: self.optimizer(),
            clip: config.training.clip,
            starts: (0..workers as u64).map(start).collect(),
            state_vectors: self.method.state_vectors().iter().map(rows).collect(),
            keeps_updates: self.method.synchronous().is_none(),
            slow: match config.clock.slow_for_real {
                true => config.clock.slow.clone(),
                false => vec![],
            },
        }
    }

    /// An engine that runs all workers on the CPU of this machine, with gradients computed by `model`.
    pub fn cpu_engine(&self, model: Arc<dyn Model>) -> CpuEngine {
        CpuEngine::new(model, &self.engine_spec())
    }

    /// A readable name of the algorithm, for example `AL-DSGD (sound) over MATCHA (budget 0.5)`.
    pub fn algorithm_name(&self) -> String {
        self.method.display_name()
    }

    /// What the model file of a run says about its model.
    pub fn model_info(&self) -> ModelInfo {
        ModelInfo {
            model: self.config.model.without_folder().to_string(),
            data: self.config.data.without_folder().name,
            algorithm: self.algorithm_name(),
            input: self.network.input,
            classes: self.data.classes,
            class_names: self.data.class_names.clone(),
            scaling: self.data.scaling.clone(),
            layers: ModelInfo::layers_of(&self.network),
        }
    }

    /// A readable name of the graph: its topology and the settings that are not defaults, for example
    /// `ring:8, 3 copies, metropolis weights`.
    pub fn graph_name(&self) -> String {
        let graph = &self.config.graph;
        let mut parts = vec![graph.topology.without_folder().to_string()];
        if graph.directed_edges.is_some() {
            parts.push("directed links".into());
        }
        if self.method.links() == Links::None {
            return parts.join(", ");
        }
        match graph.links {
            None | Some(config::Links::Whole) => {}
            Some(links) => parts.push(format!("links {}", config_name(&links))),
        }
        if graph.copies > 1 {
            parts.push(format!("{} copies", graph.copies));
        }
        if graph.weights != Weights::Optimal {
            parts.push(format!("{} weights", graph.weights));
        }
        parts.join(", ")
    }
}

/// Splits the data among the workers that train, and draws their batches.
fn sampler(
    config: &Config,
    data: &Dataset,
    workers: usize,
    server: Option<WorkerId>,
) -> Result<Sampler, ExperimentError> {
    data.check().map_err(ExperimentError::Conflict)?;
    let trained = workers - usize::from(server.is_some());
    let mut shards = config.data.partition.split(&data.train, data.classes, trained, config.seed)?;
    if let Some(server) = server {
        shards.images.insert(server.0, vec![]);
    }
    Ok(Sampler::new(shards, config.training.batch_size, config.seed))
}

/// The name of an enum value in configurations.
fn config_name(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.trim_matches('"').into()
}

/// Checks that the graph has as many nodes as the configuration has workers, if it says so.
fn check_workers(config: &Config, graph: &Graph) -> Result<(), ExperimentError> {
    match config.workers.filter(|&workers| workers != graph.nodes()) {
        None => Ok(()),
        Some(workers) => Err(ExperimentError::Conflict(format!(
            "workers = {workers}, but the graph `{}` has {} nodes: change one of them, or leave out `workers`",
            config.graph.topology,
            graph.nodes()
        ))),
    }
}

/// Rejects networks that do not fit the images, or that need more memory than any machine has.
fn check_size(config: &Config, network: &Network, workers: usize, state_vectors: usize) -> Result<(), ExperimentError> {
    let conflict = |what: String| Err(ExperimentError::Conflict(what));
    if network.layers.is_empty() {
        return Ok(());
    }
    let Some(parameters) = network.checked_size() else {
        return conflict(format!(
            "model = \"{}\": a layer has no inputs, because the images are too small; use another model",
            config.model
        ));
    };
    // Each worker has a model, an update, a velocity, and the state vectors of the algorithm.
    let bytes = parameters.saturating_mul((3 + state_vectors as u128) * 4).saturating_mul(workers as u128);
    if bytes > 1 << 40 {
        return conflict(format!(
            "model = \"{}\": {workers} workers of {parameters} parameters need {} GB; use a smaller model, or fewer \
             workers",
            config.model,
            bytes / 1_000_000_000
        ));
    }
    Ok(())
}

/// Checks that the built-in optimizer can train with this algorithm, and can train this network if there is one.
fn check_optimizer(config: &Config, method: &Method, network: Option<&Network>) -> Result<(), ExperimentError> {
    let optimizer = &config.training.optimizer;
    if optimizer != "sgd" && method.synchronous().is_some_and(|algorithm| algorithm.owns_momentum()) {
        return Err(ExperimentError::Conflict(format!(
            "training.optimizer = \"{optimizer}\": {} applies the momentum of SGD itself; use training.optimizer = \
             \"sgd\", or another algorithm",
            method.display_name()
        )));
    }
    if optimizer == "muon" && network.is_some_and(|network| Muon::matrices(&network.layout()).next().is_none()) {
        return Err(ExperimentError::Conflict(
            "training.optimizer = \"muon\": the model has no matrices, for which Muon is made; use \"adamw\"".into(),
        ));
    }
    Ok(())
}
