//! Tables of results over several seeds: means, confidence intervals and paired differences.

use anyhow::Result;
use std::io::Write;
use upwash::run::{Status, Summary};
use upwash_report::OverSeeds;
use upwash_report::statistics::{difference, margin, mean};

/// The summaries of runs that differ in their seed only, in the order of the seeds.
pub(crate) struct SeedGroup {
    pub(crate) name: String,
    pub(crate) summaries: Vec<Summary>,
}

/// What a table shows of a run.
type Value = fn(&Summary) -> f64;

/// The accuracies that a table shows: its heads, and the values in percent.
const ACCURACIES: [(&str, Value); 3] = [
    ("mean", |summary| 100.0 * summary.mean_accuracy),
    ("worst worker", |summary| 100.0 * summary.worst_accuracy),
    ("averaged", |summary| 100.0 * summary.averaged_model_accuracy),
];
/// Names that do not fit have a line of their own.
const NAME_WIDTH: usize = 20;

impl SeedGroup {
    fn diverged(&self) -> usize {
        self.summaries.iter().filter(|summary| has_diverged(summary)).count()
    }

    /// The values of all seeds; none if one of them has diverged.
    fn values(&self, value: Value) -> Option<Vec<f64>> {
        let values: Vec<f64> = self.summaries.iter().map(value).collect();
        (self.diverged() == 0 && values.iter().all(|value| !value.is_nan())).then_some(values)
    }

    /// The mean of the workers' mean accuracies over the seeds; none if one of them has diverged.
    pub(crate) fn mean_accuracy(&self) -> Option<f64> {
        Some(mean(&self.values(ACCURACIES[0].1)?))
    }

    /// The mean test accuracy over the seeds with its interval, as text.
    pub(crate) fn accuracy_text(&self) -> String {
        self.values(ACCURACIES[0].1).map_or("-".into(), |values| with_margin(&values))
    }

    /// The accuracies over the seeds, for a page; none of a single seed.
    pub(crate) fn over_seeds(&self) -> Option<OverSeeds> {
        let [mean, worst, averaged] = ACCURACIES.map(|(_, value)| {
            let parts: Vec<f64> =
                self.values(value).unwrap_or_default().iter().map(|percent| percent / 100.0).collect();
            (mean(&parts), margin(&parts).unwrap_or(f64::NAN))
        });
        let seeds = self.summaries.len();
        (seeds > 1).then_some(OverSeeds { seeds, mean, worst, averaged })
    }
}

pub(crate) fn has_diverged(summary: &Summary) -> bool {
    matches!(summary.status, Status::Diverged { .. })
}

/// The mean, and with several values half of its confidence interval.
fn with_margin(values: &[f64]) -> String {
    match margin(values) {
        Some(half) => format!("{:.2} ± {half:.2}", mean(values)),
        None => format!("{:.2}", mean(values)),
    }
}

/// A row for each group: accuracies, megabytes, seconds. 80 columns wide.
pub(crate) fn write_table(out: &mut impl Write, groups: &[SeedGroup]) -> Result<()> {
    let seeds = groups.iter().map(|group| group.summaries.len()).max().unwrap_or(1);
    if seeds > 1 {
        writeln!(out, "test accuracy, %: means of {seeds} seeds ± half of the 95 % interval")?;
    } else {
        writeln!(out, "test accuracy, %")?;
    }
    write!(out, "{:NAME_WIDTH$}", "")?;
    for (head, _) in ACCURACIES {
        write!(out, "{head:>15}")?;
    }
    let all: Vec<&Summary> = groups.iter().flat_map(|group| &group.summaries).collect();
    writeln!(out, "{:>8}{:>7}", "MB", clock(&all))?;
    for group in groups {
        write_name(out, &group.name)?;
        for (_, value) in ACCURACIES {
            let text = group.values(value).map_or("-".into(), |values| with_margin(&values));
            write!(out, "{text:>15}")?;
        }
        let all = |value: Value| mean(&group.summaries.iter().map(value).collect::<Vec<_>>());
        let megabytes = all(|summary| summary.sent.bytes_sent as f64 / 1e6);
        writeln!(out, "{megabytes:>8.1}{:>7.1}", all(|summary| summary.sent.simulated_seconds))?;
    }
    for group in groups {
        if group.diverged() > 0 {
            writeln!(out, "{}: {} of {} runs diverged", group.name, group.diverged(), group.summaries.len())?;
        }
        if is_odd_clock(&all, &group.summaries[0]) {
            writeln!(out, "{}: real seconds", group.name)?;
        }
    }
    Ok(())
}

/// The head of a column of seconds: real ones if all runs took place in real time.
pub(crate) fn clock(summaries: &[&Summary]) -> &'static str {
    match summaries.iter().all(|summary| summary.is_real_time) {
        true => "s",
        false => "sim s",
    }
}

/// Whether the seconds of a run are real ones in a column of simulated ones.
pub(crate) fn is_odd_clock(all: &[&Summary], one: &Summary) -> bool {
    one.is_real_time && all.iter().any(|summary| !summary.is_real_time)
}

/// The first cell of a row.
fn write_name(out: &mut impl Write, name: &str) -> Result<()> {
    match name.chars().count() < NAME_WIDTH {
        true => write!(out, "{name:<NAME_WIDTH$}")?,
        false => write!(out, "{name}\n{:NAME_WIDTH$}", "")?,
    }
    Ok(())
}

/// What the other groups have more than the first one, seed by seed.
pub(crate) fn write_differences(out: &mut impl Write, groups: &[SeedGroup]) -> Result<()> {
    let Some((first, others)) = groups.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Ok(());
    };
    writeln!(out, "\nmore than {}, in points, seed by seed (95 % interval)", first.name)?;
    writeln!(out, "{:NAME_WIDTH$}{:>29}{:>29}", "", ACCURACIES[0].0, ACCURACIES[1].0)?;
    for group in others {
        write_name(out, &group.name)?;
        for (_, value) in &ACCURACIES[..2] {
            let pair = group.values(*value).zip(first.values(*value));
            let text = match pair.and_then(|(own, reference)| difference(&own, &reference)) {
                Some(found) => format!("{:+.2} ({:+.2} to {:+.2})", found.mean, found.low, found.high),
                None => "-".into(),
            };
            write!(out, "{text:>29}")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "Where an interval contains 0, these seeds do not tell the two apart.")?;
    Ok(())
}
