//! The loss function of the CPU engines.

use crate::engine::Score;

/// Computes the softmax cross-entropy of logits (one row of `classes` values per label). Returns the score and the
/// gradient of the mean loss with respect to the logits.
///
/// ```
/// let (score, slope) = upwash::loss::cross_entropy(&[0.0, 0.0], &[1], 2);
/// assert!((score.loss - 2f64.ln()).abs() < 1e-6);
/// assert_eq!(slope, [0.5, -0.5]);
/// ```
///
/// # Panics
/// If a label is not below `classes`, or the number of rows differs from the number of labels.
pub fn cross_entropy(logits: &[f32], labels: &[u8], classes: usize) -> (Score, Vec<f32>) {
    assert_eq!(logits.len(), labels.len() * classes, "there must be one row of logits per label");
    let examples = labels.len();
    let (mut loss, mut correct) = (0.0f64, 0);
    let mut slope = Vec::with_capacity(logits.len());
    for (row, &label) in logits.chunks_exact(classes).zip(labels) {
        let label = usize::from(label);
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = row.iter().map(|x| (x - largest).exp()).sum();
        loss += f64::from(total.ln() + largest - row[label]);
        // Ties go to the first class, as with argmax. NaN logits are never correct.
        correct += usize::from(row.iter().position(|&x| x == largest) == Some(label));
        for (class, x) in row.iter().enumerate() {
            let target = if class == label { 1.0 } else { 0.0 };
            slope.push(((x - largest).exp() / total - target) / examples as f32);
        }
    }
    (Score { loss: loss / examples.max(1) as f64, correct, examples, clipped: 0 }, slope)
}
