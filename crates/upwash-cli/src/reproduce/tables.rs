//! An exhibit as a text: the paper's numbers beside ours, in Markdown.

use super::cells::{Cell, Task};
use super::claims::{Claim, ClaimKind, Measure};
use super::exhibits::{Column, Exhibit};
use super::judge::judge;
use super::outcomes::{Outcome, Store, deviation, mean};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use upwash::algorithm::Variant;

/// The paper's numbers of one algorithm in one table.
#[derive(Deserialize)]
struct Printed {
    accuracies: Vec<f64>,
    average: Option<f64>,
    /// After half and all of the epochs.
    losses: Option<Vec<Vec<f64>>>,
}

impl Printed {
    fn all() -> Result<BTreeMap<String, Self>> {
        toml::from_str(include_str!("paper.toml")).context("the paper's numbers")
    }

    /// What is printed as the average, or what it is.
    fn average(&self) -> f64 {
        self.average.unwrap_or_else(|| mean(&self.accuracies))
    }
}

/// How an exhibit is shown.
pub(super) struct Shown<'a> {
    pub(super) store: &'a Store,
    pub(super) variants: &'a [Variant],
    /// The workers that have a row; all where there are none.
    pub(super) workers: &'a [usize],
    /// The training loss to which epochs are counted.
    pub(super) low: f64,
}

/// What there is of one variant of a column.
enum Runs {
    /// By seed.
    Own(Vec<Outcome>),
    /// They are those of another variant, which is shown.
    Those(Variant),
}

type Found = BTreeMap<Variant, Runs>;

impl Runs {
    fn own(&self) -> &[Outcome] {
        match self {
            Self::Own(runs) => runs,
            Self::Those(_) => &[],
        }
    }
}

impl Shown<'_> {
    /// The whole text.
    pub(super) fn text(&self, exhibit: &Exhibit) -> Result<String> {
        let printed = Printed::all()?;
        // Its numbers are of its own scale.
        let comparable = self.store.scale.is_the_paper_s();
        let paper = |column: &Column| match comparable {
            true => column.paper.as_ref().and_then(|name| printed.get(name)),
            false => None,
        };
        let mut text = format!("## {}: {}\n\n", exhibit.label, exhibit.caption);
        let (mut columns, mut missing) = (Vec::new(), Vec::new());
        // On the digits there is but one task.
        let is_there = |cell: &Cell| !self.store.scale.quick || cell.task == Task::Cifar10;
        for column in exhibit
            .columns
            .iter()
            .filter(|column| is_there(&column.cell))
        {
            let found = self.found(column)?;
            if found.values().any(|runs| !runs.own().is_empty()) {
                columns.push((column, found));
            } else {
                missing.push(column.title.as_str());
            }
        }
        if !missing.is_empty() {
            writeln!(text, "Not run: {}.\n", missing.join("; "))?;
        }
        if columns.is_empty() {
            return Ok(text);
        }
        if exhibit.by_node {
            for (column, found) in &columns {
                writeln!(text, "### {}\n", column.title)?;
                self.by_node(&mut text, found, paper(column), exhibit.losses)?;
            }
        } else {
            self.means(&mut text, &columns, &paper)?;
        }
        let engines = columns.iter().flat_map(|(_, found)| found.values());
        let engines = engines.flat_map(Runs::own);
        let engines: BTreeSet<&str> = engines.filter_map(|run| run.engine.as_deref()).collect();
        if !engines.is_empty() {
            let list: Vec<&str> = engines.into_iter().collect();
            writeln!(text, "Run by: {}.\n", list.join("; "))?;
        }
        let all = super::catalogue::all();
        let elsewhere: Vec<Column> = all.into_iter().flat_map(|other| other.columns).collect();
        let mut judged = Vec::new();
        for claim in exhibit
            .claims
            .iter()
            .filter(|claim| claim.cells().iter().all(is_there))
        {
            let mut lines = judge(claim, self.store, self.variants, self.low)?;
            if !lines.is_empty() {
                // Where a table does not print both, others do.
                let printed = |cell: &Cell| {
                    let columns = exhibit.columns.iter().chain(&elsewhere);
                    columns
                        .filter(|column| column.cell == *cell)
                        .find_map(paper)
                };
                lines.splice(0..0, claimed(claim, printed));
                judged.push((&claim.sentence, lines));
            }
        }
        if !judged.is_empty() {
            let counts = judged
                .iter()
                .any(|(sentence, _)| sentence.contains("epochs until"));
            let low = match counts {
                true => format!(" (a loss is low at {})", self.low),
                false => String::new(),
            };
            writeln!(text, "What is claimed, seed by seed{low}:\n")?;
            for (sentence, lines) in judged {
                writeln!(text, "- {sentence}")?;
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
        }
        Ok(text)
    }

    fn found(&self, column: &Column) -> Result<Found> {
        let runs = |&variant: &Variant| -> Result<(Variant, Runs)> {
            let resolved = column.cell.resolved(variant);
            if resolved != variant && self.variants.contains(&resolved) {
                return Ok((variant, Runs::Those(resolved)));
            }
            let outcomes = self.store.outcomes(&column.cell, variant)?;
            Ok((variant, Runs::Own(outcomes.into_values().collect())))
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
        row(
            "mean",
            paper.map(|paper| number(paper.average())),
            &average,
            2,
        );
        let worst = |all: &[f64]| all.iter().copied().reduce(f64::min);
        let printed = paper.and_then(|paper| worst(&paper.accuracies)).map(number);
        row("worst", printed, &|outcome| worst(&outcome.accuracies), 2);
        let averaged = |outcome: &Outcome| Some(100.0 * outcome.run.averaged_accuracy?);
        row("averaged model", paper.map(|_| String::new()), &averaged, 2);
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
                    let how = match runs.iter().map(|run| run.together).max() {
                        Some(most) if most > 1 => format!(", {most} at a time"),
                        _ => String::new(),
                    };
                    format!("{count} ({:.0} s each{how})", mean(&seconds))
                }
            });
        }
        cells
    }

    /// A row for each experiment.
    fn means<'p>(
        &self,
        text: &mut String,
        columns: &[(&Column, Found)],
        paper: &dyn Fn(&Column) -> Option<&'p Printed>,
    ) -> Result<()> {
        let has_paper = columns.iter().any(|(column, _)| paper(column).is_some());
        let mut rows = vec![self.heading("mean test accuracy", has_paper)];
        for (column, found) in columns {
            let mut cells = vec![column.title.clone()];
            if has_paper {
                let printed = paper(column).map(|paper| format!("{:.2}", paper.average()));
                cells.push(printed.unwrap_or_default());
            }
            for variant in self.variants {
                let runs = &found[variant];
                let mut cell = spread(runs, &|outcome| Some(mean(&outcome.accuracies)), 2);
                let count = runs.own().len();
                if count > 0 {
                    write!(cell, " ({count})")?;
                }
                cells.push(cell);
            }
            rows.push(cells);
        }
        write_aligned(text, &rows)?;
        writeln!(text, "In brackets: seeds.\n")?;
        Ok(())
    }
}

/// By how much one is better in the paper, where it prints both.
fn claimed<'a>(claim: &Claim, printed: impl Fn(&Cell) -> Option<&'a Printed>) -> Option<String> {
    let worst = |of: &Printed| of.accuracies.iter().copied().fold(f64::INFINITY, f64::min);
    let difference = match &claim.kind {
        ClaimKind::Better {
            measure,
            one,
            other,
        } => {
            let (one, other) = (printed(one)?, printed(other)?);
            match measure {
                Measure::MeanAccuracy => one.average() - other.average(),
                Measure::WorstAccuracy => worst(one) - worst(other),
                _ => return None,
            }
        }
        ClaimKind::Robust { one, other } => {
            let gain = |[dense, sparse]: &[Cell; 2]| {
                Some(printed(sparse)?.average() - printed(dense)?.average())
            };
            gain(one)? - gain(other)?
        }
        ClaimKind::Slowest { .. } | ClaimKind::Worst { .. } => return None,
    };
    Some(format!("paper: {difference:+.2} points"))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use upwash_topology::{GraphSpec, Schedule};

    #[test]
    fn four_printed_averages_are_not_the_averages() {
        let wrong: Vec<String> = Printed::all()
            .unwrap()
            .into_iter()
            .filter(|(_, printed)| (printed.average() - mean(&printed.accuracies)).abs() > 0.02)
            .map(|(name, printed)| {
                format!(
                    "{name}: {:.2}, not {:.2}",
                    mean(&printed.accuracies),
                    printed.average()
                )
            })
            .collect();
        let expected = [
            "table10.al-dsgd: 93.82, not 93.94",
            "table10.matcha: 93.52, not 93.65",
            "table5.5: 91.28, not 91.14",
            "table9.9: 93.42, not 93.47",
        ];
        assert_eq!(wrong, expected);
    }

    #[test]
    fn sentences_are_not_what_the_tables_say() {
        let all = Printed::all().unwrap();
        let less = |one: &str, other: &str| all[one].average() - all[other].average();
        // "D-PSGD performs poorly even when the degree is only decreased to 84 %."
        assert!(less("table3.11", "table3.13") > 0.0);
        // "AL-DSGD with 38 % of degree is even better than D-PSGD with 84 %": so it is there,
        assert!(less("table4.5", "table3.11") > 0.0);
        // "the same conclusion" over MATCHA: it is not, with the printed average or the one that is right.
        assert!(less("table6.5", "table5.11") < -0.7);
        let right = |name: &str| mean(&all[name].accuracies);
        assert!(right("table6.5") - right("table5.11") < -0.7);
        // "increased by 5.8 % and 16.7 % in the worst-performance worker and by 2.1 % and 5.5 % in the final averaged
        // model", on CIFAR-10 and CIFAR-100: the numbers for CIFAR-100 are those of the table, the others are not.
        let worst = |name: &str| -> f64 {
            let all = all[name].accuracies.iter().copied();
            all.fold(f64::INFINITY, f64::min)
        };
        let gains = |ending: &str| {
            let [one, other] = ["al-dsgd", "dpsgd"].map(|name| format!("table2.{name}{ending}"));
            [worst(&one) - worst(&other), less(&one, &other)].map(|gain| format!("{gain:.2}"))
        };
        assert_eq!(gains(""), ["5.62", "2.50"]);
        assert_eq!(gains("-cifar100"), ["16.65", "5.52"]);
    }

    /// In the two matchings that the released baseline uses, half of the workers have two links and half one: the
    /// paper's losses after 100 epochs fall into the same two halves.
    #[test]
    fn the_printed_losses_show_which_matchings_were_used() {
        let spec: GraphSpec = "paper:L1".parse().unwrap();
        let schedule = Schedule::released_flags(&spec.build().unwrap()).unwrap();
        let rounds = [0, 1].map(|round| schedule.round(round));
        let degree = |worker| -> usize { rounds.iter().map(|round| round.degree(worker)).sum() };
        let losses = Printed::all()
            .unwrap()
            .remove("table1.dpsgd")
            .unwrap()
            .losses;
        let losses = losses.unwrap().swap_remove(0);
        let of = |links: usize| -> Vec<f64> {
            let workers = (0..8).filter(|worker| degree(*worker) == links);
            workers.map(|worker| losses[worker]).collect()
        };
        let (one, two) = (of(1), of(2));
        assert_eq!((one.len(), two.len()), (4, 4));
        assert!(
            one.iter()
                .all(|high| two.iter().all(|low| high - low > 0.08))
        );
    }

    #[test]
    fn the_same_runs_are_printed_with_other_numbers() {
        let all = Printed::all().unwrap();
        let differ = |one: &str, other: &str| -> Vec<(usize, f64, f64)> {
            let pairs = all[one]
                .accuracies
                .iter()
                .zip(&all[other].accuracies)
                .enumerate();
            let pairs = pairs.map(|(worker, (a, b))| (worker, *a, *b));
            pairs.filter(|(_, a, b)| a != b).collect()
        };
        assert_eq!(differ("table5.13", "table10.matcha"), [(3, 93.91, 92.91)]);
        assert_eq!(differ("table6.13", "table10.al-dsgd"), [(1, 94.42, 93.42)]);
        assert_eq!(differ("table1.matcha", "table5.13"), [(2, 93.76, 92.76)]);
        assert_eq!(differ("table1.dpsgd", "table2.dpsgd"), []);
    }
}
