//! What someone who watches a run is told: all of it once, then what is new.

use crate::page::{More, POINTS, View};
use crate::{Epoch, Follower, Run};
use serde::Serialize;

/// What is known of a run that its events do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LiveStatus {
    /// Rounds a second.
    pub pace: Option<f64>,
    /// Whether something was asked of the run that it has not found yet.
    pub waiting: bool,
    /// Whether nothing has been heard of it for long.
    pub silent: bool,
    /// Whether then its last line is not complete.
    pub cut: bool,
}

/// Someone who watches.
#[derive(Debug, Default)]
pub struct Viewer {
    /// What was sent already: none in the beginning.
    seen: Option<Seen>,
}

/// What was sent.
#[derive(Debug)]
struct Seen {
    shape: Shape,
    /// The last epoch and the last round: they may not have been complete, and are sent again.
    epoch: u64,
    round: u64,
    /// Epochs in all.
    points: usize,
}

/// When this changes, everything is sent anew.
#[derive(Debug, PartialEq)]
struct Shape {
    restarts: u64,
    workers: usize,
    has_graph: bool,
    /// Rounds are thinned out when there are many.
    every: u64,
}

/// Nothing is known yet, perhaps because nothing can be read.
#[derive(Serialize)]
struct Waiting<'a> {
    notices: &'a [String],
}

#[derive(Serialize)]
struct LiveUpdate<T> {
    #[serde(flatten)]
    content: T,
    live_status: LiveStatus,
}

impl Viewer {
    /// The next message: what it is called (`view`: a whole run; `more`: to be added to it; `wait`: the run has
    /// not begun) and its content, JSON.
    pub fn next(&mut self, follower: &Follower, live_status: LiveStatus) -> (&'static str, String) {
        let run = follower.run();
        if run.workers == 0 {
            self.seen = None;
            let wait = Waiting { notices: &run.notices };
            return ("wait", json(wait, live_status));
        }
        let shape = Shape {
            restarts: follower.restarts(),
            workers: run.workers,
            has_graph: run.graph.is_some(),
            every: run.batches.every,
        };
        let seen = self.seen.take().filter(|seen| seen.shape == shape);
        let new = seen.as_ref().map(|seen| since(run, seen.epoch));
        let points = match (&seen, &new) {
            (Some(seen), Some(new)) => seen.points + new.len().saturating_sub(1),
            _ => run.epochs.len().min(POINTS),
        };
        let goes_on = points <= 3 * POINTS;
        self.seen = Some(Seen {
            shape,
            epoch: run.epochs.last().map_or(0, |epoch| epoch.epoch),
            round: run.batches.rows.last().map_or(0, |row| row.0),
            points: match goes_on {
                true => points,
                false => POINTS,
            },
        });
        match (seen, new) {
            (Some(seen), Some(new)) if goes_on => ("more", json(More::new(run, new, seen.round), live_status)),
            _ => ("view", json(View::new(run), live_status)),
        }
    }
}

/// Epochs from this one on.
fn since(run: &Run, epoch: u64) -> Vec<&Epoch> {
    let first = run.epochs.partition_point(|known| known.epoch < epoch);
    run.epochs[first..].iter().collect()
}

fn json(content: impl Serialize, live_status: LiveStatus) -> String {
    serde_json::to_string(&LiveUpdate { content, live_status }).unwrap_or_else(|_| "{}".into())
}
