//! What is claimed, by the paper or by us, as far as runs can tell.

use crate::experiments::PaperExperiment;
use serde::Deserialize;

/// What can be checked.
#[derive(Clone)]
pub(crate) struct Claim {
    pub(crate) sentence: String,
    pub(crate) kind: ClaimKind,
}

#[derive(Clone)]
pub(crate) enum ClaimKind {
    /// One has more of something than the other.
    Better { measure: Measure, one: PaperExperiment, other: PaperExperiment },
    /// This worker's training loss is the highest before the first cut of the rate.
    Slowest { experiment: PaperExperiment, worker: usize },
    /// These workers are the worst, in every seed.
    Worst { experiment: PaperExperiment, workers: Vec<usize> },
    /// In the mean over these pairs, the first has a higher mean accuracy than the second.
    Across { pairs: Vec<[PaperExperiment; 2]> },
    /// From the densest to the sparsest graph, one loses less than the other.
    Robust { one: [PaperExperiment; 2], other: [PaperExperiment; 2] },
}

/// Of a run. Before the first cut of the rate: in the second quarter of the epochs; at the end: in the last twentieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
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
    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Self::MeanAccuracy | Self::WorstAccuracy | Self::AveragedAccuracy)
    }

    /// Whether it is about epochs until a loss is low.
    fn counts_epochs(self) -> bool {
        matches!(self, Self::EpochsOfMean | Self::EpochsOfWorst)
    }

    /// What it counts, with how many digits, and the smallest difference that means anything.
    pub(crate) fn unit(self) -> (&'static str, usize, f64) {
        match self {
            _ if self.more_is_better() => ("points", 2, 0.0),
            _ if self.counts_epochs() => ("epochs", 1, 1.0),
            _ => ("of loss", 3, 0.0),
        }
    }
}

impl Claim {
    /// The experiments that it is about.
    pub(crate) fn experiments(&self) -> Vec<PaperExperiment> {
        match &self.kind {
            ClaimKind::Better { one, other, .. } => vec![*one, *other],
            ClaimKind::Worst { experiment, .. } | ClaimKind::Slowest { experiment, .. } => {
                vec![*experiment]
            }
            ClaimKind::Across { pairs } => pairs.concat(),
            ClaimKind::Robust { one, other } => [*one, *other].concat(),
        }
    }

    /// Whether it is about epochs until a loss is low.
    pub(crate) fn counts_epochs(&self) -> bool {
        matches!(self.kind, ClaimKind::Better { measure, .. } if measure.counts_epochs())
    }
}
