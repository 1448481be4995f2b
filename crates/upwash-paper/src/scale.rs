//! The scale of the experiments: data set, model, number of epochs and batch size.

use serde::Deserialize;
use std::sync::LazyLock;

/// Number of workers on the paper's graphs.
pub(crate) const WORKERS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    Cifar10,
    Cifar100,
}

/// A data set with its model and training defaults.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dataset {
    /// The name in titles of figures.
    pub(crate) label: String,
    /// Description of the data and the model.
    pub(crate) description: String,
    /// Source of the data.
    pub(crate) source: String,
    /// Shape of an image.
    pub(crate) shape: String,
    pub(crate) model: String,
    pub(crate) train_examples: usize,
    epochs: u64,
    batch: usize,
    pub(crate) learning_rate: f64,
}

#[derive(Deserialize)]
struct Datasets {
    digits: Dataset,
    cifar10: Dataset,
    cifar100: Dataset,
}

static DATASETS: LazyLock<Datasets> =
    LazyLock::new(|| toml::from_str(include_str!("../data/datasets.toml")).expect("datasets.toml is tested"));

/// The size of the experiments, which is the same for all runs of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) quick: bool,
    pub(crate) epochs: u64,
    pub(crate) batch: usize,
    /// Whether tests also measure each worker's loss on its own training data.
    pub(crate) local_train_loss: bool,
}

impl Scale {
    pub(crate) fn new(quick: bool, epochs: Option<u64>, batch: Option<usize>) -> Self {
        let defaults = match quick {
            true => &DATASETS.digits,
            false => &DATASETS.cifar10,
        };
        let (epochs, batch) = (epochs.unwrap_or(defaults.epochs), batch.unwrap_or(defaults.batch));
        Self { quick, epochs, batch, local_train_loss: false }
    }

    /// The data set of a task at this scale, with its name.
    pub(crate) fn named_dataset(&self, task: Task) -> (&'static str, &'static Dataset) {
        match (self.quick, task) {
            (true, _) => ("digits", &DATASETS.digits),
            (_, Task::Cifar10) => ("cifar10", &DATASETS.cifar10),
            (_, Task::Cifar100) => ("cifar100", &DATASETS.cifar100),
        }
    }

    pub(crate) fn dataset(&self, task: Task) -> &'static Dataset {
        self.named_dataset(task).1
    }

    /// Whether a task exists at this scale: the digits replace only CIFAR-10.
    pub(crate) fn has(&self, task: Task) -> bool {
        !self.quick || task == Task::Cifar10
    }

    /// Description of a run.
    pub(crate) fn display_name(&self, task: Task) -> String {
        let description = &self.dataset(task).description;
        let Self { epochs, batch, .. } = self;
        format!("{description}, {WORKERS} workers, batch {batch}, {epochs} epochs")
    }

    /// Training examples of each worker.
    pub(crate) fn examples_per_worker(&self) -> usize {
        self.dataset(Task::Cifar10).train_examples / WORKERS
    }

    /// Whether the paper's numbers have this scale, according to its text or its code.
    pub(crate) fn is_paper_scale(&self) -> bool {
        !self.quick && self.epochs == 200 && matches!(self.batch, 128 | 16)
    }

    /// The name of the directory with all runs of a task at this scale.
    pub(crate) fn directory(&self, task: Task) -> String {
        let (name, dataset) = self.named_dataset(task);
        let batch = match self.batch == dataset.batch {
            true => String::new(),
            false => format!("-batch-{}", self.batch),
        };
        format!("{name}-{}-epochs{batch}", self.epochs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sets_file_is_valid() {
        assert!(DATASETS.digits.description.starts_with("400 "));
        assert_eq!(DATASETS.digits.train_examples, 400);
        assert_eq!(DATASETS.cifar10.batch, DATASETS.cifar100.batch);
    }
}
