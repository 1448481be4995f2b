//! Whole runs: equivalences between algorithms, going on after a stop, learning, divergence.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use upwash::config::Config;
use upwash::engine::{Engine, State};
use upwash::experiment::{Experiment, Folders};
use upwash::fleet::{Fleet, Model};
use upwash::run::{Event, Next, Observer, Progress, Status, Summary, run};
use upwash_burn::BurnNetwork;

/// Keeps warnings; stops before round `stop` and keeps what is needed to go on.
#[derive(Default)]
struct Witness {
    stop: Option<u64>,
    kept: Option<(Progress, State)>,
    warnings: Vec<String>,
}

impl Observer for Witness {
    fn observe(&mut self, event: &Event) -> Next {
        if let Event::Warning { message } = event {
            self.warnings.push(message.clone());
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

fn prepare(config: &str) -> (Experiment, Fleet) {
    let config = Config::parse(config, &[]).unwrap_or_else(|error| panic!("{error}"));
    let experiment = Experiment::prepare(config, &Folders::default()).unwrap();
    let fleet = experiment.fleet(Arc::new(BurnNetwork::new(experiment.network.clone())));
    (experiment, fleet)
}

fn complete(config: &str) -> (Summary, State) {
    let (experiment, mut fleet) = prepare(config);
    let start = Progress::start(experiment.workers());
    let summary = run(&experiment, &mut fleet, start, &mut Witness::default());
    (summary, fleet.state())
}

fn apart(a: &State, b: &State) -> f32 {
    let (a, b) = (&a[0].1, &b[0].1);
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, f32::max)
}

const SHORT: &str = "[training]\nepochs = 2\n";

#[test]
fn al_dsgd_without_pull_is_its_base() {
    let none = "w_best = 0.0\nw_degree = 0.0\nlambda_best = 0.0\nlambda_degree = 0.0\n";
    for (base, alone) in [("dpsgd", "dpsgd"), ("matcha", "matcha")] {
        for variant in ["sound", "released"] {
            let led = format!(
                "[algorithm]\nname = \"al-dsgd\"\nbase = \"{base}\"\nvariant = \"{variant}\"\n{none}{SHORT}"
            );
            let plain = format!("[algorithm]\nname = \"{alone}\"\n{SHORT}");
            assert_eq!(
                complete(&led).1,
                complete(&plain).1,
                "{variant} over {base}"
            );
        }
    }
}

#[test]
fn matcha_with_the_whole_budget_is_dpsgd() {
    let matcha = complete(&format!(
        "[algorithm]\nname = \"matcha\"\nbudget = 1.0\n{SHORT}"
    ))
    .1;
    let dpsgd = complete(&format!("[algorithm]\nname = \"dpsgd\"\n{SHORT}")).1;
    assert!(apart(&matcha, &dpsgd) < 1e-4, "{}", apart(&matcha, &dpsgd));
}

/// Everyone averages with everyone: from equal starts the models stay equal, and each is what one
/// model becomes that steps along the mean of all gradients.
#[test]
fn the_complete_graph_is_an_all_reduce() {
    let config = format!(
        "[graph]\ntopology = \"complete:4\"\nweights = \"alpha=0.25\"\n[algorithm]\nname = \"dpsgd\"\n\
         {SHORT}start = \"equal\"\nmomentum = 0.0\n"
    );
    let (summary, state) = complete(&config);
    assert!(
        summary.consensus_distance < 1e-5,
        "{}",
        summary.consensus_distance
    );

    let (experiment, _) = prepare(&config);
    let model = BurnNetwork::new(experiment.network.clone());
    let mut x = model.start(1, 0);
    for round in 0..experiment.rounds() {
        let mut mean = vec![0.0f32; x.len()];
        for worker in 0..4 {
            let batch = experiment.sampler.batch(&experiment.data, worker, round);
            let mut gradient = vec![0.0; x.len()];
            model.gradient(&x, &mut [], &batch, &mut gradient);
            mean.iter_mut()
                .zip(gradient)
                .for_each(|(sum, g)| *sum += g / 4.0);
        }
        x.iter_mut().zip(mean).for_each(|(x, g)| *x -= 0.05 * g);
    }
    let found = &state[0].1[..x.len()];
    let worst = x
        .iter()
        .zip(found)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn one_worker_is_plain_sgd() {
    let config = "[graph]\ntopology = \"path:1\"\n[training]\nepochs = 1\nweight_decay = 0.01\n";
    let (_, state) = complete(config);
    let (experiment, _) = prepare(config);
    let model = BurnNetwork::new(experiment.network.clone());
    let (mut x, mut v) = (model.start(1, 0), vec![0.0f32; model.parameters()]);
    for round in 0..experiment.rounds() {
        let batch = experiment.sampler.batch(&experiment.data, 0, round);
        let mut gradient = vec![0.0; x.len()];
        model.gradient(&x, &mut [], &batch, &mut gradient);
        for ((x, v), g) in x.iter_mut().zip(&mut v).zip(gradient) {
            *v = 0.9 * *v + (g + 0.01 * *x);
            *x -= 0.05 * *v;
        }
    }
    let worst = x
        .iter()
        .zip(&state[0].1)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(worst < 1e-5, "{worst}");
}

#[test]
fn a_run_that_was_stopped_goes_on_as_if_it_never_had() {
    for config in [
        "model = \"cnn\"\n[graph]\ncopies = 3\n[algorithm]\nbase = \"matcha\"\n[training]\nepochs = 2\n",
        "[algorithm]\ncombine_first = true\n[graph]\nweights = \"metropolis\"\n[training]\nepochs = 2\n\
         decay = \"cosine\"\n",
    ] {
        let (whole, expected) = complete(config);
        let (experiment, mut fleet) = prepare(config);
        let mut witness = Witness {
            stop: Some(17),
            ..Default::default()
        };
        let first = run(&experiment, &mut fleet, Progress::start(8), &mut witness);
        assert_eq!(first.status, Status::Interrupted { round: 17 });

        let (progress, state) = witness.kept.unwrap();
        let (experiment, mut fleet) = prepare(config);
        fleet.restore(&state).unwrap();
        let second = run(&experiment, &mut fleet, progress, &mut Witness::default());
        assert_eq!(fleet.state(), expected);
        assert_eq!(second, whole);
    }
}

#[test]
fn every_algorithm_and_variant_learns_the_digits() {
    let mut configs = vec![
        "[algorithm]\nname = \"dpsgd\"\n".to_string(),
        "[algorithm]\nname = \"dpsgd\"\ncombine_first = true\n[graph]\nweights = \"metropolis\"\n"
            .into(),
        "[algorithm]\nname = \"matcha\"\n".into(),
        "[algorithm]\nvariant = \"released\"\n[graph]\nlinks = \"released\"\ncopies = 3\n\
         relabellings = \"paper\"\norder = \"released\"\n"
            .into(),
        "[algorithm]\ncombine_first = true\n[graph]\nweights = \"metropolis\"\n".into(),
        "[algorithm]\nname = \"dpsgd\"\n[graph]\nlinks = \"one-peer-exponential\"\n".into(),
    ];
    for base in ["dpsgd", "matcha"] {
        for (variant, weights) in [
            ("sound", "optimal"),
            ("released", "optimal"),
            ("written", "metropolis"),
        ] {
            configs.push(format!(
                "[algorithm]\nbase = \"{base}\"\nvariant = \"{variant}\"\n[graph]\ncopies = 3\n\
                 weights = \"{weights}\"\n"
            ));
        }
    }
    for config in configs {
        let (summary, _) = complete(&config);
        assert_eq!(summary.status, Status::Finished, "{config}");
        assert!(
            summary.mean_accuracy >= 0.95,
            "{}\n{config}",
            summary.mean_accuracy
        );
        assert!(summary.averaged_model_accuracy >= 0.95, "{config}");
    }
}

#[test]
fn the_written_rule_with_the_optimal_alpha_warns_and_diverges() {
    let config = "[algorithm]\nvariant = \"written\"\n[training]\nrate = 0.4\nmomentum = 0.0\nepochs = 200\n";
    let (experiment, mut fleet) = prepare(config);
    let mut witness = Witness::default();
    let summary = run(&experiment, &mut fleet, Progress::start(8), &mut witness);
    assert!(
        witness.warnings[0].contains("workers [1, 3, 7]"),
        "{:?}",
        witness.warnings
    );
    assert!(
        matches!(summary.status, Status::Diverged { .. }),
        "{:?}",
        summary.status
    );
}
