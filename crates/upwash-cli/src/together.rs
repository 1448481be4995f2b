//! Several runs on one engine at the same time.

use crate::engines::EngineArgs;
use crate::output::tell;
use crate::progress::ProgressDisplay;
use crate::runs::{INTERRUPTED, RunFolder, execute};
use anyhow::{Result, anyhow};
use std::process::ExitCode;
use upwash::engine::Engine;
use upwash::engine::EngineSpec;
use upwash::engine::share;
use upwash::experiment::Experiment;
use upwash::run::Summary;

/// All their workers; an error says what they would have to have in common.
pub(crate) fn spec(experiments: &[&Experiment]) -> Result<EngineSpec> {
    match experiments {
        [alone] => Ok(EngineSpec::of(alone)),
        several => EngineSpec::together(several).map_err(|error| anyhow!("--together: {error}")),
    }
}

/// An engine for all of them.
pub(crate) fn engine(args: &EngineArgs, experiments: &[&Experiment]) -> Result<Box<dyn Engine>> {
    args.build(&spec(experiments)?)
}

/// Runs all of them, round by round; their results are what they would be alone.
pub(crate) fn execute_together(
    engine: &mut dyn Engine,
    runs: &mut [(&Experiment, RunFolder)],
) -> Vec<Result<Summary>> {
    if let [(experiment, folder)] = runs {
        let display = ProgressDisplay::new(false);
        return vec![execute(experiment, engine, folder, display)];
    }
    let experiments: Vec<&Experiment> = runs.iter().map(|(experiment, _)| *experiment).collect();
    let (count, layout) = (experiments.len(), engine.layout().clone());
    let (owner, shares) = share(&experiments, &layout);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, ((experiment, folder), mut share)) in runs.iter_mut().zip(shares).enumerate() {
            // They go in step: one bar is enough.
            let display = match index {
                0 => ProgressDisplay::of_several(count),
                _ => ProgressDisplay::none(),
            };
            threads.push(scope.spawn(move || execute(experiment, &mut share, folder, display)));
        }
        owner.serve(engine);
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(summary) => summary,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    })
}

/// Says which run was interrupted, and how to go on. Not where results are said: they may go into a file.
pub(crate) fn interrupted_in(name: &str) -> ExitCode {
    tell!("interrupted in {name}: the same command goes on from there");
    ExitCode::from(INTERRUPTED)
}
