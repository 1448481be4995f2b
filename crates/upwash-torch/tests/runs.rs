//! The engine conformance suite, on libtorch on the CPU.
#![cfg(feature = "libtorch")]

use std::sync::Arc;
use upwash::engine::Model;
use upwash::model::Network;
use upwash_torch::{TorchCpuModel, TorchNetwork};

fn model(network: Network) -> Arc<dyn Model> {
    let input = network.input;
    Arc::new(TorchCpuModel::new(Arc::new(TorchNetwork::new(network)), input))
}

upwash_testkit::engine_conformance!(model);
