//! Claims of the paper, and questions of this reproduction, that runs can answer.

use crate::experiments::PaperExperiment;
use serde::Deserialize;

/// A claim with its sentence in the document.
#[derive(Clone)]
pub(crate) struct Claim {
    pub(crate) sentence: String,
    pub(crate) kind: ClaimKind,
}

#[derive(Clone)]
pub(crate) enum ClaimKind {
    /// The first experiment is better than the second by this measure.
    Better { measure: Measure, one: PaperExperiment, other: PaperExperiment },
    /// This worker's training loss is the highest before the first cut of the learning rate.
    Slowest { experiment: PaperExperiment, worker: usize },
    /// These workers are the worst in every seed.
    Worst { experiment: PaperExperiment, workers: Vec<usize> },
    /// Averaged over these pairs, the first has a higher mean accuracy than the second.
    Across { pairs: Vec<[PaperExperiment; 2]> },
    /// From the densest to the sparsest graph, the first loses less accuracy than the second.
    Robust { one: [PaperExperiment; 2], other: [PaperExperiment; 2] },
}

/// A measure of a run. `Before` means before the first cut of the learning rate, in the second quarter of the epochs;
/// `AtEnd` means in the last twentieth of the epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    MeanAccuracy,
    WorstAccuracy,
    /// Test accuracy of the averaged model.
    AveragedAccuracy,
    /// Mean training loss of the workers.
    LossBefore,
    /// Training loss of the worst worker.
    WorstLossBefore,
    /// Largest minus smallest training loss of the workers.
    SpreadBefore,
    /// Largest minus smallest training loss of the workers.
    SpreadAtEnd,
    /// Epochs until the mean training loss is low.
    EpochsOfMean,
    /// Epochs until the training loss of the worst worker is low.
    EpochsOfWorst,
}

impl Measure {
    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Self::MeanAccuracy | Self::WorstAccuracy | Self::AveragedAccuracy)
    }

    /// Whether this counts epochs until a loss is low.
    fn counts_epochs(self) -> bool {
        matches!(self, Self::EpochsOfMean | Self::EpochsOfWorst)
    }

    /// The unit, the number of digits, and the smallest meaningful difference.
    pub(crate) fn unit(self) -> (&'static str, usize, f64) {
        match self {
            _ if self.more_is_better() => ("points", 2, 0.0),
            _ if self.counts_epochs() => ("epochs", 1, 1.0),
            _ => ("of loss", 3, 0.0),
        }
    }
}

impl Claim {
    /// The experiments that the claim is about.
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

    /// Whether the claim counts epochs until a loss is low.
    pub(crate) fn counts_epochs(&self) -> bool {
        matches!(self.kind, ClaimKind::Better { measure, .. } if measure.counts_epochs())
    }
}
