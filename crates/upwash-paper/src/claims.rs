//! What is claimed, by the paper or by us, as far as runs can tell.

use super::cells::{Algorithm, Cell, LINKS, Task};

/// What can be checked.
pub(super) struct Claim {
    pub(super) sentence: String,
    pub(super) kind: ClaimKind,
}

pub(super) enum ClaimKind {
    /// One has more of something than the other.
    Better {
        measure: Measure,
        one: Cell,
        other: Cell,
    },
    /// This worker's training loss is the highest before the first cut of the rate.
    Slowest { cell: Cell, worker: usize },
    /// These workers are the worst, in every seed.
    Worst {
        cell: Cell,
        workers: &'static [usize],
    },
    /// In the mean over these pairs, the first has a higher mean accuracy than the second.
    Across { pairs: Vec<[Cell; 2]> },
    /// From the densest to the sparsest graph, one loses less than the other.
    Robust { one: [Cell; 2], other: [Cell; 2] },
}

/// Of a run. Before the first cut of the rate: in the second quarter of the epochs; at the end: in the last twentieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    MeanAccuracy,
    WorstAccuracy,
    /// Of the averaged model.
    AveragedAccuracy,
    /// Training loss, of all and of the worst worker.
    LossBefore,
    WorstLossBefore,
    /// Its largest less its smallest among the workers.
    SpreadBefore,
    SpreadAtEnd,
    /// Epochs until the mean, and the worst worker's, training loss is low.
    EpochsOfMean,
    EpochsOfWorst,
}

impl Measure {
    pub(super) fn more_is_better(self) -> bool {
        matches!(
            self,
            Self::MeanAccuracy | Self::WorstAccuracy | Self::AveragedAccuracy
        )
    }

    /// What it counts, with how many digits, and the smallest difference that means anything.
    pub(super) fn unit(self) -> (&'static str, usize, f64) {
        match self {
            Self::MeanAccuracy | Self::WorstAccuracy | Self::AveragedAccuracy => ("points", 2, 0.0),
            Self::EpochsOfMean | Self::EpochsOfWorst => ("epochs", 1, 1.0),
            _ => ("of loss", 3, 0.0),
        }
    }
}

impl Claim {
    /// The experiments that it is about.
    pub(super) fn cells(&self) -> Vec<Cell> {
        match &self.kind {
            ClaimKind::Better { one, other, .. } => vec![*one, *other],
            ClaimKind::Worst { cell, .. } | ClaimKind::Slowest { cell, .. } => vec![*cell],
            ClaimKind::Across { pairs } => pairs.concat(),
            ClaimKind::Robust { one, other } => [*one, *other].concat(),
        }
    }

    /// Whether it is about epochs until a loss is low.
    pub(super) fn counts_epochs(&self) -> bool {
        let ClaimKind::Better { measure, .. } = self.kind else {
            return false;
        };
        matches!(measure, Measure::EpochsOfMean | Measure::EpochsOfWorst)
    }

    /// That AL-DSGD is better than its baseline, in every respect.
    pub(super) fn better(one: Cell, other: Cell) -> Vec<Self> {
        let names = (one.algorithm.display_name(), other.algorithm.display_name());
        let data = match one.task {
            Task::Cifar10 => "",
            Task::Cifar100 => " on CIFAR-100",
        };
        let claim = |measure, what: &str| Self {
            sentence: format!("{} {what} than {}{data}", names.0, names.1),
            kind: ClaimKind::Better {
                measure,
                one,
                other,
            },
        };
        vec![
            claim(Measure::MeanAccuracy, "has a higher mean test accuracy"),
            claim(Measure::WorstAccuracy, "has a better worst worker"),
            claim(Measure::AveragedAccuracy, "has a better averaged model"),
            claim(
                Measure::SpreadBefore,
                "has smaller differences between the workers' losses before the first cut of the rate",
            ),
            claim(
                Measure::SpreadAtEnd,
                "has smaller differences between the workers' losses at the end",
            ),
            claim(
                Measure::LossBefore,
                "converges faster (mean loss before the first cut)",
            ),
            claim(
                Measure::WorstLossBefore,
                "converges faster (worst worker's loss before the first cut)",
            ),
            claim(
                Measure::EpochsOfMean,
                "converges faster (epochs until the mean loss is low)",
            ),
            claim(
                Measure::EpochsOfWorst,
                "converges faster (epochs until the worst worker's loss is low)",
            ),
        ]
    }

    /// That fewer links cost it less.
    pub(super) fn robust(one: Algorithm, copies: u8, other: Algorithm) -> Self {
        let ends = |algorithm, copies| [13, 5].map(|links| Cell::new(algorithm, links, copies));
        Self {
            sentence: format!(
                "{} loses less accuracy than {} from D = 13 to D = 5, where workers 4 and 7 have no link at all",
                one.display_name(),
                other.display_name()
            ),
            kind: ClaimKind::Robust {
                one: ends(one, copies),
                other: ends(other, 1),
            },
        }
    }

    /// That worker 4 is slow.
    pub(super) fn slowest(cell: Cell) -> Self {
        Self {
            sentence: format!(
                "{}: worker 4, of the lowest degree, converges slowest before the first cut of the rate",
                cell.algorithm.display_name()
            ),
            kind: ClaimKind::Slowest { cell, worker: 4 },
        }
    }

    /// That workers 0 and 4 end badly.
    pub(super) fn low_degree(cell: Cell) -> Self {
        Self {
            sentence: "D-PSGD: workers 4, of the lowest degree, and 0, its only neighbor, end worse than all others in every seed"
                .into(),
            kind: ClaimKind::Worst {
                cell,
                workers: &[0, 4],
            },
        }
    }

    /// That one's mean test accuracy is higher than the other's; a sentence that says so.
    pub(super) fn more_accurate(sentence: impl Into<String>, one: Cell, other: Cell) -> Self {
        Self {
            sentence: sentence.into(),
            kind: ClaimKind::Better {
                measure: Measure::MeanAccuracy,
                one,
                other,
            },
        }
    }

    /// That AL-DSGD in so many copies is more accurate than its baseline, on each of the graphs.
    pub(super) fn on_every_graph(one: Algorithm, copies: u8, other: Algorithm) -> Vec<Self> {
        let claim = |links| {
            Self::more_accurate(
                format!(
                    "{} has a higher mean test accuracy than {} at D = {links}",
                    one.display_name(),
                    other.display_name()
                ),
                Cell::new(one, links, copies),
                Cell::new(other, links, 1),
            )
        };
        LINKS.map(claim).into()
    }

    /// That over many graphs one is more accurate than the other.
    pub(super) fn across(sentence: impl Into<String>, pairs: Vec<[Cell; 2]>) -> Self {
        Self {
            sentence: sentence.into(),
            kind: ClaimKind::Across { pairs },
        }
    }

    /// That on the sparsest graph it is better than its baseline on a much denser one.
    pub(super) fn sparse_beats_dense(one: Algorithm, other: Algorithm) -> Self {
        Self::more_accurate(
            format!(
                "{} at D = 5 has a higher mean test accuracy than {} at D = 11",
                one.display_name(),
                other.display_name()
            ),
            Cell::new(one, 5, 3),
            Cell::new(other, 11, 1),
        )
    }
}
