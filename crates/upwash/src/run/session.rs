//! The state of a run in progress: what every kind of run counts, evaluates and reports.

use super::evaluation::{Evaluation, Replicas};
use super::{BestModel, ControlFlow, Event, Observer, Progress, RunCost, RunError, SCHEMA_VERSION, Status};
use crate::engine::Score;
use crate::experiment::Experiment;
use crate::ids::WorkerId;
use crate::model::Layout;
use crate::optimizer::LearningRate;
use crate::transport::{Placement, Traffic};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use upwash_topology::Edge;

/// A run in progress.
pub(super) struct Session<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) progress: Progress,
    /// The workers that have data, and those of them in this process.
    pub(super) training: Vec<WorkerId>,
    pub(super) local: Vec<WorkerId>,
    observer: &'a mut dyn Observer,
    learning_rate: LearningRate,
    /// The links over which models were sent in this round so far.
    pub(super) links: Changed<Vec<Edge>>,
    /// Each worker's leaders in this round.
    pub(super) leaders: Changed<Vec<Option<[WorkerId; 2]>>>,
    /// The evaluation of the current models, if there is one.
    pub(super) evaluation: Option<Evaluation>,
    layout: Layout,
    /// Whether epochs end with an evaluation.
    pub(super) evaluates: bool,
    /// What observers asked for last.
    pub(super) control_flow: ControlFlow,
    /// Whether costs are simulated: if all workers are in this process, nothing is really sent.
    pub(super) simulates_costs: bool,
    /// The cost before this process started, and when it started.
    sent_before: RunCost,
    started_at: Instant,
}

/// A value that is reported only when it changes.
#[derive(Default)]
pub(super) struct Changed<T> {
    pub(super) current: T,
    reported: Option<T>,
}

impl<T: Clone + PartialEq> Changed<T> {
    fn take_change(&mut self) -> Option<T> {
        if self.reported.as_ref() == Some(&self.current) {
            return None;
        }
        self.reported = Some(self.current.clone());
        self.reported.clone()
    }
}

impl<'a> Session<'a> {
    /// Creates a session, and reports what is known before the first round.
    pub(super) fn new(
        experiment: &'a Experiment,
        progress: Progress,
        observer: &'a mut dyn Observer,
        layout: &Layout,
        placement: &Placement,
    ) -> Self {
        observer.observe(&Event::Started {
            version: SCHEMA_VERSION,
            round: progress.round,
            algorithm: experiment.algorithm_name(),
            graph: experiment.graph_name(),
            workers: experiment.workers(),
            server: experiment.server,
            parameters: layout.parameter_count(),
            rounds: experiment.rounds(),
            rounds_per_epoch: experiment.sampler.rounds_per_epoch(),
            batch_size: experiment.sampler.batch_size(),
            time: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs()),
            upwash: Some(env!("CARGO_PKG_VERSION").into()),
        });
        observer.observe(&Event::Graph {
            matchings: experiment.graph.matchings().to_vec(),
            relabelings: experiment.relabelings.clone(),
        });
        for message in &experiment.warnings {
            let message = message.clone();
            observer.observe(&Event::Warning { message });
        }
        let (training, sent_before) = (experiment.training_workers(), progress.sent);
        let is_local = |worker: &WorkerId| placement.row_of(*worker).is_some();
        let no_leaders = vec![None; experiment.workers()];
        Self {
            experiment,
            progress,
            local: training.iter().copied().filter(is_local).collect(),
            training,
            observer,
            learning_rate: experiment.config.training.rate(),
            links: Changed::default(),
            // As long as no worker has leaders, there is nothing to report.
            leaders: Changed { reported: Some(no_leaders.clone()), current: no_leaders },
            evaluation: None,
            layout: layout.clone(),
            evaluates: true,
            control_flow: ControlFlow::Continue,
            simulates_costs: placement.simulates_costs(),
            sent_before,
            started_at: Instant::now(),
        }
    }

    /// The learning rate after this number of rounds.
    pub(super) fn rate(&self, rounds: f64) -> f64 {
        self.rates()(rounds)
    }

    /// The learning rate as a function of the number of rounds. The function does not borrow the session.
    pub(super) fn rates(&self) -> impl Fn(f64) -> f64 + Sync + use<> {
        let rate = self.learning_rate.clone();
        let epochs = self.experiment.config.training.epochs as f64;
        let rounds_per_epoch = self.experiment.sampler.rounds_per_epoch() as f64;
        move |rounds| rate.at(rounds / rounds_per_epoch, epochs)
    }

    /// Adds a score to a worker's mean over the epoch.
    pub(super) fn add_score(&mut self, worker: WorkerId, score: Score) {
        let sum = &mut self.progress.epoch_scores[worker];
        *sum = sum.join(score);
    }

    /// Resets the epoch's scores in its first round. They are kept until then, because a run may end between epochs.
    pub(super) fn begin_round(&mut self) {
        let epoch = self.experiment.sampler.rounds_per_epoch();
        if self.progress.round.is_multiple_of(epoch) && !self.is_over() {
            self.progress.epoch_scores.fill(Score::default());
        }
    }

    /// Whether training can recover from a loss. It cannot if the loss is far above that of random guessing. Of the loss
    /// of an external training loop nothing is known but that it is a number, if the loop reports one at all.
    pub(super) fn is_sane(&self, loss: Option<f64>) -> bool {
        if self.experiment.is_external() {
            return loss.is_none_or(f64::is_finite);
        }
        loss.is_some_and(|loss| loss < 1e4 * (self.experiment.data.classes.max(2) as f64).ln())
    }

    /// Ends the run because a worker's loss diverged, and lets observers save the models.
    pub(super) fn diverged(&mut self, worker: WorkerId, losses: Vec<f64>, replicas: &mut dyn Replicas) -> Status {
        self.report_round(losses);
        let (round, progress) = (self.progress.round, &self.progress);
        self.observer.diverged(&mut || replicas.snapshot(progress));
        Status::Diverged { worker, round }
    }

    /// Records that two workers exchanged messages in this round.
    pub(super) fn record_link(&mut self, one: WorkerId, other: WorkerId) {
        self.links.current.push((one.min(other).0, one.max(other).0));
    }

    fn report_round(&mut self, losses: Vec<f64>) -> ControlFlow {
        self.links.current.sort_unstable();
        self.links.current.dedup();
        let event = Event::Round {
            round: self.progress.round,
            losses,
            links: self.links.take_change(),
            leaders: self.leaders.take_change(),
            sent: self.progress.sent,
        };
        self.links.current.clear();
        self.observer.observe(&event)
    }

    /// Ends a round: reports it, evaluates the models at the end of an epoch, and asks observers whether to continue.
    pub(super) fn end_round(&mut self, losses: Vec<f64>, replicas: &mut dyn Replicas) -> Result<ControlFlow, RunError> {
        let mut control_flow = self.report_round(losses);
        self.progress.round += 1;
        self.evaluation = None;
        let rounds_per_epoch = self.experiment.sampler.rounds_per_epoch();
        if self.progress.round.is_multiple_of(rounds_per_epoch) {
            control_flow = control_flow.or(self.end_epoch(self.progress.round / rounds_per_epoch, replicas)?);
        }
        let progress = &self.progress;
        let snapshot = &mut || replicas.snapshot(progress);
        Ok(control_flow.or(self.observer.between_rounds(progress.round, snapshot)))
    }

    fn end_epoch(&mut self, epoch: u64, replicas: &mut dyn Replicas) -> Result<ControlFlow, RunError> {
        let training = &self.experiment.config.training;
        let is_due = epoch.is_multiple_of(training.test_every) || epoch == training.epochs;
        if is_due && self.evaluates {
            self.evaluation = Some(Evaluation::new(self.experiment, replicas)?);
        }
        if self.evaluation.is_some() && training.keep_best {
            self.keep_best(epoch, replicas)?;
        }
        let evaluation = self.evaluation.as_ref();
        let test_accuracies = evaluation.map(|evaluation| evaluation.accuracies.clone());
        let local_train_losses = evaluation.and_then(|evaluation| evaluation.local_train_losses.clone());
        let mut train_losses = self.train_losses();
        replicas.gather_scalars(&mut train_losses)?;
        let mut clipped = training.clip.map(|_| self.clipped());
        if let Some(clipped) = &mut clipped {
            replicas.gather_scalars(clipped)?;
        }
        Ok(self.observer.observe(&Event::Epoch {
            epoch,
            train_losses,
            test_accuracies,
            local_train_losses,
            clipped,
            consensus_distance: replicas.consensus_distance(&self.training)?,
            sent: self.progress.sent,
        }))
    }

    /// Lets observers save the resulting model if it is the best so far.
    fn keep_best(&mut self, epoch: u64, replicas: &mut dyn Replicas) -> Result<(), RunError> {
        let Some((model, test_accuracy)) = replicas.resulting_model(self.experiment)? else {
            return Ok(());
        };
        if self.progress.best.is_none_or(|best| test_accuracy > best.test_accuracy) {
            let best = BestModel { epoch, test_accuracy };
            self.progress.best = Some(best);
            self.observer.improved(best, &model, &self.layout);
        }
        Ok(())
    }

    /// Each local worker's mean loss over the epoch so far; NaN without examples.
    pub(super) fn train_losses(&self) -> Vec<f64> {
        let loss = |sum: &Score| match sum.examples {
            0 => f64::NAN,
            _ => sum.loss,
        };
        self.progress.epoch_scores.iter().map(loss).collect()
    }

    /// The part of each local worker's batches in the epoch so far whose gradient was clipped; NaN without examples.
    fn clipped(&self) -> Vec<f64> {
        let part = |sum: &Score| sum.clipped as f64 / sum.examples as f64;
        self.progress.epoch_scores.iter().map(part).collect()
    }

    /// Whether all rounds have been run.
    pub(super) fn is_over(&self) -> bool {
        self.progress.round >= self.experiment.rounds()
    }

    /// Continues at another round, whose model was adopted.
    pub(super) fn move_to(&mut self, round: u64) {
        self.progress.round = round;
        self.progress.epoch_scores.fill(Score::default());
        self.evaluation = None;
    }

    /// Sets the cost to what this process has really sent since it started, and to the real time that passed.
    pub(super) fn measure_costs(&mut self, traffic: Traffic) {
        self.progress.sent = self.sent_before.after(traffic, self.started_at.elapsed());
    }

    /// Asks observers whether to continue, while this process waits for others.
    pub(super) fn while_waiting(&mut self) -> ControlFlow {
        self.observer.while_waiting()
    }

    /// Reports an event.
    pub(super) fn report(&mut self, event: &Event) {
        self.observer.observe(event);
    }

    /// Ends the run early on request, and lets observers save what is needed to resume.
    pub(super) fn stop(&mut self, replicas: &mut dyn Replicas) -> Status {
        let (round, progress) = (self.progress.round, &self.progress);
        self.observer.stopped(&mut || replicas.snapshot(progress));
        Status::Interrupted { round }
    }

    /// Ends the run because no other process is in reach, and lets observers save what is needed to continue it.
    pub(super) fn isolated(&mut self, replicas: &mut dyn Replicas) -> Status {
        self.stop(replicas);
        Status::Isolated { round: self.progress.round }
    }

    /// Lets observers save the models of a run whose last evaluation shows that it diverged.
    pub(super) fn save_diverged(&mut self, replicas: &mut dyn Replicas) {
        let progress = &self.progress;
        self.observer.diverged(&mut || replicas.snapshot(progress));
    }
}

/// Losses as they appear in events: NaN if unknown.
pub(super) fn known_losses(losses: &[Option<f64>]) -> Vec<f64> {
    losses.iter().map(|loss| loss.unwrap_or(f64::NAN)).collect()
}
