//! The GPU beside the CPU, and beside itself.

use crate::common::{Witness, compare};
use crate::memory::too_large;
use crate::setup::{F32, Table, complete, config, fleet, parts_of, prepare, turns};
use std::sync::Arc;
use upwash::RowIndex;
use upwash::algorithm::{self, Dpsgd, LocalSgd, Registry};
use upwash::engine::EngineSpec;
use upwash::engine::share;
use upwash::engine::{Engine, State};
use upwash::engine::{MixOptions, RemoteRow};
use upwash::experiment::Experiment;
use upwash::run::{Progress, run};
use upwash_testkit::row_plans;
use upwash_torch::tch::{self, Tensor};
use upwash_torch::{BoundModel, CudaEngine, CudaOptions, TorchCpuModel, TorchModel, TorchNetwork};
const ALGORITHMS: [(&str, &str); 4] = [
    ("D-PSGD", "name = \"dpsgd\""),
    ("MATCHA", "name = \"matcha\""),
    ("AL-DSGD over D-PSGD", "name = \"al-dsgd\""),
    ("AL-DSGD over MATCHA, overlap", "base = \"matcha\"\noverlap = true"),
];

pub(crate) fn check() {
    let mut table = Table(true);
    for (name, algorithm) in ALGORITHMS {
        let rotating = "momentum = 0.0\ndecay = \"cosine\"\nwarmup_epochs = 0.2\n\
                        statistics = \"averaged\"\n[graph]\ncopies = 3\n";
        let experiment = prepare(&config("resnet20", algorithm, 16, 20, rotating));
        for (kind, options) in [("f32", F32), ("bf16", CudaOptions::default())] {
            let graph = complete(&experiment, &mut fleet(&experiment, options));
            let eager = CudaOptions { eager: true, ..options };
            let eager = complete(&experiment, &mut fleet(&experiment, eager));
            let what = format!("{name}, {kind}: replayed = eager, to the bit");
            table.line(&what, "", graph == eager);
            if kind == "f32" {
                let network = TorchNetwork::new(experiment.network.clone());
                let model = TorchCpuModel::new(Arc::new(network), experiment.network.input);
                let mut cpu = experiment.cpu_engine(Arc::new(model));
                let mut gpu = fleet(&experiment, options);
                let apart = compare(&experiment, 20, &mut cpu, &mut gpu);
                let what = format!("{name}: GPU and CPU, 20 rounds, worst loss");
                table.line(&what, &format!("{:.1e}", apart.loss), apart.loss < 1e-4);
                let what = format!("{name}: GPU and CPU, 20 rounds, worst change");
                table.line(&what, &format!("{:.1e}", apart.change), apart.change < 0.05);
            }
        }
    }
    every_algorithm(&mut table);
    remote_rows(&mut table);
    let experiment = prepare(&config("resnet20", "base = \"matcha\"", 16, 20, ""));
    let whole = complete(&experiment, &mut fleet(&experiment, F32));
    for streams in [1, 3] {
        let fewer = CudaOptions { streams: Some(streams), ..F32 };
        let found = complete(&experiment, &mut fleet(&experiment, fewer));
        let what = format!("{streams} streams = 8 streams, to the bit");
        table.line(&what, "", found == whole);
    }
    let control = "control: other batches give other losses, the same the same";
    table.line(control, "", batches_take_effect(&experiment));

    let mut witness = Witness { stop: Some(7), ..Default::default() };
    let mut first = fleet(&experiment, F32);
    run(&experiment, &mut first, Progress::start(8), &mut witness).expect("a run");
    let (progress, state) = witness.kept.take().expect("a stop");
    let mut second = fleet(&experiment, F32);
    second.restore(&state).expect("a state that fits");
    let mut rest = Witness::default();
    run(&experiment, &mut second, progress, &mut rest).expect("a run");
    let same = second.state().expect("an engine that works") == whole.1 && rest.losses[..] == whole.0[7..];
    table.line("stopped and resumed = never stopped, to the bit", "", same);
    shared_engine(&mut table);
    peeking(&mut table);
    too_large(&mut table);
    if !table.0 {
        std::process::exit(1);
    }
}

/// Runs that share one engine, one of which diverges, beside the same apart.
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
    let spec = EngineSpec::join(&specs).expect("what can share an engine");
    let network = TorchNetwork::new(spec.network.clone());
    let mut engine = CudaEngine::new(&spec, &network, F32).expect("a fleet");
    let (owner, shares) = share(&specs, &engine.layout().clone());
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter()
            .zip(shares)
            .map(|(experiment, mut share)| scope.spawn(move || complete(experiment, &mut share)))
            .collect();
        owner.serve(&mut engine);
        threads.into_iter().map(|t| t.join().expect("a run")).collect()
    });
    drop(engine);
    for (experiment, (losses, state)) in all.iter().zip(found) {
        let (known, expected) = complete(experiment, &mut fleet(experiment, F32));
        let bits = |state: &State| -> Vec<u32> {
            state.iter().flat_map(|(_, array)| array.iter().map(|x| x.to_bits())).collect()
        };
        let losses_of = |losses: &[Vec<f64>]| -> Vec<u64> { losses.iter().flatten().map(|x| x.to_bits()).collect() };
        // A run that diverged has models of the round before, and statistics that went on.
        let diverged = losses.len() < 20;
        let same = losses_of(&losses) == losses_of(&known) && (diverged || bits(&state) == bits(&expected));
        let end = if diverged { " (diverged)" } else { "" };
        let what = format!("{}{end}: together = apart, to the bit", experiment.algorithm_name());
        table.line(&what, "", same);
    }
}

/// A network that reads a value back, which no recording can have.
struct Peeking(TorchNetwork);
struct PeekingBound(Box<dyn BoundModel>);

impl TorchModel for Peeking {
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
        Box::new(PeekingBound(self.0.bind(parameters, statistics)))
    }
}

impl BoundModel for PeekingBound {
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

/// What cannot be recorded is launched anew, and says so.
fn peeking(table: &mut Table) {
    let experiment = prepare(&config("resnet20", "name = \"dpsgd\"", 16, 10, ""));
    let network = TorchNetwork::new(experiment.network.clone());
    let spec = experiment.engine_spec();
    let made = CudaEngine::new(&spec, &Peeking(network), F32);
    let mut engine = made.expect("a fleet without a graph");
    let said = engine.notice().is_some_and(|notice| notice.contains("cannot be recorded"));
    println!("    {}", engine.notice().unwrap_or("no notice"));
    let found = complete(&experiment, &mut engine);
    let known = complete(&experiment, &mut fleet(&experiment, F32));
    let what = "a network that reads values back: launched anew, the same bits";
    table.line(what, "", said && found == known);
}

/// Every algorithm on the small CNN, GPU and CPU side by side. Without rounds, left to themselves.
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
        let mut gpu = fleet(&experiment, F32);
        let apart = if experiment.method.synchronous().is_some() {
            let apart = compare(&experiment, 20, &mut cpu, &mut gpu);
            apart.loss.max(apart.change)
        } else {
            let (cpu, gpu) = (complete(&experiment, &mut cpu), complete(&experiment, &mut gpu));
            let losses = cpu.0.iter().flatten().zip(gpu.0.iter().flatten());
            let both = losses.filter(|(a, _)| !a.is_nan());
            both.map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
        };
        let what = format!("{}: GPU and CPU, small CNN", experiment.algorithm_name());
        // Left to themselves they drift apart: see `compare`.
        let most = if experiment.method.synchronous().is_some() { 1e-3 } else { 1e-2 };
        table.line(&what, &format!("{apart:.1e}"), apart < most);
    }
}

/// What arrives from other processes counts as what is here: the first four of eight workers with the
/// others as remote_rows.
fn remote_rows(table: &mut Table) {
    let more = "statistics = \"averaged\"\n";
    let experiment = prepare(&config("resnet20", "name = \"dpsgd\"", 16, 20, more));
    let mut whole = fleet(&experiment, F32);
    let four: Vec<usize> = (0..4).collect();
    let network = TorchNetwork::new(experiment.network.clone());
    let spec = experiment.engine_spec().only(&four);
    let mut half = CudaEngine::new(&spec, &network, F32).expect("a fleet");
    whole.step(&turns(8, 3)).expect("an engine that works");
    half.step(&turns(4, 3)).expect("an engine that works");
    let parts = parts_of(&Dpsgd::default(), &experiment);
    let options = MixOptions::default();
    let message = algorithm::Outgoing::stepped();
    let received_rows: Vec<RemoteRow> = (4..8)
        .map(|worker| RemoteRow {
            messages: vec![whole.outgoing(RowIndex(worker), &message, options).expect("an engine that works").into()],
        })
        .collect();
    let statistics = (4..8).map(|worker| whole.statistics(RowIndex(worker)).expect("an engine that works")).collect();
    let mean: Vec<Vec<(RowIndex, f64)>> = vec![(0..8).map(|i| (RowIndex(i), 0.125)).collect(); 8];
    half.mix_statistics(&mean[..4], statistics).expect("an engine that works");
    half.exchange(&row_plans(&parts[..4]), received_rows, options).expect("an engine that works");
    whole.mix_statistics(&mean, vec![]).expect("an engine that works");
    whole.exchange(&row_plans(&parts), vec![], options).expect("an engine that works");
    let (whole, half) = (whole.state().expect("an engine that works"), half.state().expect("an engine that works"));
    let mut worst = 0.0f32;
    for ((_, all), (_, some)) in whole.iter().zip(&half) {
        let pairs = some.iter().zip(all);
        worst = pairs.map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
    }
    let what = "models and statistics of other processes are mixed as those here";
    table.line(what, &format!("{worst:.1e}"), worst < 1e-6);
}

/// Whether a capture takes new inputs: with stale ones, rounds 0 and 1 would have one loss.
fn batches_take_effect(experiment: &Experiment) -> bool {
    let mut engine = fleet(experiment, F32);
    let mut once = |batch| {
        let scores = engine.step(&turns(8, batch)).expect("an engine that works");
        let losses: Vec<f64> = scores.iter().flatten().map(|s| s.loss).collect();
        let alone = LocalSgd { period: u64::MAX };
        engine
            .exchange(&row_plans(&parts_of(&alone, experiment)), vec![], MixOptions::default())
            .expect("an engine that works");
        losses
    };
    let (first, second, again) = (once(0), once(1), once(0));
    first != second && first == again
}
