//! Asynchronous runs for real: a thread for every worker, none of which waits for all.
//!
//! A worker copies its model, computes a gradient with nobody held up, and then takes its own model
//! and that of whom it meets, in the order of their numbers (so that no ring of workers can wait for
//! each other), for as long as it takes to mix them. The calling thread counts, tests copies of the
//! models, and tells; the workers do not wait for it either.

use super::RunError;
use super::costs::bytes;
use super::session::{Models, Session};
use super::virtual_time::AsyncState;
use super::{ControlFlow, Progress, Snapshot, Status};
use crate::algorithm::{AsyncStep, Asynchronous, WorkerPlan};
use crate::clock::Transfer;
use crate::engine::{ConcurrentWorkers, EngineContext, WorkerSlices};
use crate::engine::{Engine, GradientTask, Score, Split};
use crate::engine::{MixOptions, WorkerVectors, exchange};
use crate::experiment::Experiment;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, mpsc};
use std::time::Duration;

/// How often someone who waits looks up.
const GLANCE: Duration = Duration::from_millis(20);

/// A worker's vectors that others may touch.
struct Open<'a> {
    model: &'a mut [f32],
    statistics: &'a mut [f32],
    /// Its optimizer's velocity, as of its last step that is in the model.
    velocity: &'a mut [f32],
    /// The algorithm's number.
    number: f64,
    /// Its clock, and until when it is sending and receiving: simulated seconds.
    clock: f64,
    ports: [f64; 2],
}

/// What all threads see.
struct Field<'a> {
    experiment: &'a Experiment,
    algorithm: &'a dyn Asynchronous,
    shared: &'a EngineContext,
    rows: Vec<Mutex<Open<'a>>>,
    /// Gradients that were begun.
    begun: AtomicU64,
    /// Gradients that there shall be.
    total: u64,
    stop: AtomicBool,
    /// Gradients that each has applied, counted while its row is held; and a bell for who waits for
    /// others. Rows are taken first.
    steps: Mutex<Vec<u64>>,
    bell: Condvar,
    training: Vec<usize>,
    rate: Box<dyn Fn(u64) -> f64 + Sync + 'a>,
}

/// What a worker tells when it has met.
struct News {
    worker: usize,
    partner: Option<usize>,
    score: Score,
    messages: u64,
    bytes: u64,
    /// Its clock.
    clock: f64,
}

/// Stops everyone, however a thread ends before its time.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked has stopped everyone: what is left is to get to the end.
    mutex.lock().unwrap_or_else(|error| error.into_inner())
}

pub(super) fn run(
    session: &mut Session<'_>,
    algorithm: &dyn Asynchronous,
    engine: &mut dyn Engine,
) -> Result<Status, RunError> {
    let experiment = session.experiment;
    let workers = experiment.workers();
    let flight = session.progress.flight.take();
    let flight = flight.unwrap_or_else(|| AsyncState::new(workers));
    let Some(ConcurrentWorkers {
        shared,
        workers: lanes,
    }) = engine.lanes()
    else {
        return Err(RunError::Threads);
    };
    let numbers = session.progress.numbers.clone();
    let (mut rows, mut updates) = (Vec::new(), Vec::new());
    for (lane, number) in lanes.into_iter().zip(numbers) {
        let WorkerSlices {
            model,
            statistics,
            update,
            velocity,
            ..
        } = lane;
        let worker = rows.len();
        rows.push(Mutex::new(Open {
            model,
            statistics,
            velocity,
            number,
            clock: session.progress.clocks[worker],
            ports: flight.ports[worker],
        }));
        // Steps that were in flight when a run was stopped are computed anew.
        updates.push(update);
    }
    let training = session.training.clone();
    let count = training.len() as u64;
    let rates = session.rates();
    let field = Field {
        experiment,
        algorithm,
        shared,
        rows,
        begun: AtomicU64::new(flight.done()),
        total: experiment.rounds().saturating_mul(count),
        stop: AtomicBool::new(false),
        steps: Mutex::new(flight.steps.clone()),
        bell: Condvar::new(),
        training,
        rate: Box::new(move |begun| rates(begun as f64 / count as f64)),
    };
    let status = std::thread::scope(|scope| {
        let (send, news) = mpsc::channel();
        for (worker, update) in updates.into_iter().enumerate() {
            if Some(worker) == experiment.server {
                continue;
            }
            let (field, send) = (&field, send.clone());
            scope.spawn(move || {
                let _guard = StopOnPanic(&field.stop);
                field.work(worker, update, &send);
            });
        }
        drop(send);
        let mut desk = Desk { field: &field };
        let mut listen = || -> Status {
            let mut done = flight.done();
            session.begin_round();
            for told in &news {
                let News {
                    worker,
                    partner,
                    score,
                    messages,
                    bytes,
                    clock,
                } = told;
                done += 1;
                session.count(worker, score);
                if let Some(partner) = partner {
                    session.met(worker, partner);
                }
                session.progress.losses[worker] = Some(score.loss);
                let known = session.progress.losses.iter();
                let losses: Vec<f64> = known.map(|loss| loss.unwrap_or(f64::NAN)).collect();
                let sent = &mut session.progress.sent;
                sent.messages_sent += messages;
                sent.bytes_sent += bytes;
                sent.simulated_seconds = sent.simulated_seconds.max(clock);
                if !session.is_sane(score.loss) {
                    return session.diverged(worker, losses, &mut desk);
                }
                // Of a run that goes on, more may have been applied than there are rounds.
                while done >= (session.progress.round + 1) * count {
                    let next = session.end_round(losses.clone(), &mut desk);
                    if session.is_over() {
                        return Status::Finished;
                    }
                    if next == ControlFlow::Stop {
                        return session.stop(&mut desk);
                    }
                    session.begin_round();
                }
            }
            // Every worker is gone before its time: one has panicked, and the scope says so.
            let round = session.progress.round;
            Status::Interrupted { round }
        };
        let status = listen();
        field.stop.store(true, Ordering::Relaxed);
        field.bell.notify_all();
        status
    });
    Ok(status)
}

impl Field<'_> {
    /// GradientTask after gradient, until there are enough of all.
    fn work(&self, worker: usize, update: &mut [f32], news: &mpsc::Sender<News>) {
        let mut snapshot = vec![0.0; update.len()];
        // What its next step makes of these is put into its row together with the step.
        let (mut statistics, mut velocity) = {
            let row = lock(&self.rows[worker]);
            (row.statistics.to_vec(), row.velocity.to_vec())
        };
        while self.may_begin(worker) {
            let begun = self.begun.fetch_add(1, Ordering::Relaxed);
            if begun >= self.total {
                return;
            }
            snapshot.copy_from_slice(lock(&self.rows[worker]).model);
            let step = lock(&self.steps)[worker];
            let turn = GradientTask {
                batch: step,
                rate: (self.rate)(begun),
            };
            let score = self.shared.gradient(
                worker,
                turn,
                &snapshot,
                &mut statistics,
                update,
                &mut velocity,
            );
            let kept = [&statistics[..], &velocity];
            let told = self.meet(worker, step, score, update, kept);
            self.bell.notify_all();
            // Nobody listens any more: the run is over.
            if news.send(told).is_err() {
                return;
            }
            // Where there are more workers than cores, one that goes on for as long as the system lets
            // it is far ahead of the others when they get their turn.
            std::thread::yield_now();
        }
    }

    /// Waits while the worker is too far ahead of the slowest; whether there is anything left to do.
    fn may_begin(&self, worker: usize) -> bool {
        let stopped = || self.stop.load(Ordering::Relaxed);
        let Some(staleness) = self.algorithm.staleness() else {
            return !stopped();
        };
        let mut steps = lock(&self.steps);
        loop {
            let slowest = self.training.iter().map(|&i| steps[i]).min().unwrap_or(0);
            // Who has been given its last gradient does not move on any more.
            let finished = self.begun.load(Ordering::Relaxed) >= self.total;
            if stopped() || finished {
                return false;
            }
            if steps[worker] < slowest + staleness {
                return true;
            }
            let waited = self.bell.wait_timeout(steps, GLANCE);
            steps = waited.map_or_else(|error| error.into_inner().0, |(steps, _)| steps);
        }
    }

    /// Mixes with whom the worker meets.
    fn meet(
        &self,
        worker: usize,
        step: u64,
        score: Score,
        update: &[f32],
        [statistics, velocity]: [&[f32]; 2],
    ) -> News {
        let experiment = self.experiment;
        let mut turn = AsyncStep {
            worker,
            step,
            neighbors: experiment.graph.neighbors(worker),
            server: experiment.server,
            training: self.training.len(),
            number: 1.0,
            seed: experiment.config.seed,
        };
        let partner = self.algorithm.partner(&turn);
        let mut present: Vec<usize> = [Some(worker), partner].into_iter().flatten().collect();
        present.sort_unstable();
        let mut rows: Vec<_> = present.iter().map(|&i| lock(&self.rows[i])).collect();
        let place = |worker: usize| present.binary_search(&worker).unwrap_or(0);
        turn.number = rows[place(worker)].number;
        let known = partner.map(|partner| (partner, rows[place(partner)].number));
        let meeting = self.algorithm.meet(&turn, known);
        let exchanged = self.algorithm.pair_exchange();
        let messages = meeting.messages(exchanged);
        let mut parts: Vec<WorkerPlan> = meeting.parts;
        parts.sort_unstable_by_key(|part| part.worker);
        let own = &mut rows[place(worker)];
        own.statistics.copy_from_slice(statistics);
        own.velocity.copy_from_slice(velocity);
        own.clock += experiment.clock.gradient(worker, step);
        let each = parts.iter().map(|part| bytes(&part.messages, update.len()));
        let longest = each.max().unwrap_or(0);
        if let Some(to) = partner {
            let (from, bytes) = (worker, longest);
            let mut ports = [from, to].map(|i| rows[place(i)].ports);
            let time = rows[place(from)].clock;
            let there = Transfer { from, to, bytes };
            let ends = experiment
                .clock
                .meeting(&mut ports, time, exchanged, &there);
            rows[place(from)].clock = ends;
            for (i, ports) in [from, to].into_iter().zip(ports) {
                rows[place(i)].ports = ports;
            }
        }
        for part in &parts {
            if let Some(number) = part.plan.number {
                rows[place(part.worker)].number = number;
            }
        }
        let clock = rows[place(worker)].clock;
        let mut taking_part = Vec::new();
        for (open, &i) in rows.iter_mut().zip(&present) {
            if parts.iter().any(|part| part.worker == i) {
                taking_part.push(WorkerVectors {
                    model: &mut *open.model,
                    step: if i == worker { update } else { &[] },
                    state_vectors: vec![],
                });
            }
        }
        let options = MixOptions {
            server: experiment.server,
            round: step,
            single_threaded: true,
            ..Default::default()
        };
        exchange(taking_part, &[], &parts, options);
        lock(&self.steps)[worker] += 1;
        News {
            worker,
            partner,
            score,
            messages,
            bytes: messages * longest,
            clock,
        }
    }
}

/// The calling thread's view of the models: copies of what they are now.
struct Desk<'f, 'a> {
    field: &'f Field<'a>,
}

impl Desk<'_, '_> {
    fn copies(&self) -> Vec<(Vec<f32>, Vec<f32>)> {
        let copy = |row: &Mutex<Open<'_>>| {
            let row = lock(row);
            (row.model.to_vec(), row.statistics.to_vec())
        };
        self.field.rows.iter().map(copy).collect()
    }
}

impl Models for Desk<'_, '_> {
    fn score(&mut self, worker: usize, part: Split) -> Option<Score> {
        let row = lock(&self.field.rows[worker]);
        let (model, statistics) = (row.model.to_vec(), row.statistics.to_vec());
        drop(row);
        let shared = self.field.shared;
        Some(shared.score_part(worker, part, &model, &statistics))
    }

    fn score_bare(&mut self, worker: usize) -> Option<Score> {
        let model = lock(&self.field.rows[worker]).model.to_vec();
        let shared = self.field.shared;
        let statistics = shared.estimate_statistics(worker, &model);
        Some(shared.score_part(worker, Split::Test, &model, &statistics))
    }

    fn consensus_distance(&mut self, workers: &[usize]) -> f64 {
        let copies = self.copies();
        let models: Vec<&[f32]> = workers.iter().map(|&i| &copies[i].0[..]).collect();
        crate::engine::consensus_distance(&models)
    }

    /// One snapshot: nobody mixes while all models are copied, and everything of a worker is as of the same
    /// step.
    fn snapshot(&mut self, progress: &Progress) -> Snapshot {
        let rows: Vec<_> = self.field.rows.iter().map(lock).collect();
        let mut progress = progress.clone();
        progress.numbers = rows.iter().map(|row| row.number).collect();
        progress.clocks = rows.iter().map(|row| row.clock).collect();
        progress.flight = Some(AsyncState {
            steps: lock(&self.field.steps).clone(),
            ports: rows.iter().map(|row| row.ports).collect(),
            ..AsyncState::new(rows.len())
        });
        let models: Vec<f32> = rows.iter().flat_map(|row| row.model.to_vec()).collect();
        let statistics = rows.iter().flat_map(|row| row.statistics.to_vec());
        let statistics: Vec<f32> = statistics.collect();
        let velocities = rows.iter().flat_map(|row| row.velocity.to_vec());
        let velocities: Vec<f32> = velocities.collect();
        let state = vec![
            ("updates".into(), vec![0.0; models.len()]),
            ("models".into(), models),
            ("velocities".into(), velocities),
            ("statistics".into(), statistics),
        ];
        (progress, state)
    }
}
