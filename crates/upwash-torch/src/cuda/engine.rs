//! [`Engine`] for [`CudaEngine`].

use super::buffers::Rows;
use super::{CudaEngine, catch_panics};
use crate::shim::{TorchError, copy};
use std::rc::Rc;
use tch::Kind;
use upwash::RowIndex;
use upwash::algorithm::{Outgoing, RowPlan};
use upwash::engine::{
    Engine, EngineError, GradientTask, MessagesToMeasure, MixOptions, RemoteRow, Score, Split, State, saved,
};
use upwash::model::{Layout, Replica};

impl Engine for CudaEngine {
    fn workers(&self) -> usize {
        self.worker_count()
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn step(&mut self, tasks: &[Option<GradientTask>]) -> Result<Vec<Option<Score>>, EngineError> {
        let scores = guarded(|| {
            self.launch(tasks)?;
            self.losses()
        })?;
        let scores = scores.into_iter().zip(tasks);
        Ok(scores.map(|(score, task)| task.map(|_| score)).collect())
    }

    fn exchange(
        &mut self,
        plans: &[RowPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    ) -> Result<(), EngineError> {
        let streams = Rc::clone(&self.streams);
        guarded(|| streams.on_main(|| self.run_exchange(plans, &remote_rows, options))?)
    }

    fn write_outgoing(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        options: MixOptions,
        into: &mut [f32],
    ) -> Result<(), EngineError> {
        let streams = Rc::clone(&self.streams);
        let sent = guarded(|| streams.on_main(|| self.outgoing_row(row, message, options))?)?;
        into.copy_from_slice(&sent);
        Ok(())
    }

    fn distances(
        &mut self,
        measured: MessagesToMeasure<'_>,
        pairs: &[(RowIndex, RowIndex)],
    ) -> Result<Vec<f64>, EngineError> {
        let streams = Rc::clone(&self.streams);
        guarded(|| streams.on_main(|| self.message_distances(measured, pairs))?)
    }

    fn message_losses(
        &mut self,
        measured: MessagesToMeasure<'_>,
        pairs: &[(RowIndex, RowIndex)],
    ) -> Result<Vec<f64>, EngineError> {
        let streams = Rc::clone(&self.streams);
        guarded(|| streams.on_main(|| self.losses_of_messages(measured, pairs))?)
    }

    fn mix_statistics(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), EngineError> {
        let streams = Rc::clone(&self.streams);
        guarded(|| streams.on_main(|| self.mix_statistics_rows(weights, remote_rows))?)
    }

    fn statistics(&mut self, row: RowIndex) -> Result<Vec<f32>, EngineError> {
        guarded(|| self.streams.on_main(|| self.statistics.download(row.0)))
    }

    fn score(&mut self, row: RowIndex, split: Split) -> Result<Score, EngineError> {
        let score = || self.score_network(&*self.networks[row.0], row.0, split);
        guarded(|| self.streams.on_main(score)?)
    }

    fn average(&mut self, rows: &[RowIndex]) -> Result<Replica, EngineError> {
        let this = &*self;
        let average = || {
            let (models, _) = &this.scratch;
            let mean = this.models.select(rows).mean_dim(0i64, true, Kind::Float);
            copy(&models.buffer, &mean)?;
            Ok(Replica {
                parameters: models.download(0),
                statistics: this.estimate_statistics(rows[0].0, &*this.scratch_network)?,
            })
        };
        guarded(|| this.streams.on_main(average)?)
    }

    fn estimated(&mut self, row: RowIndex, parameters: Vec<f32>) -> Result<Replica, EngineError> {
        let this = &*self;
        let estimate = || {
            this.scratch.0.upload(0, &parameters);
            this.estimate_statistics(row.0, &*this.scratch_network)
        };
        let statistics = guarded(|| this.streams.on_main(estimate)?)?;
        Ok(Replica { parameters, statistics })
    }

    fn score_replica(&mut self, replica: &Replica) -> Result<Score, EngineError> {
        let this = &*self;
        let score = || {
            let (models, statistics) = &this.scratch;
            models.upload(0, &replica.parameters);
            statistics.upload(0, &replica.statistics);
            this.score_network(&*this.scratch_network, 0, Split::Test)
        };
        guarded(|| this.streams.on_main(score)?)
    }

    fn consensus_distance(&mut self, rows: &[RowIndex]) -> Result<f64, EngineError> {
        let distance = || {
            let models = self.models.select(rows);
            let differences = &models - models.mean_dim(0i64, true, Kind::Float);
            let sum = differences.square().sum(Kind::Double).double_value(&[]);
            (sum / rows.len() as f64).sqrt()
        };
        guarded(|| self.streams.on_main(distance))
    }

    fn state(&mut self) -> Result<State, EngineError> {
        let all = || {
            let buffers = self.checkpointed().into_iter();
            buffers.map(|(name, rows)| (name, rows.download_all())).collect()
        };
        guarded(|| self.streams.on_main(all))
    }

    fn restore(&mut self, state: &State) -> Result<(), EngineError> {
        let workers = self.worker_count();
        for (name, rows) in self.checkpointed() {
            let width = rows.host_width();
            let saved = saved(state, &name, workers * width)?;
            guarded(|| {
                self.streams.on_main(|| {
                    for worker in 0..workers {
                        rows.upload(worker, &saved[worker * width..][..width]);
                    }
                })
            })?;
        }
        Ok(())
    }
}

/// Runs `work` and turns its errors and panics into errors that end the run.
fn guarded<T>(work: impl FnOnce() -> Result<T, TorchError>) -> Result<T, EngineError> {
    let failed = |error| EngineError::Device(format!("the GPU failed: {error}"));
    catch_panics(work).map_err(failed)
}

impl CudaEngine {
    /// The buffers that a checkpoint contains, by name.
    fn checkpointed(&self) -> Vec<(String, &Rows)> {
        let mut buffers = vec![("models".to_string(), &self.models)];
        let velocities = self.velocities.iter();
        buffers.extend(velocities.map(|rows| ("velocities".into(), rows)));
        buffers.push(("statistics".into(), &self.statistics));
        if self.keeps_updates {
            buffers.push(("updates".into(), &self.gradients));
        }
        let state_vectors = self.state_names.iter().zip(&self.state_vectors);
        buffers.extend(state_vectors.map(|(name, rows)| (name.clone(), rows)));
        buffers
    }
}
