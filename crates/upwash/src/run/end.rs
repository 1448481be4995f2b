//! The end of a run: the last evaluation, the averaged model and the summary.

use super::evaluation::{EngineReplicas, Evaluation, Replicas};
use super::session::Session;
use super::{Event, RunError, RunResult, SCHEMA_VERSION, Status, Summary};
use crate::config::Execution;
use crate::engine::Engine;
use crate::model::Replica;
use crate::transport::Transport;

impl Session<'_> {
    /// Evaluates the models if they have not been evaluated yet, and builds the summary.
    ///
    /// An interrupted run is not evaluated, because its user should not have to wait: unknown values are NaN. Neither
    /// is a run of several processes in which one has diverged, because the rounds of the others are unknown.
    pub(super) fn end(
        mut self,
        mut status: Status,
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<RunResult, RunError> {
        let has_all_rows = transport.placement().has_all_rows();
        self.progress.participation = transport.participation();
        let mut replicas = EngineReplicas::new(engine, transport);
        let is_stopped = match status {
            Status::Finished => false,
            Status::Interrupted { .. } | Status::Isolated { .. } => true,
            Status::Diverged { .. } => !has_all_rows,
        };
        let evaluates = !is_stopped && replicas.can_evaluate();
        let evaluation = match self.evaluation.take() {
            Some(evaluation) => evaluation,
            None if evaluates => Evaluation::new(self.experiment, &mut replicas)?,
            None => Evaluation::none(self.experiment.workers()),
        };
        if let (Some(worker), Status::Finished) = (evaluation.diverged, &status) {
            let round = self.progress.round;
            status = Status::Diverged { worker, round };
            self.save_diverged(&mut replicas);
        }
        self.report(&Event::Ended { status: status.clone() });
        let (averaged, accuracy) = match is_stopped {
            true => (Replica::default(), f64::NAN),
            false => replicas.averaged(self.experiment)?,
        };
        let mut train_losses = self.train_losses();
        let mut sent = self.progress.sent;
        if !is_stopped {
            replicas.gather_scalars(&mut train_losses)?;
        }
        let consensus_distance = match is_stopped && !has_all_rows {
            true => f64::NAN,
            false => replicas.consensus_distance(&self.training)?,
        };
        if !is_stopped {
            sent.bytes_sent = replicas.sum(sent.bytes_sent)?;
            sent.messages_sent = replicas.sum(sent.messages_sent)?;
        }
        let accuracies = self.training.iter().map(|&i| evaluation.accuracies[i]);
        let accuracies: Vec<f64> = accuracies.filter(|accuracy| !accuracy.is_nan()).collect();
        let sampler = &self.experiment.sampler;
        let has_statistics = !averaged.statistics.is_empty();
        let summary = Summary {
            version: SCHEMA_VERSION,
            algorithm: self.experiment.algorithm_name(),
            graph: self.experiment.graph_name(),
            workers: self.experiment.workers(),
            rounds: self.progress.round,
            status,
            mean_accuracy: accuracies.iter().sum::<f64>() / accuracies.len() as f64,
            worst_accuracy: accuracies.into_iter().reduce(f64::min).unwrap_or(f64::NAN),
            averaged_model_accuracy: accuracy,
            statistics_examples: (has_statistics && evaluates)
                .then(|| sampler.estimation_batches() * sampler.batch_size()),
            consensus_distance,
            sent,
            server: self.experiment.server,
            best: self.progress.best,
            per_worker: evaluation.per_worker(&train_losses),
            participation: self.progress.participation,
            is_real_time: !self.simulates_costs || self.experiment.config.training.asynchronous == Execution::Threads,
            wall_seconds: None,
        };
        Ok(RunResult { summary, averaged })
    }
}
