//! The AL-DSGD paper's experiments, run anew, its numbers beside ours: what the program `upwash-reproduce` does. Not published.

// A closed stderr is no reason to panic: `tell!` says the same.
#![warn(clippy::print_stderr)]

mod catalogue;
mod cells;
mod claims;
mod exhibits;
mod figures;
mod judge;
mod list;
mod outcomes;
mod printed;
mod running;
mod tables;
mod text;

use anyhow::{Context, Result, bail, ensure};
use cells::{Scale, Task, VARIANTS, WORKERS};
use exhibits::Exhibit;
use outcomes::Store;
use running::{needed, run_what_is_missing};
use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use text::Shown;
use upwash::algorithm::Variant;
use upwash_cli::{engines, files, output, parallel, runs};

use engines::EngineArgs;
use output::tell;

/// Run the AL-DSGD paper's experiments, and show its numbers beside ours.
#[derive(clap::Parser)]
#[command(name = "upwash-reproduce", version, max_term_width = 100)]
pub struct Args {
    /// Which tables and figures, as --list names them, or `all`; or single runs, as configs/paper names them
    exhibits: Vec<String>,
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
    together: NonZeroUsize,
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

/// Does what is asked for, and says how the program ends.
pub fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let batch = args.batch.map(Into::into);
    let scale = Scale::new(args.quick, args.epochs, batch);
    ensure!(
        args.loss > 0.0 && args.loss.is_finite(),
        "--loss {}: a training loss is above 0",
        args.loss
    );
    if let Some(worker) = args.workers.iter().find(|worker| **worker >= WORKERS) {
        bail!("--workers {worker}: the paper's are 0 to {}", WORKERS - 1);
    }
    ensure!(
        scale.batch <= scale.images_each(),
        "--batch {}: a worker has {} images",
        scale.batch,
        scale.images_each()
    );
    let all = catalogue::all();
    if let Some(folder) = &args.configs {
        return write_configs(folder, &scale, &all, out);
    }
    if args.list {
        let listed = match args.exhibits.is_empty() {
            true => all,
            false => choose(&args.exhibits, all)?,
        };
        return list::print(args, &scale, &listed, out);
    }
    let chosen = choose(&args.exhibits, all)?;
    let variants = args.variants();
    let store = Store::new(&args.out, scale);
    let folder = |exhibit: &Exhibit| args.out.join(scale.folder(exhibit.task()));
    ensure!(
        !args.quick || chosen.iter().all(|exhibit| exhibit.task() == Task::Cifar10),
        "--quick is on the digits alone: ask for runs of CIFAR-100 without it"
    );
    if args.show {
        let missing = chosen.iter().map(folder).find(|folder| !folder.is_dir());
        if let Some(folder) = missing {
            bail!(
                "{} is not there: without --show these runs are made; --out says where others are",
                folder.display()
            );
        }
    } else {
        let status = run_what_is_missing(args, &store, &chosen, &variants)?;
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
        let folder = folder(exhibit);
        // A part of a table is not kept as if it were the whole.
        if !args.show && args.workers.is_empty() {
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            files::write(
                &folder.join(format!("{}.md", exhibit.name)),
                text.as_bytes(),
            )?;
            figures::draw(&folder, exhibit, &store, shown.variants)?;
            // Not among the tables: they may go into a file.
            tell!("runs, tables and figures are in {}", folder.display());
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
    let mut runs: Vec<Exhibit> = Vec::new();
    for name in names {
        if all.iter().any(|exhibit| is(exhibit, name)) {
            continue;
        }
        let run = Exhibit::of_run(name, &all).with_context(|| {
            format!("{name} is none of {known}, all, and no run of configs/paper")
        })?;
        if run.name != *name {
            tell!("note: {name} is the same run as {}", run.name);
        }
        if runs.iter().all(|known| known.name != run.name) {
            runs.push(run);
        }
    }
    let asked = |exhibit: &Exhibit| names.iter().any(|name| is(exhibit, name));
    Ok(all.into_iter().filter(asked).chain(runs).collect())
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
