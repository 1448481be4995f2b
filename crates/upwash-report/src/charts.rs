//! The list of charts, which the page and the figures draw alike.

use crate::{Epoch, Run};
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// A chart: what it shows, and over what.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct ChartSpec {
    /// Its name as a file and as an element of the page.
    pub(crate) name: &'static str,
    /// The section of the page that it is in.
    section: &'static str,
    /// The note below the title of the section, with its first chart.
    note: &'static str,
    /// The title of the chart.
    pub(crate) title: &'static str,
    pub(crate) lines: Lines,
    pub(crate) x: Quantity,
    pub(crate) y: Quantity,
    /// Whether the y axis is logarithmic.
    pub(crate) log: bool,
}

/// What a chart has a line for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Lines {
    /// One chart for each run, with a line for each worker.
    Workers,
    /// One chart, with a line for each run.
    Runs,
}

/// What is measured at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Epoch,
    Rounds,
    Gigabytes,
    Seconds,
    Loss,
    LargestLoss,
    Accuracy,
    MeanAccuracy,
    SmallestAccuracy,
    Consensus,
}

const COST: &str = "Communication cost";
const COST_NOTE: &str =
    "Mean test accuracy against rounds, bytes sent by all workers, and simulated time on the configured network.";
const WORST: &str = "Worst worker";

/// All charts, in the order of the page.
pub(crate) const CHARTS: [ChartSpec; 8] = [
    ChartSpec {
        name: "loss",
        section: "Training loss",
        note: "The mean over the batches of an epoch, for each worker. The thick line is the mean of all workers, the \
               band spans the lowest to the highest.",
        title: "",
        lines: Lines::Workers,
        x: Quantity::Epoch,
        y: Quantity::Loss,
        log: true,
    },
    ChartSpec {
        name: "accuracy",
        section: "Test accuracy",
        note: "The test accuracy of each worker's model. The band spans the worst to the best.",
        title: "",
        lines: Lines::Workers,
        x: Quantity::Epoch,
        y: Quantity::Accuracy,
        log: false,
    },
    ChartSpec {
        name: "worst-loss",
        section: WORST,
        note: "The largest training loss and the smallest test accuracy of any worker.",
        title: "Largest training loss",
        lines: Lines::Runs,
        x: Quantity::Epoch,
        y: Quantity::LargestLoss,
        log: true,
    },
    ChartSpec {
        name: "worst-accuracy",
        section: WORST,
        note: "",
        title: "Smallest test accuracy",
        lines: Lines::Runs,
        x: Quantity::Epoch,
        y: Quantity::SmallestAccuracy,
        log: false,
    },
    ChartSpec::of_cost("accuracy-rounds", "Mean test accuracy by rounds", Quantity::Rounds, Quantity::MeanAccuracy),
    ChartSpec::of_cost(
        "accuracy-bytes",
        "Mean test accuracy by bytes sent",
        Quantity::Gigabytes,
        Quantity::MeanAccuracy,
    ),
    ChartSpec::of_cost(
        "accuracy-time",
        "Mean test accuracy by simulated time",
        Quantity::Seconds,
        Quantity::MeanAccuracy,
    ),
    ChartSpec {
        log: true,
        ..ChartSpec::of_cost("consensus", "Consensus distance of the models", Quantity::Epoch, Quantity::Consensus)
    },
];

impl ChartSpec {
    const fn of_cost(name: &'static str, title: &'static str, x: Quantity, y: Quantity) -> Self {
        Self { name, section: COST, note: COST_NOTE, title, lines: Lines::Runs, x, y, log: false }
    }
}

/// With the key of its values in the data of the page, and the label of its axis.
impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Quantity", 2)?;
        object.serialize_field("key", self.key())?;
        object.serialize_field("label", self.label())?;
        object.end()
    }
}

impl Quantity {
    /// Those that a run has in every epoch.
    pub(crate) const OF_RUN: [Self; 8] = [
        Self::Epoch,
        Self::Rounds,
        Self::Gigabytes,
        Self::Seconds,
        Self::LargestLoss,
        Self::MeanAccuracy,
        Self::SmallestAccuracy,
        Self::Consensus,
    ];

    /// Its name in the data of the page.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Rounds => "rounds",
            Self::Gigabytes => "gigabytes",
            Self::Seconds => "seconds",
            Self::Loss => "losses",
            Self::LargestLoss => "largest_loss",
            Self::Accuracy => "accuracies",
            Self::MeanAccuracy => "mean_accuracy",
            Self::SmallestAccuracy => "smallest_accuracy",
            Self::Consensus => "consensus",
        }
    }

    /// The label of an axis.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Rounds => "rounds",
            Self::Gigabytes => "GB sent",
            Self::Seconds => "simulated seconds",
            Self::Loss => "training loss",
            Self::LargestLoss => "largest training loss",
            Self::Accuracy => "test accuracy, %",
            Self::MeanAccuracy => "mean test accuracy, %",
            Self::SmallestAccuracy => "smallest test accuracy, %",
            Self::Consensus => "consensus distance",
        }
    }

    /// Its value for all workers of a run, if there is one.
    pub(crate) fn value(self, run: &Run, epoch: &Epoch) -> Option<f64> {
        let known = |values: &[Option<f64>]| -> Vec<f64> {
            run.training_workers().filter_map(|worker| values.get(worker).copied().flatten()).collect()
        };
        let percents = || epoch.accuracies.as_ref().map(|values| known(values).into_iter().map(|part| 100.0 * part));
        match self {
            Self::Epoch => Some(epoch.epoch as f64),
            Self::Rounds => Some((epoch.epoch * run.rounds_per_epoch) as f64),
            Self::Gigabytes => Some(epoch.bytes as f64 / 1e9),
            Self::Seconds => Some(epoch.seconds),
            Self::LargestLoss => known(&epoch.losses).into_iter().reduce(f64::max),
            Self::SmallestAccuracy => percents()?.reduce(f64::min),
            Self::MeanAccuracy => {
                let all: Vec<f64> = percents()?.collect();
                (!all.is_empty()).then(|| crate::statistics::mean(&all))
            }
            Self::Consensus => epoch.consensus,
            Self::Loss | Self::Accuracy => None,
        }
    }

    /// Its value for one worker, if there is one.
    pub(crate) fn of_worker(self, epoch: &Epoch, worker: usize) -> Option<f64> {
        match self {
            Self::Loss => *epoch.losses.get(worker)?,
            Self::Accuracy => Some(100.0 * (*epoch.accuracies.as_ref()?.get(worker)?)?),
            _ => None,
        }
    }
}
