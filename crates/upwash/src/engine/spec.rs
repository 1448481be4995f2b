//! The specification of an engine's workers: those of one experiment, or of several that share the engine.

use super::EngineError;
use crate::algorithm::InitialValue;
use crate::data::{Dataset, Sampler};
use crate::ids::WorkerId;
use crate::model::Network;
use crate::optimizer::Optimizer;
use std::sync::Arc;

/// What an engine needs to know about its workers.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    /// The dataset.
    pub data: Arc<Dataset>,
    /// The network.
    pub network: Network,
    /// The batches of each worker. Workers without images do not train.
    pub sampler: Sampler,
    /// The optimizer.
    pub optimizer: Arc<dyn Optimizer>,
    /// The largest norm of a gradient, if gradients are clipped.
    pub clip: Option<f64>,
    /// Each worker's starting weights: the seed, and the worker whose weights the seed generates.
    pub starts: Vec<(u64, u64)>,
    /// The state vectors of the algorithm.
    pub state_vectors: Vec<StateRows>,
    /// Whether steps are in flight between rounds, as in asynchronous algorithms.
    pub keeps_updates: bool,
    /// Workers that are slowed down by a factor: they sleep after each gradient.
    pub slow: Vec<(usize, f64)>,
}

/// The part of the memory that the data set takes.
const DATA: &str = "images";

/// A state vector that an algorithm keeps for each worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRows {
    /// Its name in checkpoints.
    pub name: String,
    /// Each worker's value before the first round.
    pub starts: Vec<InitialValue>,
}

impl EngineSpec {
    /// The memory that an engine on the CPU needs, by its parts, in bytes. The data set has been loaded before.
    pub fn memory(&self) -> Vec<(&'static str, u64)> {
        let (workers, layout) = (self.starts.len() as u64, self.network.layout());
        let vectors = 2 + self.optimizer.state_vectors().len() as u64 + self.state_vectors.len() as u64;
        let [parameters, statistics] = [layout.parameter_count(), layout.statistic_count()].map(|count| count as u64);
        let bytes = |vectors: u64| (vectors * parameters).saturating_add(statistics).saturating_mul(4 * workers);
        let splits = [&self.data.train, &self.data.test];
        let data: usize = splits.iter().map(|images| images.pixels.len()).sum();
        // One gradient at a time on every thread.
        let threads = workers.min(rayon::current_num_threads() as u64);
        let activations = self.network.activations() as u64 * 4;
        let batch = self.sampler.batch_size() as u64;
        vec![
            ("models, steps and what algorithms keep", bytes(vectors)),
            ("a checkpoint while it is written", bytes(vectors - 1)),
            (DATA, data as u64),
            ("gradients under way", threads.saturating_mul(batch.saturating_mul(activations))),
        ]
    }

    /// Refuses workers that need more memory than there is, before any is taken.
    pub fn check_memory(&self) -> Result<(), EngineError> {
        self.check_memory_with(0)
    }

    /// As [`check_memory`](Self::check_memory), for workers in a process each. Each process loads the data set.
    pub fn check_memory_of_processes(&self) -> Result<(), EngineError> {
        self.check_memory_with(self.starts.len() as u64)
    }

    fn check_memory_with(&self, datasets: u64) -> Result<(), EngineError> {
        let bytes = |(part, bytes): (&str, u64)| if part == DATA { bytes.saturating_mul(datasets) } else { bytes };
        let needed = self.memory().into_iter().map(bytes).fold(0, u64::saturating_add);
        let shortage = match datasets {
            0 => crate::memory::shortage(needed),
            _ => crate::memory::shortage_of_machine(needed),
        };
        match shortage {
            None => Ok(()),
            Some(shortage) => Err(EngineError::Memory(format!(
                "{} workers of {} parameters need {shortage}: use a smaller model, fewer workers or a smaller \
                 training.batch_size",
                self.starts.len(),
                self.network.layout().parameter_count()
            ))),
        }
    }

    /// Keeps only the first `count` workers with data, for a trial run.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let shares = &self.sampler.shards().images;
        let trains = |worker: &WorkerId| !shares[*worker].is_empty();
        let workers: Vec<WorkerId> = WorkerId::all(shares.len()).filter(trains).take(count).collect();
        let mut few = self.only(&workers);
        few.slow.clear();
        few
    }

    /// Keeps only some workers, for example those of one process. They are renumbered from 0 and otherwise unchanged.
    #[must_use]
    pub fn only(&self, workers: &[WorkerId]) -> Self {
        let mut some = self.clone();
        some.sampler = self.sampler.only(workers);
        some.starts = workers.iter().map(|&worker| self.starts[worker]).collect();
        for state_vector in &mut some.state_vectors {
            state_vector.starts = workers.iter().map(|&worker| state_vector.starts[worker]).collect();
        }
        some.slow.clear();
        for (slow, factor) in &self.slow {
            let index = workers.iter().position(|worker| worker.0 == *slow);
            some.slow.extend(index.map(|index| (index, *factor)));
        }
        some
    }

    /// Concatenates the workers of several runs. The error names what the runs must have in common but do not.
    pub fn join(specs: &[Self]) -> Result<Self, String> {
        let Some((first, others)) = specs.split_first() else {
            return Err("there are no runs to join".into());
        };
        if specs.iter().any(|spec| spec.keeps_updates) {
            return Err("an asynchronous algorithm cannot share an engine with other runs: run it separately".into());
        }
        let mut spec = first.clone();
        let require_same = |what: &str, same: bool| match same {
            true => Ok(()),
            false => Err(format!("{what} must be the same in all configurations that run at the same time")),
        };
        for next in others {
            require_same("the model", next.network == spec.network)?;
            require_same("the data", next.data == spec.data)?;
            require_same("training.batch_size", next.sampler.batch_size() == spec.sampler.batch_size())?;
            require_same(
                "the optimizer and its options",
                format!("{:?}", next.optimizer) == format!("{:?}", spec.optimizer) && next.clip == spec.clip,
            )?;
            let workers = spec.starts.len();
            spec.sampler = spec.sampler.and(&next.sampler);
            spec.slow.extend(next.slow.iter().map(|(i, factor)| (workers + i, *factor)));
            spec.starts.extend(&next.starts);
            // A slot is shared by all runs that keep at least that many state vectors. It is 0 for the others.
            for slot in 0..spec.state_vectors.len().max(next.state_vectors.len()) {
                if slot == spec.state_vectors.len() {
                    spec.state_vectors
                        .push(StateRows { name: String::new(), starts: vec![InitialValue::Zero; workers] });
                }
                let starts = next.state_vectors.get(slot).map(|state_vector| &state_vector.starts[..]);
                let none = vec![InitialValue::Zero; next.starts.len()];
                spec.state_vectors[slot].starts.extend(starts.unwrap_or(&none));
            }
        }
        for (slot, state_vector) in spec.state_vectors.iter_mut().enumerate() {
            state_vector.name = format!("state_vector {slot}");
        }
        Ok(spec)
    }
}
