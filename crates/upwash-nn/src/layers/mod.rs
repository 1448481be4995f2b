//! The layers, one file for each kind.

mod activation;
mod batch_norm;
mod conv;
mod layer_norm;
mod linear;
mod loss;
mod pool;
mod reshape;
mod sum;

pub(crate) use activation::Activation;
pub use activation::Function;
pub(crate) use batch_norm::{BatchNorm, Moments, Normalize};
pub(crate) use conv::Conv;
pub use conv::Kernel;
pub(crate) use layer_norm::LayerNorm;
pub(crate) use linear::Linear;
pub use linear::multiply_transposed;
pub(crate) use loss::cross_entropy;
pub(crate) use pool::{GlobalAverage, MaxPool};
pub(crate) use reshape::{Flatten, load_images};
pub(crate) use sum::Sum;

use crate::instructions::vectorize;
use crate::{Real, Shape};
use pulp::Arch;

/// Adds the sum of every channel over the pixels of all images to `totals`, which has one number per element of a pixel.
/// Sums over an image are of the type of the elements; sums over images are f64.
fn add_channel_sums<R: Real>(arch: Arch, shape: Shape, images: usize, values: &[R], totals: &mut [f64]) {
    let mut sums = vec![R::default(); shape.pitch];
    vectorize(
        arch,
        #[inline(always)]
        || {
            for (index, row) in shape.rows(images).enumerate() {
                for pixel in values[row..][..shape.row_len()].chunks_exact(shape.pitch) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, &value)| *sum += value);
                }
                if (index + 1) % shape.height == 0 {
                    drain(&mut sums, totals);
                }
            }
        },
    );
}

/// Adds sums to totals and sets them to 0.
#[inline(always)]
fn drain<R: Real>(sums: &mut [R], totals: &mut [f64]) {
    for (total, sum) in totals.iter_mut().zip(sums) {
        *total += std::mem::take(sum).to_f64();
    }
}
