//! Several runs on one engine at the same time.

use crate::engines::EngineArgs;
use crate::output::tell;
use crate::progress::ProgressDisplay;
use crate::runs::{INTERRUPTED, stop_handle};
use anyhow::{Result, anyhow};
use std::process::ExitCode;
use upwash::engine::{Engine, EngineSpec};
use upwash::experiment::Experiment;
use upwash::run::{RunDirectory, RunError, Summary, run_parallel};

/// The engine specification for the workers of all experiments. The error names what the experiments must have in
/// common.
pub fn spec(experiments: &[&Experiment]) -> Result<EngineSpec> {
    match experiments {
        [single] => Ok(single.engine_spec()),
        several => {
            let specs: Vec<EngineSpec> = several.iter().map(|one| one.engine_spec()).collect();
            EngineSpec::join(&specs).map_err(|error| anyhow!("--parallel-runs: {error}"))
        }
    }
}

/// Builds one engine for all experiments.
pub fn engine(args: &EngineArgs, experiments: &[&Experiment]) -> Result<Box<dyn Engine>> {
    args.build(&spec(experiments)?)
}

/// Runs all experiments in lockstep, with one progress bar. Beside it is the name of a single one.
pub fn execute(
    engine: &mut dyn Engine,
    runs: &mut [(&Experiment, RunDirectory)],
    name: &str,
) -> Vec<Result<Summary, RunError>> {
    let count = runs.len();
    let display = |index| match (count, index) {
        (1, _) => ProgressDisplay::new(true).named(name),
        (_, 0) => ProgressDisplay::for_runs(count),
        _ => ProgressDisplay::none(),
    };
    let mut displays: Vec<ProgressDisplay> = (0..count).map(display).collect();
    run_parallel(engine, runs, stop_handle(), &mut displays)
}

/// Reports which run was interrupted and how to continue it. Prints to stderr, because stdout may go into a file.
pub fn interrupted_in(name: &str) -> ExitCode {
    tell!("interrupted in {name}: run the same command again to continue");
    ExitCode::from(INTERRUPTED)
}
