//! Results of finished runs, and statistics over seeds.

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
use upwash_report::statistics::mean;

/// The results of a run that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) run: Run,
    /// Each worker's test accuracy in percent.
    pub(crate) accuracies: Vec<f64>,
    /// Wall-clock seconds, divided by the number of parallel runs; `None` if unknown.
    pub(crate) seconds: Option<f64>,
    /// Gigabytes sent by all workers.
    pub(crate) gigabytes: f64,
    /// Number of images on which the batch-norm statistics of the averaged model were estimated, if recorded.
    pub(crate) statistics_examples: Option<u64>,
    /// Number of runs at the same time, including this one.
    pub(crate) parallel_runs: u64,
    /// The engines that computed the run, if recorded; several if it was resumed elsewhere.
    pub(crate) engines: Vec<String>,
}

/// The ended runs of an experiment by seed.
pub(crate) type Outcomes = BTreeMap<u64, Outcome>;

/// The directory tree in which runs are stored.
pub(crate) struct Store {
    root: PathBuf,
    pub(crate) scale: Scale,
    /// The results read so far, by the experiment's directory. Tables and claims request the same runs many times.
    cache: RefCell<BTreeMap<PathBuf, Rc<Outcomes>>>,
}

impl Store {
    pub(crate) fn new(root: &Path, scale: Scale) -> Self {
        Self { root: root.to_owned(), scale, cache: RefCell::default() }
    }

    /// The directory of a run.
    pub(crate) fn directory(&self, experiment: &PaperExperiment, variant: Variant, seed: u64) -> PathBuf {
        let runs = self.root.join(self.scale.directory(experiment.task));
        runs.join(experiment.name(variant)).join(format!("seed-{seed}"))
    }

    /// The ended runs of an experiment, as of the first request.
    pub(crate) fn outcomes(&self, experiment: &PaperExperiment, variant: Variant) -> Rc<Outcomes> {
        let mut runs = self.directory(experiment, variant, 1);
        runs.pop();
        let mut cache = self.cache.borrow_mut();
        let found = cache.entry(runs).or_insert_with_key(|runs| Rc::new(Outcome::all_in(runs)));
        Rc::clone(found)
    }
}

impl Outcome {
    /// Reads the ended runs in an experiment's directory.
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
                // A damaged run does not prevent showing the others.
                Err(error) => tell!("warning: {error:#}; this run is left out"),
            }
        }
        found
    }

    /// Reads a run; `None` if it has not ended.
    fn read(directory: &Path) -> Result<Option<Self>> {
        let Some(summary) = Summary::read(directory)? else {
            return Ok(None);
        };
        let provenance = Provenance::read(directory);
        let run = Run::read(directory)?;
        let accuracies = run.last_accuracies();
        let parallel_runs = provenance.parallel_runs();
        let seconds = summary.wall_seconds.filter(|_| provenance.has_constant_parallel_runs());
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

    /// The round in which the run diverged, if it did.
    pub(crate) fn diverged(&self) -> Option<u64> {
        match self.run.ending {
            Some(Status::Diverged { round, .. }) => Some(round),
            _ => None,
        }
    }

    /// The training losses of all workers in an epoch.
    pub(crate) fn losses(&self, epoch: u64) -> Option<Vec<f64>> {
        let found = self.run.epochs.iter().find(|known| known.epoch == epoch)?;
        found.losses.iter().copied().collect()
    }

    /// The value of a measure; `None` if the run diverged or never reached `low_loss`.
    pub(crate) fn measure(&self, measure: Measure, low_loss: f64) -> Option<f64> {
        if self.diverged().is_some() || self.accuracies.is_empty() {
            return None;
        }
        let spread = |losses: &[f64]| highest(losses) - lowest(losses);
        match measure {
            Measure::MeanAccuracy => Some(mean(&self.accuracies)),
            Measure::WorstAccuracy => Some(lowest(&self.accuracies)),
            Measure::AveragedAccuracy => self.run.averaged_accuracy.map(|accuracy| 100.0 * accuracy),
            Measure::LossBefore => self.mean_over(self.before_first_cut(), mean),
            Measure::WorstLossBefore => self.mean_over(self.before_first_cut(), highest),
            Measure::SpreadBefore => self.mean_over(self.before_first_cut(), spread),
            Measure::SpreadAtEnd => self.mean_over(self.at_end(), spread),
            Measure::EpochsOfMean => self.epochs_until(|losses| mean(losses) <= low_loss),
            Measure::EpochsOfWorst => self.epochs_until(|losses| highest(losses) <= low_loss),
        }
    }

    /// The second quarter of the epochs, before the first cut of the learning rate.
    fn before_first_cut(&self) -> [u64; 2] {
        let epochs = self.epochs();
        [epochs / 4 + 1, (epochs / 2).max(1)]
    }

    /// The last twentieth of the epochs.
    fn at_end(&self) -> [u64; 2] {
        let epochs = self.epochs();
        [epochs - (epochs / 20).max(1) + 1, epochs]
    }

    fn epochs(&self) -> u64 {
        self.run.epochs.last().map_or(1, |epoch| epoch.epoch)
    }

    /// The mean over a range of epochs of a statistic of the workers' losses.
    fn mean_over(&self, [from, to]: [u64; 2], statistic: impl Fn(&[f64]) -> f64) -> Option<f64> {
        let losses = (from..=to).filter_map(|epoch| self.losses(epoch));
        let values: Vec<f64> = losses.map(|losses| statistic(&losses)).collect();
        (!values.is_empty()).then(|| mean(&values))
    }

    /// The first epoch whose losses satisfy a condition.
    fn epochs_until(&self, is_reached: impl Fn(&[f64]) -> bool) -> Option<f64> {
        let matches = |epoch: &&upwash_report::Epoch| {
            let losses: Option<Vec<f64>> = epoch.losses.iter().copied().collect();
            losses.is_some_and(|losses| is_reached(&losses))
        };
        let found = self.run.epochs.iter().find(matches)?;
        Some(found.epoch as f64)
    }

    /// How far a worker's loss before the first cut is above the highest, and above the mean, of the other workers'
    /// losses.
    pub(crate) fn loss_gap(&self, worker: usize) -> Option<[f64; 2]> {
        if self.diverged().is_some() {
            return None;
        }
        let loss = |worker: usize| self.mean_over(self.before_first_cut(), |losses| losses[worker]);
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
