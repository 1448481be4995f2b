//! An asynchronous worker in a separate process. It never waits for all others.
//!
//! One thread computes gradients. The calling thread ([`RequestHandler`]) answers other workers' requests, sends the
//! worker's own requests, counts steps, evaluates and reports. An exchange is one message to the partner and one back.
//! While the worker waits for the reply, this process still answers others. The worker computes its new model from the
//! model that it sent, and adds the difference to the model that it has by then. So no update by others is lost, and
//! workers cannot wait for each other in a cycle.

use super::super::session::Session;
use super::super::{ControlFlow, RunError, Status};
use super::request_handler::RequestHandler;
use super::shared_state::{LocalState, SharedState, WorkerState, slices};
use super::{async_step, count_steps};
use crate::algorithm::{Asynchronous, Outgoing, WorkerPlan, WorkerStats};
use crate::engine::{ConcurrentWorkers, GradientTask, MixOptions, RemoteRow, Score, WorkerVectors, exchange};
use crate::experiment::Experiment;
use crate::gossip::Inbox;
use crate::ids::{RowIndex, WorkerId};
use crate::transport::{Buffer, Message, Placement, RoundStart, Transport};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a thread that waits for the other one sleeps between two checks.
pub(super) const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The worker of this process, as both threads see it.
pub(super) struct NetworkWorker<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) algorithm: &'a dyn Asynchronous,
    pub(super) id: WorkerId,
    placement: Placement,
    pub(super) neighbors: Vec<WorkerId>,
    pub(super) state: SharedState<'a>,
    pub(super) stop: AtomicBool,
    /// The number of gradients that the calling thread has counted. The worker applies its next gradient only after
    /// that, so that a checkpoint in between contains exactly as many as it states.
    pub(super) counted: AtomicU64,
    /// Whether the calling thread has stopped counting.
    closed: AtomicBool,
    rate: Box<dyn Fn(f64) -> f64 + Sync + 'a>,
}

/// Lets the worker's thread end however the calling thread ends. Otherwise it would wait for the count forever.
struct CloseOnDrop<'w, 'a>(&'w NetworkWorker<'a>);

impl Drop for CloseOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        self.0.closed.store(true, Ordering::Release);
    }
}

/// A command from the worker's thread to the calling thread.
pub(super) enum Command {
    /// Send a request to another worker.
    SendRequest { to: WorkerId, step: u64, message: Message },
    /// Count a gradient that was applied.
    CountStep(Score),
}

/// The reply to a request, if there was one.
pub(super) struct Reply {
    pub(super) step: u64,
    pub(super) message: Option<Message>,
}

/// What an exchange adds to the worker that started it.
struct Delta {
    model: Vec<f32>,
    scalar: f64,
}

pub(super) fn run(
    session: &mut Session<'_>,
    algorithm: &dyn Asynchronous,
    workers: ConcurrentWorkers<'_>,
    transport: &mut dyn Transport,
) -> Result<Status, RunError> {
    let experiment = session.experiment;
    let placement = transport.placement().clone();
    // The worker is the only row of this process's engine.
    let id = placement.worker_at(RowIndex(0));
    let (state, updates) = SharedState::new(workers, placement.clone(), &session.progress);
    let worker = NetworkWorker {
        experiment,
        algorithm,
        id,
        placement,
        neighbors: experiment.contacts(id),
        state,
        stop: AtomicBool::new(false),
        counted: AtomicU64::new(session.progress.round),
        closed: AtomicBool::new(false),
        rate: Box::new(session.rates()),
    };
    let (command_sender, command_receiver) = mpsc::channel();
    let (reply_sender, reply_receiver) = mpsc::channel();
    let mut handler = RequestHandler::new(&worker, transport, command_receiver, reply_sender);
    let mut control_flow = ControlFlow::Continue;
    loop {
        match handler.transport.may_begin(0, control_flow == ControlFlow::Stop)? {
            RoundStart::Wait => control_flow = session.while_waiting(),
            RoundStart::Stop => return Ok(session.stop(&mut handler)),
            RoundStart::Isolated => return Ok(session.isolated(&mut handler)),
            RoundStart::Go | RoundStart::Adopt(_) => break,
        }
    }
    let steps = session.progress.round..experiment.rounds();
    std::thread::scope(|scope| {
        match updates.into_iter().next().filter(|_| worker.trains()) {
            Some(update) => {
                let worker = &worker;
                scope.spawn(move || worker.work(steps, update, &command_sender, &reply_receiver));
            }
            None => drop(command_sender),
        }
        let _guard = CloseOnDrop(&worker);
        session.evaluates = worker.trains();
        let done = session.progress.round;
        count_steps(session, &mut handler, done, 1)
    })
}

impl<'a> NetworkWorker<'a> {
    /// Whether the worker has data. Only a server has none.
    pub(super) fn trains(&self) -> bool {
        Some(self.id) != self.experiment.server
    }

    /// How long this worker waits for a reply before it continues alone.
    pub(super) fn message_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.experiment.config.network.message_timeout_seconds)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WorkerState<'a>> {
        self.state.lock(self.id)
    }

    /// Computes and applies one gradient after another.
    fn work(
        &self,
        steps: std::ops::Range<u64>,
        update: &mut [f32],
        commands: &mpsc::Sender<Command>,
        replies: &mpsc::Receiver<Reply>,
    ) {
        let mut local = self.lock().local();
        for step in steps {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let model = self.lock().model.to_vec();
            let task = GradientTask { batch: step, rate: (self.rate)(step as f64) };
            let LocalState { statistics, optimizer_state } = &mut local;
            // The worker is the only row of this process's engine.
            let (context, optimizer) = (self.state.context, &mut slices(optimizer_state));
            let score = context.gradient(0, task, &model, statistics, update, optimizer);
            let Some(delta) = self.exchange(step, update, commands, replies) else {
                return;
            };
            while self.counted.load(Ordering::Acquire) < step && !self.closed.load(Ordering::Acquire) {
                std::thread::sleep(POLL_INTERVAL);
            }
            let mut state = self.lock();
            let pairs = state.model.iter_mut().zip(delta.model);
            pairs.for_each(|(x, difference)| *x += difference);
            state.scalar += delta.scalar;
            state.store_local(&local);
            drop(state);
            if commands.send(Command::CountStep(score)).is_err() {
                return;
            }
        }
    }

    /// Exchanges with the partner that the algorithm names, if the partner can be reached. Returns the resulting
    /// change, or `None` if the calling thread has ended.
    fn exchange(
        &self,
        step: u64,
        update: &[f32],
        commands: &mpsc::Sender<Command>,
        replies: &mpsc::Receiver<Reply>,
    ) -> Option<Delta> {
        let (sent, scalar) = {
            let state = self.lock();
            (state.model.to_vec(), state.scalar)
        };
        let view = async_step(self.experiment, self.id, step, scalar);
        let mut reply = None;
        let partner = self.algorithm.partner(&view);
        if let Some(to) = partner {
            // The outgoing message does not depend on the partner's scalar.
            let provisional = self.algorithm.update(&view, Some((to, 1.0)));
            let own = provisional.plans.iter().find(|plan| plan.worker == self.id);
            let values = own.map_or(vec![], |plan| outgoing(plan, &sent, update));
            let message = self.message(values, scalar);
            commands.send(Command::SendRequest { to, step, message }).ok()?;
            reply = self.wait_for_reply(step, replies).ok()?;
        }
        let known_partner = partner.zip(reply.as_ref());
        let known_partner = known_partner.map(|(partner, reply)| (partner, reply.stats.scalar));
        let plans = self.algorithm.update(&view, known_partner).plans;
        let remote = partner.zip(reply.map(|reply| reply.values));
        let (mut model, new_scalar) = self.updated(&plans, sent.clone(), update, remote);
        model.iter_mut().zip(&sent).for_each(|(x, old)| *x -= old);
        let scalar = new_scalar.map_or(0.0, |new| new - scalar);
        Some(Delta { model, scalar })
    }

    /// Waits for the reply to a request. Returns an error if the calling thread has ended.
    fn wait_for_reply(
        &self,
        step: u64,
        replies: &mpsc::Receiver<Reply>,
    ) -> Result<Option<Message>, mpsc::RecvTimeoutError> {
        let deadline = Instant::now() + self.message_timeout();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match replies.recv_timeout(left) {
                Ok(reply) if reply.step == step => return Ok(reply.message),
                // A late reply to an exchange that was given up.
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
                Err(closed) => return Err(closed),
            }
        }
    }

    pub(super) fn message(&self, values: Vec<f32>, scalar: f64) -> Message {
        Message {
            from: self.id,
            round: 0,
            exchange: 0,
            stats: WorkerStats { loss: None, degree: self.neighbors.len(), scalar },
            whole: true,
            fresh: false,
            restart: None,
            values: values.into(),
        }
    }

    /// This worker's model and scalar after an exchange with at most one other worker.
    pub(super) fn updated(
        &self,
        plans: &[WorkerPlan],
        mut model: Vec<f32>,
        update: &[f32],
        other: Option<(WorkerId, Buffer)>,
    ) -> (Vec<f32>, Option<f64>) {
        let Some(own) = plans.iter().find(|plan| plan.worker == self.id) else {
            return (model, None);
        };
        let remote = |(from, values)| (from, RemoteRow { messages: vec![values] });
        let (senders, remote_rows) = other.into_iter().map(remote).unzip();
        let inbox = Inbox { senders, remote_rows, ..Inbox::default() };
        // A plan needs no other messages than those that it was made from.
        let Ok(row_plan) = own.clone().at_rows(|worker| inbox.row(worker, &self.placement, 0)) else {
            return (model, None);
        };
        let rows = vec![WorkerVectors { model: &mut model, step: update, state_vectors: vec![] }];
        let mut row_plans = vec![row_plan];
        row_plans.extend(inbox.remote_rows.iter().map(|remote| remote.row_plan(RowIndex(1))));
        let options = MixOptions { single_threaded: true, ..Default::default() };
        exchange(rows, &inbox.remote_rows, &row_plans, options);
        (model, own.plan.scalar)
    }
}

/// The message that a plan's worker sends, computed from its model and step.
pub(super) fn outgoing(plan: &WorkerPlan, model: &[f32], update: &[f32]) -> Vec<f32> {
    let message = plan.messages.first().cloned();
    let message = message.unwrap_or_else(Outgoing::model);
    let mut model = model.to_vec();
    let vectors = WorkerVectors { model: &mut model, step: update, state_vectors: vec![] };
    vectors.outgoing(&message, &[])
}
