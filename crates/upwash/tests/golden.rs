//! The losses of every algorithm on a quadratic model: the same bits on every machine.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use upwash::algorithm::Registry;
use upwash_testkit::Quadratic;
use upwash_testkit::golden::{Bits, Trace, Traces, cases, check};

#[test]
fn golden_losses_on_a_quadratic() {
    let trace = |config: &str| Trace::of(config, |experiment| Arc::new(Quadratic::new(experiment.data.train.size())));
    let runs = cases(1).into_iter();
    let found: Traces = runs.map(|(name, config)| (name, trace(&config))).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quadratic.json");
    check(&file, "quadratic", Bits::Everywhere, &found);
}

#[test]
fn golden_runs_have_every_algorithm() {
    let all: Vec<String> = cases(1).into_values().collect();
    for known in Registry::standard().iter() {
        let name = format!("name = \"{}\"", known.name);
        let default = known.name == "al-dsgd";
        assert!(default || all.iter().any(|case| case.contains(&name)), "{name}");
    }
}

/// A recorded run that is not the one that is made is seen.
#[test]
fn golden_losses_can_differ() {
    let rounds = vec![vec![1.0, 2.0], vec![0.5, f64::NAN]];
    let mut other = rounds.clone();
    other[0][1] += 1e-12;
    let (one, other) = (Trace::new(&rounds, 2), Trace::new(&other, 2));
    assert_ne!(one.checksum, other.checksum);
    assert_eq!(one.distance(&other), 0.0);
    assert!(one.distance(&Trace::new(&rounds, 1)).is_infinite());
}
