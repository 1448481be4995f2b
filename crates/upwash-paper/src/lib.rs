//! The AL-DSGD paper's experiments, run anew, its numbers beside ours: what the program `upwash-reproduce` does.
//!
//! What is the paper's is data: `data/catalog.toml` lists its tables and figures with what they are said to show,
//! `data/paper_values.toml` its numbers, `data/datasets.toml` what is trained. Not published.

// A closed stderr is no reason to panic: `tell!` says the same.
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
use running::{needed, run_what_is_missing};
use scale::{Scale, WORKERS};
use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use text::Renderer;
use upwash::algorithm::Variant;
use upwash_cli::engines::EngineArgs;
use upwash_cli::{files, tell};

/// Run the AL-DSGD paper's experiments, and show its numbers beside ours.
#[derive(clap::Parser)]
#[command(name = "upwash-reproduce", version, max_term_width = 100)]
pub struct Args {
    /// Which tables and figures, as --list names them, or `all`; or single runs, as configs/paper names them
    artifacts: Vec<String>,
    /// List these, or all, with what each needs and how long it would take here
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
    batch: Option<NonZeroUsize>,
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
    /// Run so many at the same time, their workers in one engine: faster on a GPU. Results are the same
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    parallel_runs: NonZeroUsize,
    /// Of every run that is over keep what the tables need: no events of single rounds, no models
    #[arg(long)]
    compact: bool,
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

/// Does what is asked for, and says how the program ends.
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
        "--quick is on the digits alone: ask for runs of CIFAR-100 without it"
    );
    let folder = |artifact: &Artifact| args.out.join(scale.directory(artifact.task()));
    if args.show {
        let missing = chosen.iter().map(folder).find(|folder| !folder.is_dir());
        if let Some(folder) = missing {
            bail!("{} is not there: without --show these runs are made; --out says where others are", folder.display());
        }
    } else {
        let status = run_what_is_missing(args, &store, &chosen, &variants)?;
        if status != ExitCode::SUCCESS {
            return Ok(status);
        }
    }
    for artifact in &chosen {
        let renderer =
            Renderer { store: &store, variants: artifact.variants(&variants), workers: &args.workers, low: args.loss };
        let text = renderer.text(artifact)?;
        writeln!(out, "{text}")?;
        // A part of a table is not kept as if it were the whole.
        if !args.show && args.workers.is_empty() {
            let folder = folder(artifact);
            files::make_folder(&folder)?;
            let file = folder.join(format!("{}.md", artifact.name));
            files::write(&file, text.as_bytes())?;
            figures::draw(&folder, artifact, &store, renderer.variants)?;
            // Not among the tables: they may go into a file.
            tell!("runs, tables and figures are in {}", folder.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// How long and how large, if all numbers that were given can be.
    fn scale(&self) -> Result<Scale> {
        let scale = Scale::new(self.quick, self.epochs, self.batch.map(Into::into));
        ensure!(self.loss > 0.0 && self.loss.is_finite(), "--loss {}: a training loss is above 0", self.loss);
        if let Some(worker) = self.workers.iter().find(|worker| **worker >= WORKERS) {
            bail!("--workers {worker}: the paper's are 0 to {}", WORKERS - 1);
        }
        ensure!(
            scale.batch <= scale.images_each(),
            "--batch {}: a worker has {} images",
            scale.batch,
            scale.images_each()
        );
        Ok(scale)
    }

    fn seeds(&self, artifacts: &[Artifact], variants: &[Variant], store: &Store) -> u64 {
        let three = || self.quick && 3 * needed(artifacts, variants, store, 1).len() <= 120;
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

fn choose(names: &[String], all: &[Artifact]) -> Result<Vec<Artifact>> {
    let known: Vec<&str> = all.iter().map(|artifact| artifact.name.as_str()).collect();
    let known = known.join(", ");
    ensure!(!names.is_empty(), "say which: {known}, or all; --list says what they are");
    let is = |artifact: &Artifact, name: &str| name == "all" || name == artifact.name;
    let mut runs: Vec<Artifact> = Vec::new();
    for name in names {
        if all.iter().any(|artifact| is(artifact, name)) {
            continue;
        }
        let run = Artifact::of_run(name, all)
            .with_context(|| format!("{name} is none of {known}, all, and no run of configs/paper"))?;
        if run.name != *name {
            tell!("note: {name} is the same run as {}", run.name);
        }
        if runs.iter().all(|known| known.name != run.name) {
            runs.push(run);
        }
    }
    let asked = |artifact: &&Artifact| names.iter().any(|name| is(artifact, name));
    Ok(all.iter().filter(asked).cloned().chain(runs).collect())
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
