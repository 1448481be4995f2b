//! A run as it was, or is so far.

use crate::Follower;
use crate::events::some;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use upwash::run::{Status, WorkerSummary};
use upwash_topology::Edge;

/// Why a folder cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Not a run's folder.
    #[error(
        "{0} is no run: it has no events.jsonl, and no folders rank-N or peer-N that have one. Give the folder that \
         `upwash train --out` was given"
    )]
    NoRun(PathBuf),
    /// It cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A run that has not begun.
    #[error("{0} has no event yet: the run has not begun, or its events are of a later version of upwash")]
    Empty(PathBuf),
}

/// A run as it was, or is so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// What it is called: its folder's name.
    pub name: String,
    /// The algorithm in words.
    pub algorithm: String,
    /// The graph in words.
    pub graph_name: String,
    /// Its links, where they can be known.
    pub graph: Option<Graph>,
    /// How many workers, a server included.
    pub workers: usize,
    /// The worker without data that serves the others, if there is one.
    pub server: Option<usize>,
    /// Numbers in a model.
    pub parameters: usize,
    /// Rounds in all.
    pub rounds: u64,
    /// Rounds in an epoch.
    pub rounds_per_epoch: u64,
    /// Rounds that have been run.
    pub rounds_run: u64,
    /// What happened in each epoch.
    pub epochs: Vec<Epoch>,
    /// Losses of single rounds, not of all.
    pub batches: Batches,
    /// The last round.
    pub now: Now,
    /// How it ended, if it has.
    pub ending: Option<Status>,
    /// Each worker at the end.
    pub per_worker: Vec<WorkerSummary>,
    /// The accuracy of the averaged model.
    pub averaged_accuracy: Option<f64>,
    /// The resolved configuration.
    pub config: String,
    /// In how many processes.
    pub processes: usize,
    /// What a reader should know.
    pub notices: Vec<String>,
    /// That of it which its events say.
    #[serde(skip)]
    pub(crate) warnings: Vec<String>,
}

/// The losses of rounds, of which some are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Batches {
    /// Every which.
    pub every: u64,
    /// Its number, and everyone's loss on its batch.
    pub rows: Vec<(u64, Vec<Option<f64>>)>,
}

/// Where a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Now {
    /// Everyone's last loss.
    pub losses: Vec<Option<f64>>,
    /// Over which links models went in the last round, where that is known.
    pub links: Option<Vec<Edge>>,
    /// Whom everyone followed in it: two leaders each, where someone follows any.
    pub leaders: Vec<Option<[usize; 2]>>,
    /// Whether it waits for someone who has paused it.
    pub paused: bool,
    /// Whether it was asked to stop.
    pub stopping: bool,
    /// The round before which a checkpoint was asked for the last time.
    pub checkpoint: Option<u64>,
}

/// A graph's links by matchings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Graph {
    /// Links, matching by matching.
    pub matchings: Vec<Vec<Edge>>,
    /// Where its workers are drawn, in the square from (0, 0) to (1, 1).
    pub positions: Vec<[f64; 2]>,
    /// Copies that take turns, where there are several: in copy c, worker k is at node `relabelings[c][k]`.
    pub relabelings: Vec<Vec<usize>>,
}

/// An epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Epoch {
    /// Its number, from 1.
    pub epoch: u64,
    /// Each worker's mean loss.
    pub losses: Vec<Option<f64>>,
    /// Each worker's accuracy, where it was tested.
    pub accuracies: Option<Vec<Option<f64>>>,
    /// How far the models are from their average.
    pub consensus: Option<f64>,
    /// Bytes sent so far.
    pub bytes: u64,
    /// Simulated seconds so far.
    pub seconds: f64,
}

impl Run {
    /// Reads a run's folder, whoever is writing to it.
    pub fn read(folder: &Path) -> Result<Self, ReadError> {
        let mut follower = Follower::open(folder)?;
        follower.read()?;
        follower.into_run()
    }

    /// Reads several, and names each by as much of its path as it takes to tell them apart.
    pub fn read_all(folders: &[PathBuf]) -> Result<Vec<Self>, ReadError> {
        let runs: Result<Vec<Self>, ReadError> = folders.iter().map(|folder| Self::read(folder)).collect();
        let mut runs = runs?;
        let whole = |folder: &PathBuf| folder.canonicalize().unwrap_or_else(|_| folder.clone());
        let whole: Vec<PathBuf> = folders.iter().map(whole).collect();
        let name = |path: &Path, parts: usize| {
            let all = path.components().filter_map(|part| match part {
                Component::Normal(name) => Some(printable(&name.to_string_lossy())),
                _ => None,
            });
            let all: Vec<_> = all.collect();
            all[all.len().saturating_sub(parts)..].join("/")
        };
        let different = whole.iter().collect::<BTreeSet<_>>().len();
        let longest = whole.iter().map(|path| path.components().count()).max();
        for parts in 1..=longest.unwrap_or(1) {
            for (run, path) in runs.iter_mut().zip(&whole) {
                run.name = name(path, parts);
            }
            let names: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
            if names.len() == different {
                break;
            }
        }
        // The same folder may be there more than once.
        let mut seen = BTreeMap::new();
        for (run, path) in runs.iter_mut().zip(&whole) {
            let times = seen.entry(path).or_insert(0);
            *times += 1;
            if *times > 1 {
                run.name += &format!(" ({times})");
            }
        }
        Ok(runs)
    }

    /// Accuracies of those who train, at the end or the last time they were tested.
    pub fn last_accuracies(&self) -> Vec<(usize, f64)> {
        let mut found: BTreeMap<usize, f64> = BTreeMap::new();
        for epoch in self.epochs.iter().rev() {
            if found.len() == self.workers {
                break;
            }
            for (worker, accuracy) in epoch.accuracies.iter().flatten().enumerate() {
                if let Some(accuracy) = accuracy {
                    found.entry(worker).or_insert(*accuracy);
                }
            }
        }
        for worker in &self.per_worker {
            found.extend(some(worker.test_accuracy).map(|accuracy| (worker.id, accuracy)));
        }
        let counts = |worker: &usize| *worker < self.workers && Some(*worker) != self.server;
        found.into_iter().filter(|(worker, _)| counts(worker)).collect()
    }
}

/// A name that does nothing to a terminal.
pub(crate) fn printable(name: &str) -> String {
    let letter = |letter: char| {
        if letter.is_control() { '\u{fffd}' } else { letter }
    };
    name.chars().map(letter).collect()
}

impl Epoch {
    /// What another process knows of the same epoch.
    pub(crate) fn join(&mut self, other: Self) {
        let fill = |own: &mut Vec<Option<f64>>, theirs: Vec<Option<f64>>| {
            for (own, theirs) in own.iter_mut().zip(theirs) {
                *own = theirs.or(*own);
            }
        };
        fill(&mut self.losses, other.losses);
        match (&mut self.accuracies, other.accuracies) {
            (Some(own), Some(theirs)) => fill(own, theirs),
            (own @ None, theirs) => *own = theirs,
            _ => {}
        }
        self.consensus = self.consensus.or(other.consensus);
        self.seconds = self.seconds.max(other.seconds);
    }
}

impl Graph {
    /// From its links, if they are a graph's.
    pub(crate) fn new(workers: usize, matchings: Vec<Vec<Edge>>, relabelings: Vec<Vec<usize>>) -> Option<Self> {
        let links = matchings.iter().flatten().copied();
        let built = upwash_topology::Graph::new(workers, links).ok()?;
        let everyone = |copy: &Vec<usize>| {
            let found: BTreeSet<usize> = copy.iter().copied().collect();
            copy.len() == workers && found.into_iter().eq(0..workers)
        };
        relabelings.iter().all(everyone).then(|| Self {
            positions: upwash_topology::layout(&built),
            matchings,
            relabelings,
        })
    }
}
