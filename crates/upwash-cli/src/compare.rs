//! `upwash compare`: several configurations, one table.

use crate::engines::EngineArgs;
use crate::parallel;
use crate::runs::{DIVERGED, end_cleanly_when_interrupted, read_next_config};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use upwash::experiment::{DatasetCache, Experiment};
use upwash::run::{RunDirectory, RunLocation, Status, Summary};
use upwash_report::{Epoch, Run};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configurations, TOML; a run is called as its file
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    /// Replace a value of every configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    replacements: Vec<String>,
    /// The folder for results, one folder a run; what is done there is not run again, what was stopped
    /// goes on
    #[arg(long, value_name = "DIR", default_value = "runs/compare")]
    out: PathBuf,
    /// Also show what each run had cost when the workers' mean accuracy first reached so many percent
    #[arg(long, value_name = "PERCENT")]
    reach: Option<f64>,
    /// Run all at the same time, their workers in one engine: faster on a GPU. Results are the same
    #[arg(long)]
    parallel_runs: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    // Everything that can be wrong is said before the first run.
    if let Some(percent) = args.reach {
        let what = "--reach: write a percentage, above 0 and at most 100";
        ensure!(percent > 0.0 && percent <= 100.0, what);
    }
    let (mut prepared, mut cache) = (Vec::new(), DatasetCache::default());
    let mut names = BTreeSet::new();
    for path in &args.configs {
        let experiment = read_next_config(path, &args.replacements, &mut cache)?;
        let stem = path.file_stem().context("a configuration has a name")?;
        let name = stem.to_string_lossy().into_owned();
        ensure!(
            names.insert(name.clone()),
            "two configurations are called {name}: their results would be in one folder"
        );
        prepared.push((name, experiment));
    }
    end_cleanly_when_interrupted()?;
    if let Some(name) = run_what_is_missing(args, &prepared)? {
        return Ok(parallel::interrupted_in(name));
    }
    let mut rows = Vec::new();
    for (name, _) in &prepared {
        let folder = args.out.join(name);
        let summary = Summary::read(&folder)?;
        let cannot = || format!("cannot read {}", folder.join(Summary::FILE).display());
        rows.push((name, summary.with_context(cannot)?));
    }
    table(out, &rows)?;
    if let Some(percent) = args.reach {
        reached(out, &args.out, &rows, percent)?;
    }
    writeln!(out, "\nresults are in {}", args.out.display())?;
    Ok(match rows.iter().any(|(_, row)| has_diverged(row)) {
        true => ExitCode::from(DIVERGED),
        false => ExitCode::SUCCESS,
    })
}

/// What is not done: one after the other, or all on one engine. Says which was interrupted.
fn run_what_is_missing<'a>(args: &Args, prepared: &'a [(String, Experiment)]) -> Result<Option<&'a String>> {
    let mut at_a_time = 1;
    if args.parallel_runs {
        at_a_time = prepared.len();
        // What cannot share an engine leaves nothing behind.
        let all: Vec<&Experiment> = prepared.iter().map(|(_, experiment)| experiment).collect();
        parallel::spec(&all)?;
    }
    for some in prepared.chunks(at_a_time) {
        let (mut names, mut due) = (Vec::new(), Vec::new());
        for (name, experiment) in some {
            let (path, location) = (args.out.join(name), RunLocation::local(experiment));
            if let Some(directory) = RunDirectory::open(&path, experiment, &location)? {
                names.push(name);
                due.push((experiment, directory));
            }
        }
        if due.is_empty() {
            continue;
        }
        let experiments: Vec<&Experiment> = due.iter().map(|(experiment, _)| *experiment).collect();
        let mut engine = parallel::engine(&args.engine, &experiments)?;
        let ended = parallel::execute(&mut *engine, &mut due);
        for (name, run) in names.into_iter().zip(ended) {
            if matches!(run?.status, Status::Interrupted { .. }) {
                return Ok(Some(name));
            }
        }
    }
    Ok(None)
}

fn table(out: &mut impl Write, rows: &[(&String, Summary)]) -> Result<()> {
    let width = name_width(rows);
    writeln!(out, "{:<width$}  mean %  worst %  averaged %  rounds        MB   sim s  wall s", "test accuracy")?;
    for (name, row) in rows {
        let percent = |part: f64| match has_diverged(row) || part.is_nan() {
            false => format!("{:.2}", 100.0 * part),
            true => "-".into(),
        };
        writeln!(
            out,
            "{name:<width$}{:>8}{:>9}{:>12}{:>8}{:>10.1}{:>8.1}{:>8.1}",
            percent(row.mean_accuracy),
            percent(row.worst_accuracy),
            percent(row.averaged_model_accuracy),
            row.rounds,
            row.sent.bytes_sent as f64 / 1e6,
            row.sent.simulated_seconds,
            row.wall_seconds.unwrap_or(f64::NAN)
        )?;
    }
    writeln!(out)?;
    for (name, row) in rows {
        let diverged = match row.status {
            Status::Diverged { round, .. } => format!("; diverged in round {round}"),
            _ => String::new(),
        };
        writeln!(out, "{name}: {} on {}{diverged}", row.algorithm, row.graph)?;
    }
    Ok(())
}

fn has_diverged(row: &Summary) -> bool {
    matches!(row.status, Status::Diverged { .. })
}

/// What each run had cost when its workers' mean accuracy first was at least `percent`.
fn reached(out: &mut impl Write, folder: &Path, rows: &[(&String, Summary)], percent: f64) -> Result<()> {
    writeln!(out, "\nto a mean accuracy of {percent} %")?;
    let width = name_width(rows);
    writeln!(out, "{:<width$}   epoch        MB   sim s", "")?;
    for (name, row) in rows {
        let run = Run::read(&folder.join(name))?;
        let enough = |epoch: &&Epoch| {
            let tested = epoch.accuracies.iter().flatten().enumerate();
            let tested = tested.filter(|(worker, _)| Some(*worker) != row.server);
            let tested: Vec<f64> = tested.filter_map(|(_, part)| *part).collect();
            100.0 * tested.iter().sum::<f64>() / tested.len().max(1) as f64 >= percent
        };
        match run.epochs.iter().find(enough) {
            Some(epoch) => writeln!(
                out,
                "{name:<width$}{:>8}{:>10.1}{:>8.1}",
                epoch.epoch,
                epoch.bytes as f64 / 1e6,
                epoch.seconds
            )?,
            None => writeln!(out, "{name:<width$}   never")?,
        }
    }
    Ok(())
}

fn name_width(rows: &[(&String, Summary)]) -> usize {
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max();
    longest.unwrap_or(0).clamp(16, 26)
}
