//! How models do on images, on the GPU.

use super::buffers::{image_view, numbers_of};
use super::{CudaEngine, Precision, SCORED_AT_ONCE, scores};
use crate::model::BoundModel;
use crate::shim::{Argument, TorchError, autocast};
use tch::{Device, Kind, Tensor};
use upwash::data::Pick;
use upwash::engine::{Score, Split};

impl CudaEngine {
    /// How a network does on the test set, or on a worker's share.
    pub(super) fn score_network(
        &self,
        network: &dyn BoundModel,
        worker: usize,
        part: Split,
    ) -> Result<Score, TorchError> {
        let (source, indices): (_, Vec<u32>) = match part {
            Split::Test => (&self.test, (0..self.data.test.len() as u32).collect()),
            Split::LocalTrain => (&self.train, self.sampler.shards().images[worker].clone()),
        };
        let picks: Vec<i32> = indices.iter().flat_map(|&image| numbers_of(Pick::whole(image))).collect();
        let picks = Tensor::from_slice(&picks).to_device(self.device);
        let chunks = indices.len().div_ceil(SCORED_AT_ONCE);
        let results = Tensor::zeros([chunks as i64, 2], (Kind::Float, self.device));
        let mut counts = Vec::new();
        for chunk in 0..chunks {
            let from = chunk * SCORED_AT_ONCE;
            let count = SCORED_AT_ONCE.min(indices.len() - from);
            let picks = picks.narrow(0, (4 * from) as i64, (4 * count) as i64);
            let (images, labels) = self.inputs.room(&self.data, count);
            self.assemble(source, &picks, count, &images, &labels)?;
            let images = image_view(&images, 0, count);
            let logits = self.without_gradients(|| network.score(images));
            let slope = logits.empty_like();
            let result = Argument::of(&results.get(chunk as i64));
            self.cross_entropy(&logits, &labels, &slope, [result, Argument::null()])?;
            counts.push(count);
        }
        let scores = scores(&results, &counts);
        Ok(scores.into_iter().fold(Score::default(), Score::join))
    }

    fn without_gradients<T>(&self, work: impl FnOnce() -> T) -> T {
        let bf16 = self.options.precision == Precision::Bf16;
        tch::no_grad(|| autocast(bf16, work))
    }

    /// The mean over some batches out of the images of this worker and all who are with it.
    pub(super) fn estimate_statistics(&self, worker: usize, network: &dyn BoundModel) -> Result<Vec<f32>, TorchError> {
        let count = self.sampler.batch_size();
        let (images, labels) = self.inputs.room(&self.data, count);
        let mut sums: Vec<Tensor> = Vec::new();
        for k in 0..self.sampler.estimation_batches() {
            let picks = self.sampler.mixed_picks(worker, self.data.augmentation, k as u64);
            let picks: Vec<i32> = picks.into_iter().flat_map(numbers_of).collect();
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
