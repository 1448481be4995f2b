//! Sides: if the network splits, each part trains on its own. A worker knows which workers are on its side, because
//! heartbeats pass on, over links that are up, who was alive how long ago. When two sides meet again, one adopts the
//! model and the round of the other.

use super::{Protocol, Time};
use crate::frame::View;
use std::cmp::Ordering;

impl Protocol {
    /// The workers on this side: those that are known, directly or through others, to have been alive recently.
    /// Without a link, this worker is alone.
    pub(super) fn side(&self, now: Time) -> Vec<bool> {
        let has_link = self.has_link();
        let horizon = self.horizon();
        let is_member = |(worker, seen): (usize, &Option<Time>)| {
            worker == self.config.own || (has_link && seen.is_some_and(|seen| now.saturating_sub(seen) <= horizon))
        };
        self.seen.iter().enumerate().map(is_member).collect()
    }

    /// Whether this worker has been on a side for long enough to know it, and the side has at most half of all workers.
    /// A larger side never adopts anything: the claims of a single neighbor cannot move it.
    pub(super) fn is_on_small_side(&self, own: &[bool], now: Time) -> bool {
        let is_known = self.linked_since.is_some_and(|since| now >= since + self.horizon());
        is_known && 2 * own.iter().filter(|member| **member).count() <= own.len()
    }

    /// How long a worker counts as a member of a side after it was last known to be alive. News travels by one link per
    /// heartbeat.
    fn horizon(&self) -> Time {
        let timings = &self.config.timings;
        timings.failure_timeout + timings.heartbeat * (self.config.workers as u32)
    }

    /// Learns from a heartbeat over a link that is up who is on this side.
    pub(super) fn learn_members(&mut self, from: usize, view: &View, now: Time) {
        let ages = view.members.iter().map(|&(worker, age)| (worker as usize, age));
        for (worker, age) in ages.chain([(from, 0)]) {
            let seen = now.saturating_sub(Time::from_millis(age.into()));
            if let Some(known) = self.seen.get_mut(worker) {
                *known = (*known).max(Some(seen));
            }
        }
    }

    /// What this worker tells others about itself and its side.
    pub(super) fn view(&self, now: Time) -> View {
        let side = self.side(now).into_iter().enumerate().filter(|entry| entry.1);
        let age = |worker: usize| match worker == self.config.own {
            true => 0,
            false => {
                self.seen[worker].map_or(0, |seen| now.saturating_sub(seen).as_millis().min(u32::MAX.into()) as u32)
            }
        };
        View {
            round: self.next,
            rounds_together: self.participation.rounds_together,
            is_waiting: self.is_waiting,
            members: side.map(|(worker, _)| (worker as u32, age(worker))).collect(),
        }
    }

    /// Whether the side of a worker wins over this side, `own`: it has more members or, if equally many, has run more
    /// rounds together or, if equally many, has the lowest id. Members of both sides do not count.
    pub(super) fn is_beaten_by(&self, worker: usize, view: &View, own: &[bool]) -> bool {
        let mut theirs = vec![false; self.config.workers];
        let listed = view.members.iter().map(|member| member.0 as usize);
        for member in listed.chain([worker]) {
            if let Some(entry) = theirs.get_mut(member) {
                *entry = true;
            }
        }
        let count =
            |one: &[bool], other: &[bool]| one.iter().zip(other).filter(|(one, other)| **one && !**other).count();
        let lowest = |side: &[bool]| side.iter().position(|member| *member);
        let sizes = count(&theirs, own).cmp(&count(own, &theirs));
        let together = view.rounds_together.cmp(&self.participation.rounds_together);
        let ids = lowest(own).cmp(&lowest(&theirs));
        sizes.then(together).then(ids) == Ordering::Greater
    }
}
