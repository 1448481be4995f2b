//! Linear layers: y = W x + b on flat vectors.

use crate::buffer::Buffer;
use crate::convolve::{Sweep, Taps, Walk, Write};
use crate::packing::Packing;
use crate::pass::{Operation, Pass, Tensor};
use crate::product::Product;
use crate::{Real, Shape};
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
