//! The CPU engine of Upwash, on Burn's `flex` backend: pure Rust, nothing to install.
//!
//! Burn computes gradients; everything else (replicas, optimizer, mixing) is the
//! [`CpuEngine`]'s, on flat vectors. Inside, every call is single-threaded: the
//! cores are busy with other workers.

mod module;
mod network;

pub use module::{BurnModule, Classifier};
pub use network::BurnNetwork;

use std::sync::Arc;
use upwash::engine::{CpuEngine, Engine, EngineError, EngineSpec};

/// The engine for built-in networks, as [`Trainer::engine`](upwash::Trainer::engine) takes it.
pub fn engine(spec: &EngineSpec) -> Result<Box<dyn Engine>, EngineError> {
    let network = BurnNetwork::new(spec.network.clone());
    Ok(Box::new(CpuEngine::new(Arc::new(network), spec)))
}

/// The Burn that modules must be made with.
pub use burn;

/// The README's programs are compiled by the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
