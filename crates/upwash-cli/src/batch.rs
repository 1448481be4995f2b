//! Several runs of one command: what is not done is run, one after the other or some at a time on one engine.

use crate::engines::EngineArgs;
use crate::output::{note, wrapped};
use crate::parallel;
use anyhow::{Context, Result};
use std::path::PathBuf;
use upwash::engine::EngineSpec;
use upwash::experiment::Experiment;
use upwash::run::directory::{has_ended, refuse_another_run};
use upwash::run::{RunDirectory, RunLocation, Status, Summary};

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
    let due: Vec<&PlannedRun> = planned.iter().filter(|run| !has_ended(&run.folder, &run.experiment)).collect();
    let groups = groups(&due, at_a_time);
    // What no engine can run, or what is too large for this machine, leaves nothing behind.
    for group in &groups {
        engine.check(&parallel::spec(&experiments(group))?)?;
    }
    note_separate_groups(&groups, at_a_time);
    let mut done = planned.len() - due.len();
    for group in groups {
        note!("run {} of {}: {}", done + 1, planned.len(), group[0].name);
        if let Some(interrupted) = run_group(group, engine)? {
            return Ok(Some(interrupted));
        }
        done += group.len();
    }
    Ok(None)
}

/// Divides runs into groups that share an engine: of neighbors in the list, and of at most `at_a_time`.
fn groups<'a, 'b>(mut runs: &'b [&'a PlannedRun], at_a_time: usize) -> Vec<&'b [&'a PlannedRun]> {
    let mut groups = Vec::new();
    while !runs.is_empty() {
        let (group, rest) = runs.split_at(shareable(runs, at_a_time));
        groups.push(group);
        runs = rest;
    }
    groups
}

/// Says once why fewer runs share an engine than the user asked for.
fn note_separate_groups(groups: &[&[&PlannedRun]], at_a_time: usize) {
    let spec = |group: &[&PlannedRun]| group[0].experiment.engine_spec();
    let mut neighbors = groups.windows(2).filter(|pair| pair[0].len() < at_a_time);
    let reason = neighbors.find_map(|pair| EngineSpec::join(&[spec(pair[0]), spec(pair[1])]).err());
    if let Some(reason) = reason {
        let what = format!("note: not all runs share an engine as --parallel-runs {at_a_time} asks: {reason}");
        note!("{}", wrapped(&what, 2));
    }
}

fn experiments<'a>(group: &[&'a PlannedRun]) -> Vec<&'a Experiment> {
    group.iter().map(|run| &run.experiment).collect()
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
    // Another process may have run them in the meantime.
    let group: Vec<&PlannedRun> =
        group.iter().copied().filter(|run| !has_ended(&run.folder, &run.experiment)).collect();
    if group.is_empty() {
        return Ok(None);
    }
    // An engine that cannot be built, for example on a GPU with too little memory, leaves no folder behind.
    let mut built = parallel::engine(engine, &experiments(&group))?;
    let mut due = Vec::new();
    for PlannedRun { folder, experiment, .. } in &group {
        let directory = RunDirectory::open(folder, experiment, &RunLocation::local(experiment))?;
        let ended = || format!("another process has just ended the run in {}: run again", folder.display());
        due.push((experiment, directory.with_context(ended)?));
    }
    engine.note_choice()?;
    let ended = parallel::execute(&mut *built, &mut due, &group[0].name);
    for (run, ended) in group.iter().zip(ended) {
        if matches!(ended?.status, Status::Interrupted { .. }) {
            return Ok(Some(&run.name));
        }
    }
    Ok(None)
}
