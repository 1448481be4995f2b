//! The GPU engine of Upwash, on libtorch: all workers of a process train on one GPU, in a round that is captured once
//! as a CUDA graph and replayed. [`TorchCpuModel`] computes the same networks on the CPU.
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
