//! Events: what happens in a run. A run directory records them in `events.jsonl`, one JSON object per line.
//! `docs/events.md` documents the schema for other readers.

use super::{ControlRequest, numbers};
use crate::ids::WorkerId;
use crate::transport::{MembershipEvent, Traffic};
use serde::{Deserialize, Serialize};
use upwash_topology::Edge;

/// The version of the schema of events and summaries.
pub const SCHEMA_VERSION: u32 = 1;

/// How a run ended. Divergence is a result, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Status {
    /// All rounds were run.
    Finished,
    /// A loss was not finite, or so high that training cannot recover.
    Diverged {
        /// The worker whose loss it was.
        worker: WorkerId,
        /// The round of that loss.
        round: u64,
    },
    /// An observer or a control request stopped the run.
    Interrupted {
        /// The first round that was not run.
        round: u64,
    },
    /// No other process was in reach for too long. The run can be continued.
    Isolated {
        /// The first round that was not run.
        round: u64,
    },
}

/// An event of a run. Events are in the order in which they happened.
///
/// A number that is unknown or not finite is NaN here and `null` in JSON.
///
/// ```
/// use upwash::run::Event;
/// let line = r#"{"event":"epoch","epoch":1,"train_losses":[0.5,null],"test_accuracies":null,
///     "consensus_distance":0.1,"bytes_sent":8,"messages_sent":1,"simulated_seconds":0.5}"#;
/// let Event::Epoch { train_losses, .. } = serde_json::from_str(line)? else { panic!() };
/// assert!(train_losses[0] == 0.5 && train_losses[1].is_nan());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The run starts. Comes before the first round, and again when a stopped run is resumed.
    Started {
        /// [`SCHEMA_VERSION`].
        version: u32,
        /// The first round that follows.
        round: u64,
        /// The algorithm's display name.
        algorithm: String,
        /// The graph's display name.
        graph: String,
        /// The number of workers, including a server.
        workers: usize,
        /// The worker that has no data and serves the others, if the algorithm has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<WorkerId>,
        /// The number of parameters of a model.
        parameters: usize,
        /// The total number of rounds.
        rounds: u64,
        /// The number of rounds in an epoch.
        rounds_per_epoch: u64,
        /// The number of examples in a worker's batch.
        batch_size: usize,
        /// When the run started or was resumed, in seconds since 1970; `None` in runs of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        time: Option<u64>,
        /// The version of Upwash; `None` in runs of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        upwash: Option<String>,
    },
    /// A warning to the user.
    Warning {
        /// The text of the warning.
        message: String,
    },
    /// The graph, right after `started`.
    Graph {
        /// The links, grouped by matching. A link is a pair of nodes.
        matchings: Vec<Vec<Edge>>,
        /// Relabeled copies of the graph that take turns, if there are several: in copy c, worker k is at node
        /// `relabelings[c][k]`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        relabelings: Vec<Vec<usize>>,
    },
    /// A control request was carried out.
    Control {
        /// The next round.
        round: u64,
        /// The request.
        request: ControlRequest,
    },
    /// The membership changed: another process joined, is missing, was lost or was refused.
    Peer {
        /// The next round.
        round: u64,
        /// The change.
        #[serde(flatten)]
        change: MembershipEvent,
    },
    /// A round was run.
    Round {
        /// Its index, from 0.
        round: u64,
        /// Each worker's loss on its batch, before the step; NaN for a server. An asynchronous run counts as many
        /// gradients as there are workers as a round, and reports each worker's latest loss.
        #[serde(with = "numbers::list")]
        losses: Vec<f64>,
        /// The links over which models were sent, if they differ from those of the previous round.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        links: Option<Vec<Edge>>,
        /// The [leaders](crate::algorithm::Plan::leaders) of each worker (best and best-connected neighbor), if any
        /// differ from those of the previous round; `None` for a worker of another process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leaders: Option<Vec<Option<[WorkerId; 2]>>>,
        /// The cost of the run so far.
        #[serde(flatten)]
        sent: RunCost,
    },
    /// An epoch was completed.
    Epoch {
        /// Its index, from 1.
        epoch: u64,
        /// Each worker's mean loss over the epoch's batches.
        #[serde(with = "numbers::list")]
        train_losses: Vec<f64>,
        /// Each worker's accuracy on the test set, if it was evaluated.
        #[serde(default, with = "numbers::optional_list")]
        test_accuracies: Option<Vec<f64>>,
        /// Each worker's mean loss on all of its own training data, if it was evaluated.
        #[serde(default, with = "numbers::optional_list", skip_serializing_if = "Option::is_none")]
        local_train_losses: Option<Vec<f64>>,
        /// The part of each worker's batches in the epoch whose gradient was clipped, if gradients are.
        #[serde(default, with = "numbers::optional_list", skip_serializing_if = "Option::is_none")]
        clipped: Option<Vec<f64>>,
        /// The root mean square distance of the models from their average.
        #[serde(with = "numbers::one")]
        consensus_distance: f64,
        /// The cost of the run so far.
        #[serde(flatten)]
        sent: RunCost,
    },
    /// The run ended, after its last round.
    Ended {
        /// How the run ended.
        #[serde(flatten)]
        status: Status,
    },
    /// An event of a later version, which this version skips.
    #[serde(other)]
    Unknown,
}

/// The cost of a run so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCost {
    /// Bytes sent by all workers together.
    pub bytes_sent: u64,
    /// Messages sent by all workers together.
    pub messages_sent: u64,
    /// Seconds on the simulated network; real seconds if workers have separate threads or processes.
    pub simulated_seconds: f64,
}

impl RunCost {
    /// This cost, plus what was really sent since, in that time.
    pub(super) fn after(self, traffic: Traffic, time: std::time::Duration) -> Self {
        Self {
            bytes_sent: self.bytes_sent + traffic.bytes,
            messages_sent: self.messages_sent + traffic.messages,
            simulated_seconds: self.simulated_seconds + time.as_secs_f64(),
        }
    }

    /// The combined cost of two processes.
    pub fn with(self, other: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent + other.bytes_sent,
            messages_sent: self.messages_sent + other.messages_sent,
            simulated_seconds: self.simulated_seconds.max(other.simulated_seconds),
        }
    }
}
