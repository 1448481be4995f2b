//! What the round loop asks: may it begin a round, adopt a model, or must it wait or stop?

use super::peer::ANNOUNCE_EVERY;
use super::{ANNOUNCEMENT, LinkId, MAX_ROUND_LAG, Outbound, Protocol, Time};
use crate::frame::Kind;
use std::sync::Arc;
use std::time::Duration;
use upwash::algorithm::WorkerStats;
use upwash::transport::{Adoption, Contact, MembershipEvent, Message, Participation};

/// What the round loop does next.
#[derive(Debug, PartialEq)]
pub(crate) enum Start {
    /// Run the round with these links.
    Go(Vec<Option<LinkId>>),
    Wait,
    Adopt(Adoption),
    Isolated,
}

impl Protocol {
    /// Starts. Must precede all connections, because they offer this round.
    pub(crate) fn start(&mut self, round: u64, now: Time) {
        (self.next, self.started) = (round, Some(now));
    }

    /// Continues the participation of an earlier process of this worker.
    pub(crate) fn restore(&mut self, participation: Participation) {
        self.earlier_contact = participation.contact;
        self.participation = participation;
    }

    /// What this process has run so far, and its last contact with others.
    pub(crate) fn participation(&self, now: Time) -> Participation {
        let alone = self.alone_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let contacts = self.peers.iter().filter_map(|peer| peer.contact);
        let latest = contacts.max_by_key(|contact| contact.1);
        let contact = latest.zip(self.rounds.median()).map(|((round, time), median)| Contact {
            round,
            time: time.as_secs_f64(),
            round_seconds: median.as_secs_f64(),
        });
        Participation {
            seconds_alone: self.participation.seconds_alone + alone.as_secs_f64(),
            contact: contact.or(self.earlier_contact),
            ..self.participation
        }
    }

    /// Whether any link is agreed on.
    pub(super) fn has_link(&self) -> bool {
        self.peers.iter().any(|peer| peer.has_link(self.next))
    }

    /// Without a link, nobody is known to be on this side any more.
    pub(super) fn forget_side_if_alone(&mut self) {
        if !self.has_link() {
            self.seen.fill(None);
            self.linked_since = None;
        }
    }

    /// What to do before round `round`. The round loop asks again until it may begin.
    pub(crate) fn may_begin(&mut self, round: u64, now: Time) -> Start {
        self.is_waiting = true;
        self.next = self.next.max(round);
        self.make_offers(now);
        self.announce(now);
        if !self.is_startup_over(now) {
            return Start::Wait;
        }
        if !self.config.has_rounds {
            return self.begin(round, now);
        }
        if let Some(adoption) = self.adoption(now) {
            return Start::Adopt(adoption);
        }
        if self.has_link() || self.needs_no_link() {
            self.end_of_solitude(now);
            return match self.must_pause(round, now) {
                true => Start::Wait,
                false => self.begin(round, now),
            };
        }
        self.wait_alone(now)
    }

    /// Whether all neighbors have connected, or the time to wait for them is over.
    fn is_startup_over(&mut self, now: Time) -> bool {
        if self.startup_is_over {
            return true;
        }
        let has_offered = |worker: &usize| {
            let connection = self.peers[*worker].connection.as_ref();
            connection.is_some_and(|connection| connection.their_offer.is_some())
        };
        let neighbors = self.config.neighbors.iter().copied();
        let missing: Vec<usize> = neighbors.filter(|worker| !has_offered(worker)).collect();
        let deadline = self.started.unwrap_or(now) + self.config.timings.startup_timeout;
        if !missing.is_empty() && now < deadline {
            return false;
        }
        self.startup_is_over = true;
        for worker in missing {
            let why = match &self.peers[worker].last_error {
                Some(why) => why.clone(),
                None if worker < self.config.own => "it has not connected".into(),
                None => "it does not answer".into(),
            };
            self.record(MembershipEvent::Missing { worker: worker.into(), why });
        }
        true
    }

    /// Whether this worker may train without a link: it has no neighbors, or at least half of them have finished.
    pub(crate) fn needs_no_link(&self) -> bool {
        let neighbors = &self.config.neighbors;
        let has_finished = |worker: &&usize| {
            let peer = &self.peers[**worker];
            peer.has_finished || peer.connection.as_ref().is_some_and(|connection| connection.finished)
        };
        2 * neighbors.iter().filter(has_finished).count() >= neighbors.len()
    }

    /// Whether this worker has run many rounds on the way to a link that has not come up. If both ends go on while their
    /// offers travel, each offer is too late. So they pause now and then.
    fn must_pause(&mut self, round: u64, now: Time) -> bool {
        let is_up = self.peers.iter().any(|peer| peer.link_in(round).is_some());
        if is_up || self.lone_rounds < MAX_ROUND_LAG || self.needs_no_link() {
            self.paused_since = None;
            return false;
        }
        let since = *self.paused_since.get_or_insert(now);
        let is_over = now >= since + self.config.timings.failure_timeout / 2;
        if is_over {
            (self.lone_rounds, self.paused_since) = (0, None);
        }
        !is_over
    }

    /// Waits for a link or a model, but not for longer than the configured time. A model that is arriving may arrive.
    fn wait_alone(&mut self, now: Time) -> Start {
        let since = match self.alone_since {
            Some(since) => since,
            None => {
                self.alone_since = Some(now);
                let why = match self.peers.iter().any(|peer| peer.connection.is_some()) {
                    true => "its neighbors are in other rounds".to_string(),
                    false => "none of its neighbors can be reached".into(),
                };
                self.record(MembershipEvent::Waiting { why });
                now
            }
        };
        match now >= since + self.config.timings.isolation_timeout && !self.is_model_arriving() {
            true => Start::Isolated,
            false => Start::Wait,
        }
    }

    pub(super) fn end_of_solitude(&mut self, now: Time) {
        if let Some(since) = self.alone_since.take() {
            let seconds = now.saturating_sub(since);
            self.participation.seconds_alone += seconds.as_secs_f64();
            self.record(MembershipEvent::Continued { seconds });
        }
    }

    /// Begins a round with the links that are up in it.
    fn begin(&mut self, round: u64, now: Time) -> Start {
        let links: Vec<Option<LinkId>> = self.peers.iter().map(|peer| peer.link_in(round)).collect();
        let has_link = links.iter().any(Option::is_some);
        if let Some((previous, begun)) = self.begun.replace((round, now))
            && previous + 1 == round
            && has_link
        {
            let duration = now.saturating_sub(begun);
            self.rounds.add(duration);
            self.rounds_without_slowest.add(duration.saturating_sub(self.waited_for_slowest));
        }
        self.waited_for_slowest = Duration::ZERO;
        self.participation.rounds_run += 1;
        self.participation.rounds_together += u64::from(has_link);
        (self.next, self.is_waiting) = (round + 1, false);
        self.lone_rounds = if has_link { 0 } else { self.lone_rounds + 1 };
        if has_link {
            self.linked_since.get_or_insert(now);
        }
        for (worker, (peer, link)) in self.peers.iter_mut().zip(&links).enumerate() {
            if peer.link != *link {
                self.changed_links.push(worker);
                peer.link = *link;
            }
            if let Some(connection) = &mut peer.connection {
                connection.inbox.retain(|received| received.message.round >= round);
            }
        }
        Start::Go(links)
    }

    /// The workers whose links have changed since the last call.
    pub(crate) fn take_changed_links(&mut self) -> Vec<usize> {
        let mut changed = std::mem::take(&mut self.changed_links);
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// Makes all offers that are due. Only the round loop makes offers: a worker that is stuck makes none.
    pub(super) fn make_offers(&mut self, now: Time) {
        let has_link: Vec<bool> = self.peers.iter().map(|peer| peer.has_link(self.next)).collect();
        for worker in 0..self.peers.len() {
            let next = self.next;
            let peer = &mut self.peers[worker];
            let is_held_off = peer.held_off_until.is_some_and(|until| now < until);
            let Some(connection) = &mut peer.connection else {
                continue;
            };
            // Without another link there is nobody that waiting for it would hold up. Once a link was offered, offers are
            // answered: both ends must agree on the same round.
            let has_other_link = || has_link.iter().enumerate().any(|(other, has_link)| *has_link && other != worker);
            if is_held_off && connection.own_offer.is_none() && has_other_link() {
                continue;
            }
            if let Some(round) = connection.due_offer(next, now) {
                (connection.own_offer, connection.offered_at) = (Some(round), now);
                self.send(worker, Outbound::Content(Kind::Offer, round.to_le_bytes().to_vec()));
            }
        }
    }

    /// Shows this worker's round, by a message without values, to connected workers without a link.
    fn announce(&mut self, now: Time) {
        let message = Arc::new(Message {
            from: self.config.own.into(),
            round: self.next,
            exchange: ANNOUNCEMENT,
            stats: WorkerStats { loss: None, degree: 0, scalar: 1.0 },
            whole: false,
            fresh: false,
            restart: None,
            values: vec![].into(),
        });
        for worker in 0..self.peers.len() {
            let Some(connection) = &mut self.peers[worker].connection else {
                continue;
            };
            let is_due = connection.announced_at.is_none_or(|at| now >= at + ANNOUNCE_EVERY);
            // A worker that has not read the last one, or that is reading a model, learns nothing from another.
            let is_due = is_due && connection.unwritten_messages == 0 && !connection.unwritten_model;
            if connection.up_from().is_some() || !is_due || !self.config.has_rounds {
                continue;
            }
            connection.announced_at = Some(now);
            self.send_view(worker, now);
            self.send(worker, Outbound::Message(Arc::clone(&message)));
        }
    }
}
