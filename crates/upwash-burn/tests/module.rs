//! Compares a user-defined module with the same network as a description.

#![allow(clippy::unwrap_used)]

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use std::sync::Arc;
use upwash::config::Config;
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::{Engine, GradientTask};
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::{Layer, Network};
use upwash_burn::{BurnModule, BurnNetwork, Classifier, burn};
use upwash_topology::random::Stream;

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    frozen: Linear,
    linear: Linear,
}

impl Classifier for Net {
    fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        let features = relu(self.norm.forward(self.conv.forward(images)));
        // A frozen layer: it must keep its values and must not count as a statistic.
        let side = self.frozen.forward(features.clone().flatten(1, 3)) * 0.0;
        self.linear.forward(features.flatten(1, 3)) + side
    }
}

fn user_module() -> BurnModule<Net> {
    BurnModule::new([1, 8, 8], |device: &Device| Net {
        conv: Conv2dConfig::new([1, 4], [3, 3]).init(device),
        norm: BatchNormConfig::new(4).init(device),
        frozen: LinearConfig::new(4 * 36, 10).init(device).no_grad(),
        linear: LinearConfig::new(4 * 36, 10).init(device),
    })
}

fn described() -> BurnNetwork {
    let conv = Layer::Conv { inputs: 1, outputs: 4, size: 3, stride: 1, padding: 0, bias: true };
    BurnNetwork::new(Network {
        input: [1, 8, 8],
        classes: 10,
        layers: vec![
            conv,
            Layer::BatchNorm { channels: 4 },
            Layer::Relu,
            Layer::Flatten,
            Layer::Linear { inputs: 144, outputs: 10 },
        ],
    })
}

/// Transposes the linear layer's weight from Burn's order (inputs x outputs) to that of descriptions.
fn translated(vector: &[f32]) -> Vec<f32> {
    let before = 4 * 9 + 4 + 4 + 4;
    let mut described = vector.to_vec();
    for (index, value) in vector[before..][..1440].iter().enumerate() {
        described[before + index % 10 * 144 + index / 10] = *value;
    }
    described
}

fn batch() -> Batch {
    let mut stream = Stream::new(3, "test", &[]);
    Batch { pixels: (0..5 * 64).map(|_| stream.normal() as f32).collect(), labels: vec![3, 1, 4, 1, 5] }
}

fn assert_close(found: &[f32], known: &[f32]) {
    assert_eq!(found.len(), known.len());
    for (x, y) in found.iter().zip(known) {
        assert!((x - y).abs() < 1e-5, "{x} instead of {y}");
    }
}

#[test]
fn user_module_agrees_with_the_described_network() {
    let (module, described) = (user_module(), described());
    let names: Vec<_> = module.layout().parameters.iter().map(|slot| slot.name.as_str()).collect();
    let known = ["conv.weight", "conv.bias", "norm.gamma", "norm.beta", "linear.weight", "linear.bias"];
    assert_eq!(names, known);
    assert_eq!(module.layout().parameter_count(), described.layout().parameter_count());
    assert_eq!(module.start_statistics(), described.start_statistics());

    let parameters = module.start(7, 2);
    let translated_parameters = translated(&parameters);
    let mut statistics = [module.start_statistics(), described.start_statistics()];
    let mut gradients = [vec![0.0; parameters.len()], vec![0.0; parameters.len()]];
    let score = module.gradient(&parameters, &mut statistics[0], &batch(), &mut gradients[0]);
    let known = described.gradient(&translated_parameters, &mut statistics[1], &batch(), &mut gradients[1]);
    assert!((score.loss - known.loss).abs() < 1e-6);
    assert_close(&translated(&gradients[0]), &gradients[1]);
    assert_close(&statistics[0][..4], &statistics[1][..4]); // the means; Burn keeps the biased variance
    assert_close(
        &module.batch_statistics(&parameters, &batch())[..4],
        &described.batch_statistics(&translated_parameters, &batch())[..4],
    );
    let scored = module.score(&parameters, &statistics[1], &batch());
    assert!((scored.loss - described.score(&translated_parameters, &statistics[1], &batch()).loss).abs() < 1e-6);
}

#[test]
fn initial_parameters_depend_only_on_seed_and_worker() {
    let module = user_module();
    assert_eq!(module.start(1, 2), module.start(1, 2));
    assert_ne!(module.start(1, 2), module.start(1, 3));
    assert_ne!(module.start(1, 2), module.start(2, 2));
}

#[test]
fn statistics_are_per_worker_and_independent_of_the_thread_count() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let text = "[graph]\ntopology = \"path:3\"\n[training]\nmomentum = 0.0\nstart = \"equal\"\n";
            let config = Config::parse(text, &[]).unwrap();
            let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
            let tasks = |batch| [Some(GradientTask { batch, rate: 0.1 }); 3];
            let mut engine = experiment.cpu_engine(Arc::new(user_module()));
            (0..3).for_each(|batch| drop(engine.step(&tasks(batch)).unwrap()));
            engine.state().unwrap()
        })
    };
    let state = run(1);
    assert_eq!(state, run(2));
    let statistics = upwash::engine::saved(&state, "statistics", 24).unwrap();
    assert_ne!(statistics[..8], statistics[8..16]);
}
