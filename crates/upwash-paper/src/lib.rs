//! The program `upwash-reproduce`: reruns the experiments of the AL-DSGD paper and shows the results beside the paper's
//! numbers.
//!
//! The facts about the paper are data files: `data/catalog.toml` lists its tables and figures with their claims,
//! `data/paper_values.toml` its numbers, and `data/datasets.toml` the data sets and models. This crate is not
//! published.

// `eprintln!` panics if stderr is closed; `tell!` does not.
#![warn(clippy::print_stderr)]

mod artifacts;
mod catalog;
mod claims;
mod experiments;
mod figures;
mod list;
mod outcomes;
mod paper_values;
mod provenance;
mod running;
mod scale;
mod tables;
mod text;
mod verdict;

use anyhow::{Context, Result, bail, ensure};
use artifacts::Artifact;
use experiments::VARIANTS;
use outcomes::Store;
use running::{needed_runs, run_missing};
use scale::{Scale, Task, WORKERS};
use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use text::Renderer;
use upwash::algorithm::Variant;
use upwash::names::nearest;
use upwash_cli::engines::EngineArgs;
use upwash_cli::{files, note, tell};

/// Run the experiments of the AL-DSGD paper and show the results beside the paper's numbers.
#[derive(clap::Parser)]
#[command(name = "upwash-reproduce", version, max_term_width = 100)]
pub struct Args {
    /// Tables and figures as named by --list, or `all`; or single runs as named in configs/paper
    artifacts: Vec<String>,
    /// List the given tables and figures, or all, with the runs that each needs and their estimated time on this
    /// machine
    #[arg(long)]
    list: bool,
    /// Variants of AL-DSGD: the authors' code, the text of the paper to the letter, or the corrected method
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Variants::Released, Variants::Sound])]
    variant: Vec<Variants>,
    /// Number of epochs; the learning rate is cut after one half and three quarters of them [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Batch size of a worker [default: 128, as in the paper's text; the authors' code has 16]
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroUsize>,
    /// Run every experiment with the seeds 1 to K; seeds that were run before also count [default: 1; 3 with
    /// --quick if that is at most 120 runs]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Show only the rows of these workers
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    workers: Vec<usize>,
    /// The training loss up to which epochs are counted
    #[arg(long, value_name = "LOSS", default_value_t = 0.5)]
    loss: f64,
    /// A small version that takes minutes on a CPU: the digits and a small network
    #[arg(long)]
    quick: bool,
    /// Show existing results without running anything
    #[arg(long)]
    show: bool,
    /// Number of runs at the same time, with all workers in one engine; faster on a GPU, with the same results
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    parallel_runs: NonZeroUsize,
    /// At every test, also measure each worker's loss on its own training data, as the paper's text defines the loss
    #[arg(long)]
    local_train_loss: bool,
    /// Keep only what the tables need of finished runs: no events of single rounds, no models
    #[arg(long)]
    compact: bool,
    /// The folder for runs and tables; finished runs in it are not repeated, interrupted ones are continued
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
    /// The corrected method
    Sound,
    /// All three
    All,
}

/// Executes the command and returns the exit code.
pub fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let scale = args.scale()?;
    let all = catalog::all();
    if let Some(folder) = &args.configs {
        return write_configs(folder, &scale, all, out).map(|()| ExitCode::SUCCESS);
    }
    if args.list {
        let listed = match args.artifacts.is_empty() {
            true => all.to_vec(),
            false => choose(&args.artifacts, all)?,
        };
        return list::print(args, &scale, &listed, out).map(|()| ExitCode::SUCCESS);
    }
    let chosen = choose(&args.artifacts, all)?;
    let variants = args.variants();
    let store = Store::new(&args.out, scale);
    ensure!(
        chosen.iter().all(|artifact| scale.has(artifact.task())),
        "--quick supports only the digits: run CIFAR-100 without it"
    );
    let folder = |artifact: &Artifact| args.out.join(scale.directory(artifact.task()));
    if args.show {
        // A table may have columns of both data sets.
        let folders = [Task::Cifar10, Task::Cifar100].into_iter().filter(|&task| scale.has(task));
        let folders: Vec<PathBuf> = folders.map(|task| args.out.join(scale.directory(task))).collect();
        ensure!(
            folders.iter().any(|folder| folder.is_dir()),
            "{} does not exist: run without --show to create the results, or name their folder with --out",
            folders[0].display()
        );
    } else {
        let status = run_missing(args, &store, &chosen, &variants)?;
        if status != ExitCode::SUCCESS {
            return Ok(status);
        }
    }
    if chosen.iter().any(Artifact::counts_links) {
        note!(
            "note: D is the paper's count of links: the graph of D = 13 has 12, that of D = 11 has 10 (docs/findings.md)"
        );
    }
    for artifact in &chosen {
        let renderer = Renderer {
            store: &store,
            variants: artifact.variants(&variants),
            workers: &args.workers,
            low_loss: args.loss,
        };
        let text = renderer.text(artifact)?;
        writeln!(out, "{text}")?;
        // A table restricted to some workers is not saved, since it is incomplete.
        if !args.show && args.workers.is_empty() {
            let folder = folder(artifact);
            files::make_folder(&folder)?;
            let file = folder.join(format!("{}.md", artifact.name));
            files::write(&file, text.as_bytes())?;
            figures::draw(&folder, artifact, &store, renderer.variants)?;
            // On stderr, because stdout may go into a file.
            tell!("runs, tables and figures are in {}", folder.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The scale of the experiments. Fails if an argument is out of range.
    fn scale(&self) -> Result<Scale> {
        let mut scale = Scale::new(self.quick, self.epochs, self.batch.map(Into::into));
        scale.local_train_loss = self.local_train_loss;
        ensure!(self.loss > 0.0 && self.loss.is_finite(), "--loss {}: must be above 0", self.loss);
        if let Some(worker) = self.workers.iter().find(|worker| **worker >= WORKERS) {
            bail!("--workers {worker}: the paper's workers are 0 to {}", WORKERS - 1);
        }
        ensure!(
            scale.batch <= scale.examples_per_worker(),
            "--batch {}: a worker has only {} images",
            scale.batch,
            scale.examples_per_worker()
        );
        Ok(scale)
    }

    fn seeds(&self, artifacts: &[Artifact], variants: &[Variant], store: &Store) -> u64 {
        let three = || self.quick && 3 * needed_runs(artifacts, variants, store, 1).len() <= 120;
        self.seeds.unwrap_or_else(|| if three() { 3 } else { 1 })
    }

    fn variants(&self) -> Vec<Variant> {
        let selected = |variant: &Variant| self.variant.iter().any(|choice| choice.covers(*variant));
        VARIANTS.into_iter().filter(selected).collect()
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

/// The artifacts with these names, in the order of the catalog, followed by single runs.
fn choose(names: &[String], all: &[Artifact]) -> Result<Vec<Artifact>> {
    let known: Vec<&str> = all.iter().map(|artifact| artifact.name.as_str()).collect();
    let known = known.join(", ");
    ensure!(!names.is_empty(), "nothing to run: choose from {known}, or all; --list describes them");
    let is = |artifact: &Artifact, name: &str| name == "all" || name == artifact.name;
    let mut runs: Vec<Artifact> = Vec::new();
    for name in names {
        if all.iter().any(|artifact| is(artifact, name)) {
            continue;
        }
        let run = Artifact::of_run(name, all).with_context(|| {
            let hint = match nearest(name, all.iter().map(|artifact| artifact.name.as_str())) {
                Some(near) => format!("; did you mean {near}?"),
                None => String::new(),
            };
            format!("unknown name {name}: choose from {known}, all, or the names of the files in configs/paper{hint}")
        })?;
        if run.name != *name {
            tell!("note: {name} is the same run as {}", run.name);
        }
        if runs.iter().all(|known| known.name != run.name) {
            runs.push(run);
        }
    }
    let selected = |artifact: &&Artifact| names.iter().any(|name| is(artifact, name));
    Ok(all.iter().filter(selected).cloned().chain(runs).collect())
}

fn write_configs(folder: &Path, scale: &Scale, all: &[Artifact], out: &mut impl Write) -> Result<()> {
    files::make_folder(folder)?;
    let mut names = BTreeSet::new();
    for experiment in all.iter().flat_map(Artifact::experiments) {
        for variant in VARIANTS {
            let name = experiment.config_name(variant) + ".toml";
            if names.insert(name.clone()) {
                let text = experiment.config(variant, scale, 1);
                files::write(&folder.join(name), text.as_bytes())?;
            }
        }
    }
    let (count, folder) = (names.len(), folder.display());
    Ok(writeln!(out, "{count} configurations are in {folder}")?)
}
