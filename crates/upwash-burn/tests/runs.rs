//! The engine conformance suite, on Burn.

use std::sync::Arc;
use upwash::engine::Model;
use upwash::model::Network;
use upwash_burn::BurnNetwork;

fn model(network: Network) -> Arc<dyn Model> {
    Arc::new(BurnNetwork::new(network))
}

upwash_testkit::engine_conformance!(model);
