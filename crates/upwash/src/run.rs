//! The round loop, and what it reports.

use crate::algorithm::{Report, View};
use crate::config::Statistics;
use crate::engine::{Engine, Part, Score};
use crate::experiment::Experiment;
use crate::model::Replica;
use serde::{Deserialize, Serialize};

/// How a run ended. A run that diverges is no error: it is a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Status {
    /// All rounds were run.
    Finished,
    /// A loss was not finite any more, or so high that nothing can come of it.
    Diverged {
        /// Whose.
        worker: usize,
        /// When.
        round: u64,
    },
    /// The observer asked for an end.
    Interrupted {
        /// The first round that was not run.
        round: u64,
    },
}

/// What happens in a run, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Before the first round, and again where a run that was stopped goes on.
    Started {
        /// The first round from here on.
        round: u64,
        /// The algorithm in words.
        algorithm: String,
        /// The graph's spelling.
        graph: String,
        /// How many workers.
        workers: usize,
        /// Numbers in a model.
        parameters: usize,
        /// Rounds in all.
        rounds: u64,
        /// Rounds in an epoch.
        rounds_per_epoch: u64,
        /// Images in a worker's batch.
        batch: usize,
    },
    /// Something that a user should know.
    Warning {
        /// What.
        message: String,
    },
    /// A round was run.
    Round {
        /// Its number.
        round: u64,
        /// Everyone's loss on its batch, before the step.
        losses: Vec<f64>,
    },
    /// An epoch was completed.
    Epoch {
        /// Its number, from 1.
        epoch: u64,
        /// Each worker's mean loss over the epoch's batches.
        train_losses: Vec<f64>,
        /// Each worker's accuracy on the test set, where it was tested.
        test_accuracies: Option<Vec<f64>>,
        /// Each worker's mean loss on its whole share, where that was asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        share_losses: Option<Vec<f64>>,
        /// How far the models are from their average.
        consensus_distance: f64,
        /// Sent by all workers together so far.
        bytes_sent: u64,
    },
    /// After the last round.
    Ended {
        /// How.
        #[serde(flatten)]
        status: Status,
    },
}

/// Whether to go on after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Continue,
    /// Stop after this round.
    Stop,
}

impl Next {
    /// To stop if either says so.
    fn or(self, other: Self) -> Self {
        if self == Self::Stop { self } else { other }
    }
}

/// What a run comes to. Of a run that was interrupted, what would have to be measured is not a number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The algorithm in words.
    pub algorithm: String,
    /// The graph's spelling, and what is special about its use.
    pub graph: String,
    /// How many workers.
    pub workers: usize,
    /// Rounds that were run.
    pub rounds: u64,
    /// How it ended.
    #[serde(flatten)]
    pub status: Status,
    /// Each worker.
    pub nodes: Vec<Node>,
    /// The mean of the workers' accuracies.
    pub mean_accuracy: f64,
    /// The worst of them.
    pub worst_accuracy: f64,
    /// The accuracy of the average of all models.
    pub averaged_model_accuracy: f64,
    /// How far the models are from their average.
    pub consensus_distance: f64,
    /// Sent by all workers together.
    pub bytes_sent: u64,
}

/// What a run leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// In numbers.
    pub summary: Summary,
    /// The average of all models; empty where the run was interrupted.
    pub averaged: Replica,
}

/// Why a run cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The engine was made for something else.
    #[error(
        "the graph has {graph} workers and the engine {engine}: make the engine from the same experiment"
    )]
    Workers {
        /// Workers of the graph.
        graph: usize,
        /// Workers of the engine.
        engine: usize,
    },
}

/// A worker at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: usize,
    /// Its mean loss over the last epoch's batches.
    pub train_loss: f64,
    /// Its mean loss on its whole share, not augmented, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_loss: Option<f64>,
    /// Its accuracy on the test set.
    pub test_accuracy: f64,
}

/// Where a run is between two rounds: with the engine's state, all that it needs to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The next round.
    pub round: u64,
    /// Sent so far.
    pub bytes_sent: u64,
    /// Everyone's loss in the round before.
    pub losses: Vec<Option<f64>>,
    /// Everyone's score over the epoch's batches so far.
    pub epoch_scores: Vec<Score>,
}

impl Progress {
    /// Before the first round.
    pub fn start(workers: usize) -> Self {
        Self {
            round: 0,
            bytes_sent: 0,
            losses: vec![None; workers],
            epoch_scores: vec![Score::default(); workers],
        }
    }
}

/// Who watches a run, and can end it.
pub trait Observer {
    /// Something happened.
    fn observe(&mut self, event: &Event) -> Next;

    /// Between two rounds: the time to keep what is needed for going on later.
    fn between_rounds(&mut self, _progress: &Progress, _engine: &dyn Engine) -> Next {
        Next::Continue
    }

    /// A loss of the round `progress.round` is not finite, and the run ends here: the time to keep
    /// the models with which that happened.
    fn diverged(&mut self, _progress: &Progress, _engine: &dyn Engine) {}
}

impl<F: FnMut(&Event) -> Next> Observer for F {
    fn observe(&mut self, event: &Event) -> Next {
        self(event)
    }
}

/// Runs an experiment on an engine that holds all of its workers, from `progress` on.
pub fn run(
    experiment: &Experiment,
    engine: &mut dyn Engine,
    mut progress: Progress,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    let (workers, rounds) = (experiment.workers(), experiment.rounds());
    if engine.workers() != workers {
        return Err(RunError::Workers {
            graph: workers,
            engine: engine.workers(),
        });
    }
    let training = &experiment.config.training;
    let (rate, message) = (training.rate(), experiment.algorithm.message());
    let averages_statistics =
        training.statistics == Statistics::Averaged && engine.layout().statistic_count() > 0;
    let rounds_per_epoch = experiment.sampler.rounds_per_epoch();
    announce(experiment, progress.round, engine, observer);

    let mut status = Status::Finished;
    // Of the models as they are now, where they have been tested.
    let mut tested = None;
    while progress.round < rounds {
        let round = progress.round;
        let gamma = rate.at(
            round as f64 / rounds_per_epoch as f64,
            training.epochs as f64,
        );
        let up = experiment.schedule.round(round);

        // Everyone's gradient and step. A run that diverges ends before that spreads.
        let scores = engine.step(round, gamma);
        let losses: Vec<f64> = scores.iter().map(|score| score.loss).collect();
        if let Some(worker) = losses.iter().position(|&loss| !sane(loss, experiment)) {
            observer.observe(&Event::Round { round, losses });
            observer.diverged(&progress, engine);
            status = Status::Diverged { worker, round };
            break;
        }

        // What everyone reports: a message that leaves before the gradient carries the last loss.
        let known: Vec<_> = losses.iter().map(|&loss| Some(loss)).collect();
        let before = std::mem::replace(&mut progress.losses, known);
        let reported = if message.is_before_gradient() {
            &before
        } else {
            &progress.losses
        };
        let report = |i: usize| Report {
            loss: reported[i],
            degree: up.degree(i),
        };

        // Everyone's row, from what it knows; then all rows at once.
        let (mut plans, mut statistics) = (Vec::new(), Vec::new());
        for worker in 0..workers {
            let received: Vec<_> = up.senders(worker).map(|j| (j, report(j))).collect();
            let view = View {
                worker,
                round: &up,
                rate: gamma,
                own: report(worker),
                received: &received,
            };
            plans.push(experiment.algorithm.plan(&view));
            if averages_statistics {
                statistics.push(view.metropolis());
            }
        }
        engine.mix(message, &plans);
        let mut numbers = engine.layout().parameter_count();
        if averages_statistics {
            engine.mix_statistics(&statistics);
            numbers += engine.layout().statistic_count();
        }
        let messages: usize = (0..workers).map(|worker| up.degree(worker)).sum();
        progress.bytes_sent += (messages * numbers * size_of::<f32>()) as u64;
        progress.round = round + 1;
        // An epoch's scores stay until the next one begins: a run may end between them.
        if round.is_multiple_of(rounds_per_epoch) {
            progress.epoch_scores.fill(Score::default());
        }
        for (sum, score) in progress.epoch_scores.iter_mut().zip(&scores) {
            *sum = sum.join(*score);
        }

        tested = None;
        let mut next = observer.observe(&Event::Round { round, losses });
        if progress.round.is_multiple_of(rounds_per_epoch) {
            let epoch = progress.round / rounds_per_epoch;
            if epoch.is_multiple_of(training.test_every) || epoch == training.epochs {
                tested = Some(Tested::now(engine, training.share_loss));
            }
            let event = Event::Epoch {
                epoch,
                train_losses: progress.epoch_scores.iter().map(|sum| sum.loss).collect(),
                test_accuracies: tested.as_ref().map(|tested| tested.accuracies.clone()),
                share_losses: tested.as_ref().and_then(|tested| tested.losses.clone()),
                consensus_distance: engine.consensus_distance(),
                bytes_sent: progress.bytes_sent,
            };
            next = next.or(observer.observe(&event));
        }
        next = next.or(observer.between_rounds(&progress, engine));
        if next == Next::Stop && progress.round < rounds {
            status = Status::Interrupted {
                round: progress.round,
            };
            break;
        }
    }
    // Who stops a run does not want to wait for its tests: what is not known is no number.
    let stopped = matches!(status, Status::Interrupted { .. });
    let tested = match tested {
        Some(tested) => tested,
        None if stopped => Tested::nothing(workers),
        None => Tested::now(engine, training.share_loss),
    };
    if let (Some(worker), Status::Finished) = (tested.broken, &status) {
        let round = progress.round;
        status = Status::Diverged { worker, round };
        observer.diverged(&progress, engine);
    }
    observer.observe(&Event::Ended {
        status: status.clone(),
    });
    let averaged = if stopped {
        Replica::default()
    } else {
        engine.average()
    };
    let averaged_model_accuracy = if stopped {
        f64::NAN
    } else {
        engine.score_replica(&averaged).accuracy()
    };
    let summary = Summary {
        algorithm: experiment.algorithm_name(),
        graph: experiment.graph_name(),
        workers,
        rounds: progress.round,
        status,
        mean_accuracy: tested.accuracies.iter().sum::<f64>() / workers as f64,
        worst_accuracy: tested
            .accuracies
            .iter()
            .copied()
            .min_by(f64::total_cmp)
            .unwrap_or(f64::NAN),
        averaged_model_accuracy,
        consensus_distance: engine.consensus_distance(),
        bytes_sent: progress.bytes_sent,
        nodes: tested.nodes(&progress),
    };
    Ok(Outcome { summary, averaged })
}

/// What is said before the first round.
fn announce(experiment: &Experiment, round: u64, engine: &dyn Engine, observer: &mut dyn Observer) {
    observer.observe(&Event::Started {
        round,
        algorithm: experiment.algorithm_name(),
        graph: experiment.graph_name(),
        workers: experiment.workers(),
        parameters: engine.layout().parameter_count(),
        rounds: experiment.rounds(),
        rounds_per_epoch: experiment.sampler.rounds_per_epoch(),
        batch: experiment.sampler.batch_size(),
    });
    for message in &experiment.warnings {
        let message = message.clone();
        observer.observe(&Event::Warning { message });
    }
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

/// Far above what guessing costs there is no way back.
fn sane(loss: f64, experiment: &Experiment) -> bool {
    loss < 1e4 * (experiment.data.classes.max(2) as f64).ln()
}

impl Tested {
    fn now(engine: &mut dyn Engine, share_loss: bool) -> Self {
        let workers = engine.workers();
        let mut all = |part| -> Vec<Score> {
            let score = |worker| engine.score(worker, part);
            (0..workers).map(score).collect()
        };
        let tests = all(Part::Test);
        Self {
            accuracies: tests.iter().map(Score::accuracy).collect(),
            losses: share_loss.then(|| all(Part::Share).iter().map(|score| score.loss).collect()),
            broken: tests.iter().position(|score| !score.loss.is_finite()),
        }
    }

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
            train_loss: progress.epoch_scores[id].loss,
            share_loss: self.losses.as_ref().map(|losses| losses[id]),
            test_accuracy,
        };
        self.accuracies.iter().enumerate().map(node).collect()
    }
}
