//! `upwash demo`: what decentralized training is about, on built-in data, over several seeds.

use crate::output::tell;
use crate::runs::{INTERRUPTED, end_cleanly_when_interrupted, stop_handle};
use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, RunDirectory, RunLocation, Status, Summary, run_parallel};
use upwash_report::Run;
use upwash_report::statistics::{margin, mean};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds each row is the mean of
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,
    /// The folder for results [default: runs/demo, or runs/demo-2, ... where that exists]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The questions of the demo, and the runs that answer them.
#[derive(Deserialize)]
struct Demo {
    /// The configuration that all runs have in common.
    base: String,
    sections: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    question: String,
    /// What the second row gains over the first.
    gain: Gain,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    folder: String,
    name: String,
    #[serde(default)]
    settings: Vec<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Gain {
    WorstWorker,
    Speed,
    Bytes,
}

fn worst(summary: &Summary) -> f64 {
    100.0 * summary.worst_accuracy
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let folder = args.out.clone().unwrap_or_else(|| free_folder(Path::new("runs")));
    writeln!(
        out,
        "Eight workers train a small network on handwritten digits (UCI, 8x8 pixels).\n\
         Each has images of two digits only, so they must learn from each other. There\n\
         is no server: in a round, every worker takes a step and averages with its\n\
         neighbors. Means over {} seeds, with 95 % confidence intervals.",
        args.seeds
    )?;
    end_cleanly_when_interrupted()?;
    let demo: Demo = toml::from_str(include_str!("demo.toml"))?;
    for section in &demo.sections {
        writeln!(out, "\n{}\n", section.question.trim())?;
        writeln!(out, "{:<33}{:>14}{:>16}{:>7}{:>10}", "test accuracy, %", "mean", "worst worker", "MB", "seconds")?;
        out.flush()?;
        let mut summaries = Vec::new();
        for row in &section.rows {
            let Some(found) = seeds(&demo.base, row, args.seeds, &folder)? else {
                let (out, seeds) = (folder.display(), args.seeds);
                tell!("interrupted in {}: continue with `upwash demo --out {out} --seeds {seeds}`", row.folder);
                return Ok(ExitCode::from(INTERRUPTED));
            };
            write_row(out, &row.name, &found)?;
            out.flush()?;
            summaries.push(found);
        }
        writeln!(out, "{}", section.gain.sentence(&summaries))?;
    }
    finish(&demo, &folder, out)?;
    Ok(ExitCode::SUCCESS)
}

/// The summaries of a row's runs, which are run unless they are there; none if the user stops them.
fn seeds(base: &str, row: &Row, seeds: u64, folder: &Path) -> Result<Option<Vec<Summary>>> {
    let mut summaries = Vec::new();
    for seed in 1..=seeds {
        let settings: Vec<String> = row.settings.iter().cloned().chain([format!("seed={seed}")]).collect();
        let experiment = Experiment::prepare(Config::parse(base, &settings)?, &DataPaths::default())?;
        let place = folder.join(&row.folder).join(format!("seed-{seed}"));
        let location = RunLocation::local(&experiment);
        let summary = match RunDirectory::open(&place, &experiment, &location)? {
            None => Summary::read(&place)?,
            Some(directory) => {
                // Never a GPU: the networks are tiny, and the numbers are those of the README.
                let mut engine = upwash::engine::native_engine(&experiment.engine_spec())?;
                // A row appears every second or two, and the text says what warnings would.
                let silent = |_: &Event| ControlFlow::Continue;
                let mut ended =
                    run_parallel(&mut *engine, &mut [(&experiment, directory)], stop_handle(), &mut [silent]);
                Some(ended.remove(0)?)
            }
        };
        match summary {
            Some(Summary { status: Status::Interrupted { .. }, .. }) | None => return Ok(None),
            Some(summary) => summaries.push(summary),
        }
    }
    Ok(Some(summaries))
}

fn write_row(out: &mut impl Write, name: &str, summaries: &[Summary]) -> Result<()> {
    let all = |value: fn(&Summary) -> f64| -> Vec<f64> { summaries.iter().map(value).collect() };
    let with_margin = |values: &[f64]| format!("{:.1} ± {:.1}", mean(values), margin(values).unwrap_or(f64::NAN));
    writeln!(
        out,
        "{name:<33}{:>14}{:>16}{:>7.1}{:>10.2}",
        with_margin(&all(|summary| 100.0 * summary.mean_accuracy)),
        with_margin(&all(worst)),
        mean(&all(|summary| summary.sent.bytes_sent as f64 / 1e6)),
        mean(&all(|summary| summary.sent.simulated_seconds)),
    )?;
    Ok(())
}

impl Gain {
    /// A sentence about the change from the first row to the second, seed by seed.
    fn sentence(self, rows: &[Vec<Summary>]) -> String {
        let [first, second, ..] = rows else {
            return String::new();
        };
        let change = |(before, after): (&Summary, &Summary)| match self {
            Self::WorstWorker => worst(after) - worst(before),
            Self::Speed => before.sent.simulated_seconds / after.sent.simulated_seconds,
            Self::Bytes => 100.0 * after.sent.bytes_sent as f64 / before.sent.bytes_sent as f64,
        };
        let changes: Vec<f64> = first.iter().zip(second).map(change).collect();
        let (middle, half) = (mean(&changes), margin(&changes).unwrap_or(f64::NAN));
        let (from, to) = (middle - half, middle + half);
        match self {
            Self::WorstWorker => {
                format!("The worst worker gains {middle:.1} points (95 % interval {from:.1} to {to:.1}).")
            }
            Self::Speed => format!(
                "The same number of gradients is done {middle:.1} times as fast (95 % interval\n\
                 {from:.1} to {to:.1}), but with data this different it costs accuracy."
            ),
            Self::Bytes => {
                format!("The workers send {middle:.1} % of the bytes (95 % interval {from:.1} to {to:.1}).")
            }
        }
    }
}

/// Writes a page about the first seed of every row, and says what to do next.
fn finish(demo: &Demo, folder: &Path, out: &mut impl Write) -> Result<()> {
    let rows = demo.sections.iter().flat_map(|section| &section.rows);
    let names: BTreeSet<&str> = rows.map(|row| row.folder.as_str()).collect();
    let mut runs = Vec::new();
    for name in names {
        let mut run = Run::read(&folder.join(name).join("seed-1"))?;
        run.name = name.into();
        runs.push(run);
    }
    let page = folder.join("report.html");
    upwash::files::write(&page, upwash_report::page(&runs).as_bytes())?;
    writeln!(
        out,
        "\n`MB` is what all workers sent, `seconds` is simulated time. Next:\n  \
         open {0}/report.html in a browser: these runs, worker by worker\n  \
         upwash show {0}/al-dsgd/seed-1\n  \
         upwash algorithms\n  \
         upwash train CONFIG.toml --watch: your own run, live (docs/training.md)",
        folder.display()
    )?;
    Ok(())
}

/// The first of demo, demo-2, demo-3, ... that is not there yet.
fn free_folder(parent: &Path) -> PathBuf {
    let names = std::iter::once("demo".to_string()).chain((2..).map(|n| format!("demo-{n}")));
    let mut folders = names.map(|name| parent.join(name));
    folders.find(|folder| !folder.exists()).unwrap_or_else(|| parent.join("demo"))
}
