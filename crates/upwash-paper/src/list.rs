//! What there is, what each needs, and how long that would take here.

use crate::Args;
use crate::artifacts::Artifact;
use crate::experiments::PaperExperiment;
use crate::outcomes::Store;
use crate::running::needed;
use crate::scale::{Scale, Task, WORKERS};
use anyhow::{Context, Result, anyhow};
use std::io::Write;
use std::time::{Duration, Instant};
use upwash::algorithm::Variant;
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Progress, directory};

pub(crate) fn print(args: &Args, scale: &Scale, all: &[Artifact], out: &mut impl Write) -> Result<()> {
    let variants = args.variants();
    let store = Store::new(&args.out, *scale);
    let data = scale.dataset(Task::Cifar10);
    let other = scale.dataset(Task::Cifar100);
    let rounds = rounds(scale);
    let each = seconds_per_round(args, scale)? * rounds as f64;
    writeln!(
        out,
        "Each run: {}, {}, {WORKERS} workers, batch {}, {} epochs of {} rounds; about {} here{}.\n",
        data.source,
        data.model,
        scale.batch,
        scale.epochs,
        rounds / scale.epochs,
        time(each),
        match scale.quick {
            true => "",
            false => " (without its tests, one at a time)",
        }
    )?;
    for artifact in all {
        let only = std::slice::from_ref(artifact);
        let seeds = args.seeds(only, &variants, &store);
        let (here, also): (Vec<_>, Vec<_>) =
            needed(only, &variants, &store, seeds).into_iter().partition(|run| run.task == Task::Cifar10);
        let missing = here.iter().filter(|run| !directory::is_over(&run.directory));
        let missing = missing.count();
        let (name, label, caption) = (&artifact.name, &artifact.label, &artifact.caption);
        writeln!(out, "{name:<9} {label}: {caption}")?;
        write!(
            out,
            "          {} runs ({seeds} {}), {missing} to be run: {}",
            here.len(),
            if seeds == 1 { "seed" } else { "seeds" },
            time(missing as f64 * each)
        )?;
        if !also.is_empty() {
            let (count, source, model) = (also.len(), &other.source, &other.model);
            write!(out, "; and {count} of {source} with {model}, not timed")?;
        }
        writeln!(out)?;
    }
    let names: Vec<&str> = variants.iter().map(|variant| variant.name()).collect();
    writeln!(out, "\nwith --variant {}. Runs are shared: what one table has run, another need not.", names.join(","))?;
    Ok(())
}

/// Rounds of a run.
fn rounds(scale: &Scale) -> u64 {
    scale.epochs * scale.images_each().div_ceil(scale.batch) as u64
}

/// Measured: a few rounds of made-up images.
fn seconds_per_round(args: &Args, scale: &Scale) -> Result<f64> {
    // A CPU need not see whole batches: time goes by images.
    let (rounds, batch) = match args.engine.is_gpu() {
        true => (30, scale.batch),
        false => (6, scale.batch.min(16)),
    };
    let experiment: PaperExperiment = "dpsgd-13x1".parse().map_err(|error| anyhow!("{error}"))?;
    let scale_here = Scale { epochs: 1, batch, ..*scale };
    let data = format!(
        "data.name=\"synthetic:train={},test=8,shape={}\"",
        WORKERS * batch * rounds,
        scale.dataset(Task::Cifar10).shape
    );
    let config = experiment.config(Variant::Sound, &scale_here, 1);
    let config = Config::parse(&config, &[data])?;
    let experiment = Experiment::prepare(config, &DataPaths::standard())?;
    let mut engine = args.engine.build(&experiment.engine_spec())?;
    let mut times = Vec::new();
    let mut watch = |event: &Event| {
        if let Event::Round { .. } = event {
            times.push(Instant::now());
        }
        ControlFlow::Continue
    };
    let progress = Progress::start(experiment.workers());
    upwash::run::run(&experiment, &mut *engine, progress, &mut watch)?;
    // The first rounds are those in which everything is done for the first time; of the others, the one in the middle.
    let mut each: Vec<f64> =
        times.windows(2).skip(times.len() / 4).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    each.sort_by(f64::total_cmp);
    let each = each.get(each.len() / 2).context("no round was run")?;
    Ok(each * scale.batch as f64 / batch as f64)
}

fn time(seconds: f64) -> String {
    let whole = Duration::from_secs_f64(seconds.max(0.0)).as_secs();
    match whole {
        0..=89 => format!("{whole} s"),
        90..=5399 => format!("{} min", (whole + 30) / 60),
        5400..=172_799 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}
