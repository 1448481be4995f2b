//! The GPU engine of Upwash, on libtorch: all workers of a process on one GPU, their round captured
//! once as a CUDA graph and replayed.
//!
//! Built with the feature `libtorch`, which needs libtorch 2.11; without it this crate is empty.
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
/// The tch that modules must be made with.
pub use tch;
