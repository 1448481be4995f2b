//! Runs: the round loop, and what stands for it where there are no rounds.

mod control;
mod costs;
pub mod directory;
mod event;
mod meetings;
mod numbers;
mod observer;
mod parallel;
mod recorder;
mod round;
mod rounds;
mod session;
mod summary;
mod team;
mod threads;
mod virtual_time;

pub use control::ControlRequest;
pub use directory::{DirectoryError, RunDirectory, RunLocation};
pub use event::{Event, SCHEMA_VERSION, Sent, Status};
pub use observer::{ControlFlow, Observer, Progress, Snapshot};
pub use parallel::run_parallel;
pub use recorder::{StopHandle, run_in};
pub use summary::{RunResult, Summary, WorkerSummary};
pub use virtual_time::AsyncState;

use crate::algorithm::Method;
use crate::config::Execution;
use crate::engine::Engine;
use crate::experiment::Experiment;
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
    #[error(
        "training.asynchronous = \"threads\" needs workers on the CPU: leave it out, or use --device cpu"
    )]
    Threads,
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
    let placement = transport.placement().clone();
    let (expected, found) = (placement.own().len(), engine.workers());
    if found != expected || placement.workers() != experiment.workers() {
        let engine = found;
        return Err(RunError::Workers { expected, engine });
    }
    let layout = engine.layout().clone();
    let mut session = session::Session::new(experiment, progress, observer, &layout, &placement);
    let mut team = team::Team::new(engine, transport);
    let status = match &experiment.method {
        Method::Synchronous(algorithm) => {
            match rounds::run(&mut session, &**algorithm, &mut team) {
                // It happened elsewhere.
                Err(RunError::Transport(TransportError::Diverged { worker, round })) => {
                    Status::Diverged { worker, round }
                }
                status => status?,
            }
        }
        Method::Asynchronous(algorithm) if !placement.is_whole() => {
            match meetings::run(&mut session, &**algorithm, &mut team) {
                Err(RunError::Transport(TransportError::Diverged { worker, round })) => {
                    Status::Diverged { worker, round }
                }
                status => status?,
            }
        }
        Method::Asynchronous(algorithm) => match experiment.config.training.asynchronous {
            Execution::VirtualTime => virtual_time::run(&mut session, &**algorithm, team.engine),
            Execution::Threads => threads::run(&mut session, &**algorithm, team.engine)?,
        },
    };
    Ok(session.end(status, team)?)
}
