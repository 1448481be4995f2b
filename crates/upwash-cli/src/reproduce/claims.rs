//! What the paper says, and whether these runs say so.

use super::cells::{Cell, Variant};
use super::exhibits::{Claim, ClaimKind, Measure};
use super::outcomes::{Outcome, Store, margin, mean};
use anyhow::Result;
use std::collections::BTreeMap;

/// What is said of a claim: a line for each variant of which there are runs.
pub(super) fn judge(
    claim: &Claim,
    store: &Store,
    variants: &[Variant],
    low: f64,
) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for &variant in variants {
        let said = match &claim.kind {
            ClaimKind::Better {
                measure,
                one,
                other,
            } => {
                let value = |outcome: &Outcome| outcome.measure(*measure, low);
                let [one, other] = both(store, [one, other], variant, &value)?;
                let (unit, sign) = match measure {
                    Measure::EpochsOfMean | Measure::EpochsOfWorst => ("epochs", -1.0),
                    _ => ("points", 1.0),
                };
                compare(&one, &other, unit, sign)
            }
            ClaimKind::Robust { one, other } => {
                let value = |outcome: &Outcome| outcome.measure(Measure::MeanAccuracy, low);
                let [dense, sparse] = both(store, [&one[0], &one[1]], variant, &value)?;
                let [dense_other, sparse_other] =
                    both(store, [&other[0], &other[1]], variant, &value)?;
                compare(
                    &less(&sparse, &dense),
                    &less(&sparse_other, &dense_other),
                    "points",
                    1.0,
                )
            }
            ClaimKind::Worst { cell, workers } => worst(&store.outcomes(cell, variant)?, workers),
        };
        if let Some(said) = said {
            lines.push(format!("{}: {said}", variant.name()));
        }
    }
    Ok(lines)
}

type BySeed = BTreeMap<u64, f64>;

fn both(
    store: &Store,
    cells: [&Cell; 2],
    variant: Variant,
    value: &dyn Fn(&Outcome) -> Option<f64>,
) -> Result<[BySeed; 2]> {
    let read = |cell: &Cell| -> Result<BySeed> {
        let outcomes = store.outcomes(cell, variant)?;
        Ok(outcomes
            .iter()
            .filter_map(|(seed, outcome)| Some((*seed, value(outcome)?)))
            .collect())
    };
    Ok([read(cells[0])?, read(cells[1])?])
}

fn less(one: &BySeed, other: &BySeed) -> BySeed {
    let pair = |(seed, value): (&u64, &f64)| Some((*seed, value - other.get(seed)?));
    one.iter().filter_map(pair).collect()
}

/// Seed by seed, which have the same data and starts. A `sign` of -1: fewer are better, and shown.
fn compare(one: &BySeed, other: &BySeed, unit: &str, sign: f64) -> Option<String> {
    let differences: Vec<f64> = less(one, other).into_values().collect();
    if differences.is_empty() {
        return None;
    }
    let (middle, count) = (mean(&differences), differences.len());
    let more = differences
        .iter()
        .filter(|difference| **difference > 0.0)
        .count();
    let shown = sign * middle + 0.0; // no negative zero
    let Some(margin) = margin(&differences) else {
        return Some(format!("{shown:+.2} {unit} in one seed: no verdict"));
    };
    let verdict = match middle {
        _ if middle > margin => "holds",
        _ if -middle > margin => "the opposite holds",
        _ => "cannot be told from noise",
    };
    let (from, to) = (shown - margin, shown + margin);
    Some(format!(
        "{shown:+.2} {unit} (95 % interval {from:+.2} to {to:+.2}; so in {more} of {count} seeds): **{verdict}**"
    ))
}

/// Whether each of these workers is worse than all others, seed by seed.
fn worst(outcomes: &BTreeMap<u64, Outcome>, workers: &[usize]) -> Option<String> {
    let mut gaps = Vec::new();
    for outcome in outcomes
        .values()
        .filter(|outcome| outcome.diverged().is_none())
    {
        let of = |inside: bool| {
            let all = outcome.accuracies.iter().enumerate();
            all.filter(move |(worker, _)| workers.contains(worker) == inside)
                .map(|(_, accuracy)| *accuracy)
        };
        let highest = of(true).reduce(f64::max)?;
        gaps.push(of(false).reduce(f64::min)? - highest);
    }
    let (count, so) = (gaps.len(), gaps.iter().filter(|gap| **gap > 0.0).count());
    let verdict = if so == count {
        "holds"
    } else {
        "does not hold"
    };
    (count > 0).then(|| {
        format!(
            "in {so} of {count} seeds; the better of the two is {:+.2} points from the worst of the others: \
             **{verdict}**",
            -mean(&gaps)
        )
    })
}
