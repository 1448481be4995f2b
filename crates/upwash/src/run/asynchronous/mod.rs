//! Runs without rounds: a worker that has a gradient exchanges with at most one other, and nobody waits for all.
//!
//! One runtime counts gradients, ends rounds and epochs and reports. Where the workers are and what time it is, is behind
//! [`AsyncWorkers`]: events in virtual time, threads of this process, or processes on a network. As many gradients as
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
use crate::transport::Transport;

/// A gradient that was applied.
pub(super) struct CompletedStep {
    worker: usize,
    /// With whom the worker has exchanged.
    partner: Option<usize>,
    score: Score,
    /// What the exchange has sent, where nothing really travels.
    messages: u64,
    bytes: u64,
    /// The worker's simulated time, if it has one.
    time: Option<f64>,
}

/// What becomes of a run that is to stop.
enum Stop {
    /// It stops here.
    Now,
    /// Its workers end one after the other.
    WhenAllHaveEnded,
}

/// The workers of a run without rounds.
trait AsyncWorkers: Replicas {
    /// Waits for the next gradient that is applied; none when all workers have ended.
    fn next_step(&mut self, session: &mut Session<'_>) -> Result<Option<CompletedStep>, RunError>;

    /// A round is about to end: the progress must have all that a checkpoint needs.
    fn before_round_ends(&mut self, _session: &mut Session<'_>) -> Result<(), RunError> {
        Ok(())
    }

    /// A round has ended, and so many have in all.
    fn rounds_counted(&mut self, _rounds: u64) {}

    /// A worker's loss is not sane: others should know.
    fn leave(&mut self, _worker: usize, _round: u64) -> Result<(), RunError> {
        Ok(())
    }

    /// Somebody asks for an end.
    fn stop(&mut self) -> Stop {
        Stop::Now
    }

    /// All workers have ended: how the run ends.
    fn end(&mut self, session: &mut Session<'_>) -> Result<Status, RunError>;
}

/// Runs an asynchronous algorithm as it was configured, or between the processes of a transport.
pub(super) fn run(
    session: &mut Session<'_>,
    algorithm: &dyn Asynchronous,
    engine: &mut dyn Engine,
    transport: &mut dyn Transport,
) -> Result<Status, RunError> {
    let placement = transport.placement();
    let execution = session.experiment.config.training.asynchronous;
    if placement.is_whole() && execution == Execution::VirtualTime {
        return virtual_time::run(session, algorithm, engine);
    }
    if !placement.is_whole() && placement.own().len() != 1 {
        return Err(RunError::OneEach(algorithm.display_name()));
    }
    let Some(concurrent) = engine.concurrent() else {
        return Err(RunError::Threads);
    };
    let workers: ConcurrentWorkers<'_> = concurrent.split();
    match placement.is_whole() {
        true => threads::run(session, algorithm, workers),
        false => network::run(session, algorithm, workers, transport),
    }
}

/// Counts gradients until there are enough, or something ends the run. So many are done, and make a round.
fn count_steps(
    session: &mut Session<'_>,
    workers: &mut impl AsyncWorkers,
    mut done: u64,
    per_round: u64,
) -> Result<Status, RunError> {
    session.begin_round();
    while let Some(step) = workers.next_step(session)? {
        let (worker, loss) = (step.worker, step.score.loss);
        session.count(worker, step.score);
        session.progress.losses[worker] = Some(loss);
        if let Some(partner) = step.partner {
            session.note_link(worker, partner);
        }
        let sent = &mut session.progress.sent;
        sent.messages_sent += step.messages;
        sent.bytes_sent += step.bytes;
        if let Some(time) = step.time {
            sent.simulated_seconds = sent.simulated_seconds.max(time);
            session.progress.clocks[worker] = time;
        }
        if !session.is_sane(loss) {
            workers.leave(worker, session.progress.round)?;
            let losses = known_losses(&session.progress.losses);
            return Ok(session.diverged(worker, losses, workers));
        }
        done += 1;
        // More may have been applied than there are rounds, if the run was resumed.
        while done >= (session.progress.round + 1) * per_round {
            workers.before_round_ends(session)?;
            let losses = known_losses(&session.progress.losses);
            let next = session.end_round(losses, workers)?;
            workers.rounds_counted(session.progress.round);
            if session.is_over() {
                break;
            }
            if next == ControlFlow::Stop && matches!(workers.stop(), Stop::Now) {
                return Ok(session.stop(workers));
            }
            session.begin_round();
        }
    }
    workers.end(session)
}

/// A worker's step, as an algorithm sees it.
fn async_step(experiment: &Experiment, worker: usize, step: u64, scalar: f64) -> AsyncStep<'_> {
    AsyncStep {
        worker,
        step,
        neighbors: experiment.graph.neighbors(worker),
        server: experiment.server,
        training: experiment.training_workers().len(),
        scalar,
        seed: experiment.config.seed,
    }
}
