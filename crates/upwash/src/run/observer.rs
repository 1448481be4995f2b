//! Observers of a run, and the progress from which a run is resumed.

use super::{AsyncState, BestModel, Event, RunCost, RunError};
use crate::engine::{Score, State};
use crate::model::{Layout, Replica};
use crate::transport::Participation;
use serde::{Deserialize, Serialize};

/// Whether a run continues after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFlow {
    /// Continue.
    Continue,
    /// Stop after this round.
    Stop,
}

impl ControlFlow {
    /// `Stop` if either of the two is `Stop`.
    pub(super) fn or(self, other: Self) -> Self {
        if self == Self::Stop { self } else { other }
    }
}

/// The progress of a run between two rounds. Together with the engine's state, it is all that the run needs to resume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The next round.
    pub round: u64,
    /// The cost so far.
    pub sent: RunCost,
    /// Each worker's clock, in simulated seconds.
    pub clocks: Vec<f64>,
    /// Each worker's scalar, such as its push-sum weight.
    pub scalars: Vec<f64>,
    /// What every worker of an asynchronous run is doing.
    pub asynchronous: Option<AsyncState>,
    /// Each worker's loss in the previous round.
    pub losses: Vec<Option<f64>>,
    /// Each worker's score over the epoch's batches so far.
    pub epoch_scores: Vec<Score>,
    /// The best averaged model so far, if it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestModel>,
    /// How this process has taken part, in a run between peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub participation: Option<Participation>,
}

impl Progress {
    /// The progress before the first round.
    pub fn start(workers: usize) -> Self {
        Self {
            round: 0,
            sent: RunCost::default(),
            clocks: vec![0.0; workers],
            scalars: vec![1.0; workers],
            asynchronous: None,
            losses: vec![None; workers],
            epoch_scores: vec![Score::default(); workers],
            best: None,
            participation: None,
        }
    }
}

/// Observes a run, and can end it.
pub trait Observer {
    /// Called for every event.
    fn observe(&mut self, event: &Event) -> ControlFlow;

    /// Called between two rounds, before round `round`. This is the time to save the run: `snapshot` returns what is
    /// needed to resume it.
    fn between_rounds(&mut self, _round: u64, _snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        ControlFlow::Continue
    }

    /// Called repeatedly while this process waits for others. Returns whether to keep waiting.
    fn while_waiting(&mut self) -> ControlFlow {
        ControlFlow::Continue
    }

    /// Called when the averaged model is the best so far, if the configuration asks to keep it.
    fn improved(&mut self, _best: BestModel, _model: &Replica, _layout: &Layout) {}

    /// Called when the run ends early on request. This is the last chance to save what is needed to resume it.
    fn stopped(&mut self, _snapshot: &mut TakeSnapshot<'_>) {}

    /// Called when the run ends because a loss diverged. This is the time to save the models that led to it.
    fn diverged(&mut self, _snapshot: &mut TakeSnapshot<'_>) {}
}

/// A snapshot of a run between two rounds: all that it needs to resume.
pub type Snapshot = (Progress, State);

/// Takes a snapshot, if the engine supports that.
pub type TakeSnapshot<'a> = dyn FnMut() -> Result<Snapshot, RunError> + 'a;

/// Observes nothing.
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
