//! The losses of every algorithm against recorded ones: on a quadratic model, where they are bit-identical on every
//! machine, and on the digits, where they are so with the vector instructions with which they were recorded.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use upwash::algorithm::Registry;
use upwash::engine::NativeModel;
use upwash_testkit::Quadratic;
use upwash_testkit::golden::{Bits, Trace, Traces, cases, check};

#[test]
fn losses_on_a_quadratic_match_the_golden_traces() {
    let trace = |config: &str| Trace::of(config, |experiment| Arc::new(Quadratic::new(experiment.data.train.size())));
    let runs = cases(1).into_iter();
    let found: Traces = runs.map(|(name, config)| (name, trace(&config))).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quadratic.json");
    check(&file, "quadratic", Bits::Everywhere, &found);
}

#[test]
fn losses_on_the_digits_match_the_golden_traces() {
    for seed in [1, 2] {
        let trace =
            |config: &str| Trace::of(config, |experiment| Arc::new(NativeModel::new(experiment.network.clone())));
        let runs = cases(seed).into_iter();
        let found: Traces = runs.map(|(name, config)| (name, trace(&config))).collect();
        let file = format!("tests/golden/digits-seed-{seed}.json");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        check(&file, "native", Bits::WithTheSameInstructions, &found);
    }
}

#[test]
fn golden_cases_cover_every_algorithm() {
    let all: Vec<String> = cases(1).into_values().collect();
    for definition in Registry::standard().iter() {
        let name = format!("name = \"{}\"", definition.name);
        let is_default = definition.name == "al-dsgd";
        assert!(is_default || all.iter().any(|case| case.contains(&name)), "{name}");
    }
}

/// The comparison with a recorded trace must be able to fail.
#[test]
fn traces_of_different_losses_differ() {
    let rounds = vec![vec![1.0, 2.0], vec![0.5, f64::NAN]];
    let mut other = rounds.clone();
    other[0][1] += 1e-12;
    let (one, other) = (Trace::new(&rounds, 2), Trace::new(&other, 2));
    assert_ne!(one.checksum, other.checksum);
    assert_eq!(one.distance(&other), 0.0);
    assert!(one.distance(&Trace::new(&rounds, 1)).is_infinite());
}
