//! A fleet on a GPU as the engine of a run.

use super::buffers::Rows;
use super::{CudaEngine, expect};
use crate::shim::copy;
use std::rc::Rc;
use tch::Kind;
use upwash::algorithm::{Outgoing, WorkerPlan};
use upwash::engine::{Engine, GradientTask, Score, Split, State, saved};
use upwash::engine::{MixOptions, RemoteRow};
use upwash::model::{Layout, Replica};

impl Engine for CudaEngine {
    fn workers(&self) -> usize {
        self.workers_count()
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn step(&mut self, turns: &[Option<GradientTask>]) -> Vec<Option<Score>> {
        self.launch(turns);
        let scores = self.losses().into_iter().zip(turns);
        scores.map(|(score, turn)| turn.map(|_| score)).collect()
    }

    fn exchange_with(
        &mut self,
        parts: &[WorkerPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    ) {
        let streams = Rc::clone(&self.streams);
        let done = streams.on_main(|| self.carry_out(parts, &remote_rows, options));
        expect(done.and_then(|done| done));
    }

    fn write_outgoing(
        &mut self,
        worker: usize,
        message: &Outgoing,
        options: MixOptions,
        into: &mut [f32],
    ) {
        let streams = Rc::clone(&self.streams);
        let done = streams.on_main(|| self.outgoing_row(worker, message, options));
        into.copy_from_slice(&expect(done.and_then(|done| done)));
    }

    fn mix_statistics(&mut self, rows: &[Vec<(usize, f64)>], remote_rows: Vec<Vec<f32>>) {
        let streams = Rc::clone(&self.streams);
        let done = streams.on_main(|| self.mix_statistics_rows(rows, remote_rows));
        expect(done.and_then(|done| done));
    }

    fn statistics(&mut self, worker: usize) -> Vec<f32> {
        expect(self.streams.on_main(|| self.statistics.download(worker)))
    }

    fn score(&mut self, worker: usize, part: Split) -> Score {
        let scored = || self.score_network(&*self.networks[worker], worker, part);
        expect(self.streams.on_main(scored).and_then(|done| done))
    }

    fn average(&mut self, workers: &[usize]) -> Replica {
        let this = &*self;
        let averaged = || {
            let (models, _) = &this.spare;
            let mean = this.models.some(workers).mean_dim(0i64, true, Kind::Float);
            copy(&models.buffer, &mean)?;
            Ok(Replica {
                parameters: models.download(0),
                statistics: this.estimate_statistics(workers[0], &*this.spare_network)?,
            })
        };
        expect(this.streams.on_main(averaged).and_then(|done| done))
    }

    fn estimated(&mut self, worker: usize, parameters: Vec<f32>) -> Replica {
        let this = &*self;
        let estimated = || {
            this.spare.0.upload(0, &parameters);
            this.estimate_statistics(worker, &*this.spare_network)
        };
        let statistics = expect(this.streams.on_main(estimated).and_then(|done| done));
        Replica {
            parameters,
            statistics,
        }
    }

    fn score_replica(&mut self, replica: &Replica) -> Score {
        let this = &*self;
        let scored = || {
            let (models, statistics) = &this.spare;
            models.upload(0, &replica.parameters);
            statistics.upload(0, &replica.statistics);
            this.score_network(&*this.spare_network, 0, Split::Test)
        };
        expect(this.streams.on_main(scored).and_then(|done| done))
    }

    fn consensus_distance(&self, workers: &[usize]) -> f64 {
        let distance = || {
            let models = self.models.some(workers);
            let apart = &models - models.mean_dim(0i64, true, Kind::Float);
            let sum = apart.square().sum(Kind::Double).double_value(&[]);
            (sum / workers.len() as f64).sqrt()
        };
        expect(self.streams.on_main(distance))
    }

    fn state(&mut self) -> State {
        let all = || {
            let kept = self.kept().into_iter();
            kept.map(|(name, rows)| (name, rows.map_or(vec![], Rows::download_all)))
                .collect()
        };
        expect(self.streams.on_main(all))
    }

    fn restore(&mut self, state: &State) -> Result<(), String> {
        let workers = self.workers_count();
        for (name, rows) in self.kept() {
            let width = rows.map_or(0, Rows::numbers);
            let saved = saved(state, &name, workers * width)?;
            let Some(rows) = rows else { continue };
            expect(self.streams.on_main(|| {
                for worker in 0..workers {
                    rows.upload(worker, &saved[worker * width..][..width]);
                }
            }));
        }
        Ok(())
    }
}

impl CudaEngine {
    /// What a checkpoint keeps; velocities may be none.
    fn kept(&self) -> Vec<(String, Option<&Rows>)> {
        let mut kept = vec![
            ("models".to_string(), Some(&self.models)),
            ("velocities".into(), self.velocities.as_ref()),
            ("statistics".into(), Some(&self.statistics)),
        ];
        if self.keeps_updates {
            kept.push(("updates".into(), Some(&self.gradients)));
        }
        let state_vectors = self.extra_names.iter().zip(&self.state_vectors);
        kept.extend(state_vectors.map(|(name, rows)| (name.clone(), Some(rows))));
        kept
    }
}
