//! Decides whether runs support a claim.

use crate::claims::{Claim, ClaimKind, Measure};
use crate::experiments::PaperExperiment;
use crate::outcomes::{Outcome, Outcomes, Store};
use std::collections::BTreeMap;
use std::fmt::Write;
use upwash::algorithm::Variant;
use upwash_report::statistics::{margin, mean};

/// The number of seeds needed for a verdict.
const MIN_SEEDS: usize = 3;

/// The verdicts on a claim: a line for each variant that has runs.
pub(crate) fn verdicts(claim: &Claim, store: &Store, variants: &[Variant], low_loss: f64) -> Vec<String> {
    // Some variants share their runs.
    let mut groups: Vec<(Vec<String>, Vec<Variant>)> = Vec::new();
    for &variant in variants {
        let experiments = claim.experiments();
        let runs: Vec<String> = experiments.iter().map(|one| one.name(variant)).collect();
        match groups.iter_mut().find(|(known, _)| *known == runs) {
            Some((_, variants)) => variants.push(variant),
            None => groups.push((runs, vec![variant])),
        }
    }
    let mut lines = Vec::new();
    for (_, variants) in groups {
        if let Some(text) = verdict(claim, store, variants[0], low_loss) {
            let names: Vec<&str> = variants.iter().map(|variant| variant.name()).collect();
            lines.push(format!("{}: {text}", names.join(" = ")));
        }
    }
    lines
}

/// The verdict for one variant; `None` if there are no runs.
fn verdict(claim: &Claim, store: &Store, variant: Variant, low_loss: f64) -> Option<String> {
    let by_seed = |experiment: &PaperExperiment, measure: Measure| -> BySeed {
        let outcomes = store.outcomes(experiment, variant);
        let value = |(seed, outcome): (&u64, &Outcome)| (*seed, outcome.measure(measure, low_loss));
        outcomes.iter().map(value).collect()
    };
    let accuracies = |experiment: &PaperExperiment| by_seed(experiment, Measure::MeanAccuracy);
    match &claim.kind {
        ClaimKind::Better { measure, one, other } => {
            compare(&by_seed(one, *measure), &by_seed(other, *measure), *measure)
        }
        ClaimKind::Across { pairs } => {
            let all: Vec<[BySeed; 2]> = pairs.iter().map(|pair| pair.each_ref().map(accuracies)).collect();
            let [one, other] = means(&all);
            compare(&one, &other, Measure::MeanAccuracy)
        }
        ClaimKind::Robust { one, other } => {
            let [gain, other_gain] = [one, other].map(|ends| {
                let [dense, sparse] = ends.each_ref().map(accuracies);
                paired_differences(&sparse, &dense)
            });
            compare(&gain, &other_gain, Measure::MeanAccuracy)
        }
        ClaimKind::Worst { experiment, workers } => worst(&store.outcomes(experiment, variant), workers),
        ClaimKind::Slowest { experiment, worker } => slowest(&store.outcomes(experiment, variant), *worker),
    }
}

/// A value for each seed that was run; `None` if the value is unknown.
type BySeed = BTreeMap<u64, Option<f64>>;

/// The differences in the seeds that both have.
fn paired_differences(one: &BySeed, other: &BySeed) -> BySeed {
    let pair = |(seed, value): (&u64, &Option<f64>)| {
        let other = other.get(seed)?;
        Some((*seed, value.zip(*other).map(|(one, other)| one - other)))
    };
    one.iter().filter_map(pair).collect()
}

/// The means over all pairs, in the seeds that all of them have.
fn means(pairs: &[[BySeed; 2]]) -> [BySeed; 2] {
    let seeds = pairs.first().into_iter().flat_map(|pair| pair[0].keys());
    let is_everywhere = |seed: &&u64| pairs.iter().flatten().all(|values| values.contains_key(*seed));
    let seeds: Vec<u64> = seeds.filter(is_everywhere).copied().collect();
    [0, 1].map(|side| {
        let mean_of = |seed: u64| -> Option<f64> {
            let values = pairs.iter().map(|pair| pair[side][&seed]);
            let values: Option<Vec<f64>> = values.collect();
            values.map(|values| mean(&values))
        };
        seeds.iter().map(|seed| (*seed, mean_of(*seed))).collect()
    })
}

/// Compares seed by seed. Equal seeds have the same data and initial models.
fn compare(one: &BySeed, other: &BySeed, measure: Measure) -> Option<String> {
    let pairs = paired_differences(one, other);
    let differences: Vec<f64> = pairs.values().copied().flatten().collect();
    if pairs.is_empty() {
        return None;
    }
    let (unit, digits, least) = measure.unit();
    // Seeds in which a run diverged or never reached the low loss cannot be compared, but are counted.
    let only = |known: &BySeed, unknown: &BySeed| {
        let is_known_once = |seed: &&u64| known[*seed].is_some() && unknown[*seed].is_none();
        pairs.keys().filter(is_known_once).count()
    };
    let (won, lost) = (only(one, other), only(other, one));
    let neither = pairs.len() - differences.len() - won - lost;
    let mut rest = String::new();
    for (count, who) in [(won, "the first alone"), (lost, "the second alone"), (neither, "neither")] {
        if count > 0 {
            let _ = write!(rest, "; {who} got there in {count} of {} seeds", pairs.len());
        }
    }
    if differences.is_empty() {
        return Some(rest.trim_start_matches("; ").to_owned());
    }
    let sign = if measure.more_is_better() { 1.0 } else { -1.0 };
    let (middle, count) = (mean(&differences), differences.len());
    let so = differences.iter().filter(|difference| sign * **difference > 0.0).count();
    let Some(margin) = margin(&differences).filter(|_| count >= MIN_SEEDS) else {
        return Some(format!("{middle:+.digits$} {unit}, so in {so} of {count} seeds{rest}: too few seeds to say"));
    };
    // A measure in whole epochs has at least that uncertainty.
    let threshold = margin.max(least);
    let verdict = match sign * middle {
        better if better > threshold && lost == 0 => "holds",
        better if -better > threshold && won == 0 => "the opposite holds",
        better if better.abs() > threshold => "cannot be told",
        _ => "cannot be told from noise",
    };
    let (from, to) = (middle - margin, middle + margin);
    Some(format!(
        "{middle:+.digits$} {unit} (95 % interval {from:+.digits$} to {to:+.digits$}), so in {so} of {count} \
         seeds{rest}: **{verdict}**"
    ))
}

/// The verdict on a statement that is either true or false in each seed.
fn count_verdict(so: usize, count: usize) -> &'static str {
    match (so == count, count >= MIN_SEEDS) {
        (_, false) => "too few seeds to say",
        (true, _) => "**holds**",
        (false, _) => "**does not hold**",
    }
}

/// Whether each of these workers is worse than all others, seed by seed.
fn worst(outcomes: &Outcomes, workers: &[usize]) -> Option<String> {
    let mut gaps = Vec::new();
    for outcome in outcomes.values().filter(|outcome| outcome.diverged().is_none()) {
        let accuracies = |inside: bool| {
            let all = outcome.accuracies.iter().enumerate();
            all.filter(move |(worker, _)| workers.contains(worker) == inside).map(|(_, accuracy)| *accuracy)
        };
        let highest = accuracies(true).reduce(f64::max)?;
        gaps.push(highest - accuracies(false).reduce(f64::min)?);
    }
    let (count, so) = (gaps.len(), gaps.iter().filter(|gap| **gap < 0.0).count());
    let (gap, verdict) = (mean(&gaps), count_verdict(so, count));
    (count > 0).then(|| {
        let beside = side(format!("{:.2}", gap.abs()), " points", gap);
        format!(
            "so in {so} of {count} seeds; on average the better of the two ends {beside} the \
             worst of the others: {verdict}"
        )
    })
}

/// Describes a gap as above or below. A gap that rounds to zero is `level with`.
fn side(size: String, unit: &str, gap: f64) -> String {
    match gap {
        _ if size.trim_matches(['0', '.']).is_empty() => "level with".into(),
        gap if gap < 0.0 => format!("{size}{unit} below"),
        _ => format!("{size}{unit} above"),
    }
}

/// Whether a worker's training loss before the first cut is the highest, seed by seed.
fn slowest(outcomes: &Outcomes, worker: usize) -> Option<String> {
    let gaps = outcomes.values().filter_map(|outcome| outcome.loss_gap(worker));
    let gaps: Vec<[f64; 2]> = gaps.collect();
    let (count, so) = (gaps.len(), gaps.iter().filter(|gap| gap[0] > 0.0).count());
    let from_mean: Vec<f64> = gaps.iter().map(|gap| gap[1]).collect();
    let (gap, verdict) = (mean(&from_mean), count_verdict(so, count));
    (count > 0).then(|| {
        format!(
            "its loss is the highest in {so} of {count} seeds, on average {} the others' mean: {verdict}",
            side(format!("{:.3}", gap.abs()), "", gap)
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn gap_that_rounds_to_zero_is_level() {
        let text = |gap: f64| side(format!("{:.2}", gap.abs()), " points", gap);
        assert_eq!(text(-1.254), "1.25 points below");
        assert_eq!(text(10.0), "10.00 points above");
        assert_eq!(text(-0.004), "level with");
    }

    fn by_seed(values: &[f64]) -> BySeed {
        // NaN stands for a value that was never reached.
        let known = values.iter().map(|value| value.is_finite().then_some(*value));
        (1..).zip(known).collect()
    }

    #[test]
    fn verdicts_use_intervals_of_paired_differences() {
        let none = by_seed(&[0.0; 5]);
        let verdict = |one: &[f64], measure| compare(&by_seed(one), &none, measure);
        // The interval is scipy's, as in the test of the margin.
        let higher = verdict(&[1.0, 2.0, 3.0, 4.0, 5.0], Measure::MeanAccuracy).unwrap();
        assert_eq!(higher, "+3.00 points (95 % interval +1.04 to +4.96), so in 5 of 5 seeds: **holds**");
        let slower = verdict(&[1.0, 2.0, 3.0, 4.0, 5.0], Measure::LossBefore).unwrap();
        assert!(slower.ends_with("so in 0 of 5 seeds: **the opposite holds**"), "{slower}");
        let noise = verdict(&[-1.0, 2.0, -3.0, 4.0, -1.0], Measure::MeanAccuracy).unwrap();
        assert!(noise.ends_with("so in 2 of 5 seeds: **cannot be told from noise**"), "{noise}");
        // An epoch is the smallest step that can be counted.
        let step = verdict(&[-1.0; 5], Measure::EpochsOfMean).unwrap();
        assert!(step.ends_with("**cannot be told from noise**"), "{step}");
        let few = verdict(&[1.0, 2.0], Measure::MeanAccuracy).unwrap();
        assert!(few.ends_with("too few seeds to say"), "{few}");
        // An experiment that failed in some seeds is not better.
        let lost = verdict(&[1.0, 1.1, 1.2, f64::NAN], Measure::MeanAccuracy).unwrap();
        assert!(lost.ends_with("the second alone got there in 1 of 4 seeds: **cannot be told**"), "{lost}");
    }

    #[test]
    fn pairs_are_averaged_within_a_seed() {
        let pairs =
            [[by_seed(&[1.0, 2.0, 3.0]), by_seed(&[0.0, 0.0, 0.0])], [by_seed(&[3.0, f64::NAN]), by_seed(&[1.0, 1.0])]];
        let [one, other] = means(&pairs);
        assert_eq!(one, [(1, Some(2.0)), (2, None)].into());
        assert_eq!(other, [(1, Some(0.5)), (2, Some(0.5))].into());
    }
}
