//! Several runs of one command: what is not done is run, one after the other or some at a time on one engine.

use crate::engines::EngineArgs;
use crate::output::note;
use crate::parallel;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use upwash::engine::EngineSpec;
use upwash::experiment::Experiment;
use upwash::run::directory::{has_ended, refuse_another_run};
use upwash::run::{DirectoryError, RunDirectory, RunLocation, Status, Summary};

/// A run that a command needs.
pub(crate) struct PlannedRun {
    /// What it is called in messages.
    pub(crate) name: String,
    /// Where its results are.
    pub(crate) folder: PathBuf,
    pub(crate) experiment: Experiment,
}

impl PlannedRun {
    /// The summary of the run, which is over.
    pub(crate) fn summary(&self) -> Result<Summary> {
        let summary = Summary::read(&self.folder)?;
        summary.with_context(|| format!("cannot read {}", self.folder.join(Summary::FILE).display()))
    }
}

/// Runs what is not done. At most `at_a_time` runs share an engine, if their configurations allow it. Returns the name of
/// the run that was interrupted, if one was.
pub(crate) fn run_missing<'a>(
    planned: &'a [PlannedRun],
    at_a_time: usize,
    engine: &EngineArgs,
) -> Result<Option<&'a str>> {
    // Results of other configurations are found before the first run.
    for run in planned {
        refuse_another_run(&run.folder, &run.experiment)?;
    }
    let mut due: &[&PlannedRun] =
        &planned.iter().filter(|run| !has_ended(&run.folder, &run.experiment)).collect::<Vec<_>>();
    // What is too large for this machine leaves nothing behind.
    for run in due {
        engine.check_memory(&run.experiment.engine_spec())?;
    }
    while !due.is_empty() {
        note!("run {} of {}: {}", planned.len() - due.len() + 1, planned.len(), due[0].name);
        let (group, rest) = due.split_at(shareable(due, at_a_time));
        due = rest;
        if let Some(interrupted) = run_group(group, engine)? {
            return Ok(Some(interrupted));
        }
    }
    Ok(None)
}

/// How many of the first runs can share an engine, and at most `limit`.
fn shareable(runs: &[&PlannedRun], limit: usize) -> usize {
    let limit = limit.min(runs.len());
    if limit <= 1 {
        return limit.max(1);
    }
    let first = runs[0].experiment.engine_spec();
    let fits = |run: &&&PlannedRun| EngineSpec::join(&[first.clone(), run.experiment.engine_spec()]).is_ok();
    1 + runs[1..limit].iter().take_while(fits).count()
}

fn run_group<'a>(group: &[&'a PlannedRun], engine: &EngineArgs) -> Result<Option<&'a str>> {
    let (mut names, mut due) = (Vec::new(), Vec::new());
    for run in group {
        if let Some(directory) = open(&run.folder, &run.experiment)? {
            names.push(run.name.as_str());
            due.push((&run.experiment, directory));
        }
    }
    if due.is_empty() {
        return Ok(None);
    }
    let experiments: Vec<&Experiment> = due.iter().map(|(experiment, _)| *experiment).collect();
    let mut engine = parallel::engine(engine, &experiments)?;
    let ended = parallel::execute(&mut *engine, &mut due, names[0]);
    for (name, run) in names.into_iter().zip(ended) {
        if matches!(run?.status, Status::Interrupted { .. }) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn open(folder: &Path, experiment: &Experiment) -> Result<Option<RunDirectory>, DirectoryError> {
    RunDirectory::open(folder, experiment, &RunLocation::local(experiment))
}
