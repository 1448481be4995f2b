//! `upwash sweep`: a configuration with all combinations of some values.

use crate::batch::{self, PlannedRun};
use crate::configs;
use crate::engines::EngineArgs;
use crate::output::note;
use crate::runs::{DIVERGED, end_cleanly_when_interrupted};
use crate::seeds::{self, SeedGroup, has_diverged};
use crate::training_args::TrainingArgs;
use crate::{files, parallel};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use upwash::experiment::DatasetCache;
use upwash_report::Run;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, TOML
    config: PathBuf,
    /// A key and its values; with several --grid, all combinations are run. Write values that contain commas as a TOML
    /// array: --grid 'model=["mlp:64,32","cnn"]'
    #[arg(long = "grid", value_name = "KEY=A,B,C", required = true)]
    grid: Vec<String>,
    /// Run each combination with N seeds, the configuration's and the ones after it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    training: TrainingArgs,
    /// The folder for results, with a table (sweep.csv), a page (report.html) and a folder for each run; finished runs
    /// are not repeated, interrupted ones continue. All --set and --unset must be given again
    #[arg(long, value_name = "DIR", default_value = "runs/sweep")]
    out: PathBuf,
    /// How many runs share an engine at a time, if they have the same model, data, batch size and optimizer: faster on a
    /// GPU, with the same results
    #[arg(long, value_name = "N", default_value = "1")]
    parallel_runs: std::num::NonZeroUsize,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The most runs of a sweep.
const MAX_RUNS: u64 = 10_000;
/// The most combinations of which the page shows charts.
const MAX_ON_PAGE: usize = 32;

/// A key with its values, as for `--set`.
struct Axis {
    key: String,
    values: Vec<String>,
}

/// A combination of values: what is set, and its name.
struct Cell {
    values: Vec<String>,
    replacements: Vec<String>,
    name: String,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    // Everything that can be wrong is said before the first run.
    let axes = args.grid.iter().map(|text| Axis::parse(text)).collect::<Result<Vec<_>>>()?;
    check(args, &axes)?;
    let cells = cells(&axes);
    let mut planned = Vec::new();
    let mut cache = DatasetCache::default();
    let runs = cells.len() as u64 * args.seeds;
    if runs > 20 {
        note!("checking the configurations of {runs} runs");
    }
    for cell in &cells {
        plan(args, cell, &mut cache, &mut planned).map_err(|error| split_value(error, &axes))?;
    }
    end_cleanly_when_interrupted()?;
    if let Some(name) = batch::run_missing(&planned, args.parallel_runs.get(), &args.engine)? {
        return Ok(parallel::interrupted_in(name));
    }
    let mut groups = Vec::new();
    for (cell, runs) in cells.iter().zip(planned.chunks(args.seeds as usize)) {
        let summaries = runs.iter().map(PlannedRun::summary).collect::<Result<_>>()?;
        groups.push(SeedGroup { name: cell.name.clone(), summaries });
    }
    seeds::write_table(out, &groups)?;
    if let Some(best) = best(&groups) {
        writeln!(
            out,
            "\nhighest mean: {} ({} %)\nIt was chosen on the test set: measure it again with other seeds.",
            best.name,
            best.accuracy_text()
        )?;
    }
    files::write(&args.out.join("sweep.csv"), csv(&axes, &cells, &groups, &planned).as_bytes())?;
    let page = page(&groups, &planned, args.seeds as usize)?;
    files::write(&args.out.join("report.html"), page.as_bytes())?;
    writeln!(out, "\nresults are in {}, with report.html and sweep.csv", args.out.display())?;
    Ok(match groups.iter().flat_map(|group| &group.summaries).any(has_diverged) {
        true => ExitCode::from(DIVERGED),
        false => ExitCode::SUCCESS,
    })
}

impl Axis {
    fn parse(text: &str) -> Result<Self> {
        let example = "for example --grid training.learning_rate=0.05,0.1";
        let Some((key, values)) = text.split_once('=').filter(|(key, _)| !key.trim().is_empty()) else {
            bail!("--grid {text}: write a key and its values, {example}");
        };
        let values = values.trim();
        let values: Vec<String> = match values.starts_with('[') {
            false => values.split(',').map(|value| value.trim().to_owned()).collect(),
            true => {
                let table = format!("values = {values}").parse::<toml::Table>().ok();
                let list = table.as_ref().and_then(|table| table.get("values")).and_then(toml::Value::as_array);
                let example = "for example --grid 'model=[\"mlp:64,32\",\"cnn\"]'";
                let list = list.with_context(|| format!("--grid {text}: this is not a TOML array; write {example}"))?;
                list.iter().map(ToString::to_string).collect()
            }
        };
        let distinct: BTreeSet<&String> = values.iter().collect();
        ensure!(!values.iter().any(String::is_empty), "--grid {text}: a value is empty; write {example}");
        ensure!(distinct.len() == values.len(), "--grid {text}: a value is given twice");
        Ok(Self { key: key.trim().into(), values })
    }

    /// The end of the key, if the other keys end differently.
    fn short_key<'a>(&'a self, all: &[Axis]) -> &'a str {
        let end = |key: &'a str| key.rsplit('.').next().unwrap_or(key);
        let same = all.iter().filter(|other| other.key.rsplit('.').next() == Some(end(&self.key))).count();
        if same > 1 { &self.key } else { end(&self.key) }
    }
}

/// Explains an error that may come from a value with commas, such as `mlp:64,32`, which was split.
fn split_value(error: anyhow::Error, axes: &[Axis]) -> anyhow::Error {
    let is_part = |value: &String| !value.contains(':') && value.starts_with(|first: char| first.is_ascii_digit());
    let is_split =
        |axis: &&Axis| axis.values.iter().any(|value| value.contains(':')) && axis.values.iter().any(is_part);
    match axes.iter().find(is_split) {
        Some(Axis { key, .. }) => anyhow::anyhow!(
            "{error:#}\nvalues are split at commas: write those with commas as a TOML array, \
             --grid '{key}=[\"mlp:64,32\",\"cnn\"]'"
        ),
        None => error,
    }
}

/// Refuses grids that contradict themselves or the other arguments, or that are too large.
fn check(args: &Args, axes: &[Axis]) -> Result<()> {
    let (mut keys, set) = (BTreeSet::new(), args.training.overrides()?.set);
    for axis in axes {
        let key = &axis.key;
        ensure!(keys.insert(key), "--grid {key} is given twice: write all values into one");
        ensure!(args.seeds == 1 || key != "seed", "--grid seed and --seeds exclude each other: use one of them");
        let is_set = set.iter().any(|set| set.split('=').next().map(str::trim) == Some(key));
        ensure!(!is_set, "{key} is set both by --grid and by another option: use one of them");
    }
    let sizes = axes.iter().map(|axis| axis.values.len() as u64);
    let runs = sizes.fold(args.seeds, u64::saturating_mul);
    ensure!(runs <= MAX_RUNS, "the grid has {runs} runs, but at most {MAX_RUNS} are supported: use fewer values");
    Ok(())
}

/// All combinations, the last key changing fastest.
fn cells(axes: &[Axis]) -> Vec<Cell> {
    let mut cells = vec![Cell { values: vec![], replacements: vec![], name: String::new() }];
    for axis in axes {
        let extend = |cell: &Cell| -> Vec<Cell> {
            let with = |value: &String| {
                let shown = value.trim_matches('"');
                let separator = if cell.name.is_empty() { "" } else { "," };
                Cell {
                    values: cell.values.iter().cloned().chain([shown.to_owned()]).collect(),
                    replacements: cell.replacements.iter().cloned().chain([format!("{}={value}", axis.key)]).collect(),
                    name: format!("{}{separator}{}={shown}", cell.name, axis.short_key(axes)),
                }
            };
            axis.values.iter().map(with).collect()
        };
        cells = cells.iter().flat_map(extend).collect();
    }
    cells
}

/// Adds the runs of a combination, one for each seed.
fn plan(args: &Args, cell: &Cell, cache: &mut DatasetCache, planned: &mut Vec<PlannedRun>) -> Result<()> {
    // The name of a folder has no slashes.
    let folder: String =
        cell.name.chars().map(|c| if c == '/' || c == '\\' || c.is_control() { '_' } else { c }).collect();
    ensure!(folder.len() <= 200, "the values of {} are too long for the name of a folder", cell.name);
    let mut overrides = args.training.overrides()?;
    overrides.set.extend(cell.replacements.iter().cloned());
    let named = || format!("with {}", cell.replacements.join(", "));
    let experiment = configs::read_next(&args.config, &overrides, cache).with_context(named)?;
    let first = experiment.config.seed;
    if args.seeds == 1 {
        let folder = args.out.join(&folder);
        ensure!(
            !planned.iter().any(|run| run.folder == folder),
            "two combinations have the folder {}",
            folder.display()
        );
        planned.push(PlannedRun { name: cell.name.clone(), folder, experiment });
        return Ok(());
    }
    for seed in first..first.saturating_add(args.seeds) {
        let mut overrides = overrides.clone();
        overrides.set.push(format!("seed={seed}"));
        let experiment = configs::read_next(&args.config, &overrides, cache).with_context(named)?;
        let name = format!("{}/seed-{seed}", cell.name);
        planned.push(PlannedRun { name, folder: args.out.join(&folder).join(format!("seed-{seed}")), experiment });
    }
    Ok(())
}

fn best(groups: &[SeedGroup]) -> Option<&SeedGroup> {
    let known = groups.iter().filter_map(|group| Some((group.mean_accuracy()?, group)));
    known.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, group)| group)
}

/// A line for each run: the values of the grid, the seed and the results.
fn csv(axes: &[Axis], cells: &[Cell], groups: &[SeedGroup], planned: &[PlannedRun]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut head: Vec<String> = axes.iter().map(|axis| quoted(&axis.key)).collect();
    head.push(
        "seed,status,mean_accuracy,worst_accuracy,averaged_model_accuracy,bytes_sent,simulated_seconds,is_real_time,\
         wall_seconds"
            .into(),
    );
    let mut text = head.join(",") + "\n";
    let mut runs = planned.iter();
    for (cell, group) in cells.iter().zip(groups) {
        for (summary, run) in group.summaries.iter().zip(&mut runs) {
            let mut row: Vec<String> = cell.values.iter().map(|value| quoted(value)).collect();
            row.push(run.experiment.config.seed.to_string());
            row.push(if has_diverged(summary) { "diverged" } else { "finished" }.into());
            let accuracies = [summary.mean_accuracy, summary.worst_accuracy, summary.averaged_model_accuracy];
            row.extend(accuracies.map(|part| if part.is_nan() { String::new() } else { part.to_string() }));
            row.push(summary.sent.bytes_sent.to_string());
            row.push(summary.sent.simulated_seconds.to_string());
            row.push(summary.is_real_time.to_string());
            row.push(summary.wall_seconds.map_or(String::new(), |seconds| seconds.to_string()));
            text += &(row.join(",") + "\n");
        }
    }
    text
}

/// A page with the first seed of each combination, and results over all seeds.
fn page(groups: &[SeedGroup], planned: &[PlannedRun], seeds: usize) -> Result<String> {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    if groups.len() > MAX_ON_PAGE {
        let accuracy = |index: &usize| groups[*index].mean_accuracy().unwrap_or(f64::NEG_INFINITY);
        order.sort_by(|a, b| accuracy(b).total_cmp(&accuracy(a)));
        order.truncate(MAX_ON_PAGE);
    }
    let mut runs = Vec::new();
    for index in order {
        let mut run = Run::read(&planned[index * seeds].folder)?;
        run.name = groups[index].name.clone();
        run.over_seeds = groups[index].over_seeds();
        if groups.len() > MAX_ON_PAGE && runs.is_empty() {
            let what = format!("this page shows the best {MAX_ON_PAGE} of {} combinations", groups.len());
            run.notices.push(what);
        }
        runs.push(run);
    }
    Ok(upwash_report::page(&runs))
}
