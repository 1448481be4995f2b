//! A model whose gradients have the same bits on every machine.

use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::Score;
use upwash::model::{Layout, Slot};
use upwash_topology::random::Stream;

/// Every image is a point b with loss sum_k a_k (x_k - b_k)^2 / 2. It needs only additions and multiplications in a
/// fixed order. Workers with different images have different optima.
pub struct Quadratic {
    layout: Layout,
    curvature: Vec<f32>,
}

impl Quadratic {
    /// A model for images of `size` pixels.
    pub fn new(size: usize) -> Self {
        let slot = Slot { name: "x".into(), shape: vec![size], offset: 0 };
        Self {
            layout: Layout { parameters: vec![slot], statistics: vec![] },
            curvature: (0..size).map(|k| 0.25 + (k % 4) as f32 * 0.25).collect(),
        }
    }

    fn loss(&self, parameters: &[f32], batch: &Batch) -> Score {
        let size = self.curvature.len();
        let mut sum = 0.0f64;
        for image in batch.pixels.chunks_exact(size) {
            for ((x, b), a) in parameters.iter().zip(image).zip(&self.curvature) {
                let distance = x - b;
                sum += f64::from(a * distance * distance) / 2.0;
            }
        }
        Score { loss: sum / batch.labels.len() as f64, correct: 0, examples: batch.labels.len(), clipped: 0 }
    }
}

impl Model for Quadratic {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        let mut stream = Stream::new(seed, "quadratic start", &[worker]);
        let mut number = || stream.below(2048) as f32 / 1024.0 - 1.0;
        self.curvature.iter().map(|_| number()).collect()
    }

    fn start_statistics(&self) -> Vec<f32> {
        vec![]
    }

    fn gradient(&self, parameters: &[f32], _: &mut [f32], batch: &Batch, gradient: &mut [f32]) -> Score {
        gradient.fill(0.0);
        for image in batch.pixels.chunks_exact(self.curvature.len()) {
            let pairs = parameters.iter().zip(image).zip(&self.curvature);
            for (g, ((x, b), a)) in gradient.iter_mut().zip(pairs) {
                *g += a * (x - b);
            }
        }
        let count = batch.labels.len() as f32;
        gradient.iter_mut().for_each(|g| *g /= count);
        self.loss(parameters, batch)
    }

    fn score(&self, parameters: &[f32], _: &[f32], batch: &Batch) -> Score {
        self.loss(parameters, batch)
    }

    fn batch_statistics(&self, _: &[f32], _: &Batch) -> Vec<f32> {
        vec![]
    }
}
