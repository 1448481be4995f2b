//! Convolutions with square kernels.
//!
//! Kernels of 3x3 with padding 1 and of 1x1 without padding, with stride 1 or 2, are computed in place. Others go
//! through a copy of the input in which the pixels of each kernel position are side by side, which is slower.
//!
//! One file, because each pass of the layer depends on how its weights are packed for the others.

use crate::convolve::{Sweep, Taps, Walk, Write};
use crate::packing::Packing;
use crate::pass::{Operation, Pass, Tensor};
use crate::product::Product;
use crate::timing::Cost;
use crate::{BLOCK, Real, Shape, buffer::Buffer};
use std::ops::Range;

/// The geometry of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The number of output channels.
    pub outputs: usize,
    /// The side of the kernel.
    pub size: usize,
    /// The stride.
    pub stride: usize,
    /// The width of the zero padding.
    pub padding: usize,
}

impl Kernel {
    /// The shape of the output for an input of this shape.
    ///
    /// # Panics
    /// If the kernel is larger than the padded input.
    pub fn output(&self, input: Shape) -> Shape {
        let side = |side: usize| (side + 2 * self.padding - self.size) / self.stride + 1;
        Shape::image(self.outputs, side(input.height), side(input.width))
    }

    /// Whether the input is read in place.
    fn is_direct(&self) -> bool {
        matches!((self.size, self.padding, self.stride), (3, 1, 1 | 2) | (1, 0, 1 | 2))
    }

    fn slides(&self) -> bool {
        self.size == 3 && self.is_direct() && self.stride == 1
    }
}

#[derive(Debug)]
pub(crate) struct Conv {
    pub(crate) input: Tensor,
    pub(crate) output: Tensor,
    kernel: Kernel,
    /// The input and the output.
    shapes: [Shape; 2],
    weights: Range<usize>,
    bias: Option<Range<usize>>,
    forward: Product,
    /// The passes that together compute the gradient of the input: one for each phase of the stride. `None` for the
    /// input of the network, whose gradient nobody needs.
    backward: Option<Vec<Product>>,
    /// Its index among the layers.
    layer: usize,
}

impl Conv {
    pub(crate) fn new(
        (input, output): (Tensor, Tensor),
        shapes: [Shape; 2],
        kernel: Kernel,
        (weights, bias): (Range<usize>, Option<Range<usize>>),
        (layer, needs_gradient): (usize, bool),
    ) -> Self {
        let passes = Passes { kernel, input: shapes[0], output: shapes[1] };
        let forward = match kernel.is_direct() {
            true => passes.forward(),
            false => passes.forward_columns(),
        };
        let backward = || match (kernel.is_direct(), kernel.stride, kernel.size) {
            (false, ..) => vec![passes.backward_columns()],
            (true, 1, _) => vec![passes.backward()],
            // The other pixels of the input are not read.
            (true, _, 1) => vec![passes.backward_phase(0, 0)],
            (true, ..) => [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(y, x)| passes.backward_phase(y, x)).into(),
        };
        let backward = needs_gradient.then(backward);
        Self { input, output, kernel, shapes, weights, bias, forward, backward, layer }
    }

    /// Calls `compute` with the sweep of the current images and the input; or, for each image, with a sweep of one image
    /// and the columns of the input.
    fn each_sweep<R: Real>(&self, pass: &Pass<'_, R>, columns: &mut Buffer<R>, mut compute: impl FnMut(Sweep, &[R])) {
        let (sweep, input) = (self.forward.sweep, pass.value(self.input));
        if self.kernel.is_direct() {
            return compute(Sweep { images: pass.images(), ..sweep }, input);
        }
        for image in 0..pass.images() {
            let columns = columns.first(sweep.rows * sweep.input.row);
            self.copy_columns(input, image, columns);
            let output = Walk { origin: sweep.output.origin + image * sweep.output.image, ..sweep.output };
            compute(Sweep { images: 1, output, ..sweep }, columns);
        }
    }

    /// Calls `visit` with the positions of every element of the columns and of the input that it is a copy of, if that
    /// is not padding.
    #[inline(always)]
    fn each_column(&self, image: usize, mut visit: impl FnMut(usize, Option<usize>)) {
        let [input, output] = self.shapes;
        let Kernel { size, stride, padding, .. } = self.kernel;
        let pitch = self.forward.sweep.input.column;
        let inside = |out: usize, k: usize, side: usize| (out * stride + k).checked_sub(padding).filter(|&i| i < side);
        let image = input.origin() + image * input.image_pitch();
        for y in 0..output.height {
            for x in 0..output.width {
                let column = (y * output.width + x) * pitch;
                for (place, (ky, kx)) in (0..size).flat_map(|ky| (0..size).map(move |kx| (ky, kx))).enumerate() {
                    let pixel = inside(y, ky, input.height).zip(inside(x, kx, input.width));
                    let pixel = pixel.map(|(y, x)| image + y * input.row_pitch() + x * input.pitch);
                    for channel in 0..input.channels {
                        visit(column + channel * size * size + place, pixel.map(|pixel| pixel + channel));
                    }
                }
            }
        }
    }

    fn copy_columns<R: Real>(&self, input: &[R], image: usize, columns: &mut [R]) {
        self.each_column(image, |to, from| columns[to] = from.map_or(R::default(), |from| input[from]));
        let used = self.shapes[0].channels * self.kernel.size * self.kernel.size;
        for column in columns.chunks_exact_mut(self.forward.sweep.input.column) {
            column[used..].fill(R::default());
        }
    }

    /// Writes the gradient of the input, or adds to it.
    fn backward_to_input<R: Real>(
        &self,
        pass: &Pass<'_, R>,
        slopes: &[R],
        packed: &[Buffer<R>],
        columns: &mut Buffer<R>,
        (gradient, mut add): (&mut [R], bool),
    ) {
        let writes_all = self.kernel.is_direct() && (self.kernel.stride == 1 || self.kernel.size == 3);
        if !add && !writes_all {
            gradient[..self.shapes[0].len(pass.images())].fill(R::default());
            add = true;
        }
        let write = if add { Write::Add } else { Write::Store };
        for (product, packed) in self.backward.iter().flatten().zip(packed) {
            let sweep = Sweep { images: pass.images(), ..product.sweep };
            if self.kernel.is_direct() {
                product.compute(pass.arch, sweep, slopes, packed, gradient, write);
                continue;
            }
            for image in 0..pass.images() {
                let columns = columns.first(sweep.rows * sweep.output.row);
                let input = Walk { origin: sweep.input.origin + image * sweep.input.image, ..sweep.input };
                let sweep = Sweep { images: 1, input, ..sweep };
                product.compute(pass.arch, sweep, slopes, packed, columns, Write::Store);
                self.each_column(image, |from, to| {
                    if let Some(to) = to {
                        gradient[to] += columns[from];
                    }
                });
            }
        }
    }
}

impl<R: Real> Operation<R> for Conv {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.input, self.output]
    }

    fn cost(&self) -> Option<(String, Cost)> {
        let ([from, to], Kernel { size, stride, .. }) = (self.shapes, self.kernel);
        let stride = if stride == 1 { String::new() } else { format!(", stride {stride}") };
        let name =
            format!("{size}x{size}, {} to {}, {}x{}{stride}", from.channels, to.channels, from.height, from.width);
        let cost = Cost {
            products: to.features() * from.channels * size * size,
            backward_passes: 1 + usize::from(self.backward.is_some()),
            weights: self.weights.len(),
            inputs: from.features(),
            outputs: to.features(),
        };
        Some((name, cost))
    }

    fn prepare(&self, pass: &mut Pass<'_, R>) {
        let mut kept = pass.take_kept(self.layer);
        let products = std::iter::once(&self.forward).chain(self.backward.iter().flatten());
        kept.packed.resize_with(products.clone().count(), Buffer::default);
        self.forward.pack(pass.arch, pass.parameters(&self.weights), &mut kept.packed[0]);
        kept.channels = self.bias.iter().map(|bias| pass.padded(bias, self.shapes[1].pitch)).collect();
        pass.put_kept(self.layer, kept);
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.output);
        let (kept, mut columns) = (pass.take_kept(self.layer), pass.take_scratch());
        let write = kept.channels.first().map_or(Write::Store, |bias| Write::Bias(bias));
        self.each_sweep(pass, &mut columns, |sweep, input| {
            self.forward.compute(pass.arch, sweep, input, &kept.packed[0], &mut output, write);
        });
        pass.put_scratch(columns);
        pass.put_kept(self.layer, kept);
        pass.put(self.output, output);
    }

    fn prepare_backward(&self, pass: &mut Pass<'_, R>) {
        let mut kept = pass.take_kept(self.layer);
        for (product, packed) in self.backward.iter().flatten().zip(&mut kept.packed[1..]) {
            product.pack(pass.arch, pass.parameters(&self.weights), packed);
        }
        kept.gradient.first(self.forward.packing.len()).fill(R::default());
        kept.sums[0] = vec![0.0; self.shapes[1].pitch];
        pass.put_kept(self.layer, kept);
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        let slopes = pass.take_sum(self.output);
        let (mut kept, mut columns) = (pass.take_kept(self.layer), pass.take_scratch());
        self.each_sweep(pass, &mut columns, |sweep, input| {
            self.forward.add_gradient(pass.arch, sweep, input, &slopes, &mut kept.gradient);
        });
        if self.bias.is_some() {
            super::add_channel_sums(pass.arch, self.shapes[1], pass.images(), &slopes, &mut kept.sums[0]);
        }
        if self.backward.is_some() {
            let (mut gradient, add) = pass.take_gradient(self.input);
            let packed = &kept.packed[1..];
            self.backward_to_input(pass, &slopes, packed, &mut columns, (&mut gradient, add));
            pass.put_gradient(self.input, gradient);
        }
        pass.put_scratch(columns);
        pass.put_kept(self.layer, kept);
        pass.put_gradient(self.output, slopes);
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        let kept = pass.take_kept(self.layer);
        self.forward.packing.unpack(&kept.gradient, &mut pass.parameter_gradient[self.weights.clone()]);
        if let Some(bias) = &self.bias {
            let bias = &mut pass.parameter_gradient[bias.clone()];
            bias.iter_mut().zip(&kept.sums[0]).for_each(|(bias, &sum)| *bias = R::of(sum));
        }
        pass.put_kept(self.layer, kept);
        pass.drop_gradient(self.output);
    }
}

/// Builds the sweeps of a convolution.
struct Passes {
    kernel: Kernel,
    input: Shape,
    output: Shape,
}

/// The pixels of images of a shape.
fn pixels(shape: Shape) -> Walk {
    Walk { origin: shape.origin(), image: shape.image_pitch(), row: shape.row_pitch(), column: shape.pitch }
}

impl Passes {
    /// The weight of an output channel at a position of the kernel.
    fn weight(&self, output: usize, input: usize, (y, x): (usize, usize)) -> usize {
        let size = self.kernel.size;
        ((output * self.input.channels + input) * size + y) * size + x
    }

    fn output_step(&self) -> usize {
        self.weight(1, 0, (0, 0))
    }

    fn forward(&self) -> Product {
        let Self { kernel: Kernel { outputs, size, stride, padding }, input, output } = *self;
        let walk = pixels(input);
        let walk = Walk {
            origin: walk.origin - padding * (walk.row + walk.column),
            row: stride * walk.row,
            column: stride * walk.column,
            ..walk
        };
        let slides = self.kernel.slides();
        let taps = Taps {
            count: size,
            pitch: input.row_pitch(),
            run: if slides { input.pitch } else { size * input.pitch },
            first_row: -(padding as isize),
            row_step: stride,
            height: input.height,
        };
        let row =
            |y: usize, x: usize, channel: usize| (channel < input.channels).then(|| self.weight(0, channel, (y, x)));
        let mut rows = Vec::new();
        for y in 0..size {
            for index in 0..size * input.pitch {
                rows.push(match slides {
                    true => row(y, index % size, index / size),
                    false => row(y, index / input.pitch, index % input.pitch),
                });
            }
        }
        let packing = Packing::new(outputs, self.output_step(), rows);
        let sweep = self.sweep(output, walk, pixels(output), taps, &packing);
        Product { sweep, packing, slides }
    }

    fn sweep(&self, grid: Shape, input: Walk, output: Walk, taps: Taps, packing: &Packing) -> Sweep {
        let blocks = packing.blocks();
        Sweep { images: 0, rows: grid.height, columns: grid.width, input, output, taps, blocks }
    }

    /// The gradient of the input for stride 1: the convolution with the kernel turned by half a turn.
    fn backward(&self) -> Product {
        let Self { kernel: Kernel { size, padding, .. }, input, output } = *self;
        let walk = pixels(output);
        let walk = Walk { origin: walk.origin - padding * (walk.row + walk.column), ..walk };
        let slides = self.kernel.slides();
        let taps = Taps {
            count: size,
            pitch: output.row_pitch(),
            run: if slides { output.pitch } else { size * output.pitch },
            first_row: -(padding as isize),
            row_step: 1,
            height: output.height,
        };
        let mut rows = Vec::new();
        for y in 0..size {
            for index in 0..size * output.pitch {
                let (x, channel) = match slides {
                    true => (index % size, index / size),
                    false => (index / output.pitch, index % output.pitch),
                };
                let turned = (size - 1 - y, size - 1 - x);
                rows.push((channel < output.channels).then(|| self.weight(channel, 0, turned)));
            }
        }
        let packing = Packing::new(input.channels, size * size, rows);
        Product { sweep: self.sweep(input, walk, pixels(input), taps, &packing), packing, slides }
    }

    /// The gradient of the input for stride 2, at the pixels whose row and column have this parity. For an even row,
    /// only the middle row of a 3x3 kernel has read it; for an odd row, the last row of the kernel for the output row
    /// above and the first for the output row below.
    fn backward_phase(&self, y: usize, x: usize) -> Product {
        let Self { kernel: Kernel { size, .. }, input, output } = *self;
        let taps_of = |parity: usize| match (size, parity) {
            (1, _) => vec![0],
            (_, 0) => vec![1],
            _ => vec![2, 0],
        };
        let (ys, xs) = (taps_of(y), taps_of(x));
        let taps = Taps {
            count: ys.len(),
            pitch: output.row_pitch(),
            run: xs.len() * output.pitch,
            first_row: 0,
            row_step: 1,
            height: output.height,
        };
        let mut rows = Vec::new();
        for &y in &ys {
            for &x in &xs {
                let row = |channel| (channel < output.channels).then(|| self.weight(channel, 0, (y, x)));
                rows.extend((0..output.pitch).map(row));
            }
        }
        let walk = pixels(input);
        let walk = Walk {
            origin: walk.origin + y * walk.row + x * walk.column,
            row: 2 * walk.row,
            column: 2 * walk.column,
            ..walk
        };
        let packing = Packing::new(input.channels, size * size, rows);
        let half = |side: usize, parity: usize| (side + 1 - parity) / 2;
        let grid = Shape::image(1, half(input.height, y), half(input.width, x));
        Product { sweep: self.sweep(grid, pixels(output), walk, taps, &packing), packing, slides: false }
    }

    /// The number of elements of a column, and the weights of each.
    fn column(&self) -> (usize, usize) {
        let used = self.output_step();
        (used, used.next_multiple_of(BLOCK))
    }

    /// The pixels of the columns of an image.
    fn columns(&self) -> Walk {
        let (_, column) = self.column();
        Walk { origin: 0, image: 0, row: self.output.width * column, column }
    }

    fn matrix_taps(&self, run: usize) -> Taps {
        Taps { count: 1, pitch: 0, run, first_row: 0, row_step: 0, height: 1 }
    }

    fn forward_columns(&self) -> Product {
        let (used, column) = self.column();
        let rows = (0..column).map(|row| (row < used).then_some(row));
        let packing = Packing::new(self.kernel.outputs, used, rows);
        let sweep = self.sweep(self.output, self.columns(), pixels(self.output), self.matrix_taps(column), &packing);
        Product { sweep, packing, slides: false }
    }

    fn backward_columns(&self) -> Product {
        let (used, _) = self.column();
        let rows = (0..self.output.pitch).map(|row| (row < self.output.channels).then_some(row * used));
        let packing = Packing::new(used, 1, rows);
        let taps = self.matrix_taps(self.output.pitch);
        let sweep = self.sweep(self.output, pixels(self.output), self.columns(), taps, &packing);
        Product { sweep, packing, slides: false }
    }
}
