//! Warnings about settings that are allowed, but probably not meant.

use super::Experiment;
use crate::algorithm::Links;
use crate::config::{Config, DecayName, TrainingConfig};
use crate::data::Sampler;
use upwash_topology::Weights;

impl Experiment {
    /// Adds a warning for every setting that does not do what it says.
    pub(super) fn add_warnings(&mut self) {
        let mut warnings = schedule(&self.config);
        warnings.extend(batch(&self.sampler));
        warnings.extend(self.alpha());
        let data = &self.config.data;
        for (key, wanted, images, split) in [
            ("data.train_examples", data.train_examples, &self.data.train, "training"),
            ("data.test_examples", data.test_examples, &self.data.test, "test"),
        ] {
            if let Some(wanted) = wanted.filter(|&wanted| wanted > images.len()) {
                let (name, found) = (&self.data.name, images.len());
                warnings.push(format!("{key} = {wanted}, but {name} has only {found} {split} images: all are used"));
            }
        }
        self.warnings.extend(warnings);
    }
}

impl Experiment {
    /// A weight of the links with which averaging alone diverges, also with a lazy W: (I + W)/2 = I - alpha L / 2 has an
    /// eigenvalue below -1. The largest eigenvalue of L is at least the largest degree plus 1.
    fn alpha(&self) -> Option<String> {
        let Weights::Alpha(alpha) = self.config.graph.weights else { return None };
        let degree = self.graph.degrees().into_iter().max().filter(|&degree| degree > 0)?;
        (self.method.links() == Links::Configured && alpha > 4.0 / (degree + 1) as f64).then(|| {
            format!(
                "graph.weights = \"alpha={alpha}\": averaging alone diverges on this graph; leave it out for the fastest \
                 alpha"
            )
        })
    }
}

/// A batch that is larger than the data of a worker.
fn batch(sampler: &Sampler) -> Option<String> {
    let (size, shards) = (sampler.batch_size(), &sampler.shards().images);
    let trains = shards.iter().enumerate().filter(|(_, shard)| !shard.is_empty());
    let (worker, smallest) = trains.min_by_key(|(_, shard)| shard.len())?;
    let (own, rounds) = (smallest.len(), sampler.rounds_per_epoch());
    let rounds = if rounds == 1 { "1 round".into() } else { format!("{rounds} rounds") };
    (size > own).then(|| {
        format!(
            "training.batch_size = {size}, but worker {worker} has only {own} examples: its batches repeat them, and \
             an epoch is {rounds}"
        )
    })
}

/// A learning rate that never becomes what it should.
fn schedule(config: &Config) -> Vec<String> {
    let training = &config.training;
    let epochs = training.epochs as f64;
    let mut warnings = Vec::new();
    if training.warmup_epochs > epochs {
        let (warmup, rate) = (training.warmup_epochs, training.learning_rate);
        warnings.push(format!(
            "training.warmup_epochs = {warmup} is more than training.epochs = {epochs}: the learning rate never reaches \
             {rate}"
        ));
    }
    if training.decay != DecayName::Steps {
        let factor = training.decay_factor;
        if factor != TrainingConfig::default().decay_factor {
            warnings.push(format!("training.decay_factor = {factor} has no effect without training.decay = \"steps\""));
        }
        return warnings;
    }
    let at = &training.decay_at;
    if !at.is_sorted() {
        warnings.push(format!("training.decay_at = {at:?} is not in increasing order: its steps are taken in order"));
    }
    if let Some(late) = at.iter().find(|&&epoch| epoch >= epochs) {
        warnings
            .push(format!("training.decay_at = {at:?}: the run ends after epoch {epochs}, before the step at {late}"));
    }
    warnings
}
