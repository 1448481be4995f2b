//! `upwash demo`: what decentralized training is about, on built-in data, over several seeds.

use crate::engines::EngineArgs;
use crate::parallel;
use crate::runs::{end_cleanly_when_interrupted, stop_handle};
use anyhow::Result;
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

/// What all runs have in common: eight workers on the paper's graph, each with the images of two digits.
const BASE: &str = r#"
model = "mlp:64"
[data]
name = "digits"
partition = "shards:2"
[graph]
topology = "paper:L1"
[algorithm]
name = "dpsgd"
[training]
epochs = 20
test_every = 20
checkpoint_every = 0
"#;

/// A question, and the runs that answer it.
struct Section {
    question: &'static str,
    rows: &'static [Row],
    /// What the second row gains over the first.
    gain: Gain,
}

struct Row {
    folder: &'static str,
    name: &'static str,
    settings: &'static [&'static str],
}

/// A quantity of a run, and the sentence about its change from the first row to the second.
struct Gain {
    value: fn(&Summary) -> f64,
    sentence: fn(change: f64, from: f64, to: f64) -> String,
    /// Whether the change is a ratio of the two, and not their difference.
    is_ratio: bool,
}

const SECTIONS: [Section; 4] = [
    Section {
        question: "1. A baseline that falls apart. The D-PSGD published with MATCHA and AL-DSGD\n\
                   uses two of the graph's five matchings in turn: workers 0 and 4 are cut off.",
        rows: &[
            Row { folder: "published", name: "D-PSGD as published", settings: &["graph.links=released"] },
            Row { folder: "dpsgd", name: "D-PSGD on the whole graph", settings: &[] },
        ],
        gain: Gain {
            value: worst,
            sentence: |change, from, to| {
                format!("The worst worker gains {change:.1} points (95 % interval {from:.1} to {to:.1}).")
            },
            is_ratio: false,
        },
    },
    Section {
        question: "2. A sparse graph: 5 links, and workers 4 and 7 have none. When the workers\n\
                   rotate through three relabeled copies of it, as in AL-DSGD, all are reached.",
        rows: &[
            Row { folder: "sparse-fixed", name: "D-PSGD, fixed graph", settings: &["graph.topology=paper:L1@5"] },
            Row {
                folder: "sparse-rotating",
                name: "D-PSGD, rotation",
                settings: &["graph.topology=paper:L1@5", "graph.copies=3"],
            },
            Row {
                folder: "sparse-al-dsgd",
                name: "AL-DSGD (rotation and leaders)",
                settings: &["graph.topology=paper:L1@5", "graph.copies=3", "algorithm.name=al-dsgd"],
            },
        ],
        gain: Gain {
            value: worst,
            sentence: |change, from, to| {
                format!("The worst worker gains {change:.1} points (95 % interval {from:.1} to {to:.1}).")
            },
            is_ratio: false,
        },
    },
    Section {
        question: "3. One worker is ten times slower (simulated time, a local network). In\n\
                   rounds, its neighbors wait for it; AD-PSGD has no rounds.",
        rows: &[
            Row { folder: "slow-rounds", name: "D-PSGD, in rounds", settings: &["clock.slow=[[3, 10.0]]"] },
            Row {
                folder: "slow-asynchronous",
                name: "AD-PSGD, without rounds",
                settings: &["clock.slow=[[3, 10.0]]", "algorithm.name=ad-psgd"],
            },
        ],
        gain: Gain {
            value: |summary| 1.0 / summary.sent.simulated_seconds,
            sentence: |change, from, to| {
                format!(
                    "The same number of gradients is done {change:.1} times as fast (95 % interval\n\
                     {from:.1} to {to:.1}), but with data this different it costs accuracy."
                )
            },
            is_ratio: true,
        },
    },
    Section {
        question: "4. Fewer bytes. MATCHA activates each matching of the graph some of the time\n\
                   (budget 0.5: half of the matchings in an average round).",
        rows: &[
            Row { folder: "dpsgd", name: "D-PSGD on the whole graph", settings: &[] },
            Row { folder: "matcha", name: "MATCHA, budget 0.5", settings: &["algorithm.name=matcha"] },
            Row {
                folder: "al-dsgd",
                name: "AL-DSGD over MATCHA",
                settings: &["algorithm.name=al-dsgd", "algorithm.base=matcha", "graph.copies=3"],
            },
        ],
        gain: Gain {
            value: |summary| 1.0 / summary.sent.bytes_sent as f64,
            sentence: |change, _, _| format!("Models are sent {:.0} % as often.", 100.0 / change),
            is_ratio: true,
        },
    },
];

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
    for section in &SECTIONS {
        writeln!(out, "\n{}\n", section.question)?;
        writeln!(out, "{:<33}{:>14}{:>16}{:>7}{:>10}", "test accuracy, %", "mean", "worst worker", "MB", "seconds")?;
        out.flush()?;
        let mut summaries = Vec::new();
        for row in section.rows {
            let Some(found) = seeds(row, args.seeds, &folder)? else {
                return Ok(parallel::interrupted_in(row.folder));
            };
            write_row(out, row.name, &found)?;
            out.flush()?;
            summaries.push(found);
        }
        writeln!(out, "{}", section.gain.tell(&summaries))?;
    }
    finish(&folder, out)?;
    Ok(ExitCode::SUCCESS)
}

/// The summaries of a row's runs, which are run unless they are there; none if the user stops them.
fn seeds(row: &Row, seeds: u64, folder: &Path) -> Result<Option<Vec<Summary>>> {
    let mut summaries = Vec::new();
    for seed in 1..=seeds {
        let settings = row.settings.iter().map(|setting| setting.to_string());
        let settings: Vec<String> = settings.chain([format!("seed={seed}")]).collect();
        let experiment = Experiment::prepare(Config::parse(BASE, &settings)?, &DataPaths::default())?;
        let place = folder.join(row.folder).join(format!("seed-{seed}"));
        let location = RunLocation::local(&experiment);
        let summary = match RunDirectory::open(&place, &experiment, &location)? {
            None => Summary::read(&place)?,
            Some(directory) => {
                let mut engine = EngineArgs::default().build(&experiment.engine_spec())?;
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
    /// From the first row to the second, seed by seed.
    fn tell(&self, rows: &[Vec<Summary>]) -> String {
        let [first, second, ..] = rows else {
            return String::new();
        };
        let change = |(before, after): (&Summary, &Summary)| match self.is_ratio {
            true => (self.value)(after) / (self.value)(before),
            false => (self.value)(after) - (self.value)(before),
        };
        let changes: Vec<f64> = first.iter().zip(second).map(change).collect();
        let (middle, half) = (mean(&changes), margin(&changes).unwrap_or(f64::NAN));
        (self.sentence)(middle, middle - half, middle + half)
    }
}

/// Writes a page about the first seed of every row, and says what to do next.
fn finish(folder: &Path, out: &mut impl Write) -> Result<()> {
    let mut names: Vec<&str> = SECTIONS.iter().flat_map(|section| section.rows).map(|row| row.folder).collect();
    names.sort_unstable();
    names.dedup();
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
