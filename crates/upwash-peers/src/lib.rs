//! Peer-to-peer transport for Upwash, for machines that may leave and rejoin a run.
//!
//! Every worker runs in a separate process, a *peer*, which knows the address and the key of every other peer. Peers
//! that are neighbors in the graph keep a connection open. Connections use mutual TLS 1.3: only listed keys are
//! accepted, and each key can act only as its own worker. Neighbors drop a peer that is silent, too slow or gone, and
//! continue without it. A peer that comes back receives the model of a neighbor and joins at the current round.
//!
//! This file implements the traits of a transport; their methods are many and short.

#[cfg(test)]
mod adversarial;
mod frame;
#[cfg(fuzzing)]
pub mod fuzzing;
mod keys;
mod link;
mod membership;
#[cfg(test)]
mod throughput;
mod tls;

pub use frame::{FrameError, FrameHeader, Hello, Kind, Limits};
pub use frame::{model_to_bytes, parse_message, parse_model, parse_round};
pub use keys::{Fingerprint, Key, KeyError};
pub use membership::StatusReport;

use link::PeerContext;
use membership::{Awaited, Connection, MAX_ROUND_LAG, MembershipTable};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use upwash::engine::State;
use upwash::transport::{
    Buffer, Capabilities, Collectives, Membership, MembershipEvent, Message, MessageExchange, Placement, Pool,
    RoundStart, Traffic, TransportError,
};

/// Intervals and timeouts. The heartbeat must be several times shorter than `failure_timeout`, and `failure_timeout`
/// must be shorter than `message_timeout`: missing heartbeats reveal a dead peer, a missing message reveals a slow one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timings {
    /// A peer that has sent nothing for this long sends a heartbeat.
    pub heartbeat: Duration,
    /// A peer from which nothing arrives for this long is lost.
    pub failure_timeout: Duration,
    /// A connected peer whose expected message does not arrive within this time is lost.
    pub message_timeout: Duration,
    /// How long a peer waits for all its neighbors before the first round.
    pub startup_timeout: Duration,
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
    /// Largest messages and models that it accepts.
    pub limits: Limits,
    /// Intervals and timeouts.
    pub timings: Timings,
}

/// Transport between peers. Dropping it tells the other peers that this one has finished.
pub struct Peers {
    context: Arc<PeerContext>,
    placement: Placement,
    neighbors: Vec<usize>,
    runtime: Option<tokio::runtime::Runtime>,
    /// For each worker, the connection of its link, if the link is up in this round.
    links: Vec<Option<Connection>>,
    expected: Vec<usize>,
    round: u64,
    /// Taken when the first round starts. Connections must not start earlier, because they offer that round.
    listener: Option<(tokio::net::TcpListener, tokio_rustls::TlsAcceptor)>,
    /// Deadline for neighbors to connect before the first round, while this peer waits for them.
    startup_deadline: Option<Instant>,
}

/// Maximum time for which waiting for neighbors keeps the round loop from checking for control requests.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn broken(error: impl std::fmt::Display) -> TransportError {
    TransportError::Broken(error.to_string())
}

impl Peers {
    /// Binds the address to listen on. Accepting and opening connections starts with the first round.
    pub fn new(config: PeersConfig) -> Result<Self, TransportError> {
        let PeersConfig { own, key, peers, listen, neighbors, run, rounds, limits, timings } = config;
        let workers = peers.len();
        let (addresses, keys): (Vec<String>, Vec<Fingerprint>) = peers.into_iter().unzip();
        if keys.get(own) != Some(&key.fingerprint()) {
            return Err(broken(format!(
                "the configuration lists a different key for worker {own} than {}: pass the listed key with --key, \
                 or list this one",
                key.fingerprint()
            )));
        }
        let server = tls::server(&key, keys.clone()).map_err(broken)?;
        let context = Arc::new(PeerContext {
            own,
            key,
            keys,
            run,
            rounds,
            limits,
            timings,
            table: MembershipTable::new(workers, own),
            pool: Pool::new(neighbors.len() + 2),
            addresses,
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("peers")
            .enable_all()
            .build()
            .map_err(broken)?;
        let address = listen.unwrap_or_else(|| context.addresses[own].clone());
        let listener = runtime.block_on(tokio::net::TcpListener::bind(&address)).map_err(|error| {
            broken(format!(
                "cannot listen on {address}: {error} (if this peer is already running, stop it; to listen on another \
                 address, use --listen)"
            ))
        })?;
        let acceptor = tokio_rustls::TlsAcceptor::from(server);
        Ok(Self {
            listener: Some((listener, acceptor)),
            context,
            placement: Placement::new(workers, workers, own),
            neighbors,
            runtime: Some(runtime),
            links: vec![None; workers],
            expected: vec![],
            round: 0,
            startup_deadline: None,
        })
    }

    /// Starts to accept connections and to connect to neighbors, on the first call.
    fn start(&mut self, round: u64) {
        let (Some((listener, acceptor)), Some(runtime)) = (self.listener.take(), &self.runtime) else {
            return;
        };
        let context = &self.context;
        context.table.set_first_round(round);
        runtime.spawn(link::listen(Arc::clone(context), listener, acceptor));
        // Of two neighbors, the one with the lower index connects.
        for &worker in self.neighbors.iter().filter(|&&worker| worker > context.own) {
            runtime.spawn(link::keep_connected(Arc::clone(context), worker));
        }
        self.startup_deadline = Some(Instant::now() + context.timings.startup_timeout);
    }

    /// Whether all neighbors are connected, or the time to wait for them is over.
    fn startup_is_over(&mut self) -> bool {
        let Some(deadline) = self.startup_deadline else {
            return true;
        };
        let now = Instant::now();
        let table = &self.context.table;
        let missing = table.wait_for_offers(&self.neighbors, deadline.min(now + POLL_INTERVAL));
        if !missing.is_empty() && Instant::now() < deadline {
            return false;
        }
        table.report_missing(&missing);
        self.startup_deadline = None;
        true
    }

    /// Waits for the messages with this round and exchange from those workers whose links are up.
    fn collect(&mut self, from: &[usize], tag: (u64, u32)) -> Vec<Message> {
        let deadline = Instant::now() + self.context.timings.message_timeout;
        let mut messages = Vec::new();
        for &worker in from {
            let Some(connection) = &self.links[worker] else {
                continue;
            };
            match self.context.table.wait_for_message(worker, connection, tag, deadline) {
                Awaited::Message(message) => messages.push(message),
                Awaited::Missing => {}
                Awaited::TimedOut => {
                    let seconds = self.context.timings.message_timeout.as_secs_f64();
                    let why = format!("it sent no message for round {} within {seconds} seconds", tag.0);
                    self.context.table.close_connection(worker, connection.id, why);
                }
            }
        }
        messages
    }

    fn post(&self, message: Message, to: &[usize]) {
        let message = Arc::new(message);
        for &worker in to {
            let Some(connection) = &self.links[worker] else {
                continue;
            };
            if !self.context.table.post(worker, connection, &message) {
                let why = "it receives messages too slowly".to_string();
                self.context.table.close_connection(worker, connection.id, why);
            }
        }
    }
}

/// Requests the status of every peer of a configuration, with any listed key. Returns a status or an error for each
/// peer.
pub fn status(
    key: &Key,
    peers: &[(String, Fingerprint)],
    message_timeout: Duration,
) -> Result<Vec<Result<StatusReport, String>>, TransportError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
    Ok(runtime.block_on(async {
        let mut requests = Vec::new();
        for (address, expected) in peers {
            let (key, address, expected) = (key.clone(), address.clone(), *expected);
            requests.push(tokio::spawn(async move {
                let answer =
                    tokio::time::timeout(message_timeout, link::request_status(&key, &address, expected)).await;
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

impl Membership for Peers {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survives_loss: true, authenticated: true, progresses: true }
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    fn may_begin(&mut self, round: u64, stop: bool) -> Result<RoundStart, TransportError> {
        if stop {
            return Ok(RoundStart::Stop);
        }
        self.start(round);
        if !self.startup_is_over() {
            return Ok(RoundStart::Wait);
        }
        let (table, timings) = (&self.context.table, self.context.timings);
        let (latest, any_link_up) = table.latest_offer(round);
        if let Some((target, worker)) = latest
            && target > round + MAX_ROUND_LAG
        {
            // A peer without links adopts the model of the worker that is ahead. A peer with links is in one half of a
            // network that was split, and keeps its model.
            let adopted = match any_link_up {
                true => None,
                false => table.request_model(worker, timings.message_timeout),
            };
            let at = adopted.as_ref().map_or(target, |(at, _)| target.max(*at));
            table.jump_to(at);
            let adopted = adopted.map(|(_, state)| state);
            return Ok(RoundStart::Jump { round: at, adopted });
        }
        self.links = table.begin_round(round);
        self.round = round;
        Ok(RoundStart::Go)
    }

    fn is_link_up(&self, worker: usize) -> bool {
        worker == self.context.own || self.links[worker].is_some()
    }

    fn is_connected(&self, worker: usize) -> bool {
        self.context.table.connection(worker).is_some()
    }

    fn refuse(&mut self, worker: usize, why: String) {
        let what = format!("worker {worker}: {why}");
        self.context.table.record_event(MembershipEvent::Refused { what });
        self.links[worker] = None;
        if let Some(connection) = self.context.table.connection(worker) {
            self.context.table.close_connection(worker, connection.id, why);
        }
    }

    fn state_requested(&self) -> bool {
        self.context.table.state_requested()
    }

    fn send_state(&mut self, round: u64, state: State) {
        self.context.table.send_model(&model_to_bytes(round, &state));
    }

    fn membership_events(&mut self) -> Vec<MembershipEvent> {
        self.context.table.membership_events()
    }
}

impl MessageExchange for Peers {
    fn allocate(&mut self, length: usize) -> Buffer {
        self.context.pool.allocate(length)
    }

    fn begin_exchange(
        &mut self,
        outgoing: Vec<(Message, Vec<usize>)>,
        expected: &[usize],
    ) -> Result<(), TransportError> {
        for (message, receivers) in outgoing {
            self.post(message, &receivers);
        }
        self.expected = expected.to_vec();
        Ok(())
    }

    fn finish_exchange(&mut self, exchange: u32) -> Result<Vec<Message>, TransportError> {
        let expected = std::mem::take(&mut self.expected);
        Ok(self.collect(&expected, (self.round, exchange)))
    }

    fn send(&mut self, to: usize, message: Message) -> Result<bool, TransportError> {
        let table = &self.context.table;
        let Some(connection) = table.connection(to) else {
            return Ok(false);
        };
        if !table.post(to, &connection, &Arc::new(message)) {
            table.close_connection(to, connection.id, "it receives messages too slowly".into());
            return Ok(false);
        }
        Ok(true)
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Message>, TransportError> {
        Ok(self.context.table.receive_any(wait))
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            bytes: self.context.table.bytes_sent.load(Ordering::Relaxed),
            messages: self.context.table.messages_sent.load(Ordering::Relaxed),
        }
    }
}

impl Collectives for Peers {
    /// Every worker sends its values to all others and sums those that arrive, in the order of the workers.
    fn all_reduce(&mut self, exchange: u32, values: &mut [f32]) -> Result<(), TransportError> {
        let round = self.round;
        let message = Message {
            from: self.context.own,
            round,
            exchange,
            stats: upwash::algorithm::WorkerStats { loss: None, degree: 0, scalar: 1.0 },
            whole: true,
            fresh: false,
            values: values.to_vec().into(),
        };
        let all_workers: Vec<usize> = (0..self.links.len()).collect();
        self.post(message, &all_workers);
        let mut received: BTreeMap<usize, Buffer> = BTreeMap::new();
        for message in self.collect(&all_workers, (round, exchange)) {
            let usable = message.values.len() == values.len();
            if usable && message.values.iter().all(|value| value.is_finite()) {
                received.insert(message.from, message.values);
            } else {
                self.refuse(message.from, "its all-reduce message has the wrong length or is not finite".into());
            }
        }
        received.insert(self.context.own, values.to_vec().into());
        values.fill(0.0);
        for theirs in received.into_values() {
            values.iter_mut().zip(theirs.iter()).for_each(|(sum, x)| *sum += x);
        }
        Ok(())
    }

    fn gather_scalars(&mut self, _: &mut [f64]) -> Result<(), TransportError> {
        Ok(())
    }

    fn sum(&mut self, _: f64) -> Result<Option<f64>, TransportError> {
        Ok(None)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.context.table.send_goodbye();
        if let Some(runtime) = self.runtime.take() {
            // Lets the last frames leave before the runtime stops.
            runtime.block_on(async {
                let deadline = Instant::now() + Duration::from_secs(5);
                while !self.context.table.status().connected.is_empty() && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}
