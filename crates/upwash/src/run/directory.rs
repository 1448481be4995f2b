//! Run directories: the resolved configuration, events as they happen, checkpoints, the summary and the model.
//!
//! A process that holds all workers writes into the directory itself. Processes that share one (MPI ranks) have
//! subdirectories `rank-N`; peers have directories of their own.

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

/// How long an event may stay in the buffer: somebody may be watching.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

type Result<T> = std::result::Result<T, DirectoryError>;

/// Which part of a run this process keeps, and whether others keep theirs in the same directory.
#[derive(Clone, Debug)]
pub struct RunLocation {
    /// Which worker is in which process.
    pub placement: Placement,
    /// Whether other processes of the run use the same directory.
    pub is_shared: bool,
}

impl RunLocation {
    /// All workers are in this process.
    pub fn local(experiment: &Experiment) -> Self {
        Self { placement: Placement::new(experiment.workers(), 1, 0), is_shared: false }
    }

    /// The directory of this process: the run's, or one in it.
    fn own_directory(&self, top: &Path) -> PathBuf {
        match self.is_shared && !self.placement.is_whole() {
            true => top.join(format!("rank-{}", self.placement.this())),
            false => top.to_owned(),
        }
    }

    /// Whether this process leaves the summary and the model.
    fn sums_up(&self) -> bool {
        !self.is_shared || self.placement.this() == 0
    }

    /// The newest checkpoint of this process's workers. Processes that go in rounds need theirs of the same round.
    fn newest(&self, top: &Path, has_rounds: bool) -> Result<(Option<Checkpoint>, Vec<CheckpointError>)> {
        let found = match (self.is_shared && has_rounds) || self.placement.is_whole() {
            true => Checkpoint::newest_of(&checkpoint_directories(top), self.placement.own()),
            false => Checkpoint::newest(&self.own_directory(top)),
        };
        Ok(found?)
    }
}

/// All directories in which processes that shared `top` may have left checkpoints.
fn checkpoint_directories(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let inside = std::fs::read_dir(top).into_iter().flatten().flatten();
    found.extend(inside.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_dir() && name.is_some_and(|name| name.starts_with("rank-"))
    }));
    found
}

/// A directory that belongs to one run, and is locked as long as this lives.
pub struct RunDirectory {
    /// The run's.
    top: PathBuf,
    /// This process's: the same, if there is only one.
    path: PathBuf,
    location: RunLocation,
    events: BufWriter<File>,
    flushed: Instant,
    identity: String,
    checkpoint: Option<Checkpoint>,
    warnings: Vec<String>,
}

impl RunDirectory {
    /// Makes `top`, which must not hold a run already.
    pub fn create(top: &Path, experiment: &Experiment, location: &RunLocation) -> Result<Self> {
        let path = location.own_directory(top);
        std::fs::create_dir_all(&path).map_err(DirectoryError::io("make", &path))?;
        let of_one_process = path != top && top.join(EVENTS_FILE).exists();
        if of_one_process || !peer_directories(top).is_empty() {
            let (path, remedy) = (top.to_owned(), "");
            return Err(DirectoryError::Occupied { path, remedy });
        }
        let (file, identity) = (path.join(EVENTS_FILE), experiment.identity());
        let known = std::fs::read_to_string(path.join(CONFIG_FILE));
        if !file.exists() && known.is_ok_and(|known| known != identity) {
            return Err(DirectoryError::ForeignConfig(path));
        }
        // Whoever makes this file owns the directory: of two runs at once, one is refused.
        let events = match File::create_new(&file) {
            Ok(events) => lock(events, &path)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let remedy = match Checkpoint::newest(&path) {
                    Ok((Some(_), _)) if !is_finished(top) => "go on with --resume, or ",
                    _ => "remove it, or ",
                };
                return Err(DirectoryError::Occupied { path, remedy });
            }
            Err(error) => return Err(DirectoryError::io("write", &file)(error)),
        };
        write_config(&path, &identity, experiment)?;
        if location.sums_up() && path != top {
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

    /// Begins the run in `path`, or goes on with it; none if it is over.
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
        // The run was stopped before its first checkpoint, or none is whole: there is nothing to lose.
        let file = File::open(&events).map_err(DirectoryError::io("read", &events))?;
        let lock = lock(file, path)?;
        let mut warnings = Vec::new();
        for error in Checkpoint::newest(path)?.1 {
            warnings.push(format!("{error}; the run begins anew"));
            remove(error.path())?;
        }
        remove(&path.join(Summary::FILE))?;
        remove(&events)?;
        drop(lock);
        let mut directory = Self::create(path, experiment, location)?;
        directory.warnings = warnings;
        Ok(Some(directory))
    }

    /// Goes on with the run in `top` from its newest whole checkpoint, however many processes have left it.
    pub fn resume(top: &Path, experiment: &Experiment, location: &RunLocation) -> Result<Self> {
        let path = location.own_directory(top);
        if is_finished(top) {
            return Err(DirectoryError::Finished(top.to_owned()));
        }
        if !peer_directories(top).is_empty() {
            return Err(DirectoryError::OfPeers(top.to_owned()));
        }
        let nothing = || DirectoryError::NoCheckpoint(top.to_owned());
        let has_rounds = experiment.method.synchronous().is_some();
        // Where there is nothing to resume from, nothing is left behind. A run in progress is not looked into.
        let is_new = !path.join(EVENTS_FILE).exists();
        if is_new && (!top.is_dir() || location.newest(top, has_rounds)?.0.is_none()) {
            return Err(nothing());
        }
        if path != top {
            std::fs::create_dir_all(&path).map_err(DirectoryError::io("make", &path))?;
        }
        let events = File::options().read(true).write(true).create(true).truncate(false).open(path.join(EVENTS_FILE));
        let events = events.map_err(DirectoryError::io("write", &path.join(EVENTS_FILE)))?;
        let mut events = lock(events, &path)?;
        let (checkpoint, damaged) = location.newest(top, has_rounds)?;
        let checkpoint = checkpoint.ok_or_else(nothing)?;
        let identity = experiment.identity();
        if checkpoint.config != identity {
            return Err(DirectoryError::OtherConfiguration(top.to_owned()));
        }
        let mut warnings = Vec::new();
        for error in &damaged {
            warnings.push(format!("{error}; it is not used"));
            // It would count among those that are kept. What cannot be read now may be whole.
            let is_own = error.path().parent() == Some(path.as_path());
            if is_own && matches!(error, CheckpointError::Damaged { .. }) {
                remove(error.path())?;
            }
        }
        crate::files::remove_unfinished(&path).map_err(DirectoryError::io("write to", &path))?;
        // It is of what was, and would stand for what is if this process were killed.
        if location.sums_up() {
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

    /// The round that comes next, if the run is resumed.
    pub fn round(&self) -> Option<u64> {
        let checkpoint = self.checkpoint.as_ref();
        checkpoint.map(|checkpoint| checkpoint.progress.round)
    }

    /// This process's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the run's workers are.
    pub(super) fn placement(&self) -> &Placement {
        &self.location.placement
    }

    /// The configuration that the run's checkpoints belong to.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// The file of the checkpoint that the run goes on from.
    pub(super) fn checkpoint_path(&self) -> Option<PathBuf> {
        let round = self.round()?;
        Some(self.path.join(Checkpoint::file_name(round)))
    }

    /// What the run goes on from.
    pub(super) fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.checkpoint.take()
    }

    /// What the user should know about the state in which the directory was found.
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

    /// Leaves the summary, and the model if there is one, where this is the process that does.
    pub(super) fn finish(&mut self, summary: &Summary, model: Option<Vec<u8>>) -> Result<()> {
        self.flush()?;
        if !self.location.sums_up() {
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

/// Writes the configuration, and beside it the graph's file if it names one: the run can be trained again from here.
fn write_config(directory: &Path, config: &str, experiment: &Experiment) -> Result<()> {
    let path = directory.join(CONFIG_FILE);
    crate::files::write(&path, config.as_bytes()).map_err(DirectoryError::io("write", &path))?;
    let Some(file) = experiment.config.graph.topology.file() else {
        return Ok(());
    };
    let copy = directory.join(file.file_name().unwrap_or_default());
    let content = std::fs::read(file).map_err(DirectoryError::io("read", file))?;
    match std::fs::read(&copy) {
        Ok(known) if known == content => Ok(()),
        Ok(_) => Err(DirectoryError::OtherGraphFile { copy, file: file.to_owned() }),
        Err(_) => crate::files::write(&copy, &content).map_err(DirectoryError::io("write", &copy)),
    }
}

/// Removes a file, if it is there.
fn remove(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(DirectoryError::io("remove", file)(error)),
        _ => Ok(()),
    }
}

/// Removes the events that the run will make again, because they come after its checkpoint.
fn truncate_events(events: &mut File, round: u64, rounds_per_epoch: u64) -> std::io::Result<()> {
    let mut text = String::new();
    events.read_to_string(&mut text)?;
    let stays = |line: &&str| match serde_json::from_str(line) {
        Ok(Event::Round { round: index, .. }) => index < round,
        Ok(Event::Epoch { epoch, .. }) => epoch.saturating_mul(rounds_per_epoch) <= round,
        Ok(Event::Peer { round: next, .. } | Event::Control { round: next, .. }) => next <= round,
        Ok(Event::Started { .. } | Event::Graph { .. } | Event::Warning { .. }) => true,
        Ok(Event::Ended { .. } | Event::Unknown) | Err(_) => false,
    };
    let lines = text.split_inclusive('\n').take_while(stays);
    let kept: usize = lines.map(str::len).sum();
    events.set_len(kept as u64)?;
    events.seek(SeekFrom::End(0))?;
    Ok(())
}

/// Locks a file for as long as it is open: nobody else may write to a run in progress.
pub fn lock(file: File, directory: &Path) -> Result<File> {
    match file.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => Err(DirectoryError::InUse(directory.to_owned())),
        // Some network file systems have no locks; that is no reason not to train.
        Ok(()) | Err(std::fs::TryLockError::Error(_)) => Ok(file),
    }
}

/// Whether a directory holds a run of another configuration.
pub fn holds_another_run(path: &Path, experiment: &Experiment) -> bool {
    let known = std::fs::read_to_string(path.join(CONFIG_FILE));
    known.is_ok_and(|known| known != experiment.identity())
}

/// The directories in which peers on one machine have left their parts of a run, by worker.
pub fn peer_directories(top: &Path) -> Vec<(usize, PathBuf)> {
    let inside = std::fs::read_dir(top).into_iter().flatten().flatten();
    let peer = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let worker = name.strip_prefix("peer-")?.parse().ok()?;
        path.join(EVENTS_FILE).exists().then_some((worker, path))
    };
    inside.filter_map(|entry| peer(entry.path())).collect()
}

/// Whether a directory's run has finished or diverged, so that there is nothing more to run.
pub fn is_over(path: &Path) -> bool {
    let over = |status| matches!(status, Status::Finished | Status::Diverged { .. });
    status_in(path).is_some_and(over)
}

fn is_finished(path: &Path) -> bool {
    status_in(path) == Some(Status::Finished)
}

/// How the run in a directory ended, if it has, and its summary can be read.
fn status_in(path: &Path) -> Option<Status> {
    let summary = Summary::read(path).ok().flatten();
    summary.map(|summary| summary.status)
}
