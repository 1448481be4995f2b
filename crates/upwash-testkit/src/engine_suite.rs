//! A conformance suite for engines: whole runs, equivalences between algorithms, going on after a stop, learning,
//! divergence. [`engine_conformance!`](crate::engine_conformance) makes tests of it for the engine of one's own networks.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};
use upwash::algorithm::Registry;
use upwash::config::Config;
use upwash::data::{Augmentation, Batch, Pick};
use upwash::engine::{CpuEngine, Engine, EngineSpec, Model, State, share};
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::Network;
use upwash::run::{ControlFlow, Event, Observer, Progress, Status, Summary, TakeSnapshot, run};

/// Makes a network ready for the CPU engine.
pub type MakeModel = fn(Network) -> Arc<dyn Model>;

static MODEL: OnceLock<MakeModel> = OnceLock::new();

/// Says whose networks are tested in this program.
pub fn test_with(make: MakeModel) {
    MODEL.get_or_init(|| make);
}

fn model(network: Network) -> Arc<dyn Model> {
    MODEL.get().expect("test_with comes first")(network)
}

/// Keeps warnings; stops before round `stop` and keeps what is needed to go on.
#[derive(Default)]
struct Witness {
    stop: Option<u64>,
    kept: Option<(Progress, State)>,
    warnings: Vec<String>,
}

impl Observer for Witness {
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
        self.kept = Some(snapshot().unwrap());
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
    let outcome = run(&experiment, &mut engine, start, &mut Witness::default()).unwrap();
    (outcome.summary, engine.state().unwrap())
}

fn apart(a: &State, b: &State) -> f32 {
    let (a, b) = (&a[0].1, &b[0].1);
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

const SHORT: &str = "[training]\nepochs = 2\n";

/// Al dsgd without pull is its base.
pub fn al_dsgd_without_pull_is_its_base() {
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

/// Matcha with the whole budget is dpsgd.
pub fn matcha_with_the_whole_budget_is_dpsgd() {
    let matcha = complete(&format!("[algorithm]\nname = \"matcha\"\nbudget = 1.0\n{SHORT}")).1;
    let dpsgd = complete(&format!("[algorithm]\nname = \"dpsgd\"\n{SHORT}")).1;
    assert!(apart(&matcha, &dpsgd) < 1e-4, "{}", apart(&matcha, &dpsgd));
}

/// Everyone averages with everyone: from equal starts the models stay equal, and each is what one
/// model becomes that steps along the mean of all gradients.
pub fn the_complete_graph_is_an_all_reduce() {
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

/// From equal starts, every worker is what one model becomes with the batches of all joined.
pub fn an_all_reduce_is_one_worker_with_the_joined_batch() {
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
        let apart = x.iter().zip(worker).map(|(a, b)| (a - b).abs());
        let worst = apart.fold(0.0, f32::max);
        assert!(worst < 1e-3, "{worst}");
    }
}

/// With steps of next to nothing, pairwise averages are all that happens: the mean stays, and the
/// models come together.
pub fn ad_psgd_in_virtual_time_conserves_the_mean() {
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
        let apart = (mean(&before, column) - mean(&after, column)).abs();
        assert!(apart < 1e-6, "{apart}");
    }
    assert!(summary.consensus_distance < 0.05, "{}", summary.consensus_distance);
}

/// What is sent, by hand: 24 messages a round on L1 (12 links), 4,810 parameters, 12 rounds.
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
    // Every eighth round; and the slow step's average is that of the base where both are due.
    assert_eq!(sent("name = \"local-sgd\""), (14 * 8, 14 * vector));
    let slow = "name = \"slowmo\"\nperiod = 4\nslow_period = 4";
    assert_eq!(sent(slow), (3 * 14 * 8, 3 * 14 * vector));
    let server = (12 * 16, 12 * 16 * vector);
    assert_eq!(sent(&format!("name = \"easgd\"\n{star}")), server);
    assert_eq!(sent(&format!("name = \"parameter-server\"\n{star}")), server);
    // The leaders of two groups to three others each, and one of them to the other group too: of
    // every pull (rounds 4, 8 and 12) 3 + 3 + 4 messages, fewer where a leader leads twice.
    let (messages, _) = sent("name = \"lsgd\"");
    assert!((3 * 7..=3 * 10).contains(&messages), "{messages}");
    // 481 numbers and a bit for every place; whichever links are up, copies need all of them.
    let compressed = 4 * 481 + 4810_u64.div_ceil(8);
    let choco = (12 * 24, 12 * 24 * compressed);
    assert_eq!(sent("name = \"choco\""), choco);
    let turning = "name = \"choco\"\n[graph]\nlinks = \"alternating\"";
    assert_eq!(sent(turning), choco);
    // A gradient each: two messages a meeting.
    let meetings = (12 * 8 * 2, 12 * 8 * 2 * vector);
    assert_eq!(sent("name = \"ad-psgd\""), meetings);
    assert_eq!(sent(&format!("name = \"downpour\"\n{star}")), meetings);
}

/// One worker is plain sgd.
pub fn one_worker_is_plain_sgd() {
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

/// A run that was stopped goes on as if it never had.
pub fn a_run_that_was_stopped_goes_on_as_if_it_never_had() {
    for config in [
        "model = \"cnn\"\n[graph]\ncopies = 3\n[algorithm]\nbase = \"matcha\"\n[training]\nepochs = 2\n",
        "[algorithm]\noverlap = true\n[graph]\nweights = \"metropolis\"\n[training]\nepochs = 2\n\
         decay = \"cosine\"\n",
    ] {
        let (whole, expected) = complete(config);
        let (experiment, mut engine) = prepare(config);
        let mut witness = Witness { stop: Some(17), ..Default::default() };
        let first = run(&experiment, &mut engine, Progress::start(8), &mut witness).unwrap().summary;
        assert_eq!(first.status, Status::Interrupted { round: 17 });

        let (progress, state) = witness.kept.unwrap();
        let (experiment, mut engine) = prepare(config);
        engine.restore(&state).unwrap();
        let second = run(&experiment, &mut engine, progress, &mut Witness::default()).unwrap().summary;
        assert_eq!(engine.state().unwrap(), expected);
        assert_eq!(second, whole);
    }
}

/// Every algorithm that is built in, with a graph that it can use.
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

/// Every algorithm and variant learns the digits.
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

/// Whatever an algorithm keeps is in its checkpoint: extra vectors, numbers, steps in flight, clocks.
pub fn every_algorithm_goes_on_as_if_it_never_had_stopped() {
    for config in every_algorithm() {
        let config = format!("{config}[training]\nepochs = 2\n[clock]\nnetwork = \"edge\"\n");
        let (whole, expected) = complete(&config);
        let (experiment, mut engine) = prepare(&config);
        let mut witness = Witness { stop: Some(13), ..Default::default() };
        let start = Progress::start(experiment.workers());
        run(&experiment, &mut engine, start, &mut witness).unwrap();
        let (progress, state) = witness.kept.unwrap();
        // As a checkpoint has it.
        let text = serde_json::to_string(&progress).unwrap();
        let progress = serde_json::from_str(&text).unwrap();
        let (experiment, mut engine) = prepare(&config);
        engine.restore(&state).unwrap();
        let rest = &mut Witness::default();
        let second = run(&experiment, &mut engine, progress, rest).unwrap().summary;
        assert!(engine.state().unwrap() == expected, "{config}");
        assert_eq!(format!("{second:?}"), format!("{whole:?}"), "{config}");
    }
}

/// The written rule with the optimal alpha warns and diverges.
pub fn the_written_rule_with_the_optimal_alpha_warns_and_diverges() {
    let config = "[algorithm]\nvariant = \"written\"\n[training]\nlearning_rate = 0.4\nmomentum = 0.0\nepochs = 200\n";
    let (experiment, mut engine) = prepare(config);
    let mut witness = Witness::default();
    let summary = run(&experiment, &mut engine, Progress::start(8), &mut witness).unwrap().summary;
    assert!(witness.warnings[0].contains("workers [1, 3, 7]"), "{:?}", witness.warnings);
    assert!(matches!(summary.status, Status::Diverged { .. }), "{:?}", summary.status);
}

/// From equal starts, averaging keeps the workers' statistics nearer to each other.
pub fn averaged_statistics_agree_while_local_ones_do_not() {
    let apart = |statistics: &str| {
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
        assert!(statistics.iter().all(|number| number.is_finite()));
        (0..width).map(spread).sum::<f32>() / width as f32
    };
    let (local, averaged) = (apart("local"), apart("averaged"));
    assert!(averaged < 0.5 * local, "{averaged} and {local}");
}

/// Averaged statistics are counted as sent.
pub fn averaged_statistics_are_counted_as_sent() {
    let bytes = |statistics: &str| {
        let config = format!("model = \"cnn\"\n[training]\nepochs = 1\nstatistics = \"{statistics}\"\n");
        complete(&config).0.sent.bytes_sent
    };
    // 12 rounds of 24 messages, each with 2 x (16 + 32) statistics.
    assert_eq!(bytes("averaged") - bytes("local"), 12 * 24 * 96 * 4);
}

/// The loss on a share is the one without augmentation and steps.
pub fn the_loss_on_a_share_is_the_one_without_augmentation_and_steps() {
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
        let known = model.score(&models[node.id * width..][..width], &[], &batch).loss;
        assert!((node.local_train_loss.unwrap() - known).abs() < 1e-6);
    }
    let last = events.iter().rev().find_map(|event| match event {
        Event::Epoch { local_train_losses, .. } => local_train_losses.clone(),
        _ => None,
    });
    let losses: Vec<f64> = summary.per_worker.iter().map(|node| node.local_train_loss.unwrap()).collect();
    assert_eq!(last, Some(losses));
}

/// An engine of another size is refused.
pub fn an_engine_of_another_size_is_refused() {
    let (_, mut engine) = prepare("[graph]\ntopology = \"ring:4\"\n");
    let (experiment, _) = prepare("");
    let error = run(&experiment, &mut engine, Progress::start(8), &mut Witness::default());
    let said = error.unwrap_err().to_string();
    assert!(said.contains("this process holds 8 workers, but the engine has 4"), "{said}");
}

/// Warnings are about the whole schedule.
pub fn warnings_are_about_the_whole_schedule() {
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

/// The written rule diverges at the default rate too.
pub fn the_written_rule_diverges_at_the_default_rate_too() {
    let (summary, _) = complete("[algorithm]\nvariant = \"written\"\n");
    assert!(matches!(summary.status, Status::Diverged { .. }), "{summary:?}");
}

/// Runs that share an engine, each on a thread of its own, from the beginning or from where they were stopped.
fn together(configs: &[String], mut stopped: Vec<Option<(Progress, State)>>) -> Vec<(Summary, State)> {
    stopped.resize(configs.len(), None);
    let prepared: Vec<Experiment> = configs.iter().map(|config| prepare(config).0).collect();
    let experiments: Vec<&Experiment> = prepared.iter().collect();
    let specs: Vec<EngineSpec> = prepared.iter().map(Experiment::engine_spec).collect();
    let spec = EngineSpec::join(&specs).unwrap();
    let mut engine = CpuEngine::new(model(spec.network.clone()), &spec);
    let (owner, shares) = share(&specs, &engine.layout().clone());
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
                    let mut witness = Witness::default();
                    let outcome = run(experiment, &mut share, start, &mut witness).unwrap();
                    (outcome.summary, share.state().unwrap())
                })
            })
            .collect();
        owner.serve(&mut engine);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Algorithms, sizes, seeds, rates and lengths may differ; one diverges, and touches nobody.
pub fn runs_that_share_an_engine_come_out_as_apart() {
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
    let found = together(&configs, vec![]);
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

/// All take up their models at the same time: nobody's are lost.
pub fn runs_that_share_an_engine_go_on_there() {
    let configs: Vec<String> = (1..=6).map(|seed| format!("seed = {seed}\nmodel = \"softmax\"\n{SHORT}")).collect();
    let stop = |config: &String| {
        let (experiment, mut engine) = prepare(config);
        let start = Progress::start(experiment.workers());
        let mut witness = Witness { stop: Some(20), ..Witness::default() };
        run(&experiment, &mut engine, start, &mut witness).unwrap();
        witness.kept
    };
    let expected: Vec<_> = configs.iter().map(|config| complete(config)).collect();
    for _ in 0..5 {
        let found = together(&configs, configs.iter().map(stop).collect());
        for ((summary, state), (alone, expected)) in found.iter().zip(&expected) {
            assert_eq!(summary.mean_accuracy, alone.mean_accuracy);
            assert!(bits(state) == bits(expected));
        }
    }
}

/// What cannot share an engine is told.
pub fn what_cannot_share_an_engine_is_told() {
    for (other, said) in [
        ("model = \"mlp:8\"\n", "the model must be the same"),
        ("[training]\nbatch_size = 8\n", "training.batch_size must be the same"),
        ("[training]\nmomentum = 0.5\n", "momentum"),
        ("[data]\ntrain_examples = 900\n", "the data must be the same"),
        ("[algorithm]\nname = \"ad-psgd\"\n", "an algorithm without rounds"),
    ] {
        let (first, second) = (prepare("").0, prepare(other).0);
        let error = EngineSpec::join(&[first.engine_spec(), second.engine_spec()]).unwrap_err();
        assert!(error.contains(said), "{other}: {error}");
    }
}

/// Makes a test of every check in the [suite](crate::engine_suite), for networks that this function makes ready.
#[macro_export]
macro_rules! engine_conformance {
    ($model:path) => {
        $crate::engine_conformance! { $model:
            al_dsgd_without_pull_is_its_base
            matcha_with_the_whole_budget_is_dpsgd
            the_complete_graph_is_an_all_reduce
            an_all_reduce_is_one_worker_with_the_joined_batch
            ad_psgd_in_virtual_time_conserves_the_mean
            messages_and_bytes_are_counted
            one_worker_is_plain_sgd
            a_run_that_was_stopped_goes_on_as_if_it_never_had
            every_algorithm_and_variant_learns_the_digits
            every_algorithm_goes_on_as_if_it_never_had_stopped
            the_written_rule_with_the_optimal_alpha_warns_and_diverges
            averaged_statistics_agree_while_local_ones_do_not
            averaged_statistics_are_counted_as_sent
            the_loss_on_a_share_is_the_one_without_augmentation_and_steps
            an_engine_of_another_size_is_refused
            warnings_are_about_the_whole_schedule
            the_written_rule_diverges_at_the_default_rate_too
            runs_that_share_an_engine_come_out_as_apart
            runs_that_share_an_engine_go_on_there
            what_cannot_share_an_engine_is_told
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
