//! Who watches a run, and what a run needs to be resumed.

use super::{AsyncState, Event, RunError, Sent};
use crate::engine::{Score, State};
use serde::{Deserialize, Serialize};

/// Whether to go on after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFlow {
    /// Go on.
    Continue,
    /// Stop after this round.
    Stop,
}

impl ControlFlow {
    /// To stop if either says so.
    pub(super) fn or(self, other: Self) -> Self {
        if self == Self::Stop { self } else { other }
    }
}

/// Where a run is between two rounds: with the engine's state, all that it needs to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The next round.
    pub round: u64,
    /// What was sent so far.
    pub sent: Sent,
    /// Everyone's clock: simulated seconds.
    pub clocks: Vec<f64>,
    /// The number that the algorithm keeps for each.
    pub scalars: Vec<f64>,
    /// Without rounds: what every worker is doing.
    pub asynchronous: Option<AsyncState>,
    /// Everyone's loss in the round before.
    pub losses: Vec<Option<f64>>,
    /// Everyone's score over the epoch's batches so far.
    pub epoch_scores: Vec<Score>,
}

impl Progress {
    /// Before the first round.
    pub fn start(workers: usize) -> Self {
        Self {
            round: 0,
            sent: Sent::default(),
            clocks: vec![0.0; workers],
            scalars: vec![1.0; workers],
            asynchronous: None,
            losses: vec![None; workers],
            epoch_scores: vec![Score::default(); workers],
        }
    }
}

/// Who watches a run, and can end it.
pub trait Observer {
    /// Something happened.
    fn observe(&mut self, event: &Event) -> ControlFlow;

    /// Between two rounds, before round `round`: the time to keep what is needed for going on later,
    /// which `snapshot` gives.
    fn between_rounds(&mut self, _round: u64, _snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        ControlFlow::Continue
    }

    /// While others are waited for, again and again: whether to go on with that.
    fn meanwhile(&mut self) -> ControlFlow {
        ControlFlow::Continue
    }

    /// The run ends before its time, as someone wished: the last chance to keep what is needed for going
    /// on later.
    fn stopped(&mut self, _snapshot: &mut TakeSnapshot<'_>) {}

    /// A loss of a round is not finite, and the run ends here: the time to keep the models with which
    /// that happened.
    fn diverged(&mut self, _snapshot: &mut TakeSnapshot<'_>) {}
}

/// A run between two rounds: all that it needs to go on.
pub type Snapshot = (Progress, State);

/// Takes a snapshot, if the engine can.
pub type TakeSnapshot<'a> = dyn FnMut() -> Result<Snapshot, RunError> + 'a;

/// Nobody watches.
impl Observer for () {
    fn observe(&mut self, _: &Event) -> ControlFlow {
        ControlFlow::Continue
    }
}

impl<F: FnMut(&Event) -> ControlFlow> Observer for F {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        self(event)
    }
}
