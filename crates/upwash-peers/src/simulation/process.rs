//! A simulated process: the shipped round loop over the shipped protocol. It runs as a coroutine, so that waiting lets
//! the simulated time pass.

use super::trace::{RoundRecord, WIDTH};
use super::world::{Happening, World};
use crate::protocol::{Protocol, Time};
use crate::runtime::Runtime;
use crate::transport::PeerTransport;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use upwash::algorithm::Exchange;
use upwash::engine::{Engine, ExternalState, Score};
use upwash::experiment::Experiment;
use upwash::model::{Layout, Slot};
use upwash::run::{ControlFlow, Event, NextRound, Node, Observer, Progress, Status, TakeSnapshot};
use upwash::transport::Pool;
use upwash_topology::random::Stream;

pub(super) type Process = Coroutine<(), (), ()>;
pub(super) type SharedWorld = Rc<RefCell<World>>;

/// Rounds between two checkpoints.
const CHECKPOINT_EVERY: u64 = 25;

/// Drives the protocol with the simulated network and clock.
struct Simulated<'y> {
    world: SharedWorld,
    worker: usize,
    process: u64,
    yielder: &'y Yielder<(), ()>,
}

impl Simulated<'_> {
    /// Lets time pass until the process is woken up.
    fn suspend(&self, version: Option<u64>, until: Option<Time>) {
        {
            let mut world = self.world.borrow_mut();
            let (worker, process, now) = (self.worker, self.process, world.now);
            let wake = world.nodes[worker].waits.map_or(0, |waits| waits.1) + 1;
            let wake = wake.max(now.as_nanos() as u64);
            world.nodes[worker].waits = Some((version, wake));
            if let Some(until) = until {
                world.schedule(until.saturating_sub(now), Happening::Wake { worker, process, wake });
            }
        }
        self.yielder.suspend(());
    }

    fn sleep(&self, duration: Duration) {
        let until = self.world.borrow().now + duration;
        self.suspend(None, Some(until));
    }
}

impl Runtime for Simulated<'_> {
    fn call<T>(&self, call: impl FnOnce(&mut Protocol, Time) -> T) -> T {
        self.world.borrow_mut().call(self.worker, self.process, call)
    }

    fn wait(&self, version: u64, until: Time) {
        let (now, current) = self.call(|protocol, now| (now, protocol.version()));
        if version == current && now < until {
            self.suspend(Some(version), Some(until));
        }
    }

    fn bytes(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Records events and writes checkpoints to the simulated disk.
struct Recorder {
    world: SharedWorld,
    worker: usize,
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Peer { change, .. } = event {
            let mut world = self.world.borrow_mut();
            let now = world.now;
            world.trace.event(self.worker, now, change);
        }
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        if round.is_multiple_of(CHECKPOINT_EVERY) {
            self.stopped(snapshot);
        }
        ControlFlow::Continue
    }

    fn stopped(&mut self, snapshot: &mut TakeSnapshot<'_>) {
        let saved = snapshot().unwrap();
        self.world.borrow_mut().trace.workers[self.worker].scalar = saved.0.scalars[self.worker];
        self.world.borrow_mut().nodes[self.worker].disk = Some(saved);
    }
}

/// The model of a worker, on a quadratic loss with an optimum of its own.
struct Problem {
    optimum: [f32; WIDTH],
}

impl Problem {
    fn new(worker: usize) -> Self {
        let mut random = Stream::new(7, "optimum", &[worker as u64]);
        Self { optimum: std::array::from_fn(|_| random.uniform() as f32 * 2.0 - 1.0) }
    }

    fn start(worker: usize) -> [f32; WIDTH] {
        let mut random = Stream::new(7, "start", &[worker as u64]);
        std::array::from_fn(|_| random.uniform() as f32 * 8.0 - 4.0)
    }

    fn distance(model: &[f32], workers: usize) -> f64 {
        let optima: Vec<Self> = (0..workers).map(Self::new).collect();
        let mean = |k: usize| optima.iter().map(|problem| problem.optimum[k]).sum::<f32>() / workers as f32;
        let square = |k: usize| f64::from(model[k] - mean(k)).powi(2);
        (0..WIDTH).map(square).sum::<f64>().sqrt()
    }

    fn step(&self, model: &mut [f32], rate: f64) -> f64 {
        let mut loss = 0.0;
        for (x, b) in model.iter_mut().zip(self.optimum) {
            let slope = *x - b;
            loss += f64::from(slope * slope) / 2.0;
            *x -= rate as f32 * slope;
        }
        loss
    }
}

/// Starts a process of a worker, from its disk if it has one.
pub(super) fn start(world: &SharedWorld, experiment: &Arc<Experiment>, worker: usize) -> Process {
    let process = world.borrow_mut().boot(worker);
    let (world, experiment) = (Rc::clone(world), Arc::clone(experiment));
    let stack = DefaultStack::new(256 * 1024).unwrap();
    Coroutine::with_stack(stack, move |yielder, ()| {
        let runtime = |world: &SharedWorld| Simulated { world: Rc::clone(world), worker, process, yielder };
        let workers = experiment.workers();
        let mut transport = PeerTransport::over(runtime(&world), worker, workers, Pool::new(4));
        run(&runtime(&world), &experiment, worker, &mut transport);
        drop(transport);
        let mut world = world.borrow_mut();
        if world.nodes[worker].process == process {
            world.halt(worker);
        }
    })
}

fn run(runtime: &Simulated<'_>, experiment: &Experiment, worker: usize, transport: &mut PeerTransport<Simulated<'_>>) {
    let world = &runtime.world;
    let (problem, mut model) = (Problem::new(worker), Problem::start(worker));
    let slot = Slot { name: "x".into(), shape: vec![WIDTH], offset: 0 };
    let layout = Layout { parameters: vec![slot], statistics: vec![] };
    let spec = experiment.engine_spec().only(&[worker.into()]);
    let mut external = ExternalState::new(&spec, layout, &[&model]);
    let mut progress = Progress::start(experiment.workers());
    let disk = world.borrow().nodes[worker].disk.clone();
    if let Some((saved, state)) = disk {
        external.attach(vec![&mut model], vec![]).unwrap().restore(&state).unwrap();
        progress = saved;
    }
    world.borrow_mut().trace.started(worker, progress.round);
    let mut recorder = Recorder { world: Rc::clone(world), worker };
    let engine = external.attach(vec![&mut model], vec![]).unwrap();
    let mut node = Node::new(experiment, &engine, transport, progress, &mut recorder).unwrap();
    let status = loop {
        let mut engine = external.attach(vec![&mut model], vec![]).unwrap();
        let tasks = match node.begin_round(&mut engine).unwrap() {
            NextRound::Run(tasks) => tasks,
            NextRound::End(status) => break status,
        };
        engine.before_step();
        let round = node.round();
        {
            let mut world = world.borrow_mut();
            let now = world.now;
            world.trace.began(worker, round, now);
        }
        let (gradient, stuck) = {
            let world = world.borrow();
            let node = &world.nodes[worker];
            (node.gradient, node.stuck_until.saturating_sub(world.now))
        };
        runtime.sleep(gradient + stuck);
        let loss = problem.step(&mut model, tasks[0].unwrap().rate);
        let stepped = model;
        external.attach(vec![&mut model], vec![]).unwrap().after_step();
        runtime.call(|protocol, _| protocol.taken.clear());
        let score = Score { loss, correct: 0, examples: 1, clipped: 0 };
        let mut engine = external.attach(vec![&mut model], vec![]).unwrap();
        let ended = node.finish_round(&mut engine, &[Some(score)]).unwrap();
        let used = runtime.call(|protocol, _| protocol.taken.iter().map(|taken| taken.0).collect());
        // MATCHA may have drawn no link of this worker, and NoLoCo exchanges in some rounds only.
        let exchanges = experiment.method.synchronous().map_or(vec![], |algorithm| algorithm.exchanges(round));
        let has_links = exchanges.contains(&Exchange::Neighbors) || exchanges.contains(&Exchange::Early);
        let has_links = has_links && experiment.schedule.round(round).degree(worker) > 0;
        let may_be_alone = !has_links || runtime.call(|protocol, _| protocol.needs_no_link());
        world.borrow_mut().trace.ran(worker, round, RoundRecord { stepped, mixed: model, used }, may_be_alone);
        if let Some(status) = ended {
            break status;
        }
    };
    let distance = Problem::distance(&model, experiment.workers());
    let mut engine = external.attach(vec![&mut model], vec![]).unwrap();
    let copies = node.public_copies().into_iter().map(|(worker, copy)| (worker.0, copy)).collect();
    let state = engine.state().unwrap();
    let own_copy = state.into_iter().find(|entry| entry.0 == "public copy").map_or(vec![], |entry| entry.1);
    {
        let trace = &mut world.borrow_mut().trace.workers[worker];
        (trace.copies, trace.own_copy) = (copies, own_copy);
    }
    let summary = node.end(status.clone(), &mut engine).unwrap().summary;
    if matches!(status, Status::Isolated { .. }) {
        world.borrow().check_isolation(worker);
    }
    let mut world = world.borrow_mut();
    let now = world.now;
    let trace = &mut world.trace.workers[worker];
    (trace.distance, trace.ending, trace.ended_at) = (distance, Some((status, summary)), Some(now));
}
