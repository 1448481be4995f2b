//! What runs came to, and what several of them say together.

use crate::claims::Measure;
use crate::experiments::PaperExperiment;
use crate::provenance::Provenance;
use crate::scale::Scale;
use anyhow::Result;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use upwash::algorithm::Variant;
use upwash::run::{Status, Summary};
use upwash_cli::tell;
use upwash_report::Run;

/// A run that is over.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) run: Run,
    /// Each worker's test accuracy in percent.
    pub(crate) accuracies: Vec<f64>,
    /// How long it took: its share, where others ran at the same time. None where that is not known.
    pub(crate) seconds: Option<f64>,
    /// What all workers sent.
    pub(crate) gigabytes: f64,
    /// Images on which the averaged model's batch-norm statistics were estimated, where it says so.
    pub(crate) statistics_examples: Option<u64>,
    /// How many ran at the same time, with it.
    pub(crate) parallel_runs: u64,
    /// What computed it, as far as that was kept: several where it went on elsewhere.
    pub(crate) engines: Vec<String>,
}

/// An experiment's runs that are over, by seed.
pub(crate) type Outcomes = BTreeMap<u64, Outcome>;

/// Where runs are kept.
pub(crate) struct Store {
    top: PathBuf,
    pub(crate) scale: Scale,
    /// What was read, by the experiment's directory: tables and claims ask for the same runs many times.
    read: RefCell<BTreeMap<PathBuf, Rc<Outcomes>>>,
}

impl Store {
    pub(crate) fn new(top: &Path, scale: Scale) -> Self {
        Self { top: top.to_owned(), scale, read: RefCell::default() }
    }

    /// The directory of a run.
    pub(crate) fn directory(&self, experiment: &PaperExperiment, variant: Variant, seed: u64) -> PathBuf {
        let runs = self.top.join(self.scale.directory(experiment.task));
        runs.join(experiment.name(variant)).join(format!("seed-{seed}"))
    }

    /// All of an experiment's runs that are over, as they were when it was first asked for.
    pub(crate) fn outcomes(&self, experiment: &PaperExperiment, variant: Variant) -> Rc<Outcomes> {
        let mut runs = self.directory(experiment, variant, 1);
        runs.pop();
        let mut known = self.read.borrow_mut();
        let found = known.entry(runs).or_insert_with_key(|runs| Rc::new(Outcome::all_in(runs)));
        Rc::clone(found)
    }
}

impl Outcome {
    /// Those that are over in an experiment's directory.
    fn all_in(runs: &Path) -> Outcomes {
        let mut found = Outcomes::new();
        for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let seed = name.to_str().and_then(|name| name.strip_prefix("seed-"));
            let Some(seed) = seed.and_then(|seed| seed.parse().ok()) else {
                continue;
            };
            match Outcome::read(&entry.path()) {
                Ok(Some(outcome)) => {
                    found.insert(seed, outcome);
                }
                Ok(None) => {}
                // One damaged run is no reason to show nothing of the others.
                Err(error) => tell!("warning: {error:#}; this run is left out"),
            }
        }
        found
    }

    /// None where it is not over.
    fn read(directory: &Path) -> Result<Option<Self>> {
        let Some(summary) = Summary::read(directory)? else {
            return Ok(None);
        };
        let provenance = Provenance::read(directory);
        let run = Run::read(directory)?;
        let accuracies = run.last_accuracies();
        let parallel_runs = provenance.parallel_runs();
        let seconds = summary.wall_seconds.filter(|_| provenance.is_even());
        Ok(match run.ending {
            Some(Status::Finished | Status::Diverged { .. }) => Some(Self {
                accuracies: accuracies.iter().map(|entry| 100.0 * entry.1).collect(),
                seconds: seconds.map(|seconds| seconds / parallel_runs as f64),
                gigabytes: summary.sent.bytes_sent as f64 / 1e9,
                statistics_examples: summary.statistics_examples.map(|count| count as u64),
                parallel_runs,
                engines: provenance.engines(),
                run,
            }),
            _ => None,
        })
    }

    pub(crate) fn diverged(&self) -> Option<u64> {
        match self.run.ending {
            Some(Status::Diverged { round, .. }) => Some(round),
            _ => None,
        }
    }

    /// Everyone's training loss in an epoch.
    pub(crate) fn losses(&self, epoch: u64) -> Option<Vec<f64>> {
        let found = self.run.epochs.iter().find(|known| known.epoch == epoch)?;
        found.losses.iter().copied().collect()
    }

    /// None where it cannot be told.
    pub(crate) fn measure(&self, measure: Measure, low: f64) -> Option<f64> {
        if self.diverged().is_some() || self.accuracies.is_empty() {
            return None;
        }
        let spread = |losses: &[f64]| highest(losses) - lowest(losses);
        match measure {
            Measure::MeanAccuracy => Some(mean(&self.accuracies)),
            Measure::WorstAccuracy => Some(lowest(&self.accuracies)),
            Measure::AveragedAccuracy => self.run.averaged_accuracy.map(|part| 100.0 * part),
            Measure::LossBefore => self.over(self.before(), mean),
            Measure::WorstLossBefore => self.over(self.before(), highest),
            Measure::SpreadBefore => self.over(self.before(), spread),
            Measure::SpreadAtEnd => self.over(self.at_end(), spread),
            Measure::EpochsOfMean => self.epochs_until(|losses| mean(losses) <= low),
            Measure::EpochsOfWorst => self.epochs_until(|losses| highest(losses) <= low),
        }
    }

    /// The second quarter of the epochs: before the rate is cut for the first time.
    fn before(&self) -> [u64; 2] {
        let epochs = self.epochs();
        [epochs / 4 + 1, (epochs / 2).max(1)]
    }

    fn at_end(&self) -> [u64; 2] {
        let epochs = self.epochs();
        [epochs - (epochs / 20).max(1) + 1, epochs]
    }

    fn epochs(&self) -> u64 {
        self.run.epochs.last().map_or(1, |epoch| epoch.epoch)
    }

    /// The mean over some epochs of something that everyone's losses are.
    fn over(&self, [from, to]: [u64; 2], of: impl Fn(&[f64]) -> f64) -> Option<f64> {
        let losses = (from..=to).filter_map(|epoch| self.losses(epoch));
        let values: Vec<f64> = losses.map(|losses| of(&losses)).collect();
        (!values.is_empty()).then(|| mean(&values))
    }

    fn epochs_until(&self, enough: impl Fn(&[f64]) -> bool) -> Option<f64> {
        let known = |epoch: &&upwash_report::Epoch| {
            let losses: Option<Vec<f64>> = epoch.losses.iter().copied().collect();
            losses.is_some_and(|losses| enough(&losses))
        };
        let found = self.run.epochs.iter().find(known)?;
        Some(found.epoch as f64)
    }

    /// By how much a worker's loss before the first cut is above the highest, and above the mean, of the others'.
    pub(crate) fn behind(&self, worker: usize) -> Option<[f64; 2]> {
        if self.diverged().is_some() {
            return None;
        }
        let loss = |worker: usize| self.over(self.before(), |losses| losses[worker]);
        let others = (0..self.accuracies.len()).filter(|other| *other != worker);
        let others: Option<Vec<f64>> = others.map(loss).collect();
        let (own, others) = (loss(worker)?, others?);
        Some([own - highest(&others), own - mean(&others)])
    }
}

fn highest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn lowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample; none of a single one.
pub(crate) fn deviation(values: &[f64]) -> Option<f64> {
    let (middle, count) = (mean(values), values.len());
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    (count > 1).then(|| (squares / (count - 1) as f64).sqrt())
}

/// Within how much of its mean the true one is, with 95 % confidence, by Student's t.
pub(crate) fn margin(values: &[f64]) -> Option<f64> {
    /// For 1 to 30 degrees of freedom.
    const T: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    let count = values.len();
    let quantile = T.get(count.checked_sub(2)?).copied().unwrap_or(2.042);
    Some(quantile * deviation(values)? / (count as f64).sqrt())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_student_s() {
        // scipy.stats.t.interval(0.95, 4, 3.0, scipy.stats.sem([1, 2, 3, 4, 5])) = (1.0368, 4.9632)
        let margin = margin(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((margin - 1.9632).abs() < 1e-3, "{margin}");
        assert_eq!(deviation(&[2.0]), None);
        assert!((deviation(&[1.0, 3.0]).unwrap() - 2.0_f64.sqrt()).abs() < 1e-12);
    }
}
