//! Means over seeds, and what is known about them.

/// The arithmetic mean; NaN of no values.
///
/// ```
/// assert_eq!(upwash_report::statistics::mean(&[1.0, 2.0, 6.0]), 3.0);
/// ```
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample; none of a single value.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let (middle, count) = (mean(values), values.len());
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    (count > 1).then(|| (squares / (count - 1) as f64).sqrt())
}

/// Half the width of the 95 % confidence interval of the mean, by Student's t; none of a single value.
pub fn margin(values: &[f64]) -> Option<f64> {
    /// For 1 to 30 degrees of freedom.
    const T: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    let count = values.len();
    let quantile = T.get(count.checked_sub(2)?).copied().unwrap_or(2.042);
    Some(quantile * deviation(values)? / (count as f64).sqrt())
}

/// A mean with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The mean of the differences `one - other`, pair by pair; none of fewer than two pairs.
///
/// ```
/// use upwash_report::statistics::difference;
/// // scipy.stats.ttest_rel([3, 5, 4], [1, 2, 3]).confidence_interval() = (-0.4841, 4.4841)
/// let interval = difference(&[3.0, 5.0, 4.0], &[1.0, 2.0, 3.0]).unwrap();
/// assert!((interval.low + 0.4841).abs() < 1e-3 && (interval.high - 4.4841).abs() < 1e-3);
/// ```
pub fn difference(one: &[f64], other: &[f64]) -> Option<Interval> {
    let differences: Vec<f64> = one.iter().zip(other).map(|(one, other)| one - other).collect();
    let (mean, half) = (mean(&differences), margin(&differences)?);
    Some(Interval { mean, low: mean - half, high: mean + half })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn margins_are_half_of_students_interval() {
        // scipy.stats.t.interval(0.95, 4, 3.0, scipy.stats.sem([1, 2, 3, 4, 5])) = (1.0368, 4.9632)
        assert!((margin(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap() - 1.9632).abs() < 1e-3);
        assert_eq!((deviation(&[4.0]), margin(&[4.0])), (None, None));
    }
}
