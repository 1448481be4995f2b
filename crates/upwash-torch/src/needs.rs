//! How much of a GPU's memory a fleet will need.

use crate::cuda::{CudaOptions, Precision, SCORED_AT_ONCE};
use upwash::crew::Crew;

/// A prediction, in bytes. What it was fitted to is in docs/benchmarks.md; it is of what libtorch takes
/// from the device. The driver's own share (some 0.5 GiB) comes on top.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// Models, gradients, velocities and what algorithms keep: for every worker.
    pub vectors: u64,
    /// Images.
    pub data: u64,
    /// What a gradient needs on its way, for every stream.
    pub gradients: u64,
    /// What scoring takes at once.
    pub scoring: u64,
    workers: usize,
    streams: usize,
}

/// Blocks of memory are taken whole, and freed ones do not always fit: so much more than is used.
const LOSS: f64 = 1.15;
/// Room that libraries keep for a stream.
const STREAM: u64 = 48 << 20;

impl Needs {
    /// Of these workers, used so.
    pub fn of(crew: &Crew, options: CudaOptions) -> Self {
        let workers = crew.starts.len();
        let streams = options.streams.unwrap_or(workers).clamp(1, workers.min(32));
        Self::with(crew, options, workers, streams)
    }

    fn with(crew: &Crew, options: CudaOptions, workers: usize, streams: usize) -> Self {
        let layout = crew.network.layout();
        let numbers = |slots: &[upwash::model::Slot]| -> u64 {
            slots
                .iter()
                .map(|slot| slot.size().next_multiple_of(64) as u64)
                .sum()
        };
        let parameters = numbers(&layout.parameters);
        let kinds = 2 + u64::from(crew.sgd.has_velocity()) + crew.extras.len() as u64;
        let vectors = 4 * (workers as u64 + 1) * (kinds * parameters + numbers(&layout.statistics));
        let number: u64 = match options.precision {
            Precision::Bf16 => 2,
            Precision::Tf32 | Precision::F32 => 4,
        };
        let image: usize = crew.network.input.iter().product();
        let pixels = crew.data.train.pixels.len() + crew.data.test.pixels.len();
        let batch = crew.sampler.batch_size() as u64;
        let inputs = workers as u64 * batch * image as u64 * number;
        // What is kept for the way back, a copy of the weights in half precision, and the slopes
        // that are under way at once.
        let (made, largest) = (
            crew.network.activations(),
            crew.network.largest_activation(),
        );
        let kept = batch * number * (made + 3 * largest) as u64;
        let weights = if number == 2 { 2 * parameters } else { 0 } + 4 * parameters;
        let gradient = (LOSS * (kept + weights) as f64) as u64 + STREAM;
        // Scoring keeps nothing: a few outputs of the largest layers.
        let scored = (crew.data.test.len().min(SCORED_AT_ONCE)) as u64;
        Self {
            vectors,
            data: pixels as u64 + inputs,
            gradients: streams as u64 * gradient,
            scoring: scored * number * 4 * largest as u64,
            workers,
            streams,
        }
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
            ("scoring", self.scoring),
        ]
    }

    /// What to do where there is only so much memory: fewer streams, else fewer workers.
    pub fn remedy(self, crew: &Crew, options: CudaOptions, memory: u64) -> String {
        // A prediction may be wrong by a tenth and more.
        let room = memory / 10 * 9;
        let fits = |workers: usize, streams: usize| {
            Self::with(crew, options, workers, streams).total() <= room
        };
        let gibibytes = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let needed = format!(
            "{} workers in {} streams need some {:.1} GiB of the GPU's memory, and {:.1} are free",
            self.workers,
            self.streams,
            gibibytes(self.total()),
            gibibytes(memory)
        );
        let streams = (1..self.streams).rev().find(|&n| fits(self.workers, n));
        if let Some(streams) = streams {
            return format!("{needed}: --streams {streams} fits");
        }
        let workers = (1..self.workers).rev().find(|&n| fits(n, 1));
        match workers {
            Some(workers) => {
                format!(
                    "{needed}: {workers} workers fit, with --streams 1; or take a smaller batch"
                )
            }
            None => format!("{needed}: take a smaller batch or model"),
        }
    }
}
