//! Frames that arrive, and the messages that the round loop sends and takes.

use super::peer::{Connection, Received};
use super::{
    ANNOUNCEMENT, LinkId, MAX_QUEUED, MAX_SLOWDOWN, MAX_UNSENT_MESSAGES, MESSAGES_IN_TIME, Outbound, Protocol, Time,
    Violation,
};
use crate::frame::{Frame, Kind};
use std::sync::Arc;
use upwash::transport::Message;

/// Outcome of waiting for a message.
#[derive(Debug, PartialEq)]
pub(crate) enum Awaited {
    Message(Message),
    /// The worker will not send it.
    Missing,
    /// It has not arrived yet.
    Pending,
}

impl Protocol {
    /// Whether a frame of this kind may be read from a worker. Asked before any of its content is read.
    pub(crate) fn admits(&mut self, worker: usize, id: u64, kind: Kind, now: Time) -> Result<(), Violation> {
        let Some(connection) = self.peers[worker].on(id) else {
            return Ok(());
        };
        let refuse = |why: &str| Err(Violation(why.into()));
        match kind {
            Kind::Model if !connection.model_due => refuse("it sent a model that was not requested"),
            Kind::Model | Kind::Message => Ok(()),
            Kind::Hello | Kind::StatusRequest | Kind::Status => {
                Err(Violation(format!("unexpected {kind:?} frame on an established connection")))
            }
            _ if connection.is_flooding(now) => refuse("too many control frames in a second"),
            _ => Ok(()),
        }
    }

    /// A frame has arrived. An error means that the connection must be closed.
    pub(crate) fn on_frame(&mut self, worker: usize, id: u64, frame: Frame, now: Time) -> Result<(), Violation> {
        if self.peers[worker].on(id).is_none() {
            return Ok(());
        }
        self.on_heard(worker, id, now);
        let last = self.config.rounds;
        let beyond = |round: u64| Violation(format!("it claims to be in round {round} of {last}"));
        match frame {
            Frame::Offer(round) if round > last => return Err(beyond(round)),
            Frame::Heartbeat(view) if view.round > last => return Err(beyond(view.round)),
            // Rounds are repeated at most once each.
            Frame::Heartbeat(view) if view.rounds_together > last.saturating_mul(2) => {
                return Err(beyond(view.rounds_together));
            }
            Frame::Model(round, _) if round > last => return Err(beyond(round)),
            Frame::Message(message) => return self.on_message(worker, id, message, now),
            Frame::Offer(round) => self.on_offer(worker, id, round),
            Frame::Heartbeat(view) => {
                if self.peers[worker].link_in(self.next).is_some() {
                    self.learn_members(worker, &view, now);
                }
                if let Some(connection) = self.peers[worker].on(id) {
                    connection.view = Some(view);
                }
            }
            Frame::ModelRequest => {
                if let Some(connection) = self.peers[worker].on(id) {
                    connection.wants_model = true;
                }
            }
            Frame::Model(_, state) => self.on_model(worker, id, state)?,
            // It only leaves, and is lost when its connection ends.
            Frame::Goodbye if !self.may_have_finished(worker, now) => {
                let what = "it says that it has finished, but cannot have reached the last round";
                self.record_refusal(format!("worker {worker}: {what}"), now);
            }
            Frame::Goodbye => {
                if let Some(connection) = self.peers[worker].on(id) {
                    connection.finished = true;
                }
            }
        }
        self.version += 1;
        Ok(())
    }

    fn on_offer(&mut self, worker: usize, id: u64, round: u64) {
        if let Some(connection) = self.peers[worker].on(id) {
            (connection.their_offer, connection.reply_due) = (Some(round), true);
        }
    }

    /// A message has arrived. The messages of one sender must arrive in order, and each only once.
    fn on_message(&mut self, worker: usize, id: u64, message: Message, now: Time) -> Result<(), Violation> {
        if message.from.0 != worker {
            return Err(Violation(format!("it sent a message as worker {}", message.from)));
        }
        let (next, last, has_rounds) = (self.next, self.config.rounds, self.config.has_rounds);
        if has_rounds && message.round > last {
            return Err(Violation(format!("it claims to be in round {} of {last}", message.round)));
        }
        let peer = &mut self.peers[worker];
        let is_up = peer.up_from().is_some_and(|from| from <= message.round);
        let Some(connection) = peer.on(id) else {
            return Ok(());
        };
        if message.exchange == ANNOUNCEMENT {
            if !message.values.is_empty() || connection.is_flooding(now) {
                return Err(Violation("too many announcements, or one with values".into()));
            }
            connection.shown = Some(message.round);
            self.version += 1;
            return Ok(());
        }
        let tag = (message.round, message.exchange);
        if connection.last_tag.is_some_and(|last| tag <= last) {
            return Err(Violation(format!("unexpected message of round {}, exchange {}", tag.0, tag.1)));
        }
        (connection.last_tag, connection.shown) = (Some(tag), Some(message.round));
        // Messages of earlier rounds are no longer needed, and nothing holds up a worker that sends them.
        let round = message.round;
        if round + 1 >= next {
            connection.inbox.push_back(Received { message, at: now });
        } else if connection.is_flooding(now) {
            return Err(Violation("too many messages of earlier rounds in a second".into()));
        }
        if is_up {
            // Both ends of a link run the same round. What it says beyond that is only a claim.
            peer.contact = Some((round.min(next), now));
            peer.messages_in_time += 1;
            if peer.messages_in_time >= MESSAGES_IN_TIME {
                (peer.messages_in_time, peer.times_late) = (0, 0);
            }
        }
        self.version += 1;
        Ok(())
    }

    /// Whether another message of a worker may be read.
    pub(crate) fn has_space(&mut self, worker: usize, id: u64) -> bool {
        self.peers[worker].on(id).is_none_or(|connection| connection.inbox.len() < MAX_QUEUED)
    }

    /// Queues a message for a worker, if this is still its connection.
    pub(crate) fn post(&mut self, worker: usize, id: u64, message: &Arc<Message>) {
        let Some(connection) = self.peers[worker].on(id) else {
            return;
        };
        if connection.unwritten_messages >= MAX_UNSENT_MESSAGES {
            return self.close(worker, id, "it receives messages too slowly".into());
        }
        self.messages_sent += 1;
        self.send(worker, Outbound::Message(Arc::clone(message)));
    }

    /// Looks for the message with this round and exchange over a link.
    pub(crate) fn poll_message(&mut self, worker: usize, link: LinkId, tag: (u64, u32), now: Time) -> Awaited {
        self.is_waiting = true;
        self.make_offers(now);
        let peer = &mut self.peers[worker];
        let Some(inbox) = peer.inbox(link.0) else {
            return Awaited::Missing;
        };
        while let Some(Received { message, .. }) = inbox.front() {
            let found = (message.round, message.exchange);
            if found > tag {
                return Awaited::Missing;
            }
            let received = inbox.pop_front();
            self.version += 1;
            if let Some(Received { message, at }) = received.filter(|_| found == tag) {
                self.arrivals.push(at);
                #[cfg(test)]
                self.taken.push((worker, tag.0, tag.1));
                return Awaited::Message(message);
            }
        }
        // The worker has moved on to a later round, or has finished.
        let is_expected = |connection: &mut Connection| {
            !connection.finished && connection.up_from().is_some_and(|from| from <= tag.0)
        };
        match peer.on(link.0).is_some_and(is_expected) {
            true => Awaited::Pending,
            false => Awaited::Missing,
        }
    }

    /// All messages that were expected since `since` have been taken, or are not waited for any more.
    pub(crate) fn exchange_is_over(&mut self, since: Time) {
        self.is_waiting = false;
        let mut arrivals = std::mem::take(&mut self.arrivals);
        arrivals.sort_unstable();
        if let [.., second, last] = arrivals[..] {
            self.waited_for_slowest += last.max(since) - second.max(since);
        }
    }

    /// When a message that is expected since `since` is overdue. A worker that says that it waits for others itself gets
    /// twice the time: those that it waits for are lost first.
    pub(crate) fn message_deadline(&self, worker: usize, since: Time) -> Time {
        let timings = &self.config.timings;
        let longest = self.rounds_without_slowest.multiple(MAX_SLOWDOWN, timings.failure_timeout);
        let longest = longest.map_or(timings.message_timeout, |longest| longest.min(timings.message_timeout));
        let deadline = self.rounds.deadline(timings.failure_timeout, longest);
        let view = self.peers[worker].connection.as_ref().and_then(|connection| connection.view.as_ref());
        since + deadline * (1 + u32::from(view.is_some_and(|view| view.is_waiting)))
    }

    /// Takes all messages that have arrived. For asynchronous runs.
    pub(crate) fn take_messages(&mut self) -> Vec<Message> {
        let mut found = Vec::new();
        for peer in &mut self.peers {
            let last = peer.last_messages.take().into_iter().flat_map(|last| last.1);
            let new = peer.connection.iter_mut().flat_map(|connection| connection.inbox.drain(..));
            found.extend(last.chain(new).map(|received| received.message));
        }
        self.version += u64::from(!found.is_empty());
        found
    }
}
