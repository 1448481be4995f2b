//! Runs of an experiment: the round loop of synchronous algorithms, and its counterpart for asynchronous ones.

mod asynchronous;
pub mod checkpoint;
mod control;
mod costs;
pub mod directory;
mod end;
mod evaluation;
mod event;
mod initial_model;
mod node;
mod numbers;
mod observer;
mod parallel;
mod recorder;
mod round;
mod session;
mod summary;

pub use asynchronous::{Activity, AsyncState};
pub use control::ControlRequest;
pub use directory::{DirectoryError, RunDirectory, RunLocation};
pub use event::{Event, RunCost, SCHEMA_VERSION, Status};
pub use node::{NextRound, Node};
pub use observer::{ControlFlow, Observer, Progress, Snapshot, TakeSnapshot};
pub use parallel::run_parallel;
pub use recorder::{Recorder, StopHandle, run_in};
pub use summary::{BestModel, RunResult, Summary, WorkerSummary};

use crate::algorithm::Method;
use crate::engine::{Engine, EngineError};
use crate::experiment::Experiment;
use crate::gossip::GossipError;
use crate::model::ModelFileError;
use crate::transport::{InProcess, Transport, TransportError};

/// Why a run cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The engine has a different number of workers than this process should hold.
    #[error(
        "this process holds {expected} workers, but the engine has {engine}: build the engine from the same \
         experiment"
    )]
    Workers {
        /// The number of workers that this process should hold.
        expected: usize,
        /// The number of workers of the engine.
        engine: usize,
    },
    /// The run failed after it had started.
    #[error(
        "the run failed in round {round}: {cause}; {}",
        match checkpoint {
            Some(path) => format!("its last checkpoint is {}: continue with --resume", path.display()),
            None => "it has no checkpoint".into(),
        }
    )]
    Failed {
        /// The first round that was not completed.
        round: u64,
        /// The newest checkpoint, if there is one.
        checkpoint: Option<std::path::PathBuf>,
        /// The cause, which the message includes.
        cause: Box<RunError>,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The algorithm failed.
    #[error("the algorithm failed: {0}")]
    Algorithm(String),
    /// `finish_round` was called without `begin_round`.
    #[error("finish_round without begin_round: begin a round first")]
    NoRound,
    /// An algorithm that replaces the optimizer's momentum needs the built-in optimizer.
    #[error(
        "{0} has its own momentum and cannot use the optimizer of an external training loop: choose another algorithm"
    )]
    OwnsMomentum(String),
    /// An asynchronous algorithm cannot be driven round by round.
    #[error("{0} has no rounds: choose a synchronous algorithm")]
    Asynchronous(String),
    /// The other processes cannot be reached, or sent something invalid.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// An asynchronous algorithm needs one process per worker, or a single process.
    #[error("{0} has no rounds: start one process per worker, or a single process")]
    OneWorkerPerProcess(String),
    /// The run's directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A checkpoint does not fit the engine.
    #[error("the checkpoint in {} does not fit the engine: {what}", path.display())]
    Restore {
        /// The directory.
        path: std::path::PathBuf,
        /// What does not fit.
        what: String,
    },
    /// The model to start from does not fit.
    #[error("training.initial_model: {0}")]
    InitialModel(#[from] ModelFileError),
    /// Workers that never wait for each other have no common model during a run.
    #[error(
        "training.keep_best: the workers of {0} do not stop for an average; remove it, or use virtual time in one process"
    )]
    KeepBest(String),
    /// The averaged model cannot be written.
    #[error("cannot write model.safetensors: {0}")]
    Model(String),
    /// The engine cannot run its workers on separate threads.
    #[error("training.asynchronous = \"threads\" needs workers on the CPU: remove it, or use --device cpu")]
    Threads,
}

impl From<GossipError> for RunError {
    fn from(error: GossipError) -> Self {
        match error {
            GossipError::Transport(error) => error.into(),
            GossipError::Engine(error) => error.into(),
            GossipError::Algorithm(what) => Self::Algorithm(what),
        }
    }
}

/// Runs an experiment from `progress` on an engine that holds all of its workers.
pub fn run(
    experiment: &Experiment,
    engine: &mut dyn Engine,
    progress: Progress,
    observer: &mut dyn Observer,
) -> Result<RunResult, RunError> {
    let mut transport = InProcess::new(experiment.workers());
    run_with(experiment, engine, &mut transport, progress, observer)
}

/// Runs an experiment from `progress` across the processes of a transport. The engine holds this process's workers.
pub fn run_with(
    experiment: &Experiment,
    engine: &mut dyn Engine,
    transport: &mut dyn Transport,
    progress: Progress,
    observer: &mut dyn Observer,
) -> Result<RunResult, RunError> {
    if progress.round == 0 {
        initial_model::load(experiment, engine)?;
    }
    if experiment.method.synchronous().is_some() {
        let mut node = Node::new(experiment, engine, transport, progress, observer)?;
        let status = node::run_rounds(&mut node, engine)?;
        return node.end(status, engine);
    }
    check_workers(experiment, engine, transport)?;
    let Method::Asynchronous(algorithm) = &experiment.method else {
        return Err(RunError::NoRound);
    };
    let placement = transport.placement().clone();
    let layout = engine.layout().clone();
    let mut session = session::Session::new(experiment, progress, observer, &layout, &placement);
    let status = asynchronous::run(&mut session, &**algorithm, engine, transport);
    let status = status.or_else(RunError::into_status)?;
    session.end(status, engine, transport)
}

/// Checks that the engine holds as many workers as this process should.
fn check_workers(experiment: &Experiment, engine: &dyn Engine, transport: &dyn Transport) -> Result<(), RunError> {
    let placement = transport.placement();
    let (expected, found) = (placement.own().len(), engine.workers());
    if found != expected || placement.workers() != experiment.workers() {
        let engine = found;
        return Err(RunError::Workers { expected, engine });
    }
    Ok(())
}
