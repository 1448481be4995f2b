//! `upwash reproduce`: the paper's experiments, its numbers beside ours.

mod catalogue;
mod cells;
mod claims;
mod exhibits;
mod judge;
mod list;
mod outcomes;
mod tables;

use crate::engines::EngineArgs;
use crate::files;
use crate::progress::ProgressDisplay;
use crate::report::write_figure;
use crate::runs::{Home, RunFolder, end_cleanly_when_interrupted, execute};
use anyhow::{Context, Result, ensure};
use cells::{Scale, Task, VARIANTS, WORKERS};
use exhibits::Exhibit;
use outcomes::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tables::Shown;
use upwash::algorithm::Variant;
use upwash::config::Config;
use upwash::crew::Crew;
use upwash::experiment::{Experiment, Folders};
use upwash::run::Status;
use upwash_report::{Figure, Run};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which tables and figures, as --list names them, or `all`; or single runs, as configs/paper names them
    exhibits: Vec<String>,
    /// List them, with what each needs and how long it would take here
    #[arg(long)]
    list: bool,
    /// Which rules: the authors' code, their text to the letter, or the idea made sound
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Variants::Released, Variants::Sound])]
    variant: Vec<Variants>,
    /// Train for so many epochs, with the rate cut after a half and three quarters of them [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Images in a worker's batch [default: 128, as in the paper's text; the authors' code has 16]
    #[arg(long, value_name = "N")]
    batch: Option<std::num::NonZeroUsize>,
    /// Run every experiment with the seeds 1 to K; of what is there already, all seeds count [default: 1; 3
    /// with --quick, where that is at most 120 runs]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Show the rows of these workers alone
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    workers: Vec<usize>,
    /// Count epochs until this training loss
    #[arg(long, value_name = "LOSS", default_value_t = 0.5)]
    loss: f64,
    /// The shape of it all in minutes on a CPU: digits and a small network
    #[arg(long)]
    quick: bool,
    /// Run nothing: show what is there
    #[arg(long)]
    show: bool,
    /// Of every run that is over keep what the tables need: no events of single rounds, no models
    #[arg(long)]
    lean: bool,
    /// The folder for runs and tables; what is done there is not run again, what was stopped goes on
    #[arg(long, value_name = "DIR", default_value = "runs/paper")]
    out: PathBuf,
    /// Write the configuration of every run into this folder, for `upwash train`
    #[arg(long, value_name = "DIR")]
    configs: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Variants {
    /// The authors' code
    Released,
    /// The paper's text
    Written,
    /// The idea, made sound
    Sound,
    /// All three
    All,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let batch = args.batch.map(Into::into);
    let scale = Scale::new(args.quick, args.epochs, batch);
    let all = catalogue::all();
    if let Some(folder) = &args.configs {
        return write_configs(folder, &scale, &all, out);
    }
    if args.list {
        return list::print(args, &scale, &all, out);
    }
    let chosen = choose(&args.exhibits, all)?;
    let variants = args.variants();
    let store = Store {
        folder: args.out.clone(),
        scale,
    };
    ensure!(
        args.loss > 0.0 && args.loss.is_finite(),
        "--loss {}: a training loss is above 0",
        args.loss
    );
    if let Some(worker) = args.workers.iter().find(|worker| **worker >= WORKERS) {
        anyhow::bail!("--workers {worker}: the paper's are 0 to {}", WORKERS - 1);
    }
    ensure!(
        scale.batch <= scale.images_each(),
        "--batch {}: a worker has {} images",
        scale.batch,
        scale.images_each()
    );
    if args.show {
        let folder = args.out.join(scale.folder(Task::Cifar10));
        ensure!(
            folder.is_dir(),
            "{} is not there: without --show these runs are made; --out says where others are",
            folder.display()
        );
    } else {
        let status = run_what_is_missing(args, &store, &chosen, &variants, out)?;
        if status != ExitCode::SUCCESS {
            return Ok(status);
        }
    }
    for exhibit in &chosen {
        let shown = Shown {
            store: &store,
            variants: exhibit.variants(&variants),
            workers: &args.workers,
            low: args.loss,
        };
        let text = shown.text(exhibit)?;
        writeln!(out, "{text}")?;
        let folder = args.out.join(scale.folder(Task::Cifar10));
        // A part of a table is not kept as if it were the whole.
        if !args.show && args.workers.is_empty() {
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            files::write(
                &folder.join(format!("{}.md", exhibit.name)),
                text.as_bytes(),
            )?;
            draw(&folder, exhibit, &store, shown.variants)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn seeds(&self, exhibits: &[Exhibit], variants: &[Variant], store: &Store) -> u64 {
        let three = || self.quick && 3 * needed(exhibits, variants, store, 1).len() <= 120;
        self.seeds.unwrap_or_else(|| if three() { 3 } else { 1 })
    }

    fn variants(&self) -> Vec<Variant> {
        let asked = |variant: &Variant| self.variant.iter().any(|asked| asked.covers(*variant));
        VARIANTS.into_iter().filter(asked).collect()
    }
}

impl Variants {
    fn covers(self, variant: Variant) -> bool {
        match self {
            Self::All => true,
            Self::Released => variant == Variant::Released,
            Self::Written => variant == Variant::Written,
            Self::Sound => variant == Variant::Sound,
        }
    }
}

fn choose(names: &[String], all: Vec<Exhibit>) -> Result<Vec<Exhibit>> {
    let known: Vec<&str> = all.iter().map(|exhibit| exhibit.name.as_str()).collect();
    let known = known.join(", ");
    ensure!(
        !names.is_empty(),
        "say which: {known}, or all; --list says what they are"
    );
    let is = |exhibit: &Exhibit, name: &str| name == "all" || name == exhibit.name;
    let mut runs = Vec::new();
    for name in names {
        if !all.iter().any(|exhibit| is(exhibit, name)) {
            let run = Exhibit::of_run(name, &all);
            runs.push(run.with_context(|| {
                format!("{name} is none of {known}, all, and no run of configs/paper")
            })?);
        }
    }
    let asked = |exhibit: &Exhibit| names.iter().any(|name| is(exhibit, name));
    Ok(all.into_iter().filter(asked).chain(runs).collect())
}

/// One run.
struct Due {
    place: PathBuf,
    name: String,
    text: String,
    task: Task,
}

/// All runs that exhibits need, each once: seed by seed, so that something of everything is there early.
fn needed(exhibits: &[Exhibit], variants: &[Variant], store: &Store, seeds: u64) -> Vec<Due> {
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
    all
}

fn prepare(text: &str, name: &str) -> Result<Experiment> {
    let config = Config::parse(text, &[]).with_context(|| name.to_owned())?;
    Experiment::prepare(config, &Folders::standard()).with_context(|| name.to_owned())
}

fn run_what_is_missing(
    args: &Args,
    store: &Store,
    exhibits: &[Exhibit],
    variants: &[Variant],
    out: &mut impl Write,
) -> Result<ExitCode> {
    let seeds = args.seeds(exhibits, variants, store);
    let mut due = needed(exhibits, variants, store, seeds);
    // CIFAR-100 is in no package: who does not have it does without.
    if let Some(first) = due.iter().find(|run| run.task == Task::Cifar100)
        && let Err(error) = prepare(&first.text, "CIFAR-100")
    {
        writeln!(out, "note: {error:#}; what needs it is left out")?;
        due.retain(|run| run.task != Task::Cifar100);
    }
    end_cleanly_when_interrupted()?;
    let count = due.len();
    for (number, run) in due.iter().enumerate() {
        let experiment = prepare(&run.text, &run.name)?;
        let home = Home::whole(&experiment);
        let Some(mut folder) = RunFolder::open(&run.place, &experiment, &home)? else {
            continue;
        };
        eprintln!("run {} of {count}: {}", number + 1, run.name);
        let about = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "commit": env!("UPWASH_COMMIT"),
            "engine": args.engine.words(),
        });
        let text = serde_json::to_string_pretty(&about)? + "\n";
        files::write(&run.place.join("run.json"), text.as_bytes())?;
        let mut engine = args.engine.build(&Crew::of(&experiment))?;
        let display = ProgressDisplay::new(false);
        let summary = execute(&experiment, &mut *engine, &mut folder, display)?;
        drop(folder);
        if matches!(summary.status, Status::Interrupted { .. }) {
            writeln!(
                out,
                "interrupted in {}: the same command goes on from there",
                run.name
            )?;
            return Ok(ExitCode::from(130));
        }
        if args.lean {
            make_lean(&run.place)?;
        }
    }
    Ok(ExitCode::SUCCESS)
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
    files::write(&events, kept.as_bytes())?;
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

fn write_configs(
    folder: &Path,
    scale: &Scale,
    all: &[Exhibit],
    out: &mut impl Write,
) -> Result<ExitCode> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut names = BTreeSet::new();
    for cell in all.iter().flat_map(Exhibit::cells) {
        for variant in VARIANTS {
            let name = cell.config_name(variant) + ".toml";
            if names.insert(name.clone()) {
                let text = cell.config(variant, scale, 1);
                files::write(&folder.join(name), text.as_bytes())?;
            }
        }
    }
    writeln!(
        out,
        "{} configurations are in {}",
        names.len(),
        folder.display()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Accuracies over epochs, a line for each experiment, the mean of its seeds: what the paper's figures are.
fn draw(folder: &Path, exhibit: &Exhibit, store: &Store, variants: &[Variant]) -> Result<()> {
    if !exhibit.name.starts_with("figure") {
        return Ok(());
    }
    for &variant in variants {
        let mut lines = Vec::new();
        for column in &exhibit.columns {
            let outcomes = store.outcomes(&column.cell, variant)?;
            let runs: Vec<&Run> = outcomes.values().map(|outcome| &outcome.run).collect();
            lines.push((column.title.clone(), accuracies(&runs)));
        }
        let name = format!("{}-{}", exhibit.name, variant.name());
        let title = format!("{} ({})", exhibit.caption, variant.name());
        let figure = Figure::of_lines(&name, &title, ["epoch", "mean test accuracy, %"], lines);
        if let Some(figure) = figure {
            write_figure(&figure, folder)?;
        }
    }
    Ok(())
}

/// The mean of runs, in epochs in which all were tested.
fn accuracies(runs: &[&Run]) -> Vec<(f64, f64)> {
    let mut by_epoch: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for epoch in runs.iter().flat_map(|run| &run.epochs) {
        let known = epoch.accuracies.iter().flatten().copied();
        if let Some(known) = known.collect::<Option<Vec<f64>>>()
            && !known.is_empty()
        {
            let all = by_epoch.entry(epoch.epoch).or_default();
            all.push(100.0 * outcomes::mean(&known));
        }
    }
    by_epoch.retain(|_, all| all.len() == runs.len());
    let points = by_epoch.into_iter();
    points
        .map(|(epoch, all)| (epoch as f64, outcomes::mean(&all)))
        .collect()
}
