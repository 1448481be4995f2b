//! Asynchronous runs in virtual time: one event after the other, by the cost model's clock.
//!
//! A gradient is of the model as it was when its computation began; what others do to the model in
//! the meantime stays, and the step is taken from the model as it is then. Gradients are computed
//! together where none needs the other's result, which changes nothing but the time it takes.

use super::costs::bytes;
use super::session::Session;
use super::{ControlFlow, Status};
use crate::algorithm::{AsyncStep, Asynchronous};
use crate::clock::{Time, Transfer};
use crate::engine::MixOptions;
use crate::engine::{Engine, GradientTask, Score};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Who is at what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AsyncState {
    /// Gradients that each has applied.
    pub steps: Vec<u64>,
    /// What each does until when; nothing for who waits for others, or is the server.
    pub tasks: Vec<Option<(f64, Task)>>,
    /// How the gradient that each has under way did on its batch.
    pub scores: Vec<Option<Score>>,
    /// Until when each is sending and receiving.
    pub ports: Vec<[f64; 2]>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Computes a gradient.
    Gradient,
    /// Meets another.
    Meeting,
}

impl AsyncState {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            steps: vec![0; workers],
            tasks: vec![None; workers],
            scores: vec![None; workers],
            ports: vec![[0.0; 2]; workers],
        }
    }

    /// Gradients that were applied in all.
    pub(super) fn done(&self) -> u64 {
        self.steps.iter().sum()
    }
}

/// A run in virtual time.
struct Simulation<'a, 'c> {
    session: &'a mut Session<'c>,
    algorithm: &'a dyn Asynchronous,
    engine: &'a mut dyn Engine,
    flight: AsyncState,
    /// By time; of those at the same time, who has done least comes first.
    queue: BinaryHeap<Reverse<(Time, u64, usize, Task)>>,
    /// Gradients that have begun and are not computed yet.
    begun: Vec<Option<GradientTask>>,
    done: u64,
}

pub(super) fn run(
    session: &mut Session<'_>,
    algorithm: &dyn Asynchronous,
    engine: &mut dyn Engine,
) -> Status {
    let workers = session.experiment.workers();
    let resumed = session.progress.flight.take();
    let fresh = resumed.is_none();
    let flight = resumed.unwrap_or_else(|| AsyncState::new(workers));
    let tasks = flight.tasks.iter().enumerate();
    let queue = tasks.filter_map(|(worker, task)| {
        let (time, task) = (*task)?;
        Some(Reverse((Time(time), flight.steps[worker], worker, task)))
    });
    let mut simulation = Simulation {
        queue: queue.collect(),
        done: flight.done(),
        begun: vec![None; workers],
        session,
        algorithm,
        engine,
        flight,
    };
    if fresh {
        for worker in simulation.session.training.clone() {
            simulation.begin(worker, 0.0);
        }
    }
    simulation.run()
}

impl Simulation<'_, '_> {
    fn run(&mut self) -> Status {
        let training = self.session.training.len() as u64;
        if self.done.is_multiple_of(training) {
            self.session.begin_round();
        }
        while !self.session.is_over() {
            let Some(Reverse((Time(time), _, worker, task))) = self.queue.pop() else {
                unreachable!("the slowest worker never waits for another");
            };
            match task {
                Task::Gradient => self.go_to_meeting(worker, time),
                Task::Meeting => {
                    if let Some(status) = self.meet(worker, time) {
                        return status;
                    }
                }
            }
        }
        Status::Finished
    }

    fn turn<T>(&self, worker: usize, ask: impl FnOnce(&AsyncStep<'_>) -> T) -> T {
        let experiment = self.session.experiment;
        ask(&AsyncStep {
            worker,
            step: self.flight.steps[worker],
            neighbors: experiment.graph.neighbors(worker),
            server: experiment.server,
            training: self.session.training.len(),
            number: self.session.progress.numbers[worker],
            seed: experiment.config.seed,
        })
    }

    fn schedule(&mut self, worker: usize, time: f64, task: Task) {
        self.flight.tasks[worker] = Some((time, task));
        let steps = self.flight.steps[worker];
        self.queue.push(Reverse((Time(time), steps, worker, task)));
    }

    /// A worker begins its next gradient.
    fn begin(&mut self, worker: usize, time: f64) {
        let rounds = self.done as f64 / self.session.training.len() as f64;
        let (batch, rate) = (self.flight.steps[worker], self.session.rate(rounds));
        self.begun[worker] = Some(GradientTask { batch, rate });
        let seconds = self.session.experiment.clock.gradient(worker, batch);
        self.schedule(worker, time + seconds, Task::Gradient);
    }

    /// Computes all gradients that have begun: from here on, models may change.
    fn compute(&mut self) {
        let scores = self.engine.step(&self.begun);
        for (worker, score) in scores.into_iter().enumerate() {
            if score.is_some() {
                self.flight.scores[worker] = score;
            }
        }
        self.begun.fill(None);
    }

    /// A worker's gradient is there: it goes to whom it meets, when both have time.
    fn go_to_meeting(&mut self, worker: usize, time: f64) {
        let mut ends = time;
        if let Some(partner) = self.turn(worker, |turn| self.algorithm.partner(turn)) {
            let bytes = 4 * self.engine.layout().parameter_count() as u64;
            let (from, to) = (worker, partner);
            let there = Transfer { from, to, bytes };
            let clock = &self.session.experiment.clock;
            let mut ports = [from, to].map(|i| self.flight.ports[i]);
            ends = clock.meeting(&mut ports, time, self.algorithm.pair_exchange(), &there);
            [self.flight.ports[from], self.flight.ports[to]] = ports;
        }
        self.schedule(worker, ends, Task::Meeting);
    }

    /// Two workers meet, or one steps alone; then it begins its next gradient.
    fn meet(&mut self, worker: usize, time: f64) -> Option<Status> {
        let meeting = self.turn(worker, |turn| {
            let partner = self.algorithm.partner(turn);
            let numbers = &self.session.progress.numbers;
            let partner = partner.map(|partner| (partner, numbers[partner]));
            self.algorithm.meet(turn, partner)
        });
        let touched = meeting.parts.iter().map(|part| part.worker);
        if touched
            .into_iter()
            .any(|worker| self.begun[worker].is_some())
        {
            self.compute();
        }
        self.flight.tasks[worker] = None;
        let score = self.flight.scores[worker].take().unwrap_or_default();
        let losses = &mut self.session.progress.losses;
        losses[worker] = Some(score.loss);
        let all: Vec<f64> = losses.iter().map(|loss| loss.unwrap_or(f64::NAN)).collect();
        if !self.session.is_sane(score.loss) {
            return Some(self.session.diverged(worker, all, &mut self.engine));
        }
        let messages = meeting.messages(self.algorithm.pair_exchange());
        let mut parts = meeting.parts;
        parts.sort_unstable_by_key(|part| part.worker);
        let options = MixOptions {
            server: self.session.experiment.server,
            round: self.flight.steps[worker],
            ..Default::default()
        };
        self.engine.exchange(&parts, options);
        if let [one, other] = &parts[..] {
            self.session.met(one.worker, other.worker);
        }
        for part in &parts {
            if let Some(number) = part.plan.number {
                self.session.progress.numbers[part.worker] = number;
            }
        }
        let width = self.engine.layout().parameter_count();
        let sent = &mut self.session.progress.sent;
        sent.messages_sent += messages;
        let each = parts.iter().map(|part| bytes(&part.messages, width));
        sent.bytes_sent += messages * each.max().unwrap_or(0);
        sent.simulated_seconds = time;
        self.session.progress.clocks[worker] = time;
        self.session.count(worker, score);
        self.flight.steps[worker] += 1;
        self.done += 1;
        self.begin_who_may(worker, time);
        self.end_round(all)
    }

    /// The worker goes on, unless it would be too far ahead; who waited for it may go on, too.
    fn begin_who_may(&mut self, worker: usize, time: f64) {
        let Some(staleness) = self.algorithm.staleness() else {
            return self.begin(worker, time);
        };
        let training = self.session.training.clone();
        let slowest = training.iter().map(|&i| self.flight.steps[i]).min();
        let limit = slowest.unwrap_or(0) + staleness;
        for worker in training {
            if self.flight.tasks[worker].is_none() && self.flight.steps[worker] < limit {
                self.begin(worker, time);
            }
        }
    }

    /// As many gradients as there are workers are a round.
    fn end_round(&mut self, losses: Vec<f64>) -> Option<Status> {
        if !self.done.is_multiple_of(self.session.training.len() as u64) {
            return None;
        }
        self.compute();
        self.session.progress.flight = Some(self.flight.clone());
        let next = self.session.end_round(losses, &mut self.engine);
        if next == ControlFlow::Stop && !self.session.is_over() {
            return Some(self.session.stop(&mut self.engine));
        }
        self.session.begin_round();
        None
    }
}
