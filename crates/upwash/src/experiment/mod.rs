//! From a configuration to what a run needs: data, schedule, algorithm.

mod data;
mod links;
mod own_parts;
mod resolve;

pub use data::{DataPaths, DatasetCache};
pub use own_parts::OwnParts;

use crate::algorithm::{Links, Method, Registry, StateVector};
use crate::clock::Clock;
use crate::config::{self, AlgorithmConfig, Config, ConfigError};
use crate::data::{Dataset, PartitionError, Sampler, StoreError, SyntheticError};
use crate::engine::{CpuEngine, EngineSpec, Model, StateRows};
use crate::model::{ModelSpec, Network};
use crate::optimizer::Optimizer;
use std::sync::Arc;
use upwash_topology::{Graph, GraphError, MatchaError, RotationError, Schedule, ScheduleError, SpecError, Weights};

/// All that is fixed before the first round.
///
/// ```
/// use upwash::{config::Config, experiment::{Experiment, DataPaths}};
/// let experiment = Experiment::prepare(Config::default(), &DataPaths::default())?;
/// assert_eq!(experiment.workers(), 8);
/// # Ok::<(), upwash::experiment::ExperimentError>(())
/// ```
#[derive(Debug)]
pub struct Experiment {
    /// What was asked for.
    pub config: Config,
    /// What is trained on.
    pub data: Arc<Dataset>,
    /// The graph as it is before any rotation.
    pub graph: Graph,
    /// Which links are up when.
    pub schedule: Schedule,
    /// Where everyone stands in each of the graph's copies, where there are several.
    pub places: Vec<Vec<usize>>,
    /// What is done over them.
    pub method: Method,
    /// Who has no data but everyone's attention, where the algorithm needs one.
    pub server: Option<usize>,
    /// What time would pass elsewhere.
    pub clock: Clock,
    /// Whom each worker must hear in every round, whichever links are up, where others' models are known
    /// by copies that are kept up to date.
    pub audience: Option<Vec<Vec<usize>>>,
    /// Who trains on what when.
    pub sampler: Sampler,
    /// The network.
    pub network: Network,
    /// What a user should know before the start.
    pub warnings: Vec<String>,
    /// The program's own optimizer, if it brings one.
    own_optimizer: Option<Arc<dyn Optimizer>>,
}

/// Why there is no experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// A value is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The graph cannot be built.
    #[error(transparent)]
    Graph(#[from] SpecError),
    /// There is no MATCHA for it.
    #[error(transparent)]
    Matcha(#[from] MatchaError),
    /// There is no such rotation.
    #[error(transparent)]
    Rotation(#[from] RotationError),
    /// There is no such schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The images cannot be shared out.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// Data that is not there.
    #[error(transparent)]
    Data(#[from] StoreError),
    /// Made-up data that cannot be made.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// Directed links that cannot be.
    #[error("graph.directed_edges: {0}")]
    DirectedEdges(GraphError),
    /// Two settings that exclude each other.
    #[error("{0}")]
    Conflict(String),
}

impl Experiment {
    /// Prepares what `config` asks for, with the algorithms that are built in.
    pub fn prepare(config: Config, folders: &DataPaths) -> Result<Self, ExperimentError> {
        Self::prepare_with(config, folders, &Registry::standard())
    }

    /// The same, one of several: data that the last one has read is not read again.
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
    pub fn prepare_next(
        config: Config,
        folders: &DataPaths,
        cache: &mut DatasetCache,
    ) -> Result<Self, ExperimentError> {
        let registry = Registry::standard();
        Self::prepare_own(config, folders, &registry, cache, OwnParts::default())
    }

    /// Prepares what `config` asks for, with the algorithms of a registry.
    pub fn prepare_with(config: Config, folders: &DataPaths, registry: &Registry) -> Result<Self, ExperimentError> {
        let cache = &mut DatasetCache::default();
        Self::prepare_own(config, folders, registry, cache, OwnParts::default())
    }

    /// Prepares what `config` asks for, but for what a program brings itself.
    pub fn prepare_own(
        mut config: Config,
        folders: &DataPaths,
        registry: &Registry,
        cache: &mut DatasetCache,
        own: OwnParts,
    ) -> Result<Self, ExperimentError> {
        own.name_in(&mut config)?;
        config.check()?;
        let AlgorithmConfig { name, options } = &config.algorithm;
        let (method, read) = match own.algorithm {
            Some(method) => (method, vec![]),
            None => registry.build(name, options, &config.graph)?,
        };
        resolve::resolve(&mut config, &method, read);
        config.graph.topology = config.graph.topology.located_in(&folders.files);
        let graph = config.graph.topology.build()?;
        if let Some(workers) = config.workers.filter(|&workers| workers != graph.nodes()) {
            return Err(ExperimentError::Conflict(format!(
                "workers = {workers}, but the graph `{}` has {}: change one of them, or leave \
                 `workers` out",
                config.graph.topology,
                graph.nodes()
            )));
        }
        let server = links::server(&config, &method, &graph)?;
        let data = match own.dataset {
            Some(own) => data::shortened(own, &config.data),
            None => cache.data(&config.data, &folders.data)?,
        };
        data.check().map_err(ExperimentError::Conflict)?;
        let mut shares = config.data.partition.share_out(
            &data.train,
            data.classes,
            graph.nodes() - usize::from(server.is_some()),
            config.seed,
        )?;
        if let Some(server) = server {
            shares.images.insert(server, vec![]);
        }
        let sampler = Sampler::new(shares, config.training.batch_size, config.seed);
        let places = links::places(&config.graph, &method, &graph)?;
        let epoch = sampler.rounds_per_epoch();
        let schedule = links::schedule(&config, &method, &graph, &places, epoch)?;
        let network = config.model.network(data.train.shape, data.classes);
        check_size(&config, &network, graph.nodes(), method.state_vectors().len())?;
        let clock = Clock::new(&config.clock, graph.nodes(), server, config.seed)?;
        let warnings = links::check(&method, &graph, &schedule)?;
        let audience = links::audience(&method, &schedule);
        Ok(Self {
            data,
            method,
            server,
            clock,
            audience,
            graph,
            schedule,
            places,
            sampler,
            network,
            warnings,
            own_optimizer: own.optimizer,
            config,
        })
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.graph.nodes()
    }

    /// How many rounds there are in all.
    pub fn rounds(&self) -> u64 {
        self.config.training.epochs.saturating_mul(self.sampler.rounds_per_epoch())
    }

    /// Those who have data: all but a server.
    pub fn training_workers(&self) -> Vec<usize> {
        (0..self.workers()).filter(|&worker| Some(worker) != self.server).collect()
    }

    /// With whom a worker ever exchanges anything: its neighbors over all rounds, or everyone.
    pub fn contacts(&self, worker: usize) -> Vec<usize> {
        links::contacts(&self.method, &self.schedule, &self.graph, worker)
    }

    /// What a run and its checkpoints belong to: the configuration but for how processes find each other and in which
    /// folder a graph's file is, with a checksum of the graph and the data.
    pub fn identity(&self) -> String {
        let config = Config {
            graph: config::GraphConfig {
                topology: self.config.graph.topology.without_folder(),
                ..self.config.graph.clone()
            },
            network: config::NetworkConfig { precision: self.config.network.precision, ..Default::default() },
            ..self.config.clone()
        };
        let (config, number) = (config.to_toml(), self.fingerprint());
        format!("{config}\n# checksum of the graph and the data: {number:08x}\n")
    }

    /// A number that is the same wherever the same is run.
    pub fn run_number(&self) -> u64 {
        let identity = self.identity();
        let words = [crc32fast::hash(identity.as_bytes()), self.fingerprint()];
        u64::from(words[0]) << 32 | u64::from(words[1])
    }

    /// The optimizer: without momentum where that is the algorithm's own.
    pub fn optimizer(&self) -> Arc<dyn Optimizer> {
        if let Some(own) = &self.own_optimizer {
            return Arc::clone(own);
        }
        let mut sgd = self.config.training.sgd();
        if let Some(algorithm) = self.method.synchronous()
            && algorithm.owns_momentum()
        {
            (sgd.momentum, sgd.nesterov) = (0.0, false);
        }
        Arc::new(sgd)
    }

    /// What an engine must know to hold all of the experiment's workers.
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
            starts: (0..workers as u64).map(start).collect(),
            state_vectors: self.method.state_vectors().iter().map(rows).collect(),
            keeps_updates: self.method.synchronous().is_none(),
            slow: match config.clock.slow_for_real {
                true => config.clock.slow.clone(),
                false => vec![],
            },
        }
    }

    /// All workers on this machine's CPU, with gradients by `model`.
    pub fn cpu_engine(&self, model: Arc<dyn Model>) -> CpuEngine {
        CpuEngine::new(model, &self.engine_spec())
    }

    /// The algorithm in words, as `AL-DSGD (sound) over MATCHA (budget 0.5)`.
    pub fn algorithm_name(&self) -> String {
        self.method.display_name()
    }

    /// The graph in words: its spelling, and what is special about its use, as `ring:8, 3 copies,
    /// metropolis weights`.
    pub fn graph_name(&self) -> String {
        let graph = &self.config.graph;
        let mut words = vec![graph.topology.without_folder().to_string()];
        if graph.directed_edges.is_some() {
            words.push("directed links".into());
        }
        if self.method.links() == Links::None {
            return words.join(", ");
        }
        match graph.links {
            None | Some(config::Links::Whole) => {}
            Some(links) => words.push(format!("links {}", spelled(&links))),
        }
        if graph.copies > 1 {
            words.push(format!("{} copies", graph.copies));
        }
        if graph.weights != Weights::Optimal {
            words.push(format!("{} weights", graph.weights));
        }
        words.join(", ")
    }

    /// A number that changes with the graph or the data, whatever they are called: a run that is
    /// resumed must have the same.
    pub fn fingerprint(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        for (a, b) in self.graph.edges() {
            hash.update(&(*a as u64).to_le_bytes());
            hash.update(&(*b as u64).to_le_bytes());
        }
        // The same links can be up in other rounds.
        for round in (0..16).map(|index| self.schedule.round(index)) {
            for (a, b) in round.links() {
                hash.update(&(*a as u64).to_le_bytes());
                hash.update(&(*b as u64).to_le_bytes());
            }
        }
        for images in [&self.data.train, &self.data.test] {
            hash.update(&images.labels);
            hash.update(&images.pixels);
        }
        hash.finalize()
    }
}

/// As a configuration spells it.
fn spelled(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.trim_matches('"').into()
}

/// Networks that cannot be, or that no memory holds.
fn check_size(config: &Config, network: &Network, workers: usize, state_vectors: usize) -> Result<(), ExperimentError> {
    let conflict = |what: String| Err(ExperimentError::Conflict(what));
    if matches!(config.model, ModelSpec::Custom(_)) {
        return Ok(());
    }
    let Some(parameters) = network.checked_size() else {
        return conflict(format!(
            "model = \"{}\": a layer has no inputs, so small are the images: take another model",
            config.model
        ));
    };
    // Models, updates and velocities, and what the algorithm keeps.
    let bytes = parameters.saturating_mul((3 + state_vectors as u128) * 4).saturating_mul(workers as u128);
    if bytes > 1 << 40 {
        return conflict(format!(
            "model = \"{}\": {workers} workers of {parameters} parameters need {} GB: take a \
             smaller model, or fewer workers",
            config.model,
            bytes / 1_000_000_000
        ));
    }
    Ok(())
}
