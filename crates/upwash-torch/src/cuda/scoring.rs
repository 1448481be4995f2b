//! Scoring of models on the GPU.

use super::buffers::{ImagesOnDevice, image_view, pick_values};
use super::{CudaEngine, Precision, SCORING_BATCH, scores};
use crate::model::BoundModel;
use crate::shim::{Argument, TorchError, autocast};
use tch::{Device, Kind, Tensor};
use upwash::data::Pick;
use upwash::engine::{Score, Split};

impl CudaEngine {
    /// The score of a network on the test set or on a worker's training data.
    pub(super) fn score_network(
        &self,
        network: &dyn BoundModel,
        worker: usize,
        split: Split,
    ) -> Result<Score, TorchError> {
        let (source, indices): (_, Vec<u32>) = match split {
            Split::Test => (&self.test, (0..self.data.test.len() as u32).collect()),
            Split::LocalTrain => (&self.train, self.sampler.shards().images[worker].clone()),
        };
        let picks: Vec<i32> = indices.iter().flat_map(|&image| pick_values(Pick::whole(image))).collect();
        self.score_picks(network, source, &picks)
    }

    /// The score of a network on some images, each given by four [values](pick_values).
    pub(super) fn score_picks(
        &self,
        network: &dyn BoundModel,
        source: &ImagesOnDevice,
        picks: &[i32],
    ) -> Result<Score, TorchError> {
        let total = picks.len() / 4;
        let picks = Tensor::from_slice(picks).to_device(self.device);
        let chunks = total.div_ceil(SCORING_BATCH);
        let results = Tensor::zeros([chunks as i64, 2], (Kind::Float, self.device));
        let mut counts = Vec::new();
        for chunk in 0..chunks {
            let from = chunk * SCORING_BATCH;
            let count = SCORING_BATCH.min(total - from);
            let picks = picks.narrow(0, (4 * from) as i64, (4 * count) as i64);
            let (images, labels) = self.inputs.allocate(&self.data, count);
            self.assemble(source, &picks, count, &images, &labels)?;
            let images = image_view(&images, 0, count);
            let logits = self.without_gradients(|| network.score(images));
            let grad_logits = logits.empty_like();
            let result = Argument::of(&results.get(chunk as i64));
            self.cross_entropy(&logits, &labels, &grad_logits, [result, Argument::null()])?;
            counts.push(count);
        }
        let scores = scores(&results, &counts);
        Ok(scores.into_iter().fold(Score::default(), Score::join))
    }

    fn without_gradients<T>(&self, work: impl FnOnce() -> T) -> T {
        let bf16 = self.options.precision == Precision::Bf16;
        tch::no_grad(|| autocast(bf16, work))
    }

    /// Batch-norm statistics of a network: their mean over some batches drawn from the training data of all workers of
    /// this worker's experiment.
    pub(super) fn estimate_statistics(&self, worker: usize, network: &dyn BoundModel) -> Result<Vec<f32>, TorchError> {
        let count = self.sampler.batch_size();
        let (images, labels) = self.inputs.allocate(&self.data, count);
        let mut sums: Vec<Tensor> = Vec::new();
        for k in 0..self.sampler.estimation_batches() {
            let picks = self.sampler.mixed_picks(worker, self.data.augmentation, k as u64);
            let picks: Vec<i32> = picks.into_iter().flat_map(pick_values).collect();
            let picks = Tensor::from_slice(&picks).to_device(self.device);
            self.assemble(&self.train, &picks, count, &images, &labels)?;
            let batch = image_view(&images, 0, count);
            let found = self.without_gradients(|| network.batch_statistics(batch));
            if sums.is_empty() {
                sums = found;
            } else {
                sums.iter_mut().zip(&found).for_each(|(sum, found)| {
                    let _ = sum.g_add_(found);
                });
            }
        }
        let mean = |sum: &Tensor| {
            let mean: Tensor = sum / self.sampler.estimation_batches() as f64;
            Vec::<f32>::try_from(mean.to_device(Device::Cpu)).unwrap_or_default()
        };
        Ok(sums.iter().flat_map(mean).collect())
    }
}
