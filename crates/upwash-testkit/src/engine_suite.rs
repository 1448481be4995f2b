//! A conformance suite for models on the CPU engine: whole runs, equivalences between algorithms, resuming, learning
//! and divergence. [`engine_conformance!`](crate::engine_conformance) turns it into tests of your own model
//! implementation.
//!
//! One file, because the macro lists every check of it.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};
use upwash::algorithm::Registry;
use upwash::config::Config;
use upwash::data::{Augmentation, Batch, Pick};
use upwash::engine::{CpuEngine, Engine, EngineSpec, Model, State, share};
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::Network;
use upwash::run::{ControlFlow, Event, Observer, Progress, Status, Summary, TakeSnapshot, run};

/// Builds the model of a network for the CPU engine.
pub type MakeModel = fn(Network) -> Arc<dyn Model>;

static MODEL: OnceLock<MakeModel> = OnceLock::new();

/// Sets the model implementation that this test program checks. Only the first call has an effect.
pub fn test_with(make: MakeModel) {
    MODEL.get_or_init(|| make);
}

fn model(network: Network) -> Arc<dyn Model> {
    MODEL.get().expect("test_with must be called first")(network)
}

/// An observer that keeps warnings and can stop before round `stop` with a snapshot for resuming.
#[derive(Default)]
struct Recorder {
    stop: Option<u64>,
    snapshot: Option<(Progress, State)>,
    warnings: Vec<String>,
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Warning { message } = event {
            self.warnings.push(message.clone());
        }
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        if self.stop != Some(round) {
            return ControlFlow::Continue;
        }
        self.snapshot = Some(snapshot().unwrap());
        ControlFlow::Stop
    }
}

fn prepare(config: &str) -> (Experiment, CpuEngine) {
    let config = Config::parse(config, &[]).unwrap_or_else(|error| panic!("{error}"));
    let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
    let engine = experiment.cpu_engine(model(experiment.network.clone()));
    (experiment, engine)
}

fn complete(config: &str) -> (Summary, State) {
    let (experiment, mut engine) = prepare(config);
    let start = Progress::start(experiment.workers());
    let result = run(&experiment, &mut engine, start, &mut Recorder::default()).unwrap();
    (result.summary, engine.state().unwrap())
}

fn model_difference(a: &State, b: &State) -> f32 {
    let (a, b) = (&a[0].1, &b[0].1);
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

const SHORT: &str = "[training]\nepochs = 2\n";

/// AL-DSGD with all coefficients at 0 computes the same bits as its base.
pub fn al_dsgd_without_pull_equals_its_base() {
    let none = "w_best = 0.0\nw_degree = 0.0\nlambda_best = 0.0\nlambda_degree = 0.0\n";
    for (base, alone) in [("dpsgd", "dpsgd"), ("matcha", "matcha")] {
        for variant in ["sound", "released"] {
            let led =
                format!("[algorithm]\nname = \"al-dsgd\"\nbase = \"{base}\"\nvariant = \"{variant}\"\n{none}{SHORT}");
            let plain = format!("[algorithm]\nname = \"{alone}\"\nvariant = \"{variant}\"\n{SHORT}");
            assert_eq!(complete(&led).1, complete(&plain).1, "{variant} over {base}");
        }
    }
}

/// MATCHA with budget 1 uses all links in every round, as D-PSGD does.
pub fn matcha_with_full_budget_equals_dpsgd() {
    let matcha = complete(&format!("[algorithm]\nname = \"matcha\"\nbudget = 1.0\n{SHORT}")).1;
    let dpsgd = complete(&format!("[algorithm]\nname = \"dpsgd\"\n{SHORT}")).1;
    let difference = model_difference(&matcha, &dpsgd);
    assert!(difference < 1e-4, "{difference}");
}

/// On a complete graph with equal weights and from equal starts, the models stay equal. Each follows a single model
/// that steps along the mean of all gradients.
pub fn dpsgd_on_a_complete_graph_equals_all_reduce() {
    let config = format!(
        "[graph]\ntopology = \"complete:4\"\nweights = \"alpha=0.25\"\n[algorithm]\nname = \"dpsgd\"\n\
         {SHORT}start = \"equal\"\nmomentum = 0.0\n"
    );
    let (summary, state) = complete(&config);
    assert!(summary.consensus_distance < 1e-5, "{}", summary.consensus_distance);

    let (experiment, _) = prepare(&config);
    let model = model(experiment.network.clone());
    let mut x = model.start(1, 0);
    for round in 0..experiment.rounds() {
        let mut mean = vec![0.0f32; x.len()];
        for worker in 0..4 {
            let batch = experiment.sampler.batch(&experiment.data, worker, round);
            let mut gradient = vec![0.0; x.len()];
            model.gradient(&x, &mut [], &batch, &mut gradient);
            mean.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g / 4.0);
        }
        x.iter_mut().zip(mean).for_each(|(x, g)| *x -= 0.05 * g);
    }
    let found = &state[0].1[..x.len()];
    let worst = x.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

/// From equal starts, every worker follows a single model that trains on the joined batches of all workers.
pub fn all_reduce_equals_one_worker_with_the_joined_batch() {
    let config = format!("[graph]\ntopology = \"path:4\"\n[algorithm]\nname = \"all-reduce\"\n{SHORT}momentum = 0.5\n");
    let (_, state) = complete(&config);
    let (experiment, _) = prepare(&config);
    let model = model(experiment.network.clone());
    let (mut x, mut v) = (model.start(1, 0), vec![0.0; model.layout().parameter_count()]);
    for round in 0..experiment.rounds() {
        let batch = |worker| experiment.sampler.batch(&experiment.data, worker, round);
        let batches = [0, 1, 2, 3].map(batch);
        let joined = Batch {
            pixels: batches.iter().flat_map(|batch| batch.pixels.clone()).collect(),
            labels: batches.iter().flat_map(|batch| batch.labels.clone()).collect(),
        };
        let mut gradient = vec![0.0; x.len()];
        model.gradient(&x, &mut [], &joined, &mut gradient);
        for ((x, v), g) in x.iter_mut().zip(&mut v).zip(gradient) {
            *v = 0.5 * *v + g;
            *x -= 0.05 * *v;
        }
    }
    for worker in state[0].1.chunks_exact(x.len()) {
        let differences = x.iter().zip(worker).map(|(a, b)| (a - b).abs());
        let worst = differences.fold(0.0, f32::max);
        assert!(worst < 1e-3, "{worst}");
    }
}

/// With negligible steps, only pairwise averaging is left: the mean does not change, and the models approach it.
pub fn ad_psgd_in_virtual_time_preserves_the_mean() {
    let config = "[algorithm]\nname = \"ad-psgd\"\n[training]\nepochs = 2\nlearning_rate = 1e-12\nmomentum = 0.0\n\
                  start = \"different\"\n[clock]\nnetwork = \"datacenter\"\n";
    let (_, mut engine) = prepare(config);
    let before = engine.state().unwrap();
    let (summary, after) = complete(config);
    let width = before[0].1.len() / 8;
    let mean = |state: &State, column: usize| -> f32 {
        let rows = (0..8).map(|worker| state[0].1[worker * width + column]);
        rows.sum::<f32>() / 8.0
    };
    for column in (0..width).step_by(7) {
        let difference = (mean(&before, column) - mean(&after, column)).abs();
        assert!(difference < 1e-6, "{difference}");
    }
    assert!(summary.consensus_distance < 0.05, "{}", summary.consensus_distance);
}

/// Messages and bytes, counted by hand: 24 messages per round on L1 (12 links), 4,810 parameters, 12 rounds.
pub fn messages_and_bytes_are_counted() {
    let sent = |algorithm: &str| {
        let config = format!("[algorithm]\n{algorithm}\n[training]\nepochs = 1\n");
        let sent = complete(&config).0.sent;
        (sent.messages_sent, sent.bytes_sent)
    };
    let star = "[graph]\ntopology = \"star:9\"";
    let vector = 4 * 4810;
    assert_eq!(sent("name = \"dpsgd\""), (12 * 24, 12 * 24 * vector));
    let two = (12 * 48, 12 * 48 * vector);
    assert_eq!(sent("name = \"gradient-tracking\""), two);
    let ring = (12 * 14 * 8, 12 * 14 * vector);
    assert_eq!(sent("name = \"all-reduce\""), ring);
    // Every eighth round. If both averages are due in the same round, SlowMo uses that of its base.
    assert_eq!(sent("name = \"local-sgd\""), (14 * 8, 14 * vector));
    let slow = "name = \"slowmo\"\nperiod = 4\nslow_period = 4";
    assert_eq!(sent(slow), (3 * 14 * 8, 3 * 14 * vector));
    let server = (12 * 16, 12 * 16 * vector);
    assert_eq!(sent(&format!("name = \"easgd\"\n{star}")), server);
    assert_eq!(sent(&format!("name = \"parameter-server\"\n{star}")), server);
    // Each leader of the two groups sends to three others, and one of them also to the other group: 3 + 3 + 4 messages
    // for every pull (rounds 4, 8 and 12), fewer if a leader leads twice.
    let (messages, _) = sent("name = \"lsgd\"");
    assert!((3 * 7..=3 * 10).contains(&messages), "{messages}");
    // 481 values and a bit mask. Copies need messages over all links, regardless of which are up.
    let compressed = 4 * 481 + 4810_u64.div_ceil(8);
    let choco = (12 * 24, 12 * 24 * compressed);
    assert_eq!(sent("name = \"choco\""), choco);
    let alternating = "name = \"choco\"\n[graph]\nlinks = \"alternating\"";
    assert_eq!(sent(alternating), choco);
    // One gradient per worker and round, two messages per pairwise update.
    let pairwise = (12 * 8 * 2, 12 * 8 * 2 * vector);
    assert_eq!(sent("name = \"ad-psgd\""), pairwise);
    assert_eq!(sent(&format!("name = \"downpour\"\n{star}")), pairwise);
}

/// A single worker trains by plain SGD with momentum and weight decay.
pub fn one_worker_equals_plain_sgd() {
    let config = "[graph]\ntopology = \"path:1\"\n[training]\nepochs = 1\nweight_decay = 0.01\n";
    let (_, state) = complete(config);
    let (experiment, _) = prepare(config);
    let model = model(experiment.network.clone());
    let (mut x, mut v) = (model.start(1, 0), vec![0.0f32; model.layout().parameter_count()]);
    for round in 0..experiment.rounds() {
        let batch = experiment.sampler.batch(&experiment.data, 0, round);
        let mut gradient = vec![0.0; x.len()];
        model.gradient(&x, &mut [], &batch, &mut gradient);
        for ((x, v), g) in x.iter_mut().zip(&mut v).zip(gradient) {
            *v = 0.9 * *v + (g + 0.01 * *x);
            *x -= 0.05 * *v;
        }
    }
    let worst = x.iter().zip(&state[0].1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "{worst}");
}

/// A run that is stopped and resumed computes the same bits as an uninterrupted one.
pub fn stopped_run_resumes_bit_for_bit() {
    for config in [
        "model = \"cnn\"\n[graph]\ncopies = 3\n[algorithm]\nbase = \"matcha\"\n[training]\nepochs = 2\n",
        "[algorithm]\noverlap = true\n[graph]\nweights = \"metropolis\"\n[training]\nepochs = 2\n\
         decay = \"cosine\"\n",
    ] {
        let (whole, expected) = complete(config);
        let (experiment, mut engine) = prepare(config);
        let mut recorder = Recorder { stop: Some(17), ..Default::default() };
        let first = run(&experiment, &mut engine, Progress::start(8), &mut recorder).unwrap().summary;
        assert_eq!(first.status, Status::Interrupted { round: 17 });

        let (progress, state) = recorder.snapshot.unwrap();
        let (experiment, mut engine) = prepare(config);
        engine.restore(&state).unwrap();
        let second = run(&experiment, &mut engine, progress, &mut Recorder::default()).unwrap().summary;
        assert_eq!(engine.state().unwrap(), expected);
        assert_eq!(second, whole);
    }
}

/// Every built-in algorithm, with a graph that it can use.
fn every_algorithm() -> Vec<String> {
    let with_server = ["easgd", "parameter-server", "async-easgd", "downpour"];
    let graph = |name: &str| {
        if with_server.contains(&name) { "[graph]\ntopology = \"star:9\"\n" } else { "" }
    };
    Registry::standard()
        .iter()
        .map(|known| format!("[algorithm]\nname = \"{}\"\n{}", known.name, graph(known.name)))
        .collect()
}

/// Every algorithm and variant reaches 95 % on the digits.
pub fn every_algorithm_and_variant_learns_the_digits() {
    let mut configs = every_algorithm();
    configs.extend(
        [
            "[algorithm]\nname = \"dpsgd\"\noverlap = true\n[graph]\nweights = \"metropolis\"\n",
            "[algorithm]\nvariant = \"released\"\n[graph]\ncopies = 3\n",
            "[algorithm]\noverlap = true\n[graph]\nweights = \"metropolis\"\n",
            "[algorithm]\noverlap = true\n",
            "[algorithm]\noverlap = true\nbase = \"matcha\"\n[graph]\ncopies = 3\nfirst_copy = 2\n",
            "[algorithm]\nname = \"dpsgd\"\n[graph]\nlinks = \"one-peer-exponential\"\n",
            "[graph]\nlinks = \"one-peer-exponential\"\n",
            "[algorithm]\nbase = \"gossip-pga\"\n",
            "[algorithm]\nbase = \"choco\"\n",
            "[algorithm]\nbase = \"qg-momentum\"\n",
            "[algorithm]\nname = \"choco\"\ncompressor = \"random-k\"\n",
            "[algorithm]\nname = \"choco\"\ncompressor = \"sign\"\n",
            "[algorithm]\nname = \"choco\"\ncompressor = \"eight-bit\"\n",
            "[algorithm]\nname = \"sgp\"\n[graph]\nlinks = \"exponential\"\n",
            "[algorithm]\nname = \"sgp\"\n[graph]\ntopology = \"ring:4\"\n\
             directed_edges = [[0, 1], [0, 2], [1, 2], [2, 3], [3, 0]]\n",
            "[algorithm]\nname = \"slowmo\"\nbase = \"sgp\"\n",
            "[algorithm]\nname = \"slowmo\"\nbase = \"d2\"\n",
            "[algorithm]\nname = \"slowmo\"\nbase = \"al-dsgd\"\nw_best = 0.2\n",
            "[algorithm]\nname = \"slowmo\"\nbase = \"dpsgd\"\n",
            "[algorithm]\nname = \"slowmo\"\nbase = \"easgd\"\n[graph]\ntopology = \"star:9\"\n",
        ]
        .map(String::from),
    );
    for base in ["dpsgd", "matcha"] {
        for (variant, weights) in [("sound", "optimal"), ("released", "optimal"), ("written", "metropolis")] {
            configs.push(format!(
                "[algorithm]\nbase = \"{base}\"\nvariant = \"{variant}\"\n[graph]\ncopies = 3\n\
                 weights = \"{weights}\"\n"
            ));
        }
    }
    let mut below = Vec::new();
    for config in configs {
        let (summary, _) = complete(&config);
        assert_eq!(summary.status, Status::Finished, "{config}");
        let (mean, model) = (summary.mean_accuracy, summary.averaged_model_accuracy);
        if mean < 0.95 || model < 0.95 {
            below.push((mean, model, config));
        }
    }
    assert!(below.is_empty(), "{below:#?}");
}

/// The checkpoint contains all state of an algorithm: state vectors, scalars, steps in flight, clocks.
pub fn every_algorithm_resumes_bit_for_bit() {
    for config in every_algorithm() {
        let config = format!("{config}[training]\nepochs = 2\n[clock]\nnetwork = \"edge\"\n");
        let (whole, expected) = complete(&config);
        let (experiment, mut engine) = prepare(&config);
        let mut recorder = Recorder { stop: Some(13), ..Default::default() };
        let start = Progress::start(experiment.workers());
        run(&experiment, &mut engine, start, &mut recorder).unwrap();
        let (progress, state) = recorder.snapshot.unwrap();
        // As stored in a checkpoint.
        let text = serde_json::to_string(&progress).unwrap();
        let progress = serde_json::from_str(&text).unwrap();
        let (experiment, mut engine) = prepare(&config);
        engine.restore(&state).unwrap();
        let rest = &mut Recorder::default();
        let second = run(&experiment, &mut engine, progress, rest).unwrap().summary;
        assert!(engine.state().unwrap() == expected, "{config}");
        assert_eq!(format!("{second:?}"), format!("{whole:?}"), "{config}");
    }
}

/// With the optimal alpha, the written variant warns about workers with nonpositive own weight, and diverges.
pub fn written_variant_with_optimal_alpha_warns_and_diverges() {
    let config = "[algorithm]\nvariant = \"written\"\n[training]\nlearning_rate = 0.4\nmomentum = 0.0\nepochs = 200\n";
    let (experiment, mut engine) = prepare(config);
    let mut recorder = Recorder::default();
    let summary = run(&experiment, &mut engine, Progress::start(8), &mut recorder).unwrap().summary;
    assert!(recorder.warnings[0].contains("workers [1, 3, 7]"), "{:?}", recorder.warnings);
    assert!(matches!(summary.status, Status::Diverged { .. }), "{:?}", summary.status);
}

/// From equal starts, averaging keeps the workers' batch-norm statistics closer to each other.
pub fn averaged_statistics_agree_better_than_local_ones() {
    let spread_of = |statistics: &str| {
        let (_, state) = complete(&format!(
            "model = \"cnn\"\n[algorithm]\nname = \"dpsgd\"\n[training]\nepochs = 4\nstart = \"equal\"\n\
             statistics = \"{statistics}\"\n"
        ));
        let (name, statistics) = &state[2];
        assert_eq!(name, "statistics");
        let width = statistics.len() / 8;
        let spread = |column: usize| {
            let values = (0..8).map(|worker| statistics[worker * width + column]);
            values.clone().fold(f32::MIN, f32::max) - values.fold(f32::MAX, f32::min)
        };
        assert!(statistics.iter().all(|value| value.is_finite()));
        (0..width).map(spread).sum::<f32>() / width as f32
    };
    let (local, averaged) = (spread_of("local"), spread_of("averaged"));
    assert!(averaged < 0.5 * local, "{averaged} and {local}");
}

/// Batch-norm statistics that workers average count in the bytes sent.
pub fn averaged_statistics_are_counted_as_sent() {
    let bytes = |statistics: &str| {
        let config = format!("model = \"cnn\"\n[training]\nepochs = 1\nstatistics = \"{statistics}\"\n");
        complete(&config).0.sent.bytes_sent
    };
    // 12 rounds of 24 messages, each with 2 x (16 + 32) statistics.
    assert_eq!(bytes("averaged") - bytes("local"), 12 * 24 * 96 * 4);
}

/// The loss on a worker's shard is measured without augmentation and without steps in between.
pub fn local_train_loss_excludes_augmentation() {
    let config = "[training]\nepochs = 3\nlocal_train_loss = true\n";
    let (mut experiment, _) = prepare(config);
    Arc::get_mut(&mut experiment.data).unwrap().augmentation = Augmentation::CropAndFlip;
    let mut engine = experiment.cpu_engine(model(experiment.network.clone()));
    let mut events = Vec::new();
    let mut keep = |event: &Event| {
        events.push(event.clone());
        ControlFlow::Continue
    };
    let summary = run(&experiment, &mut engine, Progress::start(8), &mut keep).unwrap().summary;
    let model = model(experiment.network.clone());
    let models = &engine.state().unwrap()[0].1;
    for node in &summary.per_worker {
        let share = experiment.sampler.shards().images[node.id].iter().map(|&image| Pick::whole(image));
        let batch = experiment.data.scaling.batch(&experiment.data.train, share);
        let width = model.layout().parameter_count();
        let known = model.score(&models[node.id.0 * width..][..width], &[], &batch).loss;
        assert!((node.local_train_loss.unwrap() - known).abs() < 1e-6);
    }
    let last = events.iter().rev().find_map(|event| match event {
        Event::Epoch { local_train_losses, .. } => local_train_losses.clone(),
        _ => None,
    });
    let losses: Vec<f64> = summary.per_worker.iter().map(|node| node.local_train_loss.unwrap()).collect();
    assert_eq!(last, Some(losses));
}

/// An engine whose number of workers differs from that of the experiment is an error.
pub fn engine_of_wrong_size_is_rejected() {
    let (_, mut engine) = prepare("[graph]\ntopology = \"ring:4\"\n");
    let (experiment, _) = prepare("");
    let error = run(&experiment, &mut engine, Progress::start(8), &mut Recorder::default());
    let said = error.unwrap_err().to_string();
    assert!(said.contains("this process holds 8 workers, but the engine has 4"), "{said}");
}

/// Warnings consider the links of all rounds, not only of the first.
pub fn warnings_consider_the_whole_schedule() {
    let warnings = |config: &str| prepare(config).0.warnings;
    for seed in 1..5 {
        let config = format!("seed = {seed}\n[algorithm]\nvariant = \"written\"\nbase = \"matcha\"\n");
        assert!(warnings(&config)[0].contains("[0, 1, 7]"), "{:?}", warnings(&config));
    }
    let rotating = "[algorithm]\nvariant = \"written\"\n[graph]\ncopies = 3\n";
    assert!(warnings(rotating)[0].contains("weigh their own model 0 or less"));
    let released = warnings("[algorithm]\nvariant = \"released\"\n");
    assert!(released[0].contains("into 2 disconnected groups"), "{released:?}");
    // Alone each copy is in pieces; together they are not.
    let matching = "[graph]\ntopology = \"matchings:GRAPH\"\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.txt");
    std::fs::write(&file, "0-1 2-3\n").unwrap();
    let matching = matching.replace("GRAPH", file.to_str().unwrap());
    assert!(warnings(&matching)[0].contains("into 2 disconnected groups, which train independently"));
    // Averages of all join what links do not.
    for (name, round) in [("gossip-pga", 7), ("slowmo", 7)] {
        let averages = format!("{matching}[algorithm]\nname = \"{name}\"\n");
        let averages = match name {
            "slowmo" => format!("{averages}base = \"dpsgd\"\n"),
            _ => format!("{averages}period = 8\n"),
        };
        let so = format!("which only global averages connect, for the first time after round {round}");
        let warned = warnings(&averages);
        assert!(warned.iter().any(|warning| warning.contains(&so)), "{name}: {warned:?}");
        let alone = |warning: &String| warning.contains("train independently");
        assert!(!warned.iter().any(alone), "{name}: {warned:?}");
    }
    assert!(warnings(&format!("{matching}copies = 3\n")).is_empty());
}

/// The written variant diverges even at the default learning rate.
pub fn written_variant_diverges_at_the_default_rate() {
    let (summary, _) = complete("[algorithm]\nvariant = \"written\"\n");
    assert!(matches!(summary.status, Status::Diverged { .. }), "{summary:?}");
}

/// Runs several configurations on one engine, each on its own thread, from the start or from a snapshot.
fn run_on_shared_engine(configs: &[String], mut stopped: Vec<Option<(Progress, State)>>) -> Vec<(Summary, State)> {
    stopped.resize(configs.len(), None);
    let prepared: Vec<Experiment> = configs.iter().map(|config| prepare(config).0).collect();
    let experiments: Vec<&Experiment> = prepared.iter().collect();
    let specs: Vec<EngineSpec> = prepared.iter().map(Experiment::engine_spec).collect();
    let spec = EngineSpec::join(&specs).unwrap();
    let mut engine = CpuEngine::new(model(spec.network.clone()), &spec);
    let (host, shares) = share(&specs, &engine.layout().clone());
    std::thread::scope(|scope| {
        let threads: Vec<_> = experiments
            .iter()
            .zip(shares)
            .zip(stopped)
            .map(|((experiment, mut share), stopped)| {
                scope.spawn(move || {
                    let start = match stopped {
                        None => Progress::start(experiment.workers()),
                        Some((progress, state)) => {
                            share.restore(&state).unwrap();
                            progress
                        }
                    };
                    let mut recorder = Recorder::default();
                    let result = run(experiment, &mut share, start, &mut recorder).unwrap();
                    (result.summary, share.state().unwrap())
                })
            })
            .collect();
        host.serve(&mut engine);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Algorithms, sizes, seeds, rates and lengths may differ. One run diverges and does not affect the others.
pub fn runs_on_a_shared_engine_match_separate_runs() {
    let configs: Vec<String> = [
        "seed = 1\n[algorithm]\nname = \"dpsgd\"\n[training]\nepochs = 3\n",
        "seed = 2\n[algorithm]\nbase = \"choco\"\ncompressor = \"random-k\"\n[training]\nepochs = 2\n",
        "seed = 3\n[algorithm]\nname = \"easgd\"\n[graph]\ntopology = \"star:4\"\n[training]\nepochs = 1\n",
        "seed = 4\n[algorithm]\nname = \"d2\"\n[graph]\ntopology = \"ring:5\"\n[training]\nepochs = 2\n\
         learning_rate = 0.02\n",
        "seed = 5\n[algorithm]\nname = \"local-sgd\"\n[training]\nepochs = 3\nlearning_rate = 1e9\n",
    ]
    .map(|config| format!("model = \"cnn\"\n{config}statistics = \"averaged\"\n"))
    .to_vec();
    let found = run_on_shared_engine(&configs, vec![]);
    for (config, (summary, state)) in configs.iter().zip(found) {
        let (alone, expected) = complete(config);
        assert_eq!(format!("{summary:?}"), format!("{alone:?}"), "{config}");
        assert!(bits(&state) == bits(&expected), "{config}");
        let diverges = config.contains("1e9");
        let diverged = matches!(summary.status, Status::Diverged { .. });
        assert_eq!(diverges, diverged, "{config}");
    }
}

fn bits(state: &State) -> Vec<(String, Vec<u32>)> {
    let bits = |array: &Vec<f32>| array.iter().map(|x| x.to_bits()).collect();
    let arrays = state.iter();
    arrays.map(|(name, array)| (name.clone(), bits(array))).collect()
}

/// All runs restore their states at the same time, and none is lost.
pub fn runs_resume_on_a_shared_engine() {
    let configs: Vec<String> = (1..=6).map(|seed| format!("seed = {seed}\nmodel = \"softmax\"\n{SHORT}")).collect();
    let stop = |config: &String| {
        let (experiment, mut engine) = prepare(config);
        let start = Progress::start(experiment.workers());
        let mut recorder = Recorder { stop: Some(20), ..Recorder::default() };
        run(&experiment, &mut engine, start, &mut recorder).unwrap();
        recorder.snapshot
    };
    let expected: Vec<_> = configs.iter().map(|config| complete(config)).collect();
    for _ in 0..5 {
        let found = run_on_shared_engine(&configs, configs.iter().map(stop).collect());
        for ((summary, state), (alone, expected)) in found.iter().zip(&expected) {
            assert_eq!(summary.mean_accuracy, alone.mean_accuracy);
            assert!(bits(state) == bits(expected));
        }
    }
}

/// The error names the setting that prevents runs from sharing an engine.
pub fn incompatible_runs_cannot_share_an_engine() {
    for (other, expected) in [
        ("model = \"mlp:8\"\n", "the model must be the same"),
        ("[training]\nbatch_size = 8\n", "training.batch_size must be the same"),
        ("[training]\nmomentum = 0.5\n", "the optimizer and its options must be the same"),
        ("[data]\ntrain_examples = 900\n", "the data must be the same"),
        ("[algorithm]\nname = \"ad-psgd\"\n", "an asynchronous algorithm"),
    ] {
        let (first, second) = (prepare("").0, prepare(other).0);
        let error = EngineSpec::join(&[first.engine_spec(), second.engine_spec()]).unwrap_err();
        assert!(error.contains(expected), "{other}: {error}");
    }
}

/// Generates a test for every check of the [suite](crate::engine_suite). `$model` is the function that builds a model
/// of a network.
#[macro_export]
macro_rules! engine_conformance {
    ($model:path) => {
        $crate::engine_conformance! { $model:
            al_dsgd_without_pull_equals_its_base
            matcha_with_full_budget_equals_dpsgd
            dpsgd_on_a_complete_graph_equals_all_reduce
            all_reduce_equals_one_worker_with_the_joined_batch
            ad_psgd_in_virtual_time_preserves_the_mean
            messages_and_bytes_are_counted
            one_worker_equals_plain_sgd
            stopped_run_resumes_bit_for_bit
            every_algorithm_and_variant_learns_the_digits
            every_algorithm_resumes_bit_for_bit
            written_variant_with_optimal_alpha_warns_and_diverges
            averaged_statistics_agree_better_than_local_ones
            averaged_statistics_are_counted_as_sent
            local_train_loss_excludes_augmentation
            engine_of_wrong_size_is_rejected
            warnings_consider_the_whole_schedule
            written_variant_diverges_at_the_default_rate
            runs_on_a_shared_engine_match_separate_runs
            runs_resume_on_a_shared_engine
            incompatible_runs_cannot_share_an_engine
        }
    };
    ($model:path: $($check:ident)*) => {
        $(
            #[test]
            fn $check() {
                $crate::engine_suite::test_with($model);
                $crate::engine_suite::$check();
            }
        )*
    };
}
