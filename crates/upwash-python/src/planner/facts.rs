//! What Python has to know about an experiment, and which experiments it can plan for.

use crate::errors::{Class, text};
use pyo3::prelude::*;
use upwash::Status;
use upwash::algorithm::InitialValue;
use upwash::config::Start;
use upwash::experiment::Experiment;
use upwash::run::RunError;

/// What Python needs to know about the experiment.
pub(super) struct Facts {
    pub(super) config: String,
    pub(super) name: String,
    pub(super) workers: usize,
    pub(super) server: Option<usize>,
    pub(super) starts_equal: bool,
    pub(super) state_vectors: Vec<(String, &'static str)>,
    pub(super) warnings: Vec<String>,
}

impl Facts {
    pub(super) fn of(experiment: &Experiment) -> Self {
        let start = |start| match start {
            InitialValue::Zero => "zero",
            InitialValue::Model => "model",
        };
        let vectors = experiment.method.state_vectors();
        Self {
            config: experiment.config.to_toml(),
            name: experiment.algorithm_name(),
            workers: experiment.workers(),
            server: experiment.server.map(usize::from),
            starts_equal: experiment.config.training.start == Some(Start::Equal),
            state_vectors: vectors.iter().map(|vector| (vector.name.into(), start(vector.start))).collect(),
            warnings: experiment.warnings.clone(),
        }
    }
}

/// Refuses algorithms that need more than plans.
pub(super) fn check(py: Python<'_>, experiment: &Experiment) -> PyResult<()> {
    let refuse = |text: String| Err(Class::Config.error(py, text));
    let name = experiment.algorithm_name();
    let Some(algorithm) = experiment.method.synchronous() else {
        return refuse(text(&RunError::Asynchronous(name)));
    };
    if algorithm.owns_momentum() {
        return refuse(text(&RunError::OwnsMomentum(name)));
    }
    if algorithm.verifies_leaders() {
        let what = "algorithm.leaders = \"verified\": a fleet does not score received models; leave it out, or use";
        return refuse(format!("{what} upwash.train"));
    }
    Ok(())
}

/// The name of a status in summaries.
pub(super) fn name_of(status: &Status) -> String {
    match status {
        Status::Finished => "finished".into(),
        Status::Diverged { worker, round } => format!("diverged: the loss of worker {worker} in round {round}"),
        Status::Isolated { .. } => "isolated".into(),
        Status::Interrupted { .. } => "interrupted".into(),
    }
}
