//! The calling thread: it answers, passes on, counts, tests and tells.

use super::{Answer, Field, GLANCE, Told, sent_by};
use crate::algorithm::AsyncStep;
use crate::engine::{Score, Split};
use crate::run::RunError;
use crate::run::session::{Models, Session};
use crate::run::threads::lock;
use crate::run::{ControlFlow, Event, Progress, Snapshot, Status};
use crate::transport::{MembershipEvent, Message, Transport, TransportError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long who was asked to stop still answers, and waits for answers.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a message is for: the lowest bits of its number.
const REQUEST: u32 = 0;
const REPLY: u32 = 1;
const DONE: u32 = 2;
/// The largest step that can be told; then they begin anew.
const LARGEST: u64 = (1 << 30) - 1;

pub(super) struct Desk<'f, 'a> {
    field: &'f Field<'a>,
    transport: &'f mut dyn Transport,
    /// Messages are numbered, so that none counts twice.
    sequence: u64,
    /// Neighbors that have come to their end, or were asked to stop.
    done: BTreeSet<usize>,
    /// How many gradients each has told of; and answers that wait for the slowest.
    steps: BTreeMap<usize, u64>,
    held_back: Vec<(usize, Message)>,
    /// Whose answer the worker waits for, to which of its requests.
    waiting: Option<(usize, u64)>,
    answer: mpsc::Sender<Answer>,
    /// Since when an end is wished.
    stopping: Option<Instant>,
    /// When someone who trains was last there.
    company: Instant,
}

impl<'f, 'a> Desk<'f, 'a> {
    pub(super) fn new(
        field: &'f Field<'a>,
        transport: &'f mut dyn Transport,
        answer: mpsc::Sender<Answer>,
    ) -> Self {
        Self {
            field,
            transport,
            sequence: 0,
            done: BTreeSet::new(),
            steps: BTreeMap::new(),
            held_back: Vec::new(),
            waiting: None,
            answer,
            stopping: None,
            company: Instant::now(),
        }
    }

    pub(super) fn serve(
        mut self,
        session: &mut Session<'_>,
        told: &mpsc::Receiver<Told>,
    ) -> Result<Status, RunError> {
        let trains = self.field.trains();
        let (mut at_work, mut said_goodbye) = (trains, false);
        let (before, began) = (session.progress.sent, Instant::now());
        if !trains {
            session.leave_tests_to_the_end();
        }
        session.begin_round();
        loop {
            for message in self.transport.receive(GLANCE)? {
                self.open(message)?;
            }
            for change in self.transport.membership_events() {
                if let MembershipEvent::Joined { worker } = change {
                    self.done.remove(&worker);
                }
                let round = session.progress.round;
                session.tell(&Event::Peer { round, change });
            }
            session.progress.sent = before.after(self.transport.traffic(), began.elapsed());
            loop {
                match told.try_recv() {
                    Ok(Told::Request { to, step, message }) => {
                        session.met(self.field.worker, to);
                        match self.send(to, step, REQUEST, message)? {
                            true => self.waiting = Some((to, step)),
                            false => self.pass_on(step, None),
                        }
                    }
                    Ok(Told::Step(score)) => {
                        if let Some(diverged) = self.count(session, score)? {
                            return Ok(diverged);
                        }
                    }
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => {
                        at_work = false;
                        break;
                    }
                }
            }
            if !trains {
                self.keep_up(session);
            }
            if session.meanwhile() == ControlFlow::Stop {
                self.stop();
            }
            self.stop_waiting();
            self.let_go()?;
            if at_work {
                continue;
            }
            // A server has nothing to say goodbye with, unless it goes before the others.
            if (trains || self.stopping.is_some()) && !std::mem::replace(&mut said_goodbye, true) {
                for to in self.field.neighbors.clone() {
                    let message = self.field.message(vec![], 0.0);
                    self.send(to, session.progress.round, DONE, message)?;
                }
            }
            if self.may_leave() {
                break;
            }
        }
        let interrupted = match trains {
            true => !session.is_over(),
            false => !self.is_at_end(),
        };
        // Processes that end together end alike.
        let number = self.transport.sum(f64::from(u8::from(interrupted)))?;
        if interrupted || number.is_some_and(|number| number > 0.0) {
            return Ok(session.stop(&mut self));
        }
        session.progress.round = session.experiment.rounds();
        session.forget_tests();
        Ok(Status::Finished)
    }

    /// A gradient of this worker is applied; how the run ends, if it does with that.
    fn count(
        &mut self,
        session: &mut Session<'_>,
        score: Score,
    ) -> Result<Option<Status>, TransportError> {
        let worker = self.field.worker;
        session.count(worker, score);
        let mut losses = vec![f64::NAN; session.experiment.workers()];
        losses[worker] = score.loss;
        session.progress.losses[worker] = Some(score.loss);
        if !session.is_sane(score.loss) {
            self.transport.leave(worker, session.progress.round)?;
            return Ok(Some(session.diverged(worker, losses, self)));
        }
        if session.end_round(losses, self) == ControlFlow::Stop {
            self.stop();
        }
        let counted = session.progress.round;
        self.field.counted.store(counted, Ordering::Release);
        session.begin_round();
        Ok(None)
    }

    /// A server has no gradients of its own: its rounds are those that all who are at work have behind them. Who comes
    /// back from long ago does not hold it up.
    fn keep_up(&mut self, session: &mut Session<'_>) {
        let round = session.progress.round;
        let at_work: Vec<u64> = self.company().map(|other| self.steps_of(other)).collect();
        let least = match at_work.is_empty() {
            true => self.done.iter().map(|&other| self.steps_of(other)).max(),
            false => at_work.into_iter().filter(|&steps| steps >= round).min(),
        };
        let least = least.unwrap_or(round);
        while session.progress.round < least && self.stopping.is_none() {
            let losses = vec![f64::NAN; session.experiment.workers()];
            if session.end_round(losses, self) == ControlFlow::Stop {
                self.stop();
            }
            session.begin_round();
        }
    }

    /// Those who are there and train yet.
    fn company(&self) -> impl Iterator<Item = usize> + '_ {
        let others = self.field.neighbors.iter().copied();
        others.filter(|&other| {
            Some(other) != self.field.experiment.server
                && !self.done.contains(&other)
                && self.transport.is_connected(other)
        })
    }

    /// How many gradients a worker has told of.
    fn steps_of(&self, worker: usize) -> u64 {
        self.steps.get(&worker).copied().unwrap_or(0)
    }

    /// An end is wished.
    fn stop(&mut self) {
        self.stopping.get_or_insert_with(Instant::now);
        self.field.stop.store(true, Ordering::Relaxed);
    }

    fn is_impatient(&self) -> bool {
        self.stopping
            .is_some_and(|since| since.elapsed() > FAREWELL)
    }

    /// Whether nobody wants anything any more: those who are there have come to their end, or have had long enough. A
    /// server waits for those who may come, but not for ever.
    fn may_leave(&mut self) -> bool {
        if self.company().next().is_some() {
            self.company = Instant::now();
            return self.is_impatient();
        }
        let patience = self.field.experiment.config.network.message_timeout_seconds;
        let long = self.company.elapsed().as_secs_f64() > patience;
        let all_done = self.done.len() == self.field.neighbors.len();
        self.field.trains() || self.stopping.is_some() || all_done || self.is_at_end() || long
    }

    /// Whether someone has computed all gradients.
    fn is_at_end(&self) -> bool {
        let last = self.field.experiment.rounds();
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
        let _ = self.answer.send(Answer { step, message });
    }

    fn send(
        &mut self,
        to: usize,
        step: u64,
        what: u32,
        mut message: Message,
    ) -> Result<bool, TransportError> {
        self.sequence += 1;
        (message.round, message.exchange) = (self.sequence, (step as u32) << 2 | what);
        self.transport.send(to, message)
    }

    fn open(&mut self, message: Message) -> Result<(), TransportError> {
        let (from, what, step) = (message.from, message.exchange & 3, message.exchange >> 2);
        let (steps, last) = (u64::from(step), self.field.experiment.rounds());
        match what {
            REQUEST if steps < last => {
                self.done.remove(&from);
                self.steps.insert(from, steps + 1);
                match self.be_met(&message, step) {
                    Some(reply) if self.is_ahead(from) => self.held_back.push((from, reply)),
                    Some(reply) => drop(self.send(from, steps, REPLY, reply)?),
                    None => self
                        .transport
                        .refuse(from, "a model that cannot be one".into()),
                }
            }
            REPLY => {
                // There are answers for which nobody waits any more.
                let awaited = |(to, step): &(usize, u64)| *to == from && step & LARGEST == steps;
                if let Some((_, step)) = self.waiting.take_if(|waiting| awaited(waiting)) {
                    let usable = message.numbers.len() == self.width();
                    let usable = usable && message.numbers.iter().all(|x| x.is_finite());
                    self.pass_on(step, Some(message).filter(|_| usable));
                }
            }
            DONE if steps <= last => {
                // Where nobody can do without the others, all stop together.
                if steps < last && !self.transport.capabilities().survives_loss {
                    self.stop();
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
        lock(&self.field.open).model.len()
    }

    /// Someone meets this worker: what becomes of it, and what it answers.
    fn be_met(&mut self, message: &Message, step: u32) -> Option<Message> {
        let field = self.field;
        if message.numbers.len() != self.width() || !message.numbers.iter().all(|x| x.is_finite()) {
            return None;
        }
        let mut open = lock(&field.open);
        let turn = AsyncStep {
            worker: message.from,
            neighbors: field.experiment.graph.neighbors(message.from),
            number: message.report.number,
            ..field.turn(step.into(), 1.0)
        };
        let known = Some((field.worker, open.number));
        let meeting = field.algorithm.meet(&turn, known);
        let part = meeting
            .parts
            .iter()
            .find(|part| part.worker == field.worker)?;
        let reply = field.message(sent_by(part, open.model, &[]), open.number);
        let theirs = Some((message.from, message.numbers.clone()));
        let (model, number) = field.after(&meeting.parts, open.model.to_vec(), &[], theirs);
        open.model.copy_from_slice(&model);
        open.number = number.unwrap_or(open.number);
        Some(reply)
    }

    /// Whether a worker would be too far ahead of the slowest one that is there.
    fn is_ahead(&self, worker: usize) -> bool {
        let Some(staleness) = self.field.algorithm.staleness() else {
            return false;
        };
        let slowest = self.company().map(|other| self.steps_of(other)).min();
        self.steps_of(worker) >= slowest.unwrap_or(u64::MAX).saturating_add(staleness)
    }

    /// Sends the answers that need not wait any more.
    fn let_go(&mut self) -> Result<(), TransportError> {
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

impl Models for Desk<'_, '_> {
    fn score(&mut self, worker: usize, part: Split) -> Option<Score> {
        let open = lock(&self.field.open);
        let (model, statistics) = (open.model.to_vec(), open.statistics.to_vec());
        drop(open);
        let here = worker == self.field.worker;
        here.then(|| self.field.shared.score_part(0, part, &model, &statistics))
    }

    fn score_bare(&mut self, worker: usize) -> Option<Score> {
        let model = lock(&self.field.open).model.to_vec();
        let here = worker == self.field.worker;
        here.then(|| {
            let statistics = self.field.shared.estimate_statistics(0, &model);
            self.field
                .shared
                .score_part(0, Split::Test, &model, &statistics)
        })
    }

    /// Nobody knows the others' models.
    fn consensus_distance(&mut self, _: &[usize]) -> f64 {
        f64::NAN
    }

    fn snapshot(&mut self, progress: &Progress) -> Snapshot {
        let open = lock(&self.field.open);
        let mut progress = progress.clone();
        progress.numbers[self.field.worker] = open.number;
        let state = vec![
            ("updates".into(), vec![0.0; open.model.len()]),
            ("models".into(), open.model.to_vec()),
            ("velocities".into(), open.velocity.to_vec()),
            ("statistics".into(), open.statistics.to_vec()),
        ];
        (progress, state)
    }
}
