//! The summary and the result of a run.

use super::{RunCost, SCHEMA_VERSION, Status, numbers};
use crate::ids::WorkerId;
use crate::model::Replica;
use crate::transport::Participation;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The summary of a run: `summary.json` in its directory. Values that an interrupted run did not measure are NaN here
/// and `null` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub version: u32,
    /// The algorithm's display name.
    pub algorithm: String,
    /// The graph's display name, with any special way in which it is used.
    pub graph: String,
    /// The number of workers, including a server.
    pub workers: usize,
    /// The number of rounds after which the run ended. Between peers, `rounds_run` of them were run by this one.
    pub rounds: u64,
    /// How the run ended.
    #[serde(flatten)]
    pub status: Status,
    /// Each worker's results.
    pub per_worker: Vec<WorkerSummary>,
    /// The mean of the workers' test accuracies, excluding a server.
    #[serde(with = "numbers::one")]
    pub mean_accuracy: f64,
    /// The worst of the workers' test accuracies, excluding a server.
    #[serde(with = "numbers::one")]
    pub worst_accuracy: f64,
    /// The test accuracy of the resulting model: the average of all models, or the server's.
    #[serde(with = "numbers::one")]
    pub averaged_model_accuracy: f64,
    /// The number of examples on which the resulting model's batch-norm statistics were estimated, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics_examples: Option<usize>,
    /// The root mean square distance of the models from their average.
    #[serde(with = "numbers::one")]
    pub consensus_distance: f64,
    /// The cost of the run.
    #[serde(flatten)]
    pub sent: RunCost,
    /// The worker that has no data and serves the others, if there is one. The means exclude it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<WorkerId>,
    /// The best averaged model of all evaluations, if it was kept as [`BestModel::FILE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestModel>,
    /// How this process has taken part, in a run between peers.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub participation: Option<Participation>,
    /// Whether `simulated_seconds` are real: workers on threads or in several processes run in real time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_real_time: bool,
    /// Real seconds, including the parts before the run was resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_seconds: Option<f64>,
}

/// The results of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSummary {
    /// The worker's id.
    pub id: WorkerId,
    /// The mean loss over the last epoch's batches.
    #[serde(with = "numbers::one")]
    pub train_loss: f64,
    /// The mean loss on all of the worker's own training data, without augmentation, if it was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_train_loss: Option<f64>,
    /// The accuracy on the test set.
    #[serde(with = "numbers::one")]
    pub test_accuracy: f64,
}

/// The best averaged model of all evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestModel {
    /// The epoch after which it was averaged.
    pub epoch: u64,
    /// Its test accuracy. It was chosen by this number, which therefore flatters it.
    pub test_accuracy: f64,
}

impl BestModel {
    /// The name of the model's file in a run directory.
    pub const FILE: &str = "best.safetensors";
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// The summary.
    pub summary: Summary,
    /// The average of all models, or the server's model; empty if the run was interrupted.
    pub averaged: Replica,
}

impl Summary {
    /// The name of the file in a run directory.
    pub const FILE: &str = "summary.json";

    /// Reads the summary in a run directory, if there is one.
    pub fn read(directory: &Path) -> std::io::Result<Option<Self>> {
        let path = directory.join(Self::FILE);
        let damaged = |what: String| {
            let message = format!("{}: {what}", path.display());
            std::io::Error::new(std::io::ErrorKind::InvalidData, message)
        };
        let text = match crate::files::read_text(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| damaged(error.to_string()))?,
        };
        let mut summary: Self = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        for name in [&mut summary.algorithm, &mut summary.graph] {
            *name = crate::files::printable(name);
        }
        if summary.version > SCHEMA_VERSION {
            let version = summary.version;
            let what = format!("schema version {version} is newer than this program: update upwash");
            return Err(damaged(what));
        }
        Ok(Some(summary))
    }

    /// The workers that train: all except a server.
    pub fn training_workers(&self) -> impl Iterator<Item = &WorkerSummary> {
        let trains = |worker: &&WorkerSummary| Some(worker.id) != self.server;
        self.per_worker.iter().filter(trains)
    }
}
