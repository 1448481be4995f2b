//! An exhibit as a text: what was run, its tables, and what they say of its claims, in Markdown.

use super::cells::{Cell, Task};
use super::claims::Claim;
use super::exhibits::{Column, Exhibit};
use super::judge::judge;
use super::outcomes::Store;
use super::printed::{Paper, claimed};
use super::tables::{Found, Runs};
use anyhow::Result;
use std::collections::BTreeSet;
use std::fmt::Write;
use upwash::algorithm::Variant;

/// How an exhibit is shown.
pub(super) struct Shown<'a> {
    pub(super) store: &'a Store,
    pub(super) variants: &'a [Variant],
    /// The workers that have a row; all where there are none.
    pub(super) workers: &'a [usize],
    /// The training loss to which epochs are counted.
    pub(super) low: f64,
}

impl Shown<'_> {
    /// The whole text.
    pub(super) fn text(&self, exhibit: &Exhibit) -> Result<String> {
        let paper = Paper::at(&self.store.scale)?;
        let mut text = format!("## {}: {}\n\n", exhibit.label, exhibit.caption);
        let words = self.store.scale.display_name(exhibit.task());
        let is_printed = exhibit.columns.iter().any(|column| column.paper.is_some());
        let other = match is_printed && !self.store.scale.is_the_paper_s() {
            true => " The paper's numbers are of another scale, and left out.",
            false => "",
        };
        writeln!(text, "Each run: {words}.{other}\n")?;
        let columns = exhibit.columns.iter();
        let columns = columns.filter(|column| self.has_task(&column.cell));
        let (columns, missing): (Vec<_>, Vec<_>) = columns
            .map(|column| (column, self.found(column)))
            .partition(|(_, found)| found.values().any(|runs| !runs.own().is_empty()));
        if !missing.is_empty() {
            let titles: Vec<&str> = missing.iter().map(|(of, _)| of.title.as_str()).collect();
            writeln!(text, "Not run: {}.\n", titles.join("; "))?;
        }
        if columns.is_empty() {
            return Ok(text);
        }
        self.tables(&mut text, exhibit, &columns, &paper)?;
        engines(&mut text, &columns)?;
        self.claims(&mut text, exhibit, &paper)?;
        Ok(text)
    }

    /// On the digits there is but one task.
    fn has_task(&self, cell: &Cell) -> bool {
        !self.store.scale.quick || cell.task == Task::Cifar10
    }

    /// What is claimed or asked, and whether it is so.
    fn claims(&self, text: &mut String, exhibit: &Exhibit, paper: &Paper) -> Result<()> {
        let can_be_told = |claim: &&Claim| claim.cells().iter().all(|cell| self.has_task(cell));
        let mut judged = Vec::new();
        for claim in exhibit.claims.iter().filter(can_be_told) {
            let lines = judge(claim, self.store, self.variants, self.low);
            if !lines.is_empty() {
                let printed = claimed(claim, |cell| paper.of_cell(cell, exhibit));
                judged.push((claim, printed.into_iter().chain(lines)));
            }
        }
        if judged.is_empty() {
            return Ok(());
        }
        let low = match judged.iter().any(|(claim, _)| claim.counts_epochs()) {
            true => format!(" (a loss is low at {})", self.low),
            false => String::new(),
        };
        let what = match exhibit.is_ours() {
            true => "What is asked here",
            false => "What is claimed",
        };
        writeln!(text, "{what}, seed by seed{low}:\n")?;
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

/// What computed all that is shown.
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
