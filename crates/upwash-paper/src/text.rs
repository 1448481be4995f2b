//! Renders a table or figure of the paper as Markdown: the runs, their tables, and the verdicts on the claims.

use crate::artifacts::{Artifact, Column};
use crate::claims::Claim;
use crate::experiments::PaperExperiment;
use crate::outcomes::Store;
use crate::paper_values::{PaperValues, claimed};
use crate::tables::{Found, Runs};
use crate::verdict::verdicts;
use anyhow::Result;
use std::collections::BTreeSet;
use std::fmt::Write;
use upwash::algorithm::Variant;

/// Settings for rendering artifacts.
pub(crate) struct Renderer<'a> {
    pub(crate) store: &'a Store,
    pub(crate) variants: &'a [Variant],
    /// The workers that have a row; all if empty.
    pub(crate) workers: &'a [usize],
    /// The training loss up to which epochs are counted.
    pub(crate) low_loss: f64,
}

impl Renderer<'_> {
    /// The complete text of an artifact.
    pub(crate) fn text(&self, artifact: &Artifact) -> Result<String> {
        let mut text = format!("## {}: {}\n\n", artifact.label, artifact.caption);
        let description = self.store.scale.display_name(artifact.task());
        let is_printed = artifact.columns.iter().any(|column| column.printed.is_some());
        let other = match is_printed && !self.store.scale.is_paper_scale() {
            true => " The paper's numbers are of another scale, and left out.",
            false => "",
        };
        writeln!(text, "Each run: {description}.{other}\n")?;
        let columns = artifact.columns.iter();
        let columns = columns.filter(|column| self.store.scale.has(column.experiment.task));
        let (columns, missing): (Vec<_>, Vec<_>) = columns
            .map(|column| (column, self.found(column)))
            .partition(|(_, found)| found.values().any(|runs| !runs.own().is_empty()));
        if !missing.is_empty() {
            let titles: Vec<&str> = missing.iter().map(|(column, _)| column.title.as_str()).collect();
            writeln!(text, "Not run: {}.\n", titles.join("; "))?;
        }
        if columns.is_empty() {
            return Ok(text);
        }
        self.tables(&mut text, artifact, &columns)?;
        engines(&mut text, &columns)?;
        self.claims(&mut text, artifact)?;
        Ok(text)
    }

    /// The paper's numbers for a column, if they have this scale.
    pub(crate) fn printed(&self, column: &Column) -> Option<&'static PaperValues> {
        let is_comparable = self.store.scale.is_paper_scale();
        column.printed.filter(|_| is_comparable)
    }

    /// The paper's numbers for an experiment: those of this artifact, or else of any table.
    fn printed_of(&self, experiment: &PaperExperiment, artifact: &Artifact) -> Option<&'static PaperValues> {
        let columns = artifact.columns.iter();
        let mut columns = columns.filter(|column| column.experiment == *experiment);
        let is_comparable = self.store.scale.is_paper_scale();
        let found = columns.find_map(|column| column.printed);
        found.or_else(|| PaperValues::anywhere(experiment)).filter(|_| is_comparable)
    }

    /// Writes the claims with their verdicts.
    fn claims(&self, text: &mut String, artifact: &Artifact) -> Result<()> {
        let scale = &self.store.scale;
        let is_testable = |claim: &&Claim| {
            let mut experiments = claim.experiments().into_iter();
            experiments.all(|experiment| scale.has(experiment.task))
        };
        let mut judged = Vec::new();
        for claim in artifact.claims.iter().filter(is_testable) {
            let lines = verdicts(claim, self.store, self.variants, self.low_loss);
            if !lines.is_empty() {
                let printed = claimed(claim, |experiment| self.printed_of(experiment, artifact));
                judged.push((claim, printed.into_iter().chain(lines)));
            }
        }
        if judged.is_empty() {
            return Ok(());
        }
        let low = match judged.iter().any(|(claim, _)| claim.counts_epochs()) {
            true => format!(" (a loss is low at {})", self.low_loss),
            false => String::new(),
        };
        let heading = match artifact.is_ours() {
            true => "What is asked here",
            false => "What is claimed",
        };
        writeln!(text, "{heading}, seed by seed{low}:\n")?;
        for (claim, lines) in judged {
            writeln!(text, "- {}", claim.sentence)?;
            for line in lines {
                writeln!(text, "  - {line}")?;
            }
        }
        text.push('\n');
        if text.contains("95 % interval") {
            text.push_str(
                "Each interval stands by itself: of twenty differences that are nothing but noise, one would miss 0.\n\n",
            );
        }
        Ok(())
    }
}

/// Writes the engines that computed the results.
fn engines(text: &mut String, columns: &[(&Column, Found)]) -> Result<()> {
    let runs = columns.iter().flat_map(|(_, found)| found.values());
    let names = runs.flat_map(Runs::own).flat_map(|run| &run.engines);
    let names: BTreeSet<&str> = names.map(String::as_str).collect();
    if !names.is_empty() {
        let list: Vec<&str> = names.into_iter().collect();
        writeln!(text, "Run by: {}.\n", list.join("; "))?;
    }
    Ok(())
}
