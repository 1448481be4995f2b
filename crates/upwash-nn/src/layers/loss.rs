//! Softmax cross-entropy.

use crate::{Outcome, Real, Shape};

/// The loss of a batch. Writes the gradient of the mean loss by the logits, if wanted.
pub(crate) fn cross_entropy<R: Real>(
    logits: &[R],
    shape: Shape,
    labels: &[u8],
    mut gradient: Option<&mut [R]>,
) -> Outcome {
    let (mut loss, mut correct) = (0.0, 0);
    let share = R::of(1.0 / labels.len().max(1) as f64);
    for (index, (row, &label)) in logits.chunks_exact(shape.pitch).zip(labels).enumerate() {
        let (row, label) = (&row[..shape.channels], usize::from(label));
        let largest = row.iter().fold(R::of(f64::NEG_INFINITY), |largest, &x| largest.maximum(x));
        let total: R = row.iter().map(|&x| (x - largest).exp()).sum();
        loss += total.to_f64().ln() + (largest - row[label]).to_f64();
        // Ties go to the first class, as with argmax. NaN logits are never correct.
        correct += usize::from(row.iter().position(|&x| x == largest) == Some(label));
        let Some(gradient) = &mut gradient else {
            continue;
        };
        let gradient = &mut gradient[index * shape.pitch..][..shape.pitch];
        gradient.fill(R::default());
        for (class, (gradient, &x)) in gradient.iter_mut().zip(row).enumerate() {
            let target = R::of(if class == label { 1.0 } else { 0.0 });
            *gradient = ((x - largest).exp() / total - target) * share;
        }
    }
    Outcome { loss: loss / labels.len().max(1) as f64, correct }
}
