//! Functions of single elements.

use crate::Real;
use crate::instructions::vectorize;
use crate::pass::{Operation, Pass, Tensor};

/// A function that is applied to every element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// max(x, 0).
    Relu,
    /// x times the logistic function of x.
    Silu,
    /// The Gaussian error linear unit, in its approximation by a hyperbolic tangent.
    Gelu,
    /// The hyperbolic tangent.
    Tanh,
}

/// sqrt(2 / pi), and the cubic coefficient of the approximation of GELU.
const GELU: (f64, f64) = (0.797_884_560_802_865_4, 0.044715);

fn logistic<R: Real>(x: R) -> R {
    R::of(1.0) / (R::of(1.0) + (-x).exp())
}

fn gelu_inner<R: Real>(x: R) -> R {
    (R::of(GELU.0) * (x + R::of(GELU.1) * x * x * x)).tanh()
}

impl Function {
    fn value<R: Real>(self, x: R) -> R {
        match self {
            Self::Relu => x.maximum(R::default()),
            Self::Silu => x * logistic(x),
            Self::Gelu => R::of(0.5) * x * (R::of(1.0) + gelu_inner(x)),
            Self::Tanh => x.tanh(),
        }
    }

    /// The derivative at x, where the value is y.
    fn slope<R: Real>(self, x: R, y: R) -> R {
        let one = R::of(1.0);
        match self {
            Self::Relu if y > R::default() => one,
            Self::Relu => R::default(),
            Self::Silu => logistic(x) * (one + x * (one - logistic(x))),
            Self::Gelu => {
                let inner = gelu_inner(x);
                let slope = R::of(GELU.0) * (one + R::of(3.0 * GELU.1) * x * x);
                R::of(0.5) * (one + inner + x * (one - inner * inner) * slope)
            }
            Self::Tanh => one - y * y,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Activation {
    pub(crate) input: Tensor,
    pub(crate) output: Tensor,
    pub(crate) function: Function,
}

impl<R: Real> Operation<R> for Activation {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.input, self.output]
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.output);
        let (shape, input) = (pass.shape(self.output), pass.value(self.input));
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                for row in shape.rows(pass.images()) {
                    let row = row..row + shape.row_len();
                    let elements = output[row.clone()].iter_mut().zip(&input[row]);
                    elements.for_each(|(y, &x)| *y = self.function.value(x));
                }
            },
        );
        pass.put(self.output, output);
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        let (slopes, mut gradient) = (pass.take_sum(self.output), pass.take_sum(self.input));
        let shape = pass.shape(self.output);
        let (input, output) = (pass.value(self.input), pass.value(self.output));
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                for row in shape.rows(pass.images()) {
                    let row = row..row + shape.row_len();
                    let points = input[row.clone()].iter().zip(&output[row.clone()]).zip(&slopes[row.clone()]);
                    for (gradient, ((&x, &y), &slope)) in gradient[row].iter_mut().zip(points) {
                        *gradient += slope * self.function.slope(x, y);
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
