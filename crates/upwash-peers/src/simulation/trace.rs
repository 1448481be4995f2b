//! What happened in a simulated run, and the invariants that it must satisfy.

use crate::protocol::{MAX_ROUND_LAG, Time};
use std::collections::{BTreeMap, BTreeSet};
use upwash::WorkerId;
use upwash::run::{Status, Summary};
use upwash::transport::{MembershipEvent, Participation};

/// The number of parameters of a model.
pub(super) const WIDTH: usize = 4;

/// A round that a process has run.
pub(super) struct RoundRecord {
    /// The models after the local step and after mixing.
    pub(super) stepped: [f32; WIDTH],
    pub(super) mixed: [f32; WIDTH],
    /// The workers whose messages were mixed.
    pub(super) used: BTreeSet<usize>,
}

#[derive(Default)]
pub(super) struct WorkerTrace {
    /// The rounds that were run, in order, with the adoptions in between.
    next: Option<u64>,
    rounds_alone: u64,
    pub(super) adoptions: u64,
    pub(super) events: Vec<(Time, MembershipEvent)>,
    pub(super) ending: Option<(Status, Summary)>,
    pub(super) ended_at: Option<Time>,
    /// Its push-sum weight at the last checkpoint, its public copy at the end, and those that it keeps of others.
    pub(super) scalar: f64,
    pub(super) own_copy: Vec<f32>,
    pub(super) copies: BTreeMap<usize, Vec<f32>>,
    /// The distance of its last model from the optimum of all workers together.
    pub(super) distance: f64,
}

pub(super) struct Trace {
    pub(super) workers: Vec<WorkerTrace>,
    /// The latest round that an honest worker has really begun.
    pub(super) latest: u64,
    pub(super) rounds: BTreeMap<u64, BTreeMap<usize, Vec<RoundRecord>>>,
    /// The configured weight of each link. A link that has failed has at most this weight.
    pub(super) weights: BTreeMap<(usize, usize), f64>,
    /// Workers whose neighbors include a liar, or that are one.
    pub(super) liar: Option<usize>,
    /// Workers that have followed the liar, or others that have, to a round that nobody had begun.
    misled: BTreeSet<usize>,
    pub(super) exchanges: u64,
    begun: BTreeSet<(u64, usize)>,
    /// When each round was begun first.
    begun_at: BTreeMap<u64, Time>,
    repeated: BTreeSet<u64>,
}

impl Trace {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| WorkerTrace::default()).collect(),
            latest: 0,
            rounds: BTreeMap::new(),
            weights: BTreeMap::new(),
            liar: None,
            misled: BTreeSet::new(),
            exchanges: 0,
            begun: BTreeSet::new(),
            begun_at: BTreeMap::new(),
            repeated: BTreeSet::new(),
        }
    }

    pub(super) fn check(&self, holds: bool, worker: usize, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(worker, &what());
        }
    }

    /// Panics with what led to a violation.
    fn fail(&self, worker: usize, what: &str) -> ! {
        for (index, trace) in self.workers.iter().enumerate() {
            for (time, event) in &trace.events {
                eprintln!("{:>9.3} {index}: {event:?}", time.as_secs_f64() - 1e6);
            }
        }
        panic!("worker {worker} {what}");
    }

    /// A process starts in this round.
    pub(super) fn started(&mut self, worker: usize, round: u64) {
        let trace = &mut self.workers[worker];
        (trace.next, trace.rounds_alone) = (Some(round), 0);
    }

    pub(super) fn event(&mut self, worker: usize, time: Time, change: &MembershipEvent) {
        if let MembershipEvent::Adopted { from, to, shown, .. } = change {
            let trace = &mut self.workers[worker];
            if trace.next != Some(*from) {
                let next = trace.next;
                self.fail(worker, &format!("was in round {from} instead of {next:?}"));
            }
            let trace = &mut self.workers[worker];
            trace.next = Some(*to);
            trace.adoptions += 1;
            if self.liar != Some(worker) {
                self.check_adoption(worker, *from, *to, shown);
            }
        }
        self.workers[worker].events.push((time, change.clone()));
    }

    /// An honest worker moves only to a round that neighbors have shown to it: forward, not beyond the rounds that honest
    /// workers have begun; back, only to where an honest worker has been. The liar, or a worker that has followed it, may
    /// be the only neighbor left.
    fn check_adoption(&mut self, worker: usize, from: u64, to: u64, shown: &[(WorkerId, u64)]) {
        self.check(!shown.is_empty(), worker, || format!("moved from round {from} to {to}, which nobody has shown"));
        let is_wrong = |entry: &(WorkerId, u64)| Some(entry.0.0) == self.liar || self.misled.contains(&entry.0.0);
        if shown.iter().all(is_wrong) {
            self.misled.insert(worker);
            return;
        }
        self.misled.remove(&worker);
        let latest = self.latest;
        self.check(to <= latest, worker, || format!("moved to round {to}, but nobody is beyond {latest}"));
        let near = to.saturating_sub(MAX_ROUND_LAG)..=to + MAX_ROUND_LAG;
        let others = (0..self.workers.len()).filter(|other| *other != worker && self.liar != Some(*other));
        let was_there = others.flat_map(|other| near.clone().map(move |round| (round, other)));
        let is_known = to > from || was_there.into_iter().any(|begun| self.begun.contains(&begun));
        self.check(is_known, worker, || format!("went back from round {from} to {to}, where nobody was"));
    }

    /// A process has begun a round.
    pub(super) fn began(&mut self, worker: usize, round: u64, now: Time) {
        self.begun_at.entry(round).or_insert(now);
        let trace = &mut self.workers[worker];
        let expected = trace.next;
        if Some(round) != expected {
            self.fail(worker, &format!("began round {round} instead of {expected:?}"));
        }
        self.workers[worker].next = Some(round + 1);
        if !self.begun.insert((round, worker)) {
            self.repeated.insert(round);
        }
        if self.liar != Some(worker) {
            self.latest = self.latest.max(round + 1);
        }
    }

    /// A process has run a round.
    pub(super) fn ran(&mut self, worker: usize, round: u64, record: RoundRecord, may_be_alone: bool) {
        self.exchanges += record.used.len() as u64;
        let trace = &mut self.workers[worker];
        match record.used.is_empty() {
            true => trace.rounds_alone += u64::from(!may_be_alone),
            false => trace.rounds_alone = 0,
        }
        // A worker that catches up with others runs a few rounds by itself, and so does one that has lost its last
        // neighbor just now.
        let most = 2 * MAX_ROUND_LAG + 4;
        if trace.rounds_alone > most && self.liar != Some(worker) && !self.misled.contains(&worker) {
            self.fail(worker, &format!("trains alone in round {round}"));
        }
        self.rounds.entry(round).or_default().entry(worker).or_default().push(record);
    }

    pub(super) fn participation(&self, worker: usize) -> Participation {
        self.workers[worker].ending.as_ref().unwrap().1.participation.unwrap()
    }

    /// Whether all workers have finished, without a liar, and nothing has happened to their links for so many rounds that
    /// all have restarted what they rely on, and have written a checkpoint since.
    pub(super) fn is_settled(&self, rounds: u64) -> bool {
        let has_finished = |worker: &WorkerTrace| matches!(worker.ending, Some((Status::Finished, _)));
        let calm = 4 * self.workers.len() as u64 + 60;
        let changes = self.workers.iter().flat_map(|worker| &worker.events);
        let changes = changes.filter(|event| !matches!(event.1, MembershipEvent::Restarted));
        let last = changes.map(|event| event.0).max();
        let since = self.begun_at.get(&rounds.saturating_sub(calm));
        // Nobody reports a message of the last round that was lost because the run is over.
        let senders = |round: u64| {
            self.rounds.get(&round).map(|records| {
                let used = |(worker, records): (&usize, &Vec<RoundRecord>)| {
                    (*worker, records.iter().map(|r| r.used.clone()).collect())
                };
                records.iter().map(used).collect::<BTreeMap<usize, Vec<BTreeSet<usize>>>>()
            })
        };
        let is_complete = senders(rounds - 1) == senders(rounds - 2);
        let is_calm = is_complete && since.is_some_and(|since| last < Some(*since));
        self.liar.is_none() && self.workers.iter().all(has_finished) && is_calm
    }

    /// Checks what an algorithm relies on over all workers, in a settled run.
    pub(super) fn check_sums_and_copies(&self) {
        let scalars: f64 = self.workers.iter().map(|worker| worker.scalar).sum();
        let count = self.workers.len() as f64;
        self.check((scalars - count).abs() < 1e-9, 0, || format!("and the others have weights with the sum {scalars}"));
        for (index, worker) in self.workers.iter().enumerate() {
            for (other, copy) in &worker.copies {
                let own = &self.workers[*other].own_copy;
                let distance = copy.iter().zip(own).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                self.check(distance < 1e-5, index, || format!("has another public copy of worker {other}"));
            }
        }
    }

    /// The number of rounds that a worker has run.
    pub(super) fn rounds_of(&self, worker: usize) -> usize {
        self.rounds.values().filter(|records| records.contains_key(&worker)).count()
    }

    /// The mean distance of the last models from the optimum of all workers together.
    pub(super) fn mean_distance(&self) -> f64 {
        self.workers.iter().map(|worker| worker.distance).sum::<f64>() / self.workers.len() as f64
    }

    /// Checks that mixing conserves the mean: exactly, in rounds in which both ends of every link used each other's
    /// message, and up to the weighted differences of the other links in the remaining rounds. Returns the number of
    /// rounds of each kind.
    pub(super) fn check_mean(&self) -> (u64, u64) {
        let (mut clean, mut changed) = (0, 0);
        for (round, records) in &self.rounds {
            // A worker that has run a round twice has sent two models in it.
            if self.repeated.contains(round) {
                continue;
            }
            let records: BTreeMap<usize, &RoundRecord> =
                records.iter().map(|(worker, records)| (*worker, &records[0])).collect();
            let mut allowed = [1e-4; WIDTH];
            let mut is_clean = true;
            for (&worker, record) in &records {
                for &other in &record.used {
                    let theirs = records.get(&other).filter(|_| self.liar != Some(other));
                    if theirs.is_some_and(|theirs| theirs.used.contains(&worker)) {
                        continue;
                    }
                    is_clean = false;
                    let weight = self.weights[&(worker, other)] as f32;
                    for (k, allowed) in allowed.iter_mut().enumerate() {
                        // A worker that did not finish the round left no record of its model.
                        let difference = |theirs: &RoundRecord| (theirs.stepped[k] - record.stepped[k]).abs();
                        *allowed += theirs.map_or(f32::MAX, |theirs| weight * difference(theirs));
                    }
                }
            }
            for (k, allowed) in allowed.into_iter().enumerate() {
                let drift: f32 = records.values().map(|record| record.mixed[k] - record.stepped[k]).sum();
                if drift.abs() > allowed {
                    for (worker, record) in &records {
                        eprintln!("{worker}: {:?} -> {:?}, used {:?}", record.stepped, record.mixed, record.used);
                    }
                    panic!("round {round}: the mean moved by {drift}, at most {allowed} is allowed");
                }
            }
            *(if is_clean { &mut clean } else { &mut changed }) += 1;
        }
        (clean, changed)
    }
}
