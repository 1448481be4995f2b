//! Trains, writes down what happens in the run's folder, and ends when the user wishes.

use super::{PATIENCE, RunFolder};
use crate::output::tell;
use crate::progress::ProgressDisplay;
use anyhow::{Context, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use upwash::checkpoint::{Checkpoint, CheckpointError};
use upwash::config::Execution;
use upwash::engine::Engine;
use upwash::experiment::Experiment;
use upwash::run::{
    ControlFlow, ControlRequest, Event, Observer, Progress, RunResult, Snapshot, Summary, run_with,
};
use upwash::transport::{InProcess, Transport};

/// How long a run goes on without a checkpoint, however many rounds that is.
const LONG: Duration = Duration::from_secs(600);

/// Set by Ctrl-C: the run ends after its round, with a checkpoint.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C (and a polite kill) end runs cleanly from now on.
pub(crate) fn end_cleanly_when_interrupted() -> Result<()> {
    let mut first: Option<Instant> = None;
    let stop = move || {
        INTERRUPTED.store(true, Ordering::Relaxed);
        // Some who end processes send their signal twice in a row: that is no impatience.
        match first {
            None => tell!("stopping; Ctrl-C once more stops at once"),
            Some(first) if first.elapsed() < Duration::from_millis(500) => {}
            Some(_) => std::process::exit(super::INTERRUPTED.into()),
        }
        first.get_or_insert_with(Instant::now);
    };
    ctrlc::set_handler(stop).context("cannot listen for Ctrl-C")
}

/// Whether the user has asked for an end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// How long a run has taken: of one that was stopped and goes on, all parts count that led here.
#[derive(Clone, Copy)]
struct Clock {
    before: f64,
    began: Instant,
}

impl Clock {
    fn seconds(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }
}

/// Writes down what happens, and ends the run when that fails or the user wishes.
struct Recorder<'a> {
    folder: &'a mut RunFolder,
    display: ProgressDisplay,
    checkpoint_every: u64,
    /// Why the run can neither pause nor keep its state on demand, if so.
    stops_only: Option<&'static str>,
    clock: Clock,
    /// When the last checkpoint was written, and when control requests were looked for.
    saved: Instant,
    looked: Instant,
    stopping: bool,
    failure: Option<anyhow::Error>,
}

impl Recorder<'_> {
    /// Keeps the state of the run, behind all events that led to it.
    fn save(
        &mut self,
        snapshot: &mut dyn FnMut() -> Snapshot,
        write: impl Fn(&Checkpoint, &Path) -> Result<PathBuf, CheckpointError>,
    ) -> Result<()> {
        self.folder.events.flush()?;
        self.saved = Instant::now();
        let (progress, arrays) = snapshot();
        let checkpoint = Checkpoint {
            config: self.folder.config.clone(),
            progress,
            arrays,
            first: self.folder.home.placement.own().start,
            count: self.folder.home.placement.own().len(),
            wall_seconds: self.clock.seconds(),
        };
        write(&checkpoint, &self.folder.path)?;
        Ok(())
    }

    /// Whether rounds are so long that a kill would lose much. Several processes keep theirs in the same round.
    fn has_waited_long(&self) -> bool {
        self.folder.home.placement.is_whole() && self.saved.elapsed() > LONG
    }

    /// Does what someone who watches has asked for, and waits while that is to wait.
    fn serve_requests(&mut self, round: u64, snapshot: &mut dyn FnMut() -> Snapshot) -> Result<()> {
        if self.looked.elapsed() < PATIENCE {
            return Ok(());
        }
        let mut paused = false;
        loop {
            self.looked = Instant::now();
            while let Some(request) = ControlRequest::take(&self.folder.path) {
                if let Some(why) = self.stops_only.filter(|_| request != ControlRequest::Stop) {
                    let message = format!("asked to {}: {why}", request.name());
                    self.tell(&Event::Warning { message })?;
                    continue;
                }
                match request {
                    ControlRequest::Pause => paused = true,
                    ControlRequest::Continue => paused = false,
                    ControlRequest::Checkpoint => self.save(snapshot, Checkpoint::write)?,
                    ControlRequest::Stop => self.stopping = true,
                }
                self.tell(&Event::Control { round, request })?;
            }
            if !paused || self.stopping || interrupted() {
                return Ok(());
            }
            std::thread::sleep(PATIENCE);
        }
    }

    fn tell(&mut self, event: &Event) -> Result<()> {
        self.display.show(event);
        self.folder.record(event)
    }

    fn keep(&mut self, result: Result<()>) -> ControlFlow {
        match result {
            Ok(()) if !interrupted() && !self.stopping => ControlFlow::Continue,
            Ok(()) => ControlFlow::Stop,
            Err(error) => {
                self.failure.get_or_insert(error);
                ControlFlow::Stop
            }
        }
    }
}

impl Observer for Recorder<'_> {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        let result = self.tell(event);
        self.keep(result)
    }

    fn between_rounds(
        &mut self,
        round: u64,
        snapshot: &mut dyn FnMut() -> Snapshot,
    ) -> ControlFlow {
        let due = self.checkpoint_every > 0
            && (round.is_multiple_of(self.checkpoint_every) || self.has_waited_long());
        let result = match due && self.failure.is_none() {
            true => self.save(snapshot, Checkpoint::write),
            false => Ok(()),
        };
        let result = result.and_then(|()| self.serve_requests(round, snapshot));
        self.keep(result)
    }

    fn meanwhile(&mut self) -> ControlFlow {
        if self.looked.elapsed() >= PATIENCE {
            self.looked = Instant::now();
            while let Some(request) = ControlRequest::take(&self.folder.path) {
                self.stopping |= request == ControlRequest::Stop;
            }
        }
        self.keep(Ok(()))
    }

    fn stopped(&mut self, snapshot: &mut dyn FnMut() -> Snapshot) {
        if self.failure.is_none() {
            let result = self.save(snapshot, Checkpoint::write);
            self.keep(result);
        }
    }

    fn diverged(&mut self, snapshot: &mut dyn FnMut() -> Snapshot) {
        let result = self.save(snapshot, |checkpoint, folder| {
            checkpoint.write_as(&folder.join("diverged.upwash"))
        });
        self.keep(result);
    }
}

/// Trains with all workers in this process, and leaves a summary in the run's folder.
pub(crate) fn execute(
    experiment: &Experiment,
    engine: &mut dyn Engine,
    folder: &mut RunFolder,
    display: ProgressDisplay,
) -> Result<Summary> {
    let mut here = InProcess::new(experiment.workers());
    execute_with(experiment, engine, &mut here, folder, display)
}

/// The same with other processes; the first one leaves the summary.
pub(crate) fn execute_with(
    experiment: &Experiment,
    engine: &mut dyn Engine,
    transport: &mut dyn Transport,
    folder: &mut RunFolder,
    display: ProgressDisplay,
) -> Result<Summary> {
    let resumed = folder.resumed.as_ref();
    let clock = Clock {
        before: resumed.map_or(0.0, |checkpoint| checkpoint.wall_seconds),
        began: Instant::now(),
    };
    let progress = match folder.resumed.take() {
        None => Progress::start(experiment.workers()),
        Some(checkpoint) => {
            engine.restore(&checkpoint.arrays).map_err(|what| {
                anyhow::anyhow!(
                    "the checkpoint in {} does not fit: {what}",
                    folder.path.display()
                )
            })?;
            checkpoint.progress
        }
    };
    let threads = experiment.config.training.asynchronous == Execution::Threads;
    // What was asked of a run that is over is not asked of this one.
    while ControlRequest::take(&folder.path).is_some() {}
    let mut recorder = Recorder {
        checkpoint_every: experiment.config.training.checkpoint_every,
        stops_only: match (folder.home.placement.is_whole(), threads) {
            (false, _) => Some("a run of several processes can only be stopped"),
            (_, true) => Some("workers on threads do not wait for each other; they can be stopped"),
            _ => None,
        },
        folder,
        display,
        clock,
        saved: Instant::now(),
        looked: Instant::now(),
        stopping: false,
        failure: None,
    };
    let outcome = run_with(experiment, engine, transport, progress, &mut recorder)?;
    recorder.display.finish();
    // Of several processes that were asked, one is enough: the others need not look any more.
    while ControlRequest::take(&recorder.folder.path).is_some() {}
    if let Some(error) = recorder.failure {
        return Err(error).with_context(|| format!("cannot write to {}", folder.path.display()));
    }
    let RunResult {
        mut summary,
        averaged,
    } = outcome;
    summary.wall_seconds = Some(clock.seconds());
    folder.events.flush()?;
    if !folder.home.sums_up() {
        return Ok(summary);
    }
    if averaged.is_finite() && !averaged.parameters.is_empty() {
        let about = [
            ("model", experiment.config.model.to_string()),
            ("data", experiment.data.name.clone()),
            ("algorithm", summary.algorithm.clone()),
        ];
        let about = about.iter().map(|(key, value)| (*key, value.as_str()));
        let content = averaged.to_safetensors(engine.layout(), about)?;
        crate::files::write(&folder.top.join("model.safetensors"), &content)?;
    }
    let text = serde_json::to_string_pretty(&summary)? + "\n";
    crate::files::write(&folder.top.join("summary.json"), text.as_bytes())?;
    Ok(summary)
}
