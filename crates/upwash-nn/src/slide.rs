//! 3x3 convolutions with stride 1, where an input element serves three output pixels of a row.
//!
//! Processors load less than they multiply: a tile that broadcasts an element for every product waits for its loads.
//! Here an element that was broadcast once is multiplied by the three weights of a kernel row, for the three output
//! pixels that it is part of. The backward pass to the input is the same convolution with the kernel turned by half a
//! turn. Like [`convolve`](super::convolve), all instruction sets give the same bits.

#![allow(clippy::needless_range_loop, reason = "tiles index several arrays by the same constant ranges")]

use crate::convolve::{Strip, Sweep, Taps, Write, vectors_per_block};
use crate::{BLOCK, Real};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// The number of weights in a row of the kernel.
const SIZE: usize = 3;

/// The weights of a row of the kernel for one input channel and one block of output channels.
type KernelRow<R> = [[R; BLOCK]; SIZE];

/// Computes a convolution. `sweep.taps` are the rows of the kernel, each with a run of the input channels of *one*
/// pixel, of which the first is left of the output pixel. The weights are packed as blocks x kernel rows x input
/// channels x 3 x 16.
pub(crate) struct Slide<'a, R> {
    pub(crate) sweep: Sweep,
    pub(crate) input: &'a [R],
    pub(crate) weights: &'a [R],
    pub(crate) output: &'a mut [R],
    pub(crate) write: Write<'a, R>,
}

impl<R: Real> WithSimd for Slide<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if const { vectors_per_block::<S, R>() == 1 } {
            self.images::<S, 1, 8, 10, true>(simd);
        } else if const { vectors_per_block::<S, R>() == 2 || vectors_per_block::<S, R>() == 4 } {
            match const { vectors_per_block::<S, R>() } {
                2 => self.images::<S, 2, 4, 6, false>(simd),
                _ => self.images::<S, 4, 4, 6, false>(simd),
            }
        } else if const { vectors_per_block::<S, R>() == 8 } {
            self.images::<S, 8, 1, 3, false>(simd);
        } else {
            self.images::<S, 16, 1, 3, false>(simd);
        }
    }
}

/// A row of the grid for some blocks.
#[derive(Clone)]
struct Row {
    block: usize,
    taps: Range<usize>,
    input: usize,
    output: usize,
}

impl<R: Real> Slide<'_, R> {
    /// All images: tiles of at most `P` pixels, which read `N` = `P` + 2, and of one block in `V` vectors, or of two
    /// blocks if `PAIRS`.
    #[inline(always)]
    fn images<S: Simd, const V: usize, const P: usize, const N: usize, const PAIRS: bool>(mut self, simd: S) {
        for images in self.sweep.image_groups(self.weights.len()) {
            let mut block = 0;
            while PAIRS && block + 2 <= self.sweep.blocks {
                images.clone().for_each(|image| self.rows::<S, V, 2, P, N>(simd, image, block));
                block += 2;
            }
            while block < self.sweep.blocks {
                images.clone().for_each(|image| self.rows::<S, V, 1, P, N>(simd, image, block));
                block += 1;
            }
        }
    }

    #[inline(always)]
    fn rows<S: Simd, const V: usize, const B: usize, const P: usize, const N: usize>(
        &mut self,
        simd: S,
        image: usize,
        block: usize,
    ) {
        let Sweep { input, output, columns, .. } = self.sweep;
        for row in 0..self.sweep.rows {
            let row = Row {
                block,
                taps: self.sweep.taps.inside(row),
                input: input.origin + image * input.image + row * input.row,
                output: output.origin + image * output.image + row * output.row + block * BLOCK,
            };
            let mut column = 0;
            while column + P <= columns {
                self.tile::<S, V, B, P, N>(simd, row.clone(), column);
                column += P;
            }
            if P > 4 && column + 4 <= columns {
                self.tile::<S, V, B, 4, 6>(simd, row.clone(), column);
                column += 4;
            }
            while P > 1 && column < columns {
                self.tile::<S, V, B, 1, 3>(simd, row.clone(), column);
                column += 1;
            }
        }
    }

    /// The sums of `P` pixels and `B` blocks.
    #[inline(always)]
    fn tile<S: Simd, const V: usize, const B: usize, const P: usize, const N: usize>(
        &mut self,
        simd: S,
        row: Row,
        column: usize,
    ) {
        let (taps, from, to) = (self.sweep.taps, self.sweep.input, self.sweep.output);
        let mut sums = self.write.start::<S, V, B, P>(simd, row.block);
        for tap in row.taps {
            let pixels: [&[R]; N] = std::array::from_fn(|pixel| {
                &self.input[row.input + (column + pixel) * from.column + tap * taps.pitch..][..taps.run]
            });
            let weights: [&[KernelRow<R>]; B] = std::array::from_fn(|b| {
                let panel = ((row.block + b) * taps.count + tap) * taps.run * SIZE;
                let panel = &self.weights[panel * BLOCK..][..taps.run * SIZE * BLOCK];
                &panel.as_chunks().0.as_chunks().0[..taps.run]
            });
            for k in 0..taps.run {
                let kernel: [[[R::Vector<S>; V]; SIZE]; B] =
                    std::array::from_fn(|b| std::array::from_fn(|tap| load_block::<S, R, V>(&weights[b][k][tap])));
                for pixel in 0..N {
                    let value = R::splat(simd, pixels[pixel][k]);
                    for (b, kernel) in kernel.iter().enumerate() {
                        for tap in 0..SIZE {
                            // Input pixel i is tap t of output pixel i - t.
                            if pixel >= tap && pixel - tap < P {
                                let sums = &mut sums[pixel - tap][b];
                                for v in 0..V {
                                    sums[v] = R::mul_add(simd, value, kernel[tap][v], sums[v]);
                                }
                            }
                        }
                    }
                }
            }
        }
        self.write.finish::<S, V, B, P>(simd, sums, &mut self.output[row.output + column * to.column..], to.column);
    }
}

/// Loads a block of channels.
#[inline(always)]
pub(crate) fn load_block<S: Simd, R: Real, const V: usize>(block: &[R; BLOCK]) -> [R::Vector<S>; V] {
    std::array::from_fn(|v| R::load::<S>(&block[v * (BLOCK / V)..][..BLOCK / V]))
}

/// Adds the gradient of the weights of a convolution to `gradient`, which is packed as the weights are. `sweep` is that
/// of the forward pass, and `slopes` is the gradient of its output.
pub(crate) struct SlideGradient<'a, R> {
    pub(crate) sweep: Sweep,
    pub(crate) input: &'a [R],
    pub(crate) slopes: &'a [R],
    pub(crate) gradient: &'a mut [R],
}

/// Sums for `Q` input channels, three weights of a kernel row and `B` blocks in `V` vectors each.
type Sums<S, R, const V: usize, const B: usize, const Q: usize> = [[[[<R as Real>::Vector<S>; V]; B]; SIZE]; Q];

impl<R: Real> WithSimd for SlideGradient<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for strip in self.sweep.strips() {
            self.strip(simd, &strip);
        }
    }
}

impl<R: Real> SlideGradient<'_, R> {
    /// All blocks, as many at a time as fit into the registers.
    #[inline(always)]
    fn strip<S: Simd>(&mut self, simd: S, strip: &Strip) {
        if const { vectors_per_block::<S, R>() == 1 } {
            let pairs = self.sweep.blocks / 2;
            for pair in 0..pairs {
                self.block::<S, 1, 2, 4>(simd, strip, 2 * pair);
            }
            if self.sweep.blocks % 2 == 1 {
                self.block::<S, 1, 1, 8>(simd, strip, 2 * pairs);
            }
            return;
        }
        for block in 0..self.sweep.blocks {
            if const { vectors_per_block::<S, R>() == 2 } {
                self.block::<S, 2, 1, 1>(simd, strip, block);
            } else if const { vectors_per_block::<S, R>() == 4 } {
                self.block::<S, 4, 1, 1>(simd, strip, block);
            } else if const { vectors_per_block::<S, R>() == 8 } {
                self.block::<S, 8, 1, 1>(simd, strip, block);
            } else {
                self.block::<S, 16, 1, 1>(simd, strip, block);
            }
        }
    }

    /// The gradient for `B` blocks, `Q` input channels at a time.
    #[inline(always)]
    fn block<S: Simd, const V: usize, const B: usize, const Q: usize>(&mut self, simd: S, strip: &Strip, block: usize) {
        let Taps { count, run, .. } = self.sweep.taps;
        for tap in 0..count {
            let mut channel = 0;
            while channel + Q <= run {
                self.tile::<S, V, B, Q>(simd, strip, block, tap, channel);
                channel += Q;
            }
            while Q > 3 && channel + 3 <= run {
                self.tile::<S, V, B, 3>(simd, strip, block, tap, channel);
                channel += 3;
            }
            while Q > 1 && channel < run {
                self.tile::<S, V, B, 1>(simd, strip, block, tap, channel);
                channel += 1;
            }
        }
    }

    /// The gradient of one kernel row for `Q` input channels, summed over a strip.
    #[inline(always)]
    fn tile<S: Simd, const V: usize, const B: usize, const Q: usize>(
        &mut self,
        simd: S,
        strip: &Strip,
        block: usize,
        tap: usize,
        channel: usize,
    ) {
        let Sweep { columns, input: from, output: to, taps, .. } = self.sweep;
        let zero = R::splat(simd, R::default());
        let mut sums: Sums<S, R, V, B, Q> = [[[[zero; V]; B]; SIZE]; Q];
        for image in strip.images.clone() {
            for row in strip.rows.clone() {
                if !taps.inside(row).contains(&tap) {
                    continue;
                }
                // The pixel right of the one that the first weight multiplies, and the slope left of the first pixel.
                let input =
                    from.origin + image * from.image + row * from.row + tap * taps.pitch + from.column + channel;
                let slopes = to.origin + image * to.image + row * to.row - to.column + block * BLOCK;
                let input = &self.input[input..][..(columns - 1) * from.column + Q];
                let slopes = &self.slopes[slopes..][..(columns + 1) * to.column + B * BLOCK];
                sums = add_row(simd, sums, input, from.column, slopes, to.column);
            }
        }
        for (q, sums) in sums.iter().enumerate() {
            for b in 0..B {
                let panel = ((block + b) * taps.count + tap) * taps.run + channel + q;
                let places =
                    &mut self.gradient[panel * SIZE * BLOCK..][..SIZE * BLOCK].as_chunks_mut::<BLOCK>().0[..SIZE];
                for tap in 0..SIZE {
                    for v in 0..V {
                        let place = &mut places[tap][v * (BLOCK / V)..][..BLOCK / V];
                        R::store::<S>(place, R::plus(simd, R::load::<S>(place), sums[tap][b][v]));
                    }
                }
            }
        }
    }
}

/// Adds the products of a row. Without a branch that could panic, so that the sums stay in registers.
#[inline(always)]
fn add_row<S: Simd, R: Real, const V: usize, const B: usize, const Q: usize>(
    simd: S,
    mut sums: Sums<S, R, V, B, Q>,
    mut input: &[R],
    input_step: usize,
    slopes: &[R],
    slope_step: usize,
) -> Sums<S, R, V, B, Q> {
    let blocks = |slopes: &[R]| -> Option<[[R::Vector<S>; V]; B]> {
        let blocks = slopes.as_chunks::<BLOCK>().0.first_chunk::<B>()?;
        Some(std::array::from_fn(|b| load_block::<S, R, V>(&blocks[b])))
    };
    let mut slopes = slopes.chunks(slope_step);
    let (Some(mut left), Some(mut middle)) = (slopes.next().and_then(blocks), slopes.next().and_then(blocks)) else {
        return sums;
    };
    for slopes in slopes {
        let (Some(values), Some(right)) = (input.first_chunk::<Q>(), blocks(slopes)) else {
            break;
        };
        input = input.get(input_step..).unwrap_or_default();
        for (sums, &value) in sums.iter_mut().zip(values) {
            let value = R::splat(simd, value);
            for b in 0..B {
                for v in 0..V {
                    sums[0][b][v] = R::mul_add(simd, value, right[b][v], sums[0][b][v]);
                    sums[1][b][v] = R::mul_add(simd, value, middle[b][v], sums[1][b][v]);
                    sums[2][b][v] = R::mul_add(simd, value, left[b][v], sums[2][b][v]);
                }
            }
        }
        (left, middle) = (middle, right);
    }
    sums
}
