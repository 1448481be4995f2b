//! Axes: their ticks and labels, and the range of accuracies. `assets/page/axes.js` draws the same axes.

use std::ops::Range;

/// Fewer ticks do not tell how an axis is divided.
const MIN_LOG_TICKS: usize = 3;

/// An axis for accuracies in percent, as that of the page. The first epochs are far below the others, which would then all
/// be in the top of the chart: if they leave less than half of it to the rest, the axis starts above them.
pub(super) fn accuracy_axis<'a>(lines: impl Iterator<Item = &'a [(f64, f64)]> + Clone) -> Option<Range<f64>> {
    let values = |points: &'a [(f64, f64)]| points.iter().map(|point| point.1);
    let all = lines.clone().flat_map(values);
    let late = lines.flat_map(|points| values(&points[points.len() / 3..]));
    let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
    let lowest = late.reduce(f64::min)?;
    let is_cut = high > lowest && high - lowest < 0.5 * (high - low);
    let from = if is_cut { lowest } else { low };
    let margin = if high > from { 0.05 * (high - from) } else { 1.0 };
    let (min, max) = ((from - margin).max(0.0), (high + margin).min(100.0));
    let power = 10f64.powf(((max - min) / 4.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| (max - min) / step <= 6.0).unwrap_or(10.0 * power);
    Some((min / step).floor() * step..((max / step).ceil() * step).min(100.0))
}

/// Round numbers on a logarithmic axis: 1, 2 and 5 times powers of ten, or fewer of them over many decades. On a short axis
/// that holds too few of these, round numbers at equal distances.
pub(super) fn log_ticks(range: &Range<f64>) -> Vec<f64> {
    let decades = (range.end / range.start).log10();
    let digits: &[f64] = match decades {
        4.0.. => &[1.0],
        2.2.. => &[1.0, 3.0],
        0.7.. => &[1.0, 2.0, 5.0],
        _ => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
    };
    let powers = range.start.log10().floor() as i32..=range.end.log10().floor() as i32;
    let ticks = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
    let ticks: Vec<f64> = ticks.filter(|tick| range.contains(tick)).collect();
    if ticks.len() < MIN_LOG_TICKS { linear_ticks(range) } else { ticks }
}

/// The multiples of the largest round step that has enough of them on the axis.
fn linear_ticks(range: &Range<f64>) -> Vec<f64> {
    let power = 10f64.powf(((range.end - range.start) / MIN_LOG_TICKS as f64).log10().floor());
    let multiples = |factor: f64| -> Vec<f64> {
        let step = factor * power;
        let numbers = (range.start / step).ceil() as i64..=(range.end / step).floor() as i64;
        numbers.map(|number| number as f64 * step).collect()
    };
    let steps = [5.0, 2.0].map(multiples);
    steps.into_iter().find(|ticks| ticks.len() >= MIN_LOG_TICKS).unwrap_or_else(|| multiples(1.0))
}

/// The label of a tick.
pub(super) fn label(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        // Three digits, without trailing zeros.
        size if !(1e-3..1e6).contains(&size) => {
            format!("{number:.2e}").parse::<f64>().map_or(String::new(), |rounded| format!("{rounded:e}"))
        }
        // Rounded to four decimals, without trailing zeros.
        _ => format!("{}", (number * 1e4).round() / 1e4),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn logarithmic_axes_have_several_round_ticks() {
        let wide = [0.04..3.0, 0.9..2.4, 1e-6..0.5, 0.3..0.9, 1.0..1.9];
        // Narrow ones, as charts widen them.
        let narrow = [0.34..0.34, 0.68..0.7, 0.6..0.7, 0.31..0.37, 6.5..9.5, 3.4e-5..3.5e-5, 2.1e7..2.2e7];
        for range in wide.into_iter().chain(narrow.map(|range| range.start / 1.1..range.end * 1.1)) {
            let ticks = super::log_ticks(&range);
            assert!((3..=9).contains(&ticks.len()), "{range:?}: {ticks:?}");
            assert!(ticks.iter().all(|tick| range.contains(tick)), "{range:?}: {ticks:?}");
            let labels: BTreeSet<String> = ticks.iter().copied().map(super::label).collect();
            assert_eq!(labels.len(), ticks.len(), "{range:?}: {labels:?}");
        }
        let ticks: Vec<String> = super::log_ticks(&(0.04..3.0)).into_iter().map(super::label).collect();
        assert_eq!(ticks, ["0.05", "0.1", "0.2", "0.5", "1", "2"]);
        let ticks: Vec<String> = super::log_ticks(&(0.31..0.37)).into_iter().map(super::label).collect();
        assert_eq!(ticks, ["0.32", "0.34", "0.36"]);
    }

    #[test]
    fn accuracy_axes_start_above_the_first_epochs() {
        let axis = |lines: &[&[f64]]| {
            let lines: Vec<Vec<(f64, f64)>> =
                lines.iter().map(|line| (1..).map(f64::from).zip(line.iter().copied()).collect()).collect();
            super::accuracy_axis(lines.iter().map(Vec::as_slice))
        };
        assert_eq!(axis(&[&[10.0, 91.0, 95.0], &[20.0, 92.0, 96.0]]), Some(90.0..97.0));
        assert_eq!(axis(&[&[50.0, 60.0, 90.0]]), Some(40.0..100.0));
        assert_eq!(axis(&[&[100.0, 100.0, 100.0]]), Some(99.0..100.0));
        assert_eq!(axis(&[&[]]), None);
    }
}
