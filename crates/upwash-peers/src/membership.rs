//! Who is there, and from which round on: what the connections and the round loop share.
//!
//! A link between two workers is *held* from a round on that both have promised: each tells the other
//! the first round that it has not begun yet, and the larger of the two counts. Whoever has begun that
//! round by the time it hears of it makes a later promise. So nobody waits for a message that was never
//! going to be sent. Capabilities that are far apart hold nothing: whoever is behind must first catch up.

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

/// A round that is so much later than one's own is another history: better to join it.
pub(crate) const MAX_ROUND_LAG: u64 = 10;
/// Messages of one sender that are kept before they are due; then nothing more is read from it.
pub(crate) const MAX_QUEUED: usize = 8;
/// Messages to one receiver that may be on their way; it is too slow if there are more.
const UNDER_WAY: u64 = MAX_QUEUED as u64;

/// What goes out over a connection.
pub(crate) enum OutboundFrame {
    Small(Kind, Vec<u8>),
    Message(Arc<Message>),
    /// After all that was said before.
    Close,
}

/// The way to a peer.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Every connection has a number of its own.
    pub(crate) id: u64,
    pub(crate) outbox: UnboundedSender<OutboundFrame>,
    /// Messages that have been handed to it and not been sent yet.
    pub(crate) under_way: Arc<AtomicU64>,
}

impl Connection {
    pub(crate) fn send(&self, frame: OutboundFrame) {
        // Who is gone is noticed by its reader.
        let _ = self.outbox.send(frame);
    }

    fn say(&self, kind: Kind, round: u64) {
        self.send(OutboundFrame::Small(kind, round.to_le_bytes().to_vec()));
    }
}

/// What is known of a worker.
#[derive(Default)]
pub(crate) struct Peer {
    connection: Option<Connection>,
    /// From which round on it has been promised messages, and has promised them.
    promised: u64,
    promise: Option<u64>,
    /// How often it has been promised something over this connection.
    attempts: u64,
    /// The last round that it was heard of in.
    round: u64,
    messages: VecDeque<Message>,
    /// The last message's round and exchange: they only grow.
    last: Option<(u64, u32)>,
    /// It has come to its end.
    finished: bool,
    /// Why it could not be reached.
    trouble: Option<String>,
}

impl Peer {
    /// The round from which on the link is held.
    fn held_from(&self) -> Option<u64> {
        self.connection.as_ref()?;
        let promise = self.promise?;
        let near = promise.abs_diff(self.promised) <= MAX_ROUND_LAG;
        near.then_some(promise.max(self.promised))
    }

    /// Makes a promise.
    fn promise_from(&mut self, round: u64) {
        self.promised = round;
        if let Some(connection) = &self.connection {
            connection.say(Kind::Offer, round);
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// The first round that has not been begun.
    next: u64,
    peers: Vec<Peer>,
    news: Vec<MembershipEvent>,
    /// Who asks for a model.
    asking: Vec<usize>,
    /// Who was asked for a model, and what came.
    asked: Option<usize>,
    adopted: Option<(u64, EngineState)>,
}

pub(crate) struct MembershipTable {
    own: usize,
    state: Mutex<State>,
    bell: Condvar,
    /// Rung for a reader when there is room for its messages again.
    room: Vec<Notify>,
    connections: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) messages: AtomicU64,
}

/// How things are with a peer, as `upwash status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Whose.
    pub worker: usize,
    /// The round that it is in.
    pub round: u64,
    /// Those it is connected with, and the round each was last heard of in.
    pub connected: Vec<(usize, u64)>,
    /// Bytes that it has sent.
    pub bytes_sent: u64,
    /// Bytes that it has received.
    pub bytes_received: u64,
}

/// What came of waiting for a message.
pub(crate) enum Awaited {
    Message(Message),
    /// It will not come.
    Missing,
    /// It did not come in time.
    Late,
}

impl MembershipTable {
    pub(crate) fn new(workers: usize, own: usize) -> Self {
        let state = State { peers: (0..workers).map(|_| Peer::default()).collect(), ..State::default() };
        Self {
            own,
            state: Mutex::new(state),
            bell: Condvar::new(),
            room: (0..workers).map(|_| Notify::new()).collect(),
            connections: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            messages: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new connection.
    pub(crate) fn new_id(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// Something that people should know.
    pub(crate) fn tell(&self, news: MembershipEvent) {
        let mut state = self.lock();
        // Whoever knocks a million times is told of a few times.
        if state.news.len() < 1000 {
            state.news.push(news);
        }
    }

    pub(crate) fn membership_events(&self) -> Vec<MembershipEvent> {
        std::mem::take(&mut self.lock().news)
    }

    // What connections do.

    /// A connection is there; an older one of the same worker is not any more.
    pub(crate) fn connected(&self, worker: usize, connection: Connection) {
        let mut state = self.lock();
        let next = state.next;
        connection.say(Kind::Offer, next);
        let peer = &mut state.peers[worker];
        if let Some(old) = peer.connection.replace(connection) {
            old.send(OutboundFrame::Close);
        }
        (peer.promised, peer.promise, peer.last) = (next, None, None);
        peer.attempts = 0;
        peer.messages.clear();
        (peer.finished, peer.trouble) = (false, None);
        state.news.push(MembershipEvent::Joined { worker });
        self.room[worker].notify_one();
        self.bell.notify_all();
    }

    /// A connection is gone.
    pub(crate) fn disconnected(&self, worker: usize, id: u64, why: String) {
        let mut state = self.lock();
        let peer = &mut state.peers[worker];
        if peer.connection.as_ref().is_none_or(|connection| connection.id != id) {
            return;
        }
        (peer.connection, peer.promise) = (None, None);
        if !peer.finished {
            peer.messages.clear();
            state.news.push(MembershipEvent::Lost { worker, why });
        }
        self.bell.notify_all();
    }

    /// The state of a worker, if it is still over this connection.
    fn on(state: &mut State, worker: usize, id: u64) -> Option<&mut Peer> {
        let peer = &mut state.peers[worker];
        let is_on = peer.connection.as_ref().is_some_and(|connection| connection.id == id);
        is_on.then_some(peer)
    }

    pub(crate) fn promise(&self, worker: usize, id: u64, round: u64) {
        let mut state = self.lock();
        let next = state.next;
        if let Some(peer) = Self::on(&mut state, worker, id) {
            (peer.promise, peer.round) = (Some(round), peer.round.max(round));
            // The round from which on both hold the link has been begun without it, or is far away.
            if peer.held_from().is_none_or(|from| from < next) && peer.promised < next {
                // Later each time: a promise takes its time to arrive, and rounds go on.
                peer.attempts += 1;
                peer.promise_from(next + peer.attempts.min(MAX_ROUND_LAG) - 1);
            }
        }
        self.bell.notify_all();
    }

    pub(crate) fn beat(&self, worker: usize, id: u64, round: u64) {
        if let Some(peer) = Self::on(&mut self.lock(), worker, id) {
            peer.round = peer.round.max(round);
        }
    }

    pub(crate) fn goodbye(&self, worker: usize, id: u64) {
        if let Some(peer) = Self::on(&mut self.lock(), worker, id) {
            peer.finished = true;
        }
    }

    /// A message has come; those of one sender come in their order, each once.
    pub(crate) fn message(&self, worker: usize, id: u64, message: Message) -> Result<(), WireError> {
        let mut state = self.lock();
        let next = state.next;
        if let Some(peer) = Self::on(&mut state, worker, id) {
            let turn = (message.round, message.exchange);
            if peer.last.is_some_and(|last| turn <= last) {
                let (round, exchange) = turn;
                return Err(WireError::OutOfTurn { round, exchange });
            }
            peer.last = Some(turn);
            peer.round = peer.round.max(message.round);
            // Nobody waits for what is over.
            if message.round + 1 >= next {
                peer.messages.push_back(message);
            }
        }
        self.bell.notify_all();
        Ok(())
    }

    /// Waits until there is room for more messages of a worker.
    pub(crate) async fn room_for(&self, worker: usize, id: u64) {
        loop {
            let full = match Self::on(&mut self.lock(), worker, id) {
                Some(peer) => peer.messages.len() >= MAX_QUEUED,
                None => false,
            };
            if !full {
                return;
            }
            self.room[worker].notified().await;
        }
    }

    pub(crate) fn fetch(&self, worker: usize) {
        let mut state = self.lock();
        if !state.asking.contains(&worker) {
            state.asking.push(worker);
        }
    }

    /// A model has come; whether it was asked for.
    pub(crate) fn model(&self, worker: usize, round: u64, model: EngineState) -> bool {
        let mut state = self.lock();
        let expected = state.asked == Some(worker);
        if expected {
            (state.asked, state.adopted) = (None, Some((round, model)));
        }
        self.bell.notify_all();
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
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn round(&self) -> u64 {
        self.lock().next.saturating_sub(1)
    }

    // What the round loop does.

    /// The first round, before anyone is told.
    pub(crate) fn start_with(&self, round: u64) {
        self.lock().next = round;
    }

    /// Waits until all of these are connected and have promised something, or until then; those who have not.
    pub(crate) fn gather(&self, workers: &[usize], until: Instant) -> Vec<usize> {
        let mut state = self.lock();
        loop {
            let is_connected = |peer: &Peer| peer.connection.is_some() && peer.promise.is_some();
            let missing = workers.iter().copied();
            let missing: Vec<usize> = missing.filter(|&worker| !is_connected(&state.peers[worker])).collect();
            let left = until.saturating_duration_since(Instant::now());
            if missing.is_empty() || left.is_zero() {
                return missing;
            }
            let waited = self.bell.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Says who was waited for in vain, and why that may be.
    pub(crate) fn miss(&self, workers: &[usize]) {
        let mut state = self.lock();
        for &worker in workers {
            let why = match &state.peers[worker].trouble {
                Some(why) => why.clone(),
                None if worker < self.own => "it has not called".into(),
                None => "it does not answer".into(),
            };
            state.news.push(MembershipEvent::Missing { worker, why });
        }
    }

    /// Why a worker could not be reached when it was last called.
    pub(crate) fn unreachable(&self, worker: usize, why: String) {
        self.lock().peers[worker].trouble = Some(why);
    }

    /// The largest round that anyone has promised, and who; and whether any link is held now.
    pub(crate) fn farthest(&self, round: u64) -> (Option<(u64, usize)>, bool) {
        let state = self.lock();
        let there = |peer: &Peer| peer.connection.as_ref().and(peer.promise);
        let peers = state.peers.iter().enumerate();
        let held: Vec<(u64, usize)> = peers.filter_map(|(worker, peer)| Some((there(peer)?, worker))).collect();
        let held_from = |peer: &Peer| peer.held_from().is_some_and(|from| from <= round);
        let any = state.peers.iter().any(held_from);
        (held.into_iter().max_by_key(|(from, worker)| (*from, usize::MAX - worker)), any)
    }

    /// Begins a round: the connections over which links are held in it.
    pub(crate) fn begin(&self, round: u64) -> Vec<Option<Connection>> {
        let mut state = self.lock();
        let connection = |peer: &Peer| {
            let held = peer.held_from().is_some_and(|from| from <= round);
            peer.connection.clone().filter(|_| held)
        };
        let held = state.peers.iter().map(connection).collect();
        state.next = round + 1;
        for (peer, room) in state.peers.iter_mut().zip(&self.room) {
            peer.messages.retain(|message| message.round >= round);
            room.notify_one();
        }
        held
    }

    /// Goes on with a later round: nobody shall wait for messages of those between.
    pub(crate) fn jump(&self, round: u64) {
        let mut state = self.lock();
        state.next = round;
        for (peer, room) in state.peers.iter_mut().zip(&self.room) {
            peer.promise_from(round);
            peer.messages.retain(|message| message.round >= round);
            room.notify_one();
        }
    }

    /// Asks a worker for its model, and waits for it.
    pub(crate) fn ask(&self, worker: usize, message_timeout: Duration) -> Option<(u64, EngineState)> {
        let mut state = self.lock();
        (state.asked, state.adopted) = (Some(worker), None);
        let connection = state.peers[worker].connection.clone()?;
        connection.send(OutboundFrame::Small(Kind::Fetch, vec![]));
        let deadline = Instant::now() + message_timeout;
        loop {
            if let Some(adopted) = state.adopted.take() {
                return Some(adopted);
            }
            let gone = Self::on(&mut state, worker, connection.id).is_none();
            let left = deadline.saturating_duration_since(Instant::now());
            if gone || left.is_zero() {
                return None;
            }
            let waited = self.bell.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether someone asks for a model.
    pub(crate) fn state_requested(&self) -> bool {
        !self.lock().asking.is_empty()
    }

    /// The model for all who ask.
    pub(crate) fn answer(&self, model: &[u8]) {
        let mut state = self.lock();
        for worker in std::mem::take(&mut state.asking) {
            if let Some(connection) = &state.peers[worker].connection {
                connection.send(OutboundFrame::Small(Kind::Model, model.to_vec()));
            }
        }
    }

    /// Hands a message to a connection, if that is still the one to its worker; whether it can keep up.
    pub(crate) fn post(&self, worker: usize, connection: &Connection, message: &Arc<Message>) -> bool {
        if Self::on(&mut self.lock(), worker, connection.id).is_none() {
            return true;
        }
        if connection.under_way.fetch_add(1, Ordering::Relaxed) >= UNDER_WAY {
            return false;
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        connection.send(OutboundFrame::Message(Arc::clone(message)));
        true
    }

    /// The connection to a worker, if there is one.
    pub(crate) fn connection(&self, worker: usize) -> Option<Connection> {
        self.lock().peers[worker].connection.clone()
    }

    /// All messages that have come, or the first to come within so long.
    pub(crate) fn whatever(&self, wait: Duration) -> Vec<Message> {
        let deadline = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            let mut found = Vec::new();
            for (peer, room) in state.peers.iter_mut().zip(&self.room) {
                found.extend(peer.messages.drain(..));
                room.notify_one();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !found.is_empty() || left.is_zero() {
                return found;
            }
            let waited = self.bell.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a message over a connection.
    pub(crate) fn wait_for(
        &self,
        worker: usize,
        connection: &Connection,
        turn: (u64, u32),
        deadline: Instant,
    ) -> Awaited {
        let mut state = self.lock();
        loop {
            let (round, _) = turn;
            // What it has sent before its end counts.
            let peer = &mut state.peers[worker];
            let is_on = peer.connection.as_ref().is_some_and(|c| c.id == connection.id);
            while let Some(message) = peer.messages.front() {
                let found = (message.round, message.exchange);
                if found > turn {
                    return Awaited::Missing;
                }
                let message = peer.messages.pop_front();
                self.room[worker].notify_one();
                if let Some(message) = message.filter(|_| found == turn) {
                    return Awaited::Message(message);
                }
            }
            // It is gone, or has gone on to a later round.
            if !is_on || peer.held_from().is_none_or(|from| from > round) {
                return Awaited::Missing;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Awaited::Late;
            }
            let waited = self.bell.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends a connection.
    pub(crate) fn drop_connection(&self, worker: usize, id: u64, why: String) {
        let connection = Self::on(&mut self.lock(), worker, id).and_then(|peer| peer.connection.clone());
        if let Some(connection) = connection {
            connection.send(OutboundFrame::Close);
        }
        self.disconnected(worker, id, why);
    }

    /// Everyone is told that this is the end.
    pub(crate) fn leave(&self) {
        for peer in &self.lock().peers {
            if let Some(connection) = &peer.connection {
                connection.send(OutboundFrame::Small(Kind::Goodbye, vec![]));
                connection.send(OutboundFrame::Close);
            }
        }
    }
}
