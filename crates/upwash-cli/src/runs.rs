//! What all commands that run something share: configurations, interruption, exit codes.

use crate::files;
use crate::output::tell;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use upwash::config::Config;
use upwash::experiment::{DataPaths, DatasetCache, Experiment};
use upwash::run::{RunError, Status, StopHandle};

/// Exit codes: of runs that failed after they had begun, of what was refused, of runs that diverged, and of those that
/// were interrupted. The table is in docs/architecture.md.
const FAILED: u8 = 1;
const REFUSED: u8 = 2;
pub const DIVERGED: u8 = 3;
pub const INTERRUPTED: u8 = 130;

/// How the program ends with a run.
pub fn exit_code(status: &Status) -> ExitCode {
    match status {
        Status::Finished => ExitCode::SUCCESS,
        Status::Diverged { .. } => ExitCode::from(DIVERGED),
        Status::Interrupted { .. } => ExitCode::from(INTERRUPTED),
    }
}

/// How the program ends with an error.
pub fn error_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(error_number(error))
}

/// The same as a number.
pub fn error_number(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(RunError::Failed { .. }) => FAILED,
        _ => REFUSED,
    }
}

/// What Ctrl-C sets: the run ends after its round, with a checkpoint.
pub fn stop_handle() -> &'static StopHandle {
    static STOP: OnceLock<StopHandle> = OnceLock::new();
    STOP.get_or_init(StopHandle::default)
}

/// Makes Ctrl-C (and a polite kill) end runs cleanly from now on.
pub fn end_cleanly_when_interrupted() -> Result<()> {
    let mut first: Option<Instant> = None;
    let stop = move || {
        stop_handle().stop();
        // Some who end processes send their signal twice in a row: that is no impatience.
        match first {
            None => tell!("stopping; Ctrl-C once more stops at once"),
            Some(first) if first.elapsed() < Duration::from_millis(500) => {}
            Some(_) => std::process::exit(INTERRUPTED.into()),
        }
        first.get_or_insert_with(Instant::now);
    };
    ctrlc::set_handler(stop).context("cannot listen for Ctrl-C")
}

/// Whether the user has asked for an end.
pub fn interrupted() -> bool {
    stop_handle().is_stopped()
}

/// Computes on so many threads, if they are given.
pub fn use_threads(count: Option<usize>) -> Result<()> {
    if let Some(count) = count {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count);
        pool.build_global()?;
    }
    Ok(())
}

/// The experiment that a file describes, with replacements on top.
pub fn read_config(path: &Path, replacements: &[String]) -> Result<Experiment> {
    read_next_config(path, replacements, &mut DatasetCache::default())
}

/// The same, one of several.
pub fn read_next_config(path: &Path, replacements: &[String], cache: &mut DatasetCache) -> Result<Experiment> {
    let config = parse_config(path, replacements)?;
    let folders = DataPaths { files: path.parent().unwrap_or(Path::new("")).to_owned(), ..DataPaths::standard() };
    let experiment = Experiment::prepare_next(config, &folders, cache);
    experiment.with_context(|| path.display().to_string())
}

/// A configuration without what it names.
pub fn parse_config(path: &Path, replacements: &[String]) -> Result<Config> {
    let config = Config::parse(&files::read(path)?, replacements);
    config.with_context(|| path.display().to_string())
}
