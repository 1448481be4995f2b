//! Asynchronous workers on separate threads. None of them waits for all others.
//!
//! A worker copies its model and computes a gradient without blocking others. Then it locks its own model and its
//! partner's for as long as it takes to mix them. It locks in the order of worker ids, so that workers cannot wait for
//! each other in a cycle. The calling thread counts steps, evaluates copies of the models, and reports. The workers do
//! not wait for it either.

use super::super::costs::bytes;
use super::super::evaluation::Replicas;
use super::super::session::Session;
use super::super::{Progress, RunError, Snapshot, Status};
use super::shared_state::{LocalState, SharedState, lock, slices};
use super::{AsyncState, AsyncWorkers, CompletedStep, async_step, count_steps};
use crate::algorithm::{Asynchronous, PairwiseUpdate, RowPlan, WorkerPlan};
use crate::clock::Transfer;
use crate::engine::{ConcurrentWorkers, GradientTask, MixOptions, Score, Split, WorkerVectors, exchange};
use crate::experiment::Experiment;
use crate::ids::{RowIndex, WorkerId};
use crate::transport::Placement;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, mpsc};
use std::time::Duration;

/// How often a worker that waits for others checks whether the run has been stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What all threads share.
struct Threads<'a> {
    experiment: &'a Experiment,
    algorithm: &'a dyn Asynchronous,
    state: SharedState<'a>,
    /// The number of gradients that were begun, and the total number.
    begun: AtomicU64,
    total: u64,
    stop: AtomicBool,
    /// The number of gradients that each worker has applied, counted while its state is locked. `stepped` notifies
    /// workers that wait for others.
    steps: Mutex<Vec<u64>>,
    stepped: Condvar,
    training: Vec<WorkerId>,
    rate: Box<dyn Fn(u64) -> f64 + Sync + 'a>,
}

/// Stops all workers if a thread panics.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

pub(super) fn run(
    session: &mut Session<'_>,
    algorithm: &dyn Asynchronous,
    workers: ConcurrentWorkers<'_>,
    placement: &Placement,
) -> Result<Status, RunError> {
    let experiment = session.experiment;
    let (state, updates) = SharedState::new(workers, placement.clone(), &session.progress);
    let steps = session.progress.asynchronous.take();
    let steps = steps.map_or_else(|| vec![0; experiment.workers()], |state| state.steps);
    let done: u64 = steps.iter().sum();
    let training = session.training.clone();
    let (per_round, rates) = (training.len() as u64, session.rates());
    let threads = Threads {
        experiment,
        algorithm,
        state,
        begun: AtomicU64::new(done),
        total: experiment.rounds().saturating_mul(per_round),
        stop: AtomicBool::new(false),
        steps: Mutex::new(steps),
        stepped: Condvar::new(),
        training,
        rate: Box::new(move |begun| rates(begun as f64 / per_round as f64)),
    };
    std::thread::scope(|scope| {
        let (sender, completed) = mpsc::channel();
        for (worker, update) in placement.own().zip(updates) {
            if Some(worker) == experiment.server {
                continue;
            }
            let (threads, sender) = (&threads, sender.clone());
            scope.spawn(move || {
                let _guard = StopOnPanic(&threads.stop);
                threads.work(worker, update, &sender);
            });
        }
        drop(sender);
        let mut counter = Counter { threads: &threads, completed };
        let status = count_steps(session, &mut counter, done, per_round);
        threads.stop.store(true, Ordering::Relaxed);
        threads.stepped.notify_all();
        status
    })
}

impl Threads<'_> {
    /// Computes and applies one gradient after another, until all workers together have begun enough.
    fn work(&self, worker: WorkerId, update: &mut [f32], completed: &mpsc::Sender<CompletedStep>) {
        let mut model = vec![0.0; update.len()];
        let mut local = self.state.lock(worker).local();
        while self.may_begin(worker) {
            let begun = self.begun.fetch_add(1, Ordering::Relaxed);
            if begun >= self.total {
                return;
            }
            model.copy_from_slice(self.state.lock(worker).model);
            let step = lock(&self.steps)[worker];
            let task = GradientTask { batch: step, rate: (self.rate)(begun) };
            let LocalState { statistics, optimizer_state } = &mut local;
            let (context, optimizer) = (self.state.context, &mut slices(optimizer_state));
            let score = context.gradient(self.state.row_of(worker).0, task, &model, statistics, update, optimizer);
            let step = self.exchange(worker, step, score, update, &local);
            self.stepped.notify_all();
            // The receiver is gone: the run is over.
            if completed.send(step).is_err() {
                return;
            }
            // If there are more workers than cores, a worker that used up its time slice would be far ahead of the
            // others when they get theirs.
            std::thread::yield_now();
        }
    }

    /// Waits while the worker is too far ahead of the slowest. Returns whether there is anything left to do.
    fn may_begin(&self, worker: WorkerId) -> bool {
        let is_stopped = || self.stop.load(Ordering::Relaxed);
        let Some(staleness) = self.algorithm.staleness() else {
            return !is_stopped();
        };
        let mut steps = lock(&self.steps);
        loop {
            let slowest = self.training.iter().map(|&i| steps[i]).min().unwrap_or(0);
            // Once all gradients have begun, slower workers make no more progress, so do not wait for them.
            let is_finished = self.begun.load(Ordering::Relaxed) >= self.total;
            if is_stopped() || is_finished {
                return false;
            }
            if steps[worker] < slowest + staleness {
                return true;
            }
            let waited = self.stepped.wait_timeout(steps, POLL_INTERVAL);
            steps = waited.map_or_else(|error| error.into_inner().0, |(steps, _)| steps);
        }
    }

    /// Applies a worker's step, together with the exchange with its partner.
    fn exchange(&self, worker: WorkerId, step: u64, score: Score, update: &[f32], local: &LocalState) -> CompletedStep {
        let (experiment, algorithm) = (self.experiment, self.algorithm);
        let mut view = async_step(experiment, worker, step, 1.0);
        let partner = algorithm.partner(&view);
        let mut participants: Vec<WorkerId> = [Some(worker), partner].into_iter().flatten().collect();
        participants.sort_unstable();
        let mut states: Vec<_> = participants.iter().map(|&i| self.state.lock(i)).collect();
        let index_of = |worker: WorkerId| participants.binary_search(&worker).unwrap_or(0);
        view.scalar = states[index_of(worker)].scalar;
        let known_partner = partner.map(|partner| (partner, states[index_of(partner)].scalar));
        let PairwiseUpdate { mut plans } = algorithm.update(&view, known_partner);
        let messages = PairwiseUpdate::message_count(plans.len(), algorithm.pair_exchange());
        plans.sort_unstable_by_key(|plan| plan.worker);
        let max_bytes = plans.iter().map(|plan| bytes(&plan.messages, update.len()));
        let max_bytes = max_bytes.max().unwrap_or(0);
        let own = &mut states[index_of(worker)];
        own.store_local(local);
        own.clock += experiment.clock.gradient(worker, step);
        if let Some(to) = partner {
            let transfer = Transfer { from: worker, to, bytes: max_bytes };
            let mut ports = [worker, to].map(|i| states[index_of(i)].ports);
            let (time, kind) = (states[index_of(worker)].clock, algorithm.pair_exchange());
            let ends = experiment.clock.pair_exchange(&mut ports, time, kind, &transfer);
            states[index_of(worker)].clock = ends;
            for (i, ports) in [worker, to].into_iter().zip(ports) {
                states[index_of(i)].ports = ports;
            }
        }
        let time = Some(states[index_of(worker)].clock);
        for WorkerPlan { worker, plan, .. } in &plans {
            if let Some(scalar) = plan.scalar {
                states[index_of(*worker)].scalar = scalar;
            }
        }
        let takes_part = |worker: WorkerId| plans.iter().any(|plan| plan.worker == worker);
        let rows = states.iter_mut().zip(&participants).filter(|(_, i)| takes_part(**i));
        let rows = rows.map(|(state, &i)| WorkerVectors {
            model: &mut *state.model,
            step: if i == worker { update } else { &[] },
            state_vectors: vec![],
        });
        let options = MixOptions {
            server: experiment.server.map(RowIndex::in_one_process),
            round: step,
            single_threaded: true,
            ..Default::default()
        };
        let row_plans: Vec<RowPlan> = plans.iter().cloned().map(WorkerPlan::in_one_process).collect();
        exchange(rows.collect(), &[], &row_plans, options);
        lock(&self.steps)[worker] += 1;
        CompletedStep { worker, partner, score, messages, bytes: messages * max_bytes, time }
    }
}

/// Counts steps on the calling thread.
struct Counter<'t, 'a> {
    threads: &'t Threads<'a>,
    completed: mpsc::Receiver<CompletedStep>,
}

impl AsyncWorkers for Counter<'_, '_> {
    fn next_step(&mut self, session: &mut Session<'_>) -> Result<Option<CompletedStep>, RunError> {
        match session.is_over() {
            true => Ok(None),
            false => Ok(self.completed.recv().ok()),
        }
    }

    fn end(&mut self, session: &mut Session<'_>) -> Result<Status, RunError> {
        let round = session.progress.round;
        Ok(match session.is_over() {
            true => Status::Finished,
            // A worker has panicked. The scope propagates the panic.
            false => Status::Interrupted { round },
        })
    }
}

impl Replicas for Counter<'_, '_> {
    fn score(&mut self, worker: WorkerId, split: Split) -> Result<Option<Score>, RunError> {
        Ok(self.threads.state.score(worker, split))
    }

    fn score_estimated(&mut self, worker: WorkerId) -> Result<Option<Score>, RunError> {
        Ok(self.threads.state.score_estimated(worker))
    }

    fn consensus_distance(&mut self, workers: &[WorkerId]) -> Result<f64, RunError> {
        Ok(self.threads.state.consensus_distance(workers))
    }

    fn snapshot(&mut self, progress: &Progress) -> Result<Snapshot, RunError> {
        let threads = self.threads;
        Ok(threads.state.snapshot(progress, |progress, states| {
            progress.asynchronous = Some(AsyncState {
                steps: lock(&threads.steps).clone(),
                ports: states.iter().map(|state| state.ports).collect(),
                ..AsyncState::new(states.len())
            });
        }))
    }
}
