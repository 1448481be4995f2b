//! Runs: the round loop, and what stands for it where there are no rounds.

mod course;
mod report;
mod rounds;
mod threads;
mod virtual_time;

pub use report::{Event, Moment, Next, Node, Observer, Outcome, Progress, Sent, Status, Summary};
pub use virtual_time::Flight;

use crate::algorithm::Method;
use crate::config::Execution;
use crate::engine::Engine;
use crate::experiment::Experiment;

/// Why a run cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The engine was made for something else.
    #[error(
        "the graph has {graph} workers and the engine {engine}: make the engine from the same experiment"
    )]
    Workers {
        /// Workers of the graph.
        graph: usize,
        /// Workers of the engine.
        engine: usize,
    },
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
) -> Result<Outcome, RunError> {
    let workers = experiment.workers();
    if engine.workers() != workers {
        return Err(RunError::Workers {
            graph: workers,
            engine: engine.workers(),
        });
    }
    let mut course = course::Course::new(experiment, progress, observer, engine.layout());
    let status = match &experiment.method {
        Method::Synchronous(algorithm) => rounds::run(&mut course, &**algorithm, engine),
        Method::Asynchronous(algorithm) => match experiment.config.training.asynchronous {
            Execution::VirtualTime => virtual_time::run(&mut course, &**algorithm, engine),
            Execution::Threads => threads::run(&mut course, &**algorithm, engine)?,
        },
    };
    Ok(course.end(status, engine))
}
