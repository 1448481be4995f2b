//! Models that this crate computes itself, on the CPU.

use super::{CpuEngine, Engine, EngineError, EngineSpec, Model, Score};
use crate::data::Batch;
use crate::model::{Layout, Network, Slot};
use std::sync::{Arc, Mutex, PoisonError};
pub use upwash_nn::Instructions;
use upwash_nn::{CompiledNetwork, Outcome, Workspace};

/// The number of images that are scored at a time. More would only need more memory.
const PIECE: usize = 32;

/// The model of a described network, computed by `upwash-nn`.
///
/// ```
/// use upwash::engine::{Model, NativeModel};
/// use upwash::model::ModelSpec;
/// let model = NativeModel::new(ModelSpec::Softmax.network([1, 8, 8], 10));
/// assert_eq!(model.layout().parameter_count(), 650);
/// ```
pub struct NativeModel {
    network: Network,
    layout: Layout,
    compiled: CompiledNetwork,
    /// The memory of passes that are not under way: as many as there were threads.
    workspaces: Mutex<Vec<Workspace<f32>>>,
}

impl NativeModel {
    /// Builds the model of a network.
    pub fn new(network: Network) -> Self {
        let layout = network.layout();
        let ranges = |slots: &[Slot]| slots.iter().map(|slot| slot.offset..slot.offset + slot.size()).collect();
        let (parameters, statistics) = (ranges(&layout.parameters), ranges(&layout.statistics));
        let compiled = CompiledNetwork::new(network.input, &network.layers, parameters, statistics);
        Self { network, layout, compiled, workspaces: Mutex::default() }
    }

    /// The logits of images whose pixels are scaled: a row for each image, with a column for each class.
    pub fn logits(&self, parameters: &[f32], statistics: &[f32], pixels: &[f32]) -> Vec<f32> {
        let features: usize = self.network.input.iter().product();
        let pieces = pixels.chunks(PIECE * features);
        self.with_workspace(|workspace| {
            pieces.flat_map(|piece| self.compiled.logits(workspace, parameters, statistics, piece)).collect()
        })
    }

    fn with_workspace<T>(&self, compute: impl FnOnce(&mut Workspace<f32>) -> T) -> T {
        let free = || self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free().pop();
        let mut workspace = found.unwrap_or_default();
        let result = compute(&mut workspace);
        free().push(workspace);
        result
    }
}

fn score(outcome: Outcome, examples: usize) -> Score {
    Score { loss: outcome.loss, correct: outcome.correct, examples, clipped: 0 }
}

impl Model for NativeModel {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        self.network.start(seed, worker)
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.network.start_statistics()
    }

    fn gradient(&self, parameters: &[f32], statistics: &mut [f32], batch: &Batch, gradient: &mut [f32]) -> Score {
        let Batch { pixels, labels, .. } = batch;
        let outcome = self.with_workspace(|workspace| {
            self.compiled.gradient(workspace, parameters, statistics, pixels, labels, gradient)
        });
        score(outcome, labels.len())
    }

    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score {
        let features: usize = self.network.input.iter().product();
        let pieces = batch.pixels.chunks(PIECE * features).zip(batch.labels.chunks(PIECE));
        self.with_workspace(|workspace| {
            let scores = pieces.map(|(pixels, labels)| {
                let outcome = self.compiled.score(workspace, parameters, statistics, pixels, labels);
                score(outcome, labels.len())
            });
            scores.fold(Score::default(), Score::join)
        })
    }

    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32> {
        let mut found = vec![0.0; self.layout.statistic_count()];
        self.with_workspace(|workspace| {
            self.compiled.batch_statistics(workspace, parameters, &batch.pixels, &mut found);
        });
        found
    }
}

/// Creates the engine for described networks that a [`Trainer`](crate::Trainer) uses unless told otherwise.
pub fn native_engine(spec: &EngineSpec) -> Result<Box<dyn Engine>, EngineError> {
    spec.check_memory()?;
    Ok(Box::new(CpuEngine::new(Arc::new(NativeModel::new(spec.network.clone())), spec)))
}
