//! Deterministic simulation: the shipped round loop, protocol and frames on a simulated network and clock. Only sockets,
//! TLS and time are replaced. A schedule of faults follows from a seed, and a failing seed replays exactly:
//! `UPWASH_SEEDS=17 cargo test -p upwash-peers --lib random_schedules`.
#![allow(clippy::unwrap_used)]

mod liars;
mod process;
mod schedule;
mod tests;
mod trace;
mod world;

use crate::Timings;
use crate::protocol::{ProtocolConfig, Time};
use process::{Process, SharedWorld};
use schedule::{Fault, Schedule};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trace::Trace;
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};
use upwash_topology::random::Stream;
use world::{Happening, MS, World};

/// The longest that a simulated run may take.
const TIME_LIMIT: Duration = Duration::from_secs(300);

fn timings() -> Timings {
    Timings {
        heartbeat: 100 * MS,
        failure_timeout: 500 * MS,
        message_timeout: 3000 * MS,
        startup_timeout: 1000 * MS,
        isolation_timeout: 4000 * MS,
        handshake: 1000 * MS,
    }
}

/// An experiment on a graph, of at least 300 rounds.
fn experiment(graph: &str, algorithm: &str) -> Arc<Experiment> {
    experiment_at_rate(graph, algorithm, 0.05)
}

fn experiment_at_rate(graph: &str, algorithm: &str, rate: f64) -> Arc<Experiment> {
    let rounds_per_epoch = prepare(graph, algorithm, rate, 1).rounds();
    Arc::new(prepare(graph, algorithm, rate, 300u64.div_ceil(rounds_per_epoch)))
}

fn prepare(graph: &str, algorithm: &str, rate: f64, epochs: u64) -> Experiment {
    let text = format!(
        "[graph]\ntopology = \"{graph}\"\n[algorithm]\n{algorithm}\n[data]\ntrain_examples = 320\n[training]\n\
         epochs = {epochs}\nbatch_size = 8\nlearning_rate = {rate}\nmomentum = 0.0\n"
    );
    let config = Config::parse(&text, &[]).unwrap();
    Experiment::prepare(config, &DataPaths::default()).unwrap()
}

/// Simulates a run. Panics if an invariant is violated.
fn simulate(experiment: &Arc<Experiment>, schedule: &Schedule) -> Trace {
    let workers = experiment.workers();
    let config = |own: usize| ProtocolConfig {
        own,
        workers,
        neighbors: experiment.contacts(own.into()).into_iter().map(usize::from).collect(),
        rounds: experiment.rounds(),
        has_rounds: true,
        has_end: true,
        timings: timings(),
    };
    let configs = (0..workers).map(config).collect();
    let mut world = World::new(configs, schedule.delay, Stream::new(schedule.seed, "network", &[]));
    // The links of D-PSGD, for which the mean is checked, are the same in all rounds.
    let links = experiment.schedule.round(0);
    let rows = (0..workers).flat_map(|worker| links.mixing().row(worker).iter().map(move |entry| (worker, entry)));
    world.trace.weights = rows.map(|(worker, &(other, weight))| ((worker, other), weight)).collect();
    for (node, gradient) in world.nodes.iter_mut().zip(&schedule.gradients) {
        node.gradient = *gradient;
    }
    if let Some((liar, lie)) = schedule.liar {
        (world.nodes[liar].lie, world.trace.liar) = (Some(lie), Some(liar));
    }
    (world.withheld_models, world.slow_models) = (schedule.withheld_models, schedule.slow_models);
    for worker in 0..workers {
        let late = schedule.late.iter().find(|late| late.0 == worker);
        world.schedule(late.map_or(Duration::ZERO, |late| late.1), Happening::Start { worker });
    }
    for (at, fault) in &schedule.faults {
        world.schedule(*at, Happening::Fault(fault.clone()));
    }
    let world: SharedWorld = Rc::new(RefCell::new(world));
    let mut processes: Vec<Option<Process>> = (0..workers).map(|_| None).collect();
    run(&world, experiment, &mut processes);
    drop(processes);
    let mut world = world.borrow_mut();
    std::mem::replace(&mut world.trace, Trace::new(0))
}

/// Lets things happen until no process is left.
fn run(world: &SharedWorld, experiment: &Arc<Experiment>, processes: &mut [Option<Process>]) {
    let deadline = world.borrow().now + TIME_LIMIT;
    loop {
        let Some(happening) = world.borrow_mut().next() else {
            return;
        };
        assert!(world.borrow().now < deadline, "the run does not end");
        if matches!(happening, Happening::Start { .. } | Happening::Fault(_)) {
            let mut world = world.borrow_mut();
            world.last_fault = world.now;
        }
        match happening {
            Happening::Start { worker } | Happening::Fault(Fault::Restart { worker, with_disk: true }) => {
                boot(world, experiment, processes, worker);
            }
            Happening::Fault(Fault::Restart { worker, with_disk: false }) => {
                world.borrow_mut().nodes[worker].disk = None;
                boot(world, experiment, processes, worker);
            }
            Happening::Fault(Fault::Kill { worker }) => {
                world.borrow_mut().halt(worker);
                processes[worker] = None;
            }
            other => happen(&mut world.borrow_mut(), other),
        }
        continue_processes(world, processes);
        let world = world.borrow_mut();
        if processes.iter().all(Option::is_none) && !world.expects_processes() {
            return;
        }
    }
}

fn boot(world: &SharedWorld, experiment: &Arc<Experiment>, processes: &mut [Option<Process>], worker: usize) {
    // A worker that has finished, or that has started already, does not start again.
    let is_due = processes[worker].is_none() && world.borrow().trace.workers[worker].ending.is_none();
    if is_due {
        let mut process = process::start(world, experiment, worker);
        resume(&mut process).then(|| processes[worker] = Some(process));
    }
}

/// Continues a process until it waits. Returns whether it is still running.
fn resume(process: &mut Process) -> bool {
    process.resume(()).as_yield().is_some()
}

fn happen(world: &mut World, happening: Happening) {
    match happening {
        Happening::Tick { worker, process } if world.nodes[worker].process == process => {
            world.call(worker, process, |protocol, now: Time| protocol.on_tick(now));
            world.schedule(timings().heartbeat / 4, Happening::Tick { worker, process });
        }
        Happening::Dial { from, process, to } => world.dial(from, process, to),
        Happening::Arrival { connection, from } => world.arrival(connection, from),
        Happening::Part { connection, from, done } => world.part(connection, from, done),
        Happening::Hangup { connection, end } => world.hangup_arrives(connection, end),
        Happening::Wake { worker, process, wake } => {
            let node = &mut world.nodes[worker];
            if node.process == process && node.waits.is_some_and(|waits| waits.1 == wake) {
                // Any version is another one.
                node.waits = Some((Some(u64::MAX), wake));
                world.touched.push(worker);
            }
        }
        Happening::Fault(Fault::Cut { from, to, is_cut }) => world.cut[from][to] = is_cut,
        Happening::Fault(Fault::Delay(delay)) => world.delay = delay,
        Happening::Fault(Fault::Stuck { worker, duration }) => {
            world.nodes[worker].stuck_until = world.now + duration;
        }
        _ => {}
    }
}

/// Continues all processes for which something has changed, in the order of the workers.
fn continue_processes(world: &SharedWorld, processes: &mut [Option<Process>]) {
    loop {
        let next = {
            let mut world = world.borrow_mut();
            let mut touched = std::mem::take(&mut world.touched);
            touched.sort_unstable();
            touched.dedup();
            let ready = touched.iter().position(|&worker| world.is_ready(worker));
            let next = ready.map(|index| touched.remove(index));
            if next.is_some() {
                world.touched = touched;
            }
            next
        };
        let Some(worker) = next else { return };
        if let Some(process) = &mut processes[worker]
            && !resume(process)
        {
            processes[worker] = None;
        }
    }
}
