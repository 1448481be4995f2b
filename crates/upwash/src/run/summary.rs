//! What a run comes to.

use super::{SCHEMA_VERSION, Sent, Status, numbers};
use crate::model::Replica;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a run comes to: `summary.json` in its directory. What an interrupted run did not measure is NaN, `null` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub version: u32,
    /// The algorithm's display name.
    pub algorithm: String,
    /// The graph's display name, with what is special about its use.
    pub graph: String,
    /// The number of workers, a server included.
    pub workers: usize,
    /// The number of rounds that were run.
    pub rounds: u64,
    /// How it ended.
    #[serde(flatten)]
    pub status: Status,
    /// Each worker's results.
    pub per_worker: Vec<WorkerSummary>,
    /// The mean of the workers' test accuracies, without a server's.
    #[serde(with = "numbers::one")]
    pub mean_accuracy: f64,
    /// The worst of them.
    #[serde(with = "numbers::one")]
    pub worst_accuracy: f64,
    /// The test accuracy of the model that the run leaves: the average of all, or the server's.
    #[serde(with = "numbers::one")]
    pub averaged_model_accuracy: f64,
    /// The number of examples on which that model's batch-norm statistics were estimated, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics_examples: Option<usize>,
    /// The root mean square distance of the models from their average.
    #[serde(with = "numbers::one")]
    pub consensus_distance: f64,
    /// What the run cost.
    #[serde(flatten)]
    pub sent: Sent,
    /// The worker that has no data and serves the others, if there is one; the means leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<usize>,
    /// Real seconds, over all parts of a run that was resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_seconds: Option<f64>,
}

/// A worker at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSummary {
    /// Its id.
    pub id: usize,
    /// Its mean loss over the last epoch's batches.
    #[serde(with = "numbers::one")]
    pub train_loss: f64,
    /// Its mean loss on all of its own training data, without augmentation, if it was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_train_loss: Option<f64>,
    /// Its accuracy on the test set.
    #[serde(with = "numbers::one")]
    pub test_accuracy: f64,
}

/// What a run leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// Its summary.
    pub summary: Summary,
    /// The average of all models, or the server's; empty for a run that was interrupted.
    pub averaged: Replica,
}

impl Summary {
    /// The file in a run's directory.
    pub const FILE: &str = "summary.json";

    /// The summary in a run's directory, if there is one.
    pub fn read(directory: &Path) -> std::io::Result<Option<Self>> {
        let path = directory.join(Self::FILE);
        let damaged = |what: String| {
            let message = format!("{}: {what}", path.display());
            std::io::Error::new(std::io::ErrorKind::InvalidData, message)
        };
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| damaged(error.to_string()))?,
        };
        let summary: Self = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if summary.version > SCHEMA_VERSION {
            let version = summary.version;
            let what = format!("schema version {version} is newer than this program: update upwash");
            return Err(damaged(what));
        }
        Ok(Some(summary))
    }

    /// The workers that train: all but a server.
    pub fn training_workers(&self) -> impl Iterator<Item = &WorkerSummary> {
        let trains = |worker: &&WorkerSummary| Some(worker.id) != self.server;
        self.per_worker.iter().filter(trains)
    }
}
