//! Transports: they move vectors between the processes of a run.
//!
//! A process holds one or several workers ([`Placement`]). In each round, a process sends the messages of its workers
//! and receives those for them. Only the processes at the ends of a link take part, so that a round costs what its
//! links cost. The round loop depends only on the trait [`Transport`]. Within one process, nothing is sent.

mod encoding;
mod placement;
mod wire;

pub use crate::buffer::{Buffer, Pool, SharedBuffer};
pub use encoding::Encoding;
pub use placement::Placement;
pub use wire::{HEADER, Message, WireError};

use crate::ids::WorkerId;
use crate::model::State;

/// What a transport guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The run continues when a process is lost.
    pub survives_loss: bool,
    /// Only processes of the run can take part.
    pub authenticated: bool,
    /// Messages make progress while this process computes.
    pub progresses: bool,
}

/// Why a run of several processes cannot continue.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// An expected message did not arrive in time.
    #[error("round {round}: no message from worker {from} within {seconds} seconds")]
    Silence {
        /// The expected sender.
        from: WorkerId,
        /// The round.
        round: u64,
        /// The timeout.
        seconds: u64,
    },
    /// A message is invalid.
    #[error("message from worker {from}: {what}")]
    Message {
        /// The sender.
        from: WorkerId,
        /// What is wrong with the message.
        what: WireError,
    },
    /// A worker that the algorithm cannot do without is lost.
    #[error(
        "round {round}: worker {from} is lost, but this algorithm needs all workers: use one that exchanges along a \
         graph, such as al-dsgd or dpsgd"
    )]
    Missing {
        /// The worker.
        from: WorkerId,
        /// The round.
        round: u64,
    },
    /// A worker's loss diverged, which ends the run.
    #[error("worker {worker} diverged in round {round}")]
    Diverged {
        /// The worker.
        worker: WorkerId,
        /// The round.
        round: u64,
    },
    /// The transport itself failed.
    #[error("{0}")]
    Broken(String),
}

/// What a process does before a round.
#[derive(Clone, Debug, PartialEq)]
pub enum RoundStart {
    /// Run the round.
    Go,
    /// Wait for other processes. Ask again at once, and pass on any request to stop by then.
    Wait,
    /// Stop here, as all processes do.
    Stop,
    /// Adopt another worker's model, with everything that belongs to it, and continue at its round. Call
    /// [`adopted`](Membership::adopted) if the model fits, and [`refuse`](Membership::refuse) if not.
    Adopt(Adoption),
    /// Save and stop: no other process has been in reach for too long.
    Isolated,
}

/// A model that a process should adopt.
#[derive(Clone, Debug, PartialEq)]
pub struct Adoption {
    /// The worker that sent it.
    pub from: WorkerId,
    /// The round with which to continue.
    pub round: u64,
    /// The vectors, by the names of a [`State`].
    pub state: State,
}

/// How a process has taken part in a run of several processes that survives losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Participation {
    /// Rounds that were run.
    pub rounds_run: u64,
    /// Rounds that were not run, because the model of a worker in a later round was adopted.
    pub rounds_skipped: u64,
    /// Rounds that were run again, because the model of a worker in an earlier round was adopted.
    pub rounds_repeated: u64,
    /// Seconds without a link to any other worker.
    pub seconds_alone: f64,
    /// Rounds that were run with a link to another worker. An adopted model brings its own number along.
    pub rounds_together: u64,
    /// The last contact with another worker, if there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contact: Option<Contact>,
}

impl std::fmt::Display for Participation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rounds run", self.rounds_run)?;
        for (count, what) in [(self.rounds_skipped, "skipped"), (self.rounds_repeated, "repeated")] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        match self.seconds_alone >= 0.1 {
            true => write!(f, ", {:.1} seconds alone", self.seconds_alone),
            false => Ok(()),
        }
    }
}

/// The last contact with other workers: how far they can be by now follows from it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Contact {
    /// The round.
    pub round: u64,
    /// The time, in seconds since 1970.
    pub time: f64,
    /// The median duration of a round, in seconds.
    pub round_seconds: f64,
}

/// A change of the membership of a run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MembershipEvent {
    /// A worker has joined, for the first time or again.
    Joined {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker did not join in time at the start. It may still join.
    Missing {
        /// The worker.
        worker: WorkerId,
        /// What is known about it.
        why: String,
    },
    /// A worker was lost.
    Lost {
        /// The worker.
        worker: WorkerId,
        /// Why the worker is considered lost.
        why: String,
    },
    /// A connection or a message was refused.
    Refused {
        /// What was refused, and from which worker.
        what: String,
    },
    /// Connections or messages were refused that are not reported one by one, because there were too many.
    MoreRefused {
        /// How many.
        count: u64,
    },
    /// This process waits, because no link is up.
    Waiting {
        /// Why it waits.
        why: String,
    },
    /// A link is up again, and this process continues.
    Continued {
        /// How long it has waited, in seconds.
        #[serde(with = "whole_milliseconds")]
        seconds: std::time::Duration,
    },
    /// This process adopted a worker's model and continues at its round.
    Adopted {
        /// The worker whose model it is.
        worker: WorkerId,
        /// The next round before the adoption.
        from: u64,
        /// The next round after it.
        to: u64,
        /// The neighbors that support the round, and the rounds that their messages have shown.
        shown: Vec<(WorkerId, u64)>,
    },
    /// What the algorithm relies on for all workers together [starts afresh](crate::algorithm::Restart).
    Restarted,
    /// A model was requested and did not arrive. Another worker is asked.
    FetchFailed {
        /// The worker that was asked.
        worker: WorkerId,
        /// Why its model did not arrive.
        why: String,
    },
}

/// Durations in events, as seconds with three decimals.
mod whole_milliseconds {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_millis() as f64 / 1e3)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// What this process has sent, including all overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of bytes.
    pub bytes: u64,
    /// The number of messages.
    pub messages: u64,
}

/// The membership of a run: where workers are, which of them can be reached, and when a round may begin.
pub trait Membership {
    /// What the transport guarantees.
    fn capabilities(&self) -> Capabilities;

    /// Which worker is in which process.
    fn placement(&self) -> &Placement;

    /// What to do before round `round`. `stop` tells whether this process was asked to stop.
    fn may_begin(&mut self, round: u64, stop: bool) -> Result<RoundStart, TransportError>;

    /// Reports that a local worker diverged in this round, which ends the run.
    fn leave(&mut self, _worker: WorkerId, _round: u64) -> Result<(), TransportError> {
        Ok(())
    }

    /// Confirms an [adoption](RoundStart::Adopt): the model fits, and this process continues at that round.
    fn adopted(&mut self, _round: u64) {}

    /// The workers whose links went up or down since the last call. What was exchanged with them before does not count.
    fn changed_links(&mut self) -> Vec<WorkerId> {
        vec![]
    }

    /// Continues the participation of an earlier process of the same worker.
    fn restore_participation(&mut self, _participation: Participation) {}

    /// How this process has taken part so far, if the transport survives losses.
    fn participation(&self) -> Option<Participation> {
        None
    }

    /// Whether to expect messages from this worker in the next round.
    fn is_link_up(&self, _worker: WorkerId) -> bool {
        true
    }

    /// Whether a worker can be reached now.
    fn is_connected(&self, _worker: WorkerId) -> bool {
        true
    }

    /// Rejects what a worker has sent. If the transport survives losses, the worker is then lost.
    fn refuse(&mut self, _worker: WorkerId, _why: String) {}

    /// Whether a worker that has rejoined asks for a model.
    fn state_requested(&self) -> bool {
        false
    }

    /// Sends the state before round `round` to workers that asked for a model.
    fn send_state(&mut self, _round: u64, _state: State) {}

    /// The changes of the membership since the last call.
    fn membership_events(&mut self) -> Vec<MembershipEvent> {
        vec![]
    }
}

/// Messages between the workers of different processes. The defaults send and receive nothing.
///
/// In a synchronous run, a process calls [`begin_exchange`](Self::begin_exchange) and
/// [`finish_exchange`](Self::finish_exchange) in turn, for every exchange that involves other processes. It may compute
/// in between.
pub trait MessageExchange {
    /// Allocates a buffer for the values of a message, in memory from which sending is cheapest.
    fn allocate(&mut self, length: usize) -> Buffer {
        vec![0.0; length].into()
    }

    /// Sends messages, each to some processes, and announces the workers from which messages of the same exchange and
    /// round are expected. Does not wait.
    fn begin_exchange(
        &mut self,
        _outgoing: Vec<(Message, Vec<usize>)>,
        _expected: &[WorkerId],
    ) -> Result<(), TransportError> {
        Ok(())
    }

    /// Waits for the expected messages of this exchange. Returns them in increasing order of sender. If the transport
    /// survives losses, some may be missing.
    fn finish_exchange(&mut self, _exchange: u32) -> Result<Vec<Message>, TransportError> {
        Ok(vec![])
    }

    /// Asynchronous runs: sends a message to a worker in another process. Returns whether the worker can be reached.
    fn send(&mut self, _to: WorkerId, _message: Message) -> Result<bool, TransportError> {
        Ok(false)
    }

    /// Asynchronous runs: returns the messages that have arrived, or that arrive within this time.
    fn receive(&mut self, _wait: std::time::Duration) -> Result<Vec<Message>, TransportError> {
        Ok(vec![])
    }

    /// What this process has sent so far.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// Collective operations of all processes. The defaults are for a single process.
pub trait Collectives {
    /// Sums vectors over all processes, in place. `exchange` must be larger than the exchange number of anything sent
    /// before in the same round.
    fn all_reduce(&mut self, _exchange: u32, _values: &mut [f32]) -> Result<(), TransportError> {
        Ok(())
    }

    /// Gathers one scalar per worker. Each process knows those of its own workers. Fills in the others if the transport
    /// can, and leaves the rest unchanged.
    fn gather_scalars(&mut self, _values: &mut [f64]) -> Result<(), TransportError> {
        Ok(())
    }

    /// Sums one number per process over all processes, if the transport can.
    fn sum(&mut self, value: f64) -> Result<Option<f64>, TransportError> {
        Ok(Some(value))
    }
}

/// Everything that a run needs from its other processes.
pub trait Transport: Membership + MessageExchange + Collectives {}

impl<T: Membership + MessageExchange + Collectives> Transport for T {}

/// The transport of a run whose workers are all in this process.
#[derive(Debug)]
pub struct InProcess(Placement);

impl InProcess {
    /// Creates the transport for this number of workers.
    pub fn new(workers: usize) -> Self {
        Self(Placement::new(workers, 1, 0))
    }
}

impl Membership for InProcess {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survives_loss: false, authenticated: true, progresses: true }
    }

    fn placement(&self) -> &Placement {
        &self.0
    }

    fn may_begin(&mut self, _: u64, stop: bool) -> Result<RoundStart, TransportError> {
        Ok(if stop { RoundStart::Stop } else { RoundStart::Go })
    }
}

impl MessageExchange for InProcess {}

impl Collectives for InProcess {}
