//! The paper's figures: test accuracies over epochs, and over the number of links of the graph.

use crate::artifacts::Artifact;
use crate::claims::Measure;
use crate::experiments::PaperExperiment;
use crate::outcomes::{Outcome, Store};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use upwash::algorithm::Variant;
use upwash_cli::files::write_figure;
use upwash_report::statistics::mean;
use upwash_report::{Figure, NamedLine, Run};

/// Draws the accuracies over epochs as in the paper's figures, with a line for the mean over the seeds of each
/// experiment. For several graphs, also draws the final accuracies over the number of links.
pub(crate) fn draw(folder: &Path, artifact: &Artifact, store: &Store, variants: &[Variant]) -> Result<()> {
    if !artifact.name.starts_with("figure") {
        return Ok(());
    }
    let links: BTreeSet<u8> = artifact.columns.iter().map(|column| column.experiment.links).collect();
    for &variant in variants {
        let mut lines = Vec::new();
        for column in &artifact.columns {
            let outcomes = store.outcomes(&column.experiment, variant);
            let runs: Vec<&Run> = outcomes.values().map(|outcome| &outcome.run).collect();
            let seeds = if runs.len() == 1 { "seed" } else { "seeds" };
            let title = format!("{} ({} {seeds})", column.title, runs.len());
            // A color for each graph, or for each algorithm if there is one graph. AL-DSGD is dashed.
            let color = match links.len() {
                1 => lines.len() / 2,
                _ => links.iter().rev().position(|links| *links == column.experiment.links).unwrap_or(0),
            };
            lines.push(NamedLine {
                name: title,
                points: accuracies(&runs),
                color,
                dashed: column.experiment.algorithm.has_leaders(),
            });
        }
        let name = format!("{}-{}", artifact.name, variant.name());
        let data = &store.scale.dataset(artifact.task()).label;
        let title = format!("{}, {}, on {data}", artifact.label, variant.name());
        let figure = Figure::from_lines(&name, &title, ["epoch", "mean test accuracy, %"], lines);
        if let Some(figure) = figure {
            write_figure(&figure, folder)?;
        }
        if links.len() > 1 {
            let lines = over_links(artifact, store, variant);
            let axes = ["links of the graph (D)", "test accuracy at the end, %"];
            let (name, title) = (format!("{name}-links"), format!("{title}, at the end"));
            if let Some(figure) = Figure::from_lines(&name, &title, axes, lines) {
                write_figure(&figure, folder)?;
            }
        }
    }
    Ok(())
}

/// A line for the mean and one for the worst worker of each algorithm. The lines of AL-DSGD are dashed.
fn over_links(artifact: &Artifact, store: &Store, variant: Variant) -> Vec<NamedLine> {
    let mut by_name: BTreeMap<String, Vec<PaperExperiment>> = BTreeMap::new();
    for column in &artifact.columns {
        let experiments = by_name.entry(column.experiment.display_name()).or_default();
        experiments.push(column.experiment);
    }
    let parts = [("mean", Measure::MeanAccuracy), ("worst worker", Measure::WorstAccuracy)];
    let mut lines = Vec::new();
    for (name, mut experiments) in by_name {
        experiments.sort_by_key(|experiment| experiment.links);
        for (color, (part, measure)) in parts.into_iter().enumerate() {
            let point = |experiment: &PaperExperiment| {
                let outcomes = store.outcomes(experiment, variant);
                // These measures do not depend on the low loss.
                let value = |outcome: &Outcome| outcome.measure(measure, 0.0);
                let all: Vec<f64> = outcomes.values().filter_map(value).collect();
                (!all.is_empty()).then(|| (f64::from(experiment.links), mean(&all)))
            };
            lines.push(NamedLine {
                name: format!("{name}, {part}"),
                points: experiments.iter().filter_map(point).collect(),
                color,
                dashed: experiments.iter().any(|experiment| experiment.algorithm.has_leaders()),
            });
        }
    }
    lines
}

/// The mean test accuracy of the runs, in the epochs in which all of them were evaluated.
fn accuracies(runs: &[&Run]) -> Vec<(f64, f64)> {
    let mut by_epoch: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for epoch in runs.iter().flat_map(|run| &run.epochs) {
        let known = epoch.accuracies.iter().flatten().copied();
        if let Some(known) = known.collect::<Option<Vec<f64>>>()
            && !known.is_empty()
        {
            let all = by_epoch.entry(epoch.epoch).or_default();
            all.push(100.0 * mean(&known));
        }
    }
    by_epoch.retain(|_, all| all.len() == runs.len());
    let points = by_epoch.into_iter();
    points.map(|(epoch, all)| (epoch as f64, mean(&all))).collect()
}
