//! `upwash demo`: four algorithms on the digits.

use crate::engines::EngineArgs;
use crate::parallel;
use anyhow::Result;
use std::io::Write;
use std::path::{Path, PathBuf};
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{RunDirectory, RunLocation};

pub(crate) fn run(out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "Eight workers on the AL-DSGD paper's graph L1, each with 177 of 1,442\n\
         images of handwritten digits (UCI, 8x8 pixels), train a small network for 20\n\
         epochs. They have no server: in a round, everyone takes a step and averages\n\
         with its neighbors.\n"
    )?;
    out.flush()?;
    let folder = free_folder(Path::new("runs"));
    let mut rows = Vec::new();
    for (name, algorithm, base, copies) in [
        ("dpsgd", "dpsgd", None, 1),
        ("matcha", "matcha", None, 1),
        ("al-dsgd-over-dpsgd", "al-dsgd", Some("dpsgd"), 3),
        ("al-dsgd-over-matcha", "al-dsgd", Some("matcha"), 3),
    ] {
        let mut config = Config::default();
        config.algorithm.name = algorithm.into();
        let base = base.map(|base| ("base".into(), base.into()));
        config.algorithm.options.extend(base);
        config.graph.copies = copies;
        let experiment = Experiment::prepare(config, &DataPaths::default())?;
        let mut engine = EngineArgs::standard().build(&experiment.engine_spec())?;
        let location = RunLocation::local(&experiment);
        let directory = RunDirectory::create(&folder.join(name), &experiment, &location)?;
        for summary in parallel::execute(&mut *engine, &mut [(&experiment, directory)]) {
            rows.push(summary?);
        }
    }
    writeln!(
        out,
        "{:<41}{:>7}{:>7}{:>9}{:>9}{:>7}",
        "test accuracy, %", "mean", "worst", "averaged", "distance", "MB"
    )?;
    for row in rows {
        writeln!(
            out,
            "{:<41}{:>7.2}{:>7.2}{:>9.2}{:>9.4}{:>7.1}",
            row.algorithm,
            100.0 * row.mean_accuracy,
            100.0 * row.worst_accuracy,
            100.0 * row.averaged_model_accuracy,
            row.consensus_distance,
            row.sent.bytes_sent as f64 / 1e6
        )?;
    }
    writeln!(
        out,
        "\n`averaged` is the average of the eight models as one; `distance` how far they\n\
         are from it; `MB` what all of them sent. AL-DSGD also rotates the workers'\n\
         places through three copies of the graph. One seed on an easy problem: no\n\
         ranking.\n\nresults are in {}",
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
