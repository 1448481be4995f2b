//! Estimates of the GPU memory that an engine needs.

use crate::cuda::{CudaEngine, CudaOptions, Precision, SCORING_BATCH};
use crate::model::TorchModel;
use crate::shim::{self, Cuda, TorchError};
use tch::{Device, Kind, Tensor};
use upwash::engine::EngineSpec;

/// An estimate, in bytes, of the memory that libtorch reserves on the device. The driver needs another 0.5 GiB or so.
/// docs/benchmarks.md compares estimates with measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryEstimate {
    /// Models, gradients, velocities and state vectors of all workers.
    pub vectors: u64,
    /// The data set and the assembled batches.
    pub data: u64,
    /// Activations and temporary tensors of the gradients that all streams compute at the same time.
    pub gradients: u64,
    /// Activations of scoring, and workspaces of libraries.
    pub scoring: u64,
    /// Whether the estimate comes from a measurement on the GPU.
    pub measured: bool,
    workers: usize,
    streams: usize,
}

/// Overhead of the allocator: it reserves whole blocks, and freed blocks do not always fit the next request.
const ALLOCATOR_OVERHEAD: f64 = 1.15;
/// Workspace that libraries keep for each stream.
const STREAM_WORKSPACE: u64 = 48 << 20;

impl MemoryEstimate {
    /// Estimates from the network's description.
    pub fn of(spec: &EngineSpec, options: CudaOptions) -> Self {
        let workers = spec.starts.len();
        let streams = options.streams.unwrap_or(workers).clamp(1, workers.min(32));
        let layout = spec.network.layout();
        let numbers = |slots: &[upwash::model::Slot]| -> u64 {
            slots.iter().map(|slot| slot.size().next_multiple_of(64) as u64).sum()
        };
        let parameters = numbers(&layout.parameters);
        let kinds = 2 + spec.optimizer.state_vectors().len() as u64 + spec.state_vectors.len() as u64;
        let vectors = 4 * (workers as u64 + 1) * (kinds * parameters + numbers(&layout.statistics));
        let number: u64 = match options.precision {
            Precision::Bf16 => 2,
            Precision::Tf32 | Precision::F32 => 4,
        };
        let image: usize = spec.network.input.iter().product();
        let pixels = spec.data.train.pixels.len() + spec.data.test.pixels.len();
        let batch = spec.sampler.batch_size() as u64;
        let inputs = workers as u64 * batch * image as u64 * number;
        // Activations that are kept for the backward pass, a copy of the weights in half precision, and the gradients
        // that exist at the same time.
        let (made, largest) = (spec.network.activations(), spec.network.largest_activation());
        let kept = batch * number * (made + 3 * largest) as u64;
        let weights = if number == 2 { 2 * parameters } else { 0 } + 4 * parameters;
        let gradient = (ALLOCATOR_OVERHEAD * (kept + weights) as f64) as u64 + STREAM_WORKSPACE;
        // Scoring keeps no activations: only a few outputs of the largest layers exist at a time.
        let scored = (spec.data.test.len().min(SCORING_BATCH)) as u64;
        Self {
            vectors,
            data: pixels as u64 + inputs,
            gradients: streams as u64 * gradient,
            scoring: scored * number * 4 * largest as u64,
            measured: false,
            workers,
            streams,
        }
    }

    /// Estimates from the network's description in half precision. In single precision, libraries need workspaces
    /// that the description does not show, so the estimate comes from a measurement if there is a GPU.
    pub fn predicted(spec: &EngineSpec, model: &dyn TorchModel, options: CudaOptions) -> Result<Self, TorchError> {
        match (options.precision, Cuda::detect()) {
            (Precision::Tf32 | Precision::F32, Cuda::Devices(_)) => Self::measured(spec, model, options),
            _ => Ok(Self::of(spec, options)),
        }
    }

    /// Estimates from measurements of one and of two workers on this machine's GPU.
    pub fn measured(spec: &EngineSpec, model: &dyn TorchModel, options: CudaOptions) -> Result<Self, TorchError> {
        let described = Self::of(spec, options);
        let peak = |workers: usize| -> Result<(u64, Self), TorchError> {
            let few = spec.first(workers);
            let options = CudaOptions { streams: Some(workers), ..options };
            // The device must be initialized before its memory can be queried.
            drop(Tensor::zeros([1], (Kind::Float, Device::Cuda(options.device))));
            shim::release_memory()?;
            shim::reset_peak(options.device)?;
            let engine = CudaEngine::build(&few, model, options)?;
            Ok((engine.memory()?.peak as u64, Self::of(&few, options)))
        };
        let (one, described_one) = peak(1)?;
        if described.workers == 1 {
            let rest = one.saturating_sub(described_one.vectors + described_one.data);
            return Ok(Self { gradients: rest, scoring: 0, measured: true, ..described });
        }
        let certain = |estimate: &Self| estimate.vectors + estimate.data;
        let gradient = match peak(2) {
            Ok((two, described_two)) => {
                let more = certain(&described_two) - certain(&described_one);
                two.saturating_sub(one + more)
            }
            // Only one worker fits: attribute all of its remaining memory to its gradient.
            Err(error) if error.is_out_of_memory() => one.saturating_sub(certain(&described_one)),
            Err(error) => return Err(error),
        };
        Ok(Self {
            gradients: described.streams as u64 * gradient,
            scoring: one.saturating_sub(certain(&described_one) + gradient),
            measured: true,
            ..described
        })
    }

    /// The total with other numbers of workers and streams.
    fn total_with(self, workers: usize, streams: usize) -> u64 {
        let vectors = self.vectors * (workers as u64 + 1) / (self.workers as u64 + 1);
        let gradients = self.gradients * streams as u64 / self.streams as u64;
        vectors + self.data + gradients + self.scoring
    }

    /// The sum of all parts.
    pub fn total(&self) -> u64 {
        self.vectors + self.data + self.gradients + self.scoring
    }

    /// The parts with their descriptions.
    pub fn parts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("models, gradients and state vectors", self.vectors),
            ("images", self.data),
            ("gradient computation, all streams", self.gradients),
            ("scoring and library workspaces", self.scoring),
        ]
    }

    /// An error message for a GPU with this much free memory: suggests fewer streams, else fewer workers.
    pub(crate) fn remedy(self, memory: u64) -> String {
        let available = memory / 100 * 96;
        let fits = |workers: usize, streams: usize| self.total_with(workers, streams) <= available;
        let gibibytes = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let needed = format!(
            "{} workers on {} streams need about {:.1} GiB of GPU memory, and {:.1} GiB are free",
            self.workers,
            self.streams,
            gibibytes(self.total()),
            gibibytes(memory)
        );
        let streams = (1..=self.streams).rev().find(|&n| fits(self.workers, n));
        if let Some(streams) = streams.filter(|&streams| streams < self.streams) {
            return format!("{needed}: use --streams {streams}, which fits");
        }
        let workers = (1..self.workers).rev().find(|&n| fits(n, 1));
        match workers {
            Some(workers) => {
                format!("{needed}: {workers} workers fit with --streams 1; or use a smaller batch size")
            }
            None => format!("{needed}: use a smaller batch size or model"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_suggests_settings_that_fit() {
        let gib = 1u64 << 30;
        let estimate = MemoryEstimate {
            vectors: 9 * gib,
            data: gib,
            gradients: 80 * gib,
            scoring: gib,
            measured: true,
            workers: 8,
            streams: 8,
        };
        assert_eq!(estimate.total(), 91 * gib);
        // 11 GiB plus 10 for each stream: five streams fit into 64.
        let message = estimate.remedy(64 * gib);
        assert!(
            message.ends_with("need about 91.0 GiB of GPU memory, and 64.0 GiB are free: use --streams 5, which fits"),
            "{message}"
        );
        // 12 GiB plus 1 for each worker and for the scratch model: of 18, 17.28 can be used, so four workers fit.
        let message = estimate.remedy(18 * gib);
        assert!(message.contains("4 workers fit with --streams 1"), "{message}");
        let message = estimate.remedy(5 * gib);
        assert!(message.ends_with("use a smaller batch size or model"), "{message}");
    }
}
