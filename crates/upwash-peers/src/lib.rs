//! Peer-to-peer transport for Upwash, for machines that may leave and rejoin a run.
//!
//! Every worker runs in a separate process, a *peer*, which knows the address and the key of every other peer. Peers
//! that are neighbors in the graph keep a connection open. Connections use mutual TLS 1.3: only listed keys are
//! accepted, and each key can act only as its own worker. Neighbors drop a peer that is silent, too slow or gone, and
//! continue without it. A peer that comes back receives the model of a neighbor and joins at the current round.
//!
//! `protocol` is a state machine without sockets, threads or clocks, which `docs/peers-protocol.md` specifies. The other
//! modules drive it.

#[cfg(test)]
mod adversarial;
mod connection;
mod context;
mod frame;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handshake;
mod keys;
mod listener;
mod protocol;
mod runtime;
mod setup;
#[cfg(test)]
mod simulation;
mod sockets;
#[cfg(test)]
mod throughput;
mod tls;
mod transport;

pub use frame::{Frame, FrameError, FrameHeader, Hello, Kind, Limits, View};
pub use frame::{model_to_bytes, parse_message, parse_model, parse_round};
pub use keys::{Fingerprint, Key, KeyError};
pub use setup::{SetupError, check_algorithm, listed_peers, lock_key, own_worker, peers_of};
pub use sockets::Peers;

use serde::{Deserialize, Serialize};
use std::time::Duration;
use upwash::transport::TransportError;

/// Intervals and timeouts. The heartbeat must be several times shorter than `failure_timeout`, and `failure_timeout`
/// must be shorter than `message_timeout`: missing heartbeats reveal a dead peer, a missing message reveals a slow one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timings {
    /// The interval between heartbeats.
    pub heartbeat: Duration,
    /// A peer from which nothing arrives for this long is lost.
    pub failure_timeout: Duration,
    /// A connected peer whose expected message does not arrive within this time is lost, even if rounds take so long, or
    /// their duration is not known yet. Otherwise the measured duration of rounds decides earlier.
    pub message_timeout: Duration,
    /// How long a peer waits for all its neighbors before the first round.
    pub startup_timeout: Duration,
    /// A peer that has had no link to any other for this long saves its state and stops.
    pub isolation_timeout: Duration,
    /// A new connection must authenticate within this time.
    pub handshake: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            failure_timeout: Duration::from_secs(5),
            message_timeout: Duration::from_secs(60),
            startup_timeout: Duration::from_secs(30),
            isolation_timeout: Duration::from_secs(120),
            handshake: Duration::from_secs(5),
        }
    }
}

/// Configuration of a peer.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// Index of its worker.
    pub own: usize,
    /// Its private key.
    pub key: Key,
    /// Address (`host:port`) and key of every worker, its own included.
    pub peers: Vec<(String, Fingerprint)>,
    /// Address to listen on; by default its own address in `peers`.
    pub listen: Option<String>,
    /// Workers with which it may exchange messages in any round.
    pub neighbors: Vec<usize>,
    /// Identifies the run: equal for peers with the same configuration and data.
    pub run: u64,
    /// Number of rounds.
    pub rounds: u64,
    /// Whether workers agree on rounds. Those of asynchronous algorithms do not.
    pub has_rounds: bool,
    /// Whether the run is over after these rounds, and not before.
    pub has_end: bool,
    /// Largest messages and models that it accepts.
    pub limits: Limits,
    /// Intervals and timeouts.
    pub timings: Timings,
}

/// Status of a peer, as `upwash status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Worker of the peer.
    pub worker: usize,
    /// Its current round.
    pub round: u64,
    /// Workers that it is connected to, each with the latest round that it says to have reached.
    pub connected: Vec<(usize, u64)>,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

/// Requests the status of every peer of a configuration, with any listed key. Returns a status or an error for each
/// peer.
pub fn status(
    key: &Key,
    peers: &[(String, Fingerprint)],
    message_timeout: Duration,
) -> Result<Vec<Result<StatusReport, String>>, TransportError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(sockets::broken)?;
    Ok(runtime.block_on(async {
        let mut requests = Vec::new();
        for (address, expected) in peers {
            let (key, address, expected) = (key.clone(), address.clone(), *expected);
            requests.push(tokio::spawn(async move {
                let answer =
                    tokio::time::timeout(message_timeout, handshake::request_status(&key, &address, expected)).await;
                let answer = answer.map_err(|_| "no answer".to_string())?;
                let answer = answer.map_err(|error| error.to_string())?;
                serde_json::from_slice(&answer).map_err(|error| error.to_string())
            }));
        }
        let mut answers = Vec::new();
        for request in requests {
            answers.push(request.await.unwrap_or_else(|error| Err(error.to_string())));
        }
        answers
    }))
}
