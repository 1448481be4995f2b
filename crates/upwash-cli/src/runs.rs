//! Shared parts of all commands that train: interruption, threads, exit codes.

use crate::output::tell;
use anyhow::{Context, Result};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use upwash::run::{RunError, Status, StopHandle};

/// Exit code of a run that failed after it had started. docs/architecture.md has the table of exit codes.
const FAILED: u8 = 1;
/// Exit code of a command that was refused before it started.
pub const REFUSED: u8 = 2;
/// Exit code of a run that diverged.
pub const DIVERGED: u8 = 3;
/// Exit code of a peer that had no other peer in reach for too long.
pub const ISOLATED: u8 = 4;
/// Exit code of a run that was interrupted.
pub const INTERRUPTED: u8 = 130;

/// The exit code for the status of a run.
pub fn exit_code(status: &Status) -> ExitCode {
    match status {
        Status::Finished => ExitCode::SUCCESS,
        Status::Diverged { .. } => ExitCode::from(DIVERGED),
        Status::Interrupted { .. } => ExitCode::from(INTERRUPTED),
        Status::Isolated { .. } => ExitCode::from(ISOLATED),
    }
}

/// The exit code for an error.
pub fn error_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(error_number(error))
}

/// The exit code for an error, as a number.
pub fn error_number(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(RunError::Failed { .. }) => FAILED,
        _ => REFUSED,
    }
}

/// The handle that Ctrl-C triggers. The run then stops after its current round and writes a checkpoint.
pub fn stop_handle() -> &'static StopHandle {
    static STOP: OnceLock<StopHandle> = OnceLock::new();
    STOP.get_or_init(StopHandle::default)
}

/// From now on, Ctrl-C and SIGTERM stop runs cleanly. A second Ctrl-C exits at once.
pub fn end_cleanly_when_interrupted() -> Result<()> {
    let mut first: Option<Instant> = None;
    let stop = move || {
        stop_handle().stop();
        // Some process managers send their signal twice in a row. That does not count as a second Ctrl-C.
        match first {
            None => tell!("stopping; press Ctrl-C again to stop at once"),
            Some(first) if first.elapsed() < Duration::from_millis(500) => {}
            Some(_) => std::process::exit(INTERRUPTED.into()),
        }
        first.get_or_insert_with(Instant::now);
    };
    ctrlc::set_handler(stop).context("cannot listen for Ctrl-C")
}

/// Whether the user has interrupted the program.
pub fn interrupted() -> bool {
    stop_handle().is_stopped()
}

/// Sets the number of threads; `None` keeps the default.
pub fn use_threads(count: Option<usize>) -> Result<()> {
    if let Some(count) = count {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count);
        pool.build_global()?;
    }
    Ok(())
}
