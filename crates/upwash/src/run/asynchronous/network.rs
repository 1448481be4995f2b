//! A worker in a process of its own: nobody waits for all.
//!
//! One thread computes gradients. The calling thread answers other workers' requests, passes on what the worker itself asks
//! of others, counts, evaluates and reports ([`RequestHandler`]). An exchange is a message there and a message back. The
//! worker answers others while it waits: what becomes of its model is computed from the model that it sent, and the
//! difference is added to the one that it has by then, so that nothing that others gave it is lost, and nobody can wait in
//! a circle.

use super::super::session::Session;
use super::super::{ControlFlow, RunError, Status};
use super::request_handler::RequestHandler;
use super::shared_state::{LocalState, SharedState, WorkerState, slices};
use super::{async_step, count_steps};
use crate::algorithm::{Asynchronous, Outgoing, WorkerPlan, WorkerStats};
use crate::engine::{ConcurrentWorkers, GradientTask, MixOptions, RemoteRow, Score, WorkerVectors, exchange};
use crate::experiment::Experiment;
use crate::ids::RowIndex;
use crate::transport::{Buffer, Message, RoundStart, Transport};
use std::convert::Infallible;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A worker that gets no answer for so long goes on alone.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a thread that waits for the other sleeps before it looks up.
pub(super) const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// This process's worker, for both threads.
pub(super) struct NetworkWorker<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) algorithm: &'a dyn Asynchronous,
    pub(super) id: usize,
    pub(super) neighbors: Vec<usize>,
    pub(super) state: SharedState<'a>,
    pub(super) stop: AtomicBool,
    /// Gradients that the calling thread has counted: the worker's next one is put into its model only after that, so
    /// that a checkpoint in between has as many as it says.
    pub(super) counted: AtomicU64,
    /// The calling thread counts no more.
    closed: AtomicBool,
    rate: Box<dyn Fn(f64) -> f64 + Sync + 'a>,
}

/// Lets the worker's thread end however the calling one does: it waits for what that counts.
struct CloseOnDrop<'w, 'a>(&'w NetworkWorker<'a>);

impl Drop for CloseOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        self.0.closed.store(true, Ordering::Release);
    }
}

/// What the worker's thread asks of the calling one.
pub(super) enum Ask {
    /// To send a request to another worker.
    Request { to: usize, step: u64, message: Message },
    /// To count a gradient that is applied.
    Step(Score),
}

/// What came of a request, if anything did.
pub(super) struct Reply {
    pub(super) step: u64,
    pub(super) message: Option<Message>,
}

/// What an exchange adds to the worker that began it.
struct Change {
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
    let id = transport.placement().own().start;
    let (state, updates) = SharedState::new(workers, id, &session.progress);
    let worker = NetworkWorker {
        experiment,
        algorithm,
        id,
        neighbors: experiment.contacts(id),
        state,
        stop: AtomicBool::new(false),
        counted: AtomicU64::new(session.progress.round),
        closed: AtomicBool::new(false),
        rate: Box::new(session.rates()),
    };
    let (ask, asked) = mpsc::channel();
    let (reply, replies) = mpsc::channel();
    let mut handler = RequestHandler::new(&worker, transport, asked, reply);
    let mut next = ControlFlow::Continue;
    loop {
        match handler.transport.may_begin(0, next == ControlFlow::Stop)? {
            RoundStart::Wait => next = session.meanwhile(),
            RoundStart::Stop => return Ok(session.stop(&mut handler)),
            RoundStart::Go | RoundStart::Jump { .. } => break,
        }
    }
    let steps = session.progress.round..experiment.rounds();
    std::thread::scope(|scope| {
        match updates.into_iter().next().filter(|_| worker.trains()) {
            Some(update) => {
                let worker = &worker;
                scope.spawn(move || worker.work(steps, update, &ask, &replies));
            }
            None => drop(ask),
        }
        let _closes = CloseOnDrop(&worker);
        session.evaluates = worker.trains();
        let done = session.progress.round;
        count_steps(session, &mut handler, done, 1)
    })
}

impl<'a> NetworkWorker<'a> {
    /// Whether it has data: all have but a server.
    pub(super) fn trains(&self) -> bool {
        Some(self.id) != self.experiment.server
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WorkerState<'a>> {
        self.state.lock(self.id)
    }

    /// Computes gradient after gradient.
    fn work(
        &self,
        steps: std::ops::Range<u64>,
        update: &mut [f32],
        ask: &mpsc::Sender<Ask>,
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
            // In this process the worker is the first.
            let (context, optimizer) = (self.state.context, &mut slices(optimizer_state));
            let score = context.gradient(0, task, &model, statistics, update, optimizer);
            let Some(change) = self.exchange(step, update, ask, replies) else {
                return;
            };
            while self.counted.load(Ordering::Acquire) < step && !self.closed.load(Ordering::Acquire) {
                std::thread::sleep(POLL_INTERVAL);
            }
            let mut state = self.lock();
            let pairs = state.model.iter_mut().zip(change.model);
            pairs.for_each(|(x, difference)| *x += difference);
            state.scalar += change.scalar;
            state.keep(&local);
            drop(state);
            if ask.send(Ask::Step(score)).is_err() {
                return;
            }
        }
    }

    /// Exchanges with the partner that the algorithm names, if it can be reached; what that changes, unless nobody
    /// listens any more.
    fn exchange(
        &self,
        step: u64,
        update: &[f32],
        ask: &mpsc::Sender<Ask>,
        replies: &mpsc::Receiver<Reply>,
    ) -> Option<Change> {
        let (sent, scalar) = {
            let state = self.lock();
            (state.model.to_vec(), state.scalar)
        };
        let view = async_step(self.experiment, self.id, step, scalar);
        let mut reply = None;
        let partner = self.algorithm.partner(&view);
        if let Some(to) = partner {
            // What it sends does not depend on the other's scalar.
            let update_alone = self.algorithm.update(&view, Some((to, 1.0)));
            let own = update_alone.plans.iter().find(|plan| plan.worker == self.id);
            let numbers = own.map_or(vec![], |plan| outgoing(plan, &sent, update));
            let message = self.message(numbers, scalar);
            ask.send(Ask::Request { to, step, message }).ok()?;
            reply = self.wait_for_reply(step, replies).ok()?;
        }
        let known = partner.zip(reply.as_ref());
        let known = known.map(|(partner, reply)| (partner, reply.stats.scalar));
        let plans = self.algorithm.update(&view, known).plans;
        let remote = partner.zip(reply.map(|reply| reply.values));
        let (mut model, new_scalar) = self.updated(&plans, sent.clone(), update, remote);
        model.iter_mut().zip(&sent).for_each(|(x, old)| *x -= old);
        let scalar = new_scalar.map_or(0.0, |new| new - scalar);
        Some(Change { model, scalar })
    }

    /// What came of a request; an error when nobody listens any more.
    fn wait_for_reply(
        &self,
        step: u64,
        replies: &mpsc::Receiver<Reply>,
    ) -> Result<Option<Message>, mpsc::RecvTimeoutError> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match replies.recv_timeout(left) {
                Ok(reply) if reply.step == step => return Ok(reply.message),
                // Of an exchange that was given up.
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
                Err(closed) => return Err(closed),
            }
        }
    }

    pub(super) fn message(&self, numbers: Vec<f32>, scalar: f64) -> Message {
        Message {
            from: self.id,
            round: 0,
            exchange: 0,
            stats: WorkerStats { loss: None, degree: self.neighbors.len(), scalar },
            whole: true,
            fresh: false,
            values: numbers.into(),
        }
    }

    /// This worker's model and scalar after an exchange with at most one other.
    pub(super) fn updated(
        &self,
        plans: &[WorkerPlan],
        mut model: Vec<f32>,
        update: &[f32],
        other: Option<(usize, Buffer)>,
    ) -> (Vec<f32>, Option<f64>) {
        let Some(own) = plans.iter().find(|plan| plan.worker == self.id) else {
            return (model, None);
        };
        let rows = vec![WorkerVectors { model: &mut model, step: update, state_vectors: vec![] }];
        // This worker is the engine's only row; what the other sent comes behind it.
        let row_of = |worker| Ok::<_, Infallible>(RowIndex(usize::from(worker != self.id)));
        let Ok(row_plan) = own.clone().at_rows(row_of);
        let mut row_plans = vec![row_plan];
        let remote = |(_, numbers)| RemoteRow { messages: vec![numbers] };
        let remote_rows: Vec<RemoteRow> = other.into_iter().map(remote).collect();
        row_plans.extend(remote_rows.iter().map(|remote| remote.part(RowIndex(1))));
        let options = MixOptions { single_threaded: true, ..Default::default() };
        exchange(rows, &remote_rows, &row_plans, options);
        (model, own.plan.scalar)
    }
}

/// What a plan's worker sends, made of a model and a step.
pub(super) fn outgoing(plan: &WorkerPlan, model: &[f32], update: &[f32]) -> Vec<f32> {
    let message = plan.messages.first().cloned();
    let message = message.unwrap_or_else(Outgoing::model);
    let mut model = model.to_vec();
    let vectors = WorkerVectors { model: &mut model, step: update, state_vectors: vec![] };
    vectors.outgoing(&message, &[])
}
