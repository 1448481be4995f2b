//! Convolutions over register tiles.
//!
//! One loop nest computes every convolution and matrix product of this crate, forward and backward to the input: each
//! output pixel is a sum over *taps*. A tap is a run of adjacent input elements times a matrix with one row for each of
//! them. For a 3x3 convolution a tap is a row of the kernel, and its run is three adjacent pixels with all their
//! channels. For a matrix product there is one tap, and its run is a row of the matrix.
//!
//! A tile holds the sums of some pixels and 16 or 32 output channels in registers. Each step broadcasts one input
//! element per pixel and multiplies it by one row of the weights. The lanes of a vector are output channels and each
//! sum is computed in the same order everywhere, so that all instruction sets with fused multiply-add give the same
//! bits.
//!
//! One file, because outputs and gradients of weights share the description of their taps and strips.

#![allow(clippy::needless_range_loop, reason = "tiles index several arrays by the same constant ranges")]

use crate::{BLOCK, Real};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Positions of the pixels of a grid in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    /// The first pixel.
    pub(crate) origin: usize,
    /// From one image to the next.
    pub(crate) image: usize,
    /// From one row to the next.
    pub(crate) row: usize,
    /// From one pixel to the next.
    pub(crate) column: usize,
}

/// The taps of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taps {
    /// The number of taps.
    pub(crate) count: usize,
    /// The distance of the runs of two taps in the input.
    pub(crate) pitch: usize,
    /// The number of adjacent input elements of a tap.
    pub(crate) run: usize,
    /// The row of the input that the first tap of row 0 reads, which may be in the halo.
    pub(crate) first_row: isize,
    /// The number of input rows between two rows of the grid.
    pub(crate) row_step: usize,
    /// The number of rows of the input. Taps outside are left out, as they read zeros.
    pub(crate) height: usize,
}

impl Taps {
    /// The taps of a row of the grid that read rows of the input.
    #[inline(always)]
    pub(crate) fn inside(&self, row: usize) -> Range<usize> {
        let first = (row * self.row_step) as isize + self.first_row;
        let begin = (-first).clamp(0, self.count as isize) as usize;
        let end = (self.height as isize - first).clamp(begin as isize, self.count as isize) as usize;
        begin..end
    }
}

/// A grid of output pixels with the input of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) images: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) input: Walk,
    pub(crate) output: Walk,
    pub(crate) taps: Taps,
    /// The number of blocks of output channels.
    pub(crate) blocks: usize,
}

/// The number of pixels over which a gradient of weights is summed in registers. Their values stay in the fastest cache
/// while all tiles read them.
const STRIP_PIXELS: usize = 128;

/// The size from which weights are read once for all images instead of once for each, in elements.
const LARGE_WEIGHTS: usize = 1 << 16;

/// Rows of some images.
#[derive(Clone)]
pub(crate) struct Strip {
    pub(crate) images: Range<usize>,
    pub(crate) rows: Range<usize>,
}

impl Sweep {
    /// The grid in strips: some rows of an image, or some images if they are small.
    #[inline(always)]
    pub(crate) fn strips(&self) -> impl Iterator<Item = Strip> + use<> {
        let Self { images: all, rows: height, columns, .. } = *self;
        let rows = (STRIP_PIXELS / columns.max(1)).clamp(1, height.max(1));
        let images = (STRIP_PIXELS / (rows * columns).max(1)).max(1);
        let images = if rows == height { images } else { 1 };
        let starts =
            (0..all).step_by(images).flat_map(move |image| (0..height).step_by(rows).map(move |row| (image, row)));
        starts.map(move |(image, row)| Strip {
            images: image..all.min(image + images),
            rows: row..height.min(row + rows),
        })
    }

    /// The images and blocks in the order in which they are computed, a number of images with each block.
    #[inline(always)]
    pub(crate) fn image_groups(&self, weights: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (all, images) = (self.images, if weights >= LARGE_WEIGHTS { self.images.max(1) } else { 1 });
        (0..all).step_by(images).map(move |image| image..all.min(image + images))
    }
}

/// What becomes of the sums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write<'a, R> {
    /// They replace the output.
    Store,
    /// They are added to the output.
    Add,
    /// They are added to these numbers, one per output channel, and replace the output.
    Bias(&'a [R]),
}

impl<R: Real> Write<'_, R> {
    /// The sums of a tile before the first product.
    #[inline(always)]
    pub(crate) fn start<S: Simd, const V: usize, const B: usize, const P: usize>(
        &self,
        simd: S,
        block: usize,
    ) -> [[[R::Vector<S>; V]; B]; P] {
        let lanes = BLOCK / V;
        let mut sums = [[R::splat(simd, R::default()); V]; B];
        if let Write::Bias(bias) = self {
            let bias = &bias[block * BLOCK..][..B * BLOCK];
            sums =
                std::array::from_fn(|b| std::array::from_fn(|v| R::load::<S>(&bias[b * BLOCK + v * lanes..][..lanes])));
        }
        [sums; P]
    }

    /// Writes the sums of a tile to the pixels at the start of `output`, which are `step` apart.
    #[inline(always)]
    pub(crate) fn finish<S: Simd, const V: usize, const B: usize, const P: usize>(
        &self,
        simd: S,
        sums: [[[R::Vector<S>; V]; B]; P],
        output: &mut [R],
        step: usize,
    ) {
        let lanes = BLOCK / V;
        for (pixel, sums) in sums.iter().enumerate() {
            let place = &mut output[pixel * step..][..B * BLOCK];
            for b in 0..B {
                for v in 0..V {
                    let place = &mut place[b * BLOCK + v * lanes..][..lanes];
                    let sum = match self {
                        Write::Add => R::plus(simd, R::load::<S>(place), sums[b][v]),
                        _ => sums[b][v],
                    };
                    R::store::<S>(place, sum);
                }
            }
        }
    }
}

/// Computes a convolution. The weights are packed as blocks x taps x run x 16.
pub(crate) struct Convolve<'a, R> {
    pub(crate) sweep: Sweep,
    pub(crate) input: &'a [R],
    pub(crate) weights: &'a [R],
    pub(crate) output: &'a mut [R],
    pub(crate) write: Write<'a, R>,
}

impl<R: Real> WithSimd for Convolve<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // How many vectors make a block, and how many pixels fit into the registers.
        if const { vectors_per_block::<S, R>() == 1 } {
            self.images::<S, 1, 8, true>(simd);
        } else if const { vectors_per_block::<S, R>() == 2 } {
            self.images::<S, 2, 4, false>(simd);
        } else if const { vectors_per_block::<S, R>() == 4 && S::REGISTER_COUNT >= 32 } {
            self.images::<S, 4, 4, false>(simd);
        } else if const { vectors_per_block::<S, R>() == 4 } {
            self.images::<S, 4, 2, false>(simd);
        } else if const { vectors_per_block::<S, R>() == 8 } {
            self.images::<S, 8, 2, false>(simd);
        } else {
            self.images::<S, 16, 1, false>(simd);
        }
    }
}

/// The number of vectors that hold a block of channels.
pub(crate) const fn vectors_per_block<S: Simd, R: Real>() -> usize {
    BLOCK * size_of::<R>() / size_of::<R::Vector<S>>()
}

impl<R: Real> Convolve<'_, R> {
    /// All images: tiles of at most `P` pixels and of one block in `V` vectors, or of two blocks if `PAIRS`.
    #[inline(always)]
    fn images<S: Simd, const V: usize, const P: usize, const PAIRS: bool>(mut self, simd: S) {
        for images in self.sweep.image_groups(self.weights.len()) {
            let mut block = 0;
            while PAIRS && block + 2 <= self.sweep.blocks {
                images.clone().for_each(|image| self.rows::<S, V, 2, P>(simd, image, block));
                block += 2;
            }
            while block < self.sweep.blocks {
                images.clone().for_each(|image| self.rows::<S, V, 1, P>(simd, image, block));
                block += 1;
            }
        }
    }

    #[inline(always)]
    fn rows<S: Simd, const V: usize, const B: usize, const P: usize>(&mut self, simd: S, image: usize, block: usize) {
        for row in 0..self.sweep.rows {
            let place = |walk: &Walk| walk.origin + image * walk.image + row * walk.row;
            let (input, output) = (place(&self.sweep.input), place(&self.sweep.output) + block * BLOCK);
            let taps = self.sweep.taps.inside(row);
            let mut column = 0;
            while column + P <= self.sweep.columns {
                self.tile::<S, V, B, P>(simd, taps.clone(), block, column, input, output);
                column += P;
            }
            if P > 4 && column + 4 <= self.sweep.columns {
                self.tile::<S, V, B, 4>(simd, taps.clone(), block, column, input, output);
                column += 4;
            }
            while P > 2 && column + 2 <= self.sweep.columns {
                self.tile::<S, V, B, 2>(simd, taps.clone(), block, column, input, output);
                column += 2;
            }
            while P > 1 && column < self.sweep.columns {
                self.tile::<S, V, B, 1>(simd, taps.clone(), block, column, input, output);
                column += 1;
            }
        }
    }

    /// The sums of `P` pixels and `B` blocks.
    #[inline(always)]
    fn tile<S: Simd, const V: usize, const B: usize, const P: usize>(
        &mut self,
        simd: S,
        taps: Range<usize>,
        block: usize,
        column: usize,
        input: usize,
        output: usize,
    ) {
        let Sweep { input: from, output: to, taps: Taps { count, pitch, run, .. }, .. } = self.sweep;
        let lanes = BLOCK / V;
        let zero = R::splat(simd, R::default());
        let mut sums = self.write.start::<S, V, B, P>(simd, block);
        for tap in taps {
            let pixels: [&[R]; P] =
                std::array::from_fn(|pixel| &self.input[input + (column + pixel) * from.column + tap * pitch..][..run]);
            let weights: [&[[R; BLOCK]]; B] = std::array::from_fn(|b| {
                let panel = ((block + b) * count + tap) * run;
                &self.weights[panel * BLOCK..][..run * BLOCK].as_chunks().0[..run]
            });
            for k in 0..run {
                let mut rows = [[zero; V]; B];
                for b in 0..B {
                    for v in 0..V {
                        rows[b][v] = R::load::<S>(&weights[b][k][v * lanes..][..lanes]);
                    }
                }
                for pixel in 0..P {
                    let value = R::splat(simd, pixels[pixel][k]);
                    for b in 0..B {
                        for v in 0..V {
                            sums[pixel][b][v] = R::mul_add(simd, value, rows[b][v], sums[pixel][b][v]);
                        }
                    }
                }
            }
        }
        let output = &mut self.output[output + column * to.column..];
        self.write.finish::<S, V, B, P>(simd, sums, output, to.column);
    }
}

/// Adds the gradient of the weights of a convolution to `gradient`, which is packed as the weights are. `sweep` is that
/// of the forward pass, and `slopes` is the gradient of its output.
pub(crate) struct WeightGradient<'a, R> {
    pub(crate) sweep: Sweep,
    pub(crate) input: &'a [R],
    pub(crate) slopes: &'a [R],
    pub(crate) gradient: &'a mut [R],
}

impl<R: Real> WithSimd for WeightGradient<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for strip in self.sweep.strips() {
            self.strip(simd, &strip);
        }
    }
}

impl<R: Real> WeightGradient<'_, R> {
    /// All blocks, as many at a time as fit into the registers.
    #[inline(always)]
    fn strip<S: Simd>(&mut self, simd: S, strip: &Strip) {
        if const { vectors_per_block::<S, R>() == 1 } {
            let mut block = 0;
            while block + 4 <= self.sweep.blocks {
                self.block::<S, 1, 4, 6>(simd, strip, block);
                block += 4;
            }
            while block + 2 <= self.sweep.blocks {
                self.block::<S, 1, 2, 12>(simd, strip, block);
                block += 2;
            }
            while block < self.sweep.blocks {
                self.block::<S, 1, 1, 24>(simd, strip, block);
                block += 1;
            }
        } else if const { vectors_per_block::<S, R>() == 2 } {
            self.blocks::<S, 2, 6>(simd, strip);
        } else if const { vectors_per_block::<S, R>() == 4 && S::REGISTER_COUNT >= 32 } {
            self.blocks::<S, 4, 6>(simd, strip);
        } else if const { vectors_per_block::<S, R>() == 4 } {
            self.blocks::<S, 4, 2>(simd, strip);
        } else if const { vectors_per_block::<S, R>() == 8 } {
            self.blocks::<S, 8, 2>(simd, strip);
        } else {
            self.blocks::<S, 16, 1>(simd, strip);
        }
    }

    #[inline(always)]
    fn blocks<S: Simd, const V: usize, const Q: usize>(&mut self, simd: S, strip: &Strip) {
        for block in 0..self.sweep.blocks {
            self.block::<S, V, 1, Q>(simd, strip, block);
        }
    }

    /// The rows of `B` blocks, up to `Q` at a time.
    #[inline(always)]
    fn block<S: Simd, const V: usize, const B: usize, const Q: usize>(&mut self, simd: S, strip: &Strip, block: usize) {
        let Taps { count, run, .. } = self.sweep.taps;
        for tap in 0..count {
            let mut k = 0;
            while k + Q <= run {
                self.tile::<S, V, B, Q>(simd, strip, block, tap, k);
                k += Q;
            }
            while Q > 16 && k + 16 <= run {
                self.tile::<S, V, B, 16>(simd, strip, block, tap, k);
                k += 16;
            }
            while Q > 8 && k + 8 <= run {
                self.tile::<S, V, B, 8>(simd, strip, block, tap, k);
                k += 8;
            }
            while Q > 4 && k + 4 <= run {
                self.tile::<S, V, B, 4>(simd, strip, block, tap, k);
                k += 4;
            }
            while Q > 1 && k < run {
                self.tile::<S, V, B, 1>(simd, strip, block, tap, k);
                k += 1;
            }
        }
    }

    /// `Q` rows of the gradient of one tap, summed over a strip.
    #[inline(always)]
    fn tile<S: Simd, const V: usize, const B: usize, const Q: usize>(
        &mut self,
        simd: S,
        strip: &Strip,
        block: usize,
        tap: usize,
        k: usize,
    ) {
        let Sweep { columns, input: from, output: to, taps, .. } = self.sweep;
        let lanes = BLOCK / V;
        let mut sums = [[[R::splat(simd, R::default()); V]; B]; Q];
        for image in strip.images.clone() {
            for row in strip.rows.clone() {
                if !taps.inside(row).contains(&tap) {
                    continue;
                }
                let input = from.origin + image * from.image + row * from.row + tap * taps.pitch + k;
                let slopes = to.origin + image * to.image + row * to.row + block * BLOCK;
                let input = &self.input[input..][..(columns - 1) * from.column + Q];
                let slopes = &self.slopes[slopes..][..(columns - 1) * to.column + B * BLOCK];
                sums = add_products(simd, sums, input, from.column, slopes.chunks(to.column));
            }
        }
        for q in 0..Q {
            for b in 0..B {
                let place = ((block + b) * taps.count + tap) * taps.run + k + q;
                let place = &mut self.gradient[place * BLOCK..][..BLOCK];
                for v in 0..V {
                    let place = &mut place[v * lanes..][..lanes];
                    R::store::<S>(place, R::plus(simd, R::load::<S>(place), sums[q][b][v]));
                }
            }
        }
    }
}

/// Adds the products of the first `Q` values and `B` blocks of slopes of every pixel of a row. Without a branch that
/// could panic, so that the sums stay in registers.
#[inline(always)]
fn add_products<'a, S: Simd, R: Real, const V: usize, const B: usize, const Q: usize>(
    simd: S,
    mut sums: [[[R::Vector<S>; V]; B]; Q],
    mut values: &'a [R],
    step: usize,
    slopes: impl Iterator<Item = &'a [R]>,
) -> [[[R::Vector<S>; V]; B]; Q] {
    let lanes = BLOCK / V;
    for slopes in slopes {
        let slopes = slopes.as_chunks::<BLOCK>().0.first_chunk::<B>();
        let (Some(first), Some(slopes)) = (values.first_chunk::<Q>(), slopes) else {
            break;
        };
        values = values.get(step..).unwrap_or_default();
        let vectors: [[R::Vector<S>; V]; B] =
            std::array::from_fn(|b| std::array::from_fn(|v| R::load::<S>(&slopes[b][v * lanes..][..lanes])));
        for (sums, &value) in sums.iter_mut().zip(first) {
            let value = R::splat(simd, value);
            for (sums, vectors) in sums.iter_mut().zip(&vectors) {
                for (sum, &vector) in sums.iter_mut().zip(vectors) {
                    *sum = R::mul_add(simd, value, vector, *sum);
                }
            }
        }
    }
    sums
}
