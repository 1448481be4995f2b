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
        from: usize,
        /// The round.
        round: u64,
        /// The timeout.
        seconds: u64,
    },
    /// A message is invalid.
    #[error("message from worker {from}: {what}")]
    Message {
        /// The sender.
        from: usize,
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
        from: usize,
        /// The round.
        round: u64,
    },
    /// A worker's loss diverged, which ends the run.
    #[error("worker {worker} diverged in round {round}")]
    Diverged {
        /// The worker.
        worker: usize,
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
    /// Continue with a later round, where the other processes are. A process that was isolated also adopts another
    /// worker's model and statistics.
    Jump {
        /// The round.
        round: u64,
        /// The adopted vectors, by the names of a [`State`].
        adopted: Option<State>,
    },
}

/// A change of the membership of a run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MembershipEvent {
    /// A worker has joined, for the first time or again.
    Joined {
        /// The worker.
        worker: usize,
    },
    /// A worker did not join in time at the start. It may still join.
    Missing {
        /// The worker.
        worker: usize,
        /// What is known about it.
        why: String,
    },
    /// A worker was lost.
    Lost {
        /// The worker.
        worker: usize,
        /// Why the worker is considered lost.
        why: String,
    },
    /// A connection or a message was refused.
    Refused {
        /// What was refused, and from which worker.
        what: String,
    },
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
    fn leave(&mut self, _worker: usize, _round: u64) -> Result<(), TransportError> {
        Ok(())
    }

    /// Whether to expect messages from this worker in the next round.
    fn is_link_up(&self, _worker: usize) -> bool {
        true
    }

    /// Whether a worker can be reached now.
    fn is_connected(&self, _worker: usize) -> bool {
        true
    }

    /// Rejects what a worker has sent. If the transport survives losses, the worker is then lost.
    fn refuse(&mut self, _worker: usize, _why: String) {}

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
        _expected: &[usize],
    ) -> Result<(), TransportError> {
        Ok(())
    }

    /// Waits for the expected messages of this exchange. Returns them in increasing order of sender. If the transport
    /// survives losses, some may be missing.
    fn finish_exchange(&mut self, _exchange: u32) -> Result<Vec<Message>, TransportError> {
        Ok(vec![])
    }

    /// Asynchronous runs: sends a message to a worker in another process. Returns whether the worker can be reached.
    fn send(&mut self, _to: usize, _message: Message) -> Result<bool, TransportError> {
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
