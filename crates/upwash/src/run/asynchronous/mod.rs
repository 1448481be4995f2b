//! Asynchronous runs: a worker that has computed a gradient exchanges with at most one other worker, and no worker
//! waits for all others.
//!
//! One runtime counts gradients, ends rounds and epochs, and reports. [`AsyncWorkers`] hides where the workers are and
//! how time passes: events in virtual time, threads of this process, or processes on a network. As many gradients as
//! there are workers that train count as a round.

mod network;
mod request_handler;
mod shared_state;
mod state;
mod threads;
mod virtual_time;

pub use state::{Activity, AsyncState};

use super::evaluation::Replicas;
use super::session::{Session, known_losses};
use super::{ControlFlow, RunError, Status};
use crate::algorithm::{AsyncStep, Asynchronous};
use crate::config::Execution;
use crate::engine::{ConcurrentWorkers, Engine, Score};
use crate::experiment::Experiment;
use crate::ids::WorkerId;
use crate::transport::Transport;

/// A completed step: a gradient that was applied.
pub(super) struct CompletedStep {
    worker: WorkerId,
    /// The worker's partner in the exchange.
    partner: Option<WorkerId>,
    score: Score,
    /// The simulated traffic of the exchange.
    messages: u64,
    bytes: u64,
    /// The worker's simulated time, if time is simulated.
    time: Option<f64>,
}

/// When a run ends after a request to stop.
enum Stop {
    /// At once.
    Now,
    /// When all workers have ended, one after the other.
    WhenAllHaveEnded,
}

/// The workers of an asynchronous run.
trait AsyncWorkers: Replicas {
    /// Waits for the next completed step; `None` when all workers have ended.
    fn next_step(&mut self, session: &mut Session<'_>) -> Result<Option<CompletedStep>, RunError>;

    /// Called before a round ends: adds to the progress what a checkpoint needs.
    fn before_round_ends(&mut self, _session: &mut Session<'_>) -> Result<(), RunError> {
        Ok(())
    }

    /// Called after a round has ended, with the number of rounds so far.
    fn rounds_counted(&mut self, _rounds: u64) {}

    /// Reports to other processes that a worker's loss diverged.
    fn report_divergence(&mut self, _worker: WorkerId, _round: u64) -> Result<(), RunError> {
        Ok(())
    }

    /// Requests the end of the run.
    fn stop(&mut self) -> Stop {
        Stop::Now
    }

    /// Called when all workers have ended. Returns how the run ends.
    fn end(&mut self, session: &mut Session<'_>) -> Result<Status, RunError>;
}

/// Runs an asynchronous algorithm in one process, as configured, or across the processes of a transport.
pub(super) fn run(
    session: &mut Session<'_>,
    algorithm: &dyn Asynchronous,
    engine: &mut dyn Engine,
    transport: &mut dyn Transport,
) -> Result<Status, RunError> {
    let placement = transport.placement().clone();
    let execution = session.experiment.config.training.asynchronous;
    if placement.simulates_costs() && execution == Execution::VirtualTime {
        return virtual_time::run(session, algorithm, engine);
    }
    if session.experiment.config.training.keep_best {
        return Err(RunError::KeepBest(algorithm.display_name()));
    }
    if placement.has_others() && placement.own().len() != 1 {
        return Err(RunError::OneWorkerPerProcess(algorithm.display_name()));
    }
    let Some(concurrent) = engine.concurrent() else {
        return Err(RunError::Threads);
    };
    let workers: ConcurrentWorkers<'_> = concurrent.split();
    match placement.has_others() {
        true => network::run(session, algorithm, workers, transport),
        false => threads::run(session, algorithm, workers, &placement),
    }
}

/// Counts gradients until there are enough or the run ends early. Starts at `done`; `per_round` gradients make a round.
fn count_steps(
    session: &mut Session<'_>,
    workers: &mut impl AsyncWorkers,
    mut done: u64,
    per_round: u64,
) -> Result<Status, RunError> {
    session.begin_round();
    while let Some(step) = workers.next_step(session)? {
        let (worker, loss) = (step.worker, step.score.loss);
        session.add_score(worker, step.score);
        session.progress.losses[worker] = Some(loss);
        if let Some(partner) = step.partner {
            session.record_link(worker, partner);
        }
        let sent = &mut session.progress.sent;
        sent.messages_sent += step.messages;
        sent.bytes_sent += step.bytes;
        if let Some(time) = step.time {
            sent.simulated_seconds = sent.simulated_seconds.max(time);
            session.progress.clocks[worker] = time;
        }
        if !session.is_sane(Some(loss)) {
            workers.report_divergence(worker, session.progress.round)?;
            let losses = known_losses(&session.progress.losses);
            return Ok(session.diverged(worker, losses, workers));
        }
        done += 1;
        // A resumed run may have applied more gradients than its rounds account for.
        while done >= (session.progress.round + 1) * per_round {
            workers.before_round_ends(session)?;
            let losses = known_losses(&session.progress.losses);
            let control_flow = session.end_round(losses, workers)?;
            workers.rounds_counted(session.progress.round);
            if session.is_over() {
                break;
            }
            if control_flow == ControlFlow::Stop && matches!(workers.stop(), Stop::Now) {
                return Ok(session.stop(workers));
            }
            session.begin_round();
        }
    }
    workers.end(session)
}

/// A worker's step, as an algorithm sees it.
fn async_step(experiment: &Experiment, worker: WorkerId, step: u64, scalar: f64) -> AsyncStep<'_> {
    AsyncStep {
        worker,
        step,
        neighbors: experiment.graph.neighbors(worker.0),
        server: experiment.server,
        training: experiment.training_workers().len(),
        scalar,
        seed: experiment.config.seed,
    }
}
