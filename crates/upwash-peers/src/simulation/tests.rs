//! Simulated runs.

use super::schedule::{Fault, Lie, Schedule};
use super::trace::{Trace, WorkerTrace};
use super::world::MS;
use super::{experiment, experiment_at_rate, prepare, simulate};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use upwash::WorkerId;
use upwash::algorithm::Registry;
use upwash::experiment::Experiment;
use upwash::run::Status;
use upwash::transport::MembershipEvent;

const DPSGD: &str = "name = \"dpsgd\"";

#[test]
fn quiet_runs_finish_and_conserve_the_mean() {
    let experiment = experiment("ring:5", DPSGD);
    let trace = simulate(&experiment, &Schedule::quiet(1, 5));
    assert!(trace.workers.iter().all(|worker| matches!(worker.ending, Some((Status::Finished, _)))));
    assert_eq!(trace.check_mean(), (experiment.rounds(), 0));
    assert!(trace.workers.iter().all(|worker| worker.adoptions == 0));
}

/// A schedule in which worker 1 is killed twice and returns, once with and once without its disk.
fn with_two_kills(seed: u64, workers: usize) -> Schedule {
    let mut schedule = Schedule::quiet(seed, workers);
    for (at, with_disk) in [(600, true), (1500, false)] {
        schedule.faults.push((at * MS, Fault::Kill { worker: 1 }));
        schedule.faults.push(((at + 300) * MS, Fault::Restart { worker: 1, with_disk }));
    }
    schedule
}

fn assert_all_finished(trace: &Trace) {
    for (worker, trace) in trace.workers.iter().enumerate() {
        let status = trace.ending.as_ref().map(|ending| &ending.0);
        assert_eq!(status, Some(&Status::Finished), "worker {worker}: {:?}", trace.events);
    }
}

/// F2. Worker 0 is the only neighbor of worker 4 of this graph. Without it, worker 4 must wait: otherwise it would race
/// ahead, and take everybody along when it meets the others again.
#[test]
fn an_isolated_worker_waits_and_does_not_take_the_others_along() {
    let experiment = experiment("paper:L1", DPSGD);
    let mut schedule = Schedule::quiet(2, 8);
    schedule.faults.push((500 * MS, Fault::Kill { worker: 0 }));
    schedule.faults.push((3000 * MS, Fault::Restart { worker: 0, with_disk: true }));
    let trace = simulate(&experiment, &schedule);
    assert_all_finished(&trace);
    for worker in (0..8).filter(|worker| *worker != 0) {
        let part = trace.participation(worker);
        let skipped = if worker == 4 { 250 } else { 0 };
        assert!(part.rounds_skipped <= skipped, "worker {worker}: {part}");
        assert_eq!(part.rounds_run + part.rounds_skipped - part.rounds_repeated, experiment.rounds());
    }
    let alone = trace.participation(4).seconds_alone;
    assert!(alone > 2.0, "worker 4 was alone for {alone} seconds only");
    let waits = |change: &MembershipEvent| matches!(change, MembershipEvent::Waiting { .. });
    assert!(trace.workers[4].events.iter().any(|event| waits(&event.1)));
}

/// F1. A listed worker claims the last round. Nobody moves, and nobody ends early.
#[test]
fn one_liar_ends_nobodys_run() {
    for (graph, workers) in [("ring:6", 6), ("complete:5", 5), ("paper:L1", 8), ("star:6", 6)] {
        let experiment = experiment(graph, DPSGD);
        let last = experiment.rounds();
        for (liar, lie) in [(0, Lie::Rounds(last)), (0, Lie::Announced(last)), (1, Lie::Announced(last - 1))] {
            let mut schedule = Schedule::quiet(3, workers);
            schedule.liar = Some((liar, lie));
            let trace = simulate(&experiment, &schedule);
            // A worker whose only neighbor is the liar can only wait.
            let has_honest_neighbor =
                |worker: usize| experiment.contacts(worker.into()).iter().any(|other| other.0 != liar);
            for worker in (0..workers).filter(|worker| *worker != liar && has_honest_neighbor(*worker)) {
                let part = trace.participation(worker);
                assert_eq!(part.rounds_skipped, 0, "{graph}, {lie:?}, worker {worker}: {part}");
                let finished = matches!(trace.workers[worker].ending, Some((Status::Finished, _)));
                assert!(finished && part.rounds_run == last, "{graph}, {lie:?}, worker {worker}: {part}");
            }
        }
    }
}

/// F6. A worker whose round loop is stuck, while its heartbeats go on, delays the others once or a few times, not again
/// and again.
#[test]
fn a_stuck_worker_does_not_hold_up_the_others() {
    let experiment = experiment("ring:6", DPSGD);
    let mut schedule = Schedule::quiet(4, 6);
    schedule.faults.push((500 * MS, Fault::Stuck { worker: 2, duration: 20_000 * MS }));
    let trace = simulate(&experiment, &schedule);
    for worker in [0, 1, 3, 4, 5] {
        let part = trace.participation(worker);
        assert_eq!(part.rounds_run, experiment.rounds(), "worker {worker}: {part}");
        let late = |change: &MembershipEvent| matches!(change, MembershipEvent::Lost { worker: WorkerId(2), .. });
        let lost = trace.workers[worker].events.iter().filter(|event| late(&event.1)).count();
        assert!(lost <= 2, "worker {worker} lost it {lost} times");
        let ended = trace.workers[worker].ended_at.unwrap().as_secs_f64() - 1e6;
        assert!(ended < 20.0, "worker {worker} ended after {ended} seconds, no sooner than the one that was stuck");
    }
}

/// F12. A worker that returns after the others have finished does not train from scratch and call that finished.
#[test]
fn a_late_returner_is_isolated() {
    let experiment = experiment("ring:5", DPSGD);
    let mut schedule = Schedule::quiet(5, 5);
    schedule.faults.push((500 * MS, Fault::Kill { worker: 3 }));
    schedule.faults.push((20_000 * MS, Fault::Restart { worker: 3, with_disk: false }));
    let trace = simulate(&experiment, &schedule);
    let (status, summary) = trace.workers[3].ending.as_ref().unwrap();
    assert_eq!(*status, Status::Isolated { round: 0 });
    assert_eq!(summary.participation.unwrap().rounds_run, 0);
}

/// F13. A worker whose request for a model is not answered asks another one. It does not train with random weights.
#[test]
fn a_model_that_does_not_arrive_is_requested_elsewhere() {
    let experiment = experiment("complete:4", DPSGD);
    let mut schedule = Schedule::quiet(6, 4);
    // Long rounds: the run must last longer than the timeout for a model.
    schedule.gradients = vec![40 * MS; 4];
    schedule.faults.push((500 * MS, Fault::Kill { worker: 3 }));
    schedule.faults.push((1500 * MS, Fault::Restart { worker: 3, with_disk: false }));
    schedule.withheld_models = Some(0);
    let trace = simulate(&experiment, &schedule);
    assert_all_finished(&trace);
    let changes = || trace.workers[3].events.iter().map(|event| &event.1);
    assert!(changes().any(|change| matches!(change, MembershipEvent::FetchFailed { worker: WorkerId(0), .. })));
    assert!(changes().any(|change| matches!(change, MembershipEvent::Adopted { worker: WorkerId(1 | 2), .. })));
}

/// A model that takes longer than a message may, and longer than a worker may be alone, arrives if the network is slow.
#[test]
fn a_large_model_arrives_over_a_slow_network() {
    let experiment = experiment("complete:4", DPSGD);
    let mut schedule = Schedule::quiet(9, 4);
    // The others must not go on by many rounds in the meantime.
    schedule.gradients = vec![800 * MS; 4];
    schedule.slow_models = Some(350 * MS);
    schedule.faults.push((10_000 * MS, Fault::Kill { worker: 3 }));
    schedule.faults.push((30_000 * MS, Fault::Restart { worker: 3, with_disk: false }));
    let trace = simulate(&experiment, &schedule);
    assert_all_finished(&trace);
    assert_eq!(trace.workers[3].adoptions, 1);
    let failed = |change: &MembershipEvent| matches!(change, MembershipEvent::FetchFailed { .. });
    assert!(!trace.workers.iter().flat_map(|worker| &worker.events).any(|event| failed(&event.1)));
}

/// Two workers that have only each other do not end because one was slow once.
#[test]
fn a_late_pair_stays_together() {
    let experiment = experiment("path:2", DPSGD);
    for worker in 0..2 {
        let mut schedule = Schedule::quiet(10, 2);
        // In the first rounds, a message has the most time.
        schedule.faults.push((30 * MS, Fault::Stuck { worker, duration: 3300 * MS }));
        let trace = simulate(&experiment, &schedule);
        assert_all_finished(&trace);
        let late = |change: &MembershipEvent| matches!(change, MembershipEvent::Lost { .. });
        assert!(trace.workers[1 - worker].events.iter().any(|event| late(&event.1)), "it was not late");
    }
}

/// A worker whose only neighbor holds it off, because it has others, waits for less than the time after which it would end
/// as isolated.
#[test]
fn a_late_leaf_is_not_held_off_until_it_is_isolated() {
    let experiment = experiment("star:4", DPSGD);
    let mut schedule = Schedule::quiet(11, 4);
    // The rounds are long, so that it has no reason to adopt a model.
    schedule.gradients = vec![700 * MS; 4];
    schedule.faults.push((30 * MS, Fault::Stuck { worker: 2, duration: 4500 * MS }));
    assert_all_finished(&simulate(&experiment, &schedule));
}

/// A worker that says that it has finished when it cannot have, and leaves, is lost like any other.
#[test]
fn a_false_goodbye_lets_nobody_train_alone() {
    let experiment = experiment("ring:5", DPSGD);
    let mut schedule = Schedule::quiet(12, 5);
    schedule.liar = Some((1, Lie::Goodbye));
    schedule.faults.push((1000 * MS, Fault::Kill { worker: 1 }));
    schedule.faults.push((1200 * MS, Fault::Kill { worker: 3 }));
    let trace = simulate(&experiment, &schedule);
    let status = trace.workers[2].ending.as_ref().map(|ending| &ending.0);
    assert!(matches!(status, Some(Status::Isolated { .. })), "{status:?}");
}

/// Half of all workers are lost, so that the others are a side that may move. A liar among them claims to be on the side of
/// all workers, in another round. Workers with two honest neighbors do not follow it.
#[test]
fn one_liar_does_not_move_a_small_side() {
    let cases: [(&str, usize, &[usize], &[usize]); 2] =
        [("complete:8", 0, &[4, 5, 6, 7], &[1, 2, 3]), ("grid:2x4", 5, &[3, 6, 7], &[0, 1])];
    for (graph, liar, killed, firm) in cases {
        let experiment = experiment(graph, DPSGD);
        for claimed in [0, experiment.rounds()] {
            let mut schedule = Schedule::quiet(13, 8);
            schedule.liar = Some((liar, Lie::Announced(claimed)));
            schedule.faults = killed.iter().map(|&worker| (1000 * MS, Fault::Kill { worker })).collect();
            let trace = simulate(&experiment, &schedule);
            for &worker in firm {
                assert_eq!(trace.workers[worker].adoptions, 0, "{graph}: worker {worker}, claimed round {claimed}");
                assert_eq!(trace.participation(worker).rounds_run, experiment.rounds());
            }
        }
    }
}

/// Parts of a network that was split join again, also where each worker has only one contact on the other side.
#[test]
fn sides_that_meet_join() {
    let cases: [(&str, &[usize]); 3] =
        [("grid:2x4", &[0, 1, 4, 5]), ("ring:8", &[0, 1, 2]), ("complete:8", &[0, 1, 2])];
    for (graph, first) in cases {
        let experiment = experiment(graph, DPSGD);
        let mut schedule = Schedule::quiet(14, 8);
        let pairs = (0..8).flat_map(|from| (0..8).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| first.contains(from) != first.contains(to)) {
            schedule.faults.push((1000 * MS, Fault::Cut { from, to, is_cut: true }));
            schedule.faults.push((2500 * MS, Fault::Cut { from, to, is_cut: false }));
        }
        // The small side is slower, so that its rounds differ.
        for (worker, gradient) in schedule.gradients.iter_mut().enumerate() {
            *gradient = MS * if first.contains(&worker) { 25 } else { 8 };
        }
        let trace = simulate(&experiment, &schedule);
        assert_all_finished(&trace);
        for &worker in first {
            assert!(trace.workers[worker].adoptions > 0, "{graph}: worker {worker} did not move");
        }
        assert!((0..8).all(|worker| first.contains(&worker) || trace.workers[worker].adoptions == 0), "{graph}");
    }
}

/// A worker that sends each message just in time does not get more and more time for it.
#[test]
fn a_slow_worker_does_not_raise_the_deadline() {
    let experiment = experiment("complete:4", DPSGD);
    let mut schedule = Schedule::quiet(15, 4);
    // The shortest deadline is 500 milliseconds.
    schedule.gradients[3] = 400 * MS;
    schedule.faults.push((30_000 * MS, Fault::Stuck { worker: 3, duration: 1000 * MS }));
    let trace = simulate(&experiment, &schedule);
    let lost = |change: &MembershipEvent| matches!(change, MembershipEvent::Lost { worker: WorkerId(3), why } if why.contains("no message"));
    for worker in 0..3 {
        let lost = trace.workers[worker].events.iter().find(|event| lost(&event.1));
        assert!(lost.is_some(), "worker {worker} waited for longer");
        assert!(lost.unwrap().0.as_secs_f64() > 1e6 + 30.0, "worker {worker}: in time, but lost");
    }
}

/// The algorithms that run over peers, with their options.
const SURVIVING: [&str; 19] = [
    "name = \"al-dsgd\"",
    "name = \"al-dsgd\"\nbase = \"choco\"",
    "name = \"al-dsgd\"\nbase = \"matcha\"",
    "name = \"all-reduce\"",
    "name = \"choco\"",
    "name = \"d2\"",
    "name = \"diloco\"\nperiod = 4",
    "name = \"dpsgd\"",
    "name = \"dpsgd\"\nlazy = true\noverlap = true",
    "name = \"dpsgd\"\nrobust = \"clip\"",
    "name = \"epidemic\"",
    "name = \"gossip-pga\"",
    "name = \"gradient-tracking\"",
    "name = \"local-sgd\"",
    "name = \"matcha\"",
    "name = \"noloco\"\nperiod = 4",
    "name = \"sgp\"",
    "name = \"slowmo\"",
    "name = \"slowmo\"\nbase = \"dpsgd\"",
];

/// Every algorithm either survives loss and return, or peers refuse it. Asynchronous algorithms, and those that own the
/// momentum, need an engine that computes gradients, which the simulation does not have: other tests run them.
#[test]
fn every_algorithm_survives_or_is_refused() {
    for definition in Registry::standard().iter() {
        let name = definition.name;
        let experiment = prepare("star:6", &format!("name = \"{name}\""), 0.05, 1);
        let is_simulated = SURVIVING.iter().any(|text| text.starts_with(&format!("name = \"{name}\"")));
        let is_refused = crate::check_algorithm(&experiment).is_err();
        let is_asynchronous = experiment.method.synchronous().is_none();
        let owns_momentum = experiment.method.synchronous().is_some_and(|algorithm| algorithm.owns_momentum());
        let expected = [is_simulated, is_refused, is_asynchronous, owns_momentum];
        assert_eq!(expected.iter().filter(|is| **is).count(), 1, "{name}: {expected:?}");
    }
}

/// F4, F5, and the histories of D2 and gradient tracking: after losses and returns, all workers end as near to the
/// optimum as without them. The task is far from solved at the end, so that lost rounds show.
#[test]
fn algorithms_survive_loss_and_return() {
    for algorithm in SURVIVING {
        let experiment = experiment_at_rate("ring:6", algorithm, 0.01);
        let undisturbed = simulate(&experiment, &Schedule::quiet(7, 6));
        let known = undisturbed.mean_distance();
        for seed in 7..12 {
            let trace = simulate(&experiment, &with_two_kills(seed, 6));
            assert_all_finished(&trace);
            let found = trace.mean_distance();
            // Models start at a distance of about 5. Without gradients of worker 1, the optimum is that of the others.
            let missed = 1.0 - trace.rounds_of(1) as f64 / experiment.rounds() as f64;
            let allowed = known + 0.2 * missed;
            assert!(found < allowed, "{algorithm}, seed {seed}: {found:.4}, at most {allowed:.4} is allowed");
            trace.check_sums_and_copies();
            let has_copies = |worker: &WorkerTrace| !algorithm.contains("choco") || worker.copies.len() == 2;
            assert!(trace.workers.iter().all(has_copies), "{algorithm}, seed {seed}: public copies are missing");
        }
    }
}

/// The seeds of `7` or of `0..100000`.
fn seeds(text: &str) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("UPWASH_SEEDS: a seed, or a range such as 0..100000");
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(text)..number(text) + 1,
    }
}

/// Random schedules of faults, for several graphs and algorithms. `UPWASH_SEEDS=0..100000` for a long test, and
/// `UPWASH_SEEDS=7` for one schedule again.
#[test]
fn random_schedules() {
    let graphs = ["ring:4", "ring:6", "complete:5", "paper:L1", "ring:12", "star:6", "grid:2x4"];
    let algorithms = ["dpsgd", "choco", "sgp", "al-dsgd", "d2", "matcha", "dpsgd", "gradient-tracking"]
        .map(|name| format!("name = \"{name}\""));
    let pairs = graphs.iter().flat_map(|graph| algorithms.iter().map(move |algorithm| experiment(graph, algorithm)));
    let experiments: Vec<Arc<Experiment>> = pairs.collect();
    let seeds = seeds(std::env::var("UPWASH_SEEDS").ok().as_deref().unwrap_or("0..2000"));
    let (next, totals) = (AtomicU64::new(seeds.start), Mutex::new(Totals::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return;
            }
            let experiment = &experiments[seed as usize % experiments.len()];
            let schedule = Schedule::random(seed, experiment.workers(), experiment.rounds());
            let run = || {
                let trace = simulate(experiment, &schedule);
                if trace.is_settled(experiment.rounds()) {
                    trace.check_sums_and_copies();
                }
                trace
            };
            let trace = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            let trace = trace.unwrap_or_else(|_| panic!("replay with UPWASH_SEEDS={seed}: {schedule:?}"));
            let conserves_mean = experiment.algorithm_name() == "D-PSGD";
            totals.lock().unwrap().add(&trace, conserves_mean, experiment.rounds());
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let totals = totals.into_inner().unwrap();
    println!("{totals:?}");
    // The schedules must lead to what the invariants are about.
    let Totals { settled, steady_rounds, other_rounds, adoptions, isolated, .. } = totals;
    let seen = [settled, steady_rounds, other_rounds, adoptions, isolated];
    assert!(seeds.end - seeds.start < 1000 || seen.iter().all(|count| *count > 0), "{totals:?}");
}

/// A failing seed can be replayed: a schedule leads to the same events at the same times.
#[test]
fn schedules_replay_exactly() {
    for (seed, algorithm) in (0..12).zip(["dpsgd", "choco", "al-dsgd", "matcha"].iter().cycle()) {
        let experiment = experiment("ring:6", &format!("name = \"{algorithm}\""));
        let schedule = Schedule::random(seed, 6, experiment.rounds());
        let [first, second] = [(); 2].map(|()| simulate(&experiment, &schedule));
        assert_eq!(first.exchanges, second.exchanges);
        for (first, second) in first.workers.iter().zip(&second.workers) {
            assert_eq!(first.events, second.events);
            assert_eq!(first.distance, second.distance);
        }
    }
}

/// What happened in all runs together.
#[derive(Debug, Default)]
struct Totals {
    runs: u64,
    /// Runs in which all finished, and long after the last change of a link: sums and copies were checked.
    settled: u64,
    /// Rounds in which no link changed, so that the mean was conserved, and other rounds.
    steady_rounds: u64,
    other_rounds: u64,
    adoptions: u64,
    finished: u64,
    isolated: u64,
    killed: u64,
}

impl Totals {
    fn add(&mut self, trace: &Trace, conserves_mean: bool, rounds: u64) {
        let (steady, other) = if conserves_mean { trace.check_mean() } else { (0, 0) };
        self.runs += 1;
        self.settled += u64::from(trace.is_settled(rounds));
        self.steady_rounds += steady;
        self.other_rounds += other;
        for worker in &trace.workers {
            self.adoptions += worker.adoptions;
            match worker.ending {
                Some((Status::Finished, _)) => self.finished += 1,
                Some((Status::Isolated { .. }, _)) => self.isolated += 1,
                _ => self.killed += 1,
            }
        }
    }
}
