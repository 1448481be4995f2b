//! What an event changes in a run.

use crate::{Batches, Epoch, Graph, Now, Run};
use upwash::run::{ControlRequest, Event};

/// Whose events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    /// Who it is, where it knows only itself.
    pub(crate) peer: Option<usize>,
    /// Whether there is no other: what it does not know is nothing.
    pub(crate) alone: bool,
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
        let now = &mut run.now;
        if let Some(Event::Round { links, .. }) = parse(&self.links) {
            now.links = links.or(now.links.take());
        }
        if let Some(Event::Round { leaders, .. }) = parse(&self.leaders) {
            now.follow(leaders, source);
        }
        if let Some(Event::Round { losses, .. }) = parse(&self.last) {
            fill(&mut now.losses, known(losses));
        }
        *self = Self::default();
    }
}

fn parse(line: &[u8]) -> Option<Event> {
    serde_json::from_slice(line).ok()
}

/// Numbers as the page has them: none where an event has NaN.
pub(crate) fn known(numbers: Vec<f64>) -> Vec<Option<f64>> {
    numbers.into_iter().map(some).collect()
}

pub(crate) fn some(number: f64) -> Option<f64> {
    (!number.is_nan()).then_some(number)
}

impl Now {
    /// A request was carried out before this round.
    fn control(&mut self, round: u64, request: ControlRequest) {
        match request {
            ControlRequest::Pause => self.paused = true,
            ControlRequest::Continue => self.paused = false,
            ControlRequest::Checkpoint => self.checkpoint = Some(round),
            ControlRequest::Stop => (self.paused, self.stopping) = (false, true),
        }
    }

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
    /// Takes an event into account, or says why it cannot be one of this run.
    pub(crate) fn apply(&mut self, event: Event, source: Source) -> Result<(), String> {
        match event {
            Event::Started { algorithm, graph, workers, server, parameters, rounds, rounds_per_epoch, .. } => {
                if workers > MOST_WORKERS {
                    return Err(format!("{workers} workers are too many"));
                }
                (self.algorithm, self.graph_name) = (algorithm, graph);
                (self.workers, self.server, self.parameters) = (workers, server, parameters);
                (self.rounds, self.rounds_per_epoch) = (rounds, rounds_per_epoch);
                // What an earlier part of the run came to, and was asked for, is over.
                (self.per_worker, self.averaged_accuracy) = (vec![], None);
                (self.now.paused, self.now.stopping, self.now.checkpoint) = (false, false, None);
            }
            Event::Graph { matchings, relabelings } => {
                if self.graph.is_none() {
                    self.graph = Graph::new(self.workers, matchings, relabelings);
                }
            }
            Event::Control { round, request } => self.now.control(round, request),
            Event::Warning { message } => self.warn(message),
            Event::Round { round, losses, links, leaders, .. } => {
                self.rounds_run = self.rounds_run.max(round.saturating_add(1));
                let losses = known(losses);
                self.batches.add(round, &losses);
                fill(&mut self.now.losses, losses);
                self.now.follow(leaders, source);
                self.now.links = links.or(self.now.links.take());
            }
            Event::Epoch { epoch, train_losses, test_accuracies, consensus_distance, sent, .. } => {
                let rounds = epoch.saturating_mul(self.rounds_per_epoch);
                self.rounds_run = self.rounds_run.max(rounds);
                self.add_epoch(
                    Epoch {
                        epoch,
                        losses: known(train_losses),
                        accuracies: test_accuracies.map(known),
                        consensus: some(consensus_distance),
                        bytes: sent.bytes_sent,
                        seconds: sent.simulated_seconds,
                    },
                    source,
                );
            }
            Event::Ended { .. } => {
                (self.now.paused, self.now.stopping) = (false, false);
            }
            Event::Peer { .. } | Event::Unknown => {}
        }
        Ok(())
    }

    fn add_epoch(&mut self, found: Epoch, source: Source) {
        let epochs = &mut self.epochs;
        match epochs.binary_search_by_key(&found.epoch, |known| known.epoch) {
            // What was run again counts as it was the last time.
            Ok(place) if source.alone => epochs[place] = found,
            Ok(place) => epochs[place].join(found),
            Err(place) => epochs.insert(place, found),
        }
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
