//! `upwash compare`: several configurations, one table.

use crate::batch::{self, PlannedRun};
use crate::configs;
use crate::engines::EngineArgs;
use crate::parallel;
use crate::runs::{DIVERGED, end_cleanly_when_interrupted};
use crate::seeds::{self, SeedGroup, has_diverged, is_odd_clock};
use crate::training_args::TrainingArgs;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use upwash::WorkerId;
use upwash::experiment::DatasetCache;
use upwash::run::{Status, Summary};
use upwash_report::{Epoch, Run};

/// The width of names in tables.
const NAME_WIDTH: usize = 16;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configurations, TOML; each run is named after its file
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    #[command(flatten)]
    training: TrainingArgs,
    /// The folder for results, with a folder for each run; finished runs are not repeated, interrupted ones continue. All
    /// --set and --unset must be given again
    #[arg(long, value_name = "DIR", default_value = "runs/compare")]
    out: PathBuf,
    /// Also show what each run had cost when the workers' mean accuracy first reached this percentage
    #[arg(long, value_name = "PERCENT")]
    reach: Option<f64>,
    /// Run all at the same time, with their workers in one engine: faster on a GPU, with the same results
    #[arg(long)]
    parallel_runs: bool,
    /// Run each configuration with N seeds, its own and the ones after it, and print means, confidence intervals and
    /// paired differences
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: Option<u64>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    // Everything that can be wrong is said before the first run.
    if let Some(percent) = args.reach {
        let what = "--reach: write a percentage, above 0 and at most 100";
        ensure!(percent > 0.0 && percent <= 100.0, what);
    }
    let groups = plan(args)?;
    let seeds = groups.iter().map(Vec::len).max().unwrap_or(1);
    let planned: Vec<PlannedRun> = groups.into_iter().flatten().collect();
    let at_a_time = if args.parallel_runs { planned.len() } else { 1 };
    if args.parallel_runs {
        // What cannot share an engine leaves nothing behind.
        parallel::spec(&planned.iter().map(|run| &run.experiment).collect::<Vec<_>>())?;
    }
    end_cleanly_when_interrupted()?;
    if let Some(name) = batch::run_missing(&planned, at_a_time, &args.engine)? {
        return Ok(parallel::interrupted_in(name));
    }
    let mut rows = Vec::new();
    for run in &planned {
        rows.push((&run.name, run.summary()?));
    }
    let has_lost = rows.iter().any(|(_, row)| has_diverged(row));
    match args.seeds {
        None => table(out, &rows)?,
        Some(_) => table_over_seeds(out, args, &planned, seeds)?,
    }
    if let Some(percent) = args.reach {
        reached(out, &args.out, &rows, percent)?;
    }
    writeln!(out, "\nresults are in {}", args.out.display())?;
    Ok(match has_lost {
        true => ExitCode::from(DIVERGED),
        false => ExitCode::SUCCESS,
    })
}

/// The runs of each configuration: one, or one for each seed.
fn plan(args: &Args) -> Result<Vec<Vec<PlannedRun>>> {
    let (mut groups, mut cache, mut names) = (Vec::new(), DatasetCache::default(), BTreeSet::new());
    let overrides = args.training.overrides()?;
    for path in &args.configs {
        let stem = path.file_stem().context("a configuration has a name")?;
        let name = stem.to_string_lossy().into_owned();
        ensure!(
            names.insert(name.clone()),
            "two configurations are called {name}: their results would be in one folder"
        );
        let experiment = configs::read_next(path, &overrides, &mut cache)?;
        let Some(seeds) = args.seeds else {
            groups.push(vec![PlannedRun { folder: args.out.join(&name), name, experiment }]);
            continue;
        };
        let first = experiment.config.seed;
        let mut group = Vec::new();
        for seed in first..first.saturating_add(seeds) {
            let mut overrides = overrides.clone();
            overrides.set.push(format!("seed={seed}"));
            let experiment = configs::read_next(path, &overrides, &mut cache)?;
            let name = format!("{name}/seed-{seed}");
            group.push(PlannedRun { folder: args.out.join(&name), name, experiment });
        }
        groups.push(group);
    }
    let seed = |group: &Vec<PlannedRun>| group[0].experiment.config.seed;
    if args.seeds.is_some()
        && let Some(other) = groups.iter().find(|group| seed(group) != seed(&groups[0]))
    {
        bail!(
            "--seeds compares runs with the same seeds, but {} begins with seed {} and {} with seed {}: add --set seed=1",
            groups[0][0].name.split('/').next().unwrap_or_default(),
            seed(&groups[0]),
            other[0].name.split('/').next().unwrap_or_default(),
            seed(other)
        );
    }
    Ok(groups)
}

/// Means over the seeds, and what the other configurations have more than the first one.
fn table_over_seeds(out: &mut impl Write, args: &Args, planned: &[PlannedRun], seeds: usize) -> Result<()> {
    let mut groups = Vec::new();
    for (path, runs) in args.configs.iter().zip(planned.chunks(seeds)) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let summaries = runs.iter().map(PlannedRun::summary).collect::<Result<_>>()?;
        groups.push(SeedGroup { name, summaries });
    }
    seeds::write_table(out, &groups)?;
    seeds::write_differences(out, &groups)
}

fn table(out: &mut impl Write, rows: &[(&String, Summary)]) -> Result<()> {
    let all: Vec<&Summary> = rows.iter().map(|(_, row)| row).collect();
    let (width, clock) = (NAME_WIDTH, seeds::clock(&all));
    writeln!(out, "{:<width$}  mean %  worst %  averaged %  rounds        MB{clock:>8}  wall s", "test accuracy")?;
    for (name, row) in rows {
        let percent = |part: f64| match has_diverged(row) || part.is_nan() {
            false => format!("{:.2}", 100.0 * part),
            true => "-".into(),
        };
        let wall = row.wall_seconds.map_or("-".into(), |seconds| format!("{seconds:.1}"));
        writeln!(
            out,
            "{}{:>8}{:>9}{:>12}{:>8}{:>10.1}{:>8.1}{wall:>8}",
            name_cell(name),
            percent(row.mean_accuracy),
            percent(row.worst_accuracy),
            percent(row.averaged_model_accuracy),
            row.rounds,
            row.sent.bytes_sent as f64 / 1e6,
            row.sent.simulated_seconds
        )?;
    }
    writeln!(out)?;
    for (name, row) in rows {
        let diverged = match row.status {
            Status::Diverged { round, .. } => format!("; diverged in round {round}"),
            _ => String::new(),
        };
        let clock = if is_odd_clock(&all, row) { "; real seconds" } else { "" };
        writeln!(out, "{name}: {} on {}{clock}{diverged}", row.algorithm, row.graph)?;
    }
    Ok(())
}

/// What each run had cost when its workers' mean accuracy first was at least `percent`.
fn reached(out: &mut impl Write, folder: &Path, rows: &[(&String, Summary)], percent: f64) -> Result<()> {
    writeln!(out, "\nto a mean accuracy of {percent} %")?;
    let all: Vec<&Summary> = rows.iter().map(|(_, row)| row).collect();
    let (width, clock) = (NAME_WIDTH, seeds::clock(&all));
    writeln!(out, "{:<width$}   epoch        MB{clock:>8}", "")?;
    for (name, row) in rows {
        let run = Run::read(&folder.join(name))?;
        let enough = |epoch: &&Epoch| {
            let tested = epoch.accuracies.iter().flatten().enumerate();
            let tested = tested.filter(|(worker, _)| Some(WorkerId(*worker)) != row.server);
            let tested: Vec<f64> = tested.filter_map(|(_, part)| *part).collect();
            100.0 * tested.iter().sum::<f64>() / tested.len().max(1) as f64 >= percent
        };
        match run.epochs.iter().find(enough) {
            Some(epoch) => writeln!(
                out,
                "{}{:>8}{:>10.1}{:>8.1}",
                name_cell(name),
                epoch.epoch,
                epoch.bytes as f64 / 1e6,
                epoch.seconds
            )?,
            None => writeln!(out, "{}   never", name_cell(name))?,
        }
    }
    Ok(())
}

/// The name of a row, padded. A long one has a line of its own, so that rows fit 80 columns.
fn name_cell(name: &str) -> String {
    match name.chars().count() <= NAME_WIDTH {
        true => format!("{name:<NAME_WIDTH$}"),
        false => format!("{name}\n{:NAME_WIDTH$}", ""),
    }
}
