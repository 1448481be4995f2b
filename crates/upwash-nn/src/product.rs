//! Sums of products: a sweep over pixels with the packing of its weights. Every convolution and every linear layer is
//! made of these.

use crate::Real;
use crate::buffer::Buffer;
use crate::convolve::{Convolve, Sweep, WeightGradient, Write};
use crate::instructions::vectorize;
use crate::packing::Packing;
use crate::slide::{Slide, SlideGradient};
use pulp::Arch;

/// A sweep over the pixels of an output and the weights that it needs.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) sweep: Sweep,
    pub(crate) packing: Packing,
    /// Whether this is a 3x3 convolution with stride 1, whose input elements are used three times each.
    pub(crate) slides: bool,
}

impl Product {
    /// Packs the weights into a buffer.
    pub(crate) fn pack<R: Real>(&self, arch: Arch, weights: &[R], into: &mut Buffer<R>) {
        let packed = into.first(self.packing.len());
        vectorize(
            arch,
            #[inline(always)]
            || self.packing.pack(weights, packed),
        );
    }

    /// Computes the product with packed weights.
    pub(crate) fn compute<R: Real>(
        &self,
        arch: Arch,
        sweep: Sweep,
        input: &[R],
        weights: &[R],
        output: &mut [R],
        write: Write<'_, R>,
    ) {
        match self.slides {
            true => arch.dispatch(Slide { sweep, input, weights, output, write }),
            false => arch.dispatch(Convolve { sweep, input, weights, output, write }),
        }
    }

    /// Adds the gradient of the weights to `gradient`, in packed form.
    pub(crate) fn add_gradient<R: Real>(
        &self,
        arch: Arch,
        sweep: Sweep,
        input: &[R],
        slopes: &[R],
        gradient: &mut [R],
    ) {
        match self.slides {
            true => arch.dispatch(SlideGradient { sweep, input, slopes, gradient }),
            false => arch.dispatch(WeightGradient { sweep, input, slopes, gradient }),
        }
    }
}
