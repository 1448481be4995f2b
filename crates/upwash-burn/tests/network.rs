//! Networks on Burn: gradients against finite differences, statistics against values computed by hand, and training.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use upwash::RowIndex;
use upwash::algorithm::{AlDsgd, Algorithm, Dpsgd, Exchange, ExchangeContext, Variant, WorkerStats};
use upwash::config::Config;
use upwash::data::Batch;
use upwash::engine::MixOptions;
use upwash::engine::{CpuEngine, Model};
use upwash::engine::{Engine, GradientTask, Split};
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::{Layer, Network};
use upwash_burn::BurnNetwork;
use upwash_testkit::{row_plans, rows};
use upwash_topology::random::Stream;
use upwash_topology::{GraphSpec, Schedule, Weights};

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut stream = Stream::new(seed, "test", &[]);
    (0..count).map(|_| stream.normal() as f32).collect()
}

/// A network with every kind of layer on images of 6x6; with or without the layers that have kinks.
fn everything(kinks: bool) -> Network {
    let relu = || if kinks { vec![Layer::Relu] } else { vec![] };
    let conv =
        |inputs, outputs, size, stride, bias| Layer::Conv { inputs, outputs, size, stride, padding: size / 2, bias };
    let body = [vec![Layer::BatchNorm { channels: 4 }], relu(), vec![conv(4, 6, 3, 2, true)]].concat();
    Network {
        input: [2, 6, 6],
        classes: 3,
        layers: [
            vec![
                conv(2, 4, 3, 1, false),
                Layer::Residual { body, shortcut: vec![conv(4, 6, 1, 2, true)] },
                Layer::Residual { body: vec![conv(6, 6, 1, 1, false)], shortcut: vec![] },
            ],
            relu(),
            if kinks { vec![Layer::MaxPool { size: 3 }] } else { vec![] },
            vec![Layer::GlobalAverage, Layer::Linear { inputs: 6, outputs: 3 }],
        ]
        .concat(),
    }
}

#[test]
fn gradients_match_finite_differences() {
    // If the loss has kinks, steps must be small, and single precision is coarse for small steps.
    for (kinks, length, tolerance) in [(false, 1e-3, 1e-3), (true, 1e-4, 2e-2)] {
        let model = BurnNetwork::new(everything(kinks));
        let batch = Batch { pixels: noise(1, 5 * 72), labels: vec![0, 1, 2, 1, 0] };
        let parameters = model.start(3, 0);
        let loss = |parameters: &[f32]| {
            let mut unused = vec![0.0; model.layout().parameter_count()];
            model.gradient(parameters, &mut model.start_statistics(), &batch, &mut unused).loss
        };
        let mut gradient = vec![0.0; model.layout().parameter_count()];
        model.gradient(&parameters, &mut model.start_statistics(), &batch, &mut gradient);
        for seed in 0..20 {
            let direction = noise(100 + seed, parameters.len());
            let moved = |by: f32| {
                let step = |(x, d): (&f32, &f32)| x + by * d;
                loss(&parameters.iter().zip(&direction).map(step).collect::<Vec<f32>>())
            };
            let slope = (moved(length) - moved(-length)) / f64::from(2.0 * length);
            let product = |(g, d): (&f32, &f32)| f64::from(*g) * f64::from(*d);
            let found: f64 = gradient.iter().zip(&direction).map(product).sum();
            assert!((slope - found).abs() < tolerance, "kinks {kinks}, seed {seed}: {found} instead of {slope}");
        }
    }
}

#[test]
fn running_statistics_use_momentum_0_1_and_the_unbiased_variance() {
    // A batch-norm layer after an identity layer: its input is the image itself.
    let identity = Layer::Conv { inputs: 1, outputs: 1, size: 1, stride: 1, padding: 0, bias: false };
    let layers =
        vec![identity, Layer::BatchNorm { channels: 1 }, Layer::Flatten, Layer::Linear { inputs: 4, outputs: 2 }];
    let model = BurnNetwork::new(Network { input: [1, 2, 2], classes: 2, layers });
    let mut parameters = model.start(0, 0);
    parameters[0] = 1.0;
    let batch = Batch { pixels: vec![1.0, 2.0, 3.0, 4.0], labels: vec![0] };
    let mut statistics = model.start_statistics();
    assert_eq!(statistics, [0.0, 1.0]);
    let mut gradient = vec![0.0; model.layout().parameter_count()];
    model.gradient(&parameters, &mut statistics, &batch, &mut gradient);
    let close = |x: f32, y: f32| assert!((x - y).abs() < 1e-6, "{x} instead of {y}");
    close(statistics[0], 0.25); // a tenth of 2.5
    close(statistics[1], 0.9 + 0.1 * 5.0 / 3.0);
    let of_batch = model.batch_statistics(&parameters, &batch);
    close(of_batch[0], 2.5);
    close(of_batch[1], 5.0 / 3.0);
}

/// An engine of eight workers with the digits.
fn engine(model: &str) -> CpuEngine {
    let config = Config::parse(&format!("model = \"{model}\"\n"), &[]).unwrap();
    let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
    experiment.cpu_engine(Arc::new(BurnNetwork::new(experiment.network.clone())))
}

/// Runs rounds of an algorithm on L1.
fn train(engine: &mut CpuEngine, algorithm: &dyn Algorithm, rounds: u64, rate: f64) {
    let graph = "paper:L1".parse::<GraphSpec>().unwrap().build().unwrap();
    let schedule = Schedule::fixed(&graph, &Weights::Metropolis).unwrap();
    for batch in 0..rounds {
        let scores = engine.step(&vec![Some(GradientTask { batch, rate }); engine.workers()]).unwrap();
        let round = schedule.round(batch);
        let stats =
            |i: usize| WorkerStats { loss: scores[i].map(|score| score.loss), degree: round.degree(i), scalar: 1.0 };
        let stats: Vec<WorkerStats> = (0..engine.workers()).map(stats).collect();
        let plans = Exchange::Neighbors.plans(algorithm, &ExchangeContext::new(&round, rate), &stats);
        engine.exchange(&row_plans(&plans), vec![], MixOptions::default()).unwrap();
    }
}

#[test]
fn al_dsgd_learns_the_digits() {
    for (model, rounds) in [("mlp:32", 200), ("cnn", 60)] {
        let mut engine = engine(model);
        let algorithm = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Sound);
        train(&mut engine, &algorithm, rounds, 0.05);
        for worker in 0..8 {
            let accuracy = engine.score(RowIndex(worker), Split::Test).unwrap().accuracy();
            assert!(accuracy > 0.93, "{model}, worker {worker}: {accuracy}");
        }
        let average = {
            let average = engine.average(&rows(8)).unwrap();
            engine.score_replica(&average).unwrap().accuracy()
        };
        assert!(average > 0.93, "{model}: {average}");
        assert!(engine.consensus_distance(&rows(3)).unwrap() > 0.0);
    }
}

#[test]
fn results_do_not_depend_on_the_thread_count() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut engine = engine("cnn");
            train(&mut engine, &Dpsgd::default(), 5, 0.1);
            engine.average(&rows(8)).unwrap().parameters
        })
    };
    assert_eq!(run(1), run(2));
}
