//! What all runs have in common: counting, testing, telling.

use super::report::{Event, Moment, Next, Node, Observer, Outcome, Progress, Status, Summary};
use crate::engine::{Engine, Part, Score};
use crate::experiment::Experiment;
use crate::model::{Layout, Replica};
use crate::optimizer::Rate;

/// A run on its way.
pub(super) struct Course<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) progress: Progress,
    /// Those who have data.
    pub(super) training: Vec<usize>,
    observer: &'a mut dyn Observer,
    rate: Rate,
    /// Of the models as they are now, where they have been tested.
    tested: Option<Tested>,
}

/// What can be measured of the workers' models, wherever they are.
pub(super) trait Models {
    fn score(&mut self, worker: usize, part: Part) -> Score;
    /// A worker's model without its running statistics: others are estimated for it.
    fn score_bare(&mut self, worker: usize) -> Score;
    fn consensus_distance(&mut self, workers: &[usize]) -> f64;
    /// All that is needed for going on from here.
    fn moment(&mut self, progress: &Progress) -> Moment;
}

impl Models for &mut dyn Engine {
    fn score(&mut self, worker: usize, part: Part) -> Score {
        (**self).score(worker, part)
    }

    fn score_bare(&mut self, worker: usize) -> Score {
        let replica = self.average(&[worker]);
        self.score_replica(&replica)
    }

    fn consensus_distance(&mut self, workers: &[usize]) -> f64 {
        (**self).consensus_distance(workers)
    }

    fn moment(&mut self, progress: &Progress) -> Moment {
        (progress.clone(), (**self).state())
    }
}

impl<'a> Course<'a> {
    /// Says what is said before the first round.
    pub(super) fn new(
        experiment: &'a Experiment,
        progress: Progress,
        observer: &'a mut dyn Observer,
        layout: &Layout,
    ) -> Self {
        observer.observe(&Event::Started {
            round: progress.round,
            algorithm: experiment.algorithm_name(),
            graph: experiment.graph_name(),
            workers: experiment.workers(),
            centre: experiment.centre,
            parameters: layout.parameter_count(),
            rounds: experiment.rounds(),
            rounds_per_epoch: experiment.sampler.rounds_per_epoch(),
            batch: experiment.sampler.batch_size(),
        });
        for message in &experiment.warnings {
            let message = message.clone();
            observer.observe(&Event::Warning { message });
        }
        Self {
            experiment,
            progress,
            training: experiment.training_workers(),
            observer,
            rate: experiment.config.training.rate(),
            tested: None,
        }
    }

    /// The learning rate after so many rounds.
    pub(super) fn rate(&self, rounds: f64) -> f64 {
        let epoch = rounds / self.experiment.sampler.rounds_per_epoch() as f64;
        let epochs = self.experiment.config.training.epochs as f64;
        self.rate.at(epoch, epochs)
    }

    /// The same for others to keep.
    pub(super) fn rates(&self) -> impl Fn(f64) -> f64 + Sync + use<> {
        let (rate, epochs) = (
            self.rate.clone(),
            self.experiment.config.training.epochs as f64,
        );
        let epoch = self.experiment.sampler.rounds_per_epoch() as f64;
        move |rounds| rate.at(rounds / epoch, epochs)
    }

    /// Adds a score to a worker's mean over the epoch.
    pub(super) fn count(&mut self, worker: usize, score: Score) {
        let sum = &mut self.progress.epoch_scores[worker];
        *sum = sum.join(score);
    }

    /// An epoch's scores stay until the next one begins: a run may end between them.
    pub(super) fn begin_round(&mut self) {
        let epoch = self.experiment.sampler.rounds_per_epoch();
        if self.progress.round.is_multiple_of(epoch) && !self.is_over() {
            self.progress.epoch_scores.fill(Score::default());
        }
    }

    /// Far above what guessing costs there is no way back.
    pub(super) fn is_sane(&self, loss: f64) -> bool {
        loss < 1e4 * (self.experiment.data.classes.max(2) as f64).ln()
    }

    /// The run ends here: a worker's loss is lost, and its models are worth a look.
    pub(super) fn diverged(
        &mut self,
        worker: usize,
        losses: Vec<f64>,
        models: &mut dyn Models,
    ) -> Status {
        let (round, sent) = (self.progress.round, self.progress.sent);
        self.observer.observe(&Event::Round {
            round,
            losses,
            sent,
        });
        let progress = &self.progress;
        self.observer.diverged(&mut || models.moment(progress));
        Status::Diverged { worker, round }
    }

    /// A round is over. Tells, tests at the end of an epoch, and asks whether to go on.
    pub(super) fn end_round(&mut self, losses: Vec<f64>, models: &mut dyn Models) -> Next {
        let training = &self.experiment.config.training;
        let epoch_rounds = self.experiment.sampler.rounds_per_epoch();
        let (round, sent) = (self.progress.round, self.progress.sent);
        self.progress.round += 1;
        self.tested = None;
        let mut next = self.observer.observe(&Event::Round {
            round,
            losses,
            sent,
        });
        if self.progress.round.is_multiple_of(epoch_rounds) {
            let epoch = self.progress.round / epoch_rounds;
            if epoch.is_multiple_of(training.test_every) || epoch == training.epochs {
                self.tested = Some(self.test(models));
            }
            let tested = self.tested.as_ref();
            let scores = &self.progress.epoch_scores;
            let event = Event::Epoch {
                epoch,
                train_losses: scores.iter().map(train_loss).collect(),
                test_accuracies: tested.map(|tested| tested.accuracies.clone()),
                share_losses: tested.and_then(|tested| tested.losses.clone()),
                consensus_distance: models.consensus_distance(&self.training),
                sent,
            };
            next = next.or(self.observer.observe(&event));
        }
        let progress = &self.progress;
        let moment = &mut || models.moment(progress);
        next.or(self.observer.between_rounds(progress.round, moment))
    }

    /// Whether all rounds were run.
    pub(super) fn is_over(&self) -> bool {
        self.progress.round >= self.experiment.rounds()
    }

    fn test(&self, models: &mut dyn Models) -> Tested {
        let workers = 0..self.experiment.workers();
        let tests: Vec<Score> = workers
            .clone()
            .map(|worker| {
                if Some(worker) == self.experiment.centre {
                    models.score_bare(worker)
                } else {
                    models.score(worker, Part::Test)
                }
            })
            .collect();
        let mut share = |worker| {
            if Some(worker) == self.experiment.centre {
                f64::NAN
            } else {
                models.score(worker, Part::Share).loss
            }
        };
        let asked = self.experiment.config.training.share_loss;
        Tested {
            accuracies: tests.iter().map(Score::accuracy).collect(),
            losses: asked.then(|| workers.map(&mut share).collect()),
            broken: tests.iter().position(|score| !score.loss.is_finite()),
        }
    }

    /// What the run comes to.
    pub(super) fn end(mut self, mut status: Status, mut engine: &mut dyn Engine) -> Outcome {
        // Who stops a run does not want to wait for its tests: what is not known is no number.
        let stopped = matches!(status, Status::Interrupted { .. });
        let workers = self.experiment.workers();
        let tested = match self.tested.take() {
            Some(tested) => tested,
            None if stopped => Tested::nothing(workers),
            None => self.test(&mut engine),
        };
        if let (Some(worker), Status::Finished) = (tested.broken, &status) {
            let round = self.progress.round;
            status = Status::Diverged { worker, round };
            let progress = &self.progress;
            self.observer.diverged(&mut || engine.moment(progress));
        }
        self.observer.observe(&Event::Ended {
            status: status.clone(),
        });
        let result = match self.experiment.centre {
            Some(centre) => vec![centre],
            None => self.training.clone(),
        };
        let (averaged, averaged_model_accuracy) = if stopped {
            (Replica::default(), f64::NAN)
        } else {
            let averaged = engine.average(&result);
            let accuracy = engine.score_replica(&averaged).accuracy();
            (averaged, accuracy)
        };
        let accuracies = || {
            self.training
                .iter()
                .map(|&worker| tested.accuracies[worker])
        };
        let summary = Summary {
            algorithm: self.experiment.algorithm_name(),
            graph: self.experiment.graph_name(),
            workers,
            rounds: self.progress.round,
            status,
            mean_accuracy: accuracies().sum::<f64>() / self.training.len() as f64,
            worst_accuracy: accuracies().min_by(f64::total_cmp).unwrap_or(f64::NAN),
            averaged_model_accuracy,
            consensus_distance: engine.consensus_distance(&self.training),
            sent: self.progress.sent,
            centre: self.experiment.centre,
            nodes: tested.nodes(&self.progress),
        };
        Outcome { summary, averaged }
    }
}

/// No number where there were no images.
fn train_loss(sum: &Score) -> f64 {
    if sum.images == 0 { f64::NAN } else { sum.loss }
}

/// How everyone's model does.
struct Tested {
    /// On the test set.
    accuracies: Vec<f64>,
    /// On its own share.
    losses: Option<Vec<f64>>,
    /// The first whose loss is no number.
    broken: Option<usize>,
}

impl Tested {
    fn nothing(workers: usize) -> Self {
        Self {
            accuracies: vec![f64::NAN; workers],
            losses: None,
            broken: None,
        }
    }

    fn nodes(&self, progress: &Progress) -> Vec<Node> {
        let node = |(id, &test_accuracy): (usize, &f64)| Node {
            id,
            train_loss: train_loss(&progress.epoch_scores[id]),
            share_loss: self.losses.as_ref().map(|losses| losses[id]),
            test_accuracy,
        };
        self.accuracies.iter().enumerate().map(node).collect()
    }
}
