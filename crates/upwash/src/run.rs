//! The round loop.

mod report;

pub use report::{Event, Next, Node, Observer, Outcome, Progress, Status, Summary};

use crate::algorithm::{Report, View};
use crate::config::Statistics;
use crate::engine::{Engine, Part, Score};
use crate::experiment::Experiment;
use crate::model::Replica;

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
