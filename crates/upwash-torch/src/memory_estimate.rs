//! How much of a GPU's memory a engine will need.

use crate::cuda::{CudaEngine, CudaOptions, Precision, SCORED_AT_ONCE};
use crate::model::TorchModel;
use crate::shim::{self, Cuda, TorchError};
use tch::{Device, Kind, Tensor};
use upwash::engine::EngineSpec;

/// A prediction, in bytes, of what libtorch takes from the device; the driver's own share (some 0.5 GiB)
/// comes on top. docs/benchmarks.md has how near it comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryEstimate {
    /// Models, gradients, velocities and what algorithms keep: for every worker.
    pub vectors: u64,
    /// Images.
    pub data: u64,
    /// What a gradient needs on its way, for every stream.
    pub gradients: u64,
    /// What scoring takes at once, and what libraries keep.
    pub scoring: u64,
    /// Whether it was tried.
    pub measured: bool,
    workers: usize,
    streams: usize,
}

/// Blocks of memory are taken whole, and freed ones do not always fit: so much more than is used.
const LOSS: f64 = 1.15;
/// Room that libraries keep for a stream.
const STREAM: u64 = 48 << 20;

impl MemoryEstimate {
    /// Of these workers, used so: by the network's description.
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
        // What is kept for the way back, a copy of the weights in half precision, and the slopes
        // that are under way at once.
        let (made, largest) = (spec.network.activations(), spec.network.largest_activation());
        let kept = batch * number * (made + 3 * largest) as u64;
        let weights = if number == 2 { 2 * parameters } else { 0 } + 4 * parameters;
        let gradient = (LOSS * (kept + weights) as f64) as u64 + STREAM;
        // Scoring keeps nothing: a few outputs of the largest layers.
        let scored = (spec.data.test.len().min(SCORED_AT_ONCE)) as u64;
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

    /// By the network's description in half precision. In single precision libraries take room that no
    /// description has: there it is tried, where there is a GPU to try it on.
    pub fn predicted(spec: &EngineSpec, model: &dyn TorchModel, options: CudaOptions) -> Result<Self, TorchError> {
        match (options.precision, Cuda::here()) {
            (Precision::Tf32 | Precision::F32, Cuda::Devices(_)) => Self::measured(spec, model, options),
            _ => Ok(Self::of(spec, options)),
        }
    }

    /// Of these workers, used so: from what one of them and two need on this machine's GPU.
    pub fn measured(spec: &EngineSpec, model: &dyn TorchModel, options: CudaOptions) -> Result<Self, TorchError> {
        let described = Self::of(spec, options);
        let peak = |workers: usize| -> Result<(u64, Self), TorchError> {
            let few = spec.first(workers);
            let options = CudaOptions { streams: Some(workers), ..options };
            // The device must be in use before it can be asked.
            drop(Tensor::zeros([1], (Kind::Float, Device::Cuda(options.device))));
            shim::release_memory()?;
            shim::forget_peak(options.device)?;
            let engine = CudaEngine::make(&few, model, options)?;
            Ok((engine.memory()?.peak as u64, Self::of(&few, options)))
        };
        let (one, described_one) = peak(1)?;
        if described.workers == 1 {
            let rest = one.saturating_sub(described_one.vectors + described_one.data);
            return Ok(Self { gradients: rest, scoring: 0, measured: true, ..described });
        }
        let sure = |needs: &Self| needs.vectors + needs.data;
        let gradient = match peak(2) {
            Ok((two, described_two)) => {
                let more = sure(&described_two) - sure(&described_one);
                two.saturating_sub(one + more)
            }
            // One is all that fits: then all that it needed is its gradient's.
            Err(error) if error.lacks_memory() => one.saturating_sub(sure(&described_one)),
            Err(error) => return Err(error),
        };
        Ok(Self {
            gradients: described.streams as u64 * gradient,
            scoring: one.saturating_sub(sure(&described_one) + gradient),
            measured: true,
            ..described
        })
    }

    /// The same with other numbers of workers and streams.
    fn with(self, workers: usize, streams: usize) -> u64 {
        let vectors = self.vectors * (workers as u64 + 1) / (self.workers as u64 + 1);
        let gradients = self.gradients * streams as u64 / self.streams as u64;
        vectors + self.data + gradients + self.scoring
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.vectors + self.data + self.gradients + self.scoring
    }

    /// Its parts, in words.
    pub fn parts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("models, gradients and what algorithms keep", self.vectors),
            ("images", self.data),
            ("gradients under way, a stream each", self.gradients),
            ("scoring, and what libraries keep", self.scoring),
        ]
    }

    /// What to do where there is only so much memory: fewer streams, else fewer workers.
    pub(crate) fn remedy(self, memory: u64) -> String {
        let room = memory / 100 * 96;
        let fits = |workers: usize, streams: usize| self.with(workers, streams) <= room;
        let gibibytes = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let needed = format!(
            "{} workers in {} streams need some {:.1} GiB of the GPU's memory, and {:.1} are free",
            self.workers,
            self.streams,
            gibibytes(self.total()),
            gibibytes(memory)
        );
        let streams = (1..=self.streams).rev().find(|&n| fits(self.workers, n));
        if let Some(streams) = streams.filter(|&streams| streams < self.streams) {
            return format!("{needed}: --streams {streams} fits");
        }
        let workers = (1..self.workers).rev().find(|&n| fits(n, 1));
        match workers {
            Some(workers) => {
                format!("{needed}: {workers} workers fit, with --streams 1; or take a smaller batch")
            }
            None => format!("{needed}: take a smaller batch or model"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_names_what_fits() {
        let gib = 1u64 << 30;
        let needs = MemoryEstimate {
            vectors: 9 * gib,
            data: gib,
            gradients: 80 * gib,
            scoring: gib,
            measured: true,
            workers: 8,
            streams: 8,
        };
        assert_eq!(needs.total(), 91 * gib);
        // 11 and 10 a stream: of 64, five streams.
        let said = needs.remedy(64 * gib);
        assert!(
            said.ends_with("need some 91.0 GiB of the GPU's memory, and 64.0 are free: --streams 5 fits"),
            "{said}"
        );
        // 10 + 1 + 1 and a worker each: of 18, 17.28 can be used, and five workers fit.
        let said = needs.remedy(18 * gib);
        assert!(said.contains("4 workers fit, with --streams 1"), "{said}");
        let said = needs.remedy(5 * gib);
        assert!(said.ends_with("take a smaller batch or model"), "{said}");
    }
}
