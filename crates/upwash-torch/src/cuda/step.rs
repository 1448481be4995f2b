//! Local steps: batches, forward and backward passes, all workers at the same time.

use super::buffers::{ImagesOnDevice, WorkerBatch, image_view, numbers_of};
use super::{ASSEMBLE, CROSS_ENTROPY, CudaEngine, Precision, score};
use crate::shim;
use crate::shim::{Argument, TorchError, autocast};
use std::rc::Rc;
use tch::{Kind, Tensor};
use upwash::data::Pick;
use upwash::engine::{GradientTask, Score};

impl CudaEngine {
    /// The first half of [`step`](upwash::engine::Engine::step): starts gradients, and does not wait. For benchmarks: a
    /// second one before [`losses`](Self::losses) may overwrite the first one's batch.
    #[doc(hidden)]
    pub fn launch(&mut self, tasks: &[Option<GradientTask>]) -> Result<(), TorchError> {
        // The recording is of everyone: who has ended (of several runs) is computed for nothing.
        let recorded = self.graph.is_some() && !self.keeps_updates;
        let mut due: Vec<WorkerBatch> = Vec::new();
        for (worker, task) in tasks.iter().enumerate() {
            match task {
                Some(task) => due.push((worker, task.batch)),
                None if recorded && self.trained.binary_search(&worker).is_ok() => {
                    due.push((worker, 0));
                }
                None => {}
            }
        }
        let ahead = self.inputs.ahead.take();
        let picks = match ahead.as_ref() == Some(&due) {
            true => None,
            false => Some(self.picks(&due)),
        };
        for (rate, task) in self.waiting.iter_mut().zip(tasks) {
            *rate = task.map(|task| task.rate).or(*rate);
        }
        let workers: Vec<usize> = due.iter().map(|(worker, _)| *worker).collect();
        let streams = Rc::clone(&self.streams);
        self.losses.expect(&workers);
        let computed = streams.on_main(|| {
            if let Some(picks) = &picks {
                self.inputs.load(picks)?;
            }
            match &self.graph {
                Some(graph) if workers == self.trained => graph.replay(),
                _ => self.gradients_of(&workers),
            }?;
            // Without rounds, a model may change before its step is taken: take it now.
            if self.keeps_updates {
                self.take_steps()?;
            }
            Ok(())
        });
        computed??;
        // While the GPU is busy: the next batches are most likely those, and are there when they are due.
        let next: Vec<WorkerBatch> = due.iter().map(|&(worker, k)| (worker, k + 1)).collect();
        let picks = self.picks(&next);
        let loaded = streams.on_main(|| self.inputs.load(&picks));
        loaded??;
        self.inputs.ahead = Some(next);
        Ok(())
    }

    /// Makes the last gradients wait for their steps once more. For benchmarks of exchanges.
    #[doc(hidden)]
    pub fn wait_with(&mut self, rate: f64) {
        for &worker in &self.trained {
            self.waiting[worker] = Some(rate);
        }
    }

    /// The second half: waits for everyone's loss, not for the gradients. What was sent to the GPU before
    /// the round began has then arrived.
    #[doc(hidden)]
    pub fn losses(&mut self) -> Result<Vec<Score>, TorchError> {
        let device = self.options.device;
        let streams = Rc::clone(&self.streams);
        let read = streams.on_main(|| {
            if self.keeps_updates {
                // Something was sent after it, too.
                shim::wait(device)?;
            }
            self.losses.read(device)
        });
        let results = read??;
        self.uploads.arrived();
        let images = self.sampler.batch_size();
        let score = |(loss, right)| score(&[loss, right], images);
        Ok(results.into_iter().map(score).collect())
    }

    /// Which images are in these batches of these workers.
    pub(super) fn picks(&self, batches: &[WorkerBatch]) -> Vec<i32> {
        let augmentation = self.data.augmentation;
        let pick = |&(worker, batch): &WorkerBatch| self.sampler.picks(augmentation, worker, batch);
        batches.iter().flat_map(pick).flat_map(numbers_of).collect()
    }

    /// Some workers' batches, forward and backward passes. This is what is captured for all.
    pub(super) fn gradients_of(&self, workers: &[usize]) -> Result<(), TorchError> {
        let batch = self.sampler.batch_size();
        let (inputs, count) = (&self.inputs, workers.len() * batch);
        self.assemble(&self.train, &inputs.picks, count, &inputs.images, &inputs.labels)?;
        self.streams.on_others(workers.len(), |slot| {
            let worker = workers[slot];
            let images = image_view(&inputs.images, slot * batch, batch);
            let labels = inputs.labels.narrow(0, (slot * batch) as i64, batch as i64);
            let network = &self.networks[worker];
            let bf16 = self.options.precision == Precision::Bf16;
            let logits = autocast(bf16, || network.train(images));
            let slope = logits.detach().empty_like();
            let result = self.losses.places_of(worker);
            self.cross_entropy(&logits.detach(), &labels, &slope, result)?;
            shim::backward(&logits, &slope, network.leaves(), &self.gradients.views(worker))
        })
    }

    pub(super) fn assemble(
        &self,
        source: &ImagesOnDevice,
        picks: &Tensor,
        count: usize,
        images: &Tensor,
        labels: &Tensor,
    ) -> Result<(), TorchError> {
        let [channels, height, width] = self.data.train.shape.map(|side| side as i32);
        let block = 256;
        let grid = [(channels * height * width).unsigned_abs().div_ceil(block), count as u32, 1];
        let arguments = [
            Argument::of(&source.pixels),
            Argument::of(&source.labels),
            Argument::of(picks),
            Argument::of(&self.inputs.scaling),
            Argument::of(images),
            Argument::of(labels),
            Argument::Int(count as i32),
            Argument::Int(channels),
            Argument::Int(height),
            Argument::Int(width),
            Argument::Int(Pick::BORDER as i32),
            Argument::Float(self.data.scaling.full),
            Argument::Int(i32::from(images.kind() == Kind::BFloat16)),
        ];
        // SAFETY: as `assemble` takes them; picks name images of this source.
        unsafe { self.kernels.launch(ASSEMBLE, grid, block, 0, &arguments) }
    }

    pub(super) fn cross_entropy(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        slope: &Tensor,
        [result, count]: [Argument; 2],
    ) -> Result<(), TorchError> {
        let logits = logits.contiguous();
        let (images, classes) = (logits.size()[0], logits.size()[1]);
        let arguments = [
            Argument::of(&logits),
            Argument::of(labels),
            Argument::of(slope),
            result,
            count,
            Argument::Int(images as i32),
            Argument::Int(classes as i32),
            Argument::Int(i32::from(logits.kind() == Kind::BFloat16)),
        ];
        // SAFETY: as `cross_entropy` takes them; the slope has the logits' kind and size.
        unsafe { self.kernels.launch(CROSS_ENTROPY, [1; 3], 1024, 0, &arguments) }
    }
}
