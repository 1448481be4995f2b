//! Asynchronous runs on threads: workers do not wait for all others. The tests do not measure time: a worker that
//! waited would wait until a timeout.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use upwash::config::Config;
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::NativeModel;
use upwash::engine::{Engine, Score, State};
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::Layout;
use upwash::run::{ControlFlow, Event, Observer, Progress, Status, Summary, TakeSnapshot, run};
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

/// Stops before round `stop_at` and takes a snapshot there.
#[derive(Default)]
struct Recorder {
    stop_at: Option<u64>,
    snapshot: Option<(Progress, State)>,
}

impl Observer for Recorder {
    fn observe(&mut self, _: &Event) -> ControlFlow {
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        if self.stop_at != Some(round) {
            return ControlFlow::Continue;
        }
        self.snapshot = Some(snapshot().unwrap());
        ControlFlow::Stop
    }
}

fn run_to_end(experiment: &Experiment, model: Arc<dyn Model>) -> Summary {
    let mut engine = experiment.cpu_engine(model);
    let start = Progress::start(experiment.workers());
    let result = run(experiment, &mut engine, start, &mut Recorder::default());
    result.unwrap().summary
}

#[test]
fn every_asynchronous_algorithm_learns_the_digits_on_threads() {
    for name in ASYNCHRONOUS {
        let experiment = prepare(name, "");
        let model = NativeModel::new(experiment.network.clone());
        let summary = run_to_end(&experiment, Arc::new(model));
        assert_eq!(summary.status, Status::Finished, "{name}");
        assert!(summary.mean_accuracy > 0.95, "{name}: {summary:?}");
        assert!(summary.averaged_model_accuracy > 0.95, "{name}: {summary:?}");
    }
}

/// A network that blocks gradients for one worker's images until the other workers have completed `required` gradients.
struct SlowModel {
    inner: NativeModel,
    slow_images: HashSet<Vec<u32>>,
    size: usize,
    required: u64,
    completed: Mutex<u64>,
    signal: Condvar,
    timeouts: AtomicU64,
}

/// The bits of an image, by which it is recognized.
fn key(pixels: &[f32]) -> Vec<u32> {
    pixels.iter().map(|pixel| pixel.to_bits()).collect()
}

impl SlowModel {
    fn new(experiment: &Experiment, worker: usize, required: u64) -> Self {
        let network = experiment.network.clone();
        let size = network.input.iter().product();
        let share = experiment.sampler.shards().images[worker].iter();
        let picks = share.map(|&image| upwash::data::Pick::whole(image));
        let images = experiment.data.scaling.batch(&experiment.data.train, picks);
        Self {
            inner: NativeModel::new(network),
            slow_images: images.pixels.chunks_exact(size).map(key).collect(),
            size,
            required,
            completed: Mutex::new(0),
            signal: Condvar::new(),
            timeouts: AtomicU64::new(0),
        }
    }
}

impl Model for SlowModel {
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
        if self.slow_images.contains(&key(&batch.pixels[..self.size])) {
            let too_few = |completed: &mut u64| *completed < self.required;
            let completed = self.completed.lock().unwrap();
            let minute = Duration::from_secs(60);
            let (_completed, waited) = self.signal.wait_timeout_while(completed, minute, too_few).unwrap();
            let timeouts = u64::from(waited.timed_out());
            self.timeouts.fetch_add(timeouts, Ordering::Relaxed);
        } else {
            *self.completed.lock().unwrap() += 1;
            self.signal.notify_all();
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

/// One worker's first gradient ends only after the seven others have completed 700. With a barrier, or if the worker
/// locked its model while it computes, this would time out.
#[test]
fn slow_worker_does_not_delay_the_others() {
    for (name, more) in [("ad-psgd", ""), ("gosgd", ""), ("async-easgd", ""), ("downpour", "staleness = 1000")] {
        let experiment = prepare(name, more);
        let slow = Arc::new(SlowModel::new(&experiment, 3, 700));
        let summary = run_to_end(&experiment, Arc::clone(&slow) as Arc<dyn Model>);
        assert_eq!(slow.timeouts.load(Ordering::Relaxed), 0, "{name}: the other workers waited");
        assert_eq!(summary.status, Status::Finished, "{name}");
    }
}

/// With bounded staleness, the others stop at the bound and wait for the slow worker.
#[test]
fn bounded_staleness_delays_workers_that_are_ahead() {
    let experiment = prepare("downpour", "staleness = 5");
    // Each of the seven others completes five gradients and no more while worker 3 has none.
    let slow = Arc::new(SlowModel::new(&experiment, 3, 7 * 5));
    let summary = run_to_end(&experiment, Arc::clone(&slow) as Arc<dyn Model>);
    assert_eq!(slow.timeouts.load(Ordering::Relaxed), 0);
    assert_eq!(summary.status, Status::Finished);
    let mut engine = experiment.cpu_engine(slow);
    let mut recorder = Recorder { stop_at: Some(4), ..Default::default() };
    run(&experiment, &mut engine, Progress::start(9), &mut recorder).unwrap();
    let steps = recorder.snapshot.unwrap().0.asynchronous.unwrap().steps;
    let training: Vec<u64> = steps[1..].to_vec(); // worker 0 is the server and takes no steps
    let (least, most) = (training.iter().min(), training.iter().max());
    assert!(most.unwrap() - least.unwrap() <= 5, "{training:?}");
}

/// Model and velocity of each worker in a checkpoint contain the same gradients. A single worker follows plain SGD,
/// which gives the expected values.
#[test]
fn checkpoint_has_models_and_velocities_of_the_same_step() {
    let config = "[graph]\ntopology = \"path:1\"\n[algorithm]\nname = \"ad-psgd\"\n[training]\nepochs = 1\n\
                  momentum = 0.9\ndecay = \"constant\"\nlearning_rate = 0.05\nasynchronous = \"threads\"\n";
    let config = Config::parse(config, &[]).unwrap();
    let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
    let engine = || experiment.cpu_engine(Arc::new(NativeModel::new(experiment.network.clone())));
    let known = plain_steps(&mut engine(), experiment.rounds(), 0.05);
    let (mut engine, mut archive) = (engine(), Archive::default());
    run(&experiment, &mut engine, Progress::start(1), &mut archive).unwrap();
    assert!(archive.0.len() > 20);
    for (progress, state) in &archive.0 {
        let done = progress.asynchronous.as_ref().unwrap().steps[0] as usize;
        for name in ["models", "velocities"] {
            let difference = distance(state, &known[done - 1], name);
            assert!(difference == 0.0, "{name} after {done} steps: {difference}");
        }
    }
}

#[test]
fn stopped_run_on_threads_resumes() {
    let experiment = prepare("gosgd", "");
    let model = || Arc::new(NativeModel::new(experiment.network.clone()));
    let mut engine = experiment.cpu_engine(model());
    let mut recorder = Recorder { stop_at: Some(60), ..Default::default() };
    let first = run(&experiment, &mut engine, Progress::start(8), &mut recorder).unwrap();
    assert_eq!(first.summary.status, Status::Interrupted { round: 60 });
    let (progress, state) = recorder.snapshot.unwrap();
    let weights: f64 = progress.scalars.iter().sum();
    assert!((weights - 8.0).abs() < 1e-9, "{weights}");
    let mut engine = experiment.cpu_engine(model());
    engine.restore(&state).unwrap();
    let rest = &mut Recorder::default();
    let second = run(&experiment, &mut engine, progress, rest).unwrap().summary;
    assert_eq!((second.status, second.rounds), (Status::Finished, 360));
    assert!(second.mean_accuracy > 0.95, "{}", second.mean_accuracy);
}
