//! Compares libtorch with the native engine on the CPU.
#![cfg(feature = "libtorch")]
#![allow(clippy::unwrap_used)]

mod common;

use common::Recorder;
use std::sync::{Arc, Mutex};
use upwash::WorkerId;
use upwash::algorithm::{Algorithm, LocalView, Method, Plan};
use upwash::config::Config;
use upwash::data::Batch;
use upwash::engine::{Engine, Model, NativeModel};
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::{Layer, LayerSpec, ModelSpec, Network, Slot};
use upwash::run::{Progress, run};
use upwash_nn::Workspace;
use upwash_topology::random::Stream;
use upwash_torch::{TorchCpuModel, TorchModel, TorchModule, TorchNetwork, tch};

fn prepare(config: &str) -> Experiment {
    let config = Config::parse(config, &[]).unwrap_or_else(|error| panic!("{error}"));
    Experiment::prepare(config, &DataPaths::default()).unwrap()
}

fn torch(network: Network) -> TorchCpuModel {
    let input = network.input;
    TorchCpuModel::new(Arc::new(TorchNetwork::new(network)), input)
}

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut stream = Stream::new(seed, "test", &[]);
    (0..count).map(|_| stream.normal() as f32).collect()
}

fn assert_close(found: &[f32], known: &[f32], tolerance: f32) {
    assert_eq!(found.len(), known.len());
    for (index, (x, y)) in found.iter().zip(known).enumerate() {
        let difference = (x - y).abs();
        assert!(difference <= tolerance * (1.0 + y.abs()), "element {index}: {x} instead of {y}");
    }
}

/// The built-in networks, and one of the layers that they do not have; with the number of images of a batch.
fn networks() -> Vec<(&'static str, Network, usize)> {
    let built_in = [
        ("softmax", [1, 8, 8], 5),
        ("mlp:32,16", [1, 8, 8], 5),
        ("cnn", [1, 8, 8], 5),
        ("resnet20", [3, 16, 16], 4),
        ("thin-resnet50", [3, 16, 16], 4),
        ("wrn28-10", [3, 8, 8], 2),
        ("resnet50", [3, 32, 32], 2),
    ];
    let built_in = built_in.map(|(name, shape, images)| {
        let network = name.parse::<ModelSpec>().unwrap().network(shape, 10);
        (name, network, images)
    });
    let layers = [
        LayerSpec::conv(6, 5),
        LayerSpec::LayerNorm,
        LayerSpec::Gelu,
        LayerSpec::conv(5, 3),
        LayerSpec::Silu,
        LayerSpec::Linear { outputs: Some(12) },
        LayerSpec::LayerNorm,
        LayerSpec::Tanh,
        LayerSpec::logits(),
    ];
    let other = Network::described([2, 7, 5], 10, &layers).unwrap();
    built_in.into_iter().chain([("other layers", other, 4)]).collect()
}

fn double(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// The loss and the gradient of the native engine in f64.
fn exact(network: &Network, parameters: &[f64], pixels: &[f64], labels: &[u8]) -> (f64, Vec<f64>) {
    let ranges = |slots: &[Slot]| -> Vec<_> { slots.iter().map(|s| s.offset..s.offset + s.size()).collect() };
    let layout = network.layout();
    let (used, kept) = (ranges(&layout.parameters).into_iter(), ranges(&layout.statistics).into_iter());
    let native = upwash_nn::Network::<f64>::described(network.input, &network.layers, used, kept);
    let (mut statistics, mut gradient) = (double(&network.start_statistics()), vec![0.0; parameters.len()]);
    let memory = &mut Workspace::default();
    let outcome = native.gradient(memory, parameters, &mut statistics, pixels, labels, &mut gradient);
    (outcome.loss, gradient)
}

/// The largest error of a gradient, as a fraction of the largest element.
fn error_of(gradient: &[f32], exact: &[f64]) -> f64 {
    let error = gradient.iter().zip(exact).fold(0.0f64, |error, (x, y)| error.max((f64::from(*x) - y).abs()));
    error / exact.iter().fold(0.0f64, |largest, y| largest.max(y.abs()))
}

/// In f64, which leaves no room for anything but rounding.
#[test]
fn gradients_agree_in_double_precision() {
    use tch::{Kind, Tensor};
    for (name, network, images) in networks() {
        let layout = network.layout();
        let parameters = double(&network.start(3, 0));
        let features: usize = network.input.iter().product();
        let (pixels, labels) = (double(&noise(1, images * features)), (0..images as u8).collect::<Vec<u8>>());
        let tensors = |slots: &[Slot], values: &[f64]| -> Vec<Tensor> {
            let sizes = |slot: &Slot| slot.shape.iter().map(|&side| side as i64).collect::<Vec<i64>>();
            let tensor = |slot: &Slot| Tensor::from_slice(&values[slot.offset..][..slot.size()]).reshape(sizes(slot));
            slots.iter().map(tensor).collect()
        };
        let model = TorchNetwork::new(network.clone());
        let statistics = double(&network.start_statistics());
        let bound = model.bind(&tensors(&layout.parameters, &parameters), &tensors(&layout.statistics, &statistics));
        let [channels, height, width] = network.input.map(|side| side as i64);
        let batch = Tensor::from_slice(&pixels).reshape([images as i64, channels, height, width]);
        let targets = Tensor::from_slice(&labels).to_kind(Kind::Int64);
        let loss = bound.train(batch).log_softmax(-1, Kind::Double).nll_loss(&targets);
        loss.backward();

        let (found, gradient) = exact(&network, &parameters, &pixels, &labels);
        let known = loss.double_value(&[]);
        assert!((found - known).abs() < 1e-9, "{name}: {found} instead of {known}");
        let largest = gradient.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        for (slot, leaf) in layout.parameters.iter().zip(bound.leaves()) {
            // A bias before batch normalization has no gradient there, and rounding errors here.
            let known = if leaf.grad().defined() { leaf.grad() } else { leaf.zeros_like() };
            let known: Vec<f64> = known.flatten(0, -1).try_into().unwrap();
            for (found, known) in gradient[slot.offset..][..slot.size()].iter().zip(known) {
                let error = (found - known).abs() / largest;
                assert!(error < 1e-9, "{name}, {}: {found} instead of {known}", slot.name);
            }
        }
    }
}

#[test]
fn loss_gradient_and_statistics_agree_for_every_network() {
    for (name, network, images) in networks() {
        let shape = network.input;
        let (torch, native) = (torch(network.clone()), NativeModel::new(network.clone()));
        let size: usize = shape.iter().product();
        let batch = Batch { pixels: noise(1, images * size), labels: (0..images as u8).collect() };
        let parameters = native.start(3, 0);
        let mut gradients = [vec![0.0; parameters.len()], vec![0.0; parameters.len()]];
        let mut statistics = [native.start_statistics(), native.start_statistics()];
        let [torch_gradient, native_gradient] = &mut gradients;
        let [torch_statistics, native_statistics] = &mut statistics;
        let found = torch.gradient(&parameters, torch_statistics, &batch, torch_gradient);
        let known = native.gradient(&parameters, native_statistics, &batch, native_gradient);
        assert!((found.loss - known.loss).abs() < 1e-5, "{name}: {found:?}, {known:?}");
        assert_close(torch_statistics, native_statistics, 1e-4);
        // Rounding turns activations of deep networks on and off, in libtorch as here: a ResNet-50 is off by a hundredth
        // of its largest gradient in both. So both are compared with f64.
        let (_, exact) = exact(&network, &double(&parameters), &double(&batch.pixels), &batch.labels);
        let [torch_error, native_error] = [torch_gradient, native_gradient].map(|gradient| error_of(gradient, &exact));
        let bound = f64::max(1e-3, 3.0 * torch_error);
        assert!(native_error < bound && torch_error < 0.1, "{name}: {native_error}, {torch_error} with libtorch");
        let found = torch.score(&parameters, native_statistics, &batch);
        let known = native.score(&parameters, native_statistics, &batch);
        assert!((found.loss / known.loss - 1.0).abs() < 1e-4, "{name}: {found:?}, {known:?}");
        let found = torch.batch_statistics(&parameters, &batch);
        assert_close(&found, &native.batch_statistics(&parameters, &batch), 1e-4);
    }
}

/// (sender, weight) of the messages in every plan: row by row, round by round.
type Plans = Vec<Vec<(WorkerId, f64)>>;

/// Records the plans of an algorithm, and so the leaders of every worker.
#[derive(Debug)]
struct Recording {
    algorithm: Box<dyn Algorithm>,
    plans: Arc<Mutex<Plans>>,
}

impl Algorithm for Recording {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&*self.algorithm)
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let plan = self.algorithm.plan(view);
        self.plans.lock().unwrap().push(plan.assignments[0].messages.clone());
        plan
    }
}

/// Runs an experiment to its end. Returns losses and plans of all rounds.
fn run_to_end(mut experiment: Experiment, model: Arc<dyn Model>) -> (Vec<Vec<f64>>, Plans) {
    let plans = Arc::new(Mutex::new(Vec::new()));
    let Method::Synchronous(algorithm) = experiment.method else {
        panic!("the algorithm should be synchronous");
    };
    experiment.method = Method::Synchronous(Box::new(Recording { algorithm, plans: Arc::clone(&plans) }));
    let mut engine = experiment.cpu_engine(model);
    let mut recorder = Recorder::default();
    run(&experiment, &mut engine, Progress::start(8), &mut recorder).unwrap();
    let plans = std::mem::take(&mut *plans.lock().unwrap());
    (recorder.losses, plans)
}

/// Whole runs on a network without kinks. With ReLUs, rounding turns activations on and off, and even two correct
/// engines drift apart (see [`common::compare`], which the small CNN uses).
#[test]
fn losses_and_leaders_agree_for_twenty_rounds() {
    for algorithm in ["name = \"dpsgd\"", "name = \"al-dsgd\"", "base = \"matcha\""] {
        let config = |model: &str| {
            format!(
                "model = \"{model}\"\n[data]\nname = \"digits\"\ntest_examples = 8\n[algorithm]\n{algorithm}\n\
                 [training]\nepochs = 1\nbatch_size = 9\nlearning_rate = 0.01\nmomentum = 0.0\nstart = \"equal\"\n"
            )
        };
        let experiment = || prepare(&config("softmax"));
        assert_eq!(experiment().rounds(), 20);
        let network = experiment().network;
        let found = run_to_end(experiment(), Arc::new(torch(network.clone())));
        let known = run_to_end(experiment(), Arc::new(NativeModel::new(network)));
        assert!(found.1 == known.1, "{algorithm}: the leaders differ");
        let pairs = found.0.iter().flatten().zip(known.0.iter().flatten());
        let worst = pairs.map(|(found, known)| (found / known - 1.0).abs());
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 1e-5, "{algorithm}: {worst}");

        let experiment = prepare(&config("cnn"));
        let network = experiment.network.clone();
        let mut native = experiment.cpu_engine(Arc::new(NativeModel::new(network.clone())));
        let mut torch = experiment.cpu_engine(Arc::new(torch(network)));
        let deviation = common::compare(&experiment, 20, &mut native, &mut torch);
        assert!(deviation.loss < 1e-5, "small CNN, {algorithm}: {deviation:?}");
    }
}

#[test]
fn rounds_agree_on_resnet20() {
    for algorithm in ["name = \"dpsgd\"", "name = \"al-dsgd\"", "base = \"matcha\"\noverlap = true"] {
        let config = format!(
            "model = \"resnet20\"\n[data]\nname = \"synthetic:shape=3x16x16,train=2560,test=8\"\n\
             [algorithm]\n{algorithm}\n[training]\nepochs = 1\nbatch_size = 16\nlearning_rate = 0.01\nweight_decay = 5e-4\n"
        );
        let experiment = prepare(&config);
        let network = experiment.network.clone();
        let mut native = experiment.cpu_engine(Arc::new(NativeModel::new(network.clone())));
        let mut torch = experiment.cpu_engine(Arc::new(torch(network)));
        let deviation = common::compare(&experiment, 20, &mut native, &mut torch);
        assert!(deviation.loss < 1e-5 && deviation.change < 0.05, "{algorithm}: {deviation:?}");
    }
}

#[test]
fn torch_resumes_from_a_native_checkpoint() {
    let config = "model = \"cnn\"\n[training]\nepochs = 2\n";
    let experiment = prepare(config);
    let network = experiment.network.clone();
    let mut native = experiment.cpu_engine(Arc::new(NativeModel::new(network.clone())));
    let mut first = Recorder { stop_at: Some(10), ..Default::default() };
    run(&experiment, &mut native, Progress::start(8), &mut first).unwrap();
    let (progress, state) = first.snapshot.unwrap();
    let mut torch = experiment.cpu_engine(Arc::new(torch(network)));
    torch.restore(&state).unwrap();
    assert_eq!(torch.state().unwrap(), state);
    let result = run(&experiment, &mut torch, progress, &mut Recorder::default()).unwrap();
    assert!(result.summary.mean_accuracy > 0.85, "{:?}", result.summary);
}

#[derive(Debug)]
struct Net {
    conv: tch::nn::Conv2D,
    norm: tch::nn::BatchNorm,
    linear: tch::nn::Linear,
}

impl tch::nn::ModuleT for Net {
    fn forward_t(&self, images: &tch::Tensor, train: bool) -> tch::Tensor {
        let features = self.norm.forward_t(&images.apply(&self.conv), train).relu();
        features.flatten(1, -1).apply(&self.linear)
    }
}

/// A user-defined module against the same network as a description.
#[test]
fn user_module_agrees_with_the_described_network() {
    use tch::nn::{self, ConvConfig};
    let module = TorchModule::new([1, 8, 8], |path| Net {
        conv: nn::conv2d(path / "a", 1, 4, 3, ConvConfig::default()),
        norm: nn::batch_norm2d(path / "b", 4, Default::default()),
        linear: nn::linear(path / "c", 4 * 36, 10, Default::default()),
    });
    let names: Vec<&str> = module.layout().parameters.iter().map(|slot| slot.name.as_str()).collect();
    // Sorted by name, so that biases precede weights, unlike in descriptions.
    assert_eq!(names, ["a.bias", "a.weight", "b.bias", "b.weight", "c.bias", "c.weight"]);
    assert_eq!(module.layout().statistic_count(), 8);
    assert_eq!(module.start(1, 2), module.start(1, 2));
    assert_ne!(module.start(1, 2), module.start(1, 3));
    let described = torch(Network {
        input: [1, 8, 8],
        classes: 10,
        layers: vec![
            Layer::Conv { inputs: 1, outputs: 4, size: 3, stride: 1, padding: 0, bias: true },
            Layer::BatchNorm { channels: 4 },
            Layer::Relu,
            Layer::Flatten,
            Layer::Linear { inputs: 144, outputs: 10 },
        ],
    });
    let sizes = [4, 36, 4, 4, 10, 1440];
    let translated = |vector: &[f32]| {
        let mut parts = Vec::new();
        let mut rest = vector;
        for size in sizes {
            let (part, more) = rest.split_at(size);
            parts.push(part);
            rest = more;
        }
        [1, 0, 3, 2, 5, 4].map(|index: usize| parts[index]).concat()
    };
    let parameters = module.start(7, 2);
    let module = TorchCpuModel::new(Arc::new(module), [1, 8, 8]);
    let batch = Batch { pixels: noise(5, 6 * 64), labels: vec![3, 1, 4, 1, 5, 9] };
    let translated_parameters = translated(&parameters);
    let mut statistics = [module.start_statistics(), described.start_statistics()];
    let mut gradients = [vec![0.0; translated_parameters.len()], vec![0.0; translated_parameters.len()]];
    let score = module.gradient(&parameters, &mut statistics[0], &batch, &mut gradients[0]);
    let known = described.gradient(&translated_parameters, &mut statistics[1], &batch, &mut gradients[1]);
    assert!((score.loss - known.loss).abs() < 1e-6);
    assert_close(&statistics[0], &statistics[1], 1e-5);
    assert_close(&translated(&gradients[0]), &gradients[1], 1e-5);
    assert_close(
        &module.batch_statistics(&parameters, &batch),
        &described.batch_statistics(&translated_parameters, &batch),
        1e-4,
    );
    let found = module.score(&parameters, &statistics[1], &batch).loss;
    assert!((found - described.score(&translated_parameters, &statistics[1], &batch).loss).abs() < 1e-6);
}
