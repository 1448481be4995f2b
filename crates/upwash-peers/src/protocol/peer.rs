//! What this process knows about another worker, and the negotiation of the link with it.
//!
//! Two workers agree on the first round in which the link between them is *up*. Each offers the first round that it has
//! not begun, and the later of the two offers counts. A worker that has already begun that round makes a later offer.
//! So no worker waits for a message that its peer never sends. If the offers are more than [`MAX_ROUND_LAG`] rounds
//! apart, the link stays down. A link that has come up stays up for as long as its connection lasts.

use super::Time;
use crate::frame::View;
use std::collections::VecDeque;
use std::time::Duration;
use upwash::transport::Message;

/// Workers whose rounds are at most this far apart agree on a link. The one behind catches up by running rounds.
pub(crate) const MAX_ROUND_LAG: u64 = 10;
/// Shortest time between two announcements, and between two offers, to the same worker.
pub(super) const ANNOUNCE_EVERY: Duration = Duration::from_millis(20);
/// Control frames that a worker may send in a second.
pub(super) const MAX_CONTROL_FRAMES: u32 = 400;
/// Connections that a worker may open in a minute.
pub(super) const MAX_CONNECTIONS: u32 = 60;

/// A link that is up: its connection, and the round from which on it is up. It identifies the link's history.
pub(crate) type LinkId = (u64, u64);

/// A message, and when it arrived.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) message: Message,
    pub(super) at: Time,
}

/// The state of an open connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// Unique among the connections of this process.
    pub(super) id: u64,
    pub(super) own_offer: Option<u64>,
    pub(super) their_offer: Option<u64>,
    /// Their offer has arrived since this process last looked at it.
    pub(super) reply_due: bool,
    /// Repeated offers.
    retries: u64,
    pub(super) offered_at: Time,
    pub(super) announced_at: Option<Time>,
    pub(super) connected_at: Time,
    pub(super) last_heard: Time,
    /// The latest round that a message over this connection has shown.
    pub(super) shown: Option<u64>,
    /// Its last heartbeat.
    pub(super) view: Option<View>,
    /// Messages received and not taken yet.
    pub(super) inbox: VecDeque<Received>,
    /// Round and exchange of its last message. They only increase.
    pub(super) last_tag: Option<(u64, u32)>,
    /// Frames that have not been written yet; those of them that are messages; whether one is a model.
    pub(super) unwritten: usize,
    pub(super) unwritten_messages: usize,
    pub(super) unwritten_model: bool,
    /// It was asked for a model, which has not arrived yet.
    pub(super) model_due: bool,
    /// It has asked for a model.
    pub(super) wants_model: bool,
    /// It has finished its run.
    pub(super) finished: bool,
    /// The current second, and the control frames that have arrived in it.
    control_frames: (u64, u32),
}

/// What this process knows about another worker.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) connection: Option<Connection>,
    /// The link in the round in progress.
    pub(super) link: Option<LinkId>,
    /// When something last arrived over its last connection.
    pub(super) last_heard: Option<Time>,
    /// It finished its run.
    pub(super) has_finished: bool,
    /// The messages over its last link that were not taken when it finished.
    pub(super) last_messages: Option<(LinkId, VecDeque<Received>)>,
    /// The round of its last message over a link that was up, and when it arrived.
    pub(super) contact: Option<(u64, Time)>,
    /// Why the last attempt to connect to it failed.
    pub(super) last_error: Option<String>,
    /// The last request for its model failed.
    pub(super) fetch_failed: bool,
    /// How often it was late lately, and until when no link with it is agreed on because of that.
    pub(super) times_late: u32,
    pub(super) held_off_until: Option<Time>,
    /// Messages in time since it was last late.
    pub(super) messages_in_time: u32,
    /// The current minute, and the connections that were opened in it.
    connections: (u64, u32),
}

impl Connection {
    pub(super) fn new(id: u64, now: Time) -> Self {
        Self {
            id,
            own_offer: None,
            their_offer: None,
            reply_due: false,
            retries: 0,
            offered_at: now,
            announced_at: None,
            connected_at: now,
            last_heard: now,
            shown: None,
            view: None,
            inbox: VecDeque::new(),
            last_tag: None,
            unwritten: 0,
            unwritten_messages: 0,
            unwritten_model: false,
            model_due: false,
            wants_model: false,
            finished: false,
            control_frames: (0, 0),
        }
    }

    /// The first round in which the link is up, if both have agreed on one.
    pub(super) fn up_from(&self) -> Option<u64> {
        let (own, their) = (self.own_offer?, self.their_offer?);
        (own.abs_diff(their) <= MAX_ROUND_LAG).then_some(own.max(their))
    }

    /// The round to offer now, if an offer is due. `next` is the first round that this process has not begun.
    pub(super) fn due_offer(&mut self, next: u64, now: Time) -> Option<u64> {
        let reply_due = std::mem::take(&mut self.reply_due);
        let Some(own) = self.own_offer else {
            return Some(next);
        };
        if reply_due && own < next && self.up_from().is_none_or(|from| from < next) {
            // This process has already begun the first common round without the link, or the offers are too far apart.
            // Each retry offers a later round, because rounds go on while an offer travels.
            self.retries += 1;
            return Some(next + self.retries.min(MAX_ROUND_LAG) - 1);
        }
        // The offers were too far apart, but by now the rounds are not.
        let is_near = self.shown.is_some_and(|shown| shown.abs_diff(next) <= MAX_ROUND_LAG);
        let is_stale = own != next && now >= self.offered_at + ANNOUNCE_EVERY;
        (self.up_from().is_none() && is_near && is_stale).then_some(next)
    }

    /// Counts a control frame. Returns whether there are too many.
    pub(super) fn is_flooding(&mut self, now: Time) -> bool {
        let second = now.as_secs();
        if self.control_frames.0 != second {
            self.control_frames = (second, 0);
        }
        self.control_frames.1 += 1;
        self.control_frames.1 > MAX_CONTROL_FRAMES
    }
}

impl Peer {
    /// The first round in which the link is up.
    pub(super) fn up_from(&self) -> Option<u64> {
        self.connection.as_ref()?.up_from()
    }

    /// The link in this round, if it is up.
    pub(super) fn link_in(&self, round: u64) -> Option<LinkId> {
        let has_message = |inbox: &VecDeque<Received>| inbox.iter().any(|received| received.message.round >= round);
        let (link, is_used) = match (&self.connection, &self.last_messages) {
            // A worker that has finished sends nothing more, but what it has sent counts.
            (Some(connection), _) => {
                ((connection.id, connection.up_from()?), !connection.finished || has_message(&connection.inbox))
            }
            (None, Some((link, messages))) => (*link, has_message(messages)),
            (None, None) => return None,
        };
        (is_used && link.1 <= round).then_some(link)
    }

    /// Whether a link is agreed on, now or for a later round, over which messages can arrive.
    pub(super) fn has_link(&self, next: u64) -> bool {
        let agreed = self.up_from();
        agreed.is_some_and(|from| self.link_in(from.max(next)).is_some()) || self.link_in(next).is_some()
    }

    /// The messages that arrived over a connection, unless it was lost.
    pub(super) fn inbox(&mut self, id: u64) -> Option<&mut VecDeque<Received>> {
        match &mut self.connection {
            Some(connection) if connection.id == id => Some(&mut connection.inbox),
            _ => self.last_messages.as_mut().filter(|last| last.0.0 == id).map(|last| &mut last.1),
        }
    }

    /// Counts a connection. Returns whether there are too many.
    pub(super) fn connects_too_often(&mut self, now: Time) -> bool {
        let minute = now.as_secs() / 60;
        if self.connections.0 != minute {
            self.connections = (minute, 0);
        }
        self.connections.1 = self.connections.1.saturating_add(1);
        self.connections.1 > MAX_CONNECTIONS
    }

    /// The connection, if it has this id.
    pub(super) fn on(&mut self, id: u64) -> Option<&mut Connection> {
        self.connection.as_mut().filter(|connection| connection.id == id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Two workers that have begun rounds up to (excluding) `next` exchange offers until neither has one to make.
    fn negotiate(next: [u64; 2], steps_between: u64) -> ([Connection; 2], [u64; 2]) {
        let mut ends = [1, 2].map(|id| Connection::new(id, Time::ZERO));
        let mut next = next;
        for _ in 0..40 {
            let offers = [0, 1].map(|own| ends[own].due_offer(next[own], Time::ZERO));
            for (own, offer) in offers.into_iter().enumerate() {
                if let Some(offer) = offer {
                    ends[own].own_offer = Some(offer);
                    (ends[1 - own].their_offer, ends[1 - own].reply_due) = (Some(offer), true);
                }
            }
            next = next.map(|next| next + steps_between);
        }
        (ends, next)
    }

    #[test]
    fn workers_agree_on_a_round_that_neither_has_begun() {
        for (next, steps) in [([7, 7], 0), ([3, 9], 0), ([100, 95], 0), ([100, 100], 1), ([100, 104], 1)] {
            let (ends, _) = negotiate(next, steps);
            let agreed = ends[0].up_from();
            assert_eq!(agreed, ends[1].up_from());
            assert!(agreed.unwrap() >= next[0].max(next[1]), "{next:?}");
        }
    }

    #[test]
    fn workers_that_are_far_apart_have_no_link() {
        let (ends, _) = negotiate([100, 300], 0);
        assert_eq!((ends[0].up_from(), ends[1].up_from()), (None, None));
    }

    #[test]
    fn a_stale_offer_is_repeated_once_the_rounds_are_near() {
        let mut end = Connection::new(1, Time::ZERO);
        (end.own_offer, end.their_offer, end.shown) = (Some(100), Some(300), Some(300));
        let later = ANNOUNCE_EVERY;
        assert_eq!(end.due_offer(150, later), None);
        assert_eq!(end.due_offer(295, later), Some(295));
        assert_eq!(end.due_offer(295, Time::ZERO), None, "not at once");
    }

    #[test]
    fn floods_of_control_frames_are_noticed() {
        let mut end = Connection::new(1, Time::ZERO);
        let second = Duration::from_secs(1);
        let flood = |end: &mut Connection, now| (0..=MAX_CONTROL_FRAMES).filter(|_| end.is_flooding(now)).count();
        assert_eq!(flood(&mut end, second), 1);
        assert_eq!((0..MAX_CONTROL_FRAMES).filter(|_| end.is_flooding(2 * second)).count(), 0);
    }
}
