//! Between images and flat vectors. Outside, both are channels x height x width, as in data sets and in PyTorch.

use crate::instructions::vectorize;
use crate::pass::{Operation, Pass, Tensor};
use crate::{Real, Shape};

/// Calls `visit` with the position of every feature of every image in a flat tensor and in an image tensor.
fn each_feature(images: usize, flat_pitch: usize, shape: Shape, mut visit: impl FnMut(usize, usize)) {
    let area = shape.height * shape.width;
    for (index, row) in shape.rows(images).enumerate() {
        let (image, y) = (index / shape.height, index % shape.height);
        for channel in 0..shape.channels {
            let flat = image * flat_pitch + channel * area + y * shape.width;
            (0..shape.width).for_each(|x| visit(flat + x, row + x * shape.pitch + channel));
        }
    }
}

/// Writes the images of a batch, each channels x height x width, into a tensor.
pub(crate) fn load_images<R: Real, P: Copy + Into<f64>>(pixels: &[P], images: usize, shape: Shape, into: &mut [R]) {
    let features = shape.features();
    if shape.is_flat() {
        for (row, pixels) in into.chunks_exact_mut(shape.pitch).zip(pixels.chunks_exact(features)) {
            row.iter_mut().zip(pixels).for_each(|(x, &pixel)| *x = R::of(pixel.into()));
        }
        return;
    }
    each_feature(images, features, shape, |from, to| into[to] = R::of(pixels[from].into()));
}

/// Images as flat vectors.
#[derive(Debug)]
pub(crate) struct Flatten {
    pub(crate) input: Tensor,
    pub(crate) output: Tensor,
}

impl<R: Real> Operation<R> for Flatten {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.input, self.output]
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.output);
        let (flat, shape) = (pass.shape(self.output), pass.shape(self.input));
        let input = pass.value(self.input);
        vectorize(
            pass.arch,
            #[inline(always)]
            || each_feature(pass.images(), flat.pitch, shape, |to, from| output[to] = input[from]),
        );
        pass.put(self.output, output);
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        let (slopes, mut gradient) = (pass.take_sum(self.output), pass.take_sum(self.input));
        let (flat, shape) = (pass.shape(self.output), pass.shape(self.input));
        vectorize(
            pass.arch,
            #[inline(always)]
            || each_feature(pass.images(), flat.pitch, shape, |from, to| gradient[to] += slopes[from]),
        );
        pass.put_gradient(self.output, slopes);
        pass.put_gradient(self.input, gradient);
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        pass.drop_gradient(self.output);
    }
}
