//! Transports: they move vectors between the processes of a run.
//!
//! A process holds one worker or several ([`Placement`]). In a round every process posts what its
//! workers send and collects what they hear; nobody else is involved, so that a round costs what its
//! links cost. The round loop knows only this trait. Within one process there is nothing to move.

mod encoding;
mod placement;
mod wire;

pub use crate::buffer::{Buffer, Pool, SharedBuffer};
pub use encoding::Encoding;
pub use placement::Placement;
pub use wire::{HEADER, Message, WireError};

use crate::model::State;

/// What a transport can be relied upon for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The run goes on when a process is lost.
    pub survives_loss: bool,
    /// Nobody but the run's own processes can take part.
    pub authenticated: bool,
    /// What was posted is on its way while this process computes.
    pub progresses: bool,
}

/// Why a run cannot go on between processes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// What was waited for did not come.
    #[error("round {round}: nothing came from worker {from} within {seconds} seconds")]
    Silence {
        /// Who was waited for.
        from: usize,
        /// When.
        round: u64,
        /// For how long.
        seconds: u64,
    },
    /// What came cannot be used.
    #[error("from worker {from}: {what}")]
    Message {
        /// Whose it was.
        from: usize,
        /// What is wrong.
        what: WireError,
    },
    /// Someone is gone without whom the algorithm cannot go on.
    #[error(
        "round {round}: worker {from} is lost, and this algorithm needs everyone: use one that goes by a \
         graph, as al-dsgd or dpsgd"
    )]
    Missing {
        /// Who.
        from: usize,
        /// When.
        round: u64,
    },
    /// A worker's loss is lost, and the run with it.
    #[error("worker {worker} diverged in round {round}")]
    Diverged {
        /// Whose.
        worker: usize,
        /// When.
        round: u64,
    },
    /// It is broken.
    #[error("{0}")]
    Broken(String),
}

/// What a process is to do before a round.
#[derive(Clone, Debug, PartialEq)]
pub enum RoundStart {
    /// The round.
    Go,
    /// Nothing yet: the others are waited for. To be asked again at once, with what is wished by then.
    Wait,
    /// Stop here: everyone does.
    Stop,
    /// Go on with a later round, where the others are, and if it was away alone with this model and
    /// these statistics, which are another's.
    Jump {
        /// The round.
        round: u64,
        /// The vectors, by the names of a [`State`].
        adopted: Option<State>,
    },
}

/// What has happened to other processes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MembershipEvent {
    /// A worker is heard of, for the first time or again.
    Joined {
        /// Who.
        worker: usize,
    },
    /// A worker was waited for at the start in vain; it may come yet.
    Missing {
        /// Who.
        worker: usize,
        /// What is known of it.
        why: String,
    },
    /// A worker is not heard of any more.
    Lost {
        /// Who.
        worker: usize,
        /// Why that is believed.
        why: String,
    },
    /// Something was refused.
    Refused {
        /// What, and from whom.
        what: String,
    },
}

/// What has been sent by this process, with everything that goes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

/// The processes of a run: where workers are, which of them can be reached, and when a round may begin.
pub trait Membership {
    /// What the transport can be relied upon for.
    fn capabilities(&self) -> Capabilities;

    /// Which worker is in which process.
    fn placement(&self) -> &Placement;

    /// What to do before round `round`; `stop` says that somebody here asks for an end.
    fn may_begin(&mut self, round: u64, stop: bool) -> Result<RoundStart, TransportError>;

    /// A worker here has diverged in this round: the run is over.
    fn leave(&mut self, _worker: usize, _round: u64) -> Result<(), TransportError> {
        Ok(())
    }

    /// Whether messages from this worker can be expected in the next round.
    fn is_link_up(&self, _worker: usize) -> bool {
        true
    }

    /// Whether a worker can be reached now.
    fn is_connected(&self, _worker: usize) -> bool {
        true
    }

    /// What a worker has sent cannot be used: where losses are survived, it is lost.
    fn refuse(&mut self, _worker: usize, _why: String) {}

    /// Whether a worker that has come back asks for a model.
    fn state_requested(&self) -> bool {
        false
    }

    /// The model for those that ask: the state before round `round`.
    fn send_state(&mut self, _round: u64, _state: State) {}

    /// What has happened since this was asked last.
    fn membership_events(&mut self) -> Vec<MembershipEvent> {
        vec![]
    }
}

/// Messages between the workers of different processes. By default there are none.
///
/// In rounds, a process calls [`begin_exchange`](Self::begin_exchange) and [`finish_exchange`](Self::finish_exchange) in
/// turn, for every exchange that involves others; in between it may compute.
pub trait MessageExchange {
    /// Room for the numbers of a message, to be filled in: where sending costs least.
    fn allocate(&mut self, length: usize) -> Buffer {
        vec![0.0; length].into()
    }

    /// Sends messages, each to some processes, and says from which workers messages of the same exchange of the
    /// same round are expected. Does not wait.
    fn begin_exchange(
        &mut self,
        _outgoing: Vec<(Message, Vec<usize>)>,
        _expected: &[usize],
    ) -> Result<(), TransportError> {
        Ok(())
    }

    /// Waits for the expected messages of this exchange; in increasing order of the sender. Where losses
    /// are survived, some may be missing.
    fn finish_exchange(&mut self, _exchange: u32) -> Result<Vec<Message>, TransportError> {
        Ok(vec![])
    }

    /// Without rounds: sends a message to a worker in another process; whether that can be reached.
    fn send(&mut self, _to: usize, _message: Message) -> Result<bool, TransportError> {
        Ok(false)
    }

    /// Without rounds: whatever has come, or comes within so long.
    fn receive(&mut self, _wait: std::time::Duration) -> Result<Vec<Message>, TransportError> {
        Ok(vec![])
    }

    /// What has been sent so far.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// What all processes do together. By default there is only one.
pub trait Collectives {
    /// The sum over all processes, in all of them; `exchange` is larger than that of what was sent before
    /// in the same round.
    fn all_reduce(&mut self, _exchange: u32, _numbers: &mut [f32]) -> Result<(), TransportError> {
        Ok(())
    }

    /// A number for each worker, known where it is: fills in what others know, where that can be had,
    /// and leaves the rest.
    fn gather_scalars(&mut self, _numbers: &mut [f64]) -> Result<(), TransportError> {
        Ok(())
    }

    /// The sum over all processes of a number for each of them, where that can be had.
    fn sum(&mut self, number: f64) -> Result<Option<f64>, TransportError> {
        Ok(Some(number))
    }
}

/// All that a run needs to know of its other processes.
pub trait Transport: Membership + MessageExchange + Collectives {}

impl<T: Membership + MessageExchange + Collectives> Transport for T {}

/// All workers are in this process.
#[derive(Debug)]
pub struct InProcess(Placement);

impl InProcess {
    /// So many of them.
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
