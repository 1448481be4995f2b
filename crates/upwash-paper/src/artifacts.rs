//! Tables and figures: columns of experiments, and claims about them.

use crate::claims::Claim;
use crate::experiments::{PaperExperiment, VARIANTS};
use crate::paper_values::PaperValues;
use crate::scale::Task;
use upwash::algorithm::Variant;

/// A table or a figure.
#[derive(Clone)]
pub(crate) struct Artifact {
    /// The name on the command line.
    pub(crate) name: String,
    /// The label in the paper's source, or `beyond ...` for artifacts that are not in the paper.
    pub(crate) label: String,
    pub(crate) caption: String,
    pub(crate) columns: Vec<Column>,
    /// Whether there is a row for each worker, or only their mean.
    pub(crate) by_worker: bool,
    /// Whether training losses are shown too.
    pub(crate) losses: bool,
    pub(crate) claims: Vec<Claim>,
    /// The only variant that this artifact shows; `None` if it shows the selected ones.
    pub(crate) variant: Option<Variant>,
}

/// A column of a table, or a line of a figure.
#[derive(Clone)]
pub(crate) struct Column {
    pub(crate) title: String,
    pub(crate) experiment: PaperExperiment,
    /// The paper's numbers, if this artifact of the paper has them.
    pub(crate) printed: Option<&'static PaperValues>,
}

impl Artifact {
    /// An artifact of a single run, by the name of its configuration or of an equivalent one.
    pub(crate) fn of_run(name: &str, all: &[Self]) -> Option<Self> {
        let columns = all.iter().flat_map(|artifact| artifact.columns.clone());
        let others = all.iter().flat_map(Self::experiments);
        let others = others.map(|experiment| Column::new(experiment, None));
        let mut found: Vec<(Column, Variant)> = columns
            .chain(others)
            .filter_map(|column| {
                let is_named = |variant: &Variant| column.experiment.alias(*variant) == name;
                let variant = VARIANTS.into_iter().find(is_named)?;
                let variant = column.experiment.resolved(variant);
                Some((column, variant))
            })
            .collect();
        // Prefer a column for which the paper has numbers.
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

    /// The variants that this artifact shows, given the selected ones.
    pub(crate) fn variants<'a>(&'a self, selected: &'a [Variant]) -> &'a [Variant] {
        match &self.variant {
            Some(variant) => std::slice::from_ref(variant),
            None => selected,
        }
    }

    /// Whether the artifact is not in the paper.
    pub(crate) fn is_ours(&self) -> bool {
        self.label.starts_with("beyond")
    }

    /// The main task. Some artifacts show CIFAR-100 too.
    pub(crate) fn task(&self) -> Task {
        let tasks = self.columns.iter().map(|column| column.experiment.task);
        tasks.min().unwrap_or(Task::Cifar10)
    }

    /// All experiments of the artifact, each once.
    pub(crate) fn experiments(&self) -> Vec<PaperExperiment> {
        let columns = self.columns.iter().map(|column| column.experiment);
        let mut all: Vec<PaperExperiment> = columns.chain(self.claims.iter().flat_map(Claim::experiments)).collect();
        all.sort();
        all.dedup();
        all
    }
}

impl Artifact {
    /// Whether the titles of its columns count links.
    pub(crate) fn counts_links(&self) -> bool {
        self.columns.iter().any(|column| column.title.contains("D = "))
    }
}

impl Column {
    pub(crate) fn new(experiment: PaperExperiment, printed: Option<&'static PaperValues>) -> Self {
        let (name, details) = (experiment.algorithm.display_name(), experiment.details());
        Self { title: format!("{name}, D = {}{details}", experiment.links), experiment, printed }
    }
}
