//! The protocol between peers, as a state machine: `docs/peers-protocol.md` specifies it.
//!
//! It has no clock, no threads and no sockets. Whoever drives it reports what happened and at what time, and carries out
//! the [`Action`]s that follow. This file has the state and what connections report; `messages.rs` has frames and
//! messages, and `rounds.rs` has what the round loop asks.

mod adoption;
mod messages;
mod pace;
mod peer;
mod refusals;
mod rounds;
mod sides;
#[cfg(test)]
mod tests;
mod transfers;

pub(crate) use messages::Awaited;
pub(crate) use peer::{LinkId, MAX_ROUND_LAG};
pub(crate) use rounds::Start;

use crate::frame::Kind;
use crate::{StatusReport, Timings};
use pace::Pace;
use peer::{Connection, Peer};
use refusals::Refusals;
use std::sync::Arc;
use std::time::Duration;
use transfers::{Fetch, Transfer};
use upwash::transport::{Contact, MembershipEvent, Message, Participation};

/// A point in time: the duration since 1970, as far as this process knows.
pub type Time = Duration;

/// Largest number of received messages that wait to be taken, for each worker. Nothing more is read until one is.
pub(crate) const MAX_QUEUED: usize = 8;
/// Largest number of unsent messages to one worker. A worker that falls further behind is dropped as too slow.
const MAX_UNSENT_MESSAGES: usize = MAX_QUEUED;
/// Largest number of unsent frames of any kind to one worker.
const MAX_UNSENT: usize = 256;
/// Largest number of events that wait to be reported.
const MAX_EVENTS: usize = 1000;
/// A worker that was late this often is held off for 2^6 times as long as it was waited for.
const MAX_TIMES_LATE: u32 = 6;
/// A neighbor may make rounds last this many times as long as they would without it.
const MAX_SLOWDOWN: u32 = 16;
/// After this many messages in time, earlier delays of a worker are forgotten.
const MESSAGES_IN_TIME: u32 = 64;
/// The exchange number of an announcement: a message without values that shows the sender's round.
pub(crate) const ANNOUNCEMENT: u32 = u32::MAX;

/// What is fixed when the protocol starts.
#[derive(Clone, Debug)]
pub(crate) struct ProtocolConfig {
    pub(crate) own: usize,
    pub(crate) workers: usize,
    /// Workers with which this one may exchange messages in any round.
    pub(crate) neighbors: Vec<usize>,
    /// Number of rounds.
    pub(crate) rounds: u64,
    /// Whether workers agree on rounds. Asynchronous workers do not.
    pub(crate) has_rounds: bool,
    /// Whether the run is over after `rounds` rounds, and not before. A training loop that does not know its length ends
    /// when it likes.
    pub(crate) has_end: bool,
    pub(crate) timings: Timings,
}

/// A frame to send.
#[derive(Clone, Debug)]
pub(crate) enum Outbound {
    /// A frame with this content.
    Content(Kind, Vec<u8>),
    Message(Arc<Message>),
    Model(Arc<Vec<u8>>),
}

/// What the driver must do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send a frame over a connection, and report when it has been [written](Protocol::on_written).
    Send { id: u64, frame: Outbound },
    /// Close a connection after all frames before it, and within a second.
    Close { id: u64 },
}

/// What a connection must be closed for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

/// The state of the protocol in one process.
pub struct Protocol {
    config: ProtocolConfig,
    /// The first round that this process has not begun.
    next: u64,
    peers: Vec<Peer>,
    /// When each worker on this side was last known to be alive.
    seen: Vec<Option<Time>>,
    next_id: u64,
    last_heartbeat: Time,
    /// Whether the round loop waits for others.
    is_waiting: bool,
    started: Option<Time>,
    startup_is_over: bool,
    /// Since when no link has been up, although one should be.
    alone_since: Option<Time>,
    /// Rounds without a link since the last one with a link, and since when this worker pauses because there are many.
    lone_rounds: u64,
    paused_since: Option<Time>,
    /// Since when there has been a link.
    linked_since: Option<Time>,
    /// Since when any neighbor has been connected.
    connected_since: Option<Time>,
    fetch: Option<Fetch>,
    /// The model that is being sent, and the worker to which one was sent last.
    serving: Option<Transfer>,
    last_served: usize,
    /// The durations of rounds that were run with a link, the same without the time for which only the slowest neighbor was
    /// waited for, and when the round in progress began.
    rounds: Pace,
    rounds_without_slowest: Pace,
    /// When the messages of the exchange in progress arrived, and the time for which the slowest neighbor alone was waited
    /// for in this round.
    arrivals: Vec<Time>,
    waited_for_slowest: Duration,
    begun: Option<(u64, Time)>,
    participation: Participation,
    /// The contact of an earlier process of this worker.
    earlier_contact: Option<Contact>,
    changed_links: Vec<usize>,
    refusals: Refusals,
    events: Vec<MembershipEvent>,
    actions: Vec<Action>,
    /// Changes whenever something happens that the round loop may wait for.
    version: u64,
    pub(crate) messages_sent: u64,
    /// The senders, rounds and exchanges of the messages that the round loop has taken.
    #[cfg(test)]
    pub(crate) taken: Vec<(usize, u64, u32)>,
}

impl Protocol {
    pub(crate) fn new(config: ProtocolConfig) -> Self {
        let workers = config.workers;
        Self {
            config,
            next: 0,
            peers: (0..workers).map(|_| Peer::default()).collect(),
            seen: vec![None; workers],
            next_id: 0,
            last_heartbeat: Time::ZERO,
            is_waiting: false,
            started: None,
            startup_is_over: false,
            alone_since: None,
            lone_rounds: 0,
            paused_since: None,
            linked_since: None,
            connected_since: None,
            fetch: None,
            serving: None,
            last_served: 0,
            rounds: Pace::default(),
            rounds_without_slowest: Pace::default(),
            arrivals: vec![],
            waited_for_slowest: Duration::ZERO,
            begun: None,
            participation: Participation::default(),
            earlier_contact: None,
            changed_links: vec![],
            refusals: Refusals::default(),
            events: vec![],
            actions: vec![],
            version: 0,
            messages_sent: 0,
            #[cfg(test)]
            taken: vec![],
        }
    }

    /// Takes what must be done.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Takes the events for the log.
    pub(crate) fn take_events(&mut self) -> Vec<MembershipEvent> {
        std::mem::take(&mut self.events)
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    fn record(&mut self, event: MembershipEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        }
    }

    /// Records that something was refused, unless too much was refused lately.
    pub(crate) fn record_refusal(&mut self, what: String, now: Time) {
        for event in self.refusals.add(what, now) {
            self.record(event);
        }
    }

    fn send(&mut self, worker: usize, frame: Outbound) {
        let Some(connection) = &mut self.peers[worker].connection else {
            return;
        };
        let id = connection.id;
        connection.unwritten += 1;
        match &frame {
            Outbound::Message(_) => connection.unwritten_messages += 1,
            Outbound::Model(_) => connection.unwritten_model = true,
            Outbound::Content(..) => {}
        }
        let is_stuck = connection.unwritten > MAX_UNSENT;
        self.actions.push(Action::Send { id, frame });
        if is_stuck {
            self.close(worker, id, "it does not read what it is sent".into());
        }
    }

    // What connections report.

    /// A connection to this worker has been established. It replaces an older one. Returns its id, or `None` if it must
    /// be closed, because this worker connects all the time.
    pub(crate) fn on_connected(&mut self, worker: usize, now: Time) -> Option<u64> {
        if self.peers[worker].connects_too_often(now) {
            self.record_refusal(format!("worker {worker}: it connects too often"), now);
            return None;
        }
        self.next_id += 1;
        let id = self.next_id;
        if let Some(old) = &self.peers[worker].connection {
            let old = old.id;
            self.close(worker, old, "it connected again".into());
        }
        let peer = &mut self.peers[worker];
        peer.connection = Some(Connection::new(id, now));
        (peer.has_finished, peer.last_messages, peer.last_error) = (false, None, None);
        self.connected_since.get_or_insert(now);
        self.record(MembershipEvent::Joined { worker: worker.into() });
        self.send_view(worker, now);
        self.version += 1;
        Some(id)
    }

    /// A connection has ended.
    pub(crate) fn on_disconnected(&mut self, worker: usize, id: u64, why: String) {
        let peer = &mut self.peers[worker];
        let Some(connection) = peer.connection.take_if(|connection| connection.id == id) else {
            return;
        };
        peer.last_heard = Some(connection.last_heard);
        if connection.finished {
            // What it sent before it finished still counts.
            peer.has_finished = true;
            let from = connection.up_from().unwrap_or(u64::MAX);
            peer.last_messages = Some(((id, from), connection.inbox));
        } else {
            self.record(MembershipEvent::Lost { worker: worker.into(), why });
        }
        self.end_serving(worker, id);
        if self.peers.iter().all(|peer| peer.connection.is_none()) {
            self.connected_since = None;
        }
        self.forget_side_if_alone();
        self.version += 1;
    }

    /// Closes a connection because an expected message is overdue. The worker is not waited for again until it has been
    /// given some time: longer each time.
    pub(crate) fn close_late(&mut self, worker: usize, id: u64, why: String, waited: Duration, now: Time) {
        let peer = &mut self.peers[worker];
        if peer.on(id).is_some() {
            peer.times_late = (peer.times_late + 1).min(MAX_TIMES_LATE);
            // It may have no other neighbor, and must not end as isolated because it is held off.
            let longest = self.config.timings.isolation_timeout / 2;
            peer.held_off_until = Some(now + (waited * (1 << peer.times_late)).min(longest));
            self.arrivals.push(now);
            self.close(worker, id, why);
        }
    }

    /// Closes a connection and reports the worker as lost.
    pub(crate) fn close(&mut self, worker: usize, id: u64, why: String) {
        if self.peers[worker].on(id).is_some() {
            self.actions.push(Action::Close { id });
            self.on_disconnected(worker, id, why);
        }
    }

    /// Bytes have arrived.
    pub(crate) fn on_heard(&mut self, worker: usize, id: u64, now: Time) {
        if let Some(connection) = self.peers[worker].on(id) {
            connection.last_heard = now;
        }
    }

    /// A frame has been written.
    pub(crate) fn on_written(&mut self, worker: usize, id: u64, kind: Kind) {
        let Some(connection) = self.peers[worker].on(id) else {
            return;
        };
        connection.unwritten = connection.unwritten.saturating_sub(1);
        match kind {
            Kind::Message => connection.unwritten_messages = connection.unwritten_messages.saturating_sub(1),
            Kind::Model => {
                connection.unwritten_model = false;
                self.end_serving(worker, id);
            }
            _ => {}
        }
        self.version += 1;
    }

    /// Time has passed: sends heartbeats, and closes connections over which nothing arrives. Call it several times per
    /// heartbeat interval.
    pub(crate) fn on_tick(&mut self, now: Time) {
        let timings = self.config.timings;
        for event in self.refusals.report(now) {
            self.record(event);
        }
        self.close_if_unread(now);
        let beats = now >= self.last_heartbeat + timings.heartbeat;
        if beats {
            self.last_heartbeat = now;
        }
        for worker in 0..self.peers.len() {
            let Some(connection) = &self.peers[worker].connection else {
                continue;
            };
            if now >= connection.last_heard + timings.failure_timeout {
                let (id, seconds) = (connection.id, timings.failure_timeout.as_secs_f64());
                self.close(worker, id, format!("nothing was received for {seconds} seconds"));
            } else if beats && !connection.unwritten_model {
                // The bytes of a model show as well that this worker is alive.
                self.send_view(worker, now);
            }
        }
    }

    fn send_view(&mut self, worker: usize, now: Time) {
        let content = self.view(now).to_bytes();
        self.send(worker, Outbound::Content(Kind::Heartbeat, content));
    }

    /// Records why the last attempt to connect to a worker failed.
    pub(crate) fn record_unreachable(&mut self, worker: usize, why: String) {
        self.peers[worker].last_error = Some(why);
    }

    /// Closes all connections. Tells the other workers that this process has finished, unless it ends early.
    pub(crate) fn say_goodbye(&mut self, ends_early: bool) {
        let has_finished = !ends_early && (self.next >= self.config.rounds || !self.config.has_end);
        for worker in 0..self.peers.len() {
            if let Some(id) = self.connection(worker) {
                if has_finished {
                    self.send(worker, Outbound::Content(Kind::Goodbye, vec![]));
                }
                self.actions.push(Action::Close { id });
            }
        }
    }

    /// The connection to a worker.
    pub(crate) fn connection(&self, worker: usize) -> Option<u64> {
        self.peers[worker].connection.as_ref().map(|connection| connection.id)
    }

    /// The status of this process, without the bytes that it has sent and received.
    pub(crate) fn status(&self) -> StatusReport {
        let peers = self.peers.iter().enumerate();
        let connected = peers.filter_map(|(worker, peer)| Some((worker, peer.connection.as_ref()?)));
        let round = |connection: &Connection| connection.view.as_ref().map_or(0, |view| view.round.saturating_sub(1));
        StatusReport {
            worker: self.config.own,
            round: self.next.saturating_sub(1),
            connected: connected.map(|(worker, connection)| (worker, round(connection))).collect(),
            bytes_sent: 0,
            bytes_received: 0,
        }
    }
}
