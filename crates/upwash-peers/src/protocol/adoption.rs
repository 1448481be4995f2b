//! Adoption: when a worker takes over another worker's model and round, and how it gets the model.

use super::rounds::Start;
use super::{Action, MAX_ROUND_LAG, Outbound, Protocol, Time, Violation};
use crate::frame::Kind;
use std::sync::Arc;
use upwash::engine::State;
use upwash::transport::{Adoption, MembershipEvent};

/// How many times faster the others may have become since the last contact with them, for example because they no
/// longer wait for this worker.
const SPEEDUP: f64 = 4.0;

/// A model that was requested.
#[derive(Debug)]
pub(super) struct Fetch {
    from: usize,
    id: u64,
    deadline: Time,
    received: Option<State>,
}

impl Fetch {
    /// Whether the model is expected from this worker, over this connection.
    pub(super) fn awaits(&self, worker: usize, id: u64) -> bool {
        (self.from, self.id) == (worker, id) && self.received.is_none()
    }
}

/// A round to move to, and the neighbors whose messages have shown it.
struct Target {
    round: u64,
    shown: Vec<(usize, u64)>,
}

impl Protocol {
    /// Adopts a model that has arrived, or requests one, if this worker should move to another round.
    pub(super) fn adoption(&mut self, now: Time) -> Option<Start> {
        self.end_failed_fetch(now);
        let Some(Target { round, shown }) = self.target(now) else {
            self.fetch = None;
            return None;
        };
        if let Some(fetch) = &mut self.fetch {
            let state = fetch.received.take();
            let from = fetch.from;
            return Some(match state {
                Some(state) => Start::Adopt(Adoption { from, round, state }),
                None => Start::Wait,
            });
        }
        let candidates = || shown.iter().map(|entry| entry.0);
        if candidates().all(|worker| self.peers[worker].fetch_failed) {
            candidates().for_each(|worker| self.peers[worker].fetch_failed = false);
        }
        let from = candidates().find(|&worker| !self.peers[worker].fetch_failed)?;
        let id = self.connection(from)?;
        let deadline = now + self.config.timings.message_timeout;
        self.fetch = Some(Fetch { from, id, deadline, received: None });
        if let Some(connection) = self.peers[from].on(id)
            && !std::mem::replace(&mut connection.model_due, true)
        {
            self.send(from, Outbound::Content(Kind::ModelRequest, vec![]));
        }
        Some(Start::Wait)
    }

    /// Gives up on a model that did not arrive, and remembers not to ask that worker next.
    fn end_failed_fetch(&mut self, now: Time) {
        let Some(fetch) = &self.fetch else {
            return;
        };
        let (from, is_connected) = (fetch.from, self.connection(fetch.from) == Some(fetch.id));
        let why = match (fetch.received.is_some(), is_connected) {
            (true, _) => return,
            (_, false) => "the connection ended",
            (_, true) if now >= fetch.deadline => "it did not arrive in time",
            _ => return,
        };
        self.fetch = None;
        self.peers[from].fetch_failed = true;
        self.record(MembershipEvent::FetchFailed { worker: from, why: why.into() });
    }

    /// A model has arrived. It may be that this worker does not need it any more.
    pub(super) fn on_model(&mut self, worker: usize, id: u64, state: State) -> Result<(), Violation> {
        let connection = self.peers[worker].on(id);
        if !connection.is_some_and(|connection| std::mem::take(&mut connection.model_due)) {
            return Err(Violation("it sent a model that was not requested".into()));
        }
        if let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.awaits(worker, id)) {
            fetch.received = Some(state);
        }
        Ok(())
    }

    /// The round to move to, if there is one that is corroborated.
    ///
    /// Only rounds that messages have shown count. A worker that has a link moves only to the round of a side that wins
    /// over its own. A worker without a link moves to the median of the rounds of its neighbors, of the two medians of an
    /// even number to the nearer one, once all of them have shown theirs or are lost.
    fn target(&self, now: Time) -> Option<Target> {
        let own = self.side(now);
        let has_link = self.has_link();
        if has_link && !self.is_on_small_side(&own, now) {
            return None;
        }
        let mut shown = Vec::new();
        for &worker in &self.config.neighbors {
            let connection = self.peers[worker].connection.as_ref();
            let known = connection.and_then(|connection| Some((connection.shown?, connection.view.as_ref()?)));
            match known {
                Some((round, view)) if !has_link => shown.push((worker, round, self.is_beaten_by(worker, view, &own))),
                Some((round, view))
                    if !own[worker]
                        && self.peers[worker].up_from().is_none()
                        && self.is_beaten_by(worker, view, &own) =>
                {
                    shown.push((worker, round, true));
                }
                _ if has_link => {}
                _ if !self.is_given_up(worker, now) => return None,
                _ => {}
            }
        }
        let mut rounds: Vec<u64> = shown.iter().map(|entry| entry.1).collect();
        rounds.sort_unstable();
        let (low, high) = (*rounds.get(rounds.len().wrapping_sub(1) / 2)?, *rounds.get(rounds.len() / 2)?);
        let round = self.next.clamp(low, high);
        let is_far = |round: u64| round.abs_diff(self.next) > MAX_ROUND_LAG;
        let supports = |entry: &&(usize, u64, bool)| entry.1.abs_diff(round) <= MAX_ROUND_LAG && entry.2;
        let shown: Vec<(usize, u64)> = shown.iter().filter(supports).map(|entry| (entry.0, entry.1)).collect();
        let is_allowed = || shown.iter().any(|&(worker, _)| round <= self.latest_possible_round(worker, now));
        (is_far(round) && !shown.is_empty() && is_allowed() && self.may_repeat(round))
            .then_some(Target { round, shown })
    }

    /// Whether a neighbor that is not connected, or has not shown its round, is not waited for any more.
    fn is_given_up(&self, worker: usize, now: Time) -> bool {
        let since = match &self.peers[worker].connection {
            _ if self.peers[worker].has_finished => return true,
            Some(_) | None => self.connected_since,
        };
        since.is_some_and(|since| now >= since + self.config.timings.failure_timeout)
    }

    /// The latest round in which a worker can be, judged by the last contact and by the measured duration of a round. A
    /// worker that has never measured one cannot tell.
    fn latest_possible_round(&self, worker: usize, now: Time) -> u64 {
        let earlier = self.earlier_contact;
        let measured = self.rounds.median().map(|median| median.as_secs_f64());
        let Some(duration) = measured.or(earlier.map(|contact| contact.round_seconds)) else {
            return u64::MAX;
        };
        let latest = self.peers.iter().filter_map(|peer| peer.contact).max_by_key(|contact| contact.1);
        let contact = self.peers[worker].contact.or(latest).map(|(round, time)| (round, time.as_secs_f64()));
        let contact = contact.or(earlier.map(|contact| (contact.round, contact.time)));
        let Some((round, time)) = contact else {
            return u64::MAX;
        };
        let passed = (now.as_secs_f64() - time).max(0.0);
        round + 2 * MAX_ROUND_LAG + (SPEEDUP * passed / duration.max(1e-6)) as u64
    }

    /// Whether this worker may go back to an earlier round. It repeats at most as many rounds as the run has: every run
    /// ends.
    fn may_repeat(&self, round: u64) -> bool {
        let back = self.next.saturating_sub(round);
        self.participation.rounds_repeated + back <= self.config.rounds
    }

    /// The model that was to be adopted fits, and this worker continues at `round`. Its links belong to its earlier
    /// round, so that their connections are closed.
    pub(crate) fn adopted(&mut self, from: usize, round: u64, now: Time) {
        let before = self.next;
        let target = self.target(now);
        let shown = target.map_or(vec![], |target| target.shown);
        self.participation.rounds_skipped += round.saturating_sub(before);
        self.participation.rounds_repeated += before.saturating_sub(round);
        if let Some(view) = self.peers[from].connection.as_ref().and_then(|connection| connection.view.as_ref()) {
            self.participation.rounds_together = view.rounds_together;
        }
        self.record(MembershipEvent::Adopted { worker: from, from: before, to: round, shown });
        (self.next, self.fetch, self.begun) = (round, None, None);
        for worker in 0..self.peers.len() {
            let up = self.peers[worker].up_from().is_some();
            if let Some(id) = self.connection(worker).filter(|_| up) {
                self.actions.push(Action::Close { id });
                self.on_disconnected(worker, id, "this worker continues at another round".into());
            }
            if let Some(connection) = &mut self.peers[worker].connection {
                connection.inbox.retain(|message| message.round >= round);
                (connection.own_offer, connection.announced_at) = (None, None);
            }
        }
        self.changed_links.extend(0..self.peers.len());
        self.forget_side_if_alone();
        self.make_offers(now);
        self.version += 1;
    }

    // Models for others.

    /// The worker to which a model should be sent now: one at a time.
    fn next_to_serve(&self) -> Option<usize> {
        let wants = |worker: &usize| {
            let connection = self.peers[*worker].connection.as_ref();
            connection.is_some_and(|connection| connection.wants_model && !connection.unwritten_model)
        };
        match self.serving {
            Some(_) => None,
            None => (0..self.peers.len()).find(wants),
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
        if let Some(connection) = &mut self.peers[worker].connection {
            connection.wants_model = false;
            self.serving = Some((worker, connection.id, now));
            self.send(worker, Outbound::Model(Arc::new(model)));
        }
    }
}
