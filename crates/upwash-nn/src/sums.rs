//! Sums over the pixels of images, for every channel.
//!
//! A sum over an image is of the type of the elements and stays in a register; sums over images are f64. Even and odd
//! pixels of a row are summed apart, because one sum after the other would wait for each addition.

use crate::{BLOCK, Real, Shape};
use pulp::{Simd, WithSimd};

/// Sums of two kinds over the pixels of some images. `terms` computes the terms of a pixel.
pub(crate) struct PixelSums<'a, R, T> {
    pub(crate) shape: Shape,
    pub(crate) images: usize,
    pub(crate) terms: T,
    pub(crate) totals: &'a mut [Vec<f64>; 2],
    pub(crate) numbers: std::marker::PhantomData<R>,
}

/// What is summed.
pub(crate) trait Terms<R: Real> {
    /// The terms of the elements of a pixel that fill a vector: `element` is the first, `channel` is its channel.
    fn at<S: Simd>(&mut self, simd: S, element: usize, channel: usize) -> [R::Vector<S>; 2];
}

impl<R: Real, T: Terms<R>> WithSimd for PixelSums<'_, R, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let lanes = const { size_of::<R::Vector<S>>() / size_of::<R>() };
        let Shape { height, width, pitch, .. } = self.shape;
        for image in 0..self.images {
            let first = self.shape.origin() + image * self.shape.image_pitch();
            for channel in (0..pitch).step_by(lanes) {
                let mut sums = [[R::splat(simd, R::default()); 2]; 2];
                for row in 0..height {
                    let row = first + row * self.shape.row_pitch() + channel;
                    for pixel in 0..width {
                        let terms = self.terms.at(simd, row + pixel * pitch, channel);
                        let sums = &mut sums[pixel % 2];
                        *sums = [R::plus(simd, sums[0], terms[0]), R::plus(simd, sums[1], terms[1])];
                    }
                }
                for (kind, totals) in self.totals.iter_mut().enumerate() {
                    let mut sum = [R::default(); BLOCK];
                    R::store::<S>(&mut sum[..lanes], R::plus(simd, sums[0][kind], sums[1][kind]));
                    let totals = totals[channel..].iter_mut().zip(&sum[..lanes]);
                    totals.for_each(|(total, sum)| *total += sum.to_f64());
                }
            }
        }
    }
}

/// The vector at a position.
#[inline(always)]
fn load<S: Simd, R: Real>(values: &[R], element: usize) -> R::Vector<S> {
    R::load::<S>(&values[element..][..const { size_of::<R::Vector<S>>() / size_of::<R>() }])
}

/// Differences from some numbers, and their squares.
pub(crate) struct Deviations<'a, R> {
    pub(crate) values: &'a [R],
    pub(crate) from: &'a [R],
}

impl<R: Real> Terms<R> for Deviations<'_, R> {
    #[inline(always)]
    fn at<S: Simd>(&mut self, simd: S, element: usize, channel: usize) -> [R::Vector<S>; 2] {
        let difference = R::minus(simd, load::<S, R>(self.values, element), load::<S, R>(self.from, channel));
        [difference, R::times(simd, difference, difference)]
    }
}

/// Slopes, and slopes times differences from means. With `gates`, slopes are set to 0 where those are not positive.
pub(crate) struct Slopes<'a, R> {
    pub(crate) slopes: &'a mut [R],
    pub(crate) gates: Option<&'a [R]>,
    pub(crate) values: &'a [R],
    pub(crate) means: &'a [R],
}

impl<R: Real> Terms<R> for Slopes<'_, R> {
    #[inline(always)]
    fn at<S: Simd>(&mut self, simd: S, element: usize, channel: usize) -> [R::Vector<S>; 2] {
        let mut slope = load::<S, R>(self.slopes, element);
        if let Some(gates) = self.gates {
            slope = R::gate(simd, load::<S, R>(gates, element), slope);
            R::store::<S>(&mut self.slopes[element..][..const { size_of::<R::Vector<S>>() / size_of::<R>() }], slope);
        }
        let difference = R::minus(simd, load::<S, R>(self.values, element), load::<S, R>(self.means, channel));
        [slope, R::times(simd, slope, difference)]
    }
}
