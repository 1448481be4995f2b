//! Compares the losses of every algorithm on the digits, with gradients by Burn, with recorded ones. They are
//! bit-identical on the processor model on which they were recorded.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use upwash_burn::BurnNetwork;
use upwash_testkit::golden::{Bits, Trace, Traces, cases, check};

#[test]
fn losses_on_the_digits_match_the_golden_files() {
    for seed in [1, 2] {
        let trace =
            |config: &str| Trace::of(config, |experiment| Arc::new(BurnNetwork::new(experiment.network.clone())));
        let runs = cases(seed).into_iter();
        let found: Traces = runs.map(|(name, config)| (name, trace(&config))).collect();
        let file = format!("tests/golden/digits-seed-{seed}.json");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        check(&file, "burn", Bits::OnTheSameProcessor, &found);
    }
}
