//! The engine conformance suite, on the native engine, and its independence of the number of threads.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use upwash::engine::{Model, NativeModel};
use upwash::model::Network;
use upwash_testkit::golden::Trace;

fn model(network: Network) -> Arc<dyn Model> {
    Arc::new(NativeModel::new(network))
}

upwash_testkit::engine_conformance!(model);

/// How workers are distributed over threads does not affect the result.
#[test]
fn one_and_two_threads_give_the_same_bits() {
    let config = "model = \"cnn\"\n[data]\ntrain_examples = 400\n[training]\nepochs = 2\nbatch_size = 16\n";
    let trace = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            assert_eq!(rayon::current_num_threads(), threads);
            Trace::of(config, |experiment| model(experiment.network.clone()))
        })
    };
    assert_eq!(trace(1), trace(2));
}
