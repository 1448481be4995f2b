//! What a table or a figure is: columns of experiments, and what they are said to show.

use crate::claims::Claim;
use crate::experiments::{PaperExperiment, VARIANTS};
use crate::paper_values::PaperValues;
use crate::scale::Task;
use upwash::algorithm::Variant;

/// A table or a figure.
#[derive(Clone)]
pub(crate) struct Artifact {
    /// As it is asked for.
    pub(crate) name: String,
    /// As it is labeled in the paper's source, or what it goes beyond.
    pub(crate) label: String,
    pub(crate) caption: String,
    pub(crate) columns: Vec<Column>,
    /// Whether there is a row for each worker, or their mean alone.
    pub(crate) by_worker: bool,
    /// Whether training losses are shown as well.
    pub(crate) losses: bool,
    pub(crate) claims: Vec<Claim>,
    /// The one variant that it is about, whichever are asked for.
    pub(crate) variant: Option<Variant>,
}

#[derive(Clone)]
pub(crate) struct Column {
    pub(crate) title: String,
    pub(crate) experiment: PaperExperiment,
    /// The paper's numbers, if it has them there.
    pub(crate) printed: Option<&'static PaperValues>,
}

impl Artifact {
    /// One run by itself, by the name of its configuration, or of one that is the same.
    pub(crate) fn of_run(name: &str, all: &[Self]) -> Option<Self> {
        let columns = all.iter().flat_map(|artifact| artifact.columns.clone());
        let others = all.iter().flat_map(Self::experiments);
        let others = others.map(|experiment| Column::new(experiment, None));
        let mut found: Vec<(Column, Variant)> = columns
            .chain(others)
            .filter_map(|column| {
                let called = |variant: &Variant| column.experiment.alias(*variant) == name;
                let variant = VARIANTS.into_iter().find(called)?;
                let variant = column.experiment.resolved(variant);
                Some((column, variant))
            })
            .collect();
        // The one that the paper has numbers of, if there is one.
        found.sort_by_key(|(column, _)| column.printed.is_none());
        let (column, variant) = found.into_iter().next()?;
        Some(Self {
            name: column.experiment.config_name(variant),
            label: "run".into(),
            caption: format!("{}, {}", column.title, variant.name()),
            columns: vec![column],
            by_worker: true,
            losses: true,
            claims: vec![],
            variant: Some(variant),
        })
    }

    /// Those of the asked variants that it shows.
    pub(crate) fn variants<'a>(&'a self, asked: &'a [Variant]) -> &'a [Variant] {
        match &self.variant {
            Some(variant) => std::slice::from_ref(variant),
            None => asked,
        }
    }

    /// Whether it is not the paper's.
    pub(crate) fn is_ours(&self) -> bool {
        self.label.starts_with("beyond")
    }

    /// What it is about first: some show CIFAR-100 as well.
    pub(crate) fn task(&self) -> Task {
        let tasks = self.columns.iter().map(|column| column.experiment.task);
        tasks.min().unwrap_or(Task::Cifar10)
    }

    /// All that it shows, each once.
    pub(crate) fn experiments(&self) -> Vec<PaperExperiment> {
        let columns = self.columns.iter().map(|column| column.experiment);
        let mut all: Vec<PaperExperiment> = columns.chain(self.claims.iter().flat_map(Claim::experiments)).collect();
        all.sort();
        all.dedup();
        all
    }
}

impl Column {
    pub(crate) fn new(experiment: PaperExperiment, printed: Option<&'static PaperValues>) -> Self {
        let (name, details) = (experiment.algorithm.display_name(), experiment.details());
        Self { title: format!("{name}, D = {}{details}", experiment.links), experiment, printed }
    }
}
