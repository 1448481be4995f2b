//! Reading a run's folder while it is written: again and again, only what has been added.

use crate::{Batches, Epoch, Graph, Node, Now, ReadError, Run};
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use upwash::run::{Status, Wish};
use upwash_topology::Edge;

/// A run whose folder is read as it grows: events of one process, or of several that are one run.
pub struct Follower {
    folder: PathBuf,
    parts: Vec<Part>,
    run: Run,
    /// How often it was begun anew, because events that had been read are gone.
    restarts: u64,
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
    unknown: usize,
}

/// Whose events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    /// Who it is, where it knows only itself.
    peer: Option<usize>,
    /// Whether there is no other: what it does not know is nothing.
    alone: bool,
}

/// A line of events.jsonl but for those of rounds; a number that is none is null there.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Line {
    Started {
        algorithm: String,
        graph: String,
        workers: usize,
        centre: Option<usize>,
        parameters: usize,
        rounds: u64,
        rounds_per_epoch: u64,
    },
    Graph {
        matchings: Vec<Vec<Edge>>,
        #[serde(default)]
        places: Vec<Vec<usize>>,
    },
    Asked {
        round: u64,
        what: Wish,
    },
    Warning {
        message: String,
    },
    Peer {},
    Round(Round),
    Epoch {
        epoch: u64,
        train_losses: Vec<Option<f64>>,
        test_accuracies: Option<Vec<Option<f64>>>,
        consensus_distance: Option<f64>,
        bytes_sent: u64,
        simulated_seconds: f64,
    },
    Ended {
        #[serde(flatten)]
        ending: Status,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Round {
    round: u64,
    #[serde(default)]
    losses: Vec<Option<f64>>,
    links: Option<Vec<Edge>>,
    leaders: Option<Vec<Option<[usize; 2]>>>,
}

#[derive(Deserialize)]
struct Summary {
    nodes: Vec<Node>,
    averaged_model_accuracy: Option<f64>,
    rounds: u64,
}

/// As events begin that are most of a file.
const ROUND: &[u8] = br#"{"event":"round","round":"#;
/// Bytes by which a place in a file is known again.
const KNOWN: usize = 64;

/// Lines of rounds, of which few have to be understood.
#[derive(Default)]
struct Skipped {
    /// The last one; and the last that said something of links, and of leaders.
    last: Vec<u8>,
    links: Vec<u8>,
    leaders: Vec<u8>,
}

impl Follower {
    /// Finds a run; nothing of it is read yet.
    pub fn open(folder: &Path) -> Result<Self, ReadError> {
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = whole
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let follower = Self {
            folder: folder.to_owned(),
            parts: vec![],
            run: Run {
                name: name.unwrap_or_else(|| "run".into()),
                ..Run::default()
            },
            restarts: 0,
        };
        match parts(folder).is_empty() {
            true => Err(ReadError::NoRun(folder.to_owned())),
            false => Ok(follower),
        }
    }

    /// What was read so far.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Folders of the processes that are the run.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.folder.as_path())
    }

    /// How often it was begun anew.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Reads what was added; whether anything was.
    pub fn read(&mut self) -> Result<bool, ReadError> {
        for (folder, source) in parts(&self.folder) {
            if !self.parts.iter().any(|part| part.folder == folder) {
                self.parts.push(Part::new(folder, source));
            }
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.sort_by(|a, b| (&a.folder, a.source).cmp(&(&b.folder, b.source)));
        let gone = parts.iter().any(|part| !part.is_there());
        if gone {
            // A run that was stopped goes on from its checkpoint, and what came after that comes again.
            parts.retain(|part| part.folder.join("events.jsonl").exists());
            for part in &mut parts {
                *part = Part::new(part.folder.clone(), part.source);
            }
            let name = std::mem::take(&mut self.run.name);
            self.run = Run {
                name,
                ..Run::default()
            };
            self.restarts += 1;
        }
        let mut news = gone;
        let result = parts.iter_mut().try_for_each(|part| {
            news |= part.read(&mut self.run)?;
            Ok(())
        });
        self.parts = parts;
        result?;
        news |= self.read_the_rest();
        Ok(news)
    }

    /// Files that are written once: the configuration in the beginning, summaries in the end.
    fn read_the_rest(&mut self) -> bool {
        let folders: Vec<PathBuf> = [self.folder.clone()]
            .into_iter()
            .chain(self.parts.iter().map(|part| part.folder.clone()))
            .collect();
        let mut news = false;
        if self.run.config.is_empty() {
            let read = |folder: &PathBuf| std::fs::read_to_string(folder.join("config.toml")).ok();
            self.run.config = folders.iter().find_map(read).unwrap_or_default();
        }
        if self.run.graph.is_none() && self.run.workers > 0 {
            self.run.graph = Graph::configured(&self.run.config, self.run.workers);
        }
        if self.run.nodes.is_empty() {
            for part in &self.parts {
                self.run.read_summary(&part.folder, part.source.peer);
            }
            self.run.read_summary(&self.folder, None);
            news = !self.run.nodes.is_empty();
        }
        news
    }

    /// All there is, with notices of what could not be read.
    pub fn into_run(mut self) -> Result<Run, ReadError> {
        if self.run.workers == 0 {
            return Err(ReadError::Empty(self.folder));
        }
        for part in &mut self.parts {
            let place = part.folder.join("events.jsonl");
            let place = place.display();
            match serde_json::from_slice(&part.rest) {
                _ if part.rest.is_empty() => {}
                Ok(line) => self.run.happens(line, part.source),
                Err(_) => {
                    let what = format!("{place}: the last line is cut; what is before it is shown");
                    self.run.notice(what);
                }
            }
            if part.unknown > 0 {
                self.run.notices.push(format!(
                    "{place}: {} events of a kind that this version of upwash does not know are left out",
                    part.unknown
                ));
            }
        }
        Ok(self.run)
    }
}

/// Where a run's processes write: its own folder, or those in it.
fn parts(folder: &Path) -> Vec<(PathBuf, Source)> {
    if folder.join("events.jsonl").exists() {
        let (peer, alone) = (None, true);
        return vec![(folder.to_owned(), Source { peer, alone })];
    }
    let inside = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let part = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let peer = name
            .strip_prefix("peer-")
            .and_then(|number| number.parse().ok());
        let is_part = peer.is_some() || name.starts_with("rank-");
        let alone = false;
        (is_part && path.join("events.jsonl").exists()).then_some((path, Source { peer, alone }))
    };
    inside.filter_map(|entry| part(entry.path())).collect()
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
            unknown: 0,
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
        let failed = |error| ReadError::Io {
            path: path.clone(),
            error,
        };
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
                    self.understand(&path, &line, run);
                }
            }
        }
        skipped.apply(run, self.source);
        Ok(news)
    }

    fn understand(&mut self, path: &Path, line: &[u8], run: &mut Run) {
        match serde_json::from_slice::<Line>(line) {
            Ok(Line::Unknown) => self.unknown += 1,
            Ok(line) => run.happens(line, self.source),
            Err(error) => {
                let (place, number) = (path.display(), self.lines);
                run.notice(format!("{place}, line {number}: {error}; it is left out"));
            }
        }
    }
}

/// Of a line that tells of a round, its number.
fn number_of_round(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(ROUND)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

impl Skipped {
    fn keep(&mut self, line: &mut Vec<u8>) {
        let says = |what: &[u8]| memchr::memmem::find(line, what).is_some();
        let (links, leaders) = (says(br#""links":"#), says(br#""leaders":"#));
        if links {
            self.links.clone_from(line);
        }
        if leaders {
            self.leaders.clone_from(line);
        }
        std::mem::swap(&mut self.last, line);
    }

    fn apply(&mut self, run: &mut Run, source: Source) {
        let parse = |line: &[u8]| serde_json::from_slice::<Round>(line).ok();
        let now = &mut run.now;
        if let Some(round) = parse(&self.links) {
            now.links = round.links.or(now.links.take());
        }
        if let Some(round) = parse(&self.leaders) {
            now.follow(round.leaders, source);
        }
        if let Some(round) = parse(&self.last) {
            fill(&mut now.losses, round.losses);
        }
        *self = Self::default();
    }
}

impl Now {
    /// Someone follows another, or nobody any more.
    fn follow(&mut self, leaders: Option<Vec<Option<[usize; 2]>>>, source: Source) {
        match leaders {
            None => {}
            Some(leaders) if source.alone => self.leaders = leaders,
            Some(leaders) => {
                self.leaders.resize(leaders.len(), None);
                for (own, theirs) in self.leaders.iter_mut().zip(leaders) {
                    *own = theirs.or(*own);
                }
            }
        }
    }
}

/// What is known, and where it is not, what was known.
fn fill(own: &mut Vec<Option<f64>>, theirs: Vec<Option<f64>>) {
    own.resize(own.len().max(theirs.len()), None);
    for (own, theirs) in own.iter_mut().zip(theirs) {
        *own = theirs.or(*own);
    }
}

impl Run {
    fn happens(&mut self, line: Line, source: Source) {
        let peer = source.peer;
        match line {
            Line::Started {
                algorithm,
                graph,
                workers,
                centre,
                parameters,
                rounds,
                rounds_per_epoch,
            } => {
                (self.algorithm, self.graph_name) = (algorithm, graph);
                (self.workers, self.centre, self.parameters) = (workers, centre, parameters);
                (self.rounds, self.rounds_per_epoch) = (rounds, rounds_per_epoch);
                (self.ending, self.now.paused) = (None, false);
            }
            Line::Graph { matchings, places } => {
                if self.graph.is_none() {
                    self.graph = Graph::new(self.workers, matchings, places);
                }
            }
            Line::Asked { round, what } => {
                self.now.paused = match what {
                    Wish::Pause => true,
                    Wish::Checkpoint => self.now.paused,
                    Wish::Continue | Wish::Stop => false,
                };
                self.now.stopping |= what == Wish::Stop;
                if what == Wish::Checkpoint {
                    self.now.checkpoint = Some(round);
                }
            }
            Line::Warning { message } => self.notice(message),
            Line::Round(round) => {
                self.rounds_run = self.rounds_run.max(round.round + 1);
                self.batches.add(round.round, &round.losses);
                fill(&mut self.now.losses, round.losses);
                self.now.follow(round.leaders, source);
                self.now.links = round.links.or(self.now.links.take());
            }
            Line::Epoch {
                epoch,
                train_losses,
                test_accuracies,
                consensus_distance,
                bytes_sent,
                simulated_seconds,
            } => {
                self.rounds_run = self.rounds_run.max(epoch * self.rounds_per_epoch);
                let found = Epoch {
                    epoch,
                    losses: train_losses,
                    accuracies: test_accuracies,
                    consensus: consensus_distance,
                    bytes: bytes_sent,
                    seconds: simulated_seconds,
                };
                match self
                    .epochs
                    .binary_search_by_key(&epoch, |known| known.epoch)
                {
                    // What was run again counts as it was the last time.
                    Ok(place)
                        if peer.is_none()
                            && self.epochs[place].losses.iter().all(Option::is_some) =>
                    {
                        self.epochs[place] = found;
                    }
                    Ok(place) => self.epochs[place].join(found, peer.is_some()),
                    Err(place) => self.epochs.insert(place, found),
                }
            }
            Line::Ended { ending } => {
                self.ending = Some(ending);
                (self.now.paused, self.now.stopping) = (false, false);
            }
            Line::Peer {} | Line::Unknown => {}
        }
    }

    fn notice(&mut self, what: String) {
        if !self.notices.contains(&what) {
            self.notices.push(what);
        }
    }

    /// Of a process that knows only its own worker, that one's part.
    fn read_summary(&mut self, place: &Path, peer: Option<usize>) {
        let text = std::fs::read_to_string(place.join("summary.json")).unwrap_or_default();
        let Ok(summary) = serde_json::from_str::<Summary>(&text) else {
            return;
        };
        self.rounds_run = self.rounds_run.max(summary.rounds);
        match peer {
            Some(worker) => self
                .nodes
                .extend(summary.nodes.into_iter().filter(|node| node.id == worker)),
            None => {
                self.nodes = summary.nodes;
                self.averaged_accuracy = summary.averaged_model_accuracy;
            }
        }
        self.nodes.sort_by_key(|node| node.id);
    }
}

impl Batches {
    /// Points that are kept: twice as many as are drawn.
    const MOST: usize = 800;

    /// Whether a round would be kept.
    fn wants(&self, round: u64) -> bool {
        round.is_multiple_of(self.every.max(1))
    }

    fn add(&mut self, round: u64, losses: &[Option<f64>]) {
        self.every = self.every.max(1);
        if !self.wants(round) {
            return;
        }
        match self.rows.binary_search_by_key(&round, |row| row.0) {
            Ok(place) => fill(&mut self.rows[place].1, losses.to_vec()),
            Err(place) => self.rows.insert(place, (round, losses.to_vec())),
        }
        while self.rows.len() > Self::MOST {
            self.every *= 2;
            let every = self.every;
            self.rows.retain(|row| row.0.is_multiple_of(every));
        }
    }
}
