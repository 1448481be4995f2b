//! What a table or a figure is: columns of experiments, and what they are said to show.

use super::cells::{Cell, Task, VARIANTS};
use super::claims::Claim;
use upwash::algorithm::Variant;

/// A table or a figure.
pub(super) struct Exhibit {
    /// As it is asked for.
    pub(super) name: String,
    /// As it is labelled in the paper's source, or what it goes beyond.
    pub(super) label: &'static str,
    pub(super) caption: String,
    pub(super) columns: Vec<Column>,
    /// Whether there is a row for each worker, or their mean alone.
    pub(super) by_node: bool,
    /// Whether training losses are shown as well.
    pub(super) losses: bool,
    pub(super) claims: Vec<Claim>,
    /// The one variant that it is about, whichever are asked for.
    pub(super) variant: Option<Variant>,
}

#[derive(Clone)]
pub(super) struct Column {
    pub(super) title: String,
    pub(super) cell: Cell,
    /// Its column in the paper's numbers, if they are there.
    pub(super) paper: Option<String>,
}

impl Exhibit {
    pub(super) fn new(
        name: impl Into<String>,
        label: &'static str,
        caption: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            label,
            caption: caption.into(),
            columns: vec![],
            by_node: true,
            losses: false,
            claims: vec![],
            variant: None,
        }
    }

    /// One run by itself, by the name of its configuration, or of one that is the same.
    pub(super) fn of_run(name: &str, all: &[Self]) -> Option<Self> {
        let columns = all.iter().flat_map(|exhibit| exhibit.columns.clone());
        let others = all.iter().flat_map(Self::cells).map(Column::new);
        let mut found: Vec<(Column, Variant)> = columns
            .chain(others)
            .filter_map(|column| {
                let called = |variant: &Variant| column.cell.alias(*variant) == name;
                let variant = column.cell.resolved(VARIANTS.into_iter().find(called)?);
                Some((column, variant))
            })
            .collect();
        // The one that the paper has numbers of, if there is one.
        found.sort_by_key(|(column, _)| column.paper.is_none());
        let (column, variant) = found.into_iter().next()?;
        let caption = format!("{}, {}", column.title, variant.name());
        let name = column.cell.config_name(variant);
        Some(Self {
            columns: vec![column],
            losses: true,
            variant: Some(variant),
            ..Self::new(name, "run", caption)
        })
    }

    /// Those of the asked variants that it shows.
    pub(super) fn variants<'a>(&'a self, asked: &'a [Variant]) -> &'a [Variant] {
        match &self.variant {
            Some(variant) => std::slice::from_ref(variant),
            None => asked,
        }
    }

    /// Whether it is not the paper's.
    pub(super) fn is_ours(&self) -> bool {
        self.label.starts_with("beyond")
    }

    /// What it is about first: some show CIFAR-100 as well.
    pub(super) fn task(&self) -> Task {
        let tasks = self.columns.iter().map(|column| column.cell.task);
        tasks.min().unwrap_or(Task::Cifar10)
    }

    /// All that it shows, each once.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self.columns.iter().map(|column| column.cell).collect();
        cells.extend(self.claims.iter().flat_map(Claim::cells));
        cells.sort();
        cells.dedup();
        cells
    }
}

impl Column {
    pub(super) fn new(cell: Cell) -> Self {
        let (name, more) = (cell.algorithm.display_name(), cell.more_words());
        Self {
            title: format!("{name}, D = {}{more}", cell.links),
            cell,
            paper: None,
        }
    }

    /// With its column in the paper's numbers.
    pub(super) fn printed(self, table: &str, column: impl std::fmt::Display) -> Self {
        let paper = Some(format!("{table}.{column}"));
        Self { paper, ..self }
    }
}
