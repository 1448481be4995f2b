//! Runs: the round loop, and what stands for it where there are no rounds.

mod asynchronous;
pub mod checkpoint;
mod control;
mod costs;
pub mod directory;
mod end;
mod evaluation;
mod event;
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
pub use event::{Event, SCHEMA_VERSION, Sent, Status};
pub use node::{NextRound, Node};
pub use observer::{ControlFlow, Observer, Progress, Snapshot, TakeSnapshot};
pub use parallel::run_parallel;
pub use recorder::{StopHandle, run_in};
pub use summary::{RunResult, Summary, WorkerSummary};

use crate::algorithm::Method;
use crate::engine::{Engine, EngineError};
use crate::experiment::Experiment;
use crate::gossip::GossipError;
use crate::transport::{InProcess, Transport, TransportError};

/// Why a run cannot begin, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The engine was made for something else.
    #[error(
        "{expected} workers are in this process, and the engine has {engine}: make the engine from the \
         same experiment"
    )]
    Workers {
        /// Workers that should be here.
        expected: usize,
        /// Workers of the engine.
        engine: usize,
    },
    /// Something failed after the run had begun.
    #[error(
        "the run failed in round {round}: {source}; {}",
        match checkpoint {
            Some(path) => format!("its last checkpoint is {}: resume it (--resume)", path.display()),
            None => "it has no checkpoint".into(),
        }
    )]
    Failed {
        /// The first round that was not completed.
        round: u64,
        /// The newest checkpoint, if there is one.
        checkpoint: Option<std::path::PathBuf>,
        /// What failed.
        source: Box<RunError>,
    },
    /// The engine has failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A round was finished that was not begun.
    #[error("finish_round without begin_round: begin a round first")]
    NoRound,
    /// An algorithm that replaces the optimizer's momentum needs the built-in optimizer.
    #[error(
        "{0} has a momentum of its own, and cannot use another training loop's optimizer: choose another algorithm"
    )]
    OwnsMomentum(String),
    /// An algorithm without rounds cannot be driven round by round.
    #[error("{0} has no rounds: choose a synchronous algorithm")]
    Asynchronous(String),
    /// The other processes cannot be reached, or not be understood.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// An algorithm that has no rounds, in fewer processes than there are workers.
    #[error("{0} has no rounds: start as many processes as there are workers, or one")]
    OneEach(String),
    /// The run's directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A checkpoint does not fit the engine.
    #[error("the checkpoint in {} does not fit: {what}", path.display())]
    Restore {
        /// The directory.
        path: std::path::PathBuf,
        /// What does not fit.
        what: String,
    },
    /// The averaged model cannot be written.
    #[error("cannot write model.safetensors: {0}")]
    Model(String),
    /// The engine's workers cannot be on threads of their own.
    #[error("training.asynchronous = \"threads\" needs workers on the CPU: leave it out, or use --device cpu")]
    Threads,
}

impl From<GossipError> for RunError {
    fn from(error: GossipError) -> Self {
        match error {
            GossipError::Transport(error) => error.into(),
            GossipError::Engine(error) => error.into(),
        }
    }
}

/// Runs an experiment on an engine that holds all of its workers, from `progress` on.
pub fn run(
    experiment: &Experiment,
    engine: &mut dyn Engine,
    progress: Progress,
    observer: &mut dyn Observer,
) -> Result<RunResult, RunError> {
    let mut here = InProcess::new(experiment.workers());
    run_with(experiment, engine, &mut here, progress, observer)
}

/// The same where a transport's processes have the workers: the engine holds those of this one.
pub fn run_with(
    experiment: &Experiment,
    engine: &mut dyn Engine,
    transport: &mut dyn Transport,
    progress: Progress,
    observer: &mut dyn Observer,
) -> Result<RunResult, RunError> {
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

/// Whether the engine has as many workers as this process should have.
fn check_workers(experiment: &Experiment, engine: &dyn Engine, transport: &dyn Transport) -> Result<(), RunError> {
    let placement = transport.placement();
    let (expected, found) = (placement.own().len(), engine.workers());
    if found != expected || placement.workers() != experiment.workers() {
        let engine = found;
        return Err(RunError::Workers { expected, engine });
    }
    Ok(())
}
