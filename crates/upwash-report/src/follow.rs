//! Reads a run's folder incrementally while the run writes to it. One file, because a run is put together from several
//! logs, of which each may grow, restart or be cut off in the meantime.

use crate::events::{Skipped, Source, non_nan, round_number};
use crate::page::{MAX_POINTS, thinned};
use crate::{ReadError, Run};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use upwash::files::{open_regular, printable, read_text};
use upwash::run::{Event, Status, Summary, directory};

/// A run whose folder is read as it grows. The run may consist of one process or of several.
pub struct Follower {
    folder: PathBuf,
    logs: Vec<EventLog>,
    run: Run,
    /// How often reading restarted from the beginning because events that had been read were gone.
    restarts: u64,
    /// Whether epochs are thinned out when there are many.
    thins_epochs: bool,
}

/// The event log of one process, and how far it has been read.
struct EventLog {
    folder: PathBuf,
    source: Source,
    /// Lines read so far.
    lines: usize,
    /// Bytes read so far.
    offset: u64,
    /// The last bytes read. While the file still has them there, it was only appended to.
    tail: Vec<u8>,
    /// The beginning of one more line that may not be completely written.
    partial_line: Vec<u8>,
    /// The first round of the newest start.
    started: u64,
    /// How the run ended since that start.
    ending: Option<Status>,
    /// Bytes sent up to each epoch, as (epoch, bytes).
    bytes: Vec<(u64, u64)>,
    /// Number of events of unknown kinds.
    unknown: usize,
    /// Number of lines that could not be read.
    unreadable: usize,
    /// The error of the first of those lines.
    first_error: String,
}

/// The longest line that is read: no event is longer.
const MAX_LINE_BYTES: u64 = upwash::files::MAX_TEXT_BYTES;

/// How many bytes of a log identify the position up to which it was read.
const TAIL_BYTES: usize = 64;

impl Follower {
    /// Opens a run's folder without reading any events.
    pub fn open(folder: &Path) -> Result<Self, ReadError> {
        let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = absolute.file_name().map(|name| printable(&name.to_string_lossy()));
        let follower = Self {
            folder: folder.to_owned(),
            logs: vec![],
            run: Run { name: name.unwrap_or_else(|| "run".into()), ..Run::default() },
            restarts: 0,
            thins_epochs: false,
        };
        match holds_run(folder) {
            true => Ok(follower),
            false if !folder.exists() => Err(ReadError::Missing(folder.to_owned())),
            false => Err(ReadError::NoRun(folder.to_owned())),
        }
    }

    /// Keeps no more epochs than a chart can show, however long the run.
    #[must_use]
    pub fn with_thinned_epochs(mut self) -> Self {
        self.thins_epochs = true;
        self
    }

    /// The run as read so far.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Folders of the processes that are still running.
    pub fn running_folders(&self) -> impl Iterator<Item = &Path> {
        let running = self.current_logs().filter(|log| log.ending.is_none());
        running.map(|log| log.folder.as_path())
    }

    /// Whether a log ends with an incomplete line.
    pub fn has_partial_line(&self) -> bool {
        self.logs.iter().any(|log| !log.partial_line.is_empty())
    }

    /// When the events were last modified, if the file system says so.
    pub fn modified(&self) -> Option<std::time::SystemTime> {
        let time = |log: &EventLog| {
            let metadata = std::fs::metadata(log.folder.join("events.jsonl")).ok()?;
            metadata.modified().ok()
        };
        self.logs.iter().filter_map(time).max()
    }

    /// How often reading restarted from the beginning.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// The logs of the processes that hold the run now. Others may have started it.
    fn current_logs(&self) -> impl Iterator<Item = &EventLog> {
        let newest = self.logs.iter().max_by_key(|log| log.started);
        let has_all_workers = newest.is_some_and(|log| log.source.has_all_workers);
        self.logs.iter().filter(move |log| log.source.has_all_workers == has_all_workers)
    }

    /// Reads what was added since the last call. Returns whether anything changed.
    pub fn read(&mut self) -> Result<bool, ReadError> {
        let mut all = std::mem::take(&mut self.logs);
        for (folder, source) in event_logs(&self.folder) {
            if !all.iter().any(|log| log.folder == folder) {
                all.push(EventLog::new(folder, source));
            }
        }
        // If several processes started the run and one continued it, the one comes last.
        all.sort_by(|a, b| (a.source, &a.folder).cmp(&(b.source, &b.folder)));
        let gone = all.iter().any(|log| !log.is_intact());
        if gone {
            // A run that was resumed from a checkpoint rewrites the events after that checkpoint.
            all.retain(|log| log.folder.join("events.jsonl").exists());
            for log in &mut all {
                *log = EventLog::new(log.folder.clone(), log.source);
            }
            let name = std::mem::take(&mut self.run.name);
            self.run = Run { name, ..Run::default() };
            self.restarts += 1;
        }
        let mut changed = gone;
        let result = all.iter_mut().try_for_each(|log| {
            changed |= log.read(&mut self.run)?;
            Ok(())
        });
        self.logs = all;
        result?;
        if changed {
            self.merge_logs();
        }
        changed |= self.read_config_and_summaries();
        Ok(changed)
    }

    /// Updates everything that depends on the logs of all processes.
    fn merge_logs(&mut self) {
        let endings: Option<Vec<&Status>> = self.current_logs().map(|log| log.ending.as_ref()).collect();
        let worst = |endings: Vec<&Status>| {
            let found = |kind: fn(&Status) -> bool| endings.iter().find(|ending| kind(ending)).copied();
            found(|ending| matches!(ending, Status::Diverged { .. }))
                .or(found(|ending| matches!(ending, Status::Isolated { .. })))
                .or(found(|ending| matches!(ending, Status::Interrupted { .. })))
                .or(endings.first().copied())
                .cloned()
        };
        self.run.ending = endings.and_then(worst);
        self.run.processes = self.current_logs().count();
        let is_of_peers = self.current_logs().any(|log| log.source.peer.is_some());
        self.run.is_of_peers = is_of_peers;
        if self.logs.len() > 1 {
            let bytes_until = |log: &EventLog, epoch: u64| {
                let after = log.bytes.partition_point(|entry| entry.0 <= epoch);
                Some(log.bytes[after.checked_sub(1)?].1)
            };
            for epoch in &mut self.run.epochs {
                let whole = self.logs.iter().filter(|log| log.source.has_all_workers);
                let total = whole.filter_map(|log| bytes_until(log, epoch.epoch)).max();
                let parts = self.logs.iter().filter(|log| !log.source.has_all_workers);
                let sum = || parts.filter_map(|log| bytes_until(log, epoch.epoch)).sum();
                epoch.bytes = total.unwrap_or_else(sum);
            }
        }
        if self.thins_epochs && self.run.epochs.len() > 4 * MAX_POINTS {
            self.run.epochs = thinned(&self.run.epochs).into_iter().cloned().collect();
        }
        let notices = self.logs.iter().flat_map(EventLog::notices);
        let notices = self.run.warnings.iter().cloned().chain(notices);
        self.run.notices = notices.map(|notice| printable(&notice)).collect();
    }

    /// Reads the files that are written once: the configuration at the start, summaries at the end. Returns whether the
    /// results of the workers were read.
    fn read_config_and_summaries(&mut self) -> bool {
        if self.run.config.is_empty() {
            let folders = [&self.folder].into_iter();
            let mut folders = folders.chain(self.logs.iter().map(|log| &log.folder));
            let read = |folder: &PathBuf| read_text(&folder.join("config.toml")).ok();
            self.run.config = folders.find_map(read).unwrap_or_default();
            // Threads, too, run in real time.
            let has_threads = |line: &str| line.replace(' ', "") == "asynchronous=\"threads\"";
            self.run.is_real_time |= self.run.config.lines().any(has_threads);
        }
        if self.run.ending.is_none() || !self.run.per_worker.is_empty() {
            return false;
        }
        let ended: Vec<(PathBuf, Source, Option<Status>)> =
            self.current_logs().map(|log| (log.folder.clone(), log.source, log.ending.clone())).collect();
        for (folder, source, ending) in ended {
            self.run.read_summary(&folder, source.peer, &ending);
        }
        let ending = self.run.ending.clone();
        self.run.read_summary(&self.folder, None, &ending);
        !self.run.per_worker.is_empty()
    }

    /// The whole run, with notices about lines that could not be read.
    pub fn into_run(mut self) -> Result<Run, ReadError> {
        for log in &mut self.logs {
            // A last line without a newline may still be complete.
            let line = std::mem::take(&mut log.partial_line);
            if !line.is_empty() && !log.apply_line(&line, &mut self.run) {
                log.partial_line = line;
            }
        }
        self.merge_logs();
        if self.run.workers == 0 {
            return Err(match self.logs.iter().any(|log| log.unreadable > 0 || !log.partial_line.is_empty()) {
                true => ReadError::Damaged(self.folder),
                false => ReadError::Empty(self.folder),
            });
        }
        self.run.is_running = self.logs.iter().any(|log| directory::is_running(&log.folder));
        for log in self.logs.iter().filter(|log| !log.partial_line.is_empty()) {
            let path = log.folder.join("events.jsonl");
            let notice = "the last line is incomplete and left out";
            self.run.notices.push(format!("{}: {notice}", path.display()));
        }
        Ok(self.run)
    }
}

/// Whether a folder is the folder of a run.
pub(crate) fn holds_run(folder: &Path) -> bool {
    !event_logs(folder).is_empty()
}

/// The folders in which the processes of a run write their events: the run's folder, or folders `rank-N` or `peer-N` in
/// it. Symbolic links in it are not followed.
fn event_logs(folder: &Path) -> Vec<(PathBuf, Source)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let process_folder = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let name = path.file_name()?.to_str()?;
        let number = |kind: &str| name.strip_prefix(kind)?.parse().ok();
        let (peer, rank): (Option<usize>, Option<usize>) = (number("peer-"), number("rank-"));
        let has_events = entry.file_type().ok()?.is_dir() && path.join("events.jsonl").exists();
        (has_events && (peer.is_some() || rank.is_some())).then_some((path, Source { peer, has_all_workers: false }))
    };
    let mut all: Vec<(PathBuf, Source)> = entries.filter_map(process_folder).collect();
    if folder.join("events.jsonl").exists() {
        all.push((folder.to_owned(), Source { peer: None, has_all_workers: true }));
    }
    all
}

impl EventLog {
    fn new(folder: PathBuf, source: Source) -> Self {
        Self {
            folder,
            source,
            lines: 0,
            offset: 0,
            tail: vec![],
            partial_line: vec![],
            started: 0,
            ending: None,
            bytes: vec![],
            unknown: 0,
            unreadable: 0,
            first_error: String::new(),
        }
    }

    /// Whether the part of the file that was read is unchanged.
    fn is_intact(&self) -> bool {
        let check = || -> std::io::Result<bool> {
            let mut file = open_regular(&self.folder.join("events.jsonl"))?;
            let mut bytes = vec![0; self.tail.len()];
            file.seek(SeekFrom::Start(self.offset - self.tail.len() as u64))?;
            match file.read_exact(&mut bytes) {
                Ok(()) => Ok(bytes == self.tail),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.offset == 0 || check().unwrap_or(false)
    }

    /// Reads the complete lines that were added. Returns whether there were any.
    fn read(&mut self, run: &mut Run) -> Result<bool, ReadError> {
        let path = self.folder.join("events.jsonl");
        let failed = |error| ReadError::Io { path: path.clone(), error };
        let mut file = open_regular(&path).map_err(failed)?;
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let (mut line, mut changed) = (Vec::new(), false);
        let mut skipped = Skipped::default();
        self.partial_line.clear();
        loop {
            line.clear();
            let length = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(failed)? as u64;
            if length == 0 {
                break;
            }
            if length == MAX_LINE_BYTES {
                let what = format!("line {} is longer than any event: this is no log of events", self.lines + 1);
                return Err(failed(Error::new(ErrorKind::InvalidData, what)));
            }
            if !line.ends_with(b"\n") {
                self.partial_line = line;
                break;
            }
            self.offset += line.len() as u64;
            self.lines += 1;
            let kept = line.len().min(TAIL_BYTES);
            self.tail = line[line.len() - kept..].to_vec();
            changed = true;
            match round_number(&line) {
                Some(round) if !run.batches.keeps(round) => {
                    run.rounds_run = run.rounds_run.max(round + 1);
                    skipped.keep(&mut line);
                }
                _ => {
                    // Links and leaders are written only when they change: those of a skipped line hold until a later
                    // line replaces them.
                    skipped.apply(run, self.source);
                    if !self.apply_line(&line, run) {
                        self.unreadable += 1;
                    }
                }
            }
        }
        skipped.apply(run, self.source);
        Ok(changed)
    }

    /// Parses a line and applies its event. Returns whether the line was valid.
    fn apply_line(&mut self, line: &[u8], run: &mut Run) -> bool {
        let result = serde_json::from_slice::<Event>(line).map_err(|error| error.to_string());
        let result = result.and_then(|event| {
            match &event {
                Event::Unknown => self.unknown += 1,
                Event::Started { round, .. } => (self.started, self.ending) = (*round, None),
                Event::Ended { status } => self.ending = Some(status.clone()),
                Event::Epoch { epoch, sent, .. } => {
                    let earlier = self.bytes.partition_point(|entry| entry.0 < *epoch);
                    self.bytes.truncate(earlier);
                    self.bytes.push((*epoch, sent.bytes_sent));
                }
                _ => {}
            }
            run.apply(event, self.source)
        });
        match result {
            Ok(()) => true,
            Err(error) => {
                if self.first_error.is_empty() {
                    self.first_error = format!("line {}: {error}", self.lines);
                }
                false
            }
        }
    }

    /// Notices about lines that were left out.
    fn notices(&self) -> Vec<String> {
        let path = self.folder.join("events.jsonl");
        let path = path.display();
        let mut all = Vec::new();
        match self.unreadable {
            0 => {}
            1 => all.push(format!("{path}, {}; this line is left out", self.first_error)),
            count => {
                all.push(format!("{path}: {count} unreadable lines are left out; the first is {}", self.first_error))
            }
        }
        if self.unknown > 0 {
            all.push(format!(
                "{path}: {} events of kinds unknown to this version of upwash are left out",
                self.unknown
            ));
        }
        all
    }
}

impl Run {
    /// Reads the summary in `folder`, if it belongs to this ending. The summary of a peer describes only its own
    /// worker.
    fn read_summary(&mut self, folder: &Path, peer: Option<usize>, ending: &Option<Status>) {
        let Ok(Some(mut summary)) = Summary::read(folder) else {
            return;
        };
        if ending.as_ref() != Some(&summary.status) {
            return;
        }
        self.rounds_run = self.rounds_run.max(summary.rounds);
        summary.per_worker.retain(|worker| worker.id.0 < self.workers);
        match peer {
            Some(worker) => {
                let participation =
                    summary.participation.filter(|found| found.rounds_skipped > 0 || found.seconds_alone > 0.1);
                self.participation.extend(participation.map(|found| (worker, found.to_string())));
                self.per_worker.extend(summary.per_worker.into_iter().filter(|found| found.id.0 == worker));
            }
            None => {
                self.per_worker = summary.per_worker;
                self.averaged_accuracy = non_nan(summary.averaged_model_accuracy);
                self.wall_seconds = summary.wall_seconds;
            }
        }
        self.per_worker.sort_by_key(|worker| worker.id);
    }
}
