//! Checks the GPU engine against the CPU engine, and against itself with other options.

use crate::common::{Recorder, compare};
use crate::memory::too_large;
use crate::setup::{F32, Table, config, cuda_engine, gradient_tasks, neighbor_plans, prepare, run_to_end};
use std::sync::Arc;
use upwash::algorithm::{self, Dpsgd, LocalSgd, Registry};
use upwash::engine::EngineSpec;
use upwash::engine::share;
use upwash::engine::{Engine, State};
use upwash::engine::{MixOptions, RemoteRow};
use upwash::experiment::Experiment;
use upwash::run::{Progress, run};
use upwash::{RowIndex, WorkerId};
use upwash_testkit::row_plans;
use upwash_torch::tch::{self, Tensor};
use upwash_torch::{BoundModel, CudaEngine, CudaOptions, TorchCpuModel, TorchModel, TorchNetwork};

const ALGORITHMS: [(&str, &str); 4] = [
    ("D-PSGD", "name = \"dpsgd\""),
    ("MATCHA", "name = \"matcha\""),
    ("AL-DSGD over D-PSGD", "name = \"al-dsgd\""),
    ("AL-DSGD over MATCHA, overlap", "base = \"matcha\"\noverlap = true"),
];

/// Runs all checks; exits with an error if one fails.
pub(crate) fn check() {
    let mut table = Table(true);
    for (name, algorithm) in ALGORITHMS {
        let training = "momentum = 0.0\ndecay = \"cosine\"\nwarmup_epochs = 0.2\n\
                        statistics = \"averaged\"\n[graph]\ncopies = 3\n";
        let experiment = prepare(&config("resnet20", algorithm, 16, 20, training));
        for (kind, options) in [("f32", F32), ("bf16", CudaOptions::default())] {
            let graph = run_to_end(&experiment, &mut cuda_engine(&experiment, options));
            let eager = CudaOptions { eager: true, ..options };
            let eager = run_to_end(&experiment, &mut cuda_engine(&experiment, eager));
            let what = format!("{name}, {kind}: replayed and eager are bit-identical");
            table.line(&what, "", graph == eager);
            if kind == "f32" {
                let network = TorchNetwork::new(experiment.network.clone());
                let model = TorchCpuModel::new(Arc::new(network), experiment.network.input);
                let mut cpu = experiment.cpu_engine(Arc::new(model));
                let mut gpu = cuda_engine(&experiment, options);
                let deviation = compare(&experiment, 20, &mut cpu, &mut gpu);
                let what = format!("{name}: GPU vs CPU, 20 rounds, loss deviation");
                table.line(&what, &format!("{:.1e}", deviation.loss), deviation.loss < 1e-4);
                let what = format!("{name}: GPU vs CPU, 20 rounds, model deviation");
                table.line(&what, &format!("{:.1e}", deviation.change), deviation.change < 0.05);
            }
        }
    }
    every_algorithm(&mut table);
    remote_rows(&mut table);
    let experiment = prepare(&config("resnet20", "base = \"matcha\"", 16, 20, ""));
    let whole = run_to_end(&experiment, &mut cuda_engine(&experiment, F32));
    for streams in [1, 3] {
        let fewer = CudaOptions { streams: Some(streams), ..F32 };
        let found = run_to_end(&experiment, &mut cuda_engine(&experiment, fewer));
        let what = format!("{streams} and 8 streams are bit-identical");
        table.line(&what, "", found == whole);
    }
    let control = "control: losses differ between batches and repeat for equal batches";
    table.line(control, "", batches_take_effect(&experiment));

    let mut recorder = Recorder { stop_at: Some(7), ..Default::default() };
    let mut first = cuda_engine(&experiment, F32);
    run(&experiment, &mut first, Progress::start(8), &mut recorder).expect("the run should not fail");
    let (progress, state) = recorder.snapshot.take().expect("the run should have stopped");
    let mut second = cuda_engine(&experiment, F32);
    second.restore(&state).expect("the state should fit the engine");
    let mut rest = Recorder::default();
    run(&experiment, &mut second, progress, &mut rest).expect("the run should not fail");
    let same = second.state().expect("the engine should not fail") == whole.1 && rest.losses[..] == whole.0[7..];
    table.line("resumed and uninterrupted runs are bit-identical", "", same);
    shared_engine(&mut table);
    uncapturable_network(&mut table);
    too_large(&mut table);
    if !table.0 {
        std::process::exit(1);
    }
}

/// Compares runs that share one engine, one of which diverges, with the same runs on separate engines.
fn shared_engine(table: &mut Table) {
    let experiments: Vec<Experiment> = [
        ("name = \"dpsgd\"", ""),
        ("base = \"choco\"", "seed"),
        ("name = \"all-reduce\"", "diverges"),
        ("name = \"d2\"", ""),
    ]
    .map(|(algorithm, what)| {
        let text = config("resnet20", algorithm, 16, 20, "statistics = \"averaged\"\n");
        let text = match what {
            "diverges" => text.replace("learning_rate = 0.01", "learning_rate = 1e9"),
            "seed" => format!("seed = 7\n{text}"),
            _ => text,
        };
        prepare(&text)
    })
    .into_iter()
    .collect();
    let all: Vec<&Experiment> = experiments.iter().collect();
    let specs: Vec<EngineSpec> = experiments.iter().map(Experiment::engine_spec).collect();
    let spec = EngineSpec::join(&specs).expect("these experiments should be able to share an engine");
    let network = TorchNetwork::new(spec.network.clone());
    let mut engine = CudaEngine::new(&spec, &network, F32).expect("the engine should be created");
    let (host, shares) = share(&specs, &engine.layout().clone());
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter()
            .zip(shares)
            .map(|(experiment, mut share)| scope.spawn(move || run_to_end(experiment, &mut share)))
            .collect();
        host.serve(&mut engine);
        threads.into_iter().map(|t| t.join().expect("the run should not fail")).collect()
    });
    drop(engine);
    for (experiment, (losses, state)) in all.iter().zip(found) {
        let (known, expected) = run_to_end(experiment, &mut cuda_engine(experiment, F32));
        let bits = |state: &State| -> Vec<u32> {
            state.iter().flat_map(|(_, array)| array.iter().map(|x| x.to_bits())).collect()
        };
        let losses_of = |losses: &[Vec<f64>]| -> Vec<u64> { losses.iter().flatten().map(|x| x.to_bits()).collect() };
        // A run that diverged has the models of the previous round, but later statistics.
        let diverged = losses.len() < 20;
        let same = losses_of(&losses) == losses_of(&known) && (diverged || bits(&state) == bits(&expected));
        let end = if diverged { " (diverged)" } else { "" };
        let what = format!("{}{end}: shared and separate engines are bit-identical", experiment.algorithm_name());
        table.line(&what, "", same);
    }
}

/// A network that reads a value back to the host, which cannot be captured in a CUDA graph.
struct ReadingBack(TorchNetwork);
struct BoundReadingBack(Box<dyn BoundModel>);

impl TorchModel for ReadingBack {
    fn layout(&self) -> &upwash::model::Layout {
        self.0.layout()
    }
    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        TorchModel::start(&self.0, seed, worker)
    }
    fn start_statistics(&self) -> Vec<f32> {
        TorchModel::start_statistics(&self.0)
    }
    fn bind(&self, parameters: &[Tensor], statistics: &[Tensor]) -> Box<dyn BoundModel> {
        Box::new(BoundReadingBack(self.0.bind(parameters, statistics)))
    }
}

impl BoundModel for BoundReadingBack {
    fn leaves(&self) -> &[Tensor] {
        self.0.leaves()
    }
    fn train(&self, images: Tensor) -> Tensor {
        let logits = self.0.train(images);
        std::hint::black_box(logits.sum(tch::Kind::Float).double_value(&[]));
        logits
    }
    fn score(&self, images: Tensor) -> Tensor {
        self.0.score(images)
    }
    fn batch_statistics(&self, images: Tensor) -> Vec<Tensor> {
        self.0.batch_statistics(images)
    }
}

/// Checks that a network that cannot be captured is launched eagerly, with a notice.
fn uncapturable_network(table: &mut Table) {
    let experiment = prepare(&config("resnet20", "name = \"dpsgd\"", 16, 10, ""));
    let network = TorchNetwork::new(experiment.network.clone());
    let spec = experiment.engine_spec();
    let engine = CudaEngine::new(&spec, &ReadingBack(network), F32);
    let mut engine = engine.expect("an engine without a graph should be created");
    let noticed = engine.notice().is_some_and(|notice| notice.contains("cannot capture a CUDA graph"));
    println!("    {}", engine.notice().unwrap_or("no notice"));
    let found = run_to_end(&experiment, &mut engine);
    let known = run_to_end(&experiment, &mut cuda_engine(&experiment, F32));
    let what = "network that reads values back: launched eagerly, bit-identical";
    table.line(what, "", noticed && found == known);
}

/// Compares GPU and CPU for every algorithm on the small CNN: round by round, or over whole runs if the algorithm is
/// asynchronous.
fn every_algorithm(table: &mut Table) {
    let mut options: Vec<String> =
        Registry::standard().iter().map(|known| format!("name = \"{}\"", known.name)).collect();
    let compressors = ["random-k", "sign", "eight-bit"];
    options.extend(compressors.map(|kind| format!("name = \"choco\"\ncompressor = \"{kind}\"")));
    options.push("name = \"slowmo\"\nbase = \"d2\"\nslow_period = 3".into());
    for algorithm in options {
        let with_server = ["easgd", "parameter-server", "downpour"];
        let star = with_server.iter().any(|name| algorithm.contains(name));
        let graph = if star { "[graph]\ntopology = \"star:9\"\n" } else { "" };
        let more = format!("momentum = 0.9\n{graph}");
        let experiment = prepare(&config("cnn", &algorithm, 16, 20, &more));
        let network = TorchNetwork::new(experiment.network.clone());
        let model = TorchCpuModel::new(Arc::new(network), experiment.network.input);
        let mut cpu = experiment.cpu_engine(Arc::new(model));
        let mut gpu = cuda_engine(&experiment, F32);
        let difference = if experiment.method.synchronous().is_some() {
            let deviation = compare(&experiment, 20, &mut cpu, &mut gpu);
            deviation.loss.max(deviation.change)
        } else {
            let (cpu, gpu) = (run_to_end(&experiment, &mut cpu), run_to_end(&experiment, &mut gpu));
            let losses = cpu.0.iter().flatten().zip(gpu.0.iter().flatten());
            let defined = losses.filter(|(a, _)| !a.is_nan());
            defined.map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
        };
        let what = format!("{}: GPU vs CPU, small CNN", experiment.algorithm_name());
        // Whole runs drift apart: see `compare`.
        let limit = if experiment.method.synchronous().is_some() { 1e-3 } else { 1e-2 };
        table.line(&what, &format!("{difference:.1e}"), difference < limit);
    }
}

/// Checks that remote rows are mixed like local rows: compares eight local workers with four local workers and the
/// other four as remote rows.
fn remote_rows(table: &mut Table) {
    let more = "statistics = \"averaged\"\n";
    let experiment = prepare(&config("resnet20", "name = \"dpsgd\"", 16, 20, more));
    let mut whole = cuda_engine(&experiment, F32);
    let four: Vec<WorkerId> = WorkerId::all(4).collect();
    let network = TorchNetwork::new(experiment.network.clone());
    let spec = experiment.engine_spec().only(&four);
    let mut half = CudaEngine::new(&spec, &network, F32).expect("the engine should be created");
    whole.step(&gradient_tasks(8, 3)).expect("the engine should not fail");
    half.step(&gradient_tasks(4, 3)).expect("the engine should not fail");
    let plans = neighbor_plans(&Dpsgd::default(), &experiment);
    let options = MixOptions::default();
    let message = algorithm::Outgoing::stepped();
    let received_rows: Vec<RemoteRow> = (4..8)
        .map(|worker| RemoteRow {
            messages: vec![
                whole.outgoing(RowIndex(worker), &message, options).expect("the engine should not fail").into(),
            ],
        })
        .collect();
    let statistics =
        (4..8).map(|worker| whole.statistics(RowIndex(worker)).expect("the engine should not fail")).collect();
    let mean: Vec<Vec<(RowIndex, f64)>> = vec![(0..8).map(|i| (RowIndex(i), 0.125)).collect(); 8];
    half.mix_statistics(&mean[..4], statistics).expect("the engine should not fail");
    half.exchange(&row_plans(&plans[..4]), received_rows, options).expect("the engine should not fail");
    whole.mix_statistics(&mean, vec![]).expect("the engine should not fail");
    whole.exchange(&row_plans(&plans), vec![], options).expect("the engine should not fail");
    let (whole, half) =
        (whole.state().expect("the engine should not fail"), half.state().expect("the engine should not fail"));
    let mut worst = 0.0f32;
    for ((_, all), (_, some)) in whole.iter().zip(&half) {
        let pairs = some.iter().zip(all);
        worst = pairs.map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
    }
    let what = "models and statistics of remote rows are mixed like local ones";
    table.line(what, &format!("{worst:.1e}"), worst < 1e-6);
}

/// Whether a replay uses new inputs: with stale inputs, rounds 0 and 1 would have the same loss.
fn batches_take_effect(experiment: &Experiment) -> bool {
    let mut engine = cuda_engine(experiment, F32);
    let mut losses_of = |batch| {
        let scores = engine.step(&gradient_tasks(8, batch)).expect("the engine should not fail");
        let losses: Vec<f64> = scores.iter().flatten().map(|s| s.loss).collect();
        let no_exchange = LocalSgd { period: u64::MAX };
        engine
            .exchange(&row_plans(&neighbor_plans(&no_exchange, experiment)), vec![], MixOptions::default())
            .expect("the engine should not fail");
        losses
    };
    let (first, second, again) = (losses_of(0), losses_of(1), losses_of(0));
    first != second && first == again
}
