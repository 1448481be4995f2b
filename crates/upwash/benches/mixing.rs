//! Measures exchanges against the memory bandwidth of the machine, each algorithm against D-PSGD, and whole rounds of
//! many workers.
//!
//! `cargo bench -p upwash` prints three tables.
//!
//! - Rounds: softmax regression on synthetic images with a hand-written model, workers on an 8-regular graph, with peak
//!   memory.
//! - Threads: gradients per second of eight workers, one of which takes ten times as long.
//! - Mixing: eight workers on L1, plus a server for algorithms that need one. `part of copy` compares D-PSGD with
//!   copying memory: mixing counts one read of every value of X and U and one write of every value of X; copying counts
//!   one read and one write per value. Both use all cores. The copy is 256 MB, far larger than any cache. Small models
//!   are partly mixed within the cache and can exceed 100 %.

use rayon::prelude::*;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upwash::WorkerId;
use upwash::algorithm::{ExchangeContext, Method, Registry, RowPlan, WorkerPlan, WorkerStats};
use upwash::config::Config;
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::Score;
use upwash::engine::{MixOptions, WorkerVectors, exchange};
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::{Layout, Slot};
use upwash::run::{ControlFlow, Event, Progress, run};
use upwash_testkit::row_plans;

const WITH_SERVER: [&str; 4] = ["easgd", "parameter-server", "async-easgd", "downpour"];

fn main() {
    // The peak memory of a process never decreases, so small benchmarks come first.
    rounds();
    slow_worker();
    mixing();
}

fn prepare(config: &str) -> Experiment {
    let config = Config::parse(config, &[]).expect("valid configuration");
    Experiment::prepare(config, &DataPaths::default()).expect("valid experiment")
}

fn mixing() {
    println!("eight workers on L1, {} threads", rayon::current_num_threads());
    let copy = copy_bandwidth(64 << 20);
    for parameters in [545_930, 25_000_000] {
        println!("\n{parameters} parameters        ms a round  of D-PSGD's  part of copy");
        let mut base = None;
        let registry = Registry::standard();
        let mut names: Vec<&str> = registry.iter().map(|known| known.name).collect();
        names.sort_by_key(|name| *name != "dpsgd"); // D-PSGD comes first: the others are relative to it
        for name in names {
            let graph = if WITH_SERVER.contains(&name) { "star:9" } else { "paper:L1" };
            let text = format!("[algorithm]\nname = \"{name}\"\n[graph]\ntopology = \"{graph}\"\n");
            let Some((time, exchanges)) = mixing_time(&prepare(&text), parameters) else {
                continue;
            };
            let ratio = time.as_secs_f64() / base.unwrap_or(time).as_secs_f64();
            base = base.or(Some(time));
            let moved = (3 * 8 * parameters * size_of::<f32>()) as f64;
            let part = 100.0 * moved / time.as_secs_f64() / copy;
            let part = if name == "dpsgd" { format!("{part:.0} %") } else { String::new() };
            println!(
                "{name:<22} {:>14.3} {ratio:>12.2} {part:>13}{}",
                1e3 * time.as_secs_f64(),
                if exchanges > 1 { "  (two exchanges)" } else { "" }
            );
        }
    }
}

/// The time of all exchanges of a round in which all workers communicate or, for an asynchronous algorithm, of one
/// pairwise update per worker.
fn mixing_time(experiment: &Experiment, parameters: usize) -> Option<(Duration, usize)> {
    let workers = experiment.workers();
    let state_vectors = experiment.method.state_vectors().len();
    let buffer = |value: f32| vec![vec![value; parameters]; workers];
    let (mut models, steps) = (buffer(0.5), buffer(0.001));
    let mut buffers: Vec<Vec<Vec<f32>>> = (0..state_vectors).map(|_| buffer(0.25)).collect();
    let all = all_plans(experiment);
    let all: Vec<Vec<RowPlan>> = all.iter().map(|plans| row_plans(plans)).collect();
    let time = fastest(|| {
        for plans in &all {
            let mut rows: Vec<Option<WorkerVectors<'_>>> = Vec::new();
            let mut state_vectors: Vec<_> = buffers.iter_mut().map(|rows| rows.iter_mut()).collect();
            for (model, step) in models.iter_mut().zip(&steps) {
                let state_vectors = state_vectors.iter_mut().filter_map(Iterator::next);
                let state_vectors = state_vectors.map(|row| &mut row[..]).collect();
                rows.push(Some(WorkerVectors { model, step, state_vectors }));
            }
            let rows = plans.iter().filter_map(|plan| rows[plan.row.0].take());
            exchange(rows.collect(), &[], plans, MixOptions::default());
        }
    });
    Some((time, all.len()))
}

fn all_plans(experiment: &Experiment) -> Vec<Vec<WorkerPlan>> {
    let workers = experiment.workers();
    match &experiment.method {
        Method::Synchronous(algorithm) => {
            // The round with the most exchanges.
            let round = (0..200u64)
                .max_by_key(|k| algorithm.exchanges(*k).len() * 100_000 - *k as usize)
                .map(|k| experiment.schedule.round(k))
                .expect("at least one round");
            let stats = |i: usize| WorkerStats { loss: Some((i * 5 % 8) as f64), degree: round.degree(i), scalar: 1.0 };
            let stats: Vec<WorkerStats> = (0..workers).map(stats).collect();
            let context = |exchange| ExchangeContext {
                exchange,
                momentum: 0.9,
                server: experiment.server,
                ..ExchangeContext::new(&round, 0.1)
            };
            let exchanges = algorithm.exchanges(round.index()).into_iter().enumerate();
            exchanges.map(|(index, kind)| kind.plans(&**algorithm, &context(index), &stats)).collect()
        }
        Method::Asynchronous(algorithm) => {
            let update = |worker: WorkerId| {
                let step = upwash::algorithm::AsyncStep {
                    worker,
                    step: 0,
                    neighbors: experiment.graph.neighbors(worker.0),
                    server: experiment.server,
                    training: experiment.training_workers().len(),
                    scalar: 1.0,
                    seed: 1,
                };
                let partner = algorithm.partner(&step).map(|partner| (partner, 1.0));
                let mut plans = algorithm.update(&step, partner).plans;
                plans.sort_by_key(|plan| plan.worker);
                plans
            };
            experiment.training_workers().into_iter().map(update).collect()
        }
    }
}

/// Hand-written softmax regression: so small that the cost of everything around the gradient is visible.
struct Softmax {
    layout: Layout,
    inputs: usize,
}

const CLASSES: usize = 10;

impl Softmax {
    fn new(inputs: usize) -> Self {
        let slot = Slot { name: "weights".into(), shape: vec![CLASSES, inputs], offset: 0 };
        let layout = Layout { parameters: vec![slot], statistics: vec![] };
        Self { layout, inputs }
    }

    fn logits(&self, parameters: &[f32], image: &[f32]) -> Vec<f32> {
        let rows = parameters.chunks_exact(self.inputs);
        rows.map(|row| row.iter().zip(image).map(|(w, x)| w * x).sum()).collect()
    }
}

impl Model for Softmax {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self, _: u64, _: u64) -> Vec<f32> {
        vec![0.0; CLASSES * self.inputs]
    }

    fn start_statistics(&self) -> Vec<f32> {
        vec![]
    }

    fn gradient(&self, x: &[f32], _: &mut [f32], batch: &Batch, gradient: &mut [f32]) -> Score {
        gradient.fill(0.0);
        let (mut loss, mut correct) = (0.0, 0);
        let count = batch.labels.len() as f32;
        for (image, label) in batch.pixels.chunks_exact(self.inputs).zip(&batch.labels) {
            let logits = self.logits(x, image);
            let most = logits.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = logits.iter().map(|l| (l - most).exp()).sum();
            loss += f64::from(sum.ln() + most - logits[usize::from(*label)]);
            correct += usize::from(logits[usize::from(*label)] == most);
            for (class, row) in gradient.chunks_exact_mut(self.inputs).enumerate() {
                let hit = f32::from(u8::from(class == usize::from(*label)));
                let slope = ((logits[class] - most).exp() / sum - hit) / count;
                row.iter_mut().zip(image).for_each(|(g, x)| *g += slope * x);
            }
        }
        Score { loss: loss / f64::from(count), correct, examples: batch.labels.len(), clipped: 0 }
    }

    fn score(&self, x: &[f32], _: &[f32], batch: &Batch) -> Score {
        self.gradient(x, &mut [], batch, &mut vec![0.0; x.len()])
    }

    fn batch_statistics(&self, _: &[f32], _: &Batch) -> Vec<f32> {
        vec![]
    }
}

fn rounds() {
    println!("\nrounds of softmax regression (640 parameters, batch 8), 8 links per worker");
    println!("algorithm      workers   rounds/s   us a worker   peak MB");
    for workers in [8, 64, 512, 4096] {
        for name in ["dpsgd", "al-dsgd", "ad-psgd"] {
            let images = 8 * workers;
            let links = if workers == 8 { "complete:8".into() } else { format!("regular:{workers},degree=8,seed=1") };
            // Asynchronous algorithms have no mixing weights.
            let weights = match name {
                "ad-psgd" => "",
                _ => "weights = \"metropolis\"\n",
            };
            let config = format!(
                "[data]\nname = \"synthetic:shape=1x8x8,test=10,train={images}\"\npartition = \"iid\"\n\
                 [graph]\ntopology = \"{links}\"\n{weights}[algorithm]\nname = \"{name}\"\n\
                 [training]\nepochs = 1000000\nbatch_size = 8\ntest_every = 1000000\nmomentum = 0.0\n"
            );
            let experiment = prepare(&config);
            let mut engine = experiment.cpu_engine(Arc::new(Softmax::new(64)));
            let (mut began, mut count) = (None, 0u32);
            let mut clock = |event: &Event| {
                if let Event::Round { .. } = event {
                    // The first rounds are a warm-up.
                    count += 1;
                    if count == 3 {
                        began = Some(Instant::now());
                    }
                }
                let long = began.is_some_and(|began| began.elapsed() > Duration::from_secs(1));
                if long { ControlFlow::Stop } else { ControlFlow::Continue }
            };
            run(&experiment, &mut engine, Progress::start(workers), &mut clock).expect("successful run");
            let seconds = began.map_or(1.0, |began| began.elapsed().as_secs_f64());
            let rate = f64::from(count.saturating_sub(3).max(1)) / seconds;
            println!(
                "{name:<14} {workers:>7} {rate:>10.1} {:>13.1} {:>9.0}",
                1e6 / rate / workers as f64,
                peak_megabytes()
            );
        }
    }
}

/// Gradients per second of eight workers, in rounds and on threads, with equal workers or with one slowed down ten
/// times.
fn slow_worker() {
    println!("\neight workers of softmax regression (30,720 parameters, batch 32), gradients per second");
    println!("                               all equal  one 10 x slower      relative rate");
    for (what, algorithm) in [
        ("dpsgd, in rounds", "name = \"dpsgd\""),
        ("all-reduce, in rounds", "name = \"all-reduce\""),
        ("ad-psgd, on threads", "name = \"ad-psgd\""),
        ("gosgd, on threads", "name = \"gosgd\""),
    ] {
        let rates = ["", "slow = [[3, 10.0]]\nslow_for_real = true\n"].map(|slow| {
            let threads = if what.ends_with("threads") { "asynchronous = \"threads\"\n" } else { "" };
            let config = format!(
                "[data]\nname = \"synthetic:shape=3x32x32,test=10,train=2048\"\n[algorithm]\n{algorithm}\n\
                 [training]\nepochs = 1000000\nbatch_size = 32\ntest_every = 1000000\nmomentum = 0.0\nlearning_rate = 0.001\n\
                 {threads}[clock]\n{slow}"
            );
            let experiment = prepare(&config);
            let mut engine = experiment.cpu_engine(Arc::new(Softmax::new(3 * 32 * 32)));
            let (mut began, mut count) = (None, 0u32);
            let mut clock = |event: &Event| {
                if let Event::Round { .. } = event {
                    count += 1;
                    began = began.or(Some((Instant::now(), count)));
                }
                let long = began.is_some_and(|(began, _)| began.elapsed() > Duration::from_secs(3));
                if long { ControlFlow::Stop } else { ControlFlow::Continue }
            };
            run(&experiment, &mut engine, Progress::start(8), &mut clock).expect("successful run");
            let (began, first) = began.expect("at least one round");
            f64::from(8 * (count - first)) / began.elapsed().as_secs_f64()
        });
        println!("{what:<28} {:>11.0} {:>16.0} {:>17.0} %", rates[0], rates[1], 100.0 * rates[1] / rates[0]);
    }
}

fn peak_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) / 1e3
}

/// Bytes per second that a plain copy of `count` values reads and writes on all cores.
fn copy_bandwidth(count: usize) -> f64 {
    let from = vec![1.0f32; count];
    let mut to = vec![0.0f32; count];
    let time = fastest(|| {
        let pieces = to.par_chunks_mut(1 << 16).zip(from.par_chunks(1 << 16));
        pieces.for_each(|(to, from)| to.copy_from_slice(from));
        black_box(&to);
    });
    (2 * count * size_of::<f32>()) as f64 / time.as_secs_f64()
}

/// The shortest time of many runs, after a warm-up run.
fn fastest(mut work: impl FnMut()) -> Duration {
    work();
    let began = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 5 || (began.elapsed() < Duration::from_secs(2) && runs < 200) {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed());
        runs += 1;
    }
    best
}
