//! Runs the experiments whose results are missing.

use crate::Args;
use crate::artifacts::Artifact;
use crate::outcomes::Store;
use crate::provenance::Provenance;
use crate::scale::Task;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use upwash::algorithm::Variant;
use upwash::config::Config;
use upwash::experiment::{DataPaths, DatasetCache, Experiment};
use upwash::run::{Event, RunDirectory, RunLocation, Status};
use upwash_cli::runs::end_cleanly_when_interrupted;
use upwash_cli::{files, parallel, tell};

/// A run that a table or figure needs.
pub(crate) struct PlannedRun {
    pub(crate) directory: PathBuf,
    name: String,
    config: String,
    pub(crate) task: Task,
}

/// A run that is about to start or continue.
type OpenRun = (PlannedRun, Experiment, RunDirectory);

/// All runs that the artifacts need, each once. They are ordered by task and then by seed, so that every experiment has
/// a first result early.
pub(crate) fn needed_runs(artifacts: &[Artifact], variants: &[Variant], store: &Store, seeds: u64) -> Vec<PlannedRun> {
    let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
    for seed in 1..=seeds {
        for artifact in artifacts {
            let mut experiments = artifact.experiments();
            experiments.retain(|experiment| store.scale.has(experiment.task));
            for experiment in experiments {
                for &variant in artifact.variants(variants) {
                    let directory = store.directory(&experiment, variant, seed);
                    if seen.insert(directory.clone()) {
                        all.push(PlannedRun {
                            name: format!("{}, seed {seed}", experiment.name(variant)),
                            config: experiment.config(variant, &store.scale, seed),
                            task: experiment.task,
                            directory,
                        });
                    }
                }
            }
        }
    }
    all.sort_by_key(|run| run.task);
    all
}

fn prepare(config: &str, name: &str, cache: &mut DatasetCache) -> Result<Experiment> {
    let config = Config::parse(config, &[]).with_context(|| name.to_owned())?;
    let experiment = Experiment::prepare_next(config, &DataPaths::standard(), cache);
    experiment.with_context(|| name.to_owned())
}

/// Runs everything that the artifacts need and that has not finished yet.
pub(crate) fn run_missing(
    args: &Args,
    store: &Store,
    artifacts: &[Artifact],
    variants: &[Variant],
) -> Result<ExitCode> {
    let seeds = args.seeds(artifacts, variants, store);
    let mut planned = needed_runs(artifacts, variants, store, seeds);
    // CIFAR-100 is not available as a package. Without it, the runs that need it are skipped.
    if let Some(first) = planned.iter().find(|run| run.task == Task::Cifar100)
        && let Err(error) = prepare(&first.config, "CIFAR-100", &mut DatasetCache::default())
    {
        tell!("note: {error:#}; experiments that need it are left out");
        planned.retain(|run| run.task != Task::Cifar100);
    }
    end_cleanly_when_interrupted()?;
    let (count, mut cache) = (planned.len(), DatasetCache::default());
    let mut planned = planned.into_iter().enumerate().peekable();
    while planned.peek().is_some() {
        // The next unfinished runs of one task. Tasks have different networks, which cannot share an engine.
        let mut open: Vec<OpenRun> = Vec::new();
        while let Some((number, run)) = planned.next_if(|(_, run)| {
            let has_same_task = open.first().is_none_or(|first| first.0.task == run.task);
            has_same_task && open.len() < args.parallel_runs.get()
        }) {
            let experiment = prepare(&run.config, &run.name, &mut cache)?;
            let location = RunLocation::local(&experiment);
            match RunDirectory::open(&run.directory, &experiment, &location)? {
                Some(directory) => {
                    let from =
                        directory.round().map_or(String::new(), |round| format!(", continues after round {round}"));
                    tell!("run {} of {count}: {}{from}", number + 1, run.name);
                    open.push((run, experiment, directory));
                }
                None if args.compact => compact(&run.directory)?,
                None => {}
            }
        }
        if let Some(name) = run_parallel(args, open)? {
            return Ok(parallel::interrupted_in(&name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs these at the same time. Returns the name of the first one that was interrupted.
fn run_parallel(args: &Args, open: Vec<OpenRun>) -> Result<Option<String>> {
    if open.is_empty() {
        return Ok(None);
    }
    let (mut runs, mut experiments, mut directories) = (Vec::new(), Vec::new(), Vec::new());
    for (run, experiment, directory) in open {
        runs.push(run);
        experiments.push(experiment);
        directories.push(directory);
    }
    let experiments: Vec<&Experiment> = experiments.iter().collect();
    let mut engine = parallel::engine(&args.engine, &experiments)?;
    let provenance = Provenance::new(args.engine.display_name()?, runs.len());
    for (run, directory) in runs.iter().zip(&directories) {
        let is_resumed = directory.round().is_some();
        provenance.clone().write(&run.directory, is_resumed)?;
    }
    args.engine.note_choice()?;
    let mut open: Vec<(&Experiment, RunDirectory)> = experiments.into_iter().zip(directories).collect();
    let ended = parallel::execute(&mut *engine, &mut open, runs.first().map_or("", |run| run.name.as_str()));
    drop(open);
    let (mut stopped, mut failure) = (None, None);
    for (run, summary) in runs.into_iter().zip(ended) {
        match summary {
            Ok(summary) if matches!(summary.status, Status::Interrupted { .. }) => {
                stopped.get_or_insert(run.name);
            }
            Ok(_) if args.compact => compact(&run.directory)?,
            Ok(_) => {}
            // The error is returned after the finished runs have been compacted.
            Err(error) => {
                failure.get_or_insert(anyhow::Error::from(error).context(run.name));
            }
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(stopped),
    }
}

/// Removes the files and events that only reports of single rounds or further training would need.
fn compact(directory: &Path) -> Result<()> {
    let events = directory.join("events.jsonl");
    let text = files::read(&events)?;
    let is_round = |line: &&str| matches!(serde_json::from_str(line), Ok(Event::Round { .. }));
    let kept: String = text.split_inclusive('\n').filter(|line| !is_round(line)).collect();
    if kept.len() < text.len() {
        files::write(&events, kept.as_bytes())?;
    }
    for entry in std::fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        if matches!(kind, Some("upwash" | "safetensors")) {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}
