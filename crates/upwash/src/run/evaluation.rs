//! Measuring the workers' models, wherever they are.

use super::{Progress, RunError, Snapshot, WorkerSummary};
use crate::algorithm::Outgoing;
use crate::engine::{Engine, Score, Split};
use crate::experiment::Experiment;
use crate::ids::RowIndex;
use crate::model::Replica;
use crate::transport::{Placement, Transport};

/// The models of a run. A worker of another process has no score here.
pub(super) trait Replicas {
    /// How a worker's model does.
    fn score(&mut self, worker: usize, split: Split) -> Result<Option<Score>, RunError>;
    /// How a worker's model does on the test set with batch-norm statistics estimated for it: a server never trains.
    fn score_estimated(&mut self, worker: usize) -> Result<Option<Score>, RunError>;
    fn consensus_distance(&mut self, workers: &[usize]) -> Result<f64, RunError>;
    /// Fills in what other processes know of a number for each worker.
    fn gather_scalars(&mut self, _numbers: &mut [f64]) -> Result<(), RunError> {
        Ok(())
    }
    /// All that is needed for going on from here.
    fn snapshot(&mut self, progress: &Progress) -> Result<Snapshot, RunError>;
}

/// An engine with this process's workers, and the way to the others.
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

    /// Whether all processes do the same at the same time, so that collectives can be used.
    fn is_in_step(&self) -> bool {
        !self.transport.capabilities().survives_loss
    }

    fn models(&mut self, workers: &[usize]) -> Result<Vec<Vec<f32>>, RunError> {
        let rows = self.placement.rows_of(workers).into_iter();
        let models = rows.map(|row| self.engine.outgoing(row, &Outgoing::model(), Default::default()));
        Ok(models.collect::<Result<_, _>>()?)
    }

    /// The mean of some workers' models; of this process's alone where it cannot know the others.
    fn mean(&mut self, workers: &[usize]) -> Result<Vec<f32>, RunError> {
        let models = self.models(workers)?;
        let mut sum = vec![0.0f64; self.engine.layout().parameter_count()];
        for model in &models {
            let pairs = sum.iter_mut().zip(model);
            pairs.for_each(|(sum, x)| *sum += f64::from(*x));
        }
        if self.placement.is_whole() || !self.is_in_step() {
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

    /// The average of some workers' models, with statistics estimated for it.
    pub(super) fn average(&mut self, workers: &[usize]) -> Result<Replica, RunError> {
        if self.placement.is_whole() {
            return Ok(self.engine.average(&self.placement.rows_of(workers))?);
        }
        let mean = self.mean(workers)?;
        Ok(self.engine.estimated(RowIndex(0), mean)?)
    }

    /// How a model does that is no worker's.
    pub(super) fn score_replica(&mut self, replica: &Replica) -> Result<Score, RunError> {
        Ok(self.engine.score_replica(replica)?)
    }

    /// A number over all processes, where that can be had.
    pub(super) fn sum(&mut self, number: u64) -> Result<u64, RunError> {
        if self.placement.is_whole() || !self.is_in_step() {
            return Ok(number);
        }
        let sum = self.transport.sum(number as f64)?;
        Ok(sum.map_or(number, |sum| sum as u64))
    }

    pub(super) fn can_evaluate(&self) -> bool {
        !self.engine.is_external()
    }
}

impl Replicas for EngineReplicas<'_> {
    fn score(&mut self, worker: usize, split: Split) -> Result<Option<Score>, RunError> {
        let row = self.placement.row_of(worker);
        let score = row.map(|row| self.engine.score(row, split));
        Ok(score.transpose()?)
    }

    fn score_estimated(&mut self, worker: usize) -> Result<Option<Score>, RunError> {
        let Some(row) = self.placement.row_of(worker) else {
            return Ok(None);
        };
        let replica = self.engine.average(&[row])?;
        Ok(Some(self.engine.score_replica(&replica)?))
    }

    fn consensus_distance(&mut self, workers: &[usize]) -> Result<f64, RunError> {
        if self.placement.is_whole() {
            let rows = self.placement.rows_of(workers);
            return Ok(self.engine.consensus_distance(&rows)?);
        }
        if !self.is_in_step() {
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

    fn gather_scalars(&mut self, numbers: &mut [f64]) -> Result<(), RunError> {
        Ok(self.transport.gather_scalars(numbers)?)
    }

    fn snapshot(&mut self, progress: &Progress) -> Result<Snapshot, RunError> {
        Ok((progress.clone(), self.engine.state()?))
    }
}

/// How every worker's model does.
pub(super) struct Evaluation {
    /// Test accuracies.
    pub(super) accuracies: Vec<f64>,
    /// Mean losses on all of a worker's own training data, if they were asked for.
    pub(super) local_train_losses: Option<Vec<f64>>,
    /// The first worker whose loss is not finite.
    pub(super) diverged: Option<usize>,
}

impl Evaluation {
    /// Nothing was measured.
    pub(super) fn none(workers: usize) -> Self {
        Self { accuracies: vec![f64::NAN; workers], local_train_losses: None, diverged: None }
    }

    pub(super) fn new(experiment: &Experiment, replicas: &mut dyn Replicas) -> Result<Self, RunError> {
        let workers = 0..experiment.workers();
        let mut scores = Vec::with_capacity(workers.len());
        for worker in workers.clone() {
            scores.push(match Some(worker) == experiment.server {
                true => replicas.score_estimated(worker)?,
                false => replicas.score(worker, Split::Test)?,
            });
        }
        let known = |value: fn(Score) -> f64| -> Vec<f64> {
            let scores = scores.iter();
            scores.map(|score| score.map_or(f64::NAN, value)).collect()
        };
        let mut accuracies = known(|score| score.accuracy());
        replicas.gather_scalars(&mut accuracies)?;
        let mut diverged = known(|score| f64::from(!score.loss.is_finite()));
        replicas.gather_scalars(&mut diverged)?;
        let mut local_train_losses = None;
        if experiment.config.training.local_train_loss {
            let mut losses = vec![f64::NAN; workers.len()];
            for worker in workers.filter(|&worker| Some(worker) != experiment.server) {
                let score = replicas.score(worker, Split::LocalTrain)?;
                losses[worker] = score.map_or(f64::NAN, |score| score.loss);
            }
            replicas.gather_scalars(&mut losses)?;
            local_train_losses = Some(losses);
        }
        Ok(Self { accuracies, local_train_losses, diverged: diverged.iter().position(|&is| is == 1.0) })
    }

    /// Every worker's results, with these mean losses over the last epoch.
    pub(super) fn per_worker(&self, train_losses: &[f64]) -> Vec<WorkerSummary> {
        let summary = |(id, &test_accuracy): (usize, &f64)| WorkerSummary {
            id,
            train_loss: train_losses[id],
            local_train_loss: self.local_train_losses.as_ref().map(|losses| losses[id]),
            test_accuracy,
        };
        self.accuracies.iter().enumerate().map(summary).collect()
    }
}
