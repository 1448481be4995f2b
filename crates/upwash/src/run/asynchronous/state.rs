//! The state of an asynchronous run, besides the models.

use crate::engine::Score;
use serde::{Deserialize, Serialize};

/// What every worker of an asynchronous run is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AsyncState {
    /// The number of gradients that each worker has applied.
    pub steps: Vec<u64>,
    /// What each worker does, and until when; `None` for a server, or for a worker that waits for others.
    pub activities: Vec<Option<(f64, Activity)>>,
    /// The score of the gradient that each worker is computing.
    pub scores: Vec<Option<Score>>,
    /// The times until which each worker is busy sending and receiving.
    pub ports: Vec<[f64; 2]>,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// It is computing a gradient.
    Gradient,
    /// It is exchanging with another worker.
    Exchange,
}

impl AsyncState {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            steps: vec![0; workers],
            activities: vec![None; workers],
            scores: vec![None; workers],
            ports: vec![[0.0; 2]; workers],
        }
    }

    /// The total number of gradients that were applied.
    pub(super) fn done(&self) -> u64 {
        self.steps.iter().sum()
    }
}
