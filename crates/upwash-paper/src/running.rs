//! Runs what is missing.

use super::Args;
use super::cells::Task;
use super::exhibits::Exhibit;
use super::outcomes::Store;
use crate::files;
use crate::output::tell;
use crate::parallel;
use crate::runs::end_cleanly_when_interrupted;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use upwash::algorithm::Variant;
use upwash::config::Config;
use upwash::experiment::{DataPaths, DatasetCache, Experiment};
use upwash::run::{RunDirectory, RunLocation, Status};

/// One run.
pub(super) struct Due {
    pub(super) place: PathBuf,
    name: String,
    text: String,
    pub(super) task: Task,
}

/// All runs that exhibits need, each once: task by task, and there seed by seed, so that something of everything is there
/// early.
pub(super) fn needed(
    exhibits: &[Exhibit],
    variants: &[Variant],
    store: &Store,
    seeds: u64,
) -> Vec<Due> {
    let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
    for seed in 1..=seeds {
        let pairs = exhibits
            .iter()
            .flat_map(|exhibit| exhibit.cells().into_iter().map(move |cell| (exhibit, cell)));
        for (exhibit, cell) in pairs {
            for &variant in exhibit.variants(variants) {
                let place = store.place(&cell, variant, seed);
                // On the digits there is but one task.
                let other_task = store.scale.quick && cell.task != Task::Cifar10;
                if !other_task && seen.insert(place.clone()) {
                    all.push(Due {
                        name: format!("{}, seed {seed}", cell.name(variant)),
                        text: cell.config(variant, &store.scale, seed),
                        task: cell.task,
                        place,
                    });
                }
            }
        }
    }
    all.sort_by_key(|due| due.task);
    all
}

fn prepare(text: &str, name: &str, cache: &mut DatasetCache) -> Result<Experiment> {
    let config = Config::parse(text, &[]).with_context(|| name.to_owned())?;
    let experiment = Experiment::prepare_next(config, &DataPaths::standard(), cache);
    experiment.with_context(|| name.to_owned())
}

pub(super) fn run_what_is_missing(
    args: &Args,
    store: &Store,
    exhibits: &[Exhibit],
    variants: &[Variant],
) -> Result<ExitCode> {
    let seeds = args.seeds(exhibits, variants, store);
    let mut due = needed(exhibits, variants, store, seeds);
    // CIFAR-100 is in no package: who does not have it does without.
    if let Some(first) = due.iter().find(|run| run.task == Task::Cifar100)
        && let Err(error) = prepare(&first.text, "CIFAR-100", &mut DatasetCache::default())
    {
        tell!("note: {error:#}; what needs it is left out");
        due.retain(|run| run.task != Task::Cifar100);
    }
    end_cleanly_when_interrupted()?;
    let (count, mut cache) = (due.len(), DatasetCache::default());
    let mut due = due.into_iter().enumerate().peekable();
    while due.peek().is_some() {
        // The next few that are not done. Two tasks have two networks: they cannot share an engine.
        let mut some: Vec<(Due, Experiment, RunDirectory)> = Vec::new();
        while let Some((number, run)) = due.next_if(|(_, run)| {
            let alike = some.first().is_none_or(|first| first.0.task == run.task);
            alike && some.len() < args.together.get()
        }) {
            let experiment = prepare(&run.text, &run.name, &mut cache)?;
            let home = RunLocation::local(&experiment);
            match RunDirectory::open(&run.place, &experiment, &home)? {
                Some(folder) => {
                    let from = folder.round().map_or(String::new(), |round| {
                        format!(", goes on after round {round}")
                    });
                    tell!("run {} of {count}: {}{from}", number + 1, run.name);
                    some.push((run, experiment, folder));
                }
                None if args.lean => make_lean(&run.place)?,
                None => {}
            }
        }
        if let Some(name) = run_together(args, some)? {
            return Ok(parallel::interrupted_in(&name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs these, and says which was interrupted, if one was.
fn run_together(args: &Args, some: Vec<(Due, Experiment, RunDirectory)>) -> Result<Option<String>> {
    if some.is_empty() {
        return Ok(None);
    }
    let parts = some
        .into_iter()
        .map(|(run, experiment, folder)| ((run, experiment), folder));
    let (runs, folders): (Vec<(Due, Experiment)>, Vec<RunDirectory>) = parts.unzip();
    let experiments: Vec<&Experiment> = runs.iter().map(|(_, experiment)| experiment).collect();
    let mut engine = parallel::engine(&args.engine, &experiments)?;
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": upwash_cli::COMMIT,
        "engine": args.engine.display_name(),
        "together": runs.len(),
    });
    for ((run, _), folder) in runs.iter().zip(&folders) {
        sign(&run.place, about.clone(), folder.round().is_some())?;
    }
    let mut open: Vec<(&Experiment, RunDirectory)> = experiments.into_iter().zip(folders).collect();
    let ended = parallel::execute(&mut *engine, &mut open);
    drop(open);
    let (mut stopped, mut failure) = (None, None);
    for ((run, _), summary) in runs.iter().zip(ended) {
        match summary {
            Ok(summary) if matches!(summary.status, Status::Interrupted { .. }) => {
                stopped.get_or_insert(run.name.clone());
            }
            Ok(_) if args.lean => make_lean(&run.place)?,
            Ok(_) => {}
            // Those that are over are seen to before that is said.
            Err(error) => {
                failure.get_or_insert(anyhow::Error::from(error).context(run.name.clone()));
            }
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(stopped),
    }
}

/// Writes down who computes a run, and who did before, where it goes on.
fn sign(folder: &Path, mut about: Value, goes_on: bool) -> Result<()> {
    let path = folder.join("run.json");
    let there = std::fs::read_to_string(&path).ok().filter(|_| goes_on);
    if let Some(Value::Object(mut last)) = there.and_then(|text| serde_json::from_str(&text).ok()) {
        let before = last.remove("before");
        let mut before = before.and_then(|all| all.as_array().cloned());
        if Value::Object(last.clone()) != about {
            before.get_or_insert_default().push(Value::Object(last));
        }
        if let Some(before) = before {
            about["before"] = before.into();
        }
    }
    let text = serde_json::to_string_pretty(&about)? + "\n";
    files::write(&path, text.as_bytes())
}

/// Leaves out what only a report of single rounds, or more training, would need.
fn make_lean(folder: &Path) -> Result<()> {
    let events = folder.join("events.jsonl");
    let text = std::fs::read_to_string(&events)
        .with_context(|| format!("cannot read {}", events.display()))?;
    let kept: String = text
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("{\"event\":\"round\""))
        .collect();
    if kept.len() < text.len() {
        files::write(&events, kept.as_bytes())?;
    }
    for entry in std::fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        if matches!(kind, Some("upwash" | "safetensors")) {
            std::fs::remove_file(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}
