//! What there is, what each needs, and how long that would take here.

use super::Args;
use super::cells::{Algorithm, Cell, Scale, Task, WORKERS};
use super::exhibits::Exhibit;
use super::outcomes::Store;
use super::running::needed;
use anyhow::{Result, bail};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use upwash::algorithm::Variant;
use upwash::config::Config;
use upwash::engine::EngineSpec;
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Progress, directory};

pub(super) fn print(
    args: &Args,
    scale: &Scale,
    all: &[Exhibit],
    out: &mut impl Write,
) -> Result<ExitCode> {
    let variants = args.variants();
    let store = Store::new(&args.out, *scale);
    let (data, model) = match scale.quick {
        true => ("digits, which are part of the program", "cnn"),
        false => ("cifar10 (`upwash data get cifar10`)", "thin-resnet50"),
    };
    let rounds = rounds(scale);
    let each = seconds_a_round(args, scale)? * rounds as f64;
    writeln!(
        out,
        "Each run: {data}, {model}, {WORKERS} workers, batch {}, {} epochs of {} rounds; about {} here{}.\n",
        scale.batch,
        scale.epochs,
        rounds / scale.epochs,
        time(each),
        match scale.quick {
            true => "",
            false => " (without its tests, one at a time)",
        }
    )?;
    for exhibit in all {
        let only = std::slice::from_ref(exhibit);
        let seeds = args.seeds(only, &variants, &store);
        let runs = needed(only, &variants, &store, seeds);
        let here = runs.iter().filter(|run| run.task == Task::Cifar10).count();
        let also = runs.len() - here;
        let missing = runs
            .iter()
            .filter(|run| run.task == Task::Cifar10 && !directory::is_over(&run.place))
            .count();
        writeln!(
            out,
            "{:<9} {}: {}",
            exhibit.name, exhibit.label, exhibit.caption
        )?;
        write!(
            out,
            "          {here} runs ({seeds} {}), {missing} to be run: {}",
            if seeds == 1 { "seed" } else { "seeds" },
            time(missing as f64 * each)
        )?;
        if also > 0 {
            write!(
                out,
                "; and {also} of cifar100 (`upwash data get cifar100` says how) with wrn28-10, not timed"
            )?;
        }
        writeln!(out)?;
    }
    let names: Vec<&str> = variants.iter().map(|variant| variant.name()).collect();
    writeln!(
        out,
        "\nwith --variant {}. Runs are shared: what one table has run, another need not.",
        names.join(",")
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Rounds of a run.
fn rounds(scale: &Scale) -> u64 {
    scale.epochs * scale.images_each().div_ceil(scale.batch) as u64
}

/// Measured: a few rounds of made-up images.
fn seconds_a_round(args: &Args, scale: &Scale) -> Result<f64> {
    // A CPU need not see whole batches: time goes by images.
    let (rounds, batch) = match args.engine.is_gpu() {
        true => (30, scale.batch),
        false => (6, scale.batch.min(16)),
    };
    let cell = Cell::new(Algorithm::Dpsgd, 13, 1);
    let scale_here = Scale {
        epochs: 1,
        batch,
        ..*scale
    };
    let shape = if scale.quick { "1x8x8" } else { "3x32x32" };
    let data = format!(
        "data.name=\"synthetic:train={},test=8,shape={shape}\"",
        WORKERS * batch * rounds
    );
    let config = Config::parse(&cell.config(Variant::Sound, &scale_here, 1), &[data])?;
    let experiment = Experiment::prepare(config, &DataPaths::standard())?;
    let mut engine = args.engine.build(&EngineSpec::of(&experiment))?;
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
    let mut each: Vec<f64> = times
        .windows(2)
        .skip(times.len() / 4)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    each.sort_by(f64::total_cmp);
    let Some(each) = each.get(each.len() / 2) else {
        bail!("no round was run");
    };
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
