//! The list of charts, which the page and the figures draw alike.

use crate::{Epoch, Run};
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// A chart: what it shows, and over what.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct ChartSpec {
    /// Its name as a file and as an element of the page.
    pub(crate) name: &'static str,
    /// The section of the page that it is in; empty for the charts at the top, which compare several runs.
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
    MeanLoss,
    LargestLoss,
    Accuracy,
    MeanAccuracy,
    SmallestAccuracy,
    Consensus,
}

const WORKERS: &str = "Workers";
const SPREAD: &str = "How far the workers are apart";
const COST: &str = "Communication cost";
const COST_NOTE: &str = "Mean test accuracy against rounds, bytes sent by all workers, and time. The time of workers in one process is \
     simulated for the configured network; that of several processes, and of workers on threads, is real.";

/// All charts, in the order of the page.
pub(crate) const CHARTS: [ChartSpec; 10] = [
    ChartSpec { log: true, ..ChartSpec::overview("mean-loss", "Training loss (mean)", Quantity::MeanLoss) },
    ChartSpec::overview("mean-accuracy", "Test accuracy (mean)", Quantity::MeanAccuracy),
    ChartSpec::overview("worst-accuracy", "Test accuracy (worst)", Quantity::SmallestAccuracy),
    ChartSpec {
        name: "loss",
        section: WORKERS,
        note: "The thick line is the mean of all workers, the band spans the lowest to the highest. Training losses \
               are means over the batches of an epoch.",
        title: "Training loss",
        lines: Lines::Workers,
        x: Quantity::Epoch,
        y: Quantity::Loss,
        log: true,
    },
    ChartSpec {
        name: "accuracy",
        section: WORKERS,
        note: "",
        title: "Test accuracy",
        lines: Lines::Workers,
        x: Quantity::Epoch,
        y: Quantity::Accuracy,
        log: false,
    },
    ChartSpec {
        name: "worst-loss",
        section: SPREAD,
        note: "The largest training loss of any worker, and the root mean square distance of the models from their \
               average.",
        title: "Largest training loss",
        lines: Lines::Runs,
        x: Quantity::Epoch,
        y: Quantity::LargestLoss,
        log: true,
    },
    ChartSpec {
        name: "consensus",
        section: SPREAD,
        note: "",
        title: "Consensus distance of the models",
        lines: Lines::Runs,
        x: Quantity::Epoch,
        y: Quantity::Consensus,
        log: true,
    },
    ChartSpec::of_cost("accuracy-rounds", "Test accuracy by rounds", Quantity::Rounds),
    ChartSpec::of_cost("accuracy-bytes", "Test accuracy by bytes sent", Quantity::Gigabytes),
    ChartSpec::of_cost("accuracy-time", "Test accuracy by time", Quantity::Seconds),
];

impl ChartSpec {
    /// A chart that compares several runs, at the top of the page.
    const fn overview(name: &'static str, title: &'static str, y: Quantity) -> Self {
        Self { name, section: "", note: "", title, lines: Lines::Runs, x: Quantity::Epoch, y, log: false }
    }

    const fn of_cost(name: &'static str, title: &'static str, x: Quantity) -> Self {
        let y = Quantity::MeanAccuracy;
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
    pub(crate) const OF_RUN: [Self; 9] = [
        Self::Epoch,
        Self::Rounds,
        Self::Gigabytes,
        Self::Seconds,
        Self::MeanLoss,
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
            Self::MeanLoss => "mean_loss",
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
            Self::Seconds => "seconds",
            Self::Loss => "training loss",
            Self::MeanLoss => "mean training loss",
            Self::LargestLoss => "largest training loss",
            Self::Accuracy => "test accuracy, %",
            Self::MeanAccuracy => "mean test accuracy, %",
            Self::SmallestAccuracy => "test accuracy of the worst worker, %",
            Self::Consensus => "consensus distance",
        }
    }

    /// Its value for all workers of a run, if there is one.
    pub(crate) fn value(self, run: &Run, epoch: &Epoch) -> Option<f64> {
        let known = |values: &[Option<f64>]| -> Vec<f64> {
            run.training_workers().filter_map(|worker| values.get(worker).copied().flatten()).collect()
        };
        let percents = || epoch.accuracies.as_ref().map(|values| known(values).into_iter().map(|part| 100.0 * part));
        let mean_of = |all: Vec<f64>| (!all.is_empty()).then(|| crate::statistics::mean(&all));
        match self {
            Self::Epoch => Some(epoch.epoch as f64),
            Self::Rounds => Some((epoch.epoch * run.rounds_per_epoch) as f64),
            Self::Gigabytes => Some(epoch.bytes as f64 / 1e9),
            Self::Seconds => Some(epoch.seconds),
            Self::MeanLoss => mean_of(known(&epoch.losses)),
            Self::LargestLoss => known(&epoch.losses).into_iter().reduce(f64::max),
            Self::SmallestAccuracy => percents()?.reduce(f64::min),
            Self::MeanAccuracy => mean_of(percents()?.collect()),
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
