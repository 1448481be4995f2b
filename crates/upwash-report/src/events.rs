//! What a line of events says, and what it changes in a run.

use crate::{Batches, Epoch, Graph, Now, Run};
use serde::Deserialize;
use upwash::run::{Status, Wish};
use upwash_topology::Edge;

/// Whose events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    /// Who it is, where it knows only itself.
    pub(crate) peer: Option<usize>,
    /// Whether there is no other: what it does not know is nothing.
    pub(crate) alone: bool,
}

/// A line of events.jsonl but for those of rounds; a number that is none is null there.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Line {
    Started {
        algorithm: String,
        graph: String,
        workers: usize,
        centre: Option<usize>,
        parameters: usize,
        rounds: u64,
        rounds_per_epoch: u64,
        #[serde(default)]
        round: u64,
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
pub(crate) struct Round {
    round: u64,
    #[serde(default)]
    losses: Vec<Option<f64>>,
    links: Option<Vec<Edge>>,
    leaders: Option<Vec<Option<[usize; 2]>>>,
}

/// As events begin that are most of a file.
const ROUND: &[u8] = br#"{"event":"round","round":"#;
/// More workers than anyone has: a number above it is a mistake.
const MOST_WORKERS: usize = 1_000_000;
/// Warnings that are shown.
const MOST_WARNINGS: usize = 50;

/// Lines of rounds, of which few have to be understood.
#[derive(Default)]
pub(crate) struct Skipped {
    /// The last one; and the last that said something of links, and of leaders.
    last: Vec<u8>,
    links: Vec<u8>,
    leaders: Vec<u8>,
}

/// Of a line that tells of a round, its number.
pub(crate) fn number_of_round(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(ROUND)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

impl Skipped {
    pub(crate) fn keep(&mut self, line: &mut Vec<u8>) {
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

    pub(crate) fn apply(&mut self, run: &mut Run, source: Source) {
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
    /// What cannot be is said to be wrong.
    pub(crate) fn happens(&mut self, line: Line, source: Source) -> Result<(), String> {
        match line {
            Line::Started {
                algorithm,
                graph,
                workers,
                centre,
                parameters,
                rounds,
                rounds_per_epoch,
                ..
            } => {
                if workers > MOST_WORKERS {
                    return Err(format!("{workers} workers are too many"));
                }
                (self.algorithm, self.graph_name) = (algorithm, graph);
                (self.workers, self.centre, self.parameters) = (workers, centre, parameters);
                (self.rounds, self.rounds_per_epoch) = (rounds, rounds_per_epoch);
                // What an earlier part of the run came to, and was asked for, is over.
                (self.nodes, self.averaged_accuracy) = (vec![], None);
                (self.now.paused, self.now.stopping, self.now.checkpoint) = (false, false, None);
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
            Line::Warning { message } => self.warn(message),
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
                let place = self
                    .epochs
                    .binary_search_by_key(&epoch, |known| known.epoch);
                match place {
                    // What was run again counts as it was the last time.
                    Ok(place) if source.alone => self.epochs[place] = found,
                    Ok(place) => self.epochs[place].join(found),
                    Err(place) => self.epochs.insert(place, found),
                }
            }
            Line::Ended { .. } => {
                (self.now.paused, self.now.stopping) = (false, false);
            }
            Line::Peer {} | Line::Unknown => {}
        }
        Ok(())
    }

    fn warn(&mut self, what: String) {
        if self.warnings.len() < MOST_WARNINGS && !self.warnings.contains(&what) {
            self.warnings.push(what);
        }
    }
}

impl Batches {
    /// Points that are kept: more would not be seen.
    const MOST: usize = crate::page::POINTS;

    /// Whether a round would be kept.
    pub(crate) fn wants(&self, round: u64) -> bool {
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
