//! Muon: Jordan et al. (2024), "Muon: An optimizer for hidden layers in neural networks".

use super::{AdamW, Optimizer, StepContext, WeightDecay};
use crate::model::{Layout, Slot};
use std::sync::Arc;
use upwash_nn::{Instructions, multiply_transposed};

/// The iterations toward an orthogonal matrix.
const ITERATIONS: usize = 5;
/// The polynomial of an iteration: X becomes a X + b (X X') X + c (X X')^2 X.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];
/// The root mean square of the directions of AdamW, which those of matrices are scaled to.
const ADAMW_SIZE: f64 = 0.2;

/// Muon for matrices and for kernels of convolutions (as outputs x the rest), AdamW for all other parameters. The
/// directions of matrices have the size of AdamW's, so that one learning rate serves both.
#[derive(Clone, Debug, PartialEq)]
pub struct Muon {
    /// The factor that the momentum is multiplied by in every step.
    pub momentum: f64,
    /// Whether the momentum is Nesterov momentum.
    pub nesterov: bool,
    /// The optimizer of all other parameters, and the weight decay of all.
    pub others: AdamW,
    /// The matrices of the model.
    matrices: Vec<Slot>,
}

impl Default for Muon {
    fn default() -> Self {
        let others = AdamW { weight_decay: WeightDecay::new(0.1, false), ..AdamW::default() };
        Self::new(0.95, true, others)
    }
}

impl Muon {
    /// Muon for a model whose [layout is not known](Optimizer::for_layout) yet.
    pub fn new(momentum: f64, nesterov: bool, others: AdamW) -> Self {
        Self { momentum, nesterov, others, matrices: vec![] }
    }

    /// The tensors of a model that are matrices.
    pub(crate) fn matrices(layout: &Layout) -> impl Iterator<Item = &Slot> {
        layout.parameters.iter().filter(|slot| slot.shape.len() > 1)
    }

    /// Replaces the gradient of a matrix by its direction without decay.
    fn orthogonalize(&self, slot: &Slot, momentum: &mut [f32], gradient: &mut [f32]) {
        let (factor, rest) = (self.momentum as f32, (1.0 - self.momentum) as f32);
        for (g, m) in gradient.iter_mut().zip(momentum) {
            *m = factor * *m + rest * *g;
            *g = if self.nesterov { rest * *g + factor * *m } else { *m };
        }
        let rows = slot.shape[0].max(1);
        let columns = gradient.len() / rows;
        let scale = ADAMW_SIZE * (rows.max(columns) as f64).sqrt();
        let direction = orthogonal(gradient, columns);
        gradient.iter_mut().zip(direction).for_each(|(g, d)| *g = scale as f32 * d);
    }
}

impl Optimizer for Muon {
    /// Matrices have their momentum in the place of the first moments.
    fn state_vectors(&self) -> Vec<&'static str> {
        self.others.state_vectors()
    }

    fn direction(&self, context: StepContext, parameters: &[f32], state: &mut [&mut [f32]], gradient: &mut [f32]) {
        let [first, second] = state else { return };
        let mut passed = 0;
        let end = Slot { name: String::new(), shape: vec![0], offset: gradient.len() };
        for slot in self.matrices.iter().chain([&end]) {
            let between = passed..slot.offset;
            let [first_between, second_between] = [&mut *first, second].map(|moments| &mut moments[between.clone()]);
            self.others.adapt(context.index, first_between, second_between, &mut gradient[between]);
            passed = slot.offset + slot.size();
            if slot.size() > 0 {
                self.orthogonalize(slot, slot.of_mut(first), slot.of_mut(gradient));
            }
        }
        self.others.weight_decay.add_to(gradient, parameters);
    }

    fn for_layout(&self, layout: &Layout) -> Option<Arc<dyn Optimizer>> {
        let others = AdamW { weight_decay: self.others.weight_decay.for_layout(layout), ..self.others.clone() };
        Some(Arc::new(Self { others, matrices: Self::matrices(layout).cloned().collect(), ..self.clone() }))
    }
}

/// A matrix with the same singular vectors whose singular values are near 1, by Newton and Schulz's iteration.
fn orthogonal(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    // The products are smallest with fewer rows than columns.
    let is_tall = rows > columns;
    let (mut x, width) = match is_tall {
        true => (transposed(matrix, columns), rows),
        false => (matrix.to_vec(), columns),
    };
    let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-7);
    x.iter_mut().for_each(|x| *x /= norm as f32);
    let instructions = Instructions::detect();
    let height = x.len() / width;
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..ITERATIONS {
        let gram = multiply_transposed(instructions, &x, &x, width);
        let mut factor = multiply_transposed(instructions, &gram, &gram, height); // the Gram matrix is symmetric
        factor.iter_mut().zip(&gram).for_each(|(square, gram)| *square = b * gram + c * *square);
        let change = multiply_transposed(instructions, &factor, &transposed(&x, width), height);
        x.iter_mut().zip(change).for_each(|(x, change)| *x = a * *x + change);
    }
    if is_tall { transposed(&x, width) } else { x }
}

/// The transpose of a matrix in row-major order.
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let column = |column: usize| matrix[column..].iter().step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}
