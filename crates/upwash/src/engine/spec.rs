//! All workers that one engine holds: those of one experiment, or of several that share it.

use crate::algorithm::InitialValue;
use crate::data::{Dataset, Sampler};
use crate::model::Network;
use crate::optimizer::Optimizer;
use std::sync::Arc;

/// What an engine needs to know of its workers.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    /// What is trained on.
    pub data: Arc<Dataset>,
    /// What is trained.
    pub network: Network,
    /// Who trains on what when; who has no images does not.
    pub sampler: Sampler,
    /// The optimizer.
    pub optimizer: Arc<dyn Optimizer>,
    /// Each worker's starting weights: the seed, and whose they are.
    pub starts: Vec<(u64, u64)>,
    /// The vectors that algorithms keep.
    pub state_vectors: Vec<StateRows>,
    /// Whether steps are in flight between rounds, as they are where workers do not wait for all.
    pub keeps_updates: bool,
    /// Workers that shall take so many times as long: they sleep.
    pub slow: Vec<(usize, f64)>,
}

/// A vector that an algorithm keeps for each worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRows {
    /// What it is called in checkpoints.
    pub name: String,
    /// What each worker's is before the first round.
    pub starts: Vec<InitialValue>,
}

impl EngineSpec {
    /// The first few who have data, to try something out with.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let shares = &self.sampler.shards().images;
        let trains = |worker: &usize| !shares[*worker].is_empty();
        let workers: Vec<usize> = (0..shares.len()).filter(trains).take(count).collect();
        let mut few = self.only(&workers);
        few.slow.clear();
        few
    }

    /// Some of them, who then have the numbers from 0 on, and are otherwise as they were: those of one
    /// process, where others have the rest.
    #[must_use]
    pub fn only(&self, workers: &[usize]) -> Self {
        let mut some = self.clone();
        some.sampler = self.sampler.only(workers);
        some.starts = workers.iter().map(|&worker| self.starts[worker]).collect();
        for state_vector in &mut some.state_vectors {
            state_vector.starts = workers.iter().map(|&worker| state_vector.starts[worker]).collect();
        }
        some.slow.clear();
        for (slow, by) in &self.slow {
            let place = workers.iter().position(|worker| worker == slow);
            some.slow.extend(place.map(|place| (place, *by)));
        }
        some
    }

    /// The workers of several runs, one after the other; says what they do not have in common.
    pub fn join(specs: &[Self]) -> Result<Self, String> {
        let Some((first, others)) = specs.split_first() else {
            return Err("there is nothing to run".into());
        };
        if specs.iter().any(|spec| spec.keeps_updates) {
            return Err("an algorithm without rounds cannot share an engine with others".into());
        }
        let mut spec = first.clone();
        let alike = |what: &str, same: bool| match same {
            true => Ok(()),
            false => Err(format!("{what} must be the same in all configurations that run at the same time")),
        };
        for next in others {
            alike("the model", next.network == spec.network)?;
            alike("the data", next.data == spec.data)?;
            alike("training.batch_size", next.sampler.batch_size() == spec.sampler.batch_size())?;
            alike(
                "the optimizer (momentum, nesterov and weight_decay)",
                format!("{:?}", next.optimizer) == format!("{:?}", spec.optimizer),
            )?;
            let workers = spec.starts.len();
            spec.sampler = spec.sampler.and(&next.sampler);
            spec.slow.extend(next.slow.iter().map(|(i, by)| (workers + i, *by)));
            spec.starts.extend(&next.starts);
            // A slot is used by every run that keeps so many vectors; what others have there is 0.
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
