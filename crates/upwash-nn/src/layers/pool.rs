//! Pooling: the maximum over squares, and the mean over the image.

use crate::instructions::vectorize;
use crate::pass::{Operation, Pass, Tensor};
use crate::{Real, Shape};

/// The maximum over squares that do not overlap. Rows and columns that do not fill a square are left out.
#[derive(Debug)]
pub(crate) struct MaxPool {
    pub(crate) input: Tensor,
    pub(crate) output: Tensor,
    pub(crate) size: usize,
}

impl MaxPool {
    /// Calls `visit` with the start of every output pixel and the starts of the input pixels of its square.
    fn each_square(&self, images: usize, [input, output]: [Shape; 2], mut visit: impl FnMut(usize, &[usize])) {
        let mut square = Vec::with_capacity(self.size * self.size);
        for image in 0..images {
            for pixel in 0..output.height * output.width {
                let (y, x) = (pixel / output.width, pixel % output.width);
                let first = input.origin() + image * input.image_pitch();
                let first = first + self.size * (y * input.row_pitch() + x * input.pitch);
                square.clear();
                for place in 0..self.size * self.size {
                    square.push(first + place / self.size * input.row_pitch() + place % self.size * input.pitch);
                }
                let place = output.origin() + image * output.image_pitch();
                visit(place + y * output.row_pitch() + x * output.pitch, &square);
            }
        }
    }

    fn shapes<R: Real>(&self, pass: &Pass<'_, R>) -> [Shape; 2] {
        [pass.shape(self.input), pass.shape(self.output)]
    }
}

impl<R: Real> Operation<R> for MaxPool {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.input, self.output]
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.output);
        let (input, shapes) = (pass.value(self.input), self.shapes(pass));
        let pitch = shapes[0].pitch;
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                self.each_square(pass.images(), shapes, |to, from| {
                    let output = &mut output[to..][..pitch];
                    output.copy_from_slice(&input[from[0]..][..pitch]);
                    for &from in &from[1..] {
                        let pixel = &input[from..][..pitch];
                        output.iter_mut().zip(pixel).for_each(|(largest, &x)| *largest = x.maximum(*largest));
                    }
                });
            },
        );
        pass.put(self.output, output);
    }

    /// The gradient goes to the first pixel of a square that has the maximum.
    fn backward(&self, pass: &mut Pass<'_, R>) {
        let (mut slopes, mut gradient) = (pass.take_sum(self.output), pass.take_sum(self.input));
        let (input, output, shapes) = (pass.value(self.input), pass.value(self.output), self.shapes(pass));
        let pitch = shapes[0].pitch;
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                self.each_square(pass.images(), shapes, |to, from| {
                    let (largest, slopes) = (&output[to..][..pitch], &mut slopes[to..][..pitch]);
                    for &from in from {
                        let pixels = input[from..][..pitch].iter().zip(largest);
                        let slopes = gradient[from..][..pitch].iter_mut().zip(&mut *slopes);
                        for ((gradient, slope), (&x, &largest)) in slopes.zip(pixels) {
                            let is_largest = x == largest;
                            *gradient += if is_largest { *slope } else { R::default() };
                            *slope = if is_largest { R::default() } else { *slope };
                        }
                    }
                });
            },
        );
        pass.put_gradient(self.output, slopes);
        pass.put_gradient(self.input, gradient);
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        pass.drop_gradient(self.output);
    }
}

/// The mean of every channel.
#[derive(Debug)]
pub(crate) struct GlobalAverage {
    pub(crate) input: Tensor,
    pub(crate) output: Tensor,
}

impl<R: Real> Operation<R> for GlobalAverage {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.input, self.output]
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.output);
        let (shape, input) = (pass.shape(self.input), pass.value(self.input));
        let factor = R::of(1.0 / (shape.height * shape.width) as f64);
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                output[..pass.images() * shape.pitch].fill(R::default());
                for (index, row) in shape.rows(pass.images()).enumerate() {
                    let means = &mut output[index / shape.height * shape.pitch..][..shape.pitch];
                    for pixel in input[row..][..shape.row_len()].chunks_exact(shape.pitch) {
                        means.iter_mut().zip(pixel).for_each(|(mean, &x)| *mean += x);
                    }
                    if (index + 1) % shape.height == 0 {
                        means.iter_mut().for_each(|mean| *mean = *mean * factor);
                    }
                }
            },
        );
        pass.put(self.output, output);
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        let (slopes, mut gradient) = (pass.take_sum(self.output), pass.take_sum(self.input));
        let shape = pass.shape(self.input);
        let factor = R::of(1.0 / (shape.height * shape.width) as f64);
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                for (index, row) in shape.rows(pass.images()).enumerate() {
                    let slopes = &slopes[index / shape.height * shape.pitch..][..shape.pitch];
                    for pixel in gradient[row..][..shape.row_len()].chunks_exact_mut(shape.pitch) {
                        pixel.iter_mut().zip(slopes).for_each(|(gradient, &slope)| *gradient += slope * factor);
                    }
                }
            },
        );
        pass.put_gradient(self.output, slopes);
        pass.put_gradient(self.input, gradient);
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        pass.drop_gradient(self.output);
    }
}
