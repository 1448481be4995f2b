//! The engine conformance suite, on the native engine.

use std::sync::Arc;
use upwash::engine::{Model, NativeModel};
use upwash::model::Network;

fn model(network: Network) -> Arc<dyn Model> {
    Arc::new(NativeModel::new(network))
}

upwash_testkit::engine_conformance!(model);
