//! A run and its folder: the resolved configuration, events as they happen, checkpoints, the summary.

mod execution;

pub(crate) use execution::{end_cleanly_when_interrupted, execute, execute_with, interrupted};

use crate::output::tell;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use upwash::checkpoint::{Checkpoint, CheckpointError};
use upwash::config::Config;
use upwash::experiment::{DataPaths, DatasetCache, Experiment};
use upwash::run::{Event, Status, Summary};
use upwash::transport::Placement;

/// How the program ends when a run diverged, and when it was interrupted.
pub(crate) const DIVERGED: u8 = 3;
pub(crate) const INTERRUPTED: u8 = 130;

/// How the program ends with a run.
pub(crate) fn exit_code(status: &Status) -> ExitCode {
    match status {
        Status::Finished => ExitCode::SUCCESS,
        Status::Diverged { .. } => ExitCode::from(DIVERGED),
        Status::Interrupted { .. } => ExitCode::from(INTERRUPTED),
    }
}

/// How long someone who watches is kept waiting.
const PATIENCE: Duration = Duration::from_millis(100);

/// Where this process's part of a run is kept.
#[derive(Clone, Debug)]
pub(crate) struct RunLocation {
    /// Whose workers are where.
    pub(crate) placement: Placement,
    /// Whether other processes have nothing to do with this folder.
    pub(crate) apart: bool,
}

impl RunLocation {
    /// All workers are here.
    pub(crate) fn whole(experiment: &Experiment) -> Self {
        Self {
            placement: Placement::new(experiment.workers(), 1, 0),
            apart: true,
        }
    }

    /// The folder of this process: the run's, or one in it.
    fn own_folder(&self, top: &Path) -> PathBuf {
        match self.apart || self.placement.is_whole() {
            true => top.to_owned(),
            false => top.join(format!("rank-{}", self.placement.this())),
        }
    }

    /// Whether this process leaves the summary and the model.
    fn sums_up(&self) -> bool {
        self.apart || self.placement.this() == 0
    }

    /// All folders in which processes may have left checkpoints.
    fn folders(&self, top: &Path) -> Vec<PathBuf> {
        let mut folders = vec![top.to_owned()];
        let inside = std::fs::read_dir(top).into_iter().flatten().flatten();
        folders.extend(inside.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            path.is_dir() && name.is_some_and(|name| name.starts_with("rank-"))
        }));
        folders
    }

    /// The newest checkpoint of this process's workers. Processes that go in rounds need theirs of the same round.
    fn newest(
        &self,
        top: &Path,
        rounds: bool,
    ) -> Result<(Option<Checkpoint>, Vec<CheckpointError>)> {
        Ok(
            match (self.apart || !rounds) && !self.placement.is_whole() {
                true => Checkpoint::newest(&self.own_folder(top))?,
                false => Checkpoint::newest_of(&self.folders(top), self.placement.own())?,
            },
        )
    }
}

/// A folder that is this run's alone. Where other processes have other workers, each has a folder of
/// its own in the run's: `rank-0`, `rank-1` and so on.
pub(crate) struct RunFolder {
    /// The run's.
    top: PathBuf,
    /// This process's: the same, where there is only one.
    path: PathBuf,
    home: RunLocation,
    events: BufWriter<File>,
    flushed: Instant,
    config: String,
    resumed: Option<Checkpoint>,
}

impl RunFolder {
    /// Makes `top`, which must not hold a run already.
    pub(crate) fn create(top: &Path, experiment: &Experiment, home: &RunLocation) -> Result<Self> {
        let path = &home.own_folder(top);
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        let of_one = path != top && top.join("events.jsonl").exists();
        ensure!(
            !of_one && peer_folders(top).is_empty(),
            "{} holds a run already: choose another folder with --out",
            top.display()
        );
        let (events, place) = (path.join("events.jsonl"), path.display());
        let config = experiment.identity();
        let there = std::fs::read_to_string(path.join("config.toml"));
        ensure!(
            events.exists() || there.is_err() || there.is_ok_and(|there| there == config),
            "{place} has a config.toml of its own, which a run would overwrite: choose another \
             folder with --out"
        );
        // Whoever makes this file owns the folder: of two runs at once, one is refused.
        let events = match File::create_new(&events) {
            Ok(file) => BufWriter::new(claimed(file, path)?),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let go_on = match Checkpoint::newest(path) {
                    Ok((Some(_), _)) if !is_finished(top) => "go on with --resume",
                    _ => "remove it",
                };
                bail!("{place} holds a run already: {go_on}, or choose another folder with --out")
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot write {}", events.display()));
            }
        };
        write_config(path, &config, experiment)?;
        if home.sums_up() && path != top {
            write_config(top, &config, experiment)?;
        }
        Ok(Self {
            top: top.to_owned(),
            path: path.to_owned(),
            home: home.clone(),
            events,
            flushed: Instant::now(),
            config,
            resumed: None,
        })
    }

    /// Begins the run in `path`, or goes on with it; none if it is done already.
    pub(crate) fn open(
        path: &Path,
        experiment: &Experiment,
        home: &RunLocation,
    ) -> Result<Option<Self>> {
        ensure!(
            !holds_another(path, experiment),
            "{} holds another run (see its config.toml): choose another folder with --out",
            path.display()
        );
        if is_over(path) {
            return Ok(None);
        }
        let events = path.join("events.jsonl");
        if !events.exists() {
            return Self::create(path, experiment, home).map(Some);
        }
        if Checkpoint::newest(path)?.0.is_some() {
            return Self::resume(path, experiment, home).map(Some);
        }
        // It was stopped before its first checkpoint, or none is whole: there is nothing to lose.
        let lock = claimed(File::open(&events)?, path)?;
        for error in Checkpoint::newest(path)?.1 {
            tell!("warning: {error}; the run begins anew");
            remove(error.path())?;
        }
        remove(&path.join("summary.json"))?;
        remove(&events)?;
        drop(lock);
        Self::create(path, experiment, home).map(Some)
    }

    /// Goes on with the run in `top`, from its newest whole checkpoint, however many processes have left
    /// it.
    pub(crate) fn resume(top: &Path, experiment: &Experiment, home: &RunLocation) -> Result<Self> {
        let (place, path) = (top.display(), &home.own_folder(top));
        ensure!(
            !is_finished(top),
            "the run in {place} is finished: see its summary.json, or choose another folder with --out"
        );
        ensure!(
            peer_folders(top).is_empty(),
            "{place} holds a run of peers: `upwash launch` with the same --out goes on with it"
        );
        let nothing = || {
            format!(
                "{place} has no checkpoint to resume from: remove it or choose another folder with \
                 --out, and run without --resume"
            )
        };
        if top.is_dir() && path != top {
            std::fs::create_dir_all(path)
                .with_context(|| format!("cannot make {}", path.display()))?;
        }
        let events = File::options()
            .read(true)
            .write(true)
            .create(path.is_dir())
            .truncate(false)
            .open(path.join("events.jsonl"));
        let mut events = claimed(events.with_context(nothing)?, path)?;
        let rounds = experiment.method.synchronous().is_some();
        let (checkpoint, damaged) = home.newest(top, rounds)?;
        for error in &damaged {
            tell!("warning: {error}; it is not used");
        }
        let checkpoint = checkpoint.with_context(nothing)?;
        let config = experiment.identity();
        ensure!(
            checkpoint.config == config,
            "{place} was run with another configuration, graph or data (see its config.toml): resume \
             with those"
        );
        // They would count among those that are kept. What cannot be read now may be whole.
        for error in &damaged {
            let own = error.path().parent() == Some(path.as_path());
            if own && matches!(error, CheckpointError::Damaged { .. }) {
                remove(error.path())?;
            }
        }
        upwash::files::remove_unfinished(path)
            .with_context(|| format!("cannot write to {}", path.display()))?;
        // It is of what was, and would stand for what is if this process were killed.
        if home.sums_up() {
            remove(&top.join("summary.json"))?;
        }
        let epoch = experiment.sampler.rounds_per_epoch();
        forget_what_comes_again(&mut events, checkpoint.progress.round, epoch)
            .with_context(|| format!("cannot write {place}/events.jsonl"))?;
        let (path, events) = (path.to_owned(), BufWriter::new(events));
        Ok(Self {
            top: top.to_owned(),
            path,
            home: home.clone(),
            events,
            flushed: Instant::now(),
            config,
            resumed: Some(checkpoint),
        })
    }

    /// How many rounds are behind it, if it goes on.
    pub(crate) fn round(&self) -> Option<u64> {
        let resumed = self.resumed.as_ref();
        resumed.map(|checkpoint| checkpoint.progress.round)
    }

    fn record(&mut self, event: &Event) -> Result<()> {
        serde_json::to_writer(&mut self.events, event)?;
        self.events.write_all(b"\n")?;
        // A round is worth buffering, but not for long: someone may be watching.
        if !matches!(event, Event::Round { .. }) || self.flushed.elapsed() > PATIENCE {
            self.events.flush()?;
            self.flushed = Instant::now();
        }
        Ok(())
    }
}

/// The configuration, and the graph's file beside it, where there is one: the run can be trained again from here.
fn write_config(folder: &Path, config: &str, experiment: &Experiment) -> Result<()> {
    crate::files::write(&folder.join("config.toml"), config.as_bytes())?;
    let Some(file) = experiment.config.graph.topology.file() else {
        return Ok(());
    };
    let copy = folder.join(file.file_name().unwrap_or_default());
    let read = std::fs::read(file);
    let content = read.with_context(|| format!("cannot read {}", file.display()))?;
    match std::fs::read(&copy) {
        Ok(there) => ensure!(
            there == content,
            "{} is another file than {}: choose another folder with --out",
            copy.display(),
            file.display()
        ),
        Err(_) => crate::files::write(&copy, &content)?,
    }
    Ok(())
}

/// Removes a file, if it is there.
fn remove(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// Whether this folder is of a run that is not this one.
pub(crate) fn holds_another(path: &Path, experiment: &Experiment) -> bool {
    let there = std::fs::read_to_string(path.join("config.toml"));
    there.is_ok_and(|there| there != experiment.identity())
}

/// The folders in which peers of one machine have left their parts of a run, by worker.
pub(crate) fn peer_folders(top: &Path) -> Vec<(usize, PathBuf)> {
    let inside = std::fs::read_dir(top).into_iter().flatten().flatten();
    let peer = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let worker = name.strip_prefix("peer-")?.parse().ok()?;
        path.join("events.jsonl").exists().then_some((worker, path))
    };
    inside.filter_map(|entry| peer(entry.path())).collect()
}

/// How the run in this folder ended, if it has and its summary can be read.
fn status_in(path: &Path) -> Option<Status> {
    let summary = Summary::read(path).ok().flatten();
    summary.map(|summary| summary.status)
}

/// Whether the run in this folder has come to its end.
fn is_finished(path: &Path) -> bool {
    matches!(status_in(path), Some(Status::Finished))
}

/// Whether there is nothing more to run in this folder.
pub(crate) fn is_over(path: &Path) -> bool {
    matches!(
        status_in(path),
        Some(Status::Finished | Status::Diverged { .. })
    )
}

/// The experiment that a file describes, with replacements on top.
pub(crate) fn read_config(path: &Path, replacements: &[String]) -> Result<Experiment> {
    read_next_config(path, replacements, &mut DatasetCache::default())
}

/// The same, one of several.
pub(crate) fn read_next_config(
    path: &Path,
    replacements: &[String],
    cache: &mut DatasetCache,
) -> Result<Experiment> {
    let place = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {place}"))?;
    let config = Config::parse(&text, replacements).with_context(|| place.to_string())?;
    let folders = DataPaths {
        files: path.parent().unwrap_or(Path::new("")).to_owned(),
        ..DataPaths::standard()
    };
    Experiment::prepare_next(config, &folders, cache).with_context(|| place.to_string())
}

/// Cuts the events off where the run goes on: what happened after its checkpoint will happen again.
fn forget_what_comes_again(events: &mut File, round: u64, rounds_per_epoch: u64) -> Result<()> {
    let mut text = String::new();
    events.read_to_string(&mut text)?;
    let stays = |line: &&str| match serde_json::from_str(line) {
        Ok(Event::Round { round: index, .. }) => index < round,
        Ok(Event::Epoch { epoch, .. }) => epoch.saturating_mul(rounds_per_epoch) <= round,
        Ok(Event::Peer { round: next, .. } | Event::Control { round: next, .. }) => next <= round,
        Ok(Event::Started { .. } | Event::Graph { .. } | Event::Warning { .. }) => true,
        Ok(Event::Ended { .. } | Event::Unknown) | Err(_) => false,
    };
    let kept: usize = text
        .split_inclusive('\n')
        .take_while(stays)
        .map(str::len)
        .sum();
    events.set_len(kept as u64)?;
    events.seek(std::io::SeekFrom::End(0))?;
    Ok(())
}

/// The file, locked for as long as it is open: nobody else may write to a run that goes on.
pub(crate) fn claimed(file: File, folder: &Path) -> Result<File> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            bail!(
                "a run is writing to {}: wait for its end, or stop it",
                folder.display()
            )
        }
        // Some network file systems have no locks; that is no reason not to train.
        Err(std::fs::TryLockError::Error(_)) => Ok(file),
    }
}
