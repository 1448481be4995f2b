//! Local steps: batches, forward and backward passes of all workers in parallel.

use super::buffers::{ImagesOnDevice, WorkerBatch, image_view, pick_values};
use super::{ASSEMBLE, CROSS_ENTROPY, CudaEngine, Precision, score};
use crate::shim;
use crate::shim::{Argument, TorchError, autocast};
use std::rc::Rc;
use tch::{Kind, Tensor};
use upwash::data::Pick;
use upwash::engine::{GradientTask, Score};

impl CudaEngine {
    /// The first half of [`step`](upwash::engine::Engine::step): launches gradients without waiting for them. Public
    /// for benchmarks only: a second launch before [`losses`](Self::losses) may overwrite the batches of the first.
    #[doc(hidden)]
    pub fn launch(&mut self, tasks: &[Option<GradientTask>]) -> Result<(), TorchError> {
        // The graph computes all workers, even those of runs that have ended (where several runs share the engine).
        let captured = self.graph.is_some() && !self.keeps_updates;
        let mut due: Vec<WorkerBatch> = Vec::new();
        for (worker, task) in tasks.iter().enumerate() {
            match task {
                Some(task) => due.push((worker, task.batch)),
                None if captured && self.training_workers.binary_search(&worker).is_ok() => {
                    due.push((worker, 0));
                }
                None => {}
            }
        }
        let prefetched = self.inputs.prefetched.take();
        let picks = match prefetched.as_ref() == Some(&due) {
            true => None,
            false => Some(self.picks(&due)),
        };
        for (rate, task) in self.pending_rates.iter_mut().zip(tasks) {
            *rate = task.map(|task| task.rate).or(*rate);
        }
        let workers: Vec<usize> = due.iter().map(|(worker, _)| *worker).collect();
        let streams = Rc::clone(&self.streams);
        self.losses.expect(&workers);
        let launched = streams.on_main(|| {
            if let Some(picks) = &picks {
                self.inputs.load(picks)?;
            }
            match &self.graph {
                Some(graph) if workers == self.training_workers => graph.replay(),
                _ => self.gradients_of(&workers),
            }?;
            // In asynchronous algorithms a model may change before the exchange, so take its step now.
            if self.keeps_updates {
                self.take_steps()?;
            }
            Ok(())
        });
        launched??;
        // While the GPU is busy, load the batches that are most likely next.
        let next: Vec<WorkerBatch> = due.iter().map(|&(worker, k)| (worker, k + 1)).collect();
        let picks = self.picks(&next);
        let loaded = streams.on_main(|| self.inputs.load(&picks));
        loaded??;
        self.inputs.prefetched = Some(next);
        Ok(())
    }

    /// Marks the last gradients as pending again. Public for benchmarks of exchanges only.
    #[doc(hidden)]
    pub fn set_pending(&mut self, rate: f64) {
        for &worker in &self.training_workers {
            self.pending_rates[worker] = Some(rate);
        }
    }

    /// The second half: waits for the losses of all workers, not for their gradients. Everything that was copied to
    /// the GPU before the round has arrived by then.
    #[doc(hidden)]
    pub fn losses(&mut self) -> Result<Vec<Score>, TorchError> {
        let device = self.options.device;
        let streams = Rc::clone(&self.streams);
        let read = streams.on_main(|| {
            if self.keeps_updates {
                // The steps were launched after the losses, and their upload must have finished, too.
                shim::synchronize(device)?;
            }
            self.losses.read(device)
        });
        let results = read??;
        self.uploads.recycle();
        let images = self.sampler.batch_size();
        let score = |(loss, correct)| score(&[loss, correct], images);
        Ok(results.into_iter().map(score).collect())
    }

    /// The images of these batches, as the kernel `assemble` reads them.
    pub(super) fn picks(&self, batches: &[WorkerBatch]) -> Vec<i32> {
        let augmentation = self.data.augmentation;
        let pick = |&(worker, batch): &WorkerBatch| self.sampler.picks(augmentation, worker, batch);
        batches.iter().flat_map(pick).flat_map(pick_values).collect()
    }

    /// Assembles the batches of some workers and runs their forward and backward passes. The graph captures this for
    /// all training workers.
    pub(super) fn gradients_of(&self, workers: &[usize]) -> Result<(), TorchError> {
        let batch = self.sampler.batch_size();
        let (inputs, count) = (&self.inputs, workers.len() * batch);
        self.assemble(&self.train, &inputs.picks, count, &inputs.images, &inputs.labels)?;
        self.streams.on_side_streams(workers.len(), |slot| {
            let worker = workers[slot];
            let images = image_view(&inputs.images, slot * batch, batch);
            let labels = inputs.labels.narrow(0, (slot * batch) as i64, batch as i64);
            let network = &self.networks[worker];
            let bf16 = self.options.precision == Precision::Bf16;
            let logits = autocast(bf16, || network.train(images));
            let grad_logits = logits.detach().empty_like();
            let result = self.losses.arguments_of(worker);
            self.cross_entropy(&logits.detach(), &labels, &grad_logits, result)?;
            shim::backward(&logits, &grad_logits, network.leaves(), &self.gradients.views(worker))
        })
    }

    /// Launches the kernel that assembles `count` images and labels of `source`.
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
        // SAFETY: the arguments are those of `assemble` in kernels.cu, in its order. Callers pass `count` picks of
        // images of `source`, and tensors for `count` images and labels; all belong to the engine or were allocated
        // on this stream.
        unsafe { self.kernels.launch(ASSEMBLE, grid, block, 0, &arguments) }
    }

    /// Launches the kernel that computes loss, correct predictions and the gradient with respect to the logits.
    pub(super) fn cross_entropy(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        grad_logits: &Tensor,
        [result, count]: [Argument; 2],
    ) -> Result<(), TorchError> {
        let logits = logits.contiguous();
        let (images, classes) = (logits.size()[0], logits.size()[1]);
        let arguments = [
            Argument::of(&logits),
            Argument::of(labels),
            Argument::of(grad_logits),
            result,
            count,
            Argument::Int(images as i32),
            Argument::Int(classes as i32),
            Argument::Int(i32::from(logits.kind() == Kind::BFloat16)),
        ];
        // SAFETY: the arguments are those of `cross_entropy` in kernels.cu, in its order. `logits` is contiguous.
        // Callers pass a gradient tensor of its type and size, a label for every image, and a result of two floats,
        // or of a row of `LossReadback` where there is a counter; all belong to the engine or were allocated on this
        // stream.
        unsafe { self.kernels.launch(CROSS_ENTROPY, [1; 3], 1024, 0, &arguments) }
    }
}
