//! Messages for the live page: the whole run first, then what changed.

use crate::drawing::AccuracyScale;
use crate::page::{MAX_POINTS, RunProgress, View};
use crate::{Epoch, Follower, Run};
use serde::Serialize;

/// What the live page shows beyond the events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LiveStatus {
    /// Rounds per second.
    pub pace: Option<f64>,
    /// Whether a control request is waiting for the run to carry it out.
    pub waiting: bool,
    /// Whether the run has not written any events for a long time.
    pub silent: bool,
    /// Whether the run is silent and its last line is incomplete.
    pub cut: bool,
}

/// One connected browser, and what was already sent to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Viewer {
    /// `None` before the first message.
    sent: Option<Delivered>,
}

/// What was sent so far.
#[derive(Clone, Debug, PartialEq)]
struct Delivered {
    shape: Shape,
    /// The last epoch. It may have been incomplete, so it is sent again.
    epoch: u64,
    /// The last round. It may have been incomplete, so it is sent again.
    round: u64,
    /// Number of epochs on the page.
    points: usize,
}

/// Properties of a run whose change requires sending everything again.
#[derive(Clone, Debug, PartialEq)]
struct Shape {
    restarts: u64,
    workers: usize,
    has_graph: bool,
    /// Every how many rounds one is kept.
    every: u64,
}

/// Sent while no events can be read yet.
#[derive(Serialize)]
struct NotStarted<'a> {
    notices: &'a [String],
}

#[derive(Serialize)]
struct LiveUpdate<T> {
    #[serde(flatten)]
    content: T,
    live_status: LiveStatus,
}

impl Viewer {
    /// The next message: its event name and its JSON content. `view` is a whole run, `more` an increment to it, and
    /// `wait` means that the run has not started.
    pub fn next(&mut self, follower: &Follower, live_status: LiveStatus) -> (&'static str, String) {
        let run = follower.run();
        if run.workers == 0 {
            self.sent = None;
            let content = NotStarted { notices: &run.notices };
            return ("wait", json(content, live_status));
        }
        let shape = Shape {
            restarts: follower.restarts(),
            workers: run.workers,
            has_graph: run.graph.is_some(),
            every: run.batches.every,
        };
        let sent = self.sent.take().filter(|sent| sent.shape == shape);
        let new = sent.as_ref().map(|sent| epochs_from(run, sent.epoch));
        let points = match (&sent, &new) {
            (Some(sent), Some(new)) => sent.points + new.len().saturating_sub(1),
            _ => run.epochs.len().min(MAX_POINTS),
        };
        let fits = points <= 3 * MAX_POINTS;
        self.sent = Some(Delivered {
            shape,
            epoch: run.epochs.last().map_or(0, |epoch| epoch.epoch),
            round: run.batches.rows.last().map_or(0, |row| row.0),
            points: match fits {
                true => points,
                false => MAX_POINTS,
            },
        });
        let scale = AccuracyScale::of([run]);
        match (sent, new) {
            (Some(sent), Some(new)) if fits => {
                ("more", json(RunProgress::new(run, scale, new, sent.round), live_status))
            }
            _ => ("view", json(View::new(run, scale), live_status)),
        }
    }
}

/// The epochs from this one on.
fn epochs_from(run: &Run, epoch: u64) -> Vec<&Epoch> {
    let first = run.epochs.partition_point(|known| known.epoch < epoch);
    run.epochs[first..].iter().collect()
}

fn json(content: impl Serialize, live_status: LiveStatus) -> String {
    serde_json::to_string(&LiveUpdate { content, live_status }).unwrap_or_else(|_| "{}".into())
}
