//! What happens in a run, who is told, and what it comes to.

use super::{Flight, Wish};
use crate::engine::{Score, State};
use crate::model::Replica;
use crate::transport::{News, Traffic};
use serde::{Deserialize, Serialize};
use upwash_topology::Edge;

/// How a run ended. A run that diverges is no error: it is a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Status {
    /// All rounds were run.
    Finished,
    /// A loss was not finite any more, or so high that nothing can come of it.
    Diverged {
        /// Whose.
        worker: usize,
        /// When.
        round: u64,
    },
    /// The observer asked for an end.
    Interrupted {
        /// The first round that was not run.
        round: u64,
    },
}

/// What happens in a run, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Before the first round, and again where a run that was stopped goes on.
    Started {
        /// The first round from here on.
        round: u64,
        /// The algorithm in words.
        algorithm: String,
        /// The graph's spelling.
        graph: String,
        /// How many workers, a centre included.
        workers: usize,
        /// Who has no data but everyone's attention.
        #[serde(skip_serializing_if = "Option::is_none")]
        centre: Option<usize>,
        /// Numbers in a model.
        parameters: usize,
        /// Rounds in all.
        rounds: u64,
        /// Rounds in an epoch.
        rounds_per_epoch: u64,
        /// Images in a worker's batch.
        batch: usize,
    },
    /// Something that a user should know.
    Warning {
        /// What.
        message: String,
    },
    /// The graph, right after `started`.
    Graph {
        /// Its links, matching by matching; a link is a pair of places.
        matchings: Vec<Vec<Edge>>,
        /// Copies of the graph that take turns, where there are several: in copy c, worker k stands at
        /// place `places[c][k]`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        places: Vec<Vec<usize>>,
    },
    /// Someone who watches has asked for something, and it was done before this round.
    Asked {
        /// The next round.
        round: u64,
        /// What.
        what: Wish,
    },
    /// Something has happened to another process.
    Peer {
        /// Before which round.
        round: u64,
        /// What.
        #[serde(flatten)]
        news: News,
    },
    /// A round was run.
    Round {
        /// Its number.
        round: u64,
        /// Everyone's loss on its batch, before the step; no number for a centre. Without rounds: on
        /// its last batch, when all have computed as many gradients as there are workers.
        losses: Vec<f64>,
        /// Over which links models went, where those are not the ones of the round before.
        #[serde(skip_serializing_if = "Option::is_none")]
        links: Option<Vec<Edge>>,
        /// [Whom](crate::algorithm::Plan::leaders) each worker followed, where someone follows another than
        /// in the round before; none for a worker elsewhere.
        #[serde(skip_serializing_if = "Option::is_none")]
        leaders: Option<Vec<Option<[usize; 2]>>>,
        /// What was sent by all workers together so far.
        #[serde(flatten)]
        sent: Sent,
    },
    /// An epoch was completed.
    Epoch {
        /// Its number, from 1.
        epoch: u64,
        /// Each worker's mean loss over the epoch's batches.
        train_losses: Vec<f64>,
        /// Each worker's accuracy on the test set, where it was tested.
        test_accuracies: Option<Vec<f64>>,
        /// Each worker's mean loss on its whole share, where that was asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        share_losses: Option<Vec<f64>>,
        /// How far the models are from their average.
        consensus_distance: f64,
        /// What was sent by all workers together so far.
        #[serde(flatten)]
        sent: Sent,
    },
    /// After the last round.
    Ended {
        /// How.
        #[serde(flatten)]
        status: Status,
    },
}

/// What a run has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Bytes that all workers together have sent.
    pub bytes_sent: u64,
    /// In so many messages.
    pub messages_sent: u64,
    /// Seconds that would have passed on the configured network; where workers run on threads of
    /// their own, seconds that have passed.
    pub simulated_seconds: f64,
}

impl Sent {
    /// This, and what has really been sent since, in so long.
    pub(super) fn after(self, traffic: Traffic, time: std::time::Duration) -> Self {
        Self {
            bytes_sent: self.bytes_sent + traffic.bytes,
            messages_sent: self.messages_sent + traffic.letters,
            simulated_seconds: self.simulated_seconds + time.as_secs_f64(),
        }
    }

    /// What two processes have sent.
    pub fn with(self, other: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent + other.bytes_sent,
            messages_sent: self.messages_sent + other.messages_sent,
            simulated_seconds: self.simulated_seconds.max(other.simulated_seconds),
        }
    }
}

/// Whether to go on after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Continue,
    /// Stop after this round.
    Stop,
}

impl Next {
    /// To stop if either says so.
    pub(super) fn or(self, other: Self) -> Self {
        if self == Self::Stop { self } else { other }
    }
}

/// What a run comes to. Of a run that was interrupted, what would have to be measured is not a number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The algorithm in words.
    pub algorithm: String,
    /// The graph's spelling, and what is special about its use.
    pub graph: String,
    /// How many workers.
    pub workers: usize,
    /// Rounds that were run.
    pub rounds: u64,
    /// How it ended.
    #[serde(flatten)]
    pub status: Status,
    /// Each worker.
    pub nodes: Vec<Node>,
    /// The mean of the workers' accuracies.
    pub mean_accuracy: f64,
    /// The worst of them.
    pub worst_accuracy: f64,
    /// The accuracy of the model that the run leaves: the average of all, or the centre's.
    pub averaged_model_accuracy: f64,
    /// Images on which that model's batch-norm statistics were estimated, where it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics_images: Option<usize>,
    /// How far the models are from their average.
    pub consensus_distance: f64,
    /// What was sent by all workers together.
    #[serde(flatten)]
    pub sent: Sent,
    /// Who had no data but everyone's attention: no part of the means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub centre: Option<usize>,
}

/// What a run leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// In numbers.
    pub summary: Summary,
    /// The average of all models, or the centre's; empty where the run was interrupted.
    pub averaged: Replica,
}

/// A worker at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: usize,
    /// Its mean loss over the last epoch's batches.
    pub train_loss: f64,
    /// Its mean loss on its whole share, not augmented, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_loss: Option<f64>,
    /// Its accuracy on the test set.
    pub test_accuracy: f64,
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
    pub numbers: Vec<f64>,
    /// Without rounds: who is at what.
    pub flight: Option<Flight>,
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
            numbers: vec![1.0; workers],
            flight: None,
            losses: vec![None; workers],
            epoch_scores: vec![Score::default(); workers],
        }
    }
}

/// Who watches a run, and can end it.
pub trait Observer {
    /// Something happened.
    fn observe(&mut self, event: &Event) -> Next;

    /// Between two rounds, before round `round`: the time to keep what is needed for going on later,
    /// which `moment` gives.
    fn between_rounds(&mut self, _round: u64, _moment: &mut dyn FnMut() -> Moment) -> Next {
        Next::Continue
    }

    /// While others are waited for, again and again: whether to go on with that.
    fn meanwhile(&mut self) -> Next {
        Next::Continue
    }

    /// The run ends before its time, as someone wished: the last chance to keep what is needed for going
    /// on later.
    fn stopped(&mut self, _moment: &mut dyn FnMut() -> Moment) {}

    /// A loss of a round is not finite, and the run ends here: the time to keep the models with which
    /// that happened.
    fn diverged(&mut self, _moment: &mut dyn FnMut() -> Moment) {}
}

/// A run between two rounds: all that it needs to go on.
pub type Moment = (Progress, State);

/// Nobody watches.
impl Observer for () {
    fn observe(&mut self, _: &Event) -> Next {
        Next::Continue
    }
}

impl<F: FnMut(&Event) -> Next> Observer for F {
    fn observe(&mut self, event: &Event) -> Next {
        self(event)
    }
}
