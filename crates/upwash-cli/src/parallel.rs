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

/// All their workers; an error says what they would have to have in common.
pub fn spec(experiments: &[&Experiment]) -> Result<EngineSpec> {
    match experiments {
        [alone] => Ok(alone.engine_spec()),
        several => {
            let specs: Vec<EngineSpec> = several.iter().map(|one| one.engine_spec()).collect();
            EngineSpec::join(&specs).map_err(|error| anyhow!("--parallel-runs: {error}"))
        }
    }
}

/// An engine for all of them.
pub fn engine(args: &EngineArgs, experiments: &[&Experiment]) -> Result<Box<dyn Engine>> {
    args.build(&spec(experiments)?)
}

/// Runs all of them with one progress bar: they go in step.
pub fn execute(engine: &mut dyn Engine, runs: &mut [(&Experiment, RunDirectory)]) -> Vec<Result<Summary, RunError>> {
    let count = runs.len();
    let display = |index| match (count, index) {
        (1, _) => ProgressDisplay::new(false),
        (_, 0) => ProgressDisplay::of_several(count),
        _ => ProgressDisplay::none(),
    };
    let mut displays: Vec<ProgressDisplay> = (0..count).map(display).collect();
    run_parallel(engine, runs, stop_handle(), &mut displays)
}

/// Says which run was interrupted, and how to go on. Not where results are said: they may go into a file.
pub fn interrupted_in(name: &str) -> ExitCode {
    tell!("interrupted in {name}: the same command goes on from there");
    ExitCode::from(INTERRUPTED)
}
