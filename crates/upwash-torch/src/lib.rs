//! The GPU engine of Upwash, on libtorch: all workers of a process train on one GPU, in a round that is captured once
//! as a CUDA graph and replayed. `TorchCpuModel` computes the same networks on the CPU.
//!
//! Needs the feature `libtorch` and libtorch 2.11; without the feature this crate is empty.
#![cfg(feature = "libtorch")]

mod cuda;
mod memory_estimate;
mod model;
mod module;
mod network;
mod shim;

pub use cuda::{CudaEngine, CudaOptions, Precision};
pub use memory_estimate::MemoryEstimate;
pub use model::{BoundModel, TorchCpuModel, TorchModel};
pub use module::TorchModule;
pub use network::TorchNetwork;
pub use shim::{Cuda, Memory, TorchError};
/// The version of tch that modules must use.
pub use tch;

use std::sync::Arc;
use upwash::engine::{CpuEngine, Engine, EngineError, EngineSpec};

/// All workers on the CPU, for [`Trainer::engine`](upwash::Trainer::engine).
pub fn cpu_engine(spec: &EngineSpec) -> Result<Box<dyn Engine>, EngineError> {
    let network = TorchNetwork::new(spec.network.clone());
    let model = TorchCpuModel::new(Arc::new(network), spec.network.input);
    Ok(Box::new(CpuEngine::new(Arc::new(model), spec)))
}

/// All workers on one GPU, for [`Trainer::engine`](upwash::Trainer::engine).
pub fn cuda_engine(options: CudaOptions) -> impl FnOnce(&EngineSpec) -> Result<Box<dyn Engine>, EngineError> {
    move |spec| {
        let network = TorchNetwork::new(spec.network.clone());
        let engine = CudaEngine::new(spec, &network, options);
        Ok(Box::new(engine.map_err(|error| EngineError::Device(error.to_string()))?))
    }
}
