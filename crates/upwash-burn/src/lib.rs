//! Trains your own Burn modules with Upwash, on Burn's `flex` backend: pure Rust, nothing to install.
//!
//! Burn computes gradients. Everything else (replicas, optimizer, mixing) happens in [`CpuEngine`], on flat vectors.
//! Calls into Burn are single-threaded, because the cores are busy with other workers.

mod module;
mod network;

pub use module::{BurnModule, Classifier};
pub use network::BurnNetwork;

use std::sync::Arc;
use upwash::engine::{CpuEngine, Engine, EngineError, EngineSpec};

/// Creates the engine for built-in networks; pass it to [`Trainer::engine`](upwash::Trainer::engine).
pub fn engine(spec: &EngineSpec) -> Result<Box<dyn Engine>, EngineError> {
    let network = BurnNetwork::new(spec.network.clone());
    Ok(Box::new(CpuEngine::new(Arc::new(network), spec)))
}

/// The version of Burn that modules must use.
pub use burn;
