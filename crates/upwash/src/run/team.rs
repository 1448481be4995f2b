//! The workers of this process and, through a transport, those of others.

use super::session::Models;
use super::{Progress, Sent, Snapshot};
use crate::engine::{Engine, Score, Split};
use crate::model::Replica;
use crate::transport::{Placement, Transport, TransportError};

/// An engine with this process's workers, and the way to the others.
pub(super) struct Team<'a> {
    pub(super) engine: &'a mut dyn Engine,
    pub(super) transport: &'a mut dyn Transport,
    pub(super) placement: Placement,
    /// What went wrong while something was measured.
    pub(super) failure: Option<TransportError>,
}

impl<'a> Team<'a> {
    pub(super) fn new(engine: &'a mut dyn Engine, transport: &'a mut dyn Transport) -> Self {
        let placement = transport.placement().clone();
        Self {
            engine,
            transport,
            placement,
            failure: None,
        }
    }

    /// How many parameters and statistics a model has.
    pub(super) fn width(&self) -> [usize; 2] {
        let layout = self.engine.layout();
        [layout.parameter_count(), layout.statistic_count()]
    }

    /// Whether everyone is here, or everyone else does the same at the same time.
    fn is_in_step(&self) -> bool {
        !self.transport.capabilities().survives_loss
    }

    fn rows(&self, workers: &[usize]) -> Vec<usize> {
        let row = |worker: &usize| self.placement.row_of(*worker);
        workers.iter().filter_map(row).collect()
    }

    fn keep<T: Default>(&mut self, result: Result<T, TransportError>) -> T {
        result.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            T::default()
        })
    }

    /// The mean of some workers' models, wherever they are; of this process's alone where nobody can
    /// tell who else is there.
    fn mean(&mut self, workers: &[usize]) -> Vec<f32> {
        let rows = self.rows(workers);
        let width = self.engine.layout().parameter_count();
        let mut sum = vec![0.0f64; width];
        for &row in &rows {
            let model = crate::algorithm::Outgoing::model();
            let model = self.engine.outgoing(row, &model, Default::default());
            sum.iter_mut()
                .zip(model)
                .for_each(|(sum, x)| *sum += f64::from(x));
        }
        let mut mean: Vec<f32>;
        if self.placement.is_whole() || !self.is_in_step() {
            let count = rows.len().max(1) as f64;
            mean = sum.iter().map(|x| (x / count) as f32).collect();
        } else {
            mean = sum.iter().map(|&x| x as f32).collect();
            mean.push(rows.len() as f32);
            let done = self.transport.all_reduce(u32::MAX, &mut mean);
            self.keep(done);
            let count = mean.pop().unwrap_or(1.0);
            mean.iter_mut().for_each(|x| *x /= count);
        }
        mean
    }

    /// What all processes have sent, where that can be known.
    pub(super) fn sum_up(&mut self, sent: &mut Sent) {
        if self.placement.is_whole() || !self.is_in_step() {
            return;
        }
        for number in [&mut sent.bytes_sent, &mut sent.messages_sent] {
            let sum = self.transport.sum(*number as f64);
            if let Some(sum) = self.keep(sum) {
                *number = sum as u64;
            }
        }
    }

    /// The average of some workers' models, with statistics estimated anew.
    pub(super) fn average(&mut self, workers: &[usize]) -> Replica {
        if self.placement.is_whole() {
            return self.engine.average(workers);
        }
        let mean = self.mean(workers);
        self.engine.estimated(0, mean)
    }
}

impl Models for Team<'_> {
    fn score(&mut self, worker: usize, part: Split) -> Option<Score> {
        let row = self.placement.row_of(worker)?;
        Some(self.engine.score(row, part))
    }

    fn score_bare(&mut self, worker: usize) -> Option<Score> {
        let row = self.placement.row_of(worker)?;
        let replica = self.engine.average(&[row]);
        Some(self.engine.score_replica(&replica))
    }

    fn consensus_distance(&mut self, workers: &[usize]) -> f64 {
        if self.placement.is_whole() {
            return self.engine.consensus_distance(workers);
        }
        if !self.is_in_step() {
            return f64::NAN;
        }
        let mean = self.mean(workers);
        let mut squares = 0.0;
        for row in self.rows(workers) {
            let model = crate::algorithm::Outgoing::model();
            let model = self.engine.outgoing(row, &model, Default::default());
            let pairs = model.iter().zip(&mean);
            squares += pairs
                .map(|(x, mean)| f64::from(x - mean).powi(2))
                .sum::<f64>();
        }
        let sum = self.transport.sum(squares);
        let sum = self.keep(sum).unwrap_or(f64::NAN);
        (sum / workers.len() as f64).sqrt()
    }

    fn gather_scalars(&mut self, numbers: &mut [f64]) {
        let done = self.transport.gather_scalars(numbers);
        self.keep(done);
    }

    fn snapshot(&mut self, progress: &Progress) -> Snapshot {
        (progress.clone(), self.engine.state())
    }
}
