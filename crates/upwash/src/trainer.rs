//! The entry point of the library: a run from a configuration, with any parts that a program supplies itself.

use crate::algorithm::{Algorithm, Asynchronous, Method, Registry};
use crate::config::{Config, ConfigError};
use crate::data::Dataset;
use crate::engine::{CpuEngine, Engine, EngineError, EngineSpec, Model, native_engine};
use crate::experiment::{CustomParts, DataPaths, DatasetCache, Experiment, ExperimentError};
use crate::ids::WorkerId;
use crate::model::LayerSpec;
use crate::optimizer::Optimizer;
use crate::run::{
    ControlFlow, DirectoryError, Event, Observer, Progress, RunDirectory, RunError, RunLocation, StopHandle, Summary,
    run_in, run_with,
};
use crate::transport::{InProcess, Transport};
use std::path::{Path, PathBuf};
use std::sync::Arc;

type EventObserver<'a> = dyn FnMut(&Event) + 'a;
type EngineBuilder<'a> = dyn FnOnce(&EngineSpec) -> Result<Box<dyn Engine>, EngineError> + 'a;

/// Trains as configured. A program can replace every part that the configuration names by its own.
///
/// A run with an [output](Self::output) directory is like a run of the program `upwash`: `upwash show`, `report`,
/// `watch` and `compare` can read it, and it can be resumed.
///
/// ```no_run
/// # fn model() -> upwash_testkit::Quadratic { upwash_testkit::Quadratic::new(64) }
/// use upwash::Trainer;
///
/// let summary = Trainer::from_file("al-dsgd.toml")?
///     .model(model())                       // any `Model`: a gradient on flat vectors
///     .output("runs/first")
///     .observe(|event| println!("{event:?}"))
///     .run()?;
/// println!("{:.1} % right", 100.0 * summary.mean_accuracy);
/// # Ok::<(), upwash::TrainError>(())
/// ```
pub struct Trainer<'a> {
    config: Config,
    paths: DataPaths,
    registry: Registry,
    own: CustomParts,
    model: Option<Arc<dyn Model>>,
    engine: Option<Box<EngineBuilder<'a>>>,
    transport: Option<Box<dyn Transport + 'a>>,
    output: Option<PathBuf>,
    resume: bool,
    observer: Observers<'a>,
    stop: StopHandle,
}

/// Why a training run could not start or finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The configuration file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The experiment cannot be prepared from its configuration.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The engine cannot be created.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The run's directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// All observers of events.
#[derive(Default)]
struct Observers<'a>(Vec<Box<EventObserver<'a>>>);

impl Observer for Observers<'_> {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        self.0.iter_mut().for_each(|observer| observer(event));
        ControlFlow::Continue
    }
}

impl<'a> Trainer<'a> {
    /// Trains as `config` says, on data sets from where `upwash data get` stores them.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            paths: DataPaths::standard(),
            registry: Registry::standard(),
            own: CustomParts::default(),
            model: None,
            engine: None,
            transport: None,
            output: None,
            resume: false,
            observer: Observers::default(),
            stop: StopHandle::default(),
        }
    }

    /// Trains as a TOML file says. Files that it names are relative to its directory.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TrainError> {
        let path = path.as_ref();
        let text =
            std::fs::read_to_string(path).map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        let trainer = Self::new(Config::parse(&text, &[])?);
        Ok(trainer.files_in(path.parent().unwrap_or(Path::new(""))))
    }

    /// Reads the files that the configuration names relative to this directory instead of the current one.
    #[must_use]
    pub fn files_in(mut self, directory: impl Into<PathBuf>) -> Self {
        self.paths.files = directory.into();
        self
    }

    /// Trains this model instead of a built-in network, on the CPU.
    #[must_use]
    pub fn model(mut self, model: impl Model + 'static) -> Self {
        self.own.model = Some(model.name());
        self.model = Some(Arc::new(model));
        self
    }

    /// Trains a network of these layers instead of a named one, on any engine.
    #[must_use]
    pub fn network(mut self, name: &str, layers: impl Into<Vec<LayerSpec>>) -> Self {
        self.own.model = Some(name.into());
        self.own.layers = Some(layers.into());
        self
    }

    /// Trains on this data set instead of a named one.
    #[must_use]
    pub fn dataset(mut self, data: impl Into<Arc<Dataset>>) -> Self {
        self.own.dataset = Some(data.into());
        self
    }

    /// Uses this synchronous algorithm instead of a named one.
    #[must_use]
    pub fn algorithm(mut self, algorithm: impl Algorithm + 'static) -> Self {
        self.own.algorithm = Some(Method::Synchronous(Box::new(algorithm)));
        self
    }

    /// Uses this asynchronous algorithm instead of a named one.
    #[must_use]
    pub fn asynchronous(mut self, algorithm: impl Asynchronous + 'static) -> Self {
        self.own.algorithm = Some(Method::Asynchronous(Box::new(algorithm)));
        self
    }

    /// Uses this local optimizer instead of SGD.
    #[must_use]
    pub fn optimizer(mut self, optimizer: impl Optimizer + 'static) -> Self {
        self.own.optimizer = Some(Arc::new(optimizer));
        self
    }

    /// Lets a configuration name these algorithms, which may include the program's own.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Computes gradients with the engine that `build` creates for the workers of this process, instead of the
    /// [built-in one](native_engine).
    #[must_use]
    pub fn engine(mut self, build: impl FnOnce(&EngineSpec) -> Result<Box<dyn Engine>, EngineError> + 'a) -> Self {
        self.engine = Some(Box::new(build));
        self
    }

    /// Runs one of several processes, which this transport connects.
    #[must_use]
    pub fn transport(mut self, transport: impl Transport + 'a) -> Self {
        self.transport = Some(Box::new(transport));
        self
    }

    /// Stores configuration, events, checkpoints, summary and model in this directory.
    #[must_use]
    pub fn output(mut self, directory: impl Into<PathBuf>) -> Self {
        self.output = Some(directory.into());
        self
    }

    /// Resumes the run in the output directory, if there is one. A run that is over is not run again, unless the
    /// configuration has more epochs now.
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Calls `observer` with every event.
    #[must_use]
    pub fn observe(mut self, observer: impl FnMut(&Event) + 'a) -> Self {
        self.observer.0.push(Box::new(observer));
        self
    }

    /// Lets this handle end the run, instead of the trainer's own.
    #[must_use]
    pub fn stopped_by(mut self, stop: StopHandle) -> Self {
        self.stop = stop;
        self
    }

    /// A handle that ends the run cleanly from another thread: after the current round, with a checkpoint.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Trains until the run ends or is stopped.
    pub fn run(self) -> Result<Summary, TrainError> {
        let Self { config, paths, registry, own, model, engine, transport, output, resume, mut observer, stop } = self;
        let cache = &mut DatasetCache::default();
        let experiment = Experiment::prepare_custom(config, &paths, &registry, cache, own)?;
        let in_process = || Box::new(InProcess::new(experiment.workers())) as Box<dyn Transport>;
        let mut transport = transport.unwrap_or_else(in_process);
        let placement = transport.placement().clone();
        let own: Vec<WorkerId> = placement.own().collect();
        let spec = experiment.engine_spec().only(&own);
        let mut engine = match (engine, model) {
            (Some(build), _) => build(&spec)?,
            (None, Some(model)) => Box::new(CpuEngine::new(model, &spec)),
            (None, None) => native_engine(&spec)?,
        };
        let Some(output) = output else {
            let mut observer = Stoppable { observer: &mut observer, stop: &stop };
            let progress = Progress::start(experiment.workers());
            let result = run_with(&experiment, &mut *engine, &mut *transport, progress, &mut observer);
            return Ok(result?.summary);
        };
        let location = RunLocation { placement, is_shared: !transport.capabilities().survives_loss };
        let directory = match resume {
            true => RunDirectory::open(&output, &experiment, &location)?,
            false => Some(RunDirectory::create(&output, &experiment, &location)?),
        };
        let Some(mut directory) = directory else {
            let summary = Summary::read(&output)
                .map_err(|source| TrainError::File { path: output.join(Summary::FILE), source })?;
            return summary.ok_or_else(|| DirectoryError::NoCheckpoint(output).into());
        };
        Ok(run_in(&mut directory, &experiment, &mut *engine, &mut *transport, &stop, &mut observer)?)
    }
}

/// The observers of a run without a directory, with its stop handle.
struct Stoppable<'a, 'o> {
    observer: &'a mut Observers<'o>,
    stop: &'a StopHandle,
}

impl Observer for Stoppable<'_, '_> {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        self.observer.observe(event);
        self.while_waiting()
    }

    fn while_waiting(&mut self) -> ControlFlow {
        match self.stop.is_stopped() {
            true => ControlFlow::Stop,
            false => ControlFlow::Continue,
        }
    }
}
