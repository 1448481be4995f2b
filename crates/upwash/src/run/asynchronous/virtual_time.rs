//! Asynchronous workers in virtual time: one event after the other, by the clock of the cost model.
//!
//! A gradient is computed for the model as it was when the computation began. Changes that others make to the model in
//! the meantime stay, and the step is taken from the changed model. Gradients that do not depend on each other's
//! results are computed together. This affects only how long the simulation takes.

use super::super::costs::bytes;
use super::super::evaluation::{EngineReplicas, Replicas};
use super::super::session::Session;
use super::super::{Progress, RunError, Snapshot, Status};
use super::{Activity, AsyncState, AsyncWorkers, CompletedStep, async_step, count_steps};
use crate::algorithm::{AsyncStep, Asynchronous, RowPlan, WorkerPlan};
use crate::clock::{Time, Transfer};
use crate::engine::{Engine, GradientTask, MixOptions, Score, Split};
use crate::experiment::Experiment;
use crate::ids::{RowIndex, WorkerId};
use crate::model::Replica;
use crate::transport::InProcess;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// All workers, in virtual time.
struct Simulation<'a> {
    experiment: &'a Experiment,
    algorithm: &'a dyn Asynchronous,
    engine: &'a mut dyn Engine,
    state: AsyncState,
    training: Vec<WorkerId>,
    /// Events by time. At the same time, the worker with the fewest steps comes first.
    queue: BinaryHeap<Reverse<(Time, u64, WorkerId, Activity)>>,
    /// Gradients that have begun but have not been computed yet.
    pending: Vec<Option<GradientTask>>,
    done: u64,
}

pub(super) fn run(
    session: &mut Session<'_>,
    algorithm: &dyn Asynchronous,
    engine: &mut dyn Engine,
) -> Result<Status, RunError> {
    let workers = session.experiment.workers();
    let resumed = session.progress.asynchronous.take();
    let is_new = resumed.is_none();
    let state = resumed.unwrap_or_else(|| AsyncState::new(workers));
    let activities = state.activities.iter().enumerate();
    let queue = activities.filter_map(|(worker, activity)| {
        let (time, activity) = (*activity)?;
        Some(Reverse((Time(time), state.steps[worker], WorkerId(worker), activity)))
    });
    let mut simulation = Simulation {
        queue: queue.collect(),
        done: state.done(),
        pending: vec![None; workers],
        training: session.training.clone(),
        experiment: session.experiment,
        algorithm,
        engine,
        state,
    };
    if is_new {
        for worker in session.training.clone() {
            simulation.begin(worker, 0.0, session);
        }
    }
    let (done, per_round) = (simulation.done, session.training.len() as u64);
    count_steps(session, &mut simulation, done, per_round)
}

impl AsyncWorkers for Simulation<'_> {
    fn next_step(&mut self, session: &mut Session<'_>) -> Result<Option<CompletedStep>, RunError> {
        while !session.is_over() {
            let Some(Reverse((Time(time), _, worker, activity))) = self.queue.pop() else {
                unreachable!("the slowest worker never waits for another");
            };
            match activity {
                Activity::Gradient => self.begin_exchange(worker, time, session),
                Activity::Exchange => return self.exchange(worker, time, session).map(Some),
            }
        }
        Ok(None)
    }

    fn before_round_ends(&mut self, session: &mut Session<'_>) -> Result<(), RunError> {
        self.compute_pending()?;
        session.progress.asynchronous = Some(self.state.clone());
        Ok(())
    }

    fn end(&mut self, _: &mut Session<'_>) -> Result<Status, RunError> {
        Ok(Status::Finished)
    }
}

impl Simulation<'_> {
    fn step(&self, worker: WorkerId, session: &Session<'_>) -> AsyncStep<'_> {
        let (steps, scalar) = (self.state.steps[worker], session.progress.scalars[worker]);
        async_step(self.experiment, worker, steps, scalar)
    }

    fn schedule(&mut self, worker: WorkerId, time: f64, activity: Activity) {
        self.state.activities[worker] = Some((time, activity));
        let steps = self.state.steps[worker];
        self.queue.push(Reverse((Time(time), steps, worker, activity)));
    }

    /// Begins a worker's next gradient.
    fn begin(&mut self, worker: WorkerId, time: f64, session: &Session<'_>) {
        let rounds = self.done as f64 / self.training.len() as f64;
        let (batch, rate) = (self.state.steps[worker], session.rate(rounds));
        self.pending[worker] = Some(GradientTask { batch, rate });
        let seconds = self.experiment.clock.gradient(worker, batch);
        self.schedule(worker, time + seconds, Activity::Gradient);
    }

    /// Computes all gradients that have begun. Models may change after that.
    fn compute_pending(&mut self) -> Result<(), RunError> {
        let scores = self.engine.step(&self.pending)?;
        for (worker, score) in scores.into_iter().enumerate() {
            if score.is_some() {
                self.state.scores[worker] = score;
            }
        }
        self.pending.fill(None);
        Ok(())
    }

    /// A worker's gradient is complete: schedules its exchange, as soon as both partners are free.
    fn begin_exchange(&mut self, worker: WorkerId, time: f64, session: &Session<'_>) {
        let mut ends = time;
        if let Some(partner) = self.algorithm.partner(&self.step(worker, session)) {
            let bytes = 4 * self.engine.layout().parameter_count() as u64;
            let (from, to) = (worker, partner);
            let transfer = Transfer { from, to, bytes };
            let clock = &self.experiment.clock;
            let mut ports = [from, to].map(|i| self.state.ports[i]);
            ends = clock.pair_exchange(&mut ports, time, self.algorithm.pair_exchange(), &transfer);
            [self.state.ports[from], self.state.ports[to]] = ports;
        }
        self.schedule(worker, ends, Activity::Exchange);
    }

    /// Carries out an exchange of two workers, or a step of one alone. Then the worker begins its next gradient.
    fn exchange(&mut self, worker: WorkerId, time: f64, session: &mut Session<'_>) -> Result<CompletedStep, RunError> {
        let step = self.step(worker, session);
        let scalars = &session.progress.scalars;
        let partner = self.algorithm.partner(&step);
        let partner = partner.map(|partner| (partner, scalars[partner]));
        let update = self.algorithm.update(&step, partner);
        let mut affected = update.plans.iter().map(|plan| plan.worker);
        if affected.any(|worker| self.pending[worker].is_some()) {
            self.compute_pending()?;
        }
        self.state.activities[worker] = None;
        let score = self.state.scores[worker].take().unwrap_or_default();
        let messages = update.messages(self.algorithm.pair_exchange());
        let mut plans = update.plans;
        plans.sort_unstable_by_key(|plan| plan.worker);
        let width = self.engine.layout().parameter_count();
        let max_bytes = plans.iter().map(|plan| bytes(&plan.messages, width)).max();
        let completed = CompletedStep {
            worker,
            partner: match &plans[..] {
                [one, other] if one.worker == worker => Some(other.worker),
                [one, _] => Some(one.worker),
                _ => None,
            },
            score,
            messages,
            bytes: messages * max_bytes.unwrap_or(0),
            time: Some(time),
        };
        // A run that diverges ends before the divergence spreads.
        if !session.is_sane(Some(score.loss)) {
            return Ok(completed);
        }
        let options = MixOptions {
            server: self.experiment.server.map(RowIndex::in_one_process),
            round: self.state.steps[worker],
            ..Default::default()
        };
        for plan in &plans {
            if let Some(scalar) = plan.plan.scalar {
                session.progress.scalars[plan.worker] = scalar;
            }
        }
        let plans: Vec<RowPlan> = plans.into_iter().map(WorkerPlan::in_one_process).collect();
        self.engine.exchange(&plans, vec![], options)?;
        self.state.steps[worker] += 1;
        self.done += 1;
        self.begin_ready_workers(worker, time, session);
        Ok(completed)
    }

    /// Begins the next gradient of the worker, unless it would be too far ahead, and of workers that waited for it.
    fn begin_ready_workers(&mut self, worker: WorkerId, time: f64, session: &Session<'_>) {
        let Some(staleness) = self.algorithm.staleness() else {
            return self.begin(worker, time, session);
        };
        let slowest = self.training.iter().map(|&i| self.state.steps[i]).min();
        let limit = slowest.unwrap_or(0) + staleness;
        for worker in self.training.clone() {
            if self.state.activities[worker].is_none() && self.state.steps[worker] < limit {
                self.begin(worker, time, session);
            }
        }
    }

    fn replicas<T>(&mut self, measure: impl FnOnce(&mut EngineReplicas<'_>) -> T) -> T {
        let mut transport = InProcess::new(self.engine.workers());
        measure(&mut EngineReplicas::new(self.engine, &mut transport))
    }
}

impl Replicas for Simulation<'_> {
    fn score(&mut self, worker: WorkerId, split: Split) -> Result<Option<Score>, RunError> {
        self.replicas(|replicas| replicas.score(worker, split))
    }

    fn score_estimated(&mut self, worker: WorkerId) -> Result<Option<Score>, RunError> {
        self.replicas(|replicas| replicas.score_estimated(worker))
    }

    fn consensus_distance(&mut self, workers: &[WorkerId]) -> Result<f64, RunError> {
        self.replicas(|replicas| replicas.consensus_distance(workers))
    }

    fn resulting_model(&mut self, experiment: &Experiment) -> Result<Option<(Replica, f64)>, RunError> {
        self.replicas(|replicas| replicas.resulting_model(experiment))
    }

    fn snapshot(&mut self, progress: &Progress) -> Result<Snapshot, RunError> {
        self.replicas(|replicas| replicas.snapshot(progress))
    }
}
