//! Evaluation of the workers' models, in this process or in others.

use super::{Progress, RunError, Snapshot, WorkerSummary};
use crate::algorithm::Outgoing;
use crate::engine::{Engine, Score, Split};
use crate::experiment::Experiment;
use crate::ids::{RowIndex, WorkerId};
use crate::model::Replica;
use crate::transport::{Placement, Transport};

/// The models of a run. Workers of other processes have no score here.
pub(super) trait Replicas {
    /// Scores a worker's model.
    fn score(&mut self, worker: WorkerId, split: Split) -> Result<Option<Score>, RunError>;
    /// Scores a worker's model on the test set, with batch-norm statistics estimated for it: a server never trains.
    fn score_estimated(&mut self, worker: WorkerId) -> Result<Option<Score>, RunError>;
    fn consensus_distance(&mut self, workers: &[WorkerId]) -> Result<f64, RunError>;
    /// Fills in the values of workers in other processes.
    fn gather_scalars(&mut self, _values: &mut [f64]) -> Result<(), RunError> {
        Ok(())
    }
    /// The resulting model and its accuracy, if all models that it is made of can be read between two rounds.
    fn resulting_model(&mut self, _experiment: &Experiment) -> Result<Option<(Replica, f64)>, RunError> {
        Ok(None)
    }
    /// Takes a snapshot with everything that is needed to resume.
    fn snapshot(&mut self, progress: &Progress) -> Result<Snapshot, RunError>;
}

/// The engine with the workers of this process, and the transport to the others.
pub(super) struct EngineReplicas<'a> {
    engine: &'a mut dyn Engine,
    transport: &'a mut dyn Transport,
    placement: Placement,
}

impl<'a> EngineReplicas<'a> {
    pub(super) fn new(engine: &'a mut dyn Engine, transport: &'a mut dyn Transport) -> Self {
        let placement = transport.placement().clone();
        Self { engine, transport, placement }
    }

    /// Whether all processes run in lockstep, so that collectives can be used.
    fn supports_collectives(&self) -> bool {
        !self.transport.capabilities().survives_loss
    }

    fn models(&mut self, workers: &[WorkerId]) -> Result<Vec<Vec<f32>>, RunError> {
        let rows = self.placement.rows_of(workers).into_iter();
        let models = rows.map(|row| self.engine.outgoing(row, &Outgoing::model(), Default::default()));
        Ok(models.collect::<Result<_, _>>()?)
    }

    /// The mean of these workers' models. Covers only this process if collectives cannot be used.
    fn mean(&mut self, workers: &[WorkerId]) -> Result<Vec<f32>, RunError> {
        let models = self.models(workers)?;
        let mut sum = vec![0.0f64; self.engine.layout().parameter_count()];
        for model in &models {
            let pairs = sum.iter_mut().zip(model);
            pairs.for_each(|(sum, x)| *sum += f64::from(*x));
        }
        if !self.supports_collectives() {
            let count = models.len().max(1) as f64;
            return Ok(sum.iter().map(|x| (x / count) as f32).collect());
        }
        let mut mean: Vec<f32> = sum.iter().map(|&x| x as f32).collect();
        mean.push(models.len() as f32);
        self.transport.all_reduce(u32::MAX, &mut mean)?;
        let count = mean.pop().unwrap_or(1.0);
        mean.iter_mut().for_each(|x| *x /= count);
        Ok(mean)
    }

    /// The resulting model (the average of all models, or the server's) and its accuracy; NaN where it is unknown.
    pub(super) fn averaged(&mut self, experiment: &Experiment) -> Result<(Replica, f64), RunError> {
        let averaged = match experiment.server {
            Some(server) => self.average(&[server])?,
            None => self.average(&experiment.training_workers())?,
        };
        let accuracy = match self.can_evaluate() {
            true => self.engine.score_replica(&averaged)?.accuracy(),
            false => f64::NAN,
        };
        Ok((averaged, accuracy))
    }

    /// The average of these workers' models, with batch-norm statistics estimated for it.
    fn average(&mut self, workers: &[WorkerId]) -> Result<Replica, RunError> {
        if self.placement.has_all_rows() {
            return Ok(self.engine.average(&self.placement.rows_of(workers))?);
        }
        let mean = self.mean(workers)?;
        Ok(self.engine.estimated(RowIndex(0), mean)?)
    }

    /// Sums a count over all processes. Covers only this process if collectives cannot be used.
    pub(super) fn sum(&mut self, count: u64) -> Result<u64, RunError> {
        if !self.supports_collectives() {
            return Ok(count);
        }
        let sum = self.transport.sum(count as f64)?;
        Ok(sum.map_or(count, |sum| sum as u64))
    }

    pub(super) fn can_evaluate(&self) -> bool {
        !self.engine.is_external()
    }
}

impl Replicas for EngineReplicas<'_> {
    fn score(&mut self, worker: WorkerId, split: Split) -> Result<Option<Score>, RunError> {
        let row = self.placement.row_of(worker);
        let score = row.map(|row| self.engine.score(row, split));
        Ok(score.transpose()?)
    }

    fn score_estimated(&mut self, worker: WorkerId) -> Result<Option<Score>, RunError> {
        let Some(row) = self.placement.row_of(worker) else {
            return Ok(None);
        };
        let replica = self.engine.average(&[row])?;
        Ok(Some(self.engine.score_replica(&replica)?))
    }

    fn consensus_distance(&mut self, workers: &[WorkerId]) -> Result<f64, RunError> {
        if self.placement.has_all_rows() {
            let rows = self.placement.rows_of(workers);
            return Ok(self.engine.consensus_distance(&rows)?);
        }
        if !self.supports_collectives() {
            return Ok(f64::NAN);
        }
        let mean = self.mean(workers)?;
        let squared = |model: &Vec<f32>| -> f64 {
            let pairs = model.iter().zip(&mean);
            pairs.map(|(x, mean)| f64::from(x - mean).powi(2)).sum()
        };
        let squares = self.models(workers)?.iter().map(squared).sum();
        let sum = self.transport.sum(squares)?.unwrap_or(f64::NAN);
        Ok((sum / workers.len() as f64).sqrt())
    }

    fn gather_scalars(&mut self, values: &mut [f64]) -> Result<(), RunError> {
        Ok(self.transport.gather_scalars(values)?)
    }

    fn resulting_model(&mut self, experiment: &Experiment) -> Result<Option<(Replica, f64)>, RunError> {
        self.averaged(experiment).map(Some)
    }

    fn snapshot(&mut self, progress: &Progress) -> Result<Snapshot, RunError> {
        Ok((progress.clone(), self.engine.state()?))
    }
}

/// The evaluation of all workers' models.
pub(super) struct Evaluation {
    /// Each worker's test accuracy.
    pub(super) accuracies: Vec<f64>,
    /// Each worker's mean loss on all of its own training data, if requested.
    pub(super) local_train_losses: Option<Vec<f64>>,
    /// The first worker whose loss is not finite.
    pub(super) diverged: Option<WorkerId>,
}

impl Evaluation {
    /// An evaluation without measurements.
    pub(super) fn none(workers: usize) -> Self {
        Self { accuracies: vec![f64::NAN; workers], local_train_losses: None, diverged: None }
    }

    pub(super) fn new(experiment: &Experiment, replicas: &mut dyn Replicas) -> Result<Self, RunError> {
        let workers = WorkerId::all(experiment.workers());
        let mut scores = Vec::with_capacity(workers.len());
        for worker in workers.clone() {
            scores.push(match Some(worker) == experiment.server {
                true => replicas.score_estimated(worker)?,
                false => replicas.score(worker, Split::Test)?,
            });
        }
        let values_of = |value: fn(Score) -> f64| -> Vec<f64> {
            let scores = scores.iter();
            scores.map(|score| score.map_or(f64::NAN, value)).collect()
        };
        let mut accuracies = values_of(|score| score.accuracy());
        replicas.gather_scalars(&mut accuracies)?;
        let mut diverged = values_of(|score| f64::from(!score.loss.is_finite()));
        replicas.gather_scalars(&mut diverged)?;
        let mut local_train_losses = None;
        if experiment.config.training.local_train_loss {
            let mut losses = vec![f64::NAN; workers.len()];
            for worker in workers.clone().filter(|&worker| Some(worker) != experiment.server) {
                let score = replicas.score(worker, Split::LocalTrain)?;
                losses[worker] = score.map_or(f64::NAN, |score| score.loss);
            }
            replicas.gather_scalars(&mut losses)?;
            local_train_losses = Some(losses);
        }
        Ok(Self { accuracies, local_train_losses, diverged: workers.clone().find(|&worker| diverged[worker] == 1.0) })
    }

    /// Each worker's results. `train_losses` are the mean losses over the last epoch.
    pub(super) fn per_worker(&self, train_losses: &[f64]) -> Vec<WorkerSummary> {
        let summary = |(id, &test_accuracy): (WorkerId, &f64)| WorkerSummary {
            id,
            train_loss: train_losses[id],
            local_train_loss: self.local_train_losses.as_ref().map(|losses| losses[id]),
            test_accuracy,
        };
        WorkerId::all(self.accuracies.len()).zip(&self.accuracies).map(summary).collect()
    }
}
