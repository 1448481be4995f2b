//! The Torch engine against the Burn engine, on the CPU.
#![cfg(feature = "libtorch")]
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};
use upwash::algorithm::{Algorithm, Message, Plan, View};
use upwash::config::Config;
use upwash::data::Batch;
use upwash::engine::{Engine, State};
use upwash::experiment::{Experiment, Folders};
use upwash::fleet::Model;
use upwash::model::ModelSpec;
use upwash::run::{Event, Next, Observer, Progress, run};
use upwash_burn::BurnNetwork;
use upwash_topology::random::Stream;
use upwash_torch::TorchNetwork;

fn prepare(config: &str) -> Experiment {
    let config = Config::parse(config, &[]).unwrap_or_else(|error| panic!("{error}"));
    Experiment::prepare(config, &Folders::default()).unwrap()
}

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut stream = Stream::new(seed, "test", &[]);
    (0..count).map(|_| stream.normal() as f32).collect()
}

fn assert_close(found: &[f32], known: &[f32], tolerance: f32) {
    assert_eq!(found.len(), known.len());
    for (place, (x, y)) in found.iter().zip(known).enumerate() {
        let apart = (x - y).abs();
        assert!(
            apart <= tolerance * (1.0 + y.abs()),
            "{place}: {x} is not {y}"
        );
    }
}

#[test]
fn every_network_has_the_same_loss_gradient_and_statistics() {
    for (name, shape, images) in [
        ("softmax", [1, 8, 8], 5),
        ("mlp:32,16", [1, 8, 8], 5),
        ("cnn", [1, 8, 8], 5),
        ("resnet20", [3, 16, 16], 4),
        ("thin-resnet50", [3, 16, 16], 4),
        ("wrn28-10", [3, 8, 8], 2),
    ] {
        let network = name.parse::<ModelSpec>().unwrap().network(shape, 10);
        let (torch, burn) = (
            TorchNetwork::new(network.clone()),
            BurnNetwork::new(network),
        );
        let size: usize = shape.iter().product();
        let batch = Batch {
            pixels: noise(1, images * size),
            labels: (0..images as u8).collect(),
        };
        let parameters = burn.start(3, 0);
        let mut gradients = [vec![0.0; parameters.len()], vec![0.0; parameters.len()]];
        let mut statistics = [burn.start_statistics(), burn.start_statistics()];
        let [torch_gradient, burn_gradient] = &mut gradients;
        let [torch_statistics, burn_statistics] = &mut statistics;
        let found = torch.gradient(&parameters, torch_statistics, &batch, torch_gradient);
        let known = burn.gradient(&parameters, burn_statistics, &batch, burn_gradient);
        assert!(
            (found.loss - known.loss).abs() < 1e-5,
            "{name}: {found:?}, {known:?}"
        );
        assert_close(torch_statistics, burn_statistics, 1e-4);
        assert_close(torch_gradient, burn_gradient, 1e-3);
        let found = torch.score(&parameters, burn_statistics, &batch);
        let known = burn.score(&parameters, burn_statistics, &batch);
        assert!(
            (found.loss / known.loss - 1.0).abs() < 1e-4,
            "{name}: {found:?}, {known:?}"
        );
        let found = torch.batch_statistics(&parameters, &batch);
        assert_close(&found, &burn.batch_statistics(&parameters, &batch), 1e-4);
    }
}

/// Row by row, round after round.
type Plans = Vec<Vec<(usize, f64)>>;

/// Writes down everyone's leaders: whom its plan gives more than its base does.
#[derive(Debug)]
struct Recording {
    algorithm: Box<dyn Algorithm>,
    plans: Arc<Mutex<Plans>>,
}

impl Algorithm for Recording {
    fn message(&self) -> Message {
        self.algorithm.message()
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        let plan = self.algorithm.plan(view);
        self.plans.lock().unwrap().push(plan.messages.clone());
        plan
    }
}

#[derive(Default)]
struct Witness {
    losses: Vec<Vec<f64>>,
    stop: Option<u64>,
    kept: Option<(Progress, State)>,
}

impl Observer for Witness {
    fn observe(&mut self, event: &Event) -> Next {
        if let Event::Round { losses, .. } = event {
            self.losses.push(losses.clone());
        }
        Next::Continue
    }

    fn between_rounds(&mut self, progress: &Progress, engine: &dyn Engine) -> Next {
        if self.stop != Some(progress.round) {
            return Next::Continue;
        }
        self.kept = Some((progress.clone(), engine.state()));
        Next::Stop
    }
}

/// Losses and plans of all rounds.
fn complete(mut experiment: Experiment, model: Arc<dyn Model>) -> (Vec<Vec<f64>>, Plans) {
    let plans = Arc::new(Mutex::new(Vec::new()));
    experiment.algorithm = Box::new(Recording {
        algorithm: experiment.algorithm,
        plans: Arc::clone(&plans),
    });
    let mut fleet = experiment.fleet(model);
    let mut witness = Witness::default();
    run(&experiment, &mut fleet, Progress::start(8), &mut witness).unwrap();
    let plans = std::mem::take(&mut *plans.lock().unwrap());
    (witness.losses, plans)
}

#[test]
fn runs_agree_for_twenty_rounds_leaders_included() {
    for (model, data, batch, algorithm) in [
        ("cnn", "digits", 9, "name = \"dpsgd\""),
        ("cnn", "digits", 9, "name = \"al-dsgd\""),
        ("cnn", "digits", 9, "base = \"matcha\""),
    ] {
        let config = format!(
            "model = \"{model}\"\n[data]\nname = \"{data}\"\ntest_images = 8\n[algorithm]\n{algorithm}\n\
             [training]\nepochs = 1\nbatch = {batch}\nrate = 0.01\nmomentum = 0.0\nstart = \"equal\"\n"
        );
        let experiment = || prepare(&config);
        assert_eq!(experiment().rounds(), 20);
        let network = experiment().network;
        let torch = complete(experiment(), Arc::new(TorchNetwork::new(network.clone())));
        let burn = complete(experiment(), Arc::new(BurnNetwork::new(network)));
        assert!(torch.1 == burn.1, "{model}, {algorithm}: other leaders");
        let pairs = torch.0.iter().flatten().zip(burn.0.iter().flatten());
        let worst = pairs.map(|(found, known)| (found / known - 1.0).abs());
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 1e-4, "{model}, {algorithm}: {worst}");
    }
}

#[test]
fn rounds_agree_on_a_deep_network() {
    for algorithm in [
        "name = \"dpsgd\"",
        "name = \"al-dsgd\"",
        "base = \"matcha\"\noverlap = true",
    ] {
        let config = format!(
            "model = \"resnet20\"\n[data]\nname = \"synthetic:shape=3x16x16,train=2560,test=8\"\n\
             [algorithm]\n{algorithm}\n[training]\nepochs = 1\nbatch = 16\nrate = 0.01\nweight_decay = 5e-4\n"
        );
        let experiment = prepare(&config);
        let network = experiment.network.clone();
        let mut burn = experiment.fleet(Arc::new(BurnNetwork::new(network.clone())));
        let mut torch = experiment.fleet(Arc::new(TorchNetwork::new(network)));
        let apart = common::compare(&experiment, 20, &mut burn, &mut torch);
        assert!(
            apart.loss < 1e-5 && apart.change < 0.05,
            "{algorithm}: {apart:?}"
        );
    }
}

#[test]
fn a_checkpoint_of_one_engine_is_read_by_the_other() {
    let config = "model = \"cnn\"\n[training]\nepochs = 2\n";
    let experiment = prepare(config);
    let network = experiment.network.clone();
    let mut burn = experiment.fleet(Arc::new(BurnNetwork::new(network.clone())));
    let mut first = Witness {
        stop: Some(10),
        ..Default::default()
    };
    run(&experiment, &mut burn, Progress::start(8), &mut first).unwrap();
    let (progress, state) = first.kept.unwrap();
    let mut torch = experiment.fleet(Arc::new(TorchNetwork::new(network)));
    torch.restore(&state).unwrap();
    assert_eq!(torch.state(), state);
    let outcome = run(&experiment, &mut torch, progress, &mut Witness::default()).unwrap();
    assert!(
        outcome.summary.mean_accuracy > 0.85,
        "{:?}",
        outcome.summary
    );
}
