//! Membership table: which peers are connected, and from which round on their links are up. The connections and the
//! round loop share it. One file, because every transition of a peer must be seen beside the others.
//!
//! Two workers agree on the first round in which the link between them is *up*. Each offers the first round that it has
//! not begun yet, and the later of the two offers counts. A worker that has already begun that round when the offer
//! arrives makes a later offer. So no worker waits for a message that its peer never sends. If the offers are more than
//! [`MAX_ROUND_LAG`] rounds apart, the link stays down, and the worker that is behind must catch up first.

use crate::frame::Kind;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use upwash::engine::State as EngineState;
use upwash::transport::{MembershipEvent, Message, WireError};

/// A worker that is more than this many rounds behind another worker jumps to the round of that worker.
pub(crate) const MAX_ROUND_LAG: u64 = 10;
/// Maximum number of messages in the inbox of one sender. While it is full, nothing more is read from that sender.
pub(crate) const MAX_QUEUED: usize = 8;
/// Maximum number of unsent messages to one receiver. A receiver that falls further behind is dropped as too slow.
const MAX_IN_FLIGHT: u64 = MAX_QUEUED as u64;

/// A frame in the send queue of a connection.
pub(crate) enum OutboundFrame {
    /// A frame with this content.
    Content(Kind, Vec<u8>),
    Message(Arc<Message>),
    /// Close the connection after all frames queued before.
    Close,
}

/// Handle to an open connection to a peer.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Unique among the connections of this process.
    pub(crate) id: u64,
    pub(crate) outbox: UnboundedSender<OutboundFrame>,
    /// Messages in the send queue.
    pub(crate) in_flight: Arc<AtomicU64>,
}

impl Connection {
    pub(crate) fn send(&self, frame: OutboundFrame) {
        // The task that reads the connection notices when it has ended.
        let _ = self.outbox.send(frame);
    }

    fn send_round(&self, kind: Kind, round: u64) {
        self.send(OutboundFrame::Content(kind, round.to_le_bytes().to_vec()));
    }
}

/// What this process knows about another worker.
#[derive(Default)]
pub(crate) struct Peer {
    connection: Option<Connection>,
    /// The first round that this process offered it.
    own_offer: u64,
    /// The first round that it offered this process.
    their_offer: Option<u64>,
    /// Repeated offers to it over this connection.
    retries: u64,
    /// The latest round that it is known to have reached.
    round: u64,
    /// Messages received from it and not taken yet.
    inbox: VecDeque<Message>,
    /// Round and exchange of its last message. They only increase.
    last_tag: Option<(u64, u32)>,
    /// It has finished its run.
    finished: bool,
    /// Why the last attempt to connect to it failed.
    last_error: Option<String>,
}

impl Peer {
    /// The first round in which the link is up.
    fn up_from(&self) -> Option<u64> {
        self.connection.as_ref()?;
        let their_offer = self.their_offer?;
        let near = their_offer.abs_diff(self.own_offer) <= MAX_ROUND_LAG;
        near.then_some(their_offer.max(self.own_offer))
    }

    /// Offers to use the link from this round on.
    fn send_offer(&mut self, round: u64) {
        self.own_offer = round;
        if let Some(connection) = &self.connection {
            connection.send_round(Kind::Offer, round);
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// The first round that this process has not begun.
    next: u64,
    peers: Vec<Peer>,
    events: Vec<MembershipEvent>,
    /// Workers that have requested a model from this process.
    model_requests: Vec<usize>,
    /// The worker from which this process has requested a model.
    requested_from: Option<usize>,
    /// The requested model, once it has arrived.
    received_model: Option<(u64, EngineState)>,
}

pub(crate) struct MembershipTable {
    own: usize,
    state: Mutex<State>,
    /// Notified when the state changes in a way that the round loop may wait for.
    changed: Condvar,
    /// Notified, for each worker, when its inbox has space again.
    space: Vec<Notify>,
    next_id: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) messages_sent: AtomicU64,
}

/// Status of a peer, as `upwash status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Worker of the peer.
    pub worker: usize,
    /// Its current round.
    pub round: u64,
    /// Workers that it is connected to, each with the latest round that it is known to have reached.
    pub connected: Vec<(usize, u64)>,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

/// Outcome of waiting for a message.
pub(crate) enum Awaited {
    Message(Message),
    /// The peer will not send it.
    Missing,
    /// It did not arrive before the deadline.
    TimedOut,
}

impl MembershipTable {
    pub(crate) fn new(workers: usize, own: usize) -> Self {
        let state = State { peers: (0..workers).map(|_| Peer::default()).collect(), ..State::default() };
        Self {
            own,
            state: Mutex::new(state),
            changed: Condvar::new(),
            space: (0..workers).map(|_| Notify::new()).collect(),
            next_id: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
            messages_sent: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An id for a new connection.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Records an event for the log.
    pub(crate) fn record_event(&self, event: MembershipEvent) {
        let mut state = self.lock();
        // Bounds memory if a host tries to connect a million times.
        if state.events.len() < 1000 {
            state.events.push(event);
        }
    }

    pub(crate) fn membership_events(&self) -> Vec<MembershipEvent> {
        std::mem::take(&mut self.lock().events)
    }

    // Called by the tasks of connections.

    /// A connection to this worker has been established. It replaces an older one.
    pub(crate) fn on_connected(&self, worker: usize, connection: Connection) {
        let mut state = self.lock();
        let next = state.next;
        connection.send_round(Kind::Offer, next);
        let peer = &mut state.peers[worker];
        if let Some(old) = peer.connection.replace(connection) {
            old.send(OutboundFrame::Close);
        }
        (peer.own_offer, peer.their_offer, peer.last_tag) = (next, None, None);
        peer.retries = 0;
        peer.inbox.clear();
        (peer.finished, peer.last_error) = (false, None);
        state.events.push(MembershipEvent::Joined { worker });
        self.space[worker].notify_one();
        self.changed.notify_all();
    }

    /// A connection has ended.
    pub(crate) fn on_disconnected(&self, worker: usize, id: u64, why: String) {
        let mut state = self.lock();
        let peer = &mut state.peers[worker];
        if peer.connection.as_ref().is_none_or(|connection| connection.id != id) {
            return;
        }
        (peer.connection, peer.their_offer) = (None, None);
        if !peer.finished {
            peer.inbox.clear();
            state.events.push(MembershipEvent::Lost { worker, why });
        }
        self.changed.notify_all();
    }

    /// The state of a worker, if this is still its connection.
    fn peer_on(state: &mut State, worker: usize, id: u64) -> Option<&mut Peer> {
        let peer = &mut state.peers[worker];
        let is_current = peer.connection.as_ref().is_some_and(|connection| connection.id == id);
        is_current.then_some(peer)
    }

    pub(crate) fn on_offer(&self, worker: usize, id: u64, round: u64) {
        let mut state = self.lock();
        let next = state.next;
        if let Some(peer) = Self::peer_on(&mut state, worker, id) {
            (peer.their_offer, peer.round) = (Some(round), peer.round.max(round));
            // This process has already begun the first common round without the link, or the offers are too far apart.
            if peer.up_from().is_none_or(|from| from < next) && peer.own_offer < next {
                // Each retry offers a later round, because rounds go on while an offer travels.
                peer.retries += 1;
                peer.send_offer(next + peer.retries.min(MAX_ROUND_LAG) - 1);
            }
        }
        self.changed.notify_all();
    }

    pub(crate) fn on_heartbeat(&self, worker: usize, id: u64, round: u64) {
        if let Some(peer) = Self::peer_on(&mut self.lock(), worker, id) {
            peer.round = peer.round.max(round);
        }
    }

    pub(crate) fn on_goodbye(&self, worker: usize, id: u64) {
        if let Some(peer) = Self::peer_on(&mut self.lock(), worker, id) {
            peer.finished = true;
        }
    }

    /// A message has arrived. The messages of one sender must arrive in order, and each only once.
    pub(crate) fn on_message(&self, worker: usize, id: u64, message: Message) -> Result<(), WireError> {
        let mut state = self.lock();
        let next = state.next;
        if let Some(peer) = Self::peer_on(&mut state, worker, id) {
            let tag = (message.round, message.exchange);
            if peer.last_tag.is_some_and(|last| tag <= last) {
                let (round, exchange) = tag;
                return Err(WireError::OutOfTurn { round, exchange });
            }
            peer.last_tag = Some(tag);
            peer.round = peer.round.max(message.round);
            // Messages of earlier rounds are no longer needed.
            if message.round + 1 >= next {
                peer.inbox.push_back(message);
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until the inbox of a worker has space.
    pub(crate) async fn wait_for_space(&self, worker: usize, id: u64) {
        loop {
            let full = match Self::peer_on(&mut self.lock(), worker, id) {
                Some(peer) => peer.inbox.len() >= MAX_QUEUED,
                None => false,
            };
            if !full {
                return;
            }
            self.space[worker].notified().await;
        }
    }

    pub(crate) fn on_model_request(&self, worker: usize) {
        let mut state = self.lock();
        if !state.model_requests.contains(&worker) {
            state.model_requests.push(worker);
        }
    }

    /// A model has arrived. Returns whether it was requested.
    pub(crate) fn on_model(&self, worker: usize, round: u64, model: EngineState) -> bool {
        let mut state = self.lock();
        let expected = state.requested_from == Some(worker);
        if expected {
            (state.requested_from, state.received_model) = (None, Some((round, model)));
        }
        self.changed.notify_all();
        expected
    }

    pub(crate) fn status(&self) -> StatusReport {
        let state = self.lock();
        let peers = state.peers.iter().enumerate();
        let connected = peers.filter(|(_, peer)| peer.connection.is_some());
        StatusReport {
            worker: self.own,
            round: state.next.saturating_sub(1),
            connected: connected.map(|(worker, peer)| (worker, peer.round)).collect(),
            bytes_sent: self.bytes_sent.load(Ordering::Relaxed),
            bytes_received: self.bytes_received.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn current_round(&self) -> u64 {
        self.lock().next.saturating_sub(1)
    }

    // Called by the round loop.

    /// Sets the first round. Must precede all connections.
    pub(crate) fn set_first_round(&self, round: u64) {
        self.lock().next = round;
    }

    /// Waits until these workers are connected and have made an offer, or until `until`. Returns those that have not.
    pub(crate) fn wait_for_offers(&self, workers: &[usize], until: Instant) -> Vec<usize> {
        let mut state = self.lock();
        loop {
            let has_offered = |peer: &Peer| peer.connection.is_some() && peer.their_offer.is_some();
            let missing = workers.iter().copied();
            let missing: Vec<usize> = missing.filter(|&worker| !has_offered(&state.peers[worker])).collect();
            let left = until.saturating_duration_since(Instant::now());
            if missing.is_empty() || left.is_zero() {
                return missing;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reports workers that have not connected, with the likely reason.
    pub(crate) fn report_missing(&self, workers: &[usize]) {
        let mut state = self.lock();
        for &worker in workers {
            let why = match &state.peers[worker].last_error {
                Some(why) => why.clone(),
                None if worker < self.own => "it has not connected".into(),
                None => "it does not answer".into(),
            };
            state.events.push(MembershipEvent::Missing { worker, why });
        }
    }

    /// Records why the last attempt to connect to a worker failed.
    pub(crate) fn record_unreachable(&self, worker: usize, why: String) {
        self.lock().peers[worker].last_error = Some(why);
    }

    /// The latest round that any connected worker has offered, with that worker, and whether any link is up in `round`.
    pub(crate) fn latest_offer(&self, round: u64) -> (Option<(u64, usize)>, bool) {
        let state = self.lock();
        let offer = |peer: &Peer| peer.connection.as_ref().and(peer.their_offer);
        let peers = state.peers.iter().enumerate();
        let offers: Vec<(u64, usize)> = peers.filter_map(|(worker, peer)| Some((offer(peer)?, worker))).collect();
        let is_up = |peer: &Peer| peer.up_from().is_some_and(|from| from <= round);
        let any_up = state.peers.iter().any(is_up);
        (offers.into_iter().max_by_key(|(from, worker)| (*from, usize::MAX - worker)), any_up)
    }

    /// Begins a round. Returns, for each worker, its connection if the link is up in this round.
    pub(crate) fn begin_round(&self, round: u64) -> Vec<Option<Connection>> {
        let mut state = self.lock();
        let connection = |peer: &Peer| {
            let is_up = peer.up_from().is_some_and(|from| from <= round);
            peer.connection.clone().filter(|_| is_up)
        };
        let links = state.peers.iter().map(connection).collect();
        state.next = round + 1;
        for (peer, space) in state.peers.iter_mut().zip(&self.space) {
            peer.inbox.retain(|message| message.round >= round);
            space.notify_one();
        }
        links
    }

    /// Continues with a later round. The new offers tell other workers not to expect messages of the skipped rounds.
    pub(crate) fn jump_to(&self, round: u64) {
        let mut state = self.lock();
        state.next = round;
        for (peer, space) in state.peers.iter_mut().zip(&self.space) {
            peer.send_offer(round);
            peer.inbox.retain(|message| message.round >= round);
            space.notify_one();
        }
    }

    /// Requests a model from a worker and waits for it.
    pub(crate) fn request_model(&self, worker: usize, message_timeout: Duration) -> Option<(u64, EngineState)> {
        let mut state = self.lock();
        (state.requested_from, state.received_model) = (Some(worker), None);
        let connection = state.peers[worker].connection.clone()?;
        connection.send(OutboundFrame::Content(Kind::ModelRequest, vec![]));
        let deadline = Instant::now() + message_timeout;
        loop {
            if let Some(model) = state.received_model.take() {
                return Some(model);
            }
            let disconnected = Self::peer_on(&mut state, worker, connection.id).is_none();
            let left = deadline.saturating_duration_since(Instant::now());
            if disconnected || left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether any worker has requested a model.
    pub(crate) fn state_requested(&self) -> bool {
        !self.lock().model_requests.is_empty()
    }

    /// Sends the model to all workers that have requested it.
    pub(crate) fn send_model(&self, model: &[u8]) {
        let mut state = self.lock();
        for worker in std::mem::take(&mut state.model_requests) {
            if let Some(connection) = &state.peers[worker].connection {
                connection.send(OutboundFrame::Content(Kind::Model, model.to_vec()));
            }
        }
    }

    /// Queues a message for a worker, unless this connection has ended. Returns false if the worker is too slow.
    pub(crate) fn post(&self, worker: usize, connection: &Connection, message: &Arc<Message>) -> bool {
        if Self::peer_on(&mut self.lock(), worker, connection.id).is_none() {
            return true;
        }
        if connection.in_flight.fetch_add(1, Ordering::Relaxed) >= MAX_IN_FLIGHT {
            return false;
        }
        self.messages_sent.fetch_add(1, Ordering::Relaxed);
        connection.send(OutboundFrame::Message(Arc::clone(message)));
        true
    }

    /// The current connection to a worker.
    pub(crate) fn connection(&self, worker: usize) -> Option<Connection> {
        self.lock().peers[worker].connection.clone()
    }

    /// Takes all messages from the inboxes. If there are none, waits up to `wait` for the first.
    pub(crate) fn receive_any(&self, wait: Duration) -> Vec<Message> {
        let deadline = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            let mut found = Vec::new();
            for (peer, space) in state.peers.iter_mut().zip(&self.space) {
                found.extend(peer.inbox.drain(..));
                space.notify_one();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !found.is_empty() || left.is_zero() {
                return found;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the message with this round and exchange over a connection.
    pub(crate) fn wait_for_message(
        &self,
        worker: usize,
        connection: &Connection,
        tag: (u64, u32),
        deadline: Instant,
    ) -> Awaited {
        let mut state = self.lock();
        loop {
            let (round, _) = tag;
            // Messages that arrived before the connection ended still count.
            let peer = &mut state.peers[worker];
            let is_current = peer.connection.as_ref().is_some_and(|c| c.id == connection.id);
            while let Some(message) = peer.inbox.front() {
                let found = (message.round, message.exchange);
                if found > tag {
                    return Awaited::Missing;
                }
                let message = peer.inbox.pop_front();
                self.space[worker].notify_one();
                if let Some(message) = message.filter(|_| found == tag) {
                    return Awaited::Message(message);
                }
            }
            // The connection has ended, or the peer has moved on to a later round.
            if !is_current || peer.up_from().is_none_or(|from| from > round) {
                return Awaited::Missing;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Awaited::TimedOut;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Closes a connection and reports the worker as lost.
    pub(crate) fn close_connection(&self, worker: usize, id: u64, why: String) {
        let connection = Self::peer_on(&mut self.lock(), worker, id).and_then(|peer| peer.connection.clone());
        if let Some(connection) = connection {
            connection.send(OutboundFrame::Close);
        }
        self.on_disconnected(worker, id, why);
    }

    /// Tells all connected workers that this process has finished, and closes the connections.
    pub(crate) fn send_goodbye(&self) {
        for peer in &self.lock().peers {
            if let Some(connection) = &peer.connection {
                connection.send(OutboundFrame::Content(Kind::Goodbye, vec![]));
                connection.send(OutboundFrame::Close);
            }
        }
    }
}
