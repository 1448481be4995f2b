//! Markdown tables with the paper's numbers beside ours.

use crate::artifacts::{Artifact, Column};
use crate::claims::Measure;
use crate::outcomes::Outcome;
use crate::paper_values::PaperValues;
use crate::text::Renderer;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use upwash::algorithm::Variant;
use upwash_report::statistics::{deviation, mean};

/// The runs of one variant of a column.
pub(crate) enum Runs {
    /// The runs of this variant, ordered by seed.
    Own(Vec<Outcome>),
    /// The runs are those of another variant, which is shown too.
    SameAs(Variant),
}

/// The runs of a column by variant.
pub(crate) type Found = BTreeMap<Variant, Runs>;

impl Runs {
    /// The runs of this variant; empty if they are those of another one.
    pub(crate) fn own(&self) -> &[Outcome] {
        match self {
            Self::Own(runs) => runs,
            Self::SameAs(_) => &[],
        }
    }
}

impl Renderer<'_> {
    /// Writes the tables of the columns that have runs.
    pub(crate) fn tables(&self, text: &mut String, artifact: &Artifact, columns: &[(&Column, Found)]) -> Result<()> {
        if artifact.by_worker {
            for (column, found) in columns {
                writeln!(text, "### {}\n", column.title)?;
                self.by_worker(text, found, self.printed(column), artifact.losses)?;
            }
            return Ok(());
        }
        let mut links = columns.iter().map(|(column, _)| column.experiment.links);
        let first = links.next();
        match links.all(|links| Some(links) == first) {
            true => self.means(text, columns),
            false => self.by_links(text, artifact, columns),
        }
    }

    /// The runs of a column.
    pub(crate) fn found(&self, column: &Column) -> Found {
        let runs = |&variant: &Variant| {
            let resolved = column.experiment.resolved(variant);
            if resolved != variant && self.variants.contains(&resolved) {
                return (variant, Runs::SameAs(resolved));
            }
            let outcomes = self.store.outcomes(&column.experiment, variant);
            (variant, Runs::Own(outcomes.values().cloned().collect()))
        };
        self.variants.iter().map(runs).collect()
    }

    fn heading(&self, first: &str, has_paper: bool) -> Vec<String> {
        let paper = has_paper.then_some("paper");
        let variants = self.variants.iter().map(|variant| variant.name());
        let names = [first].into_iter().chain(paper).chain(variants);
        names.map(str::to_owned).collect()
    }

    /// Writes a table with a row for each worker.
    fn by_worker(&self, text: &mut String, found: &Found, paper: Option<&PaperValues>, losses: bool) -> Result<()> {
        let outcomes = found.values().flat_map(Runs::own);
        let count = outcomes.map(|outcome| outcome.accuracies.len()).max();
        let is_shown = |worker: &usize| self.workers.is_empty() || self.workers.contains(worker);
        let workers: Vec<usize> = (0..count.unwrap_or(0)).filter(is_shown).collect();
        let mut rows = WorkerRows {
            rows: vec![self.heading("worker", paper.is_some())],
            found,
            variants: self.variants,
            has_paper: paper.is_some(),
        };
        for &worker in &workers {
            let printed = paper.and_then(|paper| paper.accuracies.get(worker));
            rows.add(&worker.to_string(), number(printed.copied(), 2), 2, &|outcome| {
                outcome.accuracies.get(worker).copied()
            });
        }
        // An average in brackets is computed here, not printed in the paper.
        let printed = paper.map_or(String::new(), |paper| match paper.average {
            Some(printed) => number(Some(printed), 2),
            None => format!("({})", number(Some(paper.average()), 2)),
        });
        rows.add("mean", printed, 2, &|outcome| Some(mean(&outcome.accuracies)));
        let printed = number(paper.map(PaperValues::worst), 2);
        rows.add("worst", printed, 2, &|outcome| outcome.accuracies.iter().copied().reduce(f64::min));
        rows.add(&self.averaged_name(found), String::new(), 2, &|outcome| Some(100.0 * outcome.run.averaged_accuracy?));
        rows.add("GB sent by all", String::new(), 1, &|outcome| Some(outcome.gigabytes));
        if losses {
            self.losses(&mut rows, &workers, paper);
        }
        rows.rows.push(self.counts(found, paper.is_some()));
        write_aligned(text, &rows.rows)
    }

    /// Adds the training losses after half and after all of the epochs.
    fn losses(&self, rows: &mut WorkerRows, workers: &[usize], paper: Option<&PaperValues>) {
        let epochs = self.store.scale.epochs;
        let half = (epochs > 1).then_some((0, epochs / 2));
        for (index, epoch) in half.into_iter().chain([(1, epochs)]) {
            let printed = paper.and_then(|paper| paper.losses.as_ref()?.get(index));
            for &worker in workers {
                let printed = printed.and_then(|all| all.get(worker)).copied();
                let name = format!("{worker}, loss in epoch {epoch}");
                rows.add(&name, number(printed, 3), 3, &|outcome| outcome.losses(epoch)?.get(worker).copied());
            }
            let printed = number(printed.map(|all| mean(all)), 3);
            let name = format!("mean loss in epoch {epoch}");
            rows.add(&name, printed, 3, &|outcome| outcome.losses(epoch).map(|losses| mean(&losses)));
        }
    }

    /// The row name of the averaged model, with the number of images on which its batch-norm statistics were estimated.
    /// Runs that do not record it used 16 batches. The network for the digits has no batch norm.
    fn averaged_name(&self, found: &Found) -> String {
        let scale = self.store.scale;
        let default = 16 * scale.batch as u64;
        let runs = found.values().flat_map(Runs::own);
        let images = runs.map(|outcome| outcome.statistics_examples.unwrap_or(default));
        let images: BTreeSet<u64> = images.filter(|_| !scale.quick).collect();
        let images: Vec<String> = images.iter().map(u64::to_string).collect();
        match images.is_empty() {
            true => "averaged model".into(),
            false => format!("averaged model, {} images", images.join(" or ")),
        }
    }

    /// The row with the number of seeds and the time of a run.
    fn counts(&self, found: &Found, has_paper: bool) -> Vec<String> {
        let mut cells = vec!["seeds".to_owned()];
        if has_paper {
            cells.push(String::new());
        }
        for variant in self.variants {
            let runs = match &found[variant] {
                Runs::Own(runs) => runs,
                Runs::SameAs(other) => {
                    cells.push(format!("= {}", other.name()));
                    continue;
                }
            };
            let seconds: Vec<f64> = runs.iter().filter_map(|run| run.seconds).collect();
            cells.push(match (runs.len(), seconds.is_empty()) {
                (0, _) => "0".into(),
                (count, true) => count.to_string(),
                (count, false) => {
                    let sizes: BTreeSet<u64> = runs.iter().map(|run| run.parallel_runs).collect();
                    let parallel = match (sizes.first(), sizes.last()) {
                        (Some(1), Some(1)) | (None, _) | (_, None) => String::new(),
                        (least, most) if least == most => {
                            format!(", {} at a time", runs[0].parallel_runs)
                        }
                        (Some(least), Some(most)) => format!(", {least} to {most} at a time"),
                    };
                    format!("{count} ({:.0} s each{parallel})", mean(&seconds))
                }
            });
        }
        cells
    }

    /// Writes tables with a row for each algorithm and a column for each graph, as in the paper: one for the mean of
    /// the workers and one for the worst worker.
    fn by_links(&self, text: &mut String, artifact: &Artifact, columns: &[(&Column, Found)]) -> Result<()> {
        // The number of seeds, if it is the same everywhere.
        let counts = columns.iter().flat_map(|(_, found)| found.values());
        let counts: BTreeSet<usize> = counts.map(|runs| runs.own().len()).collect();
        let mut counts = counts.into_iter().filter(|count| *count > 0);
        let same_count = counts.next().filter(|_| counts.next().is_none());
        let links: BTreeSet<_> = columns.iter().map(|(column, _)| column.experiment.links).collect();
        let mut names: Vec<String> = Vec::new();
        for (column, _) in columns {
            let name = column.experiment.display_name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let is_column = |column: &Column, name: &str, links: u8| {
            column.experiment.links == links && column.experiment.display_name() == name
        };
        let mut table = |title: String, cell: &dyn Fn(&str, u8) -> String| -> Result<()> {
            let across = links.iter().rev();
            let mut rows = vec![vec![title]];
            rows[0].extend(across.clone().map(|links| format!("D = {links}")));
            for name in &names {
                let cells = across.clone().map(|links| cell(name, *links));
                rows.push([name.clone()].into_iter().chain(cells).collect());
            }
            write_aligned(text, &rows)
        };
        type Statistic = (&'static str, fn(&PaperValues) -> f64, Measure);
        let statistics: [Statistic; 2] = [
            ("mean", PaperValues::average, Measure::MeanAccuracy),
            ("worst worker", PaperValues::worst, Measure::WorstAccuracy),
        ];
        for (title, printed, measure) in statistics {
            if columns.iter().any(|(column, _)| self.printed(column).is_some()) {
                table(format!("{title}, paper"), &|name, links| {
                    let mut all = artifact.columns.iter();
                    let found = all.find(|column| is_column(column, name, links));
                    let found = found.and_then(|column| self.printed(column));
                    number(found.map(printed), 2)
                })?;
            }
            for &variant in self.variants {
                table(format!("{title}, {}", variant.name()), &|name, links| {
                    let mut all = columns.iter();
                    let Some((_, found)) = all.find(|(column, _)| is_column(column, name, links)) else {
                        return "not run".into();
                    };
                    let value = |outcome: &Outcome| outcome.measure(measure, self.low_loss);
                    match same_count {
                        Some(_) => spread(&found[&variant], &value, 2),
                        None => with_count(&found[&variant], &value),
                    }
                })?;
            }
        }
        let seeds = match same_count {
            Some(1) => "one seed each".into(),
            Some(count) => format!("{count} seeds each"),
            None => "in brackets: seeds".into(),
        };
        writeln!(text, "Test accuracy in percent; {seeds}.\n")?;
        Ok(())
    }

    /// Writes a table with a row for each experiment.
    fn means(&self, text: &mut String, columns: &[(&Column, Found)]) -> Result<()> {
        let has_paper = columns.iter().any(|(column, _)| self.printed(column).is_some());
        let mut rows = vec![self.heading("mean test accuracy", has_paper)];
        for (column, found) in columns {
            let mut cells = vec![column.title.clone()];
            if has_paper {
                let printed = self.printed(column).map(PaperValues::average);
                cells.push(number(printed, 2));
            }
            for variant in self.variants {
                let value = |outcome: &Outcome| Some(mean(&outcome.accuracies));
                cells.push(with_count(&found[variant], &value));
            }
            rows.push(cells);
        }
        write_aligned(text, &rows)?;
        writeln!(
            text,
            "In brackets: seeds. Rows of other seeds than one another's are compared below by those that both have.\n"
        )?;
        Ok(())
    }
}

/// Rows of the table of one column of an artifact, with a cell for each variant.
struct WorkerRows<'a> {
    rows: Vec<Vec<String>>,
    found: &'a Found,
    variants: &'a [Variant],
    has_paper: bool,
}

impl WorkerRows<'_> {
    fn add(&mut self, name: &str, printed: String, digits: usize, value: &dyn Fn(&Outcome) -> Option<f64>) {
        let mut cells = vec![name.to_owned()];
        cells.extend(self.has_paper.then_some(printed));
        let variants = self.variants.iter();
        cells.extend(variants.map(|variant| spread(&self.found[variant], value, digits)));
        self.rows.push(cells);
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.digits$}"))
}

/// Writes an aligned Markdown table. The first row is the heading.
fn write_aligned(text: &mut String, rows: &[Vec<String>]) -> Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (number, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            write!(text, "| {cell:<width$} ")?;
        }
        text.push_str("|\n");
        if number == 0 {
            for width in &widths {
                write!(text, "|{}", "-".repeat(width + 2))?;
            }
            text.push_str("|\n");
        }
    }
    text.push('\n');
    Ok(())
}

/// The mean over seeds with its standard deviation and the number of seeds.
fn with_count(runs: &Runs, value: &dyn Fn(&Outcome) -> Option<f64>) -> String {
    let cell = spread(runs, value, 2);
    match runs.own().len() {
        0 => cell,
        count => format!("{cell} ({count})"),
    }
}

/// The mean over seeds with its standard deviation, or the reason why there is none.
fn spread(runs: &Runs, value: &dyn Fn(&Outcome) -> Option<f64>, digits: usize) -> String {
    let runs = match runs {
        Runs::Own(runs) if runs.is_empty() => return "not run".into(),
        Runs::Own(runs) => runs,
        Runs::SameAs(other) => return format!("= {}", other.name()),
    };
    let diverged: Vec<u64> = runs.iter().filter_map(Outcome::diverged).collect();
    let stable: Vec<&Outcome> = runs.iter().filter(|run| run.diverged().is_none()).collect();
    let values: Vec<f64> = stable.iter().filter_map(|run| value(run)).collect();
    let diverged = match (diverged.len(), diverged.first()) {
        (_, None) => String::new(),
        (1, Some(round)) => format!("diverged in round {round}"),
        (count, Some(round)) => format!("{count} diverged, the first in round {round}"),
    };
    if values.is_empty() {
        return diverged;
    }
    let mut text = match deviation(&values) {
        Some(deviation) => format!("{:.digits$} ± {deviation:.digits$}", mean(&values)),
        None => format!("{:.digits$}", mean(&values)),
    };
    if !diverged.is_empty() {
        text = format!("{text}; {diverged}");
    }
    text
}
