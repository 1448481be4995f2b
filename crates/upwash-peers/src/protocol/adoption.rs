//! Adoption: when a worker takes over another worker's model and round.

use super::{Action, MAX_ROUND_LAG, Protocol, Time};
use upwash::transport::MembershipEvent;

/// How many times faster the others may have become since the last contact with them, for example because they no
/// longer wait for this worker.
pub(super) const SPEEDUP: f64 = 4.0;

/// A round to move to, and the neighbors whose messages have shown it.
pub(super) struct Target {
    pub(super) round: u64,
    pub(super) shown: Vec<(usize, u64)>,
}

impl Protocol {
    /// The round to move to, if there is one that is corroborated.
    ///
    /// Only rounds that messages have shown count. A worker that has a link moves only to the round of a side that wins
    /// over its own, if not only one worker says so. A worker without a link moves to the median of the rounds of its
    /// neighbors once all of them have shown theirs or are lost.
    pub(super) fn target(&self, now: Time) -> Option<Target> {
        let (round, shown) = match self.has_link() {
            true => {
                let other_side = self.other_side(now);
                let round = self.nearer_median(other_side.iter().map(|entry| entry.1).collect())?;
                (round, other_side)
            }
            false => self.target_alone(now)?,
        };
        let is_near = |entry: &(usize, u64)| entry.1.abs_diff(round) <= MAX_ROUND_LAG;
        let shown: Vec<(usize, u64)> = shown.into_iter().filter(is_near).collect();
        let is_far = round.abs_diff(self.next) > MAX_ROUND_LAG;
        let is_possible = || shown.iter().any(|&(worker, _)| round <= self.latest_possible_round(worker, now));
        let is_confirmed = || !self.has_link() || self.is_confirmed(&shown, round);
        (is_far && is_possible() && self.may_repeat(round) && is_confirmed()).then_some(Target { round, shown })
    }

    /// The median of the rounds that the neighbors have shown, and those neighbors whose sides win over this worker.
    fn target_alone(&self, now: Time) -> Option<(u64, Vec<(usize, u64)>)> {
        let (own, mut rounds, mut winning) = (self.side(now), vec![], vec![]);
        for &worker in &self.config.neighbors {
            match self.shown(worker) {
                Some((round, view)) => {
                    rounds.push(round);
                    winning.extend(self.is_beaten_by(worker, view, &own).then_some((worker, round)));
                }
                None if !self.is_given_up(worker, now) => return None,
                None => {}
            }
        }
        Some((self.nearer_median(rounds)?, winning))
    }

    /// The median of rounds; of the two medians of an even number, the one nearer to this worker's round.
    fn nearer_median(&self, mut rounds: Vec<u64>) -> Option<u64> {
        rounds.sort_unstable();
        let (low, high) = (*rounds.get(rounds.len().wrapping_sub(1) / 2)?, *rounds.get(rounds.len() / 2)?);
        Some(self.next.clamp(low, high))
    }

    /// Whether a neighbor that is not connected, or has not shown its round, is not waited for any more. It has some time
    /// from when it was last heard from, and from when any neighbor was reached again.
    fn is_given_up(&self, worker: usize, now: Time) -> bool {
        let peer = &self.peers[worker];
        let since = match &peer.connection {
            _ if peer.has_finished => return true,
            Some(connection) => Some(connection.connected_at),
            None => peer.last_heard.or(self.started).max(self.connected_since),
        };
        since.is_some_and(|since| now >= since + self.config.timings.failure_timeout)
    }

    /// Whether a worker can have finished by now. Asynchronous workers finish whenever they like. Nothing can be said
    /// about a worker with which no link was agreed on. A link over which no message was due yet (MATCHA) is a contact.
    pub(super) fn may_have_finished(&self, worker: usize, now: Time) -> bool {
        let peer = &self.peers[worker];
        let agreed = || {
            let connection = peer.connection.as_ref()?;
            Some((connection.up_from()?.min(self.next), connection.connected_at))
        };
        let contact = peer.contact.or_else(agreed).map(|(round, time)| (round, time.as_secs_f64()));
        !self.config.has_end || contact.is_some_and(|contact| self.reachable(contact, now) >= self.config.rounds)
    }

    /// The latest round in which a worker can be, judged by the last contact and by the measured duration of a round. A
    /// worker that has never measured one cannot tell.
    fn latest_possible_round(&self, worker: usize, now: Time) -> u64 {
        let earlier = self.earlier_contact;
        let latest = self.peers.iter().filter_map(|peer| peer.contact).max_by_key(|contact| contact.1);
        let contact = self.peers[worker].contact.or(latest).map(|(round, time)| (round, time.as_secs_f64()));
        match contact.or(earlier.map(|contact| (contact.round, contact.time))) {
            Some(contact) if self.round_seconds().is_some() => self.reachable(contact, now),
            _ => u64::MAX,
        }
    }

    /// The duration of a round in seconds, as it was measured by this process or by an earlier one.
    fn round_seconds(&self) -> Option<f64> {
        let measured = self.rounds.median().map(|median| median.as_secs_f64());
        measured.or(self.earlier_contact.map(|contact| contact.round_seconds))
    }

    /// The latest round that a worker can have reached that was in a round at a time.
    fn reachable(&self, (round, time): (u64, f64), now: Time) -> u64 {
        let passed = (now.as_secs_f64() - time).max(0.0);
        let rounds = self.round_seconds().map_or(0.0, |duration| SPEEDUP * passed / duration.max(1e-6));
        round.saturating_add(2 * MAX_ROUND_LAG).saturating_add(rounds as u64)
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
        let shown = shown.into_iter().map(|(worker, round)| (worker.into(), round)).collect();
        self.record(MembershipEvent::Adopted { worker: from.into(), from: before, to: round, shown });
        (self.next, self.begun) = (round, None);
        self.peers.iter_mut().for_each(|peer| peer.fetch_failed = false);
        self.end_of_solitude(now);
        for worker in 0..self.peers.len() {
            let up = self.peers[worker].up_from().is_some();
            if let Some(id) = self.connection(worker).filter(|_| up) {
                self.actions.push(Action::Close { id });
                self.on_disconnected(worker, id, "this worker continues at another round".into());
            }
            if let Some(connection) = &mut self.peers[worker].connection {
                connection.inbox.retain(|received| received.message.round >= round);
                (connection.own_offer, connection.announced_at) = (None, None);
            }
        }
        self.changed_links.extend(0..self.peers.len());
        self.forget_side_if_alone();
        self.make_offers(now);
        self.version += 1;
    }
}
