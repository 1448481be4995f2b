//! Asynchronous runs between processes: every process has one worker, and nobody waits for all.
//!
//! One thread computes gradients. The calling thread answers whoever wants to meet this worker, passes
//! on what the worker itself asks of others, counts, tests and tells. A meeting is a message there and
//! a message back. The worker goes on being met while it waits for its answer: what becomes of it is
//! computed from the model that it sent, and the difference is added to the one it has by then, so that
//! nothing that others gave it is lost, and nobody can wait in a circle.

mod desk;

use super::RunError;
use super::session::Session;
use super::team::Team;
use super::threads::lock;
use super::{ControlFlow, Status};
use crate::algorithm::{AsyncStep, Asynchronous, Outgoing, WorkerPlan, WorkerStats};
use crate::engine::{ConcurrentWorkers, EngineContext, WorkerSlices};
use crate::engine::{GradientTask, Score};
use crate::engine::{MixOptions, RemoteRow, WorkerVectors, exchange};
use crate::experiment::Experiment;
use crate::transport::{Buffer, Message, RoundStart};
use desk::Desk;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// Who is not answered for so long goes on alone.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a thread that waits for the other sleeps before it looks up.
const GLANCE: Duration = Duration::from_micros(200);

/// This process's worker, for both threads: everything as of the same step.
struct Open<'a> {
    model: &'a mut [f32],
    statistics: &'a mut [f32],
    velocity: &'a mut [f32],
    number: f64,
}

struct Field<'a> {
    experiment: &'a Experiment,
    algorithm: &'a dyn Asynchronous,
    shared: &'a EngineContext,
    worker: usize,
    neighbors: Vec<usize>,
    open: Mutex<Open<'a>>,
    stop: AtomicBool,
    /// Gradients that the calling thread has counted: the worker's next one is put into its model only after that, so
    /// that a checkpoint in between has as many as it says.
    counted: AtomicU64,
    /// The calling thread counts no more.
    closed: AtomicBool,
    rate: Box<dyn Fn(f64) -> f64 + Sync + 'a>,
}

/// Lets the worker's thread end however the calling one does: it waits for what that counts.
struct CloseOnDrop<'f, 'a>(&'f Field<'a>);

impl Drop for CloseOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        self.0.closed.store(true, Ordering::Release);
    }
}

/// What the worker's thread tells the calling one.
enum Told {
    /// It wants to meet someone: its model and number as they are.
    Request {
        to: usize,
        step: u64,
        message: Message,
    },
    /// A gradient is applied.
    Step(Score),
}

/// What a meeting adds to the worker that began it.
struct Change {
    model: Vec<f32>,
    number: f64,
}

impl Open<'_> {
    fn add(&mut self, change: Change) {
        let pairs = self.model.iter_mut().zip(change.model);
        pairs.for_each(|(x, difference)| *x += difference);
        self.number += change.number;
    }
}

/// What came of a request, if anything did.
struct Answer {
    step: u64,
    message: Option<Message>,
}

pub(super) fn run(
    session: &mut Session<'_>,
    algorithm: &dyn Asynchronous,
    team: &mut Team<'_>,
) -> Result<Status, RunError> {
    let experiment = session.experiment;
    let own = team.placement.own();
    if own.len() != 1 {
        return Err(RunError::OneEach(algorithm.display_name()));
    }
    let worker = own.start;
    let mut next = ControlFlow::Continue;
    loop {
        match team.transport.may_begin(0, next == ControlFlow::Stop)? {
            RoundStart::Wait => next = session.meanwhile(),
            RoundStart::Stop => return Ok(session.stop(team)),
            RoundStart::Go | RoundStart::Jump { .. } => break,
        }
    }
    let transport = &mut *team.transport;
    let Some(ConcurrentWorkers { shared, workers }) = team.engine.lanes() else {
        return Err(RunError::Threads);
    };
    let Some(WorkerSlices {
        model,
        statistics,
        update,
        velocity,
        ..
    }) = workers.into_iter().next()
    else {
        return Err(RunError::Threads);
    };
    let field = Field {
        experiment,
        algorithm,
        shared,
        worker,
        neighbors: experiment.acquaintances(worker),
        open: Mutex::new(Open {
            model,
            statistics,
            velocity,
            number: session.progress.numbers[worker],
        }),
        stop: AtomicBool::new(false),
        counted: AtomicU64::new(session.progress.round),
        closed: AtomicBool::new(false),
        rate: Box::new(session.rates()),
    };
    let (first, last) = (session.progress.round, experiment.rounds());
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        if field.trains() {
            let field = &field;
            scope.spawn(move || field.work(first..last, update, &tell, &answers));
        } else {
            drop(tell);
        }
        let _closes = CloseOnDrop(&field);
        Desk::new(&field, transport, answer).serve(session, &told)
    })
}

impl Field<'_> {
    /// Whether it has data: all have but a server.
    fn trains(&self) -> bool {
        Some(self.worker) != self.experiment.server
    }

    fn turn(&self, step: u64, number: f64) -> AsyncStep<'_> {
        AsyncStep {
            worker: self.worker,
            step,
            neighbors: self.experiment.graph.neighbors(self.worker),
            server: self.experiment.server,
            training: self.experiment.training_workers().len(),
            number,
            seed: self.experiment.config.seed,
        }
    }

    /// GradientTask after gradient.
    fn work(
        &self,
        steps: std::ops::Range<u64>,
        update: &mut [f32],
        tell: &mpsc::Sender<Told>,
        answers: &mpsc::Receiver<Answer>,
    ) {
        let (mut statistics, mut velocity) = {
            let open = lock(&self.open);
            (open.statistics.to_vec(), open.velocity.to_vec())
        };
        for step in steps {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let snapshot = lock(&self.open).model.to_vec();
            let turn = GradientTask {
                batch: step,
                rate: (self.rate)(step as f64),
            };
            // In this process the worker is the first.
            let score =
                self.shared
                    .gradient(0, turn, &snapshot, &mut statistics, update, &mut velocity);
            let Some(met) = self.meet(step, update, tell, answers) else {
                return;
            };
            while self.counted.load(Ordering::Acquire) < step
                && !self.closed.load(Ordering::Acquire)
            {
                std::thread::sleep(GLANCE);
            }
            let mut open = lock(&self.open);
            open.add(met);
            open.statistics.copy_from_slice(&statistics);
            open.velocity.copy_from_slice(&velocity);
            drop(open);
            if tell.send(Told::Step(score)).is_err() {
                return;
            }
        }
    }

    /// Meets whom the algorithm says, if it can be reached; what that changes, unless nobody listens any
    /// more.
    fn meet(
        &self,
        step: u64,
        update: &[f32],
        tell: &mpsc::Sender<Told>,
        answers: &mpsc::Receiver<Answer>,
    ) -> Option<Change> {
        let (sent, number) = {
            let open = lock(&self.open);
            (open.model.to_vec(), open.number)
        };
        let turn = self.turn(step, number);
        let mut reply = None;
        let partner = self.algorithm.partner(&turn);
        if let Some(to) = partner {
            // What it sends does not depend on the other's number.
            let meeting = self.algorithm.meet(&turn, Some((to, 1.0)));
            let part = meeting.parts.iter().find(|part| part.worker == self.worker);
            let numbers = part.map_or(vec![], |part| sent_by(part, &sent, update));
            let message = self.message(numbers, number);
            tell.send(Told::Request { to, step, message }).ok()?;
            let deadline = Instant::now() + PATIENCE;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match answers.recv_timeout(left) {
                    Ok(answer) if answer.step == step => {
                        reply = answer.message;
                        break;
                    }
                    // Of a meeting that was given up.
                    Ok(_) => {}
                    Err(mpsc::RecvTimeoutError::Timeout) => break,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                }
            }
        }
        let known = partner.zip(reply.as_ref());
        let known = known.map(|(partner, reply)| (partner, reply.report.number));
        let meeting = self.algorithm.meet(&turn, known);
        let remote = partner
            .zip(reply)
            .map(|(partner, reply)| (partner, reply.numbers));
        let (mut model, new_number) = self.after(&meeting.parts, sent.clone(), update, remote);
        model.iter_mut().zip(&sent).for_each(|(x, old)| *x -= old);
        let number = new_number.map_or(0.0, |new| new - number);
        Some(Change { model, number })
    }

    fn message(&self, numbers: Vec<f32>, number: f64) -> Message {
        Message {
            from: self.worker,
            round: 0,
            exchange: 0,
            report: WorkerStats {
                loss: None,
                degree: self.neighbors.len(),
                number,
            },
            whole: true,
            fresh: false,
            numbers: numbers.into(),
        }
    }

    /// What becomes of this worker's model and number in a meeting with at most one other.
    fn after(
        &self,
        parts: &[WorkerPlan],
        mut model: Vec<f32>,
        update: &[f32],
        other: Option<(usize, Buffer)>,
    ) -> (Vec<f32>, Option<f64>) {
        let Some(part) = parts.iter().find(|part| part.worker == self.worker) else {
            return (model, None);
        };
        let rows = vec![WorkerVectors {
            model: &mut model,
            step: update,
            state_vectors: vec![],
        }];
        let mut all = vec![part.clone()];
        let mut remote_rows = Vec::new();
        if let Some((worker, numbers)) = other {
            let messages = vec![numbers];
            let remote = RemoteRow { messages };
            all.push(remote.part(worker));
            remote_rows.push(remote);
        }
        let options = MixOptions {
            single_threaded: true,
            ..Default::default()
        };
        exchange(rows, &remote_rows, &all, options);
        (model, part.plan.number)
    }
}

/// The message of a part, made of a model and a step.
fn sent_by(part: &WorkerPlan, model: &[f32], update: &[f32]) -> Vec<f32> {
    let message = part
        .messages
        .first()
        .cloned()
        .unwrap_or_else(Outgoing::model);
    let mut model = model.to_vec();
    let row = WorkerVectors {
        model: &mut model,
        step: update,
        state_vectors: vec![],
    };
    row.outgoing(&message, &[])
}
