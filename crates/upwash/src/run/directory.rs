//! Run directories: the resolved configuration, events as they happen, checkpoints, the summary and the model.
//!
//! A process that holds all workers writes into the directory itself. Processes that share a directory (MPI ranks) use
//! subdirectories `rank-N`. Peers have separate directories.
//!
//! One file, because what is asked about a directory must agree with what is written there.

mod change;
mod error;
mod events;
mod files;

pub use error::DirectoryError;
pub use files::own_data;

use super::{BestModel, Event, Status, Summary};
use crate::experiment::Experiment;
use crate::run::checkpoint::{Checkpoint, CheckpointError};
use crate::transport::Placement;
use change::Change;
use events::EventWriter;
use files::{remove, set_aside, write_config};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file of events in a run directory.
pub const EVENTS_FILE: &str = "events.jsonl";
/// The resolved configuration in a run directory.
pub const CONFIG_FILE: &str = "config.toml";

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
        match self.placement.subdirectory() {
            Some(own) if self.is_shared => top.join(own),
            _ => top.to_owned(),
        }
    }

    /// Whether this process writes the summary and the model.
    fn writes_summary(&self) -> bool {
        !self.is_shared || self.placement.this() == 0
    }

    /// The newest checkpoint of this process's workers. Synchronous processes need checkpoints of the same round.
    fn newest(&self, top: &Path, has_rounds: bool) -> Result<(Option<Checkpoint>, Vec<CheckpointError>)> {
        let found = match (self.is_shared && has_rounds) || self.placement.has_all_rows() {
            true => Checkpoint::newest_of(&checkpoint_directories(top), self.placement.own_range()),
            false => Checkpoint::newest(&self.own_directory(top)),
        };
        readable(found?)
    }
}

/// Refuses to continue without a checkpoint that cannot be read now: it may be intact.
fn readable(
    (newest, mut errors): (Option<Checkpoint>, Vec<CheckpointError>),
) -> Result<(Option<Checkpoint>, Vec<CheckpointError>)> {
    match errors.iter().position(|error| matches!(error, CheckpointError::Unreadable { .. })) {
        Some(index) => Err(errors.swap_remove(index).into()),
        None => Ok((newest, errors)),
    }
}

/// All directories in which processes that shared `top` may have written checkpoints.
fn checkpoint_directories(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let entries = std::fs::read_dir(top).into_iter().flatten().flatten();
    let is_rank = |entry: &std::fs::DirEntry| {
        // Symbolic links are not followed.
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_directory && entry.file_name().to_str().is_some_and(|name| name.starts_with("rank-"))
    };
    found.extend(entries.filter(is_rank).map(|entry| entry.path()));
    found
}

/// The directory of one run. It stays locked for the lifetime of this value.
pub struct RunDirectory {
    /// The run's directory.
    top: PathBuf,
    /// This process's directory: the same one if there is only one process.
    path: PathBuf,
    location: RunLocation,
    events: EventWriter,
    identity: String,
    checkpoint: Option<Checkpoint>,
    warnings: Vec<String>,
}

impl RunDirectory {
    /// Creates `top`, which must not hold a run yet.
    pub fn create(top: &Path, experiment: &Experiment, location: &RunLocation) -> Result<Self> {
        let path = location.own_directory(top);
        refuse_inside_run(top)?;
        crate::files::create_directory(&path).map_err(DirectoryError::io("create", &path))?;
        let holds_single_process_run = path != top && top.join(EVENTS_FILE).exists();
        if holds_single_process_run || !peer_directories(top).is_empty() {
            let (path, remedy) = (top.to_owned(), "");
            return Err(DirectoryError::Occupied { path, remedy });
        }
        let (file, identity) = (path.join(EVENTS_FILE), experiment.identity());
        let existing = crate::files::read_text(&path.join(CONFIG_FILE));
        if !file.exists() && existing.is_ok_and(|existing| existing != identity) {
            return Err(DirectoryError::ForeignConfig(path));
        }
        // Creating this file claims the directory: if two runs start at once, one of them is refused.
        let events = match File::create_new(&file) {
            Ok(events) => lock(events, &path)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let remedy = match Checkpoint::newest(&path) {
                    _ if is_finished(top) => "remove it, or ",
                    Ok((Some(_), _)) => "resume it with --resume, or ",
                    Ok((None, damaged)) if damaged.is_empty() => "remove it, or ",
                    // It may have checkpoints that cannot be read now.
                    _ => "",
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
            events: EventWriter::new(events),
            identity,
            checkpoint: None,
            warnings: vec![],
        })
    }

    /// Starts the run in `path`, or resumes it. Returns `None` if it is over. The run is extended if it has fewer epochs
    /// than the experiment, and what is measured and kept may differ.
    pub fn open(path: &Path, experiment: &Experiment, location: &RunLocation) -> Result<Option<Self>> {
        refuse_another_run(path, experiment)?;
        if has_ended(path, experiment) {
            return Ok(None);
        }
        let events = path.join(EVENTS_FILE);
        if !events.exists() {
            return Self::create(path, experiment, location).map(Some);
        }
        if readable(Checkpoint::newest(path)?)?.0.is_some() {
            return Self::resume(path, experiment, location).map(Some);
        }
        // The run was stopped before its first checkpoint, or no checkpoint is intact: there is nothing to lose.
        let file = crate::files::open_regular(&events).map_err(DirectoryError::io("read", &events))?;
        let lock = lock(file, path)?;
        let mut warnings = Vec::new();
        for error in readable(Checkpoint::newest(path)?)?.1 {
            let kept = set_aside(error.path())?;
            warnings.push(format!("{error}; it is kept as {}, and the run starts over", kept.display()));
        }
        for file in [Summary::FILE, CONFIG_FILE, EVENTS_FILE] {
            remove(&path.join(file))?;
        }
        drop(lock);
        let mut directory = Self::create(path, experiment, location)?;
        directory.warnings = warnings;
        Ok(Some(directory))
    }

    /// Continues the run of an external training loop, which keeps its own checkpoints, before `round`. Creates the
    /// directory if there is none.
    pub fn open_at(top: &Path, experiment: &Experiment, location: &RunLocation, round: u64) -> Result<Self> {
        let path = location.own_directory(top);
        let file = path.join(EVENTS_FILE);
        if !file.exists() {
            return Self::create(top, experiment, location);
        }
        if let Some(Change::Other(what)) = change(top, experiment) {
            return Err(DirectoryError::OtherConfiguration { path: top.to_owned(), what });
        }
        let mut options = File::options();
        let events = crate::files::open_regular_with(options.read(true).write(true), &file);
        let mut events = lock(events.map_err(DirectoryError::io("write", &file))?, &path)?;
        if location.writes_summary() {
            remove(&top.join(Summary::FILE))?;
        }
        write_config(&path, &experiment.identity(), experiment)?;
        let epoch = experiment.sampler.rounds_per_epoch();
        events::truncate(&mut events, round, epoch).map_err(DirectoryError::io("write", &file))?;
        Ok(Self {
            top: top.to_owned(),
            path,
            location: location.clone(),
            events: EventWriter::new(events),
            identity: experiment.identity(),
            checkpoint: None,
            warnings: vec![],
        })
    }

    /// Resumes the run in `top` from its newest intact checkpoint, however many processes wrote it. The experiment may
    /// have more epochs than the run had: it is then extended. What is measured and kept may differ, too.
    pub fn resume(top: &Path, experiment: &Experiment, location: &RunLocation) -> Result<Self> {
        let path = location.own_directory(top);
        if !peer_directories(top).is_empty() {
            return Err(DirectoryError::PeerRun(top.to_owned()));
        }
        let no_checkpoint = || match Checkpoint::newest(&path) {
            // Of some of the workers.
            Ok((Some(_), _)) => DirectoryError::PartOfRun(top.to_owned()),
            _ => DirectoryError::NoCheckpoint(top.to_owned()),
        };
        let has_rounds = experiment.method.synchronous().is_some();
        // Create nothing if there is no checkpoint to resume from. Do not read the checkpoints of a run in progress.
        let is_new = !path.join(EVENTS_FILE).exists();
        if is_new && (!top.is_dir() || location.newest(top, has_rounds)?.0.is_none()) {
            return Err(no_checkpoint());
        }
        let change = change(top, experiment).unwrap_or(Change::None);
        if let Change::Other(what) = change {
            return Err(DirectoryError::OtherConfiguration { path: top.to_owned(), what });
        }
        if is_finished(top) && !matches!(change, Change::Epochs { .. }) {
            return Err(DirectoryError::Finished(top.to_owned()));
        }
        if path != top {
            crate::files::create_directory(&path).map_err(DirectoryError::io("create", &path))?;
        }
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let events = crate::files::open_regular_with(&mut options, &path.join(EVENTS_FILE));
        let events = events.map_err(DirectoryError::io("write", &path.join(EVENTS_FILE)))?;
        let mut events = lock(events, &path)?;
        let (checkpoint, damaged) = location.newest(top, has_rounds)?;
        let checkpoint = checkpoint.ok_or_else(no_checkpoint)?;
        let mut warnings = Vec::new();
        match Change::between(&checkpoint.config, experiment) {
            Change::None | Change::Recording => {}
            Change::Epochs { from, to } => warnings.push(change::extension(experiment, from, to)),
            Change::Other(what) => return Err(DirectoryError::OtherConfiguration { path: top.to_owned(), what }),
        }
        let identity = experiment.identity();
        for error in &damaged {
            // A damaged file would count among the checkpoints that are kept.
            let kept = match error.path().parent() == Some(path.as_path()) {
                true => format!("kept as {}", set_aside(error.path())?.display()),
                false => "ignored".into(),
            };
            warnings.push(format!("{error}; it is {kept}"));
        }
        crate::files::remove_unfinished(&path).map_err(DirectoryError::io("write to", &path))?;
        // If this process were killed, the old summary would be mistaken for the summary of this run.
        if location.writes_summary() {
            remove(&top.join(Summary::FILE))?;
        }
        // Own data may have another place than before.
        if change != Change::None || own_data(&path).is_some() {
            write_config(&path, &identity, experiment)?;
            if location.writes_summary() && path != top {
                write_config(top, &identity, experiment)?;
            }
        }
        let epoch = experiment.sampler.rounds_per_epoch();
        events::truncate(&mut events, checkpoint.progress.round, epoch)
            .map_err(DirectoryError::io("write", &path.join(EVENTS_FILE)))?;
        Ok(Self {
            top: top.to_owned(),
            path,
            location: location.clone(),
            events: EventWriter::new(events),
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

    /// Whether checkpoints are complete without those of other processes.
    pub(super) fn has_own_checkpoints(&self) -> bool {
        !self.location.is_shared || self.location.placement.has_all_rows()
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

    /// Appends an event. After a [transient](DirectoryError::is_transient) error the event is not lost: it is written
    /// with the next ones.
    pub(super) fn record(&mut self, event: &Event) -> Result<()> {
        let written = self.events.append(event);
        written.map_err(DirectoryError::io("write", &self.path.join(EVENTS_FILE)))
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        let flushed = self.events.flush();
        flushed.map_err(DirectoryError::io("write", &self.path.join(EVENTS_FILE)))
    }

    /// Writes the best model so far, unless another process writes it.
    pub(super) fn write_best(&self, model: &[u8]) -> Result<()> {
        let path = self.top.join(BestModel::FILE);
        match self.location.writes_summary() {
            true => crate::files::replace(&path, model).map_err(DirectoryError::io("write", &path)),
            false => Ok(()),
        }
    }

    /// Writes the summary, and the model if there is one, unless another process writes them.
    pub(super) fn finish(&mut self, summary: &Summary, model: Option<Vec<u8>>) -> Result<()> {
        self.flush()?;
        if !self.location.writes_summary() {
            return Ok(());
        }
        let write = |name: &str, content: &[u8]| {
            let path = self.top.join(name);
            crate::files::replace(&path, content).map_err(DirectoryError::io("write", &path))
        };
        if let Some(model) = model {
            write("model.safetensors", &model)?;
        }
        let text = serde_json::to_string_pretty(summary).map_err(std::io::Error::from);
        let text = text.map_err(DirectoryError::io("write", &self.top.join(Summary::FILE)))?;
        write(Summary::FILE, (text + "\n").as_bytes())
    }
}

/// Locks a file while it is open, so that no other process writes to a run in progress.
pub fn lock(file: File, directory: &Path) -> Result<File> {
    match file.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => Err(DirectoryError::InUse(directory.to_owned())),
        // Some network file systems do not support locks. That should not prevent training.
        Ok(()) | Err(std::fs::TryLockError::Error(_)) => Ok(file),
    }
}

/// Refuses a directory that holds a run that this experiment does not continue, and names what differs.
pub fn refuse_another_run(path: &Path, experiment: &Experiment) -> Result<()> {
    refuse_inside_run(path)?;
    match other_run(path, experiment) {
        Some(what) => Err(DirectoryError::OtherRun { path: path.to_owned(), what }),
        None => Ok(()),
    }
}

/// Refuses a directory somewhere inside that of a run, where it would count as a part of that run.
pub fn refuse_inside_run(path: &Path) -> Result<()> {
    let absolute = std::path::absolute(path).map_err(DirectoryError::io("use", path))?;
    // The part of the path that exists, without links and `..`.
    let existing = absolute.ancestors().skip(1).find_map(|ancestor| ancestor.canonicalize().ok());
    let is_run = |folder: &&Path| folder.join(EVENTS_FILE).exists() && folder.join(CONFIG_FILE).exists();
    match existing.as_deref().and_then(|existing| existing.ancestors().find(is_run)) {
        Some(run) => Err(DirectoryError::InsideRun { path: path.to_owned(), run: run.to_owned() }),
        None => Ok(()),
    }
}

/// Whether a process is writing to the run in a directory now.
pub fn is_running(path: &Path) -> bool {
    let events = crate::files::open_regular(&path.join(EVENTS_FILE));
    // A shared lock, released at once: readers do not get in each other's way.
    events.is_ok_and(|file| matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)))
}

/// What differs, if a directory holds a run that this experiment does not continue. More epochs, and other settings for
/// what is measured and kept, continue it.
pub fn other_run(path: &Path, experiment: &Experiment) -> Option<String> {
    match change(path, experiment) {
        Some(Change::Other(what)) => Some(what),
        _ => None,
    }
}

/// Whether a directory holds this run, and no rounds are left to run. A run that diverged does not go on, however many
/// epochs it gets.
pub fn has_ended(path: &Path, experiment: &Experiment) -> bool {
    match change(path, experiment) {
        Some(Change::None | Change::Recording) => is_over(path),
        Some(Change::Epochs { .. }) => is_over(path) && !is_finished(path),
        Some(Change::Other(_)) | None => false,
    }
}

/// How an experiment differs from the run in a directory, if there is one.
fn change(path: &Path, experiment: &Experiment) -> Option<Change> {
    let existing = crate::files::read_text(&path.join(CONFIG_FILE)).ok()?;
    Some(Change::between(&existing, experiment))
}

/// The directories in which peers on one machine have stored their parts of a run, by worker. Symbolic links are not
/// followed.
pub fn peer_directories(top: &Path) -> Vec<(usize, PathBuf)> {
    let entries = std::fs::read_dir(top).into_iter().flatten().flatten();
    let peer = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let name = path.file_name()?.to_str()?;
        let worker = name.strip_prefix("peer-")?.parse().ok()?;
        let is_directory = entry.file_type().ok()?.is_dir();
        (is_directory && path.join(EVENTS_FILE).exists()).then_some((worker, path))
    };
    entries.filter_map(peer).collect()
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
