//! Asynchronous runs on threads: nobody waits for all. No clocks: who would wait here, waits for ever.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use upwash::config::Config;
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::{Engine, Score, State};
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::Layout;
use upwash::run::{ControlFlow, Event, Observer, Progress, Status, Summary, TakeSnapshot, run};
use upwash_burn::BurnNetwork;
use upwash_testkit::{Archive, distance, plain_steps};

const ASYNCHRONOUS: [&str; 4] = ["ad-psgd", "gosgd", "async-easgd", "downpour"];

fn prepare(name: &str, more: &str) -> Experiment {
    let graph = match name {
        "async-easgd" | "downpour" => "star:9",
        _ => "paper:L1",
    };
    let config = format!(
        "[graph]\ntopology = \"{graph}\"\n[algorithm]\nname = \"{name}\"\n{more}\n\
         [training]\nepochs = 30\nasynchronous = \"threads\"\n"
    );
    let config = Config::parse(&config, &[]).unwrap();
    Experiment::prepare(config, &DataPaths::default()).unwrap()
}

#[derive(Default)]
struct Witness {
    stop: Option<u64>,
    kept: Option<(Progress, State)>,
}

impl Observer for Witness {
    fn observe(&mut self, _: &Event) -> ControlFlow {
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        if self.stop != Some(round) {
            return ControlFlow::Continue;
        }
        self.kept = Some(snapshot().unwrap());
        ControlFlow::Stop
    }
}

fn complete(experiment: &Experiment, model: Arc<dyn Model>) -> Summary {
    let mut engine = experiment.cpu_engine(model);
    let start = Progress::start(experiment.workers());
    let outcome = run(experiment, &mut engine, start, &mut Witness::default());
    outcome.unwrap().summary
}

#[test]
fn every_asynchronous_algorithm_learns_the_digits_on_threads() {
    for name in ASYNCHRONOUS {
        let experiment = prepare(name, "");
        let model = BurnNetwork::new(experiment.network.clone());
        let summary = complete(&experiment, Arc::new(model));
        assert_eq!(summary.status, Status::Finished, "{name}");
        assert!(summary.mean_accuracy > 0.95, "{name}: {summary:?}");
        assert!(summary.averaged_model_accuracy > 0.95, "{name}: {summary:?}");
    }
}

/// A network whose gradients for one worker's images do not end before the others have made so many.
struct Held {
    inner: BurnNetwork,
    held: HashSet<Vec<u32>>,
    size: usize,
    others: u64,
    made: Mutex<u64>,
    bell: Condvar,
    gave_up: AtomicU64,
}

fn key(pixels: &[f32]) -> Vec<u32> {
    pixels.iter().map(|pixel| pixel.to_bits()).collect()
}

impl Held {
    fn new(experiment: &Experiment, worker: usize, others: u64) -> Self {
        let network = experiment.network.clone();
        let size = network.input.iter().product();
        let share = experiment.sampler.shards().images[worker].iter();
        let picks = share.map(|&image| upwash::data::Pick::whole(image));
        let images = experiment.data.scaling.batch(&experiment.data.train, picks);
        Self {
            inner: BurnNetwork::new(network),
            held: images.pixels.chunks_exact(size).map(key).collect(),
            size,
            others,
            made: Mutex::new(0),
            bell: Condvar::new(),
            gave_up: AtomicU64::new(0),
        }
    }
}

impl Model for Held {
    fn layout(&self) -> &Layout {
        self.inner.layout()
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        self.inner.start(seed, worker)
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.inner.start_statistics()
    }

    fn gradient(&self, x: &[f32], s: &mut [f32], batch: &Batch, g: &mut [f32]) -> Score {
        if self.held.contains(&key(&batch.pixels[..self.size])) {
            let until = |made: &mut u64| *made < self.others;
            let made = self.made.lock().unwrap();
            let minute = Duration::from_secs(60);
            let (_made, waited) = self.bell.wait_timeout_while(made, minute, until).unwrap();
            let late = u64::from(waited.timed_out());
            self.gave_up.fetch_add(late, Ordering::Relaxed);
        } else {
            *self.made.lock().unwrap() += 1;
            self.bell.notify_all();
        }
        self.inner.gradient(x, s, batch, g)
    }

    fn score(&self, x: &[f32], s: &[f32], batch: &Batch) -> Score {
        self.inner.score(x, s, batch)
    }

    fn batch_statistics(&self, x: &[f32], batch: &Batch) -> Vec<f32> {
        self.inner.batch_statistics(x, batch)
    }
}

/// One worker's first gradient takes as long as the seven others need for 700: with any barrier, or if
/// it kept its model to itself while it computes, that would never come to be.
#[test]
fn a_slow_worker_holds_up_nobody() {
    for (name, more) in [("ad-psgd", ""), ("gosgd", ""), ("async-easgd", ""), ("downpour", "staleness = 1000")] {
        let experiment = prepare(name, more);
        let held = Arc::new(Held::new(&experiment, 3, 700));
        let summary = complete(&experiment, Arc::clone(&held) as Arc<dyn Model>);
        assert_eq!(held.gave_up.load(Ordering::Relaxed), 0, "{name} waited");
        assert_eq!(summary.status, Status::Finished, "{name}");
    }
}

/// The same with bounded staleness: the others stop at the bound, and the slow one is waited for.
#[test]
fn bounded_staleness_holds_up_those_who_are_ahead() {
    let experiment = prepare("downpour", "staleness = 5");
    // Seven others, each with five gradients and no more, while worker 3 has none.
    let held = Arc::new(Held::new(&experiment, 3, 7 * 5));
    let summary = complete(&experiment, Arc::clone(&held) as Arc<dyn Model>);
    assert_eq!(held.gave_up.load(Ordering::Relaxed), 0);
    assert_eq!(summary.status, Status::Finished);
    let mut engine = experiment.cpu_engine(held);
    let mut witness = Witness { stop: Some(4), ..Default::default() };
    run(&experiment, &mut engine, Progress::start(9), &mut witness).unwrap();
    let steps = witness.kept.unwrap().0.asynchronous.unwrap().steps;
    let training: Vec<u64> = steps[1..].to_vec(); // the server, 0, has none
    let (least, most) = (training.iter().min(), training.iter().max());
    assert!(most.unwrap() - least.unwrap() <= 5, "{training:?}");
}

/// A checkpoint is of one moment of each worker: its model, and the velocity that has the same gradients in
/// it. One worker alone goes the way of plain steps.
#[test]
fn a_checkpoint_has_models_and_velocities_of_the_same_step() {
    let config = "[graph]\ntopology = \"path:1\"\n[algorithm]\nname = \"ad-psgd\"\n[training]\nepochs = 1\n\
                  momentum = 0.9\ndecay = \"constant\"\nlearning_rate = 0.05\nasynchronous = \"threads\"\n";
    let config = Config::parse(config, &[]).unwrap();
    let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
    let engine = || experiment.cpu_engine(Arc::new(BurnNetwork::new(experiment.network.clone())));
    let known = plain_steps(&mut engine(), experiment.rounds(), 0.05);
    let (mut engine, mut archive) = (engine(), Archive::default());
    run(&experiment, &mut engine, Progress::start(1), &mut archive).unwrap();
    assert!(archive.0.len() > 20);
    for (progress, state) in &archive.0 {
        let done = progress.asynchronous.as_ref().unwrap().steps[0] as usize;
        for name in ["models", "velocities"] {
            let far = distance(state, &known[done - 1], name);
            assert!(far == 0.0, "{name} after {done} steps: {far}");
        }
    }
}

#[test]
fn a_run_on_threads_that_was_stopped_goes_on() {
    let experiment = prepare("gosgd", "");
    let model = || Arc::new(BurnNetwork::new(experiment.network.clone()));
    let mut engine = experiment.cpu_engine(model());
    let mut witness = Witness { stop: Some(60), ..Default::default() };
    let first = run(&experiment, &mut engine, Progress::start(8), &mut witness).unwrap();
    assert_eq!(first.summary.status, Status::Interrupted { round: 60 });
    let (progress, state) = witness.kept.unwrap();
    let weights: f64 = progress.scalars.iter().sum();
    assert!((weights - 8.0).abs() < 1e-9, "{weights}");
    let mut engine = experiment.cpu_engine(model());
    engine.restore(&state).unwrap();
    let rest = &mut Witness::default();
    let second = run(&experiment, &mut engine, progress, rest).unwrap().summary;
    assert_eq!((second.status, second.rounds), (Status::Finished, 360));
    assert!(second.mean_accuracy > 0.95, "{}", second.mean_accuracy);
}
