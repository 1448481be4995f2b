//! Distances between messages.

use rayon::prelude::*;

/// Columns that are compared at a time. Fixed, so that a sum does not depend on the number of threads.
const BLOCK: usize = 4096;
/// Partial sums within a block, so that the processor can add several at once.
const LANES: usize = 16;

/// The Euclidean distances between the vectors of each pair. Sums in double precision, in a fixed order.
pub(super) fn distances(pairs: &[(&[f32], &[f32])]) -> Vec<f64> {
    let width = pairs.iter().map(|pair| pair.0.len().min(pair.1.len())).max().unwrap_or(0);
    let blocks: Vec<Vec<f64>> = (0..width.div_ceil(BLOCK))
        .into_par_iter()
        .map(|block| {
            let columns = block * BLOCK..width.min((block + 1) * BLOCK);
            pairs.iter().map(|(a, b)| squared(&a[columns.clone()], &b[columns.clone()])).collect()
        })
        .collect();
    let sum = |pair: usize| blocks.iter().map(|block| block[pair]).sum::<f64>();
    (0..pairs.len()).map(|pair| sum(pair).sqrt()).collect()
}

/// The squared distance between two short vectors.
fn squared(a: &[f32], b: &[f32]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0f64; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            let difference = f64::from(a[lane]) - f64::from(b[lane]);
            sums[lane] += difference * difference;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_match_a_plain_sum() {
        let width = 3 * BLOCK + 7;
        let value = |seed: usize| (0..width).map(|i| ((i * 7919 + seed) % 1000) as f32 / 500.0).collect::<Vec<f32>>();
        let (a, b, c) = (value(1), value(77), vec![1e6; width]);
        let plain = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
        };
        let found = distances(&[(&a, &b), (&b, &c), (&a, &a)]);
        for (found, known) in found.iter().zip([plain(&a, &b), plain(&b, &c), 0.0]) {
            assert!((found - known).abs() <= 1e-9 * known, "{found} is not {known}");
        }
        assert!(distances(&[(&[f32::NAN], &[1.0])])[0].is_nan());
        assert!(distances(&[]).is_empty());
    }
}
