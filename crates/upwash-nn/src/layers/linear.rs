//! Linear layers: y = W x + b on flat vectors.

use crate::buffer::Buffer;
use crate::convolve::{Sweep, Taps, Walk, Write};
use crate::packing::Packing;
use crate::pass::{Operation, Pass, Tensor};
use crate::product::Product;
use crate::{Instructions, Real, Shape};
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Linear {
    input: Tensor,
    output: Tensor,
    outputs: Shape,
    weights: Range<usize>,
    bias: Range<usize>,
    forward: Product,
    backward: Option<Product>,
    /// Its index among the layers.
    layer: usize,
}

impl Linear {
    pub(crate) fn new(
        (input, output): (Tensor, Tensor),
        [inputs, outputs]: [Shape; 2],
        (weights, bias): (Range<usize>, Range<usize>),
        (layer, needs_gradient): (usize, bool),
    ) -> Self {
        let width = inputs.channels;
        let rows =
            |shape: Shape, step: usize| (0..shape.pitch).map(move |row| (row < shape.channels).then_some(row * step));
        let forward = product(inputs, outputs, Packing::new(outputs.channels, width, rows(inputs, 1)));
        let backward = || product(outputs, inputs, Packing::new(width, 1, rows(outputs, width)));
        let backward = needs_gradient.then(backward);
        Self { input, output, outputs, weights, bias, forward, backward, layer }
    }
}

/// A matrix product: the examples of the batch are the pixels of a row.
fn product(from: Shape, to: Shape, packing: Packing) -> Product {
    let walk = |shape: Shape| Walk { origin: 0, image: 0, row: 0, column: shape.pitch };
    let taps = Taps { count: 1, pitch: 0, run: from.pitch, first_row: 0, row_step: 0, height: 1 };
    let (input, output, blocks) = (walk(from), walk(to), packing.blocks());
    let sweep = Sweep { images: 1, rows: 1, columns: 0, input, output, taps, blocks };
    Product { sweep, packing, slides: false }
}

impl<R: Real> Operation<R> for Linear {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.input, self.output]
    }

    fn prepare(&self, pass: &mut Pass<'_, R>) {
        let mut kept = pass.take_kept(self.layer);
        kept.packed.resize_with(2, Buffer::default);
        self.forward.pack(pass.arch, pass.parameters(&self.weights), &mut kept.packed[0]);
        kept.channels = vec![pass.padded(&self.bias, self.outputs.pitch)];
        pass.put_kept(self.layer, kept);
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.output);
        let kept = pass.take_kept(self.layer);
        let sweep = Sweep { columns: pass.images(), ..self.forward.sweep };
        let (input, write) = (pass.value(self.input), Write::Bias(&kept.channels[0]));
        self.forward.compute(pass.arch, sweep, input, &kept.packed[0], &mut output, write);
        pass.put_kept(self.layer, kept);
        pass.put(self.output, output);
    }

    fn prepare_backward(&self, pass: &mut Pass<'_, R>) {
        let mut kept = pass.take_kept(self.layer);
        if let Some(product) = &self.backward {
            product.pack(pass.arch, pass.parameters(&self.weights), &mut kept.packed[1]);
        }
        kept.gradient.first(self.forward.packing.len()).fill(R::default());
        kept.sums[0] = vec![0.0; self.outputs.pitch];
        pass.put_kept(self.layer, kept);
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        let slopes = pass.take_sum(self.output);
        let mut kept = pass.take_kept(self.layer);
        let sweep = Sweep { columns: pass.images(), ..self.forward.sweep };
        self.forward.add_gradient(pass.arch, sweep, pass.value(self.input), &slopes, &mut kept.gradient);
        super::add_channel_sums(pass.arch, self.outputs, pass.images(), &slopes, &mut kept.sums[0]);
        if let Some(product) = &self.backward {
            let (mut gradient, add) = pass.take_gradient(self.input);
            let sweep = Sweep { columns: pass.images(), ..product.sweep };
            let write = if add { Write::Add } else { Write::Store };
            product.compute(pass.arch, sweep, &slopes, &kept.packed[1], &mut gradient, write);
            pass.put_gradient(self.input, gradient);
        }
        pass.put_kept(self.layer, kept);
        pass.put_gradient(self.output, slopes);
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        let kept = pass.take_kept(self.layer);
        self.forward.packing.unpack(&kept.gradient, &mut pass.parameter_gradient[self.weights.clone()]);
        let bias = &mut pass.parameter_gradient[self.bias.clone()];
        bias.iter_mut().zip(&kept.sums[0]).for_each(|(bias, &sum)| *bias = R::of(sum));
        pass.put_kept(self.layer, kept);
        pass.drop_gradient(self.output);
    }
}

/// The product of a matrix with the transpose of another one. Both are stored in row-major order and have `depth`
/// columns; entry (i, j) of the result is row i of `left` times row j of `right`.
///
/// ```
/// use upwash_nn::{Instructions, multiply_transposed};
/// let (left, right) = ([1.0f32, 2.0, 3.0, 4.0], [5.0, 6.0]);
/// assert_eq!(multiply_transposed(Instructions::detect(), &left, &right, 2), [17.0, 39.0]);
/// ```
pub fn multiply_transposed<R: Real>(instructions: Instructions, left: &[R], right: &[R], depth: usize) -> Vec<R> {
    let (rows, columns) = (left.len() / depth, right.len() / depth);
    let (from, to) = (Shape::flat(depth), Shape::flat(columns));
    let packing = Packing::new(columns, depth, (0..from.pitch).map(|k| (k < depth).then_some(k)));
    let product = product(from, to, packing);
    let mut packed = Buffer::default();
    product.pack(instructions.arch(), right, &mut packed);
    let mut input = vec![R::default(); rows * from.pitch];
    for (padded, row) in input.chunks_exact_mut(from.pitch).zip(left.chunks_exact(depth)) {
        padded[..depth].copy_from_slice(row);
    }
    let mut output = vec![R::default(); rows * to.pitch];
    let sweep = Sweep { columns: rows, ..product.sweep };
    product.compute(instructions.arch(), sweep, &input, &packed, &mut output, Write::Store);
    output.chunks_exact(to.pitch).flat_map(|row| &row[..columns]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_with_a_transposed_matrix_matches_sums_by_hand() {
        for (rows, columns, depth) in [(1, 1, 1), (3, 5, 7), (17, 33, 40), (64, 10, 16)] {
            let entry = |i: usize| (i * 37 % 11) as f64 - 5.0;
            let left: Vec<f64> = (0..rows * depth).map(entry).collect();
            let right: Vec<f64> = (0..columns * depth).map(|i| entry(i + 3)).collect();
            let dot = |i: usize, j: usize| (0..depth).map(|k| left[i * depth + k] * right[j * depth + k]).sum();
            let expected: Vec<f64> = (0..rows * columns).map(|i| dot(i / columns, i % columns)).collect();
            for instructions in Instructions::available() {
                assert_eq!(multiply_transposed(instructions, &left, &right, depth), expected, "{instructions}");
            }
        }
    }
}
