//! `--list`: the tables and figures, the runs that each needs, and an estimate of their time on this machine.

use crate::Args;
use crate::artifacts::Artifact;
use crate::experiments::PaperExperiment;
use crate::outcomes::Store;
use crate::running::needed_runs;
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
            false => " (without evaluations, one run at a time)",
        }
    )?;
    for artifact in all {
        let only = std::slice::from_ref(artifact);
        let seeds = args.seeds(only, &variants, &store);
        let (cifar10, cifar100): (Vec<_>, Vec<_>) =
            needed_runs(only, &variants, &store, seeds).into_iter().partition(|run| run.task == Task::Cifar10);
        let missing = cifar10.iter().filter(|run| !directory::is_over(&run.directory));
        let missing = missing.count();
        let (name, label, caption) = (&artifact.name, &artifact.label, &artifact.caption);
        writeln!(out, "{name:<9} {label}: {caption}")?;
        write!(
            out,
            "          {} runs ({seeds} {}), {missing} still to run: {}",
            cifar10.len(),
            if seeds == 1 { "seed" } else { "seeds" },
            time(missing as f64 * each)
        )?;
        if !cifar100.is_empty() {
            let (count, source, model) = (cifar100.len(), &other.source, &other.model);
            write!(out, "; and {count} runs of {source} with {model}, not timed")?;
        }
        writeln!(out)?;
    }
    let names: Vec<&str> = variants.iter().map(|variant| variant.name()).collect();
    writeln!(
        out,
        "\nwith --variant {}. Tables share runs: a run that several of them need is run once.",
        names.join(",")
    )?;
    Ok(())
}

/// Number of rounds of a run.
fn rounds(scale: &Scale) -> u64 {
    scale.epochs * scale.examples_per_worker().div_ceil(scale.batch) as u64
}

/// Measures the time of a round on synthetic images.
fn seconds_per_round(args: &Args, scale: &Scale) -> Result<f64> {
    // On a CPU, the time is proportional to the batch size, so smaller batches suffice.
    let (rounds, batch) = match args.engine.is_gpu()? {
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
    let mut observe = |event: &Event| {
        if let Event::Round { .. } = event {
            times.push(Instant::now());
        }
        ControlFlow::Continue
    };
    let progress = Progress::start(experiment.workers());
    upwash::run::run(&experiment, &mut *engine, progress, &mut observe)?;
    // The first rounds are left out, because they include warm-up. The result is the median of the others.
    let mut each: Vec<f64> =
        times.windows(2).skip(times.len() / 4).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    each.sort_by(f64::total_cmp);
    let each = each.get(each.len() / 2).context("no round was timed")?;
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
