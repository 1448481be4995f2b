//! Measured durations, and the deadlines that follow from them.

use std::collections::VecDeque;
use std::time::Duration;

/// How many durations are kept.
const WINDOW: usize = 64;
/// How many are needed before anything follows from them.
const ENOUGH: usize = 8;

/// The latest durations of something that repeats, such as a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    durations: VecDeque<Duration>,
    /// The median, and the deviation from it.
    measured: Option<(Duration, Duration)>,
}

impl Pace {
    /// Adds a duration, and forgets the oldest.
    pub(crate) fn add(&mut self, duration: Duration) {
        if self.durations.len() == WINDOW {
            self.durations.pop_front();
        }
        self.durations.push_back(duration);
        self.measured = (self.durations.len() >= ENOUGH).then(|| {
            let middle = median(self.durations.iter().copied().collect());
            let deviations = self.durations.iter().map(|duration| duration.abs_diff(middle)).collect();
            // Scaled to the standard deviation of a normal distribution.
            (middle, median(deviations).mul_f64(1.4826))
        });
    }

    /// The median, if enough durations are known.
    pub(crate) fn median(&self) -> Option<Duration> {
        self.median_and_deviation().map(|measured| measured.0)
    }

    /// The median, and the median absolute deviation from it. Neither depends on a few outliers, such as a round in
    /// which a neighbor was lost.
    pub(crate) fn median_and_deviation(&self) -> Option<(Duration, Duration)> {
        self.measured
    }

    /// A multiple of the median, at least `shortest`, if enough durations are known.
    pub(crate) fn multiple(&self, factor: u32, shortest: Duration) -> Option<Duration> {
        self.median().map(|median| (factor * median).max(shortest))
    }

    /// How long to wait for something that should take about as long as before: far beyond what was measured, but
    /// within `shortest` and `longest`. Until enough is known, `longest`.
    pub(crate) fn deadline(&self, shortest: Duration, longest: Duration) -> Duration {
        match self.median_and_deviation() {
            Some((median, deviation)) => (4 * median + 8 * deviation).clamp(shortest.min(longest), longest),
            None => longest,
        }
    }
}

/// The lower median.
fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations.get((durations.len().saturating_sub(1)) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn deadline_follows_the_measured_durations() {
        let mut pace = Pace::default();
        let (shortest, longest) = (50 * MS, 10_000 * MS);
        for _ in 0..7 {
            pace.add(100 * MS);
            assert_eq!(pace.deadline(shortest, longest), longest, "too little is known");
        }
        pace.add(100 * MS);
        assert_eq!(pace.deadline(shortest, longest), 400 * MS);
        assert_eq!(pace.deadline(500 * MS, longest), 500 * MS);
        assert_eq!(pace.deadline(shortest, 300 * MS), 300 * MS);
        // Outliers do not count; a spread does.
        (0..3).for_each(|_| pace.add(60_000 * MS));
        assert_eq!(pace.deadline(shortest, longest), 400 * MS);
        (0..32).for_each(|k| pace.add((if k % 2 == 0 { 80 } else { 120 }) * MS));
        let spread = pace.deadline(shortest, longest);
        assert!(spread > 450 * MS && spread < 700 * MS, "{spread:?}");
    }

    #[test]
    fn only_the_latest_durations_count() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.add(MS));
        (0..64).for_each(|_| pace.add(7 * MS));
        assert_eq!(pace.median(), Some(7 * MS));
        assert_eq!(pace.durations.len(), WINDOW);
    }
}
