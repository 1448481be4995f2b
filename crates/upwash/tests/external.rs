//! A custom training loop that drives the library round by round gives the same results as the built-in loop.
#![allow(clippy::unwrap_used)]

use upwash::engine::{Engine, Model};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{Progress, RunError};
use upwash::transport::InProcess;
use upwash::{Config, ExternalState, Node};
use upwash_testkit::{Quadratic, external_suite, golden, transport_suite};

#[test]
fn every_synchronous_algorithm_agrees_with_the_built_in_loop() {
    let rejected = external_suite::check(golden::cases(1), |experiment, drive| {
        drive(&mut InProcess::new(experiment.workers()));
    });
    let mut expected = vec!["al-dsgd-qg-momentum", "qg-momentum"];
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
