//! Tables: the paper's numbers beside ours, in Markdown.

use super::claims::Measure;
use super::exhibits::{Column, Exhibit};
use super::outcomes::{Outcome, deviation, mean};
use super::printed::{Paper, Printed};
use super::text::Shown;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use upwash::algorithm::Variant;

/// What there is of one variant of a column.
pub(super) enum Runs {
    /// By seed.
    Own(Vec<Outcome>),
    /// They are those of another variant, which is shown.
    Those(Variant),
}

pub(super) type Found = BTreeMap<Variant, Runs>;

impl Runs {
    pub(super) fn own(&self) -> &[Outcome] {
        match self {
            Self::Own(runs) => runs,
            Self::Those(_) => &[],
        }
    }
}

impl Shown<'_> {
    /// The tables of the columns that there are runs of.
    pub(super) fn tables(
        &self,
        text: &mut String,
        exhibit: &Exhibit,
        columns: &[(&Column, Found)],
        paper: &Paper,
    ) -> Result<()> {
        if exhibit.by_node {
            for (column, found) in columns {
                writeln!(text, "### {}\n", column.title)?;
                self.by_node(text, found, paper.of(column), exhibit.losses)?;
            }
            return Ok(());
        }
        let mut links = columns.iter().map(|(column, _)| column.cell.links);
        let first = links.next();
        match links.all(|links| Some(links) == first) {
            true => self.means(text, columns, paper),
            false => self.by_links(text, exhibit, columns, paper),
        }
    }

    /// A column's runs.
    pub(super) fn found(&self, column: &Column) -> Found {
        let runs = |&variant: &Variant| {
            let resolved = column.cell.resolved(variant);
            if resolved != variant && self.variants.contains(&resolved) {
                return (variant, Runs::Those(resolved));
            }
            let outcomes = self.store.outcomes(&column.cell, variant);
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

    /// A row for each worker.
    fn by_node(
        &self,
        text: &mut String,
        found: &Found,
        paper: Option<&Printed>,
        losses: bool,
    ) -> Result<()> {
        let nodes = found
            .values()
            .flat_map(Runs::own)
            .map(|outcome| outcome.accuracies.len());
        let nodes = nodes.max().unwrap_or(0);
        let is_shown = |node: &usize| self.workers.is_empty() || self.workers.contains(node);
        let mut rows = vec![self.heading("worker", paper.is_some())];
        let mut row = |name: &str,
                       paper: Option<String>,
                       value: &dyn Fn(&Outcome) -> Option<f64>,
                       digits: usize| {
            let mut cells = vec![name.to_owned()];
            cells.extend(paper);
            for variant in self.variants {
                cells.push(spread(&found[variant], value, digits));
            }
            rows.push(cells);
        };
        let number = |value: f64| format!("{value:.2}");
        for node in (0..nodes).filter(is_shown) {
            let printed =
                paper.map(|paper| paper.accuracies.get(node).map_or("".into(), |x| number(*x)));
            let value = |outcome: &Outcome| outcome.accuracies.get(node).copied();
            row(&node.to_string(), printed, &value, 2);
        }
        let average = |outcome: &Outcome| Some(mean(&outcome.accuracies));
        // What is in brackets is not printed there.
        let printed = paper.map(|paper| match paper.average {
            Some(printed) => number(printed),
            None => format!("({})", number(paper.average())),
        });
        row("mean", printed, &average, 2);
        let printed = paper.map(|paper| number(paper.worst()));
        let worst = |outcome: &Outcome| outcome.accuracies.iter().copied().reduce(f64::min);
        row("worst", printed, &worst, 2);
        let averaged = |outcome: &Outcome| Some(100.0 * outcome.run.averaged_accuracy?);
        let name = self.averaged_name(found);
        row(&name, paper.map(|_| String::new()), &averaged, 2);
        let sent = |outcome: &Outcome| outcome.gigabytes;
        row("GB sent by all", paper.map(|_| String::new()), &sent, 1);
        if losses {
            let epochs = self.store.scale.epochs;
            let half = (epochs > 1).then_some((0, epochs / 2));
            for (place, epoch) in half.into_iter().chain([(1, epochs)]) {
                let printed = paper.map(|paper| paper.losses.as_ref()?.get(place));
                let number =
                    |loss: Option<f64>| loss.map_or("".into(), |loss| format!("{loss:.3}"));
                for node in (0..nodes).filter(is_shown) {
                    let printed =
                        printed.map(|all| number(all.and_then(|all| all.get(node).copied())));
                    let value = |outcome: &Outcome| outcome.losses(epoch)?.get(node).copied();
                    row(
                        &format!("{node}, loss in epoch {epoch}"),
                        printed,
                        &value,
                        3,
                    );
                }
                let printed = printed.map(|all| number(all.map(|all| mean(all))));
                let value = |outcome: &Outcome| outcome.losses(epoch).map(|losses| mean(&losses));
                row(&format!("mean loss in epoch {epoch}"), printed, &value, 3);
            }
        }
        rows.push(self.counts(found, paper.is_some()));
        write_aligned(text, &rows)
    }

    /// The averaged model, and on how many images its batch-norm statistics were estimated: runs that do not say
    /// it took 16 batches. The digits' network has none.
    fn averaged_name(&self, found: &Found) -> String {
        let scale = self.store.scale;
        let usual = 16 * scale.batch as u64;
        let runs = found.values().flat_map(Runs::own);
        let images = runs.map(|outcome| outcome.statistics_examples.unwrap_or(usual));
        let images: BTreeSet<u64> = images.filter(|_| !scale.quick).collect();
        let images: Vec<String> = images.iter().map(u64::to_string).collect();
        match images.is_empty() {
            true => "averaged model".into(),
            false => format!("averaged model, {} images", images.join(" or ")),
        }
    }

    /// How many seeds, and how long each took.
    fn counts(&self, found: &Found, has_paper: bool) -> Vec<String> {
        let mut cells = vec!["seeds".to_owned()];
        if has_paper {
            cells.push(String::new());
        }
        for variant in self.variants {
            let runs = match &found[variant] {
                Runs::Own(runs) => runs,
                Runs::Those(other) => {
                    cells.push(format!("= {}", other.name()));
                    continue;
                }
            };
            let seconds: Vec<f64> = runs.iter().filter_map(|run| run.seconds).collect();
            cells.push(match (runs.len(), seconds.is_empty()) {
                (0, _) => "0".into(),
                (count, true) => count.to_string(),
                (count, false) => {
                    let sizes: BTreeSet<u64> = runs.iter().map(|run| run.together).collect();
                    let how = match (sizes.first(), sizes.last()) {
                        (Some(1), Some(1)) | (None, _) | (_, None) => String::new(),
                        (least, most) if least == most => {
                            format!(", {} at a time", runs[0].together)
                        }
                        (Some(least), Some(most)) => format!(", {least} to {most} at a time"),
                    };
                    format!("{count} ({:.0} s each{how})", mean(&seconds))
                }
            });
        }
        cells
    }

    /// A row for each algorithm, the graphs across, as the paper has it: all workers' mean, and the worst one.
    fn by_links(
        &self,
        text: &mut String,
        exhibit: &Exhibit,
        columns: &[(&Column, Found)],
        paper: &Paper,
    ) -> Result<()> {
        // How many seeds there are, if everywhere as many.
        let counts = columns.iter().flat_map(|(_, found)| found.values());
        let counts: BTreeSet<usize> = counts.map(|runs| runs.own().len()).collect();
        let mut counts = counts.into_iter().filter(|count| *count > 0);
        let alike = counts.next().filter(|_| counts.next().is_none());
        let links: BTreeSet<_> = columns
            .iter()
            .map(|(column, _)| column.cell.links)
            .collect();
        let mut names: Vec<String> = Vec::new();
        for (column, _) in columns {
            let name = column.cell.display_name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let is = |column: &Column, name: &str, links: u8| {
            column.cell.links == links && column.cell.display_name() == name
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
        type Of = (&'static str, fn(&Printed) -> f64, Measure);
        let of: [Of; 2] = [
            ("mean", Printed::average, Measure::MeanAccuracy),
            ("worst worker", Printed::worst, Measure::WorstAccuracy),
        ];
        for (what, printed, measure) in of {
            if columns.iter().any(|(column, _)| paper.of(column).is_some()) {
                table(format!("{what}, paper"), &|name, links| {
                    let mut all = exhibit.columns.iter();
                    let found = all.find(|column| is(column, name, links));
                    let found = found.and_then(|column| paper.of(column));
                    found.map_or("".into(), |paper| format!("{:.2}", printed(paper)))
                })?;
            }
            for &variant in self.variants {
                table(format!("{what}, {}", variant.name()), &|name, links| {
                    let mut all = columns.iter();
                    let Some((_, found)) = all.find(|(column, _)| is(column, name, links)) else {
                        return "not run".into();
                    };
                    let value = |outcome: &Outcome| outcome.measure(measure, self.low);
                    match alike {
                        Some(_) => spread(&found[&variant], &value, 2),
                        None => with_count(&found[&variant], &value),
                    }
                })?;
            }
        }
        let seeds = match alike {
            Some(1) => "one seed each".into(),
            Some(count) => format!("{count} seeds each"),
            None => "in brackets: seeds".into(),
        };
        writeln!(text, "Test accuracy in percent; {seeds}.\n")?;
        Ok(())
    }

    /// A row for each experiment.
    fn means(&self, text: &mut String, columns: &[(&Column, Found)], paper: &Paper) -> Result<()> {
        let has_paper = columns.iter().any(|(column, _)| paper.of(column).is_some());
        let mut rows = vec![self.heading("mean test accuracy", has_paper)];
        for (column, found) in columns {
            let mut cells = vec![column.title.clone()];
            if has_paper {
                let printed = paper
                    .of(column)
                    .map(|paper| format!("{:.2}", paper.average()));
                cells.push(printed.unwrap_or_default());
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

/// The first row is the heading.
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

/// A mean over seeds with its standard deviation, and how many seeds there are.
fn with_count(runs: &Runs, value: &dyn Fn(&Outcome) -> Option<f64>) -> String {
    let cell = spread(runs, value, 2);
    match runs.own().len() {
        0 => cell,
        count => format!("{cell} ({count})"),
    }
}

/// A mean over seeds with its standard deviation.
fn spread(runs: &Runs, value: &dyn Fn(&Outcome) -> Option<f64>, digits: usize) -> String {
    let runs = match runs {
        Runs::Own(runs) if runs.is_empty() => return "not run".into(),
        Runs::Own(runs) => runs,
        Runs::Those(other) => return format!("= {}", other.name()),
    };
    let lost: Vec<u64> = runs.iter().filter_map(Outcome::diverged).collect();
    let going: Vec<&Outcome> = runs.iter().filter(|run| run.diverged().is_none()).collect();
    let values: Vec<f64> = going.iter().filter_map(|run| value(run)).collect();
    let diverged = match (lost.len(), lost.first()) {
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
