//! The round loop, and what it reports.

use crate::algorithm::{Message, Report, View};
use crate::engine::{Engine, Part, Score};
use crate::experiment::Experiment;
use serde::{Deserialize, Serialize};

/// How a run ended. A run that diverges is no error: it is a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Status {
    /// All rounds were run.
    Finished,
    /// A loss was not finite any more.
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
    /// Before the first round.
    Started {
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

/// What a run comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The algorithm in words.
    pub algorithm: String,
    /// The graph's spelling.
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

/// A worker at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: usize,
    /// Its mean loss over the last epoch's batches.
    pub train_loss: f64,
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
}

/// Runs an experiment on an engine that holds all of its workers, from `progress` on.
pub fn run(
    experiment: &Experiment,
    engine: &mut dyn Engine,
    mut progress: Progress,
    observer: &mut dyn Observer,
) -> Summary {
    let (workers, rounds) = (experiment.workers(), experiment.rounds());
    let rounds_per_epoch = experiment.sampler.rounds_per_epoch();
    let epochs = experiment.config.training.epochs;
    let rate = experiment.config.training.rate();
    observer.observe(&Event::Started {
        algorithm: experiment.algorithm_name(),
        graph: experiment.config.graph.topology.to_string(),
        workers,
        parameters: engine.parameters(),
        rounds,
        rounds_per_epoch,
    });
    for message in &experiment.warnings {
        observer.observe(&Event::Warning {
            message: message.clone(),
        });
    }

    let mut status = Status::Finished;
    // Of the models as they are now, where they have been tested.
    let mut tested = None;
    while progress.round < rounds {
        let round = progress.round;
        tested = None;
        let gamma = rate.at(round as f64 / rounds_per_epoch as f64, epochs as f64);
        let up = experiment.schedule.round(round);

        // Everyone's gradient and step; a message that leaves before it carries the last loss.
        let scores = engine.step(round, gamma);
        let losses: Vec<Option<f64>> = scores.iter().map(|score| Some(score.loss)).collect();
        let reported = match experiment.algorithm.message() {
            Message::Model if experiment.config.algorithm.combine_first => progress.losses,
            _ => losses.clone(),
        };
        progress.losses = losses;

        // Everyone's row, from what it knows; then all rows at once.
        let report = |i: usize| Report {
            loss: reported[i],
            degree: up.degree(i),
        };
        let plans: Vec<_> = (0..workers)
            .map(|worker| {
                let received: Vec<_> = up.senders(worker).map(|j| (j, report(j))).collect();
                let own = report(worker);
                let view = View {
                    worker,
                    round: &up,
                    rate: gamma,
                    own,
                    received: &received,
                };
                experiment.algorithm.plan(&view)
            })
            .collect();
        engine.mix(experiment.algorithm.message(), &plans);
        let messages: usize = (0..workers).map(|worker| up.degree(worker)).sum();
        progress.bytes_sent += (messages * engine.parameters() * size_of::<f32>()) as u64;
        progress.round = round + 1;

        for (sum, score) in progress.epoch_scores.iter_mut().zip(&scores) {
            *sum = sum.join(*score);
        }
        let losses: Vec<f64> = scores.iter().map(|score| score.loss).collect();
        if let Some(worker) = losses.iter().position(|loss| !loss.is_finite()) {
            status = Status::Diverged { worker, round };
        }
        let mut next = observer.observe(&Event::Round { round, losses });
        if progress.round.is_multiple_of(rounds_per_epoch) && status == Status::Finished {
            let epoch = progress.round / rounds_per_epoch;
            if epoch.is_multiple_of(experiment.config.training.test_every) || epoch == epochs {
                tested = Some(accuracies(engine));
            }
            let event = Event::Epoch {
                epoch,
                train_losses: progress
                    .epoch_scores
                    .iter()
                    .map(|score| score.loss)
                    .collect(),
                test_accuracies: tested.clone(),
                consensus_distance: engine.consensus_distance(),
                bytes_sent: progress.bytes_sent,
            };
            if observer.observe(&event) == Next::Stop {
                next = Next::Stop;
            }
            if epoch < epochs {
                progress.epoch_scores.fill(Score::default());
            }
        }
        if status != Status::Finished {
            break;
        }
        if observer.between_rounds(&progress, engine) == Next::Stop {
            next = Next::Stop;
        }
        if next == Next::Stop && progress.round < rounds {
            status = Status::Interrupted {
                round: progress.round,
            };
            break;
        }
    }
    observer.observe(&Event::Ended {
        status: status.clone(),
    });
    let accuracies = tested.unwrap_or_else(|| accuracies(engine));
    let node = |(id, &test_accuracy): (usize, &f64)| {
        let train_loss = progress.epoch_scores[id].loss;
        Node {
            id,
            train_loss,
            test_accuracy,
        }
    };
    Summary {
        algorithm: experiment.algorithm_name(),
        graph: experiment.config.graph.topology.to_string(),
        workers,
        rounds: progress.round,
        status,
        mean_accuracy: accuracies.iter().sum::<f64>() / workers as f64,
        worst_accuracy: accuracies.iter().copied().fold(f64::INFINITY, f64::min),
        averaged_model_accuracy: engine.score_average().accuracy(),
        consensus_distance: engine.consensus_distance(),
        bytes_sent: progress.bytes_sent,
        nodes: accuracies.iter().enumerate().map(node).collect(),
    }
}

/// Everyone's on the test set.
fn accuracies(engine: &mut dyn Engine) -> Vec<f64> {
    (0..engine.workers())
        .map(|worker| engine.score(worker, Part::Test).accuracy())
        .collect()
}
