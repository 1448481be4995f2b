//! What is trained on which data, how long, and in how large batches.

use serde::Deserialize;
use std::sync::LazyLock;

/// On the paper's graphs.
pub(crate) const WORKERS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    Cifar10,
    Cifar100,
}

/// What is trained, and how long.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dataset {
    /// In titles of figures.
    pub(crate) label: String,
    /// What is trained on what.
    pub(crate) description: String,
    /// Where it comes from.
    pub(crate) source: String,
    /// Of an image.
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

/// How long, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) quick: bool,
    pub(crate) epochs: u64,
    pub(crate) batch: usize,
}

impl Scale {
    pub(crate) fn new(quick: bool, epochs: Option<u64>, batch: Option<usize>) -> Self {
        let usual = match quick {
            true => &DATASETS.digits,
            false => &DATASETS.cifar10,
        };
        Self { quick, epochs: epochs.unwrap_or(usual.epochs), batch: batch.unwrap_or(usual.batch) }
    }

    /// What stands for a task at this scale, and its name.
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

    /// Whether a task can be run at this scale: on the digits there is but one.
    pub(crate) fn has(&self, task: Task) -> bool {
        !self.quick || task == Task::Cifar10
    }

    /// What a run is, in words.
    pub(crate) fn display_name(&self, task: Task) -> String {
        let description = &self.dataset(task).description;
        let Self { epochs, batch, .. } = self;
        format!("{description}, {WORKERS} workers, batch {batch}, {epochs} epochs")
    }

    /// How many a worker has to train on.
    pub(crate) fn images_each(&self) -> usize {
        self.dataset(Task::Cifar10).train_examples / WORKERS
    }

    /// Whether the paper's numbers are of this scale: in its text or in its code.
    pub(crate) fn is_the_paper_s(&self) -> bool {
        !self.quick && self.epochs == 200 && matches!(self.batch, 128 | 16)
    }

    /// The directory of all runs of a task at this scale.
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
    fn data_sets_are_read_and_described() {
        assert!(DATASETS.digits.description.starts_with("400 "));
        assert_eq!(DATASETS.digits.train_examples, 400);
        assert_eq!(DATASETS.cifar10.batch, DATASETS.cifar100.batch);
    }
}
