//! The engine for an external training loop: it borrows the loop's vectors, and a step is the loop's change of a model.

use super::cpu::{average, consensus_distance};
use super::mixing::{MixOptions, RemoteRow, WorkerVectors, exchange, mix_statistics};
use super::{Engine, EngineError, EngineSpec, GradientTask, Score, Split, State, saved};
use crate::algorithm::{InitialValue, Outgoing, RowPlan};
use crate::ids::RowIndex;
use crate::model::{Layout, Replica};

/// The state between rounds of an external training loop: steps and the algorithm's state vectors.
///
/// The loop [attaches](Self::attach) its vectors for every call to a [`Node`](crate::Node):
///
/// 1. `node.begin_round(&mut external.attach(models, statistics)?)`, which may replace the models;
/// 2. [`before_step`](ExternalEngine::before_step), then the loop's own gradients and steps, in place;
/// 3. [`after_step`](ExternalEngine::after_step), then `node.finish_round(...)` with the losses before the step.
///
/// Steps are differences of models, so a run agrees with the built-in loop up to rounding, not bit for bit.
pub struct ExternalState {
    layout: Layout,
    /// The models before the step, then the steps.
    updates: Vec<Vec<f32>>,
    /// The algorithm's state vectors, by name: one row per worker.
    state_vectors: Vec<(String, Vec<Vec<f32>>)>,
}

/// An engine that borrows the vectors of a training loop.
pub struct ExternalEngine<'a> {
    models: Vec<&'a mut [f32]>,
    statistics: Vec<&'a mut [f32]>,
    state: &'a mut ExternalState,
}

impl ExternalState {
    /// Creates the state for the workers of `spec`, which start with these models.
    pub fn new(spec: &EngineSpec, layout: Layout, models: &[&[f32]]) -> Self {
        let width = layout.parameter_count();
        let rows = |starts: &[InitialValue]| {
            let row = |(start, model): (&InitialValue, &&[f32])| match start {
                InitialValue::Model => model.to_vec(),
                InitialValue::Zero => vec![0.0; width],
            };
            starts.iter().zip(models).map(row).collect()
        };
        let vectors = spec.state_vectors.iter();
        Self {
            updates: vec![vec![0.0; width]; models.len()],
            state_vectors: vectors.map(|vector| (vector.name.clone(), rows(&vector.starts))).collect(),
            layout,
        }
    }

    /// Creates an engine that borrows each worker's model and batch-norm statistics, if the model has any.
    pub fn attach<'a>(
        &'a mut self,
        models: Vec<&'a mut [f32]>,
        statistics: Vec<&'a mut [f32]>,
    ) -> Result<ExternalEngine<'a>, EngineError> {
        let (workers, width) = (self.updates.len(), self.layout.parameter_count());
        let count = self.layout.statistic_count();
        let fits =
            |rows: &[&mut [f32]], width: usize| rows.len() == workers && rows.iter().all(|row| row.len() == width);
        if !fits(&models, width) || (count > 0 && !fits(&statistics, count)) {
            return Err(EngineError::Mismatch(format!(
                "{workers} workers need a model of {width} values and {count} statistics each: attach one row per \
                 worker"
            )));
        }
        Ok(ExternalEngine { models, statistics, state: self })
    }
}

impl ExternalEngine<'_> {
    /// Saves the current models as those before the step.
    pub fn before_step(&mut self) {
        for (before, model) in self.state.updates.iter_mut().zip(&self.models) {
            before.copy_from_slice(model);
        }
    }

    /// Computes each worker's step, the model before minus the model after, and restores the model before the step.
    pub fn after_step(&mut self) {
        for (update, model) in self.state.updates.iter_mut().zip(&mut self.models) {
            for (before, after) in update.iter_mut().zip(model.iter_mut()) {
                let step = *before - *after;
                (*after, *before) = (*before, step);
            }
        }
    }

    fn vectors(&mut self, row: usize) -> WorkerVectors<'_> {
        let state = &mut *self.state;
        let state_vectors = state.state_vectors.iter_mut();
        WorkerVectors {
            model: &mut *self.models[row],
            step: &state.updates[row],
            state_vectors: state_vectors.map(|(_, rows)| &mut rows[row][..]).collect(),
        }
    }

    fn models_of(&self, rows: &[RowIndex]) -> Vec<&[f32]> {
        rows.iter().map(|&row| &*self.models[row.0]).collect()
    }

    fn unsupported<T>(what: &str) -> Result<T, EngineError> {
        let text = format!("the external training loop must do {what} itself: its engine cannot");
        Err(EngineError::Unsupported(text))
    }
}

impl Engine for ExternalEngine<'_> {
    fn workers(&self) -> usize {
        self.models.len()
    }

    fn layout(&self) -> &Layout {
        &self.state.layout
    }

    fn is_external(&self) -> bool {
        true
    }

    fn step(&mut self, _: &[Option<GradientTask>]) -> Result<Vec<Option<Score>>, EngineError> {
        Self::unsupported("gradient computation")
    }

    fn exchange(
        &mut self,
        plans: &[RowPlan],
        remote_rows: Vec<RemoteRow>,
        options: MixOptions,
    ) -> Result<(), EngineError> {
        let workers = self.workers();
        let takes_part = |row: usize| plans.iter().any(|plan| plan.row.0 == row);
        let mut state_vectors: Vec<Vec<&mut [f32]>> = (0..workers).map(|_| vec![]).collect();
        for (_, rows) in &mut self.state.state_vectors {
            for (vectors, row) in state_vectors.iter_mut().zip(rows) {
                vectors.push(row);
            }
        }
        let rows = self.models.iter_mut().zip(&self.state.updates);
        let rows = rows.zip(state_vectors).enumerate();
        let rows = rows.filter(|(row, _)| takes_part(*row));
        let rows = rows.map(|(_, ((model, step), state_vectors))| WorkerVectors { model, step, state_vectors });
        let remote = (workers..).zip(&remote_rows);
        let mut plans = plans.to_vec();
        plans.extend(remote.map(|(row, remote)| remote.row_plan(RowIndex(row))));
        exchange(rows.collect(), &remote_rows, &plans, options);
        Ok(())
    }

    fn write_outgoing(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        options: MixOptions,
        into: &mut [f32],
    ) -> Result<(), EngineError> {
        let draw = options.draw(row);
        self.vectors(row.0).write_outgoing(message, &draw, into);
        Ok(())
    }

    fn mix_statistics(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), EngineError> {
        // A loop whose model has no statistics need not attach any.
        if !self.statistics.is_empty() {
            let rows = self.statistics.iter_mut().map(|row| &mut **row).collect();
            mix_statistics(rows, weights, remote_rows);
        }
        Ok(())
    }

    fn statistics(&mut self, row: RowIndex) -> Result<Vec<f32>, EngineError> {
        let statistics = self.statistics.get(row.0);
        Ok(statistics.map_or(vec![], |row| row.to_vec()))
    }

    fn score(&mut self, _: RowIndex, _: Split) -> Result<Score, EngineError> {
        Self::unsupported("evaluation")
    }

    fn average(&mut self, rows: &[RowIndex]) -> Result<Replica, EngineError> {
        let statistics = rows.iter().filter_map(|&row| self.statistics.get(row.0));
        let statistics: Vec<&[f32]> = statistics.map(|row| &**row).collect();
        Ok(Replica { parameters: average(&self.models_of(rows)), statistics: average(&statistics) })
    }

    fn estimated(&mut self, row: RowIndex, parameters: Vec<f32>) -> Result<Replica, EngineError> {
        let statistics = self.statistics(row)?;
        Ok(Replica { parameters, statistics })
    }

    fn score_replica(&mut self, _: &Replica) -> Result<Score, EngineError> {
        Self::unsupported("evaluation")
    }

    fn consensus_distance(&mut self, rows: &[RowIndex]) -> Result<f64, EngineError> {
        Ok(consensus_distance(&self.models_of(rows)))
    }

    fn state(&mut self) -> Result<State, EngineError> {
        let joined = |rows: &[&mut [f32]]| rows.iter().flat_map(|row| row.to_vec()).collect();
        let mut state: State =
            vec![("models".into(), joined(&self.models)), ("statistics".into(), joined(&self.statistics))];
        let vectors = self.state.state_vectors.iter();
        state.extend(vectors.map(|(name, rows)| (name.clone(), rows.concat())));
        Ok(state)
    }

    fn restore(&mut self, state: &State) -> Result<(), EngineError> {
        fn put<'r>(state: &State, name: &str, rows: impl Iterator<Item = &'r mut [f32]>) -> Result<(), EngineError> {
            let rows: Vec<&mut [f32]> = rows.collect();
            let mut rest = saved(state, name, rows.iter().map(|row| row.len()).sum())?;
            for row in rows {
                let (own, after) = rest.split_at(row.len());
                row.copy_from_slice(own);
                rest = after;
            }
            Ok(())
        }
        put(state, "models", self.models.iter_mut().map(|row| &mut **row))?;
        put(state, "statistics", self.statistics.iter_mut().map(|row| &mut **row))?;
        for (name, rows) in &mut self.state.state_vectors {
            put(state, name, rows.iter_mut().map(|row| &mut row[..]))?;
        }
        Ok(())
    }
}
