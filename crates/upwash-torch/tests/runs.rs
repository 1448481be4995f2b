//! Whole runs, on libtorch on the CPU: the same tests as Burn's.
#![cfg(feature = "libtorch")]
#![allow(clippy::unwrap_used)]

#[path = "../../upwash-burn/tests/runs/body.rs"]
mod body;

use std::sync::Arc;
use upwash::engine::Model;
use upwash::model::Network;
use upwash_torch::{OnCpu, TorchNetwork};

fn model(network: Network) -> Arc<dyn Model> {
    let input = network.input;
    Arc::new(OnCpu::new(Arc::new(TorchNetwork::new(network)), input))
}
