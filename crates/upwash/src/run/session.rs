//! What all runs have in common: counting, testing, telling.

use super::RunError;
use super::round::CurrentRound;
use super::team::Team;
use super::{
    ControlFlow, Event, Observer, Progress, RunResult, SCHEMA_VERSION, Sent, Snapshot, Status,
    Summary, WorkerSummary,
};
use crate::algorithm::{Algorithm, WorkerPlan};
use crate::engine::{Engine, Score, Split, State};
use crate::experiment::Experiment;
use crate::gossip::Gossip;
use crate::model::{Layout, Replica};
use crate::optimizer::Rate;
use crate::transport::{MembershipEvent, Placement, RoundStart, TransportError};
use upwash_topology::Edge;

/// A run on its way.
pub(super) struct Session<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) progress: Progress,
    /// Those who have data, and those of them who are in this process.
    pub(super) training: Vec<usize>,
    pub(super) here: Vec<usize>,
    observer: &'a mut dyn Observer,
    rate: Rate,
    /// Over which links models have gone in this round so far.
    pub(super) links: Changed<Vec<Edge>>,
    /// Whom everyone follows in it.
    pub(super) leaders: Changed<Vec<Option<[usize; 2]>>>,
    /// Of the models as they are now, where they have been tested.
    tested: Option<Tested>,
    /// Whether epochs end with tests.
    tests: bool,
    /// What the observer has asked for last.
    next: ControlFlow,
    /// Whether costs are simulated: all workers are here, and nothing really travels.
    pub(super) simulates_costs: bool,
    /// What had been sent before this process began, and since when it is running.
    before: Sent,
    began: std::time::Instant,
}

/// What to do next.
pub(super) enum NextRound<'a> {
    /// This round.
    Run(CurrentRound<'a>),
    /// Nothing: the run ends so.
    End(Status),
}

/// What is told of a round when it is not as it was.
#[derive(Default)]
pub(super) struct Changed<T> {
    pub(super) now: T,
    told: Option<T>,
}

impl<T: Clone + PartialEq> Changed<T> {
    fn take_change(&mut self) -> Option<T> {
        if self.told.as_ref() == Some(&self.now) {
            return None;
        }
        self.told = Some(self.now.clone());
        self.told.clone()
    }
}

/// What can be measured of the workers' models, wherever they are.
pub(super) trait Models {
    /// None where the worker is in another process.
    fn score(&mut self, worker: usize, part: Split) -> Option<Score>;
    /// A worker's model without its running statistics: others are estimated for it.
    fn score_bare(&mut self, worker: usize) -> Option<Score>;
    fn consensus_distance(&mut self, workers: &[usize]) -> f64;
    /// A number for each worker: fills in what other processes know.
    fn gather_scalars(&mut self, _numbers: &mut [f64]) {}
    /// All that is needed for going on from here.
    fn snapshot(&mut self, progress: &Progress) -> Snapshot;
}

impl Models for &mut dyn Engine {
    fn score(&mut self, worker: usize, part: Split) -> Option<Score> {
        Some((**self).score(worker, part))
    }

    fn score_bare(&mut self, worker: usize) -> Option<Score> {
        let replica = self.average(&[worker]);
        Some(self.score_replica(&replica))
    }

    fn consensus_distance(&mut self, workers: &[usize]) -> f64 {
        (**self).consensus_distance(workers)
    }

    fn snapshot(&mut self, progress: &Progress) -> Snapshot {
        (progress.clone(), (**self).state())
    }
}

impl<'a> Session<'a> {
    /// Says what is said before the first round.
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
        });
        observer.observe(&Event::Graph {
            matchings: experiment.graph.matchings().to_vec(),
            relabelings: experiment.places.clone(),
        });
        for message in &experiment.warnings {
            let message = message.clone();
            observer.observe(&Event::Warning { message });
        }
        let (training, sent) = (experiment.training_workers(), progress.sent);
        let is_here = |worker: &usize| placement.row_of(*worker).is_some();
        Self {
            experiment,
            progress,
            here: training.iter().copied().filter(is_here).collect(),
            training,
            observer,
            rate: experiment.config.training.rate(),
            links: Changed::default(),
            // Where nobody follows anyone, there is nothing to tell.
            leaders: Changed {
                told: Some(vec![None; experiment.workers()]),
                now: vec![None; experiment.workers()],
            },
            tested: None,
            tests: true,
            next: ControlFlow::Continue,
            simulates_costs: placement.is_whole(),
            before: sent,
            began: std::time::Instant::now(),
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
        self.tell_round(losses);
        let round = self.progress.round;
        let progress = &self.progress;
        self.observer.diverged(&mut || models.snapshot(progress));
        Status::Diverged { worker, round }
    }

    /// Two workers have met in this round.
    pub(super) fn met(&mut self, one: usize, other: usize) {
        self.links.now.push((one.min(other), one.max(other)));
    }

    fn tell_round(&mut self, losses: Vec<f64>) -> ControlFlow {
        self.links.now.sort_unstable();
        self.links.now.dedup();
        let event = Event::Round {
            round: self.progress.round,
            losses,
            links: self.links.take_change(),
            leaders: self.leaders.take_change(),
            sent: self.progress.sent,
        };
        self.links.now.clear();
        self.observer.observe(&event)
    }

    /// A round is over. Tells, tests at the end of an epoch, and asks whether to go on.
    pub(super) fn end_round(&mut self, losses: Vec<f64>, models: &mut dyn Models) -> ControlFlow {
        let training = &self.experiment.config.training;
        let epoch_rounds = self.experiment.sampler.rounds_per_epoch();
        let sent = self.progress.sent;
        let mut next = self.tell_round(losses);
        self.progress.round += 1;
        self.tested = None;
        if self.progress.round.is_multiple_of(epoch_rounds) {
            let epoch = self.progress.round / epoch_rounds;
            let due = epoch.is_multiple_of(training.test_every) || epoch == training.epochs;
            if due && self.tests {
                self.tested = Some(self.test(models));
            }
            let tested = self.tested.as_ref();
            let scores = &self.progress.epoch_scores;
            let mut train_losses: Vec<f64> = scores.iter().map(train_loss).collect();
            models.gather_scalars(&mut train_losses);
            let event = Event::Epoch {
                epoch,
                train_losses,
                test_accuracies: tested.map(|tested| tested.accuracies.clone()),
                local_train_losses: tested.and_then(|tested| tested.losses.clone()),
                consensus_distance: models.consensus_distance(&self.training),
                sent,
            };
            next = next.or(self.observer.observe(&event));
        }
        let progress = &self.progress;
        let snapshot = &mut || models.snapshot(progress);
        next.or(self.observer.between_rounds(progress.round, snapshot))
    }

    /// Whether all rounds were run.
    pub(super) fn is_over(&self) -> bool {
        self.progress.round >= self.experiment.rounds()
    }

    fn test(&self, models: &mut dyn Models) -> Tested {
        let workers = 0..self.experiment.workers();
        let tests: Vec<Option<Score>> = workers
            .clone()
            .map(|worker| {
                if Some(worker) == self.experiment.server {
                    models.score_bare(worker)
                } else {
                    models.score(worker, Split::Test)
                }
            })
            .collect();
        let accuracy = |score: &Option<Score>| score.map_or(f64::NAN, |score| score.accuracy());
        let mut accuracies: Vec<f64> = tests.iter().map(accuracy).collect();
        models.gather_scalars(&mut accuracies);
        let mut broken: Vec<f64> = tests
            .iter()
            .map(|score| score.map_or(f64::NAN, |score| f64::from(!score.loss.is_finite())))
            .collect();
        models.gather_scalars(&mut broken);
        let asked = self.experiment.config.training.local_train_loss;
        let losses = asked.then(|| {
            let mut share = |worker| {
                let score = match Some(worker) == self.experiment.server {
                    true => None,
                    false => models.score(worker, Split::LocalTrain),
                };
                score.map_or(f64::NAN, |score| score.loss)
            };
            let mut losses: Vec<f64> = workers.map(&mut share).collect();
            models.gather_scalars(&mut losses);
            losses
        });
        Tested {
            accuracies,
            losses,
            broken: broken.iter().position(|&is| is == 1.0),
        }
    }

    /// Whoever must answer others at once has no time to test before.
    pub(super) fn leave_tests_to_the_end(&mut self) {
        self.tests = false;
    }

    /// Whatever was measured last, it was not by all at the same time.
    pub(super) fn forget_tests(&mut self) {
        self.tested = None;
    }

    /// Goes on with a later round, where others are.
    pub(super) fn jump(&mut self, round: u64) {
        self.progress.round = round;
        self.progress.epoch_scores.fill(Score::default());
        self.tested = None;
    }

    /// While others are waited for: whether someone wishes an end.
    pub(super) fn meanwhile(&mut self) -> ControlFlow {
        self.observer.meanwhile()
    }

    /// Something happened that is no round.
    pub(super) fn tell(&mut self, event: &Event) {
        self.observer.observe(event);
    }

    /// The run ends here because someone wants it to: the time to keep what is needed for going on.
    pub(super) fn stop(&mut self, models: &mut dyn Models) -> Status {
        let progress = &self.progress;
        self.observer.stopped(&mut || models.snapshot(progress));
        let round = self.progress.round;
        Status::Interrupted { round }
    }

    /// What the run comes to.
    pub(super) fn end(
        mut self,
        mut status: Status,
        mut team: Team<'_>,
    ) -> Result<RunResult, TransportError> {
        // Who stops a run does not want to wait for its tests: what is not known is no number. And when
        // one process of several has diverged, nobody knows in which round the others are.
        let stopped = match status {
            Status::Finished => false,
            Status::Interrupted { .. } => true,
            Status::Diverged { .. } => !team.placement.is_whole(),
        };
        let workers = self.experiment.workers();
        let tested = match self.tested.take() {
            Some(tested) => tested,
            None if stopped => Tested::nothing(workers),
            None => self.test(&mut team),
        };
        if let (Some(worker), Status::Finished) = (tested.broken, &status) {
            let round = self.progress.round;
            status = Status::Diverged { worker, round };
            let progress = &self.progress;
            self.observer.diverged(&mut || team.snapshot(progress));
        }
        self.observer.observe(&Event::Ended {
            status: status.clone(),
        });
        let result = match self.experiment.server {
            Some(server) => vec![server],
            None => self.training.clone(),
        };
        let (averaged, averaged_model_accuracy) = if stopped {
            (Replica::default(), f64::NAN)
        } else {
            let averaged = team.average(&result);
            let accuracy = team.engine.score_replica(&averaged).accuracy();
            (averaged, accuracy)
        };
        // Of those whose accuracy is known.
        let known = |accuracy: &f64| !accuracy.is_nan();
        let accuracies = || {
            let all = self
                .training
                .iter()
                .map(|&worker| tested.accuracies[worker]);
            all.filter(known)
        };
        let mut train_losses: Vec<f64> =
            self.progress.epoch_scores.iter().map(train_loss).collect();
        if !stopped {
            team.gather_scalars(&mut train_losses);
        }
        let consensus_distance = match stopped && !team.placement.is_whole() {
            true => f64::NAN,
            false => team.consensus_distance(&self.training),
        };
        let mut sent = self.progress.sent;
        if !stopped {
            team.sum_up(&mut sent);
        }
        let sampler = &self.experiment.sampler;
        let estimated = !averaged.statistics.is_empty();
        let summary = Summary {
            version: SCHEMA_VERSION,
            algorithm: self.experiment.algorithm_name(),
            graph: self.experiment.graph_name(),
            workers,
            rounds: self.progress.round,
            status,
            mean_accuracy: accuracies().sum::<f64>() / accuracies().count() as f64,
            worst_accuracy: accuracies().min_by(f64::total_cmp).unwrap_or(f64::NAN),
            averaged_model_accuracy,
            statistics_examples: estimated
                .then(|| sampler.estimation_batches() * sampler.batch_size()),
            consensus_distance,
            sent,
            server: self.experiment.server,
            per_worker: tested.per_worker(&train_losses),
            wall_seconds: None,
        };
        match team.failure {
            Some(failure) => Err(failure),
            None => Ok(RunResult { summary, averaged }),
        }
    }
}

/// Rounds, as the round loop goes through them.
impl<'a> Session<'a> {
    /// Does what must be done between rounds, until there is one to run: gives a model to who asks for one, notes who has
    /// come or gone, waits for others, goes on where they are, or stops.
    pub(super) fn next_round(
        &mut self,
        algorithm: &'a dyn Algorithm,
        gossip: &mut Gossip<'_>,
        team: &mut Team<'_>,
    ) -> Result<NextRound<'a>, RunError> {
        while !self.is_over() {
            let round = self.progress.round;
            if team.transport.state_requested() {
                let state = team.engine.state();
                team.transport.send_state(round, state);
            }
            let begin = team
                .transport
                .may_begin(round, self.next == ControlFlow::Stop)?;
            for change in team.transport.membership_events() {
                if let MembershipEvent::Joined { worker } | MembershipEvent::Lost { worker, .. } =
                    change
                {
                    gossip.forget(worker);
                }
                self.tell(&Event::Peer { round, change });
            }
            match begin {
                RoundStart::Go => {
                    self.begin_round();
                    let round = CurrentRound::new(self, algorithm, &team.placement);
                    return Ok(NextRound::Run(round));
                }
                RoundStart::Wait => self.next = self.next.or(self.meanwhile()),
                RoundStart::Stop => return Ok(NextRound::End(self.stop(team))),
                RoundStart::Jump { round, adopted } => self.adopt(round, adopted, team),
            }
        }
        Ok(NextRound::End(Status::Finished))
    }

    /// Goes on with a later round, and with another's model where one was given.
    fn adopt(&mut self, round: u64, adopted: Option<State>, team: &mut Team<'_>) {
        self.jump(round);
        if let Some(state) = adopted
            && let Err(what) = team.engine.restore(&state)
        {
            let what = format!("a neighbor's model does not fit: {what}");
            let change = MembershipEvent::Refused { what };
            self.tell(&Event::Peer { round, change });
        }
    }

    /// Takes note of the losses before the step; how the run ends, if one of them is lost.
    pub(super) fn observe_step(
        &mut self,
        round: &CurrentRound<'_>,
        scores: &[Option<Score>],
        team: &mut Team<'_>,
    ) -> Result<Option<Status>, RunError> {
        let mut known = vec![None; self.experiment.workers()];
        for (worker, score) in team.placement.own().zip(scores) {
            known[worker] = score.map(|score| score.loss);
        }
        let lost = |worker: &usize| !known[*worker].is_some_and(|loss| self.is_sane(loss));
        if let Some(worker) = self.here.iter().copied().find(lost) {
            team.transport.leave(worker, round.index)?;
            let losses = numbers(&known);
            return Ok(Some(self.diverged(worker, losses, team)));
        }
        self.progress.losses = known;
        for &worker in &self.here {
            let seconds = self.experiment.clock.gradient(worker, round.index);
            self.progress.clocks[worker] += seconds;
        }
        self.leaders.now.fill(None);
        Ok(None)
    }

    /// Takes note of what plans say beside vectors: scalars and leaders.
    pub(super) fn record(&mut self, plans: &[WorkerPlan]) {
        for part in plans {
            if let Some(number) = part.plan.number {
                self.progress.numbers[part.worker] = number;
            }
            if part.plan.leaders.is_some() {
                self.leaders.now[part.worker] = part.plan.leaders;
            }
        }
    }

    /// Events, evaluation, checkpoint, control requests.
    pub(super) fn finish_round(
        &mut self,
        scores: &[Option<Score>],
        team: &mut Team<'_>,
    ) -> Result<(), RunError> {
        for (worker, score) in team.placement.own().zip(scores) {
            if let Some(score) = score {
                self.count(worker, *score);
            }
        }
        if self.simulates_costs {
            let clocks = self.training.iter().map(|&i| self.progress.clocks[i]);
            self.progress.sent.simulated_seconds = clocks.fold(0.0, f64::max);
        } else {
            // What has really been sent, and how long it really took.
            let traffic = team.transport.traffic();
            self.progress.sent = self.before.after(traffic, self.began.elapsed());
        }
        let losses = numbers(&self.progress.losses);
        self.next = self.end_round(losses, team);
        match team.failure.take() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }
}

/// Losses as events have them: no number where none is known.
fn numbers(losses: &[Option<f64>]) -> Vec<f64> {
    losses.iter().map(|loss| loss.unwrap_or(f64::NAN)).collect()
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

    fn per_worker(&self, train_losses: &[f64]) -> Vec<WorkerSummary> {
        let summary = |(id, &test_accuracy): (usize, &f64)| WorkerSummary {
            id,
            train_loss: train_losses[id],
            local_train_loss: self.losses.as_ref().map(|losses| losses[id]),
            test_accuracy,
        };
        self.accuracies.iter().enumerate().map(summary).collect()
    }
}
