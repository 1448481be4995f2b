//! Runs in a directory: records events, writes checkpoints, serves control requests and writes the summary. One file,
//! because all of this happens in order between two rounds.

use super::directory::{DirectoryError, RunDirectory};
use super::{
    BestModel, ControlFlow, ControlRequest, Event, Observer, Progress, RunError, RunResult, Summary, TakeSnapshot,
    run_with,
};
use crate::config::Execution;
use crate::engine::Engine;
use crate::experiment::Experiment;
use crate::model::{Layout, Replica};
use crate::run::checkpoint::{Checkpoint, CheckpointError};
use crate::transport::Transport;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time between two checkpoints, however many rounds that is.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(600);
/// The first and the longest time between two attempts at a checkpoint for which there is no room.
const RETRY_INTERVALS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// How often a checkpoint that cannot be postponed is attempted.
const MAX_ATTEMPTS: u32 = 5;
/// How often the recorder polls for control requests.
const CONTROL_INTERVAL: Duration = Duration::from_millis(100);

/// Ends a run cleanly from any thread: after the current round, with a checkpoint.
///
/// ```
/// let stop = upwash::run::StopHandle::default();
/// let other = stop.clone();
/// other.stop();
/// assert!(stop.is_stopped());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Requests the end of the run.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end of the run has been requested.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The time that a run has taken, including the parts before it was resumed.
#[derive(Clone, Copy)]
struct Stopwatch {
    previous_seconds: f64,
    started: Instant,
}

impl Stopwatch {
    fn seconds(&self) -> f64 {
        self.previous_seconds + self.started.elapsed().as_secs_f64()
    }
}

/// The observer that records a run in its directory. Ends the run when recording fails or an end is requested.
pub struct Recorder<'a> {
    directory: &'a mut RunDirectory,
    observer: &'a mut dyn Observer,
    stop: &'a StopHandle,
    checkpoint_every: u64,
    /// Whether it writes checkpoints. An external training loop has its own, which also hold its optimizer.
    has_checkpoints: bool,
    /// The total number of rounds.
    rounds: u64,
    /// What a model file says about its model.
    about: Vec<(String, serde_json::Value)>,
    /// Why the run can only be stopped, and neither paused nor checkpointed on request; `None` if it can be.
    stop_only_reason: Option<&'static str>,
    stopwatch: Stopwatch,
    /// When the last checkpoint was written, and when control requests were last polled.
    last_saved: Instant,
    last_polled: Instant,
    is_stopping: bool,
    /// The next attempt at a checkpoint that failed, and the time since the attempt before it.
    retry: Option<(Instant, Duration)>,
    /// Whether events are waiting for the disk.
    is_delayed: bool,
    /// The next round, once the run has started, and the newest checkpoint.
    round: Option<u64>,
    checkpoint: Option<PathBuf>,
    failure: Option<RunError>,
}

impl<'a> Recorder<'a> {
    /// Begins to record a run, and restores the engine from the checkpoint in the directory, if there is one. Returns the
    /// progress from which the run continues.
    pub fn begin(
        directory: &'a mut RunDirectory,
        experiment: &Experiment,
        engine: &mut dyn Engine,
        stop: &'a StopHandle,
        observer: &'a mut dyn Observer,
    ) -> Result<(Progress, Self), RunError> {
        let mut stopwatch = Stopwatch { previous_seconds: 0.0, started: Instant::now() };
        let resumed_from = directory.checkpoint_path();
        let progress = match directory.take_checkpoint() {
            None => Progress::start(experiment.workers()),
            Some(checkpoint) => {
                let restored = engine.restore(&checkpoint.arrays);
                let path = directory.path().to_owned();
                restored.map_err(|error| {
                    let what = error.to_string();
                    RunError::Restore { path, what }
                })?;
                stopwatch.previous_seconds = checkpoint.wall_seconds;
                checkpoint.progress
            }
        };
        // Requests to an earlier run do not apply to this one.
        discard_requests(directory);
        let has_threads = experiment.config.training.asynchronous == Execution::Threads;
        let mut recorder = Self {
            checkpoint_every: experiment.config.training.checkpoint_every,
            has_checkpoints: !engine.is_external(),
            rounds: experiment.rounds(),
            about: experiment.model_info().fields(),
            stop_only_reason: match (directory.placement().decides_alone(), has_threads) {
                (false, _) => Some("a run of several processes can only be stopped"),
                (_, true) => Some("workers on threads do not wait for each other and can only be stopped"),
                _ if engine.is_external() => Some("an external training loop can only be stopped"),
                _ => None,
            },
            directory,
            observer,
            stop,
            stopwatch,
            last_saved: Instant::now(),
            last_polled: Instant::now(),
            is_stopping: false,
            retry: None,
            is_delayed: false,
            round: None,
            checkpoint: resumed_from,
            failure: None,
        };
        for message in recorder.directory.take_warnings() {
            recorder.record(&Event::Warning { message })?;
        }
        Ok((progress, recorder))
    }

    /// Ends the record of a run: writes its summary and its model. An error names the last checkpoint.
    pub fn finish(mut self, result: Result<RunResult, RunError>, layout: &Layout) -> Result<Summary, RunError> {
        let result = match (result, self.failure.take()) {
            (Ok(result), None) => Ok(result),
            (_, Some(error)) | (Err(error), None) => Err(self.failed(error)),
        };
        // If one of several processes has seen a request to stop, all stop: the other requests are obsolete.
        discard_requests(self.directory);
        let RunResult { mut summary, averaged } = result?;
        summary.wall_seconds = Some(self.stopwatch.seconds());
        let has_model = averaged.is_finite() && !averaged.parameters.is_empty();
        let about = self.about.iter().map(|(key, value)| (key.as_str(), value.clone()));
        let model = has_model.then(|| averaged.to_safetensors(layout, about));
        let model = model.transpose().map_err(|error| RunError::Model(error.to_string()))?;
        self.directory.finish(&summary, model)?;
        Ok(summary)
    }
}

impl Recorder<'_> {
    /// Flushes all events so far, and writes a checkpoint.
    fn save(
        &mut self,
        snapshot: &mut TakeSnapshot<'_>,
        write: impl Fn(&Checkpoint, &Path) -> Result<PathBuf, CheckpointError>,
    ) -> Result<(), RunError> {
        let flushed = self.directory.flush();
        self.tolerate(flushed)?;
        self.last_saved = Instant::now();
        let (progress, arrays) = snapshot()?;
        let own = self.directory.placement().own_range();
        let checkpoint = Checkpoint {
            config: self.directory.identity().to_owned(),
            progress,
            arrays,
            first: own.start,
            count: own.len(),
            wall_seconds: self.stopwatch.seconds(),
        };
        let written = write(&checkpoint, self.directory.path());
        self.checkpoint = Some(written.map_err(DirectoryError::from)?);
        self.retry = None;
        Ok(())
    }

    /// Writes a checkpoint before a round. If there is no room for it, the run goes on, and the next attempt follows
    /// soon. Processes that share checkpoints must not skip one, so they wait.
    fn save_or_postpone(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> Result<(), RunError> {
        if !self.directory.has_own_checkpoints() {
            return self.save_with_attempts(snapshot, Checkpoint::write);
        }
        match self.save(snapshot, Checkpoint::write) {
            Err(RunError::Directory(error)) if error.is_transient() => {
                let [first, longest] = RETRY_INTERVALS;
                let interval = self.retry.map_or(first, |(_, interval)| (2 * interval).min(longest));
                self.retry = Some((Instant::now() + interval, interval));
                let seconds = interval.as_secs();
                let message = format!(
                    "no checkpoint before round {round}: {error}; training continues, and the next attempt is in \
                     {seconds} s"
                );
                self.record(&Event::Warning { message })
            }
            result => result,
        }
    }

    /// Writes a checkpoint that cannot be postponed. Waits some seconds if there is no room for it.
    fn save_with_attempts(
        &mut self,
        snapshot: &mut TakeSnapshot<'_>,
        write: impl Fn(&Checkpoint, &Path) -> Result<PathBuf, CheckpointError>,
    ) -> Result<(), RunError> {
        for attempt in 1.. {
            match self.save(snapshot, &write) {
                Err(RunError::Directory(error)) if error.is_transient() && attempt < MAX_ATTEMPTS => {
                    let wait = RETRY_INTERVALS[0] * attempt;
                    let message = format!("{error}; the next attempt is in {} s", wait.as_secs());
                    self.record(&Event::Warning { message })?;
                    std::thread::sleep(wait);
                }
                result => return result,
            }
        }
        Ok(())
    }

    /// Accepts that events wait for the disk, and reports it once.
    fn tolerate(&mut self, result: Result<(), DirectoryError>) -> Result<(), RunError> {
        match result {
            Err(error) if error.is_transient() => {
                if !std::mem::replace(&mut self.is_delayed, true) {
                    let message = format!("{error}; the events are kept until there is room");
                    let warning = Event::Warning { message };
                    self.observer.observe(&warning);
                    // It stays pending with the others.
                    let _ = self.directory.record(&warning);
                }
                Ok(())
            }
            result => {
                self.is_delayed = false;
                Ok(result?)
            }
        }
    }

    /// Whether a checkpoint is due before this round. Several processes must write theirs in the same rounds.
    fn is_checkpoint_due(&self, round: u64) -> bool {
        if !self.has_checkpoints {
            return false;
        }
        let is_late = || self.directory.placement().decides_alone() && self.last_saved.elapsed() > CHECKPOINT_INTERVAL;
        // The last one allows to extend the run.
        let is_last = round == self.rounds;
        match self.retry {
            Some((at, _)) => is_last || Instant::now() >= at,
            None => self.checkpoint_every > 0 && (is_last || round.is_multiple_of(self.checkpoint_every) || is_late()),
        }
    }

    /// Serves control requests, and waits while the run is paused.
    fn serve_requests(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> Result<(), RunError> {
        if self.last_polled.elapsed() < CONTROL_INTERVAL {
            return Ok(());
        }
        let mut is_paused = false;
        loop {
            self.last_polled = Instant::now();
            while let Some(request) = ControlRequest::take(self.directory.path()) {
                if let Some(why) = self.stop_only_reason.filter(|_| request != ControlRequest::Stop) {
                    let message = format!("cannot {}: {why}", request.name());
                    self.record(&Event::Warning { message })?;
                    continue;
                }
                match request {
                    ControlRequest::Pause => is_paused = true,
                    ControlRequest::Continue => is_paused = false,
                    ControlRequest::Checkpoint => {
                        self.save_or_postpone(round, snapshot)?;
                        if self.retry.is_some() {
                            continue;
                        }
                    }
                    ControlRequest::Stop => self.is_stopping = true,
                }
                self.record(&Event::Control { round, request })?;
            }
            if !is_paused || self.is_stopping || self.stop.is_stopped() {
                return Ok(());
            }
            std::thread::sleep(CONTROL_INTERVAL);
        }
    }

    fn record(&mut self, event: &Event) -> Result<(), RunError> {
        if self.observer.observe(event) == ControlFlow::Stop {
            self.is_stopping = true;
        }
        match event {
            Event::Started { round, .. } => self.round = Some(*round),
            Event::Round { round, .. } => self.round = Some(round + 1),
            _ => {}
        }
        let recorded = self.directory.record(event);
        self.tolerate(recorded)
    }

    /// Adds to an error what the user needs to resume: the round and the newest checkpoint.
    fn failed(&mut self, error: RunError) -> RunError {
        match self.round {
            None => error,
            Some(round) => RunError::Failed { round, checkpoint: self.checkpoint.take(), cause: Box::new(error) },
        }
    }

    fn control_flow(&mut self, result: Result<(), RunError>) -> ControlFlow {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
        let is_stopping = self.failure.is_some() || self.is_stopping || self.stop.is_stopped();
        match is_stopping {
            true => ControlFlow::Stop,
            false => ControlFlow::Continue,
        }
    }
}

impl Observer for Recorder<'_> {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        let result = self.record(event);
        self.control_flow(result)
    }

    fn between_rounds(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        if self.observer.between_rounds(round, snapshot) == ControlFlow::Stop {
            self.is_stopping = true;
        }
        let result = match self.is_checkpoint_due(round) && self.failure.is_none() {
            // There is no later round for another attempt.
            true if round == self.rounds => self.save_with_attempts(snapshot, Checkpoint::write),
            true => self.save_or_postpone(round, snapshot),
            false => Ok(()),
        };
        let result = result.and_then(|()| self.serve_requests(round, snapshot));
        self.control_flow(result)
    }

    fn while_waiting(&mut self) -> ControlFlow {
        if self.last_polled.elapsed() >= CONTROL_INTERVAL {
            self.last_polled = Instant::now();
            while let Some(request) = ControlRequest::take(self.directory.path()) {
                self.is_stopping |= request == ControlRequest::Stop;
            }
        }
        self.control_flow(Ok(()))
    }

    fn stopped(&mut self, snapshot: &mut TakeSnapshot<'_>) {
        if self.failure.is_none() && self.has_checkpoints {
            let result = self.save_with_attempts(snapshot, Checkpoint::write);
            self.control_flow(result);
        }
    }

    fn improved(&mut self, best: BestModel, model: &Replica, layout: &Layout) {
        let about = self.about.iter().map(|(key, value)| (key.as_str(), value.clone()));
        let bytes = model.to_safetensors(layout, about.chain([("epoch", best.epoch.into())]));
        let written = bytes.map_err(|error| RunError::Model(error.to_string()));
        let result = written.and_then(|bytes| Ok(self.directory.write_best(&bytes)?));
        self.control_flow(result);
    }

    fn diverged(&mut self, snapshot: &mut TakeSnapshot<'_>) {
        let write = |checkpoint: &Checkpoint, directory: &Path| checkpoint.write_as(&directory.join("diverged.upwash"));
        let result = self.save_with_attempts(snapshot, write);
        self.control_flow(result);
    }
}

/// Runs an experiment in a directory: from its checkpoint if it has one, until it ends or `stop` ends it.
pub fn run_in(
    directory: &mut RunDirectory,
    experiment: &Experiment,
    engine: &mut dyn Engine,
    transport: &mut dyn Transport,
    stop: &StopHandle,
    observer: &mut dyn Observer,
) -> Result<Summary, RunError> {
    let (progress, mut recorder) = Recorder::begin(directory, experiment, engine, stop, observer)?;
    let result = run_with(experiment, engine, transport, progress, &mut recorder);
    recorder.finish(result, engine.layout())
}

fn discard_requests(directory: &RunDirectory) {
    while ControlRequest::take(directory.path()).is_some() {}
}
