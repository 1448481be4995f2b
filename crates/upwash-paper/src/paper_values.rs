//! The paper's numbers. The tests document errors in them.

use crate::claims::{Claim, ClaimKind, Measure};
use crate::experiments::PaperExperiment;
use serde::Deserialize;
use std::sync::LazyLock;
use upwash_report::statistics::mean;

/// The paper's numbers for one experiment in one table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperValues {
    pub(crate) table: String,
    pub(crate) experiment: PaperExperiment,
    pub(crate) accuracies: Vec<f64>,
    pub(crate) average: Option<f64>,
    /// Training losses after half and after all of the epochs.
    pub(crate) losses: Option<Vec<Vec<f64>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    values: Vec<PaperValues>,
}

impl PaperValues {
    /// All numbers. For an experiment that is in several tables, the entry that agrees with the others comes first.
    pub(crate) fn all() -> &'static [Self] {
        static ALL: LazyLock<File> = LazyLock::new(|| {
            let text = include_str!("../data/paper_values.toml");
            toml::from_str(text).expect("paper_values.toml is tested")
        });
        &ALL.values
    }

    /// The numbers of an experiment in one of these tables.
    pub(crate) fn in_tables(tables: &[String], experiment: &PaperExperiment) -> Option<&'static Self> {
        let mut all = Self::all().iter();
        all.find(|values| tables.contains(&values.table) && values.experiment == *experiment)
    }

    /// The numbers of an experiment in any table.
    pub(crate) fn anywhere(experiment: &PaperExperiment) -> Option<&'static Self> {
        let mut all = Self::all().iter();
        all.find(|values| values.experiment == *experiment)
    }

    /// The average as printed, or computed if the paper prints none.
    pub(crate) fn average(&self) -> f64 {
        self.average.unwrap_or_else(|| mean(&self.accuracies))
    }

    pub(crate) fn worst(&self) -> f64 {
        let all = self.accuracies.iter().copied();
        all.fold(f64::INFINITY, f64::min)
    }
}

/// The difference that a claim is about, according to the paper's numbers; `None` if the paper does not print both.
pub(super) fn claimed<'a>(
    claim: &Claim,
    printed: impl Fn(&PaperExperiment) -> Option<&'a PaperValues>,
) -> Option<String> {
    let difference = match &claim.kind {
        ClaimKind::Better { measure, one, other } => {
            let (one, other) = (printed(one)?, printed(other)?);
            match measure {
                Measure::MeanAccuracy => one.average() - other.average(),
                Measure::WorstAccuracy => one.worst() - other.worst(),
                _ => return None,
            }
        }
        ClaimKind::Robust { one, other } => {
            let gain =
                |[dense, sparse]: &[PaperExperiment; 2]| Some(printed(sparse)?.average() - printed(dense)?.average());
            gain(one)? - gain(other)?
        }
        ClaimKind::Slowest { .. } | ClaimKind::Worst { .. } | ClaimKind::Across { .. } => {
            return None;
        }
    };
    Some(format!("paper: {difference:+.2} points"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scale::WORKERS;
    use upwash_topology::{GraphSpec, Schedule};

    fn values(table: &str, experiment: &str) -> &'static PaperValues {
        let experiment = experiment.parse().unwrap();
        PaperValues::in_tables(&[table.to_owned()], &experiment).unwrap()
    }

    #[test]
    fn four_printed_averages_are_not_the_averages() {
        let wrong: Vec<(&str, PaperExperiment, String)> = PaperValues::all()
            .iter()
            .filter(|printed| (printed.average() - mean(&printed.accuracies)).abs() > 0.02)
            .map(|printed| {
                let (right, average) = (mean(&printed.accuracies), printed.average());
                let numbers = format!("{right:.2}, not {average:.2}");
                (&*printed.table, printed.experiment, numbers)
            })
            .collect();
        let expected = [
            ("table5", "matcha-5x1", "91.28, not 91.14"),
            ("table9", "al-dsgd-dpsgd-9x2", "93.42, not 93.47"),
            ("table10", "matcha-13x1", "93.52, not 93.65"),
            ("table10", "al-dsgd-matcha-13x3", "93.82, not 93.94"),
        ];
        let expected = expected.map(|(table, name, numbers)| (table, name.parse().unwrap(), numbers.into()));
        assert_eq!(wrong, expected);
    }

    #[test]
    fn sentences_are_not_what_the_tables_say() {
        let dpsgd = |links: u8| values("table3", &format!("dpsgd-{links}x1"));
        let led = |links: u8| values("table4", &format!("al-dsgd-dpsgd-{links}x3"));
        let (matcha, over_matcha) = (values("table5", "matcha-11x1"), values("table6", "al-dsgd-matcha-5x3"));
        // "D-PSGD performs poorly even when the degree is only decreased to 84 %."
        assert!(dpsgd(11).average() > dpsgd(13).average());
        // "AL-DSGD with 38 % of degree is even better than D-PSGD with 84 %": true in the tables.
        assert!(led(5).average() > dpsgd(11).average());
        // "the same conclusion" over MATCHA: false, with the printed and with the correct average.
        assert!(over_matcha.average() - matcha.average() < -0.7);
        assert!(mean(&over_matcha.accuracies) - mean(&matcha.accuracies) < -0.7);
        // "increased by 5.8 % and 16.7 % in the worst-performance worker and by 2.1 % and 5.5 % in the final averaged
        // model", on CIFAR-10 and CIFAR-100: the numbers for CIFAR-100 match the table, the others do not.
        let gains = |data: &str| {
            let [one, other] =
                ["al-dsgd-dpsgd-13x3", "dpsgd-13x1"].map(|name| values("table2", &format!("{data}{name}")));
            let gains = [one.worst() - other.worst(), one.average() - other.average()];
            gains.map(|gain| format!("{gain:.2}"))
        };
        assert_eq!(gains(""), ["5.62", "2.50"]);
        assert_eq!(gains("cifar100-"), ["16.65", "5.52"]);
    }

    /// Spearman's rank correlation; equal values share their rank.
    fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
        let ranks = |values: &[f64]| -> Vec<f64> {
            let below = |x: f64| values.iter().filter(|y| **y < x).count();
            let up_to = |x: f64| values.iter().filter(|y| **y <= x).count();
            let rank = |&x: &f64| (below(x) + up_to(x)) as f64 / 2.0;
            let ranks: Vec<f64> = values.iter().map(rank).collect();
            let center = mean(&ranks);
            ranks.into_iter().map(|rank| rank - center).collect()
        };
        let (a, b) = (ranks(a), ranks(b));
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
    }

    /// In the two matchings that the released baseline uses, half of the workers have two links and half have one. The
    /// paper's losses after 100 epochs fall into the same two halves. But they correlate with the degree almost as
    /// well: only two workers of the same degree are in different halves.
    #[test]
    fn the_printed_losses_tell_matchings_from_degrees_by_two_workers() {
        let spec: GraphSpec = "paper:L1".parse().unwrap();
        let schedule = Schedule::released_flags(&spec.build().unwrap()).unwrap();
        let rounds = [0, 1].map(|round| schedule.round(round));
        let degree = |worker| -> usize { rounds.iter().map(|round| round.degree(worker)).sum() };
        let whole: Vec<usize> = spec.build().unwrap().degrees().to_vec();
        let losses = values("table1", "dpsgd-13x1").losses.as_ref();
        let losses = &losses.unwrap()[0];
        let of = |links: usize| -> Vec<f64> {
            let workers = (0..8).filter(|worker| degree(*worker) == links);
            workers.map(|worker| losses[worker]).collect()
        };
        let (one, two) = (of(1), of(2));
        assert_eq!((one.len(), two.len()), (4, 4));
        assert!(one.iter().all(|high| two.iter().all(|low| high - low > 0.08)));
        let numbers = |of: &dyn Fn(usize) -> usize| -> Vec<f64> { (0..8).map(|worker| of(worker) as f64).collect() };
        let by_degree = rank_correlation(&numbers(&|worker| whole[worker]), losses);
        let by_matchings = rank_correlation(&numbers(&degree), losses);
        assert_eq!(format!("{by_degree:.2}, {by_matchings:.2}"), "-0.75, -0.88");
        // Apart from workers 0 and 6, more links in the graph mean more links in the matchings.
        let apart = |a: usize, b: usize| whole[a] <= whole[b] && degree(a) > degree(b);
        let pairs: Vec<(usize, usize)> =
            (0..8).flat_map(|a| (0..8).map(move |b| (a, b))).filter(|&(a, b)| apart(a, b)).collect();
        assert_eq!(pairs, [(6, 0)]);
    }

    #[test]
    fn the_same_runs_are_printed_with_other_numbers() {
        let differ = |experiment: &str, one: &str, other: &str| -> Vec<(usize, f64, f64)> {
            let [one, other] = [one, other].map(|table| &values(table, experiment).accuracies);
            let pairs = one.iter().zip(other).enumerate();
            let pairs = pairs.map(|(worker, (a, b))| (worker, *a, *b));
            pairs.filter(|(_, a, b)| a != b).collect()
        };
        assert_eq!(differ("matcha-13x1", "table5", "table10"), [(3, 93.91, 92.91)]);
        assert_eq!(differ("al-dsgd-matcha-13x3", "table6", "table10"), [(1, 94.42, 93.42)]);
        assert_eq!(differ("matcha-13x1", "table1", "table5"), [(2, 93.76, 92.76)]);
        assert_eq!(differ("dpsgd-13x1", "table1", "table2"), []);
    }

    #[test]
    fn every_table_has_numbers_for_all_workers() {
        for values in PaperValues::all() {
            let losses = values.losses.iter().flatten();
            for numbers in losses.chain([&values.accuracies]) {
                assert_eq!(numbers.len(), WORKERS, "{:?}", values.experiment);
            }
        }
        assert_eq!(PaperValues::all().len(), 40);
    }
}
