//! The built-in optimizers against PyTorch and lion-pytorch (`tests/data/optimizers.py`), over 20 steps with gradients of
//! sizes from 0.1 to 100.
#![allow(clippy::unwrap_used)]

use serde::Deserialize;
use std::collections::BTreeMap;
use upwash::algorithm::Registry;
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};
use upwash::model::Layout;
use upwash::optimizer::{StepContext, clip};
use upwash::{Event, Trainer};

#[derive(Deserialize)]
struct Reference {
    shapes: Vec<(String, Vec<usize>)>,
    start: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    #[serde(rename = "final")]
    ends: BTreeMap<String, Vec<f64>>,
}

fn config(training: &str) -> Config {
    Config::parse(&format!("[training]\n{training}"), &[]).unwrap()
}

/// The model after all steps.
fn trained(reference: &Reference, training: &str, rate: f64) -> Vec<f32> {
    let layout = Layout::new(reference.shapes.iter().cloned(), []);
    let optimizer = config(training).training.built_in_optimizer();
    let optimizer = optimizer.for_layout(&layout).unwrap_or(optimizer);
    let mut model = reference.start.clone();
    let mut state = vec![vec![0.0f32; model.len()]; optimizer.state_vectors().len()];
    for (index, gradient) in (0..).zip(&reference.gradients) {
        let mut direction = gradient.clone();
        if let Some(norm) = config(training).training.clip {
            clip(&mut direction, norm);
        }
        let mut state: Vec<&mut [f32]> = state.iter_mut().map(|vector| &mut vector[..]).collect();
        optimizer.direction(StepContext { index, learning_rate: rate }, &model, &mut state, &mut direction);
        model.iter_mut().zip(direction).for_each(|(x, d)| *x -= rate as f32 * d);
    }
    model
}

#[test]
fn optimizers_match_their_published_implementations() {
    let reference: Reference = serde_json::from_str(include_str!("data/optimizers.json")).unwrap();
    for (case, training, rate) in [
        ("sgd", "momentum = 0.9\nnesterov = true\nweight_decay = 0.01", 0.01),
        ("sgd clipped", "clip = 2.0", 0.01),
        ("adamw", "optimizer = \"adamw\"", 0.01),
        (
            "adamw all",
            "optimizer = \"adamw\"\nbetas = [0.8, 0.95]\nepsilon = 1e-3\nweight_decay = 0.2\n\
             decay_norms_and_biases = true",
            0.01,
        ),
        ("lion", "optimizer = \"lion\"\nweight_decay = 0.3", 0.01),
        ("muon", "optimizer = \"muon\"", 0.02),
    ] {
        let (found, known) = (trained(&reference, training, rate), &reference.ends[case]);
        let largest = known.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        for (index, (x, y)) in found.iter().zip(known).enumerate() {
            let error = (f64::from(*x) - y).abs() / largest;
            assert!(error < 1e-6, "{case}, parameter {index}: {x}, not {y}");
        }
    }
}

/// Every algorithm that leaves the momentum to the optimizer trains with every optimizer.
#[test]
fn every_algorithm_learns_the_digits_with_every_optimizer() {
    let mut worst: BTreeMap<String, f64> = BTreeMap::new();
    for (optimizer, rate) in [("adamw", 0.01), ("lion", 0.003), ("muon", 0.02)] {
        for name in Registry::standard().iter().map(|definition| definition.name) {
            // Nine outer steps are too few for the outer momentum of the paper.
            let options = if name == "diloco" { "outer_momentum = 0.5\n" } else { "" };
            let config = |graph: &str| {
                let text = format!(
                    "[graph]\ntopology = \"{graph}\"\n[algorithm]\nname = \"{name}\"\n{options}[training]\nepochs = 12\n\
                     optimizer = \"{optimizer}\"\nlearning_rate = {rate}\ndecay = \"cosine\"\n"
                );
                Config::parse(&text, &[]).unwrap()
            };
            let refused = |graph: &str| {
                let error = Experiment::prepare(config(graph), &DataPaths::default()).err();
                error.map_or(String::new(), |error| error.to_string())
            };
            let graph = if refused("complete:4").contains("needs a server") { "star:5" } else { "complete:4" };
            if ["qg-momentum", "decentlam"].contains(&name) {
                assert!(refused(graph).contains("applies the momentum of SGD itself"), "{}", refused(graph));
                continue;
            }
            let summary = Trainer::new(config(graph)).run().unwrap();
            worst.insert(format!("{name} with {optimizer}"), summary.mean_accuracy);
        }
    }
    let failed: Vec<_> = worst.iter().filter(|(_, accuracy)| **accuracy < 0.95).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Gradients are clipped as PyTorch clips them, and events say how often.
#[test]
fn clipped_gradients_are_reported() {
    let run = |clip: f64| {
        let mut parts = vec![];
        let text = format!("[training]\nepochs = 3\nclip = {clip}\n");
        let trainer = Trainer::new(Config::parse(&text, &[]).unwrap());
        let observed = trainer.observe(|event| {
            if let Event::Epoch { clipped, .. } = event {
                parts.push(clipped.clone().unwrap()[0]);
            }
        });
        let accuracy = observed.run().unwrap().mean_accuracy;
        (parts, accuracy)
    };
    let (parts, accuracy) = run(0.01);
    assert!(parts.iter().all(|part| *part == 1.0) && parts.len() == 3, "{parts:?}");
    assert!(accuracy < 0.9, "steps of length 0.0005 cannot learn the digits in 3 epochs: {accuracy}");
    let (parts, _) = run(1e6);
    assert!(parts.iter().all(|part| *part == 0.0), "{parts:?}");
}
