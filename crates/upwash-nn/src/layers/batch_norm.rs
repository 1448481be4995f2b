//! Batch normalization, with a sum and a ReLU after it if the network has them there.
//!
//! It is two operations: one collects the moments of the batch, the other normalizes by them. In the backward pass the
//! second one collects sums over the gradient, by which the first one computes the gradient of the input. Each works on
//! images that are still in the cache: the first on what a convolution has just written, and the second on what the next
//! convolution is about to read.

use crate::instructions::vectorize;
use crate::pass::{Kept, Operation, Pass, Statistics, Tensor};
use crate::sums::{Deviations, PixelSums, Slopes};
use crate::{Real, Shape};
use std::marker::PhantomData;
use std::ops::Range;

/// A batch normalization.
#[derive(Clone, Debug)]
pub(crate) struct BatchNorm {
    pub(crate) input: Tensor,
    pub(crate) output: Tensor,
    pub(crate) shape: Shape,
    /// Scale and shift.
    pub(crate) weights: Range<usize>,
    pub(crate) bias: Range<usize>,
    /// Running mean and variance.
    pub(crate) mean: Range<usize>,
    pub(crate) variance: Range<usize>,
    pub(crate) epsilon: f64,
    pub(crate) momentum: f64,
    /// Its index among the layers.
    pub(crate) layer: usize,
}

/// The first of its operations.
#[derive(Debug)]
pub(crate) struct Moments(pub(crate) BatchNorm);

/// The second of its operations.
#[derive(Debug)]
pub(crate) struct Normalize {
    pub(crate) norm: BatchNorm,
    /// A tensor that is added to the normalized one.
    pub(crate) added: Option<Tensor>,
    pub(crate) relu: bool,
}

/// The means of the batch, among what the layer keeps per channel.
const MEAN: usize = 0;
/// The inverse deviations.
const INVERSE: usize = 1;
/// The first pixel of the batch.
const FIRST: usize = 2;
/// The factors and terms of the forward pass: s and t in s x + t.
const SCALE: usize = 3;
const SHIFT: usize = 4;
/// The factors of the backward pass: a, b and c in a g + b x + c.
const FACTORS: Range<usize> = 5..8;

impl BatchNorm {
    fn count(&self, batch: usize) -> f64 {
        (batch * self.shape.height * self.shape.width) as f64
    }

    fn clear<R: Real>(&self, pass: &mut Pass<'_, R>) {
        let mut kept = pass.take_kept(self.layer);
        kept.sums = [(); 2].map(|()| vec![0.0; self.shape.pitch]);
        kept.channels.resize_with(FACTORS.end, Vec::new);
        kept.channels[FIRST].clear();
        pass.put_kept(self.layer, kept);
    }

    /// The mean and variance to normalize by. Updates or collects those of the batch.
    fn moments<R: Real>(&self, pass: &mut Pass<'_, R>, kept: &Kept<R>) -> [Vec<f64>; 2] {
        if let Statistics::Fixed(statistics) = &pass.statistics {
            let values = |range: &Range<usize>| statistics[range.clone()].iter().map(|value| value.to_f64()).collect();
            return [values(&self.mean), values(&self.variance)];
        }
        let count = self.count(pass.batch);
        let channels = self.shape.channels;
        let shift = |channel: usize| kept.sums[0][channel] / count;
        let mean: Vec<f64> = (0..channels).map(|c| shift(c) + kept.channels[FIRST][c].to_f64()).collect();
        let variance = |channel: usize| (kept.sums[1][channel] / count - shift(channel).powi(2)).max(0.0);
        let variance: Vec<f64> = (0..channels).map(variance).collect();
        // The running variance is unbiased, as in PyTorch.
        let unbiased = count / (count - 1.0).max(1.0);
        let batch = [(&self.mean, &mean, 1.0), (&self.variance, &variance, unbiased)];
        for (range, values, factor) in batch {
            let values = values.iter().map(|value| value * factor);
            match &mut pass.statistics {
                Statistics::Train(running) => {
                    for (old, new) in running[range.clone()].iter_mut().zip(values) {
                        *old += R::of(self.momentum * (new - old.to_f64()));
                    }
                }
                Statistics::Collect(found) => {
                    found[range.clone()].iter_mut().zip(values).for_each(|(old, new)| *old = R::of(new));
                }
                Statistics::Fixed(_) => {}
            }
        }
        [mean, variance]
    }
}

impl<R: Real> Operation<R> for Moments {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.0.input, self.0.output]
    }

    fn prepare(&self, pass: &mut Pass<'_, R>) {
        self.0.clear(pass);
    }

    /// Sums differences from the first pixel of the batch and their squares: the squares of large numbers that hardly
    /// differ would cancel.
    fn forward(&self, pass: &mut Pass<'_, R>) {
        if matches!(pass.statistics, Statistics::Fixed(_)) {
            return;
        }
        let BatchNorm { input, shape, layer, .. } = self.0;
        let mut kept = pass.take_kept(layer);
        let input = pass.value(input);
        if kept.channels[FIRST].is_empty() {
            kept.channels[FIRST] = input[shape.origin()..][..shape.pitch].to_vec();
        }
        let terms = Deviations { values: input, from: &kept.channels[FIRST] };
        let (images, totals) = (pass.images(), &mut kept.sums);
        pass.arch.dispatch(PixelSums { shape, images, terms, totals, numbers: PhantomData::<R> });
        pass.put_kept(layer, kept);
    }

    /// Computes the factors of the gradient from the sums over all images.
    fn prepare_backward(&self, pass: &mut Pass<'_, R>) {
        let BatchNorm { ref weights, ref bias, shape, layer, .. } = self.0;
        let mut kept = pass.take_kept(layer);
        let count = self.0.count(pass.batch);
        let mut factors = [(); 3].map(|()| vec![R::default(); shape.pitch]);
        for (channel, weight) in pass.parameters(weights).iter().enumerate() {
            let [sum, product] = [&kept.sums[0], &kept.sums[1]].map(|sums| sums[channel]);
            let inverse = kept.channels[INVERSE][channel].to_f64();
            pass.parameter_gradient[weights.start + channel] = R::of(product * inverse);
            pass.parameter_gradient[bias.start + channel] = R::of(sum);
            let scale = weight.to_f64() * inverse;
            let slope = -scale * inverse * inverse * product / count;
            let rest = -scale * sum / count - slope * kept.channels[MEAN][channel].to_f64();
            for (factor, value) in factors.iter_mut().zip([scale, slope, rest]) {
                factor[channel] = R::of(value);
            }
        }
        for (place, factors) in kept.channels[FACTORS].iter_mut().zip(factors) {
            *place = factors;
        }
        pass.put_kept(layer, kept);
    }

    /// The gradient of the input: a g + b x + c.
    fn backward(&self, pass: &mut Pass<'_, R>) {
        let BatchNorm { input, output, shape, layer, .. } = self.0;
        let (mut gradient, add) = pass.take_gradient(input);
        let (slopes, kept) = (pass.take_sum(output), pass.take_kept(layer));
        let [a, b, c] = [0, 1, 2].map(|index| &kept.channels[FACTORS][index]);
        let input_value = pass.value(input);
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                for row in shape.rows(pass.images()) {
                    let row = row..row + shape.row_len();
                    let pixels = input_value[row.clone()].chunks_exact(shape.pitch);
                    let slopes = slopes[row.clone()].chunks_exact(shape.pitch);
                    let gradients = gradient[row].chunks_exact_mut(shape.pitch);
                    for ((gradient, pixel), slopes) in gradients.zip(pixels).zip(slopes) {
                        let factors = a.iter().zip(b).zip(c);
                        let values = pixel.iter().zip(slopes).zip(factors);
                        if add {
                            for (gradient, ((&x, &slope), ((&a, &b), &c))) in gradient.iter_mut().zip(values) {
                                *gradient += a * slope + (b * x + c);
                            }
                        } else {
                            for (gradient, ((&x, &slope), ((&a, &b), &c))) in gradient.iter_mut().zip(values) {
                                *gradient = a * slope + (b * x + c);
                            }
                        }
                    }
                }
            },
        );
        pass.put_kept(layer, kept);
        pass.put_gradient(output, slopes);
        pass.put_gradient(input, gradient);
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        let kept = pass.take_kept(self.0.layer);
        match kept.added {
            Some(added) => pass.move_gradient(self.0.output, added),
            None => pass.drop_gradient(self.0.output),
        }
        pass.put_kept(self.0.layer, kept);
    }
}

impl Normalize {
    /// Writes scale x + shift, plus another tensor, at least 0 with ReLU.
    fn apply<R: Real>(&self, pass: &Pass<'_, R>, scale: &[R], shift: &[R], output: &mut [R]) {
        let shape = self.norm.shape;
        let input = pass.value(self.norm.input);
        let added = self.added.map(|added| pass.value(added));
        // NaN stays NaN, so that a run that diverges is noticed.
        let finish = |value: R| if self.relu { value.maximum(R::default()) } else { value };
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                for row in shape.rows(pass.images()) {
                    let row = row..row + shape.row_len();
                    let pixels = input[row.clone()].chunks_exact(shape.pitch);
                    let outputs = output[row.clone()].chunks_exact_mut(shape.pitch);
                    let affine = scale.iter().zip(shift);
                    let Some(added) = added else {
                        for (pixel, output) in pixels.zip(outputs) {
                            for ((out, &x), (&scale, &shift)) in output.iter_mut().zip(pixel).zip(affine.clone()) {
                                *out = finish(x * scale + shift);
                            }
                        }
                        continue;
                    };
                    let added = added[row].chunks_exact(shape.pitch);
                    for ((pixel, output), added) in pixels.zip(outputs).zip(added) {
                        let terms = affine.clone().zip(added);
                        for ((out, &x), ((&scale, &shift), &added)) in output.iter_mut().zip(pixel).zip(terms) {
                            *out = finish(x * scale + shift + added);
                        }
                    }
                }
            },
        );
    }
}

impl<R: Real> Operation<R> for Normalize {
    fn gradients(&self) -> Vec<Tensor> {
        std::iter::once(self.norm.output).chain(self.added).collect()
    }

    fn begins_group(&self) -> bool {
        true
    }

    fn prepare(&self, pass: &mut Pass<'_, R>) {
        let norm = &self.norm;
        let mut kept = pass.take_kept(norm.layer);
        let [mean, variance] = norm.moments(pass, &kept);
        for place in &mut kept.channels {
            place.clear();
        }
        for place in [MEAN, INVERSE, SCALE, SHIFT] {
            kept.channels[place].resize(norm.shape.pitch, R::default());
        }
        let affine = pass.parameters(&norm.weights).iter().zip(pass.parameters(&norm.bias));
        for (channel, (weight, bias)) in affine.enumerate() {
            let inverse = 1.0 / (variance[channel] + norm.epsilon).sqrt();
            let scale = weight.to_f64() * inverse;
            let values = [(MEAN, mean[channel]), (INVERSE, inverse), (SCALE, scale)];
            for (place, value) in values.into_iter().chain([(SHIFT, bias.to_f64() - mean[channel] * scale)]) {
                kept.channels[place][channel] = R::of(value);
            }
        }
        pass.put_kept(norm.layer, kept);
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.norm.output);
        let kept = pass.take_kept(self.norm.layer);
        self.apply(pass, &kept.channels[SCALE], &kept.channels[SHIFT], &mut output);
        pass.put_kept(self.norm.layer, kept);
        pass.put(self.norm.output, output);
    }

    fn prepare_backward(&self, pass: &mut Pass<'_, R>) {
        self.norm.clear(pass);
        let mut kept = pass.take_kept(self.norm.layer);
        kept.added = self.added;
        pass.put_kept(self.norm.layer, kept);
    }

    /// Sets the gradient to 0 where the ReLU is 0, and sums it, alone and times the difference from the mean.
    fn backward(&self, pass: &mut Pass<'_, R>) {
        let BatchNorm { input, output, shape, layer, .. } = self.norm;
        let mut gradient = pass.take_sum(output);
        let mut kept = pass.take_kept(layer);
        let terms = Slopes {
            slopes: &mut gradient,
            gates: self.relu.then(|| pass.value(output)),
            values: pass.value(input),
            means: &kept.channels[MEAN],
        };
        let (images, totals) = (pass.images(), &mut kept.sums);
        pass.arch.dispatch(PixelSums { shape, images, terms, totals, numbers: PhantomData::<R> });
        pass.put_kept(layer, kept);
        pass.put_gradient(output, gradient);
    }

    fn fuse_relu(&mut self) -> bool {
        !std::mem::replace(&mut self.relu, true)
    }

    fn fuse_sum(&mut self, other: Tensor) -> bool {
        let free = !self.relu && self.added.is_none();
        if free {
            self.added = Some(other);
        }
        free
    }
}
