//! Reading a run's folder: events of one process, or of several that were one run.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use upwash::run::Status;
use upwash_topology::GraphSpec;

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
    #[error(
        "{0} has no event yet: the run has not begun, or its events are of a later version of upwash"
    )]
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
    /// How many workers, a centre included.
    pub workers: usize,
    /// Who has no data.
    pub centre: Option<usize>,
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
    /// How it ended, if it has.
    pub ending: Option<Status>,
    /// Each worker at the end.
    pub nodes: Vec<Node>,
    /// The accuracy of the averaged model.
    pub averaged_accuracy: Option<f64>,
    /// The resolved configuration.
    pub config: String,
    /// What a reader should know.
    pub notices: Vec<String>,
}

/// A graph's links by matchings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Graph {
    /// Links, matching by matching.
    pub matchings: Vec<Vec<(usize, usize)>>,
    /// Where its workers are drawn, in the square from (0, 0) to (1, 1).
    pub positions: Vec<[f64; 2]>,
    /// How many copies with other places rotate.
    pub copies: usize,
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

/// A worker at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub id: usize,
    /// Its loss over the last epoch.
    pub train_loss: Option<f64>,
    /// Its accuracy on the test set.
    pub test_accuracy: Option<f64>,
}

/// A line of events.jsonl; a number that is none is null there.
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
    Warning {
        message: String,
    },
    Peer {},
    Round {
        round: u64,
    },
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
struct Summary {
    nodes: Vec<Node>,
    averaged_model_accuracy: Option<f64>,
    rounds: u64,
}

impl Run {
    /// Reads a run's folder, whoever is writing to it.
    pub fn read(folder: &Path) -> Result<Self, ReadError> {
        let own = folder.join("events.jsonl");
        let mut places: Vec<(PathBuf, Option<usize>)> = Vec::new();
        if own.exists() {
            places.push((folder.to_owned(), None));
        } else {
            let inside =
                std::fs::read_dir(folder).map_err(|_| ReadError::NoRun(folder.to_owned()))?;
            for path in inside.flatten().map(|entry| entry.path()) {
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or("");
                let peer = name
                    .strip_prefix("peer-")
                    .and_then(|number| number.parse().ok());
                let is_part = peer.is_some() || name.starts_with("rank-");
                if is_part && path.join("events.jsonl").exists() {
                    places.push((path, peer));
                }
            }
        }
        places.sort();
        if places.is_empty() {
            return Err(ReadError::NoRun(folder.to_owned()));
        }
        let name = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = name
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let mut run = Self {
            name: name.unwrap_or_else(|| "run".into()),
            ..Self::default()
        };
        let mut epochs: BTreeMap<u64, Epoch> = BTreeMap::new();
        for (place, peer) in &places {
            run.read_events(place, *peer, &mut epochs)?;
            run.read_summary(place, *peer);
        }
        run.read_summary(folder, None);
        if run.workers == 0 {
            return Err(ReadError::Empty(folder.to_owned()));
        }
        run.epochs = epochs.into_values().collect();
        let first = places
            .first()
            .map(|(place, _)| place.clone())
            .unwrap_or_default();
        let configs = [folder.join("config.toml"), first.join("config.toml")];
        run.config = configs
            .iter()
            .find_map(|path| std::fs::read_to_string(path).ok())
            .unwrap_or_default();
        run.graph = graph(&run.config, run.workers);
        run.notices.dedup();
        Ok(run)
    }

    fn read_events(
        &mut self,
        place: &Path,
        peer: Option<usize>,
        epochs: &mut BTreeMap<u64, Epoch>,
    ) -> Result<(), ReadError> {
        let path = place.join("events.jsonl");
        let bytes = std::fs::read(&path).map_err(|error| ReadError::Io {
            path: path.clone(),
            error,
        })?;
        let text = String::from_utf8_lossy(&bytes);
        let (mut unknown, mut line_number) = (0, 0);
        for line in text.split_inclusive('\n') {
            line_number += 1;
            let event = match serde_json::from_str::<Line>(line) {
                Ok(event) => event,
                // The last line of a run that goes on may be half written.
                Err(_) if !line.ends_with('\n') => {
                    let what = format!(
                        "{}: the last line is cut; what is before it is shown",
                        path.display()
                    );
                    self.notices.push(what);
                    break;
                }
                Err(error) => {
                    let what = format!(
                        "{}, line {line_number}: {error}; it is left out",
                        path.display()
                    );
                    self.notices.push(what);
                    continue;
                }
            };
            match event {
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
                    self.ending = None;
                }
                Line::Warning { message } => self.notices.push(message),
                Line::Round { round } => self.rounds_run = self.rounds_run.max(round + 1),
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
                    match (peer, epochs.get_mut(&epoch)) {
                        // What was run again counts as it was the last time.
                        (None, Some(known)) if known.losses.iter().all(Option::is_some) => {
                            *known = found
                        }
                        (_, Some(known)) => known.join(found, peer.is_some()),
                        (_, None) => {
                            epochs.insert(epoch, found);
                        }
                    }
                }
                Line::Ended { ending } => self.ending = Some(ending),
                Line::Peer {} => {}
                Line::Unknown => unknown += 1,
            }
        }
        if unknown > 0 {
            self.notices.push(format!(
                "{}: {unknown} events of a kind that this version of upwash does not know are left out",
                path.display()
            ));
        }
        Ok(())
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

    /// Reads several, and names each by as much of its path as it takes to tell them apart.
    pub fn read_all(folders: &[PathBuf]) -> Result<Vec<Self>, ReadError> {
        let runs: Result<Vec<Self>, ReadError> =
            folders.iter().map(|folder| Self::read(folder)).collect();
        let mut runs = runs?;
        let whole = |folder: &PathBuf| folder.canonicalize().unwrap_or_else(|_| folder.clone());
        let whole: Vec<PathBuf> = folders.iter().map(whole).collect();
        let name = |path: &Path, parts: usize| {
            let all: Vec<_> = path.iter().collect();
            let last = &all[all.len().saturating_sub(parts)..];
            last.iter()
                .map(|part| part.to_string_lossy())
                .collect::<Vec<_>>()
                .join("/")
        };
        for parts in 1..=4 {
            for (run, path) in runs.iter_mut().zip(&whole) {
                run.name = name(path, parts);
            }
            let names: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
            if names.len() == runs.len() {
                break;
            }
        }
        Ok(runs)
    }

    /// Accuracies of those who train, at the end or the last time they were tested.
    pub fn last_accuracies(&self) -> Vec<(usize, f64)> {
        let tested = self
            .epochs
            .iter()
            .rev()
            .find_map(|epoch| epoch.accuracies.as_ref());
        let ends = self
            .nodes
            .iter()
            .filter_map(|node| Some((node.id, node.test_accuracy?)));
        let found: Vec<(usize, f64)> = ends.filter(|(id, _)| Some(*id) != self.centre).collect();
        if !found.is_empty() {
            return found;
        }
        let tested = tested.into_iter().flatten().enumerate();
        let tested = tested.filter_map(|(id, accuracy)| Some((id, (*accuracy)?)));
        tested.filter(|(id, _)| Some(*id) != self.centre).collect()
    }
}

impl Epoch {
    /// What another process knows of the same epoch.
    fn join(&mut self, other: Self, adds: bool) {
        let fill = |own: &mut Vec<Option<f64>>, theirs: Vec<Option<f64>>| {
            for (own, theirs) in own.iter_mut().zip(theirs) {
                *own = own.or(theirs);
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
        match adds {
            true => self.bytes += other.bytes,
            false => self.bytes = self.bytes.max(other.bytes),
        }
    }
}

/// The graph that a configuration names, if it can still be built.
fn graph(config: &str, workers: usize) -> Option<Graph> {
    let config: toml::Table = config.parse().ok()?;
    let section = config.get("graph")?;
    let spec: GraphSpec = section.get("topology")?.as_str()?.parse().ok()?;
    let built = spec.build().ok()?;
    if built.nodes() != workers {
        return None;
    }
    let links = |matching: &upwash_topology::Matching| {
        matching.iter().map(|link| (link.0, link.1)).collect()
    };
    let copies = section.get("copies").and_then(toml::Value::as_integer);
    Some(Graph {
        matchings: built.matchings().iter().map(links).collect(),
        positions: upwash_topology::layout(&built),
        copies: copies
            .and_then(|copies| usize::try_from(copies).ok())
            .unwrap_or(1),
    })
}
