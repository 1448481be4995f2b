//! Runs in several processes, simulated by threads that exchange messages over channels, compared with runs in one
//! process. Half of this file is that transport.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};
use upwash::WorkerId;
use upwash::algorithm::{Links, Registry};
use upwash::config::Config;
use upwash::engine::CpuEngine;
use upwash::engine::NativeModel;
use upwash::engine::{Engine, State};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Progress, Summary, run, run_with};
use upwash::transport::{
    Capabilities, Collectives, Membership, Message, MessageExchange, Placement, RoundStart, Traffic, TransportError,
};
use upwash_testkit::{Archive, distance, plain_steps};

/// State that all processes share, for collectives.
struct SharedSums {
    barrier: Barrier,
    sums: Mutex<Vec<f64>>,
}

/// A transport over channels.
struct Channels {
    placement: Placement,
    to: Vec<Sender<Message>>,
    from: Receiver<Message>,
    buffered: BTreeMap<(u64, u32, WorkerId, usize), Message>,
    expected: Vec<WorkerId>,
    round: u64,
    shared: Arc<SharedSums>,
    traffic: Traffic,
    consumed: BTreeMap<WorkerId, usize>,
    received: BTreeMap<WorkerId, usize>,
    /// The worker and round whose messages are corrupted with a NaN. If set, the transport survives losses.
    corrupted: Option<(WorkerId, u64)>,
    /// The workers whose messages were refused.
    refused: Vec<WorkerId>,
}

impl Channels {
    fn all(workers: usize, processes: usize) -> Vec<Self> {
        let (to, from): (Vec<_>, Vec<_>) = (0..processes).map(|_| channel()).unzip();
        let shared = Arc::new(SharedSums { barrier: Barrier::new(processes), sums: Mutex::default() });
        let one = |(this, from)| Self {
            placement: Placement::new(workers, processes, this),
            to: to.clone(),
            from,
            buffered: BTreeMap::new(),
            expected: vec![],
            round: 0,
            shared: Arc::clone(&shared),
            traffic: Traffic::default(),
            consumed: BTreeMap::new(),
            received: BTreeMap::new(),
            corrupted: None,
            refused: vec![],
        };
        from.into_iter().enumerate().map(one).collect()
    }

    fn summed(&self, numbers: &[f64]) -> Vec<f64> {
        let SharedSums { barrier, sums } = &*self.shared;
        {
            let mut sums = sums.lock().unwrap();
            sums.resize(numbers.len(), 0.0);
            sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += x);
        }
        barrier.wait();
        let sum = sums.lock().unwrap().clone();
        barrier.wait();
        sums.lock().unwrap().clear();
        barrier.wait();
        sum
    }
}

impl Membership for Channels {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survives_loss: self.corrupted.is_some(), authenticated: false, progresses: true }
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    fn refuse(&mut self, worker: WorkerId, why: String) {
        assert!(why.contains("not finite"), "{why}");
        self.refused.push(worker);
    }

    fn may_begin(&mut self, round: u64, stop: bool) -> Result<RoundStart, TransportError> {
        self.round = round;
        Ok(if stop { RoundStart::Stop } else { RoundStart::Go })
    }
}

impl MessageExchange for Channels {
    fn begin_exchange(
        &mut self,
        outgoing: Vec<(Message, Vec<usize>)>,
        expected: &[WorkerId],
    ) -> Result<(), TransportError> {
        for (message, receivers) in outgoing {
            for receiver in receivers {
                assert_ne!(receiver, self.placement.this());
                self.traffic.messages += 1;
                self.traffic.bytes += 4 * message.values.len() as u64;
                // A process that has finished no longer receives.
                let _ = self.to[receiver].send(message.clone());
            }
        }
        self.expected = expected.to_vec();
        Ok(())
    }

    /// Messages of a sender arrive in order, so the next message of a sender is the expected one.
    fn finish_exchange(&mut self, _: u32) -> Result<Vec<Message>, TransportError> {
        let mut found = Vec::new();
        for from in std::mem::take(&mut self.expected) {
            let due = *self.consumed.entry(from).or_default();
            let message = loop {
                if let Some(message) = self.buffered.remove(&(0, 0, from, due)) {
                    break message;
                }
                let message = self.from.recv_timeout(Duration::from_secs(20));
                let message = message.expect("a message should arrive in time");
                let index = self.received.entry(message.from).or_default();
                self.buffered.insert((0, 0, message.from, *index), message);
                *index += 1;
            };
            assert_eq!(message.round, self.round);
            *self.consumed.entry(from).or_default() += 1;
            let mut message = message;
            if self.corrupted == Some((from, self.round)) {
                message.values[7] = f32::NAN;
            }
            found.push(message);
        }
        Ok(found)
    }

    fn send(&mut self, to: WorkerId, message: Message) -> Result<bool, TransportError> {
        let process = self.placement.process_of(to);
        Ok(self.to[process].send(message).is_ok())
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Message>, TransportError> {
        Ok(self.from.recv_timeout(wait).into_iter().collect())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl Collectives for Channels {
    fn all_reduce(&mut self, _: u32, numbers: &mut [f32]) -> Result<(), TransportError> {
        let wide: Vec<f64> = numbers.iter().map(|&x| f64::from(x)).collect();
        let sums = self.summed(&wide);
        numbers.iter_mut().zip(sums).for_each(|(x, sum)| *x = sum as f32);
        Ok(())
    }

    fn gather_scalars(&mut self, numbers: &mut [f64]) -> Result<(), TransportError> {
        let own = self.placement.own_range();
        let known = numbers.iter().enumerate().map(|(worker, x)| match own.contains(&worker) {
            true => *x,
            false => 0.0,
        });
        let known: Vec<f64> = known.collect();
        numbers.copy_from_slice(&self.summed(&known));
        Ok(())
    }

    fn sum(&mut self, number: f64) -> Result<Option<f64>, TransportError> {
        Ok(self.summed(&[number]).first().copied())
    }
}

fn prepare(text: &str) -> Experiment {
    let config = Config::parse(text, &[]).unwrap();
    Experiment::prepare(config, &DataPaths::default()).unwrap()
}

/// Losses of all workers by round, final state, and summary.
type RunOutput = (Vec<Vec<f64>>, State, Summary);

/// Runs all workers in one process.
fn in_one_process(experiment: &Experiment) -> RunOutput {
    let network = NativeModel::new(experiment.network.clone());
    let mut engine = experiment.cpu_engine(Arc::new(network));
    let mut losses = Vec::new();
    let mut watch = |event: &Event| {
        if let Event::Round { losses: found, .. } = event {
            losses.push(found.clone());
        }
        ControlFlow::Continue
    };
    let start = Progress::start(experiment.workers());
    let result = run(experiment, &mut engine, start, &mut watch).unwrap();
    (losses, engine.state().unwrap(), result.summary)
}

/// Runs the workers in several processes.
fn in_processes(experiment: &Experiment, processes: usize) -> Vec<RunOutput> {
    let workers = experiment.workers();
    let network = Arc::new(NativeModel::new(experiment.network.clone()));
    std::thread::scope(|scope| {
        let all: Vec<_> = Channels::all(workers, processes)
            .into_iter()
            .map(|mut transport| {
                let network = Arc::clone(&network);
                scope.spawn(move || {
                    let own: Vec<WorkerId> = transport.placement().own().collect();
                    let spec = experiment.engine_spec().only(&own);
                    let mut engine = CpuEngine::new(network, &spec);
                    let mut losses = Vec::new();
                    let mut watch = |event: &Event| {
                        if let Event::Round { losses: found, .. } = event {
                            losses.push(found.clone());
                        }
                        ControlFlow::Continue
                    };
                    let start = Progress::start(workers);
                    let result = run_with(experiment, &mut engine, &mut transport, start, &mut watch);
                    (losses, engine.state().unwrap(), result.unwrap().summary)
                })
            })
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Concatenates the rows of all processes.
fn joined(all: &[RunOutput]) -> State {
    let mut state = all[0].1.clone();
    for (_, other, _) in &all[1..] {
        for ((_, array), (_, more)) in state.iter_mut().zip(other) {
            array.extend(more);
        }
    }
    state
}

/// Checks that a run in several processes agrees with the run in one process: bit-identical if `exact`, else closely.
fn check(text: &str, processes: usize, exact: bool) {
    let experiment = prepare(text);
    let (losses, state, summary) = in_one_process(&experiment);
    let all = in_processes(&experiment, processes);
    for (process_losses, _, _) in &all {
        assert_eq!(process_losses.len(), losses.len());
    }
    for (round, known) in losses.iter().enumerate() {
        for (worker, known) in known.iter().enumerate() {
            let mut found = all.iter().map(|(losses, ..)| losses[round][worker]);
            let found = found.find(|loss| !loss.is_nan()).unwrap_or(f64::NAN);
            let same = found == *known || found.is_nan() && known.is_nan();
            let near = (found - known).abs() <= 1e-5 * known.abs();
            assert!(same || !exact && near, "{text}: worker {worker}, round {round}: {found} instead of {known}");
        }
    }
    let joined = joined(&all);
    for ((name, array), (_, known)) in joined.iter().zip(&state) {
        assert_eq!(array.len(), known.len(), "{name}");
        let worst = array.iter().zip(known).map(|(a, b)| (a - b).abs());
        let worst = worst.fold(0.0, f32::max);
        assert!(worst == 0.0 || !exact && worst < 1e-4, "{text}: {name}: {worst}");
    }
    for (_, _, found) in &all {
        assert_eq!(found.per_worker.len(), summary.per_worker.len());
        let near = |a: f64, b: f64| (a - b).abs() < 0.005 || a.is_nan() && b.is_nan();
        assert!(near(found.mean_accuracy, summary.mean_accuracy), "{text}");
        let (a, b) = (found.averaged_model_accuracy, summary.averaged_model_accuracy);
        assert!(near(a, b), "{text}: {a} {b}");
        let (a, b) = (found.consensus_distance, summary.consensus_distance);
        assert!((a - b).abs() <= 1e-4 * b + 1e-5, "{text}: {a} {b}");
    }
}

fn config(algorithm: &str, more: &str) -> String {
    let with_server = ["easgd", "parameter-server"].iter().any(|name| algorithm.contains(name));
    let graph = if with_server { "star:6" } else { "paper:L1" };
    let with = |copies: usize| {
        format!(
            "[graph]\ntopology = \"{graph}\"\ncopies = {copies}\n[algorithm]\n{algorithm}\n[training]\nepochs = 1\n{more}"
        )
    };
    // Some algorithms need the same links in every round, some use no links.
    let changes = !matches!(prepare(&with(1)).method.links(), Links::None | Links::RandomOut { .. });
    with(if changes && !algorithm.contains("\"d2\"") { 2 } else { 1 })
}

#[test]
fn three_processes_agree_with_one_for_every_algorithm() {
    const ASYNCHRONOUS: [&str; 4] = ["ad-psgd", "gosgd", "async-easgd", "downpour"];
    for known in Registry::standard().iter() {
        if ASYNCHRONOUS.contains(&known.name) {
            continue;
        }
        let text = config(&format!("name = \"{}\"", known.name), "");
        let experiment = prepare(&text);
        let algorithm = experiment.method.synchronous().unwrap();
        let means = (0..20).any(|round| {
            let exchanges = algorithm.exchanges(round);
            exchanges.contains(&upwash::algorithm::Exchange::Mean)
        });
        check(&text, 3, !means);
    }
}

#[test]
fn processes_agree_with_one_for_compression_overlap_and_averaged_statistics() {
    for kind in ["random-k", "sign", "eight-bit", "none"] {
        let choco = format!("name = \"choco\"\ncompressor = \"{kind}\"");
        check(&config(&choco, ""), 8, true);
    }
    let clipped = "robust = \"clip\"\nleaders = \"verified\"";
    for algorithm in ["base = \"matcha\"\noverlap = true", "base = \"choco\"", clipped] {
        check(&config(algorithm, ""), 8, true);
    }
    let small = "model = \"cnn\"\n[data]\nname = \"synthetic:shape=1x8x8,train=256,test=64\"\n";
    for algorithm in ["name = \"al-dsgd\"", "name = \"all-reduce\""] {
        let text = config(algorithm, "statistics = \"averaged\"\n");
        check(&format!("{small}{text}"), 4, !algorithm.contains("reduce"));
    }
}

/// A model with NaNs from a neighbor is refused, and does no harm if the transport survives losses.
#[test]
fn models_with_nan_are_refused() {
    let experiment = prepare(&config("name = \"al-dsgd\"", ""));
    let network = Arc::new(NativeModel::new(experiment.network.clone()));
    let refused: usize = std::thread::scope(|scope| {
        let all: Vec<_> = Channels::all(8, 8)
            .into_iter()
            .map(|mut transport| {
                let (network, experiment) = (Arc::clone(&network), &experiment);
                scope.spawn(move || {
                    transport.corrupted = Some((WorkerId(5), 3));
                    let own: Vec<WorkerId> = transport.placement().own().collect();
                    let mut engine = CpuEngine::new(network, &experiment.engine_spec().only(&own));
                    let start = Progress::start(8);
                    let result = run_with(experiment, &mut engine, &mut transport, start, &mut ());
                    assert_eq!(result.unwrap().summary.status, upwash::run::Status::Finished);
                    assert!(engine.state().unwrap()[0].1.iter().all(|x| x.is_finite()));
                    assert!(transport.refused.iter().all(|worker| worker.0 == 5));
                    transport.refused.len()
                })
            })
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(refused > 0);
}

/// Every worker in a separate process.
#[test]
fn asynchronous_algorithms_learn_across_processes() {
    for name in ["ad-psgd", "gosgd", "async-easgd", "downpour"] {
        let with_server = matches!(name, "async-easgd" | "downpour");
        let graph = if with_server { "star:6" } else { "paper:L1" };
        let text =
            format!("[graph]\ntopology = \"{graph}\"\n[algorithm]\nname = \"{name}\"\n[training]\nepochs = 30\n");
        let experiment = prepare(&text);
        let workers = experiment.workers();
        for (losses, state, summary) in in_processes(&experiment, workers) {
            assert_eq!(summary.status, upwash::run::Status::Finished);
            assert!(summary.mean_accuracy > 0.9, "{name}: {}", summary.mean_accuracy);
            let (mean, found) = (summary.averaged_model_accuracy, summary.per_worker.len());
            assert!(mean > 0.9, "{name}: {mean}");
            assert_eq!(found, workers);
            assert!(state.iter().all(|(_, array)| array.iter().all(|x| x.is_finite())));
            // The server counts the rounds of the other workers.
            assert_eq!(losses.len() as u64, experiment.rounds(), "{name}");
        }
    }
}

/// If the processes depend on each other, one that stops interrupts all, and all can be resumed.
#[test]
fn stopping_one_process_interrupts_all_in_asynchronous_runs() {
    for (name, graph) in [("ad-psgd", "ring:3"), ("downpour", "star:3"), ("async-easgd", "star:3")] {
        let experiment = prepare(&format!(
            "[graph]\ntopology = \"{graph}\"\n[algorithm]\nname = \"{name}\"\n[training]\nepochs = 1000\n"
        ));
        for stopping in 0..3 {
            let statuses = stopped_by(&experiment, stopping);
            for (worker, status) in statuses.iter().enumerate() {
                let interrupted = matches!(status, upwash::run::Status::Interrupted { .. });
                assert!(interrupted, "{name}: process {stopping} stopped, but process {worker} has status {status:?}");
            }
        }
    }
}

/// Runs three processes, of which `stopping` requests a stop after five rounds. Returns the status of each.
fn stopped_by(experiment: &Experiment, stopping: usize) -> Vec<upwash::run::Status> {
    let network = Arc::new(NativeModel::new(experiment.network.clone()));
    let timed_out = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut all = Vec::new();
        for mut transport in Channels::all(3, 3) {
            let network = Arc::clone(&network);
            all.push(scope.spawn(move || {
                let (own, began) = (transport.placement().this(), Instant::now());
                let mut engine = CpuEngine::new(network, &experiment.engine_spec().only(&[WorkerId(own)]));
                let mut watch = |event: &Event| {
                    // Do not wait forever if the request does not arrive.
                    let late = began.elapsed() > Duration::from_secs(30);
                    timed_out.fetch_or(late, Ordering::Relaxed);
                    match event {
                        Event::Round { round: 5.., .. } if own == stopping || late => ControlFlow::Stop,
                        _ => ControlFlow::Continue,
                    }
                };
                let start = Progress::start(3);
                let result = run_with(experiment, &mut engine, &mut transport, start, &mut watch);
                result.unwrap().summary.status
            }));
        }
        let statuses = all.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(!timed_out.load(Ordering::Relaxed), "the request of process {stopping} did not arrive");
        statuses
    })
}

/// A transport whose neighbors never connect.
struct Isolated(Placement);

impl Membership for Isolated {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survives_loss: true, authenticated: true, progresses: true }
    }

    fn placement(&self) -> &Placement {
        &self.0
    }

    fn may_begin(&mut self, _: u64, _: bool) -> Result<RoundStart, TransportError> {
        Ok(RoundStart::Go)
    }

    fn is_connected(&self, _: WorkerId) -> bool {
        false
    }
}

impl MessageExchange for Isolated {
    fn receive(&mut self, wait: Duration) -> Result<Vec<Message>, TransportError> {
        std::thread::sleep(wait);
        Ok(vec![])
    }
}

impl Collectives for Isolated {}

/// Model and velocity in a checkpoint contain the same gradients, as many as the checkpoint says. A worker without
/// neighbors follows plain SGD, which gives the expected values.
#[test]
fn asynchronous_checkpoint_has_model_and_velocity_of_the_same_step() {
    let config = "[graph]\ntopology = \"path:2\"\n[algorithm]\nname = \"ad-psgd\"\n[training]\nepochs = 3\n\
                  momentum = 0.9\ndecay = \"constant\"\nlearning_rate = 0.05\n";
    let config = Config::parse(config, &[]).unwrap();
    let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
    let engine = || {
        let model = NativeModel::new(experiment.network.clone());
        CpuEngine::new(Arc::new(model), &experiment.engine_spec().only(&[WorkerId(0)]))
    };
    let known = plain_steps(&mut engine(), experiment.rounds(), 0.05);
    let mut archive = Archive::default();
    let (mut engine, mut transport) = (engine(), Isolated(Placement::new(2, 2, 0)));
    let start = Progress::start(2);
    run_with(&experiment, &mut engine, &mut transport, start, &mut archive).unwrap();
    assert!(archive.0.len() > 20);
    for (progress, state) in &archive.0 {
        let done = progress.round as usize;
        for name in ["models", "velocities"] {
            let difference = distance(state, &known[done - 1], name);
            assert!(difference < 1e-4, "{name} after {done} steps: {difference}");
        }
    }
}
