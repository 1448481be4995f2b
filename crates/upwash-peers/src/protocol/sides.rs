//! Sides: if the network splits, each part trains on its own. A worker knows which workers are on its side, because
//! heartbeats pass on, over links that are up, who was alive how long ago. When two sides meet again, one adopts the
//! model and the round of the other.
//!
//! A worker believes what others say about third ones only if these are not its neighbors: neighbors speak for themselves.

use super::adoption::SPEEDUP;
use super::{MAX_ROUND_LAG, Protocol, Time};
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

    fn is_neighbor(&self, worker: usize) -> bool {
        self.config.neighbors.contains(&worker)
    }

    /// Learns from a heartbeat over a link that is up who is on this side.
    pub(super) fn learn_members(&mut self, from: usize, view: &View, now: Time) {
        let ages = view.members.iter().map(|&(worker, age)| (worker as usize, age));
        let hearsay: Vec<(usize, u32)> = ages.filter(|entry| !self.is_neighbor(entry.0)).collect();
        for (worker, age) in hearsay.into_iter().chain([(from, 0)]) {
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
            other_side: self.other_side(now).first().map(|&(worker, round)| (worker as u32, round)),
            members: side.map(|(worker, _)| (worker as u32, age(worker))).collect(),
        }
    }

    /// Whether the side of a worker wins over this side, `own`: it has more members or, if equally many, has run more
    /// rounds together or, if equally many, has the lowest id. Members of both sides do not count.
    pub(super) fn is_beaten_by(&self, worker: usize, view: &View, own: &[bool]) -> bool {
        let mut theirs = vec![false; self.config.workers];
        let listed = view.members.iter().map(|member| member.0 as usize);
        // Neighbors on this side say so themselves, and those that are not connected say nothing.
        let speaks = |member: usize| self.connection(member).is_some() && !own[member];
        let is_credible =
            |member: &usize| *member != self.config.own && (!self.is_neighbor(*member) || speaks(*member));
        for member in listed.filter(is_credible).chain([worker]) {
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

    /// The neighbors on another side that wins over this one, and the rounds that they have shown. Empty without a link.
    pub(super) fn other_side(&self, now: Time) -> Vec<(usize, u64)> {
        let own = self.side(now);
        if !self.has_link() || !self.is_on_small_side(&own, now) {
            return vec![];
        }
        let neighbors = self.config.neighbors.iter().copied();
        let outside = neighbors.filter(|&worker| !own[worker] && self.peers[worker].up_from().is_none());
        let shown = outside.filter_map(|worker| {
            let (round, view) = self.shown(worker)?;
            self.is_beaten_by(worker, view, &own).then_some((worker, round))
        });
        shown.collect()
    }

    /// Whether not only one worker says that there is another side near this round, to which this worker should move.
    /// `shown` are the neighbors that have shown such rounds. With one linked neighbor at most, one is enough: a side that
    /// is a line could not be joined otherwise. With more, another neighbor must have shown it, or a linked neighbor must
    /// know of another worker that has. If one of all these lies, the other does not.
    pub(super) fn is_confirmed(&self, shown: &[(usize, u64)], round: u64) -> bool {
        let linked = |worker: usize| self.peers[worker].link_in(self.next).is_some();
        let mut linked = self.config.neighbors.iter().copied().filter(|worker| linked(*worker));
        // A heartbeat may be one interval old.
        let age = self.config.timings.heartbeat.as_secs_f64();
        let tolerance =
            MAX_ROUND_LAG + self.rounds.median().map_or(0, |median| (SPEEDUP * age / median.as_secs_f64()) as u64);
        let knows_another = |reporter: usize| {
            let view = self.peers[reporter].connection.as_ref().and_then(|connection| connection.view.as_ref());
            let known = view.and_then(|view| view.other_side);
            known.is_some_and(|(worker, known)| {
                let is_another = |entry: &(usize, u64)| entry.0 != worker as usize && entry.0 != reporter;
                known.abs_diff(round) <= tolerance && shown.iter().any(is_another)
            })
        };
        shown.len() > 1 || linked.clone().count() < 2 || linked.any(knows_another)
    }

    /// The round that messages of a neighbor have shown, and its last heartbeat.
    pub(super) fn shown(&self, worker: usize) -> Option<(u64, &View)> {
        let connection = self.peers[worker].connection.as_ref()?;
        Some((connection.shown?, connection.view.as_ref()?))
    }
}
