//! What the connections and the round loop of a process share: the protocol, driven by sockets and the system's clock.

use crate::connection::Queued;
use crate::frame::Limits;
use crate::keys::{Fingerprint, Key};
use crate::protocol::{Action, Protocol, Time};
use crate::{StatusReport, Timings};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use upwash::transport::Pool;

/// The sending half of a connection. The protocol bounds what is in its queue.
pub(crate) struct Outbox {
    pub(crate) frames: UnboundedSender<Queued>,
    /// Notified when the connection must end.
    pub(crate) closing: Arc<Notify>,
}

struct Driven {
    protocol: Protocol,
    outboxes: HashMap<u64, Outbox>,
}

/// What all connections of a process share.
pub(crate) struct PeerContext {
    pub(crate) own: usize,
    pub(crate) key: Key,
    pub(crate) keys: Vec<Fingerprint>,
    pub(crate) addresses: Vec<String>,
    pub(crate) run: u64,
    pub(crate) limits: Limits,
    pub(crate) timings: Timings,
    /// Memory of outgoing and incoming messages, for reuse.
    pub(crate) pool: Pool,
    driven: Mutex<Driven>,
    changed: Condvar,
    /// Notified, for each worker, when its inbox may have space again.
    space: Vec<Notify>,
    /// The system's time when this process started, and the clock that has run since.
    epoch: Time,
    started: Instant,
    /// Connections that are open, or being closed.
    open: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
}

/// What a [`PeerContext`] is built from.
pub(crate) struct Identity {
    pub(crate) own: usize,
    pub(crate) key: Key,
    pub(crate) keys: Vec<Fingerprint>,
    pub(crate) addresses: Vec<String>,
    pub(crate) run: u64,
}

impl PeerContext {
    pub(crate) fn new(identity: Identity, limits: Limits, timings: Timings, pool: Pool, protocol: Protocol) -> Self {
        let Identity { own, key, keys, addresses, run } = identity;
        Self {
            own,
            key,
            run,
            limits,
            timings,
            pool,
            driven: Mutex::new(Driven { protocol, outboxes: HashMap::new() }),
            changed: Condvar::new(),
            space: keys.iter().map(|_| Notify::new()).collect(),
            keys,
            addresses,
            epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            started: Instant::now(),
            open: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
        }
    }

    fn now(&self) -> Time {
        self.epoch + self.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Driven> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the protocol and carries out its actions.
    pub(crate) fn drive<T>(&self, call: impl FnOnce(&mut Protocol, Time) -> T) -> T {
        let mut driven = self.lock();
        let (now, before) = (self.now(), driven.protocol.version());
        let result = call(&mut driven.protocol, now);
        self.carry_out(&mut driven, before);
        result
    }

    /// Reports a new connection. Returns its id, unless it must be closed.
    pub(crate) fn connected(&self, worker: usize, outbox: Outbox) -> Option<u64> {
        let mut driven = self.lock();
        let (now, before) = (self.now(), driven.protocol.version());
        let id = driven.protocol.on_connected(worker, now);
        if let Some(id) = id {
            self.open.fetch_add(1, Ordering::Relaxed);
            driven.outboxes.insert(id, outbox);
        }
        self.carry_out(&mut driven, before);
        id
    }

    /// Reports the end of a connection.
    pub(crate) fn disconnected(&self, worker: usize, id: u64, why: String) {
        self.drive(|protocol, _| protocol.on_disconnected(worker, id, why));
        self.lock().outboxes.remove(&id);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn carry_out(&self, driven: &mut Driven, before: u64) {
        for action in driven.protocol.take_actions() {
            match action {
                Action::Send { id, frame } => {
                    // The task that reads the connection notices when it has ended.
                    if let Some(outbox) = driven.outboxes.get(&id) {
                        let _ = outbox.frames.send(Queued::Frame(frame));
                    }
                }
                Action::Close { id } => {
                    if let Some(outbox) = driven.outboxes.remove(&id) {
                        let _ = outbox.frames.send(Queued::Close);
                        outbox.closing.notify_one();
                    }
                }
            }
        }
        if driven.protocol.version() != before {
            self.changed.notify_all();
            self.space.iter().for_each(Notify::notify_one);
        }
    }

    /// Waits until another message of a worker may be read.
    pub(crate) async fn wait_for_space(&self, worker: usize, id: u64) {
        while !self.drive(|protocol, _| protocol.has_space(worker, id)) {
            self.space[worker].notified().await;
        }
    }

    /// Reports that something was refused.
    pub(crate) fn refused(&self, what: String) {
        self.drive(|protocol, now| protocol.record_refusal(what, now));
    }

    /// Whether any connection is open, or still being closed.
    pub(crate) fn has_open_connections(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn status(&self) -> StatusReport {
        let (bytes_sent, bytes_received) = self.bytes();
        StatusReport { bytes_sent, bytes_received, ..self.drive(|protocol, _| protocol.status()) }
    }

    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.bytes_sent.load(Ordering::Relaxed), self.bytes_received.load(Ordering::Relaxed))
    }
}

/// The clock, and waiting.
impl PeerContext {
    /// Waits until the protocol's version is another one, but not for longer than `until`.
    pub(crate) fn wait(&self, version: u64, until: Time) {
        let mut driven = self.lock();
        loop {
            let left = until.saturating_sub(self.now());
            if driven.protocol.version() != version || left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(driven, left);
            driven = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
