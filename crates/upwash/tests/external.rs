//! A custom training loop that drives the library round by round gives the same results as the built-in loop.
#![allow(clippy::unwrap_used)]

use upwash::WorkerId;
use upwash::algorithm::Registry;
use upwash::engine::{Engine, Model, Score};
use upwash::experiment::{CustomParts, DataPaths, DatasetCache, Experiment, ExternalLoop};
use upwash::model::Layout;
use upwash::run::{Event, NextRound, Progress, RunCost, RunDirectory, RunError, RunLocation, Status};
use upwash::transport::InProcess;
use upwash::{Config, ExternalState, Node};
use upwash_testkit::{Quadratic, external_suite, golden, transport_suite};

#[test]
fn every_synchronous_algorithm_agrees_with_the_built_in_loop() {
    let rejected = external_suite::check(golden::cases(1), |experiment, drive| {
        drive(&mut InProcess::new(experiment.workers()));
    });
    let mut expected = vec!["al-dsgd-qg-momentum", "decentlam", "qg-momentum"];
    expected.extend(golden::ASYNCHRONOUS);
    expected.sort_unstable();
    assert_eq!(rejected, expected);
}

#[test]
fn averaging_statistics_of_a_model_without_batch_norm_is_allowed() {
    let text =
        "model = \"softmax\"\n[algorithm]\nname = \"dpsgd\"\n[training]\nepochs = 1\nstatistics = \"averaged\"\n";
    let cases = [("averaged".to_string(), text.to_string())].into();
    let rejected = external_suite::check(cases, |experiment, drive| {
        drive(&mut InProcess::new(experiment.workers()));
    });
    assert!(rejected.is_empty());
}

#[test]
fn in_process_transport_conforms() {
    transport_suite::check_process(&mut InProcess::new(3));
}

#[test]
fn models_of_the_wrong_size_and_calls_out_of_order_are_rejected() {
    let config = Config::parse("model = \"softmax\"\n[graph]\ntopology = \"ring:4\"\n", &[]);
    let experiment = Experiment::prepare(config.unwrap(), &DataPaths::default()).unwrap();
    let model = Quadratic::new(64);
    let start = vec![0.0; 64];
    let starts = vec![&start[..]; 4];
    let spec = experiment.engine_spec();
    let mut external = ExternalState::new(&spec, model.layout().clone(), &starts);
    let mut short = vec![vec![0.0; 63]; 4];
    let rows = short.iter_mut().map(|row| &mut row[..]).collect();
    let error = external.attach(rows, vec![]).err().unwrap().to_string();
    assert!(error.contains("a model of 64 values"), "{error}");
    let mut models = vec![start.clone(); 4];
    let rows: Vec<&mut [f32]> = models.iter_mut().map(|row| &mut row[..]).collect();
    let mut engine = external.attach(rows, vec![]).unwrap();
    assert!(engine.step(&[]).is_err());
    let (mut transport, mut observer) = (InProcess::new(4), ());
    let progress = Progress::start(4);
    let mut node = Node::new(&experiment, &engine, &mut transport, progress, &mut observer).unwrap();
    let error = node.finish_round(&mut engine, &[None; 4]).unwrap_err();
    assert!(matches!(error, RunError::NoRound));
}

/// An experiment of a loop with a model, data and an optimizer that are known to it alone.
fn unknown_parts(rounds: Option<u64>) -> Experiment {
    let text = "[graph]\ntopology = \"ring:4\"\nweights = \"metropolis\"\n[algorithm]\nname = \"dpsgd\"\n";
    let training_loop = ExternalLoop {
        data: "mine".into(),
        optimizer: "mine".into(),
        rounds,
        rounds_per_epoch: 5,
        batch_size: 1,
        fingerprint: 7,
    };
    let parts =
        CustomParts { model: Some("mine".into()), training_loop: Some(training_loop), ..CustomParts::default() };
    let config = Config::parse(text, &[]).unwrap();
    let cache = &mut DatasetCache::default();
    Experiment::prepare_custom(config, &DataPaths::default(), &Registry::standard(), cache, parts).unwrap()
}

/// D-PSGD on a ring of four, by hand: every worker averages its two neighbors and itself after its step.
#[test]
fn loop_with_unknown_parts_needs_no_data() {
    let experiment = unknown_parts(Some(12));
    assert_eq!((experiment.rounds(), experiment.config.training.epochs), (12, 3));
    let step = |x: &mut f32, worker: usize| *x -= 0.25 * (*x - worker as f32);
    let mut models: Vec<Vec<f32>> = (0..4).map(|worker| vec![worker as f32, 1.0]).collect();
    let mut expected = models.clone();
    let layout = Layout::new([("x".into(), vec![2])], []);
    let rows: Vec<&[f32]> = models.iter().map(Vec::as_slice).collect();
    let mut external = ExternalState::new(&experiment.engine_spec(), layout, &rows);
    let (mut transport, mut observer) = (InProcess::new(4), ());
    let engine = external.attach(models.iter_mut().map(|row| &mut row[..]).collect(), vec![]).unwrap();
    let mut node = Node::new(&experiment, &engine, &mut transport, Progress::start(4), &mut observer).unwrap();
    for _ in 0..12 {
        let mut engine = external.attach(models.iter_mut().map(|row| &mut row[..]).collect(), vec![]).unwrap();
        assert!(matches!(node.begin_round(&mut engine).unwrap(), NextRound::Run(_)));
        engine.before_step();
        models.iter_mut().enumerate().for_each(|(worker, row)| row.iter_mut().for_each(|x| step(x, worker)));
        let mut engine = external.attach(models.iter_mut().map(|row| &mut row[..]).collect(), vec![]).unwrap();
        engine.after_step();
        // A loop need not report losses.
        assert_eq!(node.finish_round(&mut engine, &[None; 4]).unwrap(), None);
        expected.iter_mut().enumerate().for_each(|(worker, row)| row.iter_mut().for_each(|x| step(x, worker)));
        let stepped = expected.clone();
        for (worker, row) in expected.iter_mut().enumerate() {
            for (index, x) in row.iter_mut().enumerate() {
                *x = [3, 4, 5].map(|next| stepped[(worker + next) % 4][index]).iter().sum::<f32>() / 3.0;
            }
        }
        for (x, y) in models.iter().flatten().zip(expected.iter().flatten()) {
            assert!((x - y).abs() < 1e-6, "{x} instead of {y}");
        }
    }
    let mut engine = external.attach(models.iter_mut().map(|row| &mut row[..]).collect(), vec![]).unwrap();
    assert_eq!(node.begin_round(&mut engine).unwrap(), NextRound::End(Status::Finished));
    // Without a known end, there is always another round.
    assert!(unknown_parts(None).rounds() > 1 << 30);
}

/// A loss that is not a number ends the run.
#[test]
fn diverged_external_loop_ends() {
    let experiment = unknown_parts(None);
    let mut models = vec![vec![0.0f32; 2]; 4];
    let starts = [&[0.0f32, 0.0][..]; 4];
    let layout = Layout::new([("x".into(), vec![2])], []);
    let mut external = ExternalState::new(&experiment.engine_spec(), layout, &starts);
    let (mut transport, mut observer) = (InProcess::new(4), ());
    let mut engine = external.attach(models.iter_mut().map(|row| &mut row[..]).collect(), vec![]).unwrap();
    let mut node = Node::new(&experiment, &engine, &mut transport, Progress::start(4), &mut observer).unwrap();
    node.begin_round(&mut engine).unwrap();
    let mut scores = [Some(Score { loss: 1.0, ..Score::default() }); 4];
    scores[2] = Some(Score { loss: f64::NAN, ..Score::default() });
    let status = node.finish_round(&mut engine, &scores).unwrap();
    assert_eq!(status, Some(Status::Diverged { worker: WorkerId(2), round: 0 }));
}

#[test]
fn directory_of_an_external_loop_continues_at_any_round() {
    let (folder, experiment) = (tempfile::tempdir().unwrap(), unknown_parts(Some(12)));
    let (top, location) = (folder.path().join("run"), RunLocation::local(&experiment));
    let events = || std::fs::read_to_string(top.join("events.jsonl")).unwrap();
    drop(RunDirectory::open_at(&top, &experiment, &location, 0).unwrap());
    let event =
        |round| Event::Round { round, losses: vec![1.0; 4], links: None, leaders: None, sent: RunCost::default() };
    let line = |round| serde_json::to_string(&event(round)).unwrap() + "\n";
    std::fs::write(top.join("events.jsonl"), (0..6).map(line).collect::<String>()).unwrap();
    let directory = RunDirectory::open_at(&top, &experiment, &location, 4).unwrap();
    assert_eq!(events().lines().count(), 4);
    let error = RunDirectory::open_at(&top, &experiment, &location, 4).err().unwrap().to_string();
    assert!(error.contains("a run is writing to"), "{error}");
    drop(directory);
    let error = RunDirectory::open_at(&top, &unknown_parts(Some(4)), &location, 4).err().unwrap().to_string();
    assert!(error.contains("training.epochs"), "{error}");
}
