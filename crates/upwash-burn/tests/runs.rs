//! Whole runs, on Burn.

#![allow(clippy::unwrap_used)]

#[path = "runs/body.rs"]
mod body;

use std::sync::Arc;
use upwash::engine::Model;
use upwash::model::Network;
use upwash_burn::BurnNetwork;

fn model(network: Network) -> Arc<dyn Model> {
    Arc::new(BurnNetwork::new(network))
}
