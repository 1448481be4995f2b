//! Neural networks on the CPU: the loss of a batch and its gradient by all parameters, on one core.
//!
//! A [`Network`] is built from layers whose parameters are ranges of one flat vector. It owns neither parameters nor
//! memory, so that many workers can share it, each on its own core with a [`Workspace`] of its own. Nothing here starts
//! a thread.
//!
//! Convolutions and matrix products are loops over register tiles, with the best vector [`Instructions`] that the
//! processor has. The results are the same bits on all processors with the same instructions.

mod buffer;
mod convolve;
mod describe;
mod instructions;
mod layer;
mod layers;
mod network;
mod packing;
mod pass;
mod product;
mod real;
mod shape;
mod slide;
mod sums;
mod timing;

pub use describe::CompiledNetwork;
pub use instructions::Instructions;
pub use layer::Layer;
pub use layers::{Function, Kernel, multiply_transposed};
pub use network::{Network, NormRanges, Outcome};
pub use pass::{Operation, Pass, Statistics, Tensor, Workspace};
pub use real::Real;
pub use shape::Shape;
pub use timing::{Cost, LayerTime};

/// The number of channels that are computed together.
pub const BLOCK: usize = 16;
