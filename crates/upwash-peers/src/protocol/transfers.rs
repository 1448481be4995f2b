//! Transfers of models: from whom a worker requests one, to whom it sends its own, and how long that may take.

use super::adoption::Target;
use super::{Outbound, Protocol, Time, Violation};
use crate::frame::Kind;
use std::sync::Arc;
use upwash::engine::State;
use upwash::transport::{Adoption, MembershipEvent};

/// A model is late if one of so many equal parts takes longer than a message may.
const PARTS: u64 = 16;

/// A model on its way from or to another worker.
#[derive(Debug)]
pub(super) struct Transfer {
    worker: usize,
    id: u64,
    /// The parts that have passed.
    pub(super) parts: u64,
    deadline: Time,
}

impl Transfer {
    fn is_with(&self, worker: usize, id: u64) -> bool {
        (self.worker, self.id) == (worker, id)
    }

    /// `done` of `length` bytes have passed. The next part has until `deadline`.
    fn advance(&mut self, done: usize, length: usize, deadline: Time) {
        let parts = PARTS * done as u64 / (length as u64).max(1);
        if parts > self.parts {
            (self.parts, self.deadline) = (parts, deadline);
        }
    }
}

/// A model that was requested.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) transfer: Transfer,
    received: Option<State>,
}

impl Protocol {
    // Models of others.

    /// The adoption of a model that has arrived, if it is still wanted. Otherwise requests one, if this worker should move
    /// to another round. Only one request is open at a time.
    pub(super) fn adoption(&mut self, now: Time) -> Option<Adoption> {
        self.end_failed_fetch(now);
        let target = self.target(now);
        let received = self.fetch.take_if(|fetch| fetch.received.is_some());
        let Target { round, shown } = target?;
        if let Some(Fetch { transfer: Transfer { worker: from, .. }, received: Some(state) }) = received
            && shown.iter().any(|entry| entry.0 == from)
        {
            // If it does not fit, another worker is asked.
            self.peers[from].fetch_failed = true;
            return Some(Adoption { from: from.into(), round, state });
        }
        if self.fetch.is_none() {
            self.request_model(shown.iter().map(|entry| entry.0).collect(), now);
        }
        None
    }

    /// Requests the model of one of these workers: preferably of one that has not failed to send it.
    pub(super) fn request_model(&mut self, candidates: Vec<usize>, now: Time) {
        if candidates.iter().all(|worker| self.peers[*worker].fetch_failed) {
            candidates.iter().for_each(|worker| self.peers[*worker].fetch_failed = false);
        }
        let untried = candidates.into_iter().find(|worker| !self.peers[*worker].fetch_failed);
        let Some((from, id)) = untried.and_then(|from| Some((from, self.connection(from)?))) else {
            return;
        };
        let deadline = now + self.config.timings.message_timeout;
        self.fetch = Some(Fetch { transfer: Transfer { worker: from, id, parts: 0, deadline }, received: None });
        if let Some(connection) = self.peers[from].on(id) {
            connection.model_due = true;
        }
        self.send(from, Outbound::Content(Kind::ModelRequest, vec![]));
    }

    /// Whether part of a requested model has arrived, and the rest is in time.
    pub(super) fn is_model_arriving(&self) -> bool {
        self.fetch.as_ref().is_some_and(|fetch| fetch.transfer.parts > 0)
    }

    /// Gives up on a model that does not arrive, and remembers not to ask that worker next. Closes the connection, so that
    /// the model cannot arrive together with a later one.
    fn end_failed_fetch(&mut self, now: Time) {
        let Some(Fetch { transfer, received: None }) = &self.fetch else {
            return;
        };
        let (from, id) = (transfer.worker, transfer.id);
        let why = match self.connection(from) == Some(id) {
            false => "the connection ended",
            true if now >= transfer.deadline => "it did not arrive in time",
            true => return,
        };
        self.fetch = None;
        self.peers[from].fetch_failed = true;
        self.record(MembershipEvent::FetchFailed { worker: from.into(), why: why.into() });
        self.close(from, id, "it did not send the model that it was asked for".into());
    }

    /// So many bytes of a model have arrived.
    pub(crate) fn on_model_read(&mut self, worker: usize, id: u64, done: usize, length: usize, now: Time) {
        self.on_heard(worker, id, now);
        let deadline = now + self.config.timings.message_timeout;
        if let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.transfer.is_with(worker, id)) {
            fetch.transfer.advance(done, length, deadline);
        }
    }

    /// A model has arrived.
    pub(super) fn on_model(&mut self, worker: usize, id: u64, state: State) -> Result<(), Violation> {
        let connection = self.peers[worker].on(id);
        if !connection.is_some_and(|connection| std::mem::take(&mut connection.model_due)) {
            return Err(Violation("it sent a model that was not requested".into()));
        }
        if let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.transfer.is_with(worker, id)) {
            fetch.received = Some(state);
        }
        Ok(())
    }

    // Models for others.

    /// The worker to which a model should be sent now: one at a time, and in turn.
    fn next_to_serve(&self) -> Option<usize> {
        let wants = |worker: &usize| {
            let connection = self.peers[*worker].connection.as_ref();
            connection.is_some_and(|connection| connection.wants_model && !connection.unwritten_model)
        };
        let mut in_turn = (self.last_served + 1..self.peers.len()).chain(0..=self.last_served);
        match self.serving {
            Some(_) => None,
            None => in_turn.find(wants),
        }
    }

    /// Whether a worker has requested a model, and none is being sent.
    pub(crate) fn is_model_wanted(&self) -> bool {
        self.next_to_serve().is_some()
    }

    /// Sends the model to the worker whose turn it is.
    pub(crate) fn send_model(&mut self, model: Vec<u8>, now: Time) {
        let Some(worker) = self.next_to_serve() else {
            return;
        };
        let deadline = now + self.config.timings.message_timeout;
        if let Some(connection) = &mut self.peers[worker].connection {
            connection.wants_model = false;
            self.serving = Some(Transfer { worker, id: connection.id, parts: 0, deadline });
            self.last_served = worker;
            self.send(worker, Outbound::Model(Arc::new(model)));
        }
    }

    /// So many bytes of a model have been written.
    pub(crate) fn on_model_written(&mut self, worker: usize, id: u64, done: usize, length: usize, now: Time) {
        let deadline = now + self.config.timings.message_timeout;
        if let Some(serving) = self.serving.as_mut().filter(|serving| serving.is_with(worker, id)) {
            serving.advance(done, length, deadline);
        }
    }

    /// The model that is being sent over this connection has left, or the connection has ended.
    pub(super) fn end_serving(&mut self, worker: usize, id: u64) {
        self.serving.take_if(|serving| serving.is_with(worker, id));
    }

    /// Closes the connection to a worker that does not read the model that it asked for.
    pub(super) fn close_if_unread(&mut self, now: Time) {
        if let Some(Transfer { worker, id, .. }) = self.serving.take_if(|serving| now >= serving.deadline) {
            self.close(worker, id, "it does not read the model that it asked for".into());
        }
    }
}
