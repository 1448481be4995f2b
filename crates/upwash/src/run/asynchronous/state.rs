//! What a run without rounds needs to go on, beside models.

use crate::engine::Score;
use serde::{Deserialize, Serialize};

/// What every worker of a run without rounds is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AsyncState {
    /// The gradients that each has applied.
    pub steps: Vec<u64>,
    /// What each does until when; nothing for a worker that waits for others, or is a server.
    pub activities: Vec<Option<(f64, Activity)>>,
    /// The score of the gradient that each is computing.
    pub scores: Vec<Option<Score>>,
    /// Until when each is sending and receiving.
    pub ports: Vec<[f64; 2]>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// It computes a gradient.
    Gradient,
    /// It exchanges with another worker.
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

    /// The gradients that were applied in all.
    pub(super) fn done(&self) -> u64 {
        self.steps.iter().sum()
    }
}
