//! Layer normalization over the channels of each pixel, or over all features of a flat vector.

use crate::Real;
use crate::instructions::vectorize;
use crate::pass::{Operation, Pass, Tensor};
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct LayerNorm {
    pub(crate) input: Tensor,
    pub(crate) output: Tensor,
    pub(crate) weights: Range<usize>,
    pub(crate) bias: Range<usize>,
    pub(crate) epsilon: f64,
    /// Its index among the layers.
    pub(crate) layer: usize,
}

impl LayerNorm {
    /// The mean and the inverse deviation of a pixel.
    fn moments<R: Real>(&self, pixel: &[R]) -> (f64, f64) {
        let count = pixel.len() as f64;
        let mean = pixel.iter().map(|x| x.to_f64()).sum::<f64>() / count;
        let variance = pixel.iter().map(|x| (x.to_f64() - mean).powi(2)).sum::<f64>() / count;
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }
}

impl<R: Real> Operation<R> for LayerNorm {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.input, self.output]
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.output);
        let (shape, input) = (pass.shape(self.input), pass.value(self.input));
        let (weights, bias) = (pass.parameters(&self.weights), pass.parameters(&self.bias));
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                for row in shape.rows(pass.images()) {
                    let pixels = input[row..][..shape.row_len()].chunks_exact(shape.pitch);
                    let outputs = output[row..][..shape.row_len()].chunks_exact_mut(shape.pitch);
                    for (pixel, output) in pixels.zip(outputs) {
                        let pixel = &pixel[..shape.channels];
                        let (mean, inverse) = self.moments(pixel);
                        for ((out, x), (weight, &bias)) in output.iter_mut().zip(pixel).zip(weights.iter().zip(bias)) {
                            *out = R::of((x.to_f64() - mean) * inverse) * *weight + bias;
                        }
                    }
                }
            },
        );
        pass.put(self.output, output);
    }

    fn prepare_backward(&self, pass: &mut Pass<'_, R>) {
        let mut kept = pass.take_kept(self.layer);
        let channels = pass.shape(self.input).channels;
        kept.sums = [(); 2].map(|()| vec![0.0; channels]);
        pass.put_kept(self.layer, kept);
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        let (slopes, mut gradient) = (pass.take_sum(self.output), pass.take_sum(self.input));
        let mut kept = pass.take_kept(self.layer);
        let (shape, input) = (pass.shape(self.input), pass.value(self.input));
        let weights = pass.parameters(&self.weights);
        let [weight_sums, bias_sums] = &mut kept.sums;
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                for row in shape.rows(pass.images()) {
                    let row = row..row + shape.row_len();
                    let pixels =
                        input[row.clone()].chunks_exact(shape.pitch).zip(slopes[row.clone()].chunks(shape.pitch));
                    for ((pixel, slopes), gradient) in pixels.zip(gradient[row].chunks_exact_mut(shape.pitch)) {
                        let pixel = &pixel[..shape.channels];
                        let (mean, inverse) = self.moments(pixel);
                        let (mut sum, mut product) = (0.0, 0.0);
                        for (channel, (x, slope)) in pixel.iter().zip(slopes).enumerate() {
                            let normal = (x.to_f64() - mean) * inverse;
                            weight_sums[channel] += slope.to_f64() * normal;
                            bias_sums[channel] += slope.to_f64();
                            let slope = slope.to_f64() * weights[channel].to_f64();
                            (sum, product) = (sum + slope, product + slope * normal);
                        }
                        let count = shape.channels as f64;
                        for ((x, gradient), (slope, weight)) in
                            pixel.iter().zip(gradient).zip(slopes.iter().zip(weights))
                        {
                            let normal = (x.to_f64() - mean) * inverse;
                            let slope = slope.to_f64() * weight.to_f64();
                            *gradient += R::of(inverse * (slope - sum / count - normal * product / count));
                        }
                    }
                }
            },
        );
        pass.put_kept(self.layer, kept);
        pass.put_gradient(self.output, slopes);
        pass.put_gradient(self.input, gradient);
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        let kept = pass.take_kept(self.layer);
        for (range, sums) in [&self.weights, &self.bias].into_iter().zip(&kept.sums) {
            let places = pass.parameter_gradient[range.clone()].iter_mut();
            places.zip(sums).for_each(|(place, &sum)| *place = R::of(sum));
        }
        pass.put_kept(self.layer, kept);
        pass.drop_gradient(self.output);
    }
}
