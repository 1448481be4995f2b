//! The GPU engine of Upwash, on libtorch: all workers of a process on one GPU, their round captured
//! once as a CUDA graph and replayed.
//!
//! Built with the feature `libtorch`, which needs libtorch 2.11; without it this crate is empty.
#![cfg(feature = "libtorch")]

mod cuda;
mod model;
mod module;
mod needs;
mod network;
mod shim;

pub use cuda::{CudaEngine, CudaOptions, Precision};
pub use model::{BoundModel, OnCpu, TorchModel};
pub use module::TorchModule;
pub use needs::Needs;
pub use network::TorchNetwork;
pub use shim::{Cuda, Memory, TorchError};
/// The tch that modules must be made with.
pub use tch;
