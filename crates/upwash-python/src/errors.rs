//! Errors of the library as Python exceptions, with the same texts as the program's.

use pyo3::prelude::*;
use std::error::Error;
use upwash::experiment::ExperimentError;
use upwash::run::{DirectoryError, RunError};
use upwash::{EngineError, TrainError};
use upwash_topology::{
    AnalysisError, GraphError, LeaderWeightsError, MatchaError, RotationError, ScheduleError, SpecError, WeightError,
};

/// The exception classes of the module `upwash.errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Config,
    Graph,
    Data,
    RunDirectory,
    Run,
    Algorithm,
    MissingPackage,
    Internal,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Self::Config => "ConfigError",
            Self::Graph => "GraphError",
            Self::Data => "DataError",
            Self::RunDirectory => "RunDirectoryError",
            Self::Run => "RunError",
            Self::Algorithm => "AlgorithmError",
            Self::MissingPackage => "MissingPackageError",
            Self::Internal => "InternalError",
        }
    }

    /// An exception of this class.
    pub(crate) fn error(self, py: Python<'_>, message: impl Into<String>) -> PyErr {
        let class = py.import("upwash.errors").and_then(|module| module.getattr(self.name()));
        match class.and_then(|class| class.call1((message.into(),))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    }
}

/// An error of the library, with the class of its exception.
pub(crate) trait Classified: Error {
    fn class(&self) -> Class;
}

macro_rules! classified {
    ($class:ident: $($error:ty),+) => {
        $(impl Classified for $error {
            fn class(&self) -> Class {
                Class::$class
            }
        })+
    };
}

classified!(Graph: AnalysisError, GraphError, LeaderWeightsError, MatchaError, RotationError, ScheduleError, SpecError,
    WeightError);
classified!(Config: upwash::config::ConfigError, upwash_peers::KeyError, upwash_peers::SetupError);

classified!(Data: upwash::data::PartitionError);

impl Classified for ExperimentError {
    fn class(&self) -> Class {
        match self {
            Self::Graph(_) | Self::Matcha(_) | Self::Rotation(_) | Self::Schedule(_) | Self::DirectedEdges(_) => {
                Class::Graph
            }
            Self::Partition(_) | Self::Data(_) | Self::OwnData(_) | Self::Synthetic(_) => Class::Data,
            _ => Class::Config,
        }
    }
}

impl Classified for DirectoryError {
    fn class(&self) -> Class {
        Class::RunDirectory
    }
}

impl Classified for EngineError {
    fn class(&self) -> Class {
        Class::Run
    }
}

impl Classified for RunError {
    fn class(&self) -> Class {
        match self {
            Self::Directory(_) => Class::RunDirectory,
            Self::Asynchronous(_) | Self::OwnsMomentum(_) => Class::Config,
            _ => Class::Run,
        }
    }
}

impl Classified for TrainError {
    fn class(&self) -> Class {
        match self {
            Self::File { .. } => Class::RunDirectory,
            Self::Config(_) => Class::Config,
            Self::Experiment(error) => error.class(),
            Self::Directory(error) => error.class(),
            Self::Run(error) => error.class(),
            _ => Class::Run,
        }
    }
}

/// The text of an error with its causes, each of which is named once.
pub(crate) fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let what = next.to_string();
        if !text.contains(&what) {
            text = format!("{text}: {what}");
        }
        cause = next.source();
    }
    text
}

/// Turns errors of the library into exceptions.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Classified> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| error.class().error(py, text(&error)))
    }
}
