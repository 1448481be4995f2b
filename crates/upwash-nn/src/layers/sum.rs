//! The sum of two tensors of the same shape.

use crate::Real;
use crate::instructions::vectorize;
use crate::pass::{Operation, Pass, Tensor};

#[derive(Debug)]
pub(crate) struct Sum {
    pub(crate) inputs: [Tensor; 2],
    pub(crate) output: Tensor,
}

impl<R: Real> Operation<R> for Sum {
    fn gradients(&self) -> Vec<Tensor> {
        vec![self.inputs[0], self.inputs[1], self.output]
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        let mut output = pass.take(self.output);
        let len = pass.shape(self.output).len(pass.images());
        let [a, b] = self.inputs.map(|input| &pass.value(input)[..len]);
        vectorize(
            pass.arch,
            #[inline(always)]
            || {
                let terms = a.iter().zip(b);
                output[..len].iter_mut().zip(terms).for_each(|(sum, (&a, &b))| *sum = a + b);
            },
        );
        pass.put(self.output, output);
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        let slopes = pass.take_sum(self.output);
        let len = pass.shape(self.output).len(pass.images());
        for input in self.inputs {
            let mut gradient = pass.take_sum(input);
            vectorize(
                pass.arch,
                #[inline(always)]
                || gradient[..len].iter_mut().zip(&slopes[..len]).for_each(|(sum, &slope)| *sum += slope),
            );
            pass.put_gradient(input, gradient);
        }
        pass.put_gradient(self.output, slopes);
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        pass.drop_gradient(self.output);
    }
}
