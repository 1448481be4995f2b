//! Reading a run's folder while it is written: again and again, only what has been added.

use crate::events::{Skipped, Source, number_of_round, some};
use crate::page::{POINTS, thinned};
use crate::{ReadError, Run};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use upwash::run::{Event, Status, Summary};

/// A run whose folder is read as it grows: events of one process, or of several that are one run.
pub struct Follower {
    folder: PathBuf,
    parts: Vec<Part>,
    run: Run,
    /// How often it was begun anew, because events that had been read are gone.
    restarts: u64,
    /// Whether epochs are thinned out when there are many.
    lean: bool,
}

/// Events of one process.
struct Part {
    folder: PathBuf,
    source: Source,
    /// Lines and bytes that were read.
    lines: usize,
    offset: u64,
    /// The last of those bytes: as long as they are there, so is what was read.
    last: Vec<u8>,
    /// The beginning of one more line, which may be half written.
    rest: Vec<u8>,
    /// The round with which it began the last time, and how it ended since.
    started: u64,
    ending: Option<Status>,
    /// What it had sent, by epochs.
    bytes: Vec<(u64, u64)>,
    /// Lines of a later version; and such that could not be read, with what was wrong with the first.
    unknown: usize,
    unreadable: usize,
    mistake: String,
}

/// Bytes by which a place in a file is known again.
const KNOWN: usize = 64;

impl Follower {
    /// Finds a run; nothing of it is read yet.
    pub fn open(folder: &Path) -> Result<Self, ReadError> {
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = whole.file_name().map(|name| crate::read::printable(&name.to_string_lossy()));
        let follower = Self {
            folder: folder.to_owned(),
            parts: vec![],
            run: Run { name: name.unwrap_or_else(|| "run".into()), ..Run::default() },
            restarts: 0,
            lean: false,
        };
        match parts(folder).is_empty() {
            true => Err(ReadError::NoRun(folder.to_owned())),
            false => Ok(follower),
        }
    }

    /// Keeps no more epochs than can be seen, however long the run.
    #[must_use]
    pub fn lean(mut self) -> Self {
        self.lean = true;
        self
    }

    /// What was read so far.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Folders of the processes that have not ended.
    pub fn going_on(&self) -> impl Iterator<Item = &Path> {
        let going = self.newest().filter(|part| part.ending.is_none());
        going.map(|part| part.folder.as_path())
    }

    /// Whether a line has begun that is not complete.
    pub fn is_cut(&self) -> bool {
        self.parts.iter().any(|part| !part.rest.is_empty())
    }

    /// When its events were written to the last time, if that can be known.
    pub fn written(&self) -> Option<std::time::SystemTime> {
        let time = |part: &Part| {
            let about = std::fs::metadata(part.folder.join("events.jsonl")).ok()?;
            about.modified().ok()
        };
        self.parts.iter().filter_map(time).max()
    }

    /// How often it was begun anew.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// The processes that have the run now: it may have begun in others.
    fn newest(&self) -> impl Iterator<Item = &Part> {
        let newest = self.parts.iter().max_by_key(|part| part.started);
        let alone = newest.is_some_and(|part| part.source.alone);
        self.parts.iter().filter(move |part| part.source.alone == alone)
    }

    /// Reads what was added; whether anything was.
    pub fn read(&mut self) -> Result<bool, ReadError> {
        let mut all = std::mem::take(&mut self.parts);
        for (folder, source) in parts(&self.folder) {
            if !all.iter().any(|part| part.folder == folder) {
                all.push(Part::new(folder, source));
            }
        }
        // What one process has gone on with comes after what several have begun.
        all.sort_by(|a, b| (a.source, &a.folder).cmp(&(b.source, &b.folder)));
        let gone = all.iter().any(|part| !part.is_there());
        if gone {
            // A run that was stopped goes on from its checkpoint, and what came after that comes again.
            all.retain(|part| part.folder.join("events.jsonl").exists());
            for part in &mut all {
                *part = Part::new(part.folder.clone(), part.source);
            }
            let name = std::mem::take(&mut self.run.name);
            self.run = Run { name, ..Run::default() };
            self.restarts += 1;
        }
        let mut news = gone;
        let result = all.iter_mut().try_for_each(|part| {
            news |= part.read(&mut self.run)?;
            Ok(())
        });
        self.parts = all;
        result?;
        if news {
            self.settle();
        }
        news |= self.read_the_rest();
        Ok(news)
    }

    /// What all processes say together.
    fn settle(&mut self) {
        let endings: Option<Vec<&Status>> = self.newest().map(|part| part.ending.as_ref()).collect();
        let worst = |endings: Vec<&Status>| {
            let found = |kind: fn(&Status) -> bool| endings.iter().find(|ending| kind(ending)).copied();
            found(|ending| matches!(ending, Status::Diverged { .. }))
                .or(found(|ending| matches!(ending, Status::Interrupted { .. })))
                .or(endings.first().copied())
                .cloned()
        };
        self.run.ending = endings.and_then(worst);
        self.run.processes = self.newest().count();
        if self.parts.len() > 1 {
            let known = |part: &Part, epoch: u64| {
                let after = part.bytes.partition_point(|entry| entry.0 <= epoch);
                Some(part.bytes[after.checked_sub(1)?].1)
            };
            for epoch in &mut self.run.epochs {
                let one = self.parts.iter().filter(|part| part.source.alone);
                let whole = one.filter_map(|part| known(part, epoch.epoch)).max();
                let each = self.parts.iter().filter(|part| !part.source.alone);
                let sum = || each.filter_map(|part| known(part, epoch.epoch)).sum();
                epoch.bytes = whole.unwrap_or_else(sum);
            }
        }
        if self.lean && self.run.epochs.len() > 4 * POINTS {
            self.run.epochs = thinned(&self.run.epochs).into_iter().cloned().collect();
        }
        let notices = self.parts.iter().flat_map(Part::notices);
        self.run.notices = self.run.warnings.iter().cloned().chain(notices).collect();
    }

    /// Files that are written once: the configuration in the beginning, summaries in the end.
    fn read_the_rest(&mut self) -> bool {
        if self.run.config.is_empty() {
            let folders = [&self.folder].into_iter();
            let mut folders = folders.chain(self.parts.iter().map(|part| &part.folder));
            let read = |folder: &PathBuf| std::fs::read_to_string(folder.join("config.toml")).ok();
            self.run.config = folders.find_map(read).unwrap_or_default();
        }
        if self.run.ending.is_none() || !self.run.per_worker.is_empty() {
            return false;
        }
        let own: Vec<(PathBuf, Source, Option<Status>)> =
            self.newest().map(|part| (part.folder.clone(), part.source, part.ending.clone())).collect();
        for (folder, source, ending) in own {
            self.run.read_summary(&folder, source.peer, &ending);
        }
        let ending = self.run.ending.clone();
        self.run.read_summary(&self.folder, None, &ending);
        !self.run.per_worker.is_empty()
    }

    /// All there is, with notices of what could not be read.
    pub fn into_run(mut self) -> Result<Run, ReadError> {
        for part in &mut self.parts {
            // The last line of a run that was cut off may be whole all the same.
            let rest = std::mem::take(&mut part.rest);
            if !rest.is_empty() && !part.understand(&rest, &mut self.run) {
                part.rest = rest;
            }
        }
        self.settle();
        if self.run.workers == 0 {
            return Err(ReadError::Empty(self.folder));
        }
        for part in self.parts.iter().filter(|part| !part.rest.is_empty()) {
            let place = part.folder.join("events.jsonl");
            let what = "the last line is cut; what is before it is shown";
            self.run.notices.push(format!("{}: {what}", place.display()));
        }
        Ok(self.run)
    }
}

/// Where a run's processes write: its own folder, and those in it.
fn parts(folder: &Path) -> Vec<(PathBuf, Source)> {
    let inside = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let part = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let number = |kind: &str| name.strip_prefix(kind)?.parse().ok();
        let (peer, rank): (Option<usize>, Option<usize>) = (number("peer-"), number("rank-"));
        let there = path.join("events.jsonl").exists();
        let alone = false;
        (there && (peer.is_some() || rank.is_some())).then_some((path, Source { peer, alone }))
    };
    let mut all: Vec<(PathBuf, Source)> = inside.filter_map(|entry| part(entry.path())).collect();
    if folder.join("events.jsonl").exists() {
        let (peer, alone) = (None, true);
        all.push((folder.to_owned(), Source { peer, alone }));
    }
    all
}

impl Part {
    fn new(folder: PathBuf, source: Source) -> Self {
        Self {
            folder,
            source,
            lines: 0,
            offset: 0,
            last: vec![],
            rest: vec![],
            started: 0,
            ending: None,
            bytes: vec![],
            unknown: 0,
            unreadable: 0,
            mistake: String::new(),
        }
    }

    /// Whether what was read is still there.
    fn is_there(&self) -> bool {
        let check = || -> std::io::Result<bool> {
            let mut file = File::open(self.folder.join("events.jsonl"))?;
            let mut bytes = vec![0; self.last.len()];
            file.seek(SeekFrom::Start(self.offset - self.last.len() as u64))?;
            match file.read_exact(&mut bytes) {
                Ok(()) => Ok(bytes == self.last),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.offset == 0 || check().unwrap_or(false)
    }

    /// Reads whole lines that were added; whether there were any.
    fn read(&mut self, run: &mut Run) -> Result<bool, ReadError> {
        let path = self.folder.join("events.jsonl");
        let failed = |error| ReadError::Io { path: path.clone(), error };
        let mut file = File::open(&path).map_err(failed)?;
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let (mut line, mut news) = (Vec::new(), false);
        let mut skipped = Skipped::default();
        self.rest.clear();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
                break;
            }
            if !line.ends_with(b"\n") {
                self.rest = line;
                break;
            }
            self.offset += line.len() as u64;
            self.lines += 1;
            let kept = line.len().min(KNOWN);
            self.last = line[line.len() - kept..].to_vec();
            news = true;
            match number_of_round(&line) {
                Some(round) if !run.batches.wants(round) => {
                    run.rounds_run = run.rounds_run.max(round + 1);
                    skipped.keep(&mut line);
                }
                _ => {
                    // Links and leaders are told when they change: an earlier line counts as long as
                    // no later one says otherwise.
                    skipped.apply(run, self.source);
                    if !self.understand(&line, run) {
                        self.unreadable += 1;
                    }
                }
            }
        }
        skipped.apply(run, self.source);
        Ok(news)
    }

    /// Whether it could be read.
    fn understand(&mut self, line: &[u8], run: &mut Run) -> bool {
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
                if self.mistake.is_empty() {
                    self.mistake = format!("line {}: {error}", self.lines);
                }
                false
            }
        }
    }

    /// What a reader should know of it.
    fn notices(&self) -> Vec<String> {
        let place = self.folder.join("events.jsonl");
        let place = place.display();
        let mut all = Vec::new();
        match self.unreadable {
            0 => {}
            1 => all.push(format!("{place}, {}; it is left out", self.mistake)),
            more => all
                .push(format!("{place}: {more} lines cannot be read and are left out, the first is {}", self.mistake)),
        }
        if self.unknown > 0 {
            all.push(format!(
                "{place}: {} events of a kind that this version of upwash does not know are left out",
                self.unknown
            ));
        }
        all
    }
}

impl Run {
    /// The summary of how it ended, if it is that; of a process that knows only its own worker, that one's part.
    fn read_summary(&mut self, place: &Path, peer: Option<usize>, ending: &Option<Status>) {
        let Ok(Some(mut summary)) = Summary::read(place) else {
            return;
        };
        if ending.as_ref() != Some(&summary.status) {
            return;
        }
        self.rounds_run = self.rounds_run.max(summary.rounds);
        summary.per_worker.retain(|worker| worker.id < self.workers);
        match peer {
            Some(worker) => self.per_worker.extend(summary.per_worker.into_iter().filter(|found| found.id == worker)),
            None => {
                self.per_worker = summary.per_worker;
                self.averaged_accuracy = some(summary.averaged_model_accuracy);
            }
        }
        self.per_worker.sort_by_key(|worker| worker.id);
    }
}
