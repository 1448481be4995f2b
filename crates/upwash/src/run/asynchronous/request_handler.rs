//! The calling thread of a worker on a network: it answers requests, passes on the worker's own, and says goodbye.

use super::super::evaluation::Replicas;
use super::super::session::Session;
use super::super::{ControlFlow, Event, Progress, RunError, Snapshot, Status};
use super::network::{Ask, NetworkWorker, POLL_INTERVAL, Reply, outgoing};
use super::{AsyncWorkers, CompletedStep, Stop, async_step};
use crate::engine::{Score, Split};
use crate::transport::{MembershipEvent, Message, Transport, TransportError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a worker that was asked to stop still answers, and waits for answers.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// What a message is for: the lowest bits of its exchange number.
const REQUEST: u32 = 0;
const REPLY: u32 = 1;
const DONE: u32 = 2;
/// The largest step that fits beside them; then they begin anew.
const LARGEST: u64 = (1 << 30) - 1;

pub(super) struct RequestHandler<'w, 'a> {
    worker: &'w NetworkWorker<'a>,
    pub(super) transport: &'w mut dyn Transport,
    /// What the worker's thread asks for, and where it is answered.
    asked: mpsc::Receiver<Ask>,
    reply: mpsc::Sender<Reply>,
    /// Whether the worker's thread is at work, and whether the neighbors know that it is not.
    is_at_work: bool,
    has_said_goodbye: bool,
    /// Messages are numbered, so that none counts twice.
    sequence: u64,
    /// Neighbors that have come to their end, or were asked to stop.
    done: BTreeSet<usize>,
    /// The gradients that each has told of; and replies that wait for the slowest.
    steps: BTreeMap<usize, u64>,
    held_back: Vec<(usize, Message)>,
    /// Whose answer the worker waits for, to which of its requests.
    waiting: Option<(usize, u64)>,
    /// Since when somebody asks for an end.
    stopping: Option<Instant>,
    /// When a worker that trains was last there.
    last_company: Instant,
}

impl<'w, 'a> RequestHandler<'w, 'a> {
    pub(super) fn new(
        worker: &'w NetworkWorker<'a>,
        transport: &'w mut dyn Transport,
        asked: mpsc::Receiver<Ask>,
        reply: mpsc::Sender<Reply>,
    ) -> Self {
        Self {
            worker,
            transport,
            asked,
            reply,
            is_at_work: worker.trains(),
            has_said_goodbye: false,
            sequence: 0,
            done: BTreeSet::new(),
            steps: BTreeMap::new(),
            held_back: Vec::new(),
            waiting: None,
            stopping: None,
            last_company: Instant::now(),
        }
    }

    /// Receives what has come, and reports who has joined or was lost.
    fn receive(&mut self, session: &mut Session<'_>) -> Result<(), RunError> {
        for message in self.transport.receive(POLL_INTERVAL)? {
            self.open(message)?;
        }
        for change in self.transport.membership_events() {
            if let MembershipEvent::Joined { worker } = change {
                self.done.remove(&worker);
            }
            let round = session.progress.round;
            session.report(&Event::Peer { round, change });
        }
        session.measure_costs(self.transport.traffic());
        Ok(())
    }

    /// Does what the worker's thread asks for; a gradient that it has applied.
    fn serve_worker(&mut self, session: &mut Session<'_>) -> Result<Option<Score>, RunError> {
        loop {
            match self.asked.try_recv() {
                Ok(Ask::Request { to, step, message }) => {
                    session.note_link(self.worker.id, to);
                    match self.send(to, step, REQUEST, message)? {
                        true => self.waiting = Some((to, step)),
                        false => self.pass_on(step, None),
                    }
                }
                Ok(Ask::Step(score)) => return Ok(Some(score)),
                Err(mpsc::TryRecvError::Empty) => return Ok(None),
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.is_at_work = false;
                    return Ok(None);
                }
            }
        }
    }

    /// Tells the neighbors that this worker is done. A server has nothing to say, unless it goes before the others.
    fn say_goodbye(&mut self, session: &Session<'_>) -> Result<(), RunError> {
        let speaks = self.worker.trains() || self.stopping.is_some();
        if speaks && !std::mem::replace(&mut self.has_said_goodbye, true) {
            for to in self.worker.neighbors.clone() {
                let message = self.worker.message(vec![], 0.0);
                self.send(to, session.progress.round, DONE, message)?;
            }
        }
        Ok(())
    }

    /// A server has no gradients of its own: its rounds are those that all who are at work have behind them. Who comes
    /// back from long ago does not hold it up.
    fn keep_up(&mut self, session: &mut Session<'_>) -> Result<(), RunError> {
        let round = session.progress.round;
        let at_work: Vec<u64> = self.company().map(|other| self.steps_of(other)).collect();
        let least = match at_work.is_empty() {
            true => self.done.iter().map(|&other| self.steps_of(other)).max(),
            false => at_work.into_iter().filter(|&steps| steps >= round).min(),
        };
        let least = least.unwrap_or(round);
        while session.progress.round < least && self.stopping.is_none() {
            let losses = vec![f64::NAN; session.experiment.workers()];
            if session.end_round(losses, self)? == ControlFlow::Stop {
                self.request_stop();
            }
            session.begin_round();
        }
        Ok(())
    }

    /// Those who are there and train yet.
    fn company(&self) -> impl Iterator<Item = usize> + '_ {
        let others = self.worker.neighbors.iter().copied();
        others.filter(|&other| {
            Some(other) != self.worker.experiment.server
                && !self.done.contains(&other)
                && self.transport.is_connected(other)
        })
    }

    /// How many gradients a worker has told of.
    fn steps_of(&self, worker: usize) -> u64 {
        self.steps.get(&worker).copied().unwrap_or(0)
    }

    /// Somebody asks for an end.
    fn request_stop(&mut self) {
        self.stopping.get_or_insert_with(Instant::now);
        self.worker.stop.store(true, Ordering::Relaxed);
    }

    fn is_impatient(&self) -> bool {
        self.stopping.is_some_and(|since| since.elapsed() > FAREWELL_TIMEOUT)
    }

    /// Whether nobody wants anything any more: those who are there have come to their end, or have had long enough. A
    /// server waits for those who may come, but not for ever.
    fn may_leave(&mut self) -> bool {
        if self.company().next().is_some() {
            self.last_company = Instant::now();
            return self.is_impatient();
        }
        let patience = self.worker.experiment.config.network.message_timeout_seconds;
        let long = self.last_company.elapsed().as_secs_f64() > patience;
        let all_done = self.done.len() == self.worker.neighbors.len();
        self.worker.trains() || self.stopping.is_some() || all_done || self.is_at_end() || long
    }

    /// Whether someone has computed all gradients.
    fn is_at_end(&self) -> bool {
        let last = self.worker.experiment.rounds();
        self.steps.values().any(|&steps| steps >= last)
    }

    /// Whom we ask may be lost, or late when there is no time left.
    fn stop_waiting(&mut self) {
        if let Some((to, step)) = self.waiting
            && (!self.transport.is_connected(to) || self.is_impatient())
        {
            self.waiting = None;
            self.pass_on(step, None);
        }
    }

    /// Gives the worker what came of its request.
    fn pass_on(&self, step: u64, message: Option<Message>) {
        let _ = self.reply.send(Reply { step, message });
    }

    fn send(&mut self, to: usize, step: u64, what: u32, mut message: Message) -> Result<bool, TransportError> {
        self.sequence += 1;
        (message.round, message.exchange) = (self.sequence, (step as u32) << 2 | what);
        self.transport.send(to, message)
    }

    fn open(&mut self, message: Message) -> Result<(), TransportError> {
        let (from, what, step) = (message.from, message.exchange & 3, message.exchange >> 2);
        let (steps, last) = (u64::from(step), self.worker.experiment.rounds());
        match what {
            REQUEST if steps < last => {
                self.done.remove(&from);
                self.steps.insert(from, steps + 1);
                match self.on_request(&message, step) {
                    Some(reply) if self.is_ahead(from) => self.held_back.push((from, reply)),
                    Some(reply) => drop(self.send(from, steps, REPLY, reply)?),
                    None => self.transport.refuse(from, "a model that cannot be one".into()),
                }
            }
            REPLY => {
                // There are answers for which nobody waits any more.
                let awaited = |(to, step): &(usize, u64)| *to == from && step & LARGEST == steps;
                if let Some((_, step)) = self.waiting.take_if(|waiting| awaited(waiting)) {
                    let usable = message.values.len() == self.width();
                    let usable = usable && message.values.iter().all(|x| x.is_finite());
                    self.pass_on(step, Some(message).filter(|_| usable));
                }
            }
            DONE if steps <= last => {
                // Where nobody can do without the others, all stop together.
                if steps < last && !self.transport.capabilities().survives_loss {
                    self.request_stop();
                }
                self.steps.insert(from, steps);
                self.done.insert(from);
            }
            _ => {
                let why = format!("there is no step {steps}");
                self.transport.refuse(from, why);
            }
        }
        Ok(())
    }

    fn width(&self) -> usize {
        self.worker.lock().model.len()
    }

    /// Another worker asks for an exchange: updates this worker, and returns its reply.
    fn on_request(&mut self, message: &Message, step: u32) -> Option<Message> {
        let worker = self.worker;
        if message.values.len() != self.width() || !message.values.iter().all(|x| x.is_finite()) {
            return None;
        }
        let mut state = worker.lock();
        let scalar = message.stats.scalar;
        let view = async_step(worker.experiment, message.from, step.into(), scalar);
        let plans = worker.algorithm.update(&view, Some((worker.id, state.scalar))).plans;
        let own = plans.iter().find(|plan| plan.worker == worker.id)?;
        let reply = worker.message(outgoing(own, state.model, &[]), state.scalar);
        let remote = Some((message.from, message.values.clone()));
        let (model, scalar) = worker.updated(&plans, state.model.to_vec(), &[], remote);
        state.model.copy_from_slice(&model);
        state.scalar = scalar.unwrap_or(state.scalar);
        Some(reply)
    }

    /// Whether a worker would be too far ahead of the slowest one that is there.
    fn is_ahead(&self, worker: usize) -> bool {
        let Some(staleness) = self.worker.algorithm.staleness() else {
            return false;
        };
        let slowest = self.company().map(|other| self.steps_of(other)).min();
        self.steps_of(worker) >= slowest.unwrap_or(u64::MAX).saturating_add(staleness)
    }

    /// Sends the answers that need not wait any more.
    fn release_replies(&mut self) -> Result<(), TransportError> {
        for (to, reply) in std::mem::take(&mut self.held_back) {
            if self.is_ahead(to) {
                self.held_back.push((to, reply));
            } else {
                let step = self.steps_of(to).max(1) - 1;
                self.send(to, step, REPLY, reply)?;
            }
        }
        Ok(())
    }
}

impl AsyncWorkers for RequestHandler<'_, '_> {
    fn next_step(&mut self, session: &mut Session<'_>) -> Result<Option<CompletedStep>, RunError> {
        loop {
            self.receive(session)?;
            if let Some(score) = self.serve_worker(session)? {
                return Ok(Some(CompletedStep {
                    worker: self.worker.id,
                    partner: None,
                    score,
                    messages: 0,
                    bytes: 0,
                    time: None,
                }));
            }
            if !self.worker.trains() {
                self.keep_up(session)?;
            }
            if session.meanwhile() == ControlFlow::Stop {
                self.request_stop();
            }
            self.stop_waiting();
            self.release_replies()?;
            if !self.is_at_work {
                self.say_goodbye(session)?;
                if self.may_leave() {
                    return Ok(None);
                }
            }
        }
    }

    fn rounds_counted(&mut self, rounds: u64) {
        self.worker.counted.store(rounds, Ordering::Release);
    }

    fn leave(&mut self, worker: usize, round: u64) -> Result<(), RunError> {
        Ok(self.transport.leave(worker, round)?)
    }

    fn stop(&mut self) -> Stop {
        self.request_stop();
        Stop::WhenAllHaveEnded
    }

    fn end(&mut self, session: &mut Session<'_>) -> Result<Status, RunError> {
        let is_interrupted = match self.worker.trains() {
            true => !session.is_over(),
            false => !self.is_at_end(),
        };
        // Processes that end together end alike.
        let scalar = self.transport.sum(f64::from(u8::from(is_interrupted)))?;
        if is_interrupted || scalar.is_some_and(|scalar| scalar > 0.0) {
            return Ok(session.stop(self));
        }
        session.progress.round = session.experiment.rounds();
        // Whatever was measured last, it was not by all at the same time.
        session.evaluation = None;
        Ok(Status::Finished)
    }
}

impl Replicas for RequestHandler<'_, '_> {
    fn score(&mut self, worker: usize, split: Split) -> Result<Option<Score>, RunError> {
        Ok(self.worker.state.score(worker, split))
    }

    fn score_estimated(&mut self, worker: usize) -> Result<Option<Score>, RunError> {
        Ok(self.worker.state.score_estimated(worker))
    }

    /// Nobody knows the others' models.
    fn consensus_distance(&mut self, _: &[usize]) -> Result<f64, RunError> {
        Ok(f64::NAN)
    }

    fn snapshot(&mut self, progress: &Progress) -> Result<Snapshot, RunError> {
        Ok(self.worker.state.snapshot(progress, |_, _| {}))
    }
}
