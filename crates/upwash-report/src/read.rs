//! The data model of a run, finished or in progress.

use crate::Follower;
use crate::events::non_nan;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use upwash::files::printable;
use upwash::run::{Status, WorkerSummary};
use upwash_topology::Edge;

/// Why a run's folder cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The folder is not a run's folder.
    #[error(
        "{0} is not a run: neither it nor a folder rank-N or peer-N in it has an events.jsonl. Give the folder that \
         was passed to `upwash train --out`"
    )]
    NoRun(PathBuf),
    /// There is no such folder.
    #[error("there is no folder {0}. Give the folder that was passed to `upwash train --out`")]
    Missing(PathBuf),
    /// A file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The run has not started.
    #[error("{0} has no events yet: the run has not started")]
    Empty(PathBuf),
    /// No event can be read.
    #[error("{0} has no readable events: its events.jsonl is damaged, or a later version of upwash wrote it")]
    Damaged(PathBuf),
}

/// A run, finished or in progress, as its files describe it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// The name of its folder.
    pub name: String,
    /// The algorithm's display name.
    pub algorithm: String,
    /// The graph's display name.
    pub graph_name: String,
    /// The graph, if the events describe it.
    pub graph: Option<Graph>,
    /// Number of workers, including a server.
    pub workers: usize,
    /// The worker that acts as the parameter server and has no data, if there is one.
    pub server: Option<usize>,
    /// Parameters of a model.
    pub parameters: usize,
    /// Configured number of rounds.
    pub rounds: u64,
    /// Rounds per epoch.
    pub rounds_per_epoch: u64,
    /// Rounds completed so far.
    pub rounds_run: u64,
    /// The completed epochs.
    pub epochs: Vec<Epoch>,
    /// Batch losses of a sample of the rounds.
    pub batches: Batches,
    /// The state after the last round.
    pub now: LiveState,
    /// How the run ended; `None` while it is in progress, or if it was cut off.
    pub ending: Option<Status>,
    /// Whether a process is writing to its folder.
    pub is_running: bool,
    /// Whether its processes are peers, each of which knows only its own worker.
    pub is_of_peers: bool,
    /// Final results of each worker.
    pub per_worker: Vec<WorkerSummary>,
    /// Test accuracy of the averaged model.
    pub averaged_accuracy: Option<f64>,
    /// When the run was started or last resumed, in seconds since 1970.
    pub time: Option<u64>,
    /// The version of Upwash.
    pub version: Option<String>,
    /// Real seconds, once the run has ended.
    pub wall_seconds: Option<f64>,
    /// The resolved configuration.
    pub config: String,
    /// The results of this run and of others that differ in their seed only.
    pub over_seeds: Option<OverSeeds>,
    /// Number of processes.
    pub processes: usize,
    /// Whether the seconds are real ones: workers had separate processes or threads.
    pub is_real_time: bool,
    /// Warnings of the run, and problems with its files.
    pub notices: Vec<String>,
    /// How each peer that missed rounds or was alone took part.
    pub participation: Vec<(usize, String)>,
    /// The warnings among the notices: those that the run itself reported.
    #[serde(skip)]
    pub(crate) warnings: Vec<String>,
}

/// Results over several seeds: means, each with half the width of its 95 % confidence interval, as parts of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OverSeeds {
    /// The number of seeds.
    pub seeds: usize,
    /// The mean test accuracy of the workers.
    pub mean: (f64, f64),
    /// The test accuracy of the worst worker.
    pub worst: (f64, f64),
    /// The test accuracy of the averaged model.
    pub averaged: (f64, f64),
}

/// Batch losses of a sample of the rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Batches {
    /// Every how many rounds one is kept.
    pub every: u64,
    /// Each kept round with the batch loss of every worker.
    pub rows: Vec<(u64, Vec<Option<f64>>)>,
}

/// The state of a run after its last round.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveState {
    /// The last batch loss of each worker.
    pub losses: Vec<Option<f64>>,
    /// The links used in the last round, if known.
    pub links: Option<Vec<Edge>>,
    /// The two leaders of each worker in the last round; `None` for a worker without leaders.
    pub leaders: Vec<Option<[usize; 2]>>,
    /// Whether the run is paused.
    pub paused: bool,
    /// Whether the run was asked to stop.
    pub stopping: bool,
    /// The round before which the last requested checkpoint was written.
    pub checkpoint: Option<u64>,
}

/// A graph as a list of matchings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Graph {
    /// The links of each matching.
    pub matchings: Vec<Vec<Edge>>,
    /// The copies of the graph that take turns, if there are several: in copy c, worker k is at node
    /// `relabelings[c][k]`.
    pub relabelings: Vec<Vec<usize>>,
}

/// Measurements of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Epoch {
    /// The epoch's number, counted from 1.
    pub epoch: u64,
    /// Mean training loss of each worker.
    pub losses: Vec<Option<f64>>,
    /// Test accuracy of each worker; `None` if this epoch was not evaluated.
    pub accuracies: Option<Vec<Option<f64>>>,
    /// Consensus distance: how far the models are from their average.
    pub consensus: Option<f64>,
    /// Bytes sent so far.
    pub bytes: u64,
    /// Simulated seconds so far.
    pub seconds: f64,
}

impl Run {
    /// What continues a run that was cut off.
    pub(crate) fn continuation(&self) -> &'static str {
        match self.is_of_peers {
            true => "continue it with the same `upwash launch`, or each peer with `upwash peer`",
            false => "continue it with --resume",
        }
    }

    /// All workers but the server.
    pub(crate) fn training_workers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.workers).filter(|worker| Some(*worker) != self.server)
    }

    /// Reads a run's folder, even while the run is writing to it.
    pub fn read(folder: &Path) -> Result<Self, ReadError> {
        let mut follower = Follower::open(folder)?;
        follower.read()?;
        follower.into_run()
    }

    /// Reads several runs. Each is named by the shortest end of its path that distinguishes it from the others.
    pub fn read_all(folders: &[PathBuf]) -> Result<Vec<Self>, ReadError> {
        let runs: Result<Vec<Self>, ReadError> = folders.iter().map(|folder| Self::read(folder)).collect();
        let mut runs = runs?;
        let absolute = |folder: &PathBuf| folder.canonicalize().unwrap_or_else(|_| folder.clone());
        let paths: Vec<PathBuf> = folders.iter().map(absolute).collect();
        let name = |path: &Path, parts: usize| {
            let all = path.components().filter_map(|part| match part {
                Component::Normal(name) => Some(printable(&name.to_string_lossy())),
                _ => None,
            });
            let all: Vec<_> = all.collect();
            all[all.len().saturating_sub(parts)..].join("/")
        };
        let distinct = paths.iter().collect::<BTreeSet<_>>().len();
        let longest = paths.iter().map(|path| path.components().count()).max();
        for parts in 1..=longest.unwrap_or(1) {
            for (run, path) in runs.iter_mut().zip(&paths) {
                run.name = name(path, parts);
            }
            let names: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
            if names.len() == distinct {
                break;
            }
        }
        // The same folder may be given more than once.
        let mut seen = BTreeMap::new();
        for (run, path) in runs.iter_mut().zip(&paths) {
            let times = seen.entry(path).or_insert(0);
            *times += 1;
            if *times > 1 {
                run.name += &format!(" ({times})");
            }
        }
        Ok(runs)
    }

    /// The seed in its configuration.
    pub fn seed(&self) -> Option<u64> {
        let config: toml::Table = self.config.parse().ok()?;
        config.get("seed")?.as_integer()?.try_into().ok()
    }

    /// The last test accuracy of each worker other than the server, as (worker, accuracy).
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
            found.extend(non_nan(worker.test_accuracy).map(|accuracy| (worker.id.0, accuracy)));
        }
        let trains = |worker: &usize| *worker < self.workers && Some(*worker) != self.server;
        found.into_iter().filter(|(worker, _)| trains(worker)).collect()
    }
}

impl Epoch {
    /// Merges in what another process measured in the same epoch.
    pub(crate) fn join(&mut self, other: Self) {
        let merge = |own: &mut Vec<Option<f64>>, theirs: Vec<Option<f64>>| {
            for (own, theirs) in own.iter_mut().zip(theirs) {
                *own = theirs.or(*own);
            }
        };
        merge(&mut self.losses, other.losses);
        match (&mut self.accuracies, other.accuracies) {
            (Some(own), Some(theirs)) => merge(own, theirs),
            (own @ None, theirs) => *own = theirs,
            _ => {}
        }
        self.consensus = self.consensus.or(other.consensus);
        self.seconds = self.seconds.max(other.seconds);
    }
}

impl Graph {
    /// Builds the graph; `None` if the links or the relabelings are invalid.
    pub(crate) fn new(workers: usize, matchings: Vec<Vec<Edge>>, relabelings: Vec<Vec<usize>>) -> Option<Self> {
        let links = matchings.iter().flatten().copied();
        upwash_topology::Graph::new(workers, links).ok()?;
        let is_permutation = |copy: &Vec<usize>| {
            let nodes: BTreeSet<usize> = copy.iter().copied().collect();
            copy.len() == workers && nodes.into_iter().eq(0..workers)
        };
        relabelings.iter().all(is_permutation).then_some(Self { matchings, relabelings })
    }
}
