//! Several runs on one engine at the same time.

use crate::engines::EngineArgs;
use crate::progress::ProgressDisplay;
use crate::runs::{RunFolder, execute};
use anyhow::{Result, anyhow};
use upwash::crew::Crew;
use upwash::experiment::Experiment;
use upwash::run::Summary;
use upwash::together::share;

/// What they must have in common, if they do not.
pub(crate) fn check(experiments: &[&Experiment]) -> Result<Crew> {
    Crew::together(experiments).map_err(|error| anyhow!("--together: {error}"))
}

/// Runs all of them, round by round; their results are what they would be alone.
pub(crate) fn execute_together(
    args: &EngineArgs,
    runs: &mut [(&Experiment, RunFolder)],
) -> Result<Vec<Summary>> {
    if let [(experiment, folder)] = runs {
        let mut engine = args.build(&Crew::of(experiment))?;
        let display = ProgressDisplay::new(false);
        return Ok(vec![execute(experiment, &mut *engine, folder, display)?]);
    }
    let experiments: Vec<&Experiment> = runs.iter().map(|(experiment, _)| *experiment).collect();
    let mut engine = args.build(&check(&experiments)?)?;
    let layout = engine.layout().clone();
    let (owner, shares) = share(&experiments, &layout);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, ((experiment, folder), mut share)) in runs.iter_mut().zip(shares).enumerate() {
            // They go in step: one bar is enough.
            let display = match index {
                0 => ProgressDisplay::new(false),
                _ => ProgressDisplay::none(),
            };
            threads.push(scope.spawn(move || execute(experiment, &mut share, folder, display)));
        }
        owner.serve(&mut *engine);
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(summary) => summary,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    })
}
