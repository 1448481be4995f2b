//! Several runs on one engine at the same time.

use super::{Observer, RunDirectory, RunError, StopHandle, Summary, run_in};
use crate::engine::{Engine, EngineSpec, share};
use crate::experiment::Experiment;
use crate::transport::InProcess;

/// Runs several experiments on one engine, round by round. Each has its own directory and observer. The results are the
/// same as those of separate runs.
///
/// # Panics
/// If the number of observers differs from the number of runs, or if a run's thread panics.
pub fn run_parallel<O: Observer + Send>(
    engine: &mut dyn Engine,
    runs: &mut [(&Experiment, RunDirectory)],
    stop: &StopHandle,
    observers: &mut [O],
) -> Vec<Result<Summary, RunError>> {
    assert_eq!(runs.len(), observers.len(), "every run needs one observer");
    if let ([(experiment, directory)], [observer]) = (&mut *runs, &mut *observers) {
        return vec![run_one(engine, experiment, directory, stop, observer)];
    }
    let specs: Vec<EngineSpec> = runs.iter().map(|(experiment, _)| experiment.engine_spec()).collect();
    let (host, shares) = share(&specs, engine.layout());
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (((experiment, directory), observer), mut share) in runs.iter_mut().zip(observers).zip(shares) {
            threads.push(scope.spawn(move || run_one(&mut share, experiment, directory, stop, observer)));
        }
        host.serve(engine);
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(summary) => summary,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    })
}

fn run_one(
    engine: &mut dyn Engine,
    experiment: &Experiment,
    directory: &mut RunDirectory,
    stop: &StopHandle,
    observer: &mut dyn Observer,
) -> Result<Summary, RunError> {
    let mut transport = InProcess::new(experiment.workers());
    run_in(directory, experiment, engine, &mut transport, stop, observer)
}
