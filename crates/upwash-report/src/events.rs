//! Applies events to a [`Run`].

use crate::{Batches, Epoch, Graph, LiveState, Run};
use upwash::WorkerId;
use upwash::files::printable;
use upwash::run::{ControlRequest, Event};

/// The process that wrote an event log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    /// The peer's worker, for a process that knows only its own worker.
    pub(crate) peer: Option<usize>,
    /// Whether this process holds all workers of the run. Values missing from its events then do not exist anywhere
    /// else.
    pub(crate) has_all_workers: bool,
}

/// The start of a round event. Most lines of a log are round events.
const ROUND_PREFIX: &[u8] = br#"{"event":"round","round":"#;
/// The largest plausible number of workers. A larger one in a log is an error.
const MAX_WORKERS: usize = 1_000_000;
/// How many distinct warnings are shown.
const MAX_WARNINGS: usize = 50;

/// Round events that are not plotted. Only the newest of them have to be parsed.
#[derive(Default)]
pub(crate) struct Skipped {
    /// The newest line.
    last: Vec<u8>,
    /// The newest line that lists links.
    links: Vec<u8>,
    /// The newest line that lists leaders.
    leaders: Vec<u8>,
}

/// The round of a line that is a round event; `None` for other lines.
pub(crate) fn round_number(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(ROUND_PREFIX)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

impl Skipped {
    pub(crate) fn keep(&mut self, line: &mut Vec<u8>) {
        let contains = |key: &[u8]| memchr::memmem::find(line, key).is_some();
        let (links, leaders) = (contains(br#""links":"#), contains(br#""leaders":"#));
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
            now.update_leaders(leaders, source);
        }
        if let Some(Event::Round { losses, .. }) = parse(&self.last) {
            merge(&mut now.losses, without_nan(losses));
        }
        *self = Self::default();
    }
}

fn parse(line: &[u8]) -> Option<Event> {
    serde_json::from_slice(line).ok()
}

/// Replaces NaN, which stands for an unknown value in events, by `None`.
pub(crate) fn without_nan(numbers: Vec<f64>) -> Vec<Option<f64>> {
    numbers.into_iter().map(non_nan).collect()
}

pub(crate) fn non_nan(number: f64) -> Option<f64> {
    (!number.is_nan()).then_some(number)
}

impl LiveState {
    /// Records a control request that was carried out before this round.
    fn apply_control(&mut self, round: u64, request: ControlRequest) {
        match request {
            ControlRequest::Pause => self.paused = true,
            ControlRequest::Continue => self.paused = false,
            ControlRequest::Checkpoint => self.checkpoint = Some(round),
            ControlRequest::Stop => (self.paused, self.stopping) = (false, true),
        }
    }

    /// Updates the leaders. A process that holds only some workers leaves the leaders of the others unchanged.
    fn update_leaders(&mut self, leaders: Option<Vec<Option<[WorkerId; 2]>>>, source: Source) {
        let numbers = |leaders: Option<[WorkerId; 2]>| leaders.map(|leaders| leaders.map(usize::from));
        let leaders: Option<Vec<_>> = leaders.map(|leaders| leaders.into_iter().map(numbers).collect());
        match leaders {
            None => {}
            Some(leaders) if source.has_all_workers => self.leaders = leaders,
            Some(leaders) => {
                self.leaders.resize(leaders.len(), None);
                for (own, theirs) in self.leaders.iter_mut().zip(leaders) {
                    *own = theirs.or(*own);
                }
            }
        }
    }
}

/// Overwrites `own` with the known values of `theirs`.
fn merge(own: &mut Vec<Option<f64>>, theirs: Vec<Option<f64>>) {
    own.resize(own.len().max(theirs.len()), None);
    for (own, theirs) in own.iter_mut().zip(theirs) {
        *own = theirs.or(*own);
    }
}

impl Run {
    /// Applies an event. The error says why the event is invalid.
    pub(crate) fn apply(&mut self, event: Event, source: Source) -> Result<(), String> {
        match event {
            Event::Started {
                algorithm,
                graph,
                workers,
                server,
                parameters,
                rounds,
                rounds_per_epoch,
                time,
                upwash,
                ..
            } => {
                if workers > MAX_WORKERS {
                    return Err(format!("{workers} workers are too many: at most {MAX_WORKERS} are supported"));
                }
                (self.algorithm, self.graph_name) = (printable(&algorithm), printable(&graph));
                self.is_real_time |= !source.has_all_workers;
                (self.workers, self.server, self.parameters) = (workers, server.map(usize::from), parameters);
                (self.rounds, self.rounds_per_epoch) = (rounds, rounds_per_epoch);
                // The results and control requests of an earlier part of the run no longer apply.
                (self.per_worker, self.averaged_accuracy, self.wall_seconds) = (vec![], None, None);
                (self.time, self.version) = (time, upwash);
                self.participation.clear();
                (self.now.paused, self.now.stopping, self.now.checkpoint) = (false, false, None);
            }
            Event::Graph { matchings, relabelings } => {
                if self.graph.is_none() {
                    self.graph = Graph::new(self.workers, matchings, relabelings);
                }
            }
            Event::Control { round, request } => self.now.apply_control(round, request),
            Event::Warning { message } => self.warn(message),
            Event::Round { round, losses, links, leaders, .. } => {
                self.rounds_run = self.rounds_run.max(round.saturating_add(1));
                let losses = without_nan(losses);
                self.batches.add(round, &losses);
                merge(&mut self.now.losses, losses);
                self.now.update_leaders(leaders, source);
                self.now.links = links.or(self.now.links.take());
            }
            Event::Epoch { epoch, train_losses, test_accuracies, consensus_distance, sent, .. } => {
                let rounds = epoch.saturating_mul(self.rounds_per_epoch);
                self.rounds_run = self.rounds_run.max(rounds);
                self.add_epoch(
                    Epoch {
                        epoch,
                        losses: without_nan(train_losses),
                        accuracies: test_accuracies.map(without_nan),
                        consensus: non_nan(consensus_distance),
                        bytes: sent.bytes_sent,
                        seconds: sent.simulated_seconds,
                    },
                    source,
                );
            }
            Event::Ended { .. } => {
                (self.now.paused, self.now.stopping) = (false, false);
            }
            // The directory of a single peer looks like that of a whole run.
            Event::Peer { .. } => self.is_real_time = true,
            Event::Unknown => {}
        }
        Ok(())
    }

    fn add_epoch(&mut self, new: Epoch, source: Source) {
        let epochs = &mut self.epochs;
        match epochs.binary_search_by_key(&new.epoch, |known| known.epoch) {
            // An epoch that was run again replaces the earlier one.
            Ok(index) if source.has_all_workers => epochs[index] = new,
            Ok(index) => epochs[index].join(new),
            Err(index) => epochs.insert(index, new),
        }
    }

    fn warn(&mut self, message: String) {
        if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&message) {
            self.warnings.push(message);
        }
    }
}

impl Batches {
    /// How many rounds are kept. More points could not be told apart in a chart.
    const MAX_ROWS: usize = crate::page::MAX_POINTS;

    /// Whether this round is kept.
    pub(crate) fn keeps(&self, round: u64) -> bool {
        round.is_multiple_of(self.every.max(1))
    }

    fn add(&mut self, round: u64, losses: &[Option<f64>]) {
        self.every = self.every.max(1);
        if !self.keeps(round) {
            return;
        }
        match self.rows.binary_search_by_key(&round, |row| row.0) {
            Ok(index) => merge(&mut self.rows[index].1, losses.to_vec()),
            Err(index) => self.rows.insert(index, (round, losses.to_vec())),
        }
        while self.rows.len() > Self::MAX_ROWS {
            self.every *= 2;
            let every = self.every;
            self.rows.retain(|row| row.0.is_multiple_of(every));
        }
    }
}
