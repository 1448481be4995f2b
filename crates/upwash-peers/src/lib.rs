//! Upwash between machines that may come and go.
//!
//! Every worker is a process of its own, a *peer*, that knows the addresses and the keys of all. Peers
//! that are neighbors in the graph keep a connection: mutual TLS 1.3, in which only listed keys get in
//! and each speaks only as itself. Whoever is silent, slow or gone is dropped by its neighbors, who go
//! on without it; whoever comes back is given a neighbor's model and joins at the current round.

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

/// How long to wait for what. A heartbeat must be several times shorter than `failure_timeout`, and that shorter than
/// `message_timeout`: a peer that is gone is noticed by its silence, one that is slow by a message that does not come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timings {
    /// After so long without anything to say, a peer says that it is still there.
    pub heartbeat: Duration,
    /// Who is not heard for so long is lost.
    pub failure_timeout: Duration,
    /// A message that is not there so long after it was expected does not come.
    pub message_timeout: Duration,
    /// At the start, so long is waited for all neighbors.
    pub startup_timeout: Duration,
    /// Who calls must have proved who it is within this.
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

/// What a peer must know.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// Which worker it is.
    pub own: usize,
    /// Its key.
    pub key: Key,
    /// Everyone's address, as `host:port`, and key.
    pub peers: Vec<(String, Fingerprint)>,
    /// Where it listens; its own address if not given.
    pub listen: Option<String>,
    /// With whom it ever exchanges messages.
    pub neighbors: Vec<usize>,
    /// A number that is the same for all who run the same configuration on the same data.
    pub run: u64,
    /// How many rounds there are.
    pub rounds: u64,
    /// How much may come.
    pub limits: Limits,
    /// How long to wait for what.
    pub timings: Timings,
}

/// The transport.
pub struct Peers {
    context: Arc<PeerContext>,
    placement: Placement,
    neighbors: Vec<usize>,
    runtime: Option<tokio::runtime::Runtime>,
    /// Over which connections links are held in this round.
    held: Vec<Option<Connection>>,
    expected: Vec<usize>,
    round: u64,
    /// Opened with the first round, which everyone is told.
    door: Option<(tokio::net::TcpListener, tokio_rustls::TlsAcceptor)>,
    /// Until when neighbors are waited for before the first round.
    gathering: Option<Instant>,
}

/// How long the round loop is kept from looking for control requests.
const SLICE: Duration = Duration::from_millis(100);

fn broken(error: impl std::fmt::Display) -> TransportError {
    TransportError::Broken(error.to_string())
}

impl Peers {
    /// Takes its address; with the first round it begins to answer and to call.
    pub fn new(config: PeersConfig) -> Result<Self, TransportError> {
        let PeersConfig { own, key, peers, listen, neighbors, run, rounds, limits, timings } = config;
        let workers = peers.len();
        let (addresses, keys): (Vec<String>, Vec<Fingerprint>) = peers.into_iter().unzip();
        if keys.get(own) != Some(&key.fingerprint()) {
            return Err(broken(format!(
                "the configuration lists another key for worker {own} than {}: give it the right --key, or \
                 list this one",
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
                "cannot listen on {address}: {error} (is this peer running already? --listen takes \
                     another address)"
            ))
        })?;
        let acceptor = tokio_rustls::TlsAcceptor::from(server);
        Ok(Self {
            door: Some((listener, acceptor)),
            context,
            placement: Placement::new(workers, workers, own),
            neighbors,
            runtime: Some(runtime),
            held: vec![None; workers],
            expected: vec![],
            round: 0,
            gathering: None,
        })
    }

    /// Answers who calls, and calls its neighbors.
    fn open(&mut self, round: u64) {
        let (Some((listener, acceptor)), Some(runtime)) = (self.door.take(), &self.runtime) else {
            return;
        };
        let context = &self.context;
        context.table.start_with(round);
        runtime.spawn(link::listen(Arc::clone(context), listener, acceptor));
        // Of two, the one with the lower number calls.
        for &worker in self.neighbors.iter().filter(|&&worker| worker > context.own) {
            runtime.spawn(link::call(Arc::clone(context), worker));
        }
        self.gathering = Some(Instant::now() + context.timings.startup_timeout);
    }

    /// Whether all neighbors are there, or have been waited for long enough.
    fn is_complete(&mut self) -> bool {
        let Some(deadline) = self.gathering else {
            return true;
        };
        let now = Instant::now();
        let table = &self.context.table;
        let missing = table.gather(&self.neighbors, deadline.min(now + SLICE));
        if !missing.is_empty() && Instant::now() < deadline {
            return false;
        }
        table.miss(&missing);
        self.gathering = None;
        true
    }

    /// Waits for messages of this turn from those over whose links something can come.
    fn collect(&mut self, from: &[usize], turn: (u64, u32)) -> Vec<Message> {
        let deadline = Instant::now() + self.context.timings.message_timeout;
        let mut messages = Vec::new();
        for &worker in from {
            let Some(connection) = &self.held[worker] else {
                continue;
            };
            match self.context.table.wait_for(worker, connection, turn, deadline) {
                Awaited::Message(message) => messages.push(message),
                Awaited::Missing => {}
                Awaited::Late => {
                    let seconds = self.context.timings.message_timeout.as_secs_f64();
                    let why = format!("no message of round {} within {seconds} seconds", turn.0);
                    self.context.table.drop_connection(worker, connection.id, why);
                }
            }
        }
        messages
    }

    fn post(&self, message: Message, to: &[usize]) {
        let message = Arc::new(message);
        for &worker in to {
            let Some(connection) = &self.held[worker] else {
                continue;
            };
            if !self.context.table.post(worker, connection, &message) {
                let why = "it takes messages too slowly".to_string();
                self.context.table.drop_connection(worker, connection.id, why);
            }
        }
    }
}

/// How things are with every peer of a configuration, asked with any listed key; what went wrong where
/// there is no answer.
pub fn status(
    key: &Key,
    peers: &[(String, Fingerprint)],
    message_timeout: Duration,
) -> Result<Vec<Result<StatusReport, String>>, TransportError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
    Ok(runtime.block_on(async {
        let mut asked = Vec::new();
        for (address, theirs) in peers {
            let (key, address, theirs) = (key.clone(), address.clone(), *theirs);
            asked.push(tokio::spawn(async move {
                let answer = tokio::time::timeout(message_timeout, link::ask(&key, &address, theirs)).await;
                let answer = answer.map_err(|_| "no answer".to_string())?;
                let answer = answer.map_err(|error| error.to_string())?;
                serde_json::from_slice(&answer).map_err(|error| error.to_string())
            }));
        }
        let mut answers = Vec::new();
        for answer in asked {
            answers.push(answer.await.unwrap_or_else(|error| Err(error.to_string())));
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
        self.open(round);
        if !self.is_complete() {
            return Ok(RoundStart::Wait);
        }
        let (table, timings) = (&self.context.table, self.context.timings);
        let (farthest, any_held) = table.farthest(round);
        if let Some((target, worker)) = farthest
            && target > round + MAX_ROUND_LAG
        {
            // Who was alone takes over what the others have come to; who was not keeps what it has.
            let adopted = match any_held {
                true => None,
                false => table.ask(worker, timings.message_timeout),
            };
            let at = adopted.as_ref().map_or(target, |(at, _)| target.max(*at));
            table.jump(at);
            let adopted = adopted.map(|(_, state)| state);
            return Ok(RoundStart::Jump { round: at, adopted });
        }
        self.held = table.begin(round);
        self.round = round;
        Ok(RoundStart::Go)
    }

    fn is_link_up(&self, worker: usize) -> bool {
        worker == self.context.own || self.held[worker].is_some()
    }

    fn is_connected(&self, worker: usize) -> bool {
        self.context.table.connection(worker).is_some()
    }

    fn refuse(&mut self, worker: usize, why: String) {
        let what = format!("worker {worker}: {why}");
        self.context.table.tell(MembershipEvent::Refused { what });
        self.held[worker] = None;
        if let Some(connection) = self.context.table.connection(worker) {
            self.context.table.drop_connection(worker, connection.id, why);
        }
    }

    fn state_requested(&self) -> bool {
        self.context.table.state_requested()
    }

    fn send_state(&mut self, round: u64, state: State) {
        self.context.table.answer(&model_to_bytes(round, &state));
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
        for (message, places) in outgoing {
            self.post(message, &places);
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
            table.drop_connection(to, connection.id, "it takes messages too slowly".into());
            return Ok(false);
        }
        Ok(true)
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Message>, TransportError> {
        Ok(self.context.table.whatever(wait))
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            bytes: self.context.table.sent.load(Ordering::Relaxed),
            messages: self.context.table.messages.load(Ordering::Relaxed),
        }
    }
}

impl Collectives for Peers {
    /// Everyone sends everyone its numbers, and sums up those that come, in the order of the workers.
    fn all_reduce(&mut self, exchange: u32, numbers: &mut [f32]) -> Result<(), TransportError> {
        let round = self.round;
        let message = Message {
            from: self.context.own,
            round,
            exchange,
            stats: upwash::algorithm::WorkerStats { loss: None, degree: 0, scalar: 1.0 },
            whole: true,
            fresh: false,
            values: numbers.to_vec().into(),
        };
        let everyone: Vec<usize> = (0..self.held.len()).collect();
        self.post(message, &everyone);
        let mut sums: BTreeMap<usize, Buffer> = BTreeMap::new();
        for message in self.collect(&everyone, (round, exchange)) {
            let usable = message.values.len() == numbers.len();
            if usable && message.values.iter().all(|number| number.is_finite()) {
                sums.insert(message.from, message.values);
            } else {
                self.refuse(message.from, "a sum that is none".into());
            }
        }
        sums.insert(self.context.own, numbers.to_vec().into());
        numbers.fill(0.0);
        for theirs in sums.into_values() {
            numbers.iter_mut().zip(theirs.iter()).for_each(|(sum, x)| *sum += x);
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
        self.context.table.leave();
        if let Some(runtime) = self.runtime.take() {
            // What was said last is to arrive.
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
