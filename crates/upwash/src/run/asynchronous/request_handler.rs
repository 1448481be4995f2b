//! The calling thread of a worker on a network: it answers requests, sends the worker's own, and announces its end.

mod held_replies;

use super::super::evaluation::Replicas;
use super::super::session::Session;
use super::super::{ControlFlow, Event, Progress, RunError, Snapshot, Status};
use super::network::{Command, NetworkWorker, POLL_INTERVAL, Reply, outgoing};
use super::{AsyncWorkers, CompletedStep, Stop, async_step};
use crate::engine::{Score, Split};
use crate::ids::WorkerId;
use crate::transport::{MembershipEvent, Message, Transport, TransportError};
use held_replies::HeldReply;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a worker that was asked to stop still sends replies, and waits for them.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The kind of a message: the lowest two bits of its exchange number.
const REQUEST: u32 = 0;
const REPLY: u32 = 1;
const DONE: u32 = 2;
/// The largest step that fits into the remaining bits. Steps wrap around after it.
const MAX_STEP: u64 = (1 << 30) - 1;

pub(super) struct RequestHandler<'w, 'a> {
    worker: &'w NetworkWorker<'a>,
    pub(super) transport: &'w mut dyn Transport,
    /// Commands from the worker's thread, and the channel for replies to it.
    commands: mpsc::Receiver<Command>,
    replies: mpsc::Sender<Reply>,
    /// Whether the worker's thread is running, and whether its end was announced to the neighbors.
    is_worker_running: bool,
    has_sent_goodbye: bool,
    /// The sequence number of the last message. Numbering ensures that no message counts twice.
    sequence: u64,
    /// Neighbors that have finished, or were asked to stop.
    finished: BTreeSet<WorkerId>,
    /// The number of gradients that each neighbor has reported, and replies held back until the slowest catches up.
    steps: BTreeMap<WorkerId, u64>,
    held_replies: Vec<HeldReply>,
    /// The round of a server: the one that all active workers had completed.
    completed: u64,
    /// The receiver and the step of the request that waits for a reply.
    pending_request: Option<(WorkerId, u64)>,
    /// Workers that have not replied in time, and have sent nothing since.
    silent: BTreeSet<WorkerId>,
    /// When the end of the run was requested.
    stop_requested_at: Option<Instant>,
    /// When a neighbor that trains was last connected.
    last_active: Instant,
    /// When each worker last sent a message.
    last_heard: BTreeMap<WorkerId, Instant>,
    started: Instant,
}

impl<'w, 'a> RequestHandler<'w, 'a> {
    pub(super) fn new(
        worker: &'w NetworkWorker<'a>,
        transport: &'w mut dyn Transport,
        commands: mpsc::Receiver<Command>,
        replies: mpsc::Sender<Reply>,
    ) -> Self {
        Self {
            worker,
            transport,
            commands,
            replies,
            is_worker_running: worker.trains(),
            has_sent_goodbye: false,
            sequence: 0,
            finished: BTreeSet::new(),
            steps: BTreeMap::new(),
            held_replies: Vec::new(),
            completed: 0,
            pending_request: None,
            silent: BTreeSet::new(),
            stop_requested_at: None,
            last_active: Instant::now(),
            last_heard: BTreeMap::new(),
            started: Instant::now(),
        }
    }

    /// Receives messages, and reports changes of the membership.
    fn receive(&mut self, session: &mut Session<'_>) -> Result<(), RunError> {
        for message in self.transport.receive(POLL_INTERVAL)? {
            self.handle_message(message)?;
        }
        for change in self.transport.membership_events() {
            if let MembershipEvent::Joined { worker } = change {
                self.finished.remove(&worker);
                // It asks again, because the reply was for its earlier connection.
                self.held_replies.retain(|held| held.to != worker);
                self.last_heard.insert(worker, Instant::now());
                self.silent.remove(&worker);
            }
            let round = session.progress.round;
            session.report(&Event::Peer { round, change });
        }
        session.measure_costs(self.transport.traffic());
        Ok(())
    }

    /// Carries out commands from the worker's thread. Returns the score of a gradient that the worker has applied.
    fn handle_commands(&mut self, session: &mut Session<'_>) -> Result<Option<Score>, RunError> {
        loop {
            match self.commands.try_recv() {
                Ok(Command::SendRequest { to, step, message }) => {
                    // The worker has given up on the reply to its last request.
                    self.silent.extend(self.pending_request.take().map(|request| request.0));
                    // A worker that was silent is not waited for again until it sends something.
                    if self.silent.contains(&to) && self.transport.capabilities().survives_loss {
                        self.deliver_reply(step, None);
                        continue;
                    }
                    session.record_link(self.worker.id, to);
                    match self.send(to, step, REQUEST, message)? {
                        true => self.pending_request = Some((to, step)),
                        false => self.deliver_reply(step, None),
                    }
                }
                Ok(Command::CountStep(score)) => return Ok(Some(score)),
                Err(mpsc::TryRecvError::Empty) => return Ok(None),
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.is_worker_running = false;
                    return Ok(None);
                }
            }
        }
    }

    /// Tells the neighbors that this worker has finished. A server does so only if it exits before the others.
    fn send_goodbye(&mut self, session: &Session<'_>) -> Result<(), RunError> {
        let must_send = self.worker.trains() || self.stop_requested_at.is_some();
        if must_send && !std::mem::replace(&mut self.has_sent_goodbye, true) {
            for to in self.worker.neighbors.clone() {
                let message = self.worker.message(vec![], 0.0);
                self.send(to, session.progress.round, DONE, message)?;
            }
        }
        Ok(())
    }

    /// Advances the rounds of a server. A server computes no gradients, so its round is the one that all active workers
    /// have completed. A worker that rejoins far behind does not delay it.
    fn advance_server(&mut self, session: &mut Session<'_>) -> Result<(), RunError> {
        let round = session.progress.round;
        let active_steps: Vec<u64> = self.active_neighbors().map(|other| self.steps_of(other)).collect();
        let completed = match active_steps.is_empty() {
            true => self.finished.iter().map(|&other| self.steps_of(other)).max(),
            false => active_steps.into_iter().filter(|&steps| steps >= round).min(),
        };
        let completed = completed.unwrap_or(round);
        while session.progress.round < completed && self.stop_requested_at.is_none() {
            let losses = vec![f64::NAN; session.experiment.workers()];
            if session.end_round(losses, self)? == ControlFlow::Stop {
                self.request_stop();
            }
            session.begin_round();
        }
        self.completed = session.progress.round;
        Ok(())
    }

    /// The neighbors that are connected and still train. A worker that has sent nothing for too long is stuck, although it
    /// is connected, and nobody waits for it.
    fn active_neighbors(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let others = self.worker.neighbors.iter().copied();
        others.filter(|&other| {
            Some(other) != self.worker.experiment.server
                && !self.finished.contains(&other)
                && self.transport.is_connected(other)
                && !self.is_stuck(other)
        })
    }

    fn is_stuck(&self, worker: WorkerId) -> bool {
        let last_heard = self.last_heard.get(&worker).unwrap_or(&self.started);
        self.transport.capabilities().survives_loss && last_heard.elapsed() > self.worker.message_timeout()
    }

    /// The number of gradients that a worker has reported.
    fn steps_of(&self, worker: WorkerId) -> u64 {
        self.steps.get(&worker).copied().unwrap_or(0)
    }

    /// Records that the end of the run was requested.
    fn request_stop(&mut self) {
        self.stop_requested_at.get_or_insert_with(Instant::now);
        self.worker.stop.store(true, Ordering::Relaxed);
    }

    fn is_stop_overdue(&self) -> bool {
        self.stop_requested_at.is_some_and(|since| since.elapsed() > STOP_TIMEOUT)
    }

    /// Whether this process may exit: all connected neighbors have finished, or the time after a request to stop is up.
    /// A server also waits for workers that may still join, but only up to a timeout.
    fn may_exit(&mut self) -> bool {
        if self.active_neighbors().next().is_some() {
            self.last_active = Instant::now();
            return self.is_stop_overdue();
        }
        let timeout = self.worker.experiment.config.network.message_timeout_seconds;
        let timed_out = self.last_active.elapsed().as_secs_f64() > timeout;
        let all_finished = self.finished.len() == self.worker.neighbors.len();
        self.worker.trains()
            || self.stop_requested_at.is_some()
            || all_finished
            || self.any_worker_finished()
            || timed_out
    }

    /// Whether any worker has computed all of its gradients.
    fn any_worker_finished(&self) -> bool {
        let last = self.worker.experiment.rounds();
        self.steps.values().any(|&steps| steps >= last)
    }

    /// Gives up on a reply if the receiver of the request is lost, or if the time after a request to stop is up.
    fn cancel_pending_request(&mut self) {
        if let Some((to, step)) = self.pending_request
            && (!self.transport.is_connected(to) || self.is_stop_overdue())
        {
            self.pending_request = None;
            self.deliver_reply(step, None);
        }
    }

    /// Delivers the outcome of a request to the worker's thread.
    fn deliver_reply(&self, step: u64, message: Option<Message>) {
        let _ = self.replies.send(Reply { step, message });
    }

    fn send(&mut self, to: WorkerId, step: u64, kind: u32, mut message: Message) -> Result<bool, TransportError> {
        self.sequence += 1;
        (message.round, message.exchange) = (self.sequence, (step as u32) << 2 | kind);
        self.transport.send(to, message)
    }

    fn handle_message(&mut self, message: Message) -> Result<(), TransportError> {
        let (from, kind, step) = (message.from, message.exchange & 3, message.exchange >> 2);
        let (steps, last) = (u64::from(step), self.worker.experiment.rounds());
        self.last_heard.insert(from, Instant::now());
        self.silent.remove(&from);
        match kind {
            REQUEST if self.held_replies.iter().any(|held| held.to == from && !self.is_given_up(held)) => {
                self.transport.refuse(from, "a second request before the reply to the first".into());
            }
            REQUEST if steps < last => {
                self.finished.remove(&from);
                self.steps.insert(from, steps + 1);
                self.held_replies.retain(|held| held.to != from);
                match self.on_request(&message, step) {
                    Some(reply) if self.is_ahead(from) => {
                        self.held_replies.push(HeldReply { to: from, message: reply, since: Instant::now() });
                    }
                    Some(reply) => drop(self.send(from, steps, REPLY, reply)?),
                    None => self.transport.refuse(from, "invalid model in a request".into()),
                }
            }
            REPLY => {
                // The worker may have given up on this reply.
                let is_awaited = |(to, step): &(WorkerId, u64)| *to == from && step & MAX_STEP == steps;
                if let Some((_, step)) = self.pending_request.take_if(|request| is_awaited(request)) {
                    let is_usable = self.is_usable(&message);
                    self.deliver_reply(step, Some(message).filter(|_| is_usable));
                    if !is_usable {
                        self.transport.refuse(from, "invalid model in a reply".into());
                    }
                }
            }
            DONE if steps <= last => {
                // If the transport does not survive losses, all workers stop together.
                if steps < last && !self.transport.capabilities().survives_loss {
                    self.request_stop();
                }
                self.steps.insert(from, steps);
                self.finished.insert(from);
            }
            _ => {
                let why = format!("invalid step {steps}");
                self.transport.refuse(from, why);
            }
        }
        Ok(())
    }

    /// Whether a message has a model and a scalar that can be mixed.
    fn is_usable(&self, message: &Message) -> bool {
        let width = self.worker.lock().model.len();
        message.values.len() == width
            && message.values.iter().all(|x| x.is_finite())
            && message.stats.has_plausible_scalar(self.worker.experiment.workers())
    }

    /// Handles another worker's request: updates this worker, and returns its reply. `None` if the request is invalid.
    fn on_request(&mut self, message: &Message, step: u32) -> Option<Message> {
        let worker = self.worker;
        if !self.is_usable(message) {
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
}

impl AsyncWorkers for RequestHandler<'_, '_> {
    fn next_step(&mut self, session: &mut Session<'_>) -> Result<Option<CompletedStep>, RunError> {
        loop {
            self.receive(session)?;
            if let Some(score) = self.handle_commands(session)? {
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
                self.advance_server(session)?;
            }
            if session.while_waiting() == ControlFlow::Stop {
                self.request_stop();
            }
            self.cancel_pending_request();
            self.release_replies()?;
            if !self.is_worker_running {
                self.send_goodbye(session)?;
                if self.may_exit() {
                    return Ok(None);
                }
            }
        }
    }

    fn rounds_counted(&mut self, rounds: u64) {
        self.worker.counted.store(rounds, Ordering::Release);
    }

    fn report_divergence(&mut self, worker: WorkerId, round: u64) -> Result<(), RunError> {
        Ok(self.transport.leave(worker, round)?)
    }

    fn stop(&mut self) -> Stop {
        self.request_stop();
        Stop::WhenAllHaveEnded
    }

    fn end(&mut self, session: &mut Session<'_>) -> Result<Status, RunError> {
        let is_interrupted = match self.worker.trains() {
            true => !session.is_over(),
            false => !self.any_worker_finished(),
        };
        // Processes that end together must agree on the status.
        let interrupted = self.transport.sum(f64::from(u8::from(is_interrupted)))?;
        if is_interrupted || interrupted.is_some_and(|count| count > 0.0) {
            return Ok(session.stop(self));
        }
        session.progress.round = session.experiment.rounds();
        // The last evaluation was not of all workers at the same time.
        session.evaluation = None;
        Ok(Status::Finished)
    }
}

impl Replicas for RequestHandler<'_, '_> {
    fn score(&mut self, worker: WorkerId, split: Split) -> Result<Option<Score>, RunError> {
        Ok(self.worker.state.score(worker, split))
    }

    fn score_estimated(&mut self, worker: WorkerId) -> Result<Option<Score>, RunError> {
        Ok(self.worker.state.score_estimated(worker))
    }

    /// Unknown, because this process does not have the other workers' models.
    fn consensus_distance(&mut self, _: &[WorkerId]) -> Result<f64, RunError> {
        Ok(f64::NAN)
    }

    fn snapshot(&mut self, progress: &Progress) -> Result<Snapshot, RunError> {
        Ok(self.worker.state.snapshot(progress, |_, _| {}))
    }
}
