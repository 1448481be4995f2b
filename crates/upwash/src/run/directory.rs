//! Run directories: the resolved configuration, events as they happen, checkpoints, the summary and the model.
//!
//! A process that holds all workers writes into the directory itself. Processes that share a directory (MPI ranks) use
//! subdirectories `rank-N`. Peers have separate directories.

mod error;

pub use error::DirectoryError;

use super::{Event, Status, Summary};
use crate::experiment::Experiment;
use crate::run::checkpoint::{Checkpoint, CheckpointError};
use crate::transport::Placement;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file of events in a run directory.
pub const EVENTS_FILE: &str = "events.jsonl";
/// The resolved configuration in a run directory.
pub const CONFIG_FILE: &str = "config.toml";

/// How long an event may stay in the buffer. A reader may be watching the run.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

type Result<T> = std::result::Result<T, DirectoryError>;

/// Where a process stores its part of a run, and whether other processes share the directory.
#[derive(Clone, Debug)]
pub struct RunLocation {
    /// Which worker is in which process.
    pub placement: Placement,
    /// Whether other processes of the run use the same directory.
    pub is_shared: bool,
}

impl RunLocation {
    /// The location of a run whose workers are all in this process.
    pub fn local(experiment: &Experiment) -> Self {
        Self { placement: Placement::new(experiment.workers(), 1, 0), is_shared: false }
    }

    /// The directory of this process: the run's, or a subdirectory of it.
    fn own_directory(&self, top: &Path) -> PathBuf {
        match self.is_shared && !self.placement.is_whole() {
            true => top.join(format!("rank-{}", self.placement.this())),
            false => top.to_owned(),
        }
    }

    /// Whether this process writes the summary and the model.
    fn writes_summary(&self) -> bool {
        !self.is_shared || self.placement.this() == 0
    }

    /// The newest checkpoint of this process's workers. Synchronous processes need checkpoints of the same round.
    fn newest(&self, top: &Path, has_rounds: bool) -> Result<(Option<Checkpoint>, Vec<CheckpointError>)> {
        let found = match (self.is_shared && has_rounds) || self.placement.is_whole() {
            true => Checkpoint::newest_of(&checkpoint_directories(top), self.placement.own()),
            false => Checkpoint::newest(&self.own_directory(top)),
        };
        Ok(found?)
    }
}

/// All directories in which processes that shared `top` may have written checkpoints.
fn checkpoint_directories(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let entries = std::fs::read_dir(top).into_iter().flatten().flatten();
    found.extend(entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_dir() && name.is_some_and(|name| name.starts_with("rank-"))
    }));
    found
}

/// The directory of one run. It stays locked for the lifetime of this value.
pub struct RunDirectory {
    /// The run's directory.
    top: PathBuf,
    /// This process's directory: the same one if there is only one process.
    path: PathBuf,
    location: RunLocation,
    events: BufWriter<File>,
    flushed: Instant,
    identity: String,
    checkpoint: Option<Checkpoint>,
    warnings: Vec<String>,
}

impl RunDirectory {
    /// Creates `top`, which must not hold a run yet.
    pub fn create(top: &Path, experiment: &Experiment, location: &RunLocation) -> Result<Self> {
        let path = location.own_directory(top);
        std::fs::create_dir_all(&path).map_err(DirectoryError::io("create", &path))?;
        let holds_single_process_run = path != top && top.join(EVENTS_FILE).exists();
        if holds_single_process_run || !peer_directories(top).is_empty() {
            let (path, remedy) = (top.to_owned(), "");
            return Err(DirectoryError::Occupied { path, remedy });
        }
        let (file, identity) = (path.join(EVENTS_FILE), experiment.identity());
        let existing = std::fs::read_to_string(path.join(CONFIG_FILE));
        if !file.exists() && existing.is_ok_and(|existing| existing != identity) {
            return Err(DirectoryError::ForeignConfig(path));
        }
        // Creating this file claims the directory: if two runs start at once, one of them is refused.
        let events = match File::create_new(&file) {
            Ok(events) => lock(events, &path)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let remedy = match Checkpoint::newest(&path) {
                    Ok((Some(_), _)) if !is_finished(top) => "resume it with --resume, or ",
                    _ => "remove it, or ",
                };
                return Err(DirectoryError::Occupied { path, remedy });
            }
            Err(error) => return Err(DirectoryError::io("write", &file)(error)),
        };
        write_config(&path, &identity, experiment)?;
        if location.writes_summary() && path != top {
            write_config(top, &identity, experiment)?;
        }
        Ok(Self {
            top: top.to_owned(),
            path,
            location: location.clone(),
            events: BufWriter::new(events),
            flushed: Instant::now(),
            identity,
            checkpoint: None,
            warnings: vec![],
        })
    }

    /// Starts the run in `path`, or resumes it. Returns `None` if it is over.
    pub fn open(path: &Path, experiment: &Experiment, location: &RunLocation) -> Result<Option<Self>> {
        if holds_another_run(path, experiment) {
            return Err(DirectoryError::OtherRun(path.to_owned()));
        }
        if is_over(path) {
            return Ok(None);
        }
        let events = path.join(EVENTS_FILE);
        if !events.exists() {
            return Self::create(path, experiment, location).map(Some);
        }
        if Checkpoint::newest(path)?.0.is_some() {
            return Self::resume(path, experiment, location).map(Some);
        }
        // The run was stopped before its first checkpoint, or no checkpoint is intact: there is nothing to lose.
        let file = File::open(&events).map_err(DirectoryError::io("read", &events))?;
        let lock = lock(file, path)?;
        let mut warnings = Vec::new();
        for error in Checkpoint::newest(path)?.1 {
            warnings.push(format!("{error}; the run starts over"));
            remove(error.path())?;
        }
        remove(&path.join(Summary::FILE))?;
        remove(&events)?;
        drop(lock);
        let mut directory = Self::create(path, experiment, location)?;
        directory.warnings = warnings;
        Ok(Some(directory))
    }

    /// Resumes the run in `top` from its newest intact checkpoint, however many processes wrote it.
    pub fn resume(top: &Path, experiment: &Experiment, location: &RunLocation) -> Result<Self> {
        let path = location.own_directory(top);
        if is_finished(top) {
            return Err(DirectoryError::Finished(top.to_owned()));
        }
        if !peer_directories(top).is_empty() {
            return Err(DirectoryError::PeerRun(top.to_owned()));
        }
        let no_checkpoint = || DirectoryError::NoCheckpoint(top.to_owned());
        let has_rounds = experiment.method.synchronous().is_some();
        // Create nothing if there is no checkpoint to resume from. Do not read the checkpoints of a run in progress.
        let is_new = !path.join(EVENTS_FILE).exists();
        if is_new && (!top.is_dir() || location.newest(top, has_rounds)?.0.is_none()) {
            return Err(no_checkpoint());
        }
        if path != top {
            std::fs::create_dir_all(&path).map_err(DirectoryError::io("create", &path))?;
        }
        let events = File::options().read(true).write(true).create(true).truncate(false).open(path.join(EVENTS_FILE));
        let events = events.map_err(DirectoryError::io("write", &path.join(EVENTS_FILE)))?;
        let mut events = lock(events, &path)?;
        let (checkpoint, damaged) = location.newest(top, has_rounds)?;
        let checkpoint = checkpoint.ok_or_else(no_checkpoint)?;
        let identity = experiment.identity();
        if checkpoint.config != identity {
            return Err(DirectoryError::OtherConfiguration(top.to_owned()));
        }
        let mut warnings = Vec::new();
        for error in &damaged {
            warnings.push(format!("{error}; it is ignored"));
            // A damaged file would count among the checkpoints that are kept. An unreadable one may be intact.
            let is_own = error.path().parent() == Some(path.as_path());
            if is_own && matches!(error, CheckpointError::Damaged { .. }) {
                remove(error.path())?;
            }
        }
        crate::files::remove_unfinished(&path).map_err(DirectoryError::io("write to", &path))?;
        // If this process were killed, the old summary would be mistaken for the summary of this run.
        if location.writes_summary() {
            remove(&top.join(Summary::FILE))?;
        }
        let epoch = experiment.sampler.rounds_per_epoch();
        truncate_events(&mut events, checkpoint.progress.round, epoch)
            .map_err(DirectoryError::io("write", &path.join(EVENTS_FILE)))?;
        Ok(Self {
            top: top.to_owned(),
            path,
            location: location.clone(),
            events: BufWriter::new(events),
            flushed: Instant::now(),
            identity,
            checkpoint: Some(checkpoint),
            warnings,
        })
    }

    /// The next round, if the run is resumed.
    pub fn round(&self) -> Option<u64> {
        let checkpoint = self.checkpoint.as_ref();
        checkpoint.map(|checkpoint| checkpoint.progress.round)
    }

    /// This process's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which worker is in which process.
    pub(super) fn placement(&self) -> &Placement {
        &self.location.placement
    }

    /// The configuration to which the run's checkpoints belong.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// The file of the checkpoint from which the run resumes.
    pub(super) fn checkpoint_path(&self) -> Option<PathBuf> {
        let round = self.round()?;
        Some(self.path.join(Checkpoint::file_name(round)))
    }

    /// Takes the checkpoint from which the run resumes.
    pub(super) fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.checkpoint.take()
    }

    /// Takes the warnings about the state in which the directory was found.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Appends an event.
    pub(super) fn record(&mut self, event: &Event) -> Result<()> {
        let written = serde_json::to_writer(&mut self.events, event).map_err(std::io::Error::from);
        let written = written.and_then(|()| self.events.write_all(b"\n"));
        written.map_err(DirectoryError::io("write", &self.path.join(EVENTS_FILE)))?;
        if !matches!(event, Event::Round { .. }) || self.flushed.elapsed() > FLUSH_INTERVAL {
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        let flushed = self.events.flush();
        self.flushed = Instant::now();
        flushed.map_err(DirectoryError::io("write", &self.path.join(EVENTS_FILE)))
    }

    /// Writes the summary, and the model if there is one, unless another process writes them.
    pub(super) fn finish(&mut self, summary: &Summary, model: Option<Vec<u8>>) -> Result<()> {
        self.flush()?;
        if !self.location.writes_summary() {
            return Ok(());
        }
        let write = |name: &str, content: &[u8]| {
            let path = self.top.join(name);
            crate::files::write(&path, content).map_err(DirectoryError::io("write", &path))
        };
        if let Some(model) = model {
            write("model.safetensors", &model)?;
        }
        let text = serde_json::to_string_pretty(summary).map_err(std::io::Error::from);
        let text = text.map_err(DirectoryError::io("write", &self.top.join(Summary::FILE)))?;
        write(Summary::FILE, (text + "\n").as_bytes())
    }
}

/// Writes the configuration and, beside it, the files that it names, so that the run can be repeated from here.
fn write_config(directory: &Path, config: &str, experiment: &Experiment) -> Result<()> {
    let path = directory.join(CONFIG_FILE);
    crate::files::write(&path, config.as_bytes()).map_err(DirectoryError::io("write", &path))?;
    let (graph, model) = (&experiment.config.graph, &experiment.config.model);
    graph.topology.file().into_iter().chain(model.file()).try_for_each(|file| copy_file(directory, file))
}

/// Copies a file that the configuration names into the directory.
fn copy_file(directory: &Path, file: &Path) -> Result<()> {
    let copy = directory.join(file.file_name().unwrap_or_default());
    let content = std::fs::read(file).map_err(DirectoryError::io("read", file))?;
    match std::fs::read(&copy) {
        Ok(existing) if existing == content => Ok(()),
        Ok(_) => Err(DirectoryError::OtherFile { copy, file: file.to_owned() }),
        Err(_) => crate::files::write(&copy, &content).map_err(DirectoryError::io("write", &copy)),
    }
}

/// Removes a file if it exists.
fn remove(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(DirectoryError::io("remove", file)(error)),
        _ => Ok(()),
    }
}

/// Removes the events after the checkpoint, because the resumed run reports them again.
fn truncate_events(events: &mut File, round: u64, rounds_per_epoch: u64) -> std::io::Result<()> {
    let mut text = String::new();
    events.read_to_string(&mut text)?;
    let is_kept = |line: &&str| match serde_json::from_str(line) {
        Ok(Event::Round { round: index, .. }) => index < round,
        Ok(Event::Epoch { epoch, .. }) => epoch.saturating_mul(rounds_per_epoch) <= round,
        Ok(Event::Peer { round: next, .. } | Event::Control { round: next, .. }) => next <= round,
        Ok(Event::Started { .. } | Event::Graph { .. } | Event::Warning { .. }) => true,
        Ok(Event::Ended { .. } | Event::Unknown) | Err(_) => false,
    };
    let lines = text.split_inclusive('\n').take_while(is_kept);
    let kept: usize = lines.map(str::len).sum();
    events.set_len(kept as u64)?;
    events.seek(SeekFrom::End(0))?;
    Ok(())
}

/// Locks a file while it is open, so that no other process writes to a run in progress.
pub fn lock(file: File, directory: &Path) -> Result<File> {
    match file.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => Err(DirectoryError::InUse(directory.to_owned())),
        // Some network file systems do not support locks. That should not prevent training.
        Ok(()) | Err(std::fs::TryLockError::Error(_)) => Ok(file),
    }
}

/// Whether a directory holds a run with a different configuration.
pub fn holds_another_run(path: &Path, experiment: &Experiment) -> bool {
    let existing = std::fs::read_to_string(path.join(CONFIG_FILE));
    existing.is_ok_and(|existing| existing != experiment.identity())
}

/// The directories in which peers on one machine have stored their parts of a run, by worker.
pub fn peer_directories(top: &Path) -> Vec<(usize, PathBuf)> {
    let entries = std::fs::read_dir(top).into_iter().flatten().flatten();
    let peer = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let worker = name.strip_prefix("peer-")?.parse().ok()?;
        path.join(EVENTS_FILE).exists().then_some((worker, path))
    };
    entries.filter_map(|entry| peer(entry.path())).collect()
}

/// Whether a directory's run has finished or diverged, so that no rounds are left to run.
pub fn is_over(path: &Path) -> bool {
    let over = |status| matches!(status, Status::Finished | Status::Diverged { .. });
    status_in(path).is_some_and(over)
}

fn is_finished(path: &Path) -> bool {
    status_in(path) == Some(Status::Finished)
}

/// How the run in a directory ended, if it has ended and its summary can be read.
fn status_in(path: &Path) -> Option<Status> {
    let summary = Summary::read(path).ok().flatten();
    summary.map(|summary| summary.status)
}
