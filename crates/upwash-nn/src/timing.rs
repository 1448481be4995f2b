//! How long the products of a network take, layer by layer.

use crate::network::Network;
use crate::pass::{Operation, Pass, Tensor};
use crate::{CompiledNetwork, Real};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What the passes of a layer of products cost, for an image.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The multiplications of the forward pass.
    pub products: usize,
    /// How often the backward pass does as many: 2, or 1 if nobody needs the gradient of the input.
    pub backward_passes: usize,
    /// The elements of the weights.
    pub weights: usize,
    /// The elements of the input.
    pub inputs: usize,
    /// The elements of the output.
    pub outputs: usize,
}

/// The best times of a layer, which it writes down while the network computes.
#[derive(Debug)]
pub struct LayerTime {
    /// What it computes.
    pub name: String,
    /// What its passes cost.
    pub cost: Cost,
    forward: AtomicU64,
    backward: AtomicU64,
}

impl LayerTime {
    /// The nanoseconds of the fastest forward pass, for an image.
    pub fn forward(&self) -> f64 {
        f64::from_bits(self.forward.load(Ordering::Relaxed))
    }

    /// The nanoseconds of the fastest backward pass, for an image.
    pub fn backward(&self) -> f64 {
        f64::from_bits(self.backward.load(Ordering::Relaxed))
    }
}

/// A layer of products, and whether it is timed.
#[derive(Debug)]
struct Timed<R> {
    operation: Box<dyn Operation<R>>,
    time: Arc<LayerTime>,
}

/// Runs part of a pass and keeps its time if it is the best. Positive numbers are ordered as their bits are.
fn time<R: Real>(pass: &mut Pass<'_, R>, best: &AtomicU64, run: impl FnOnce(&mut Pass<'_, R>)) {
    let began = Instant::now();
    run(pass);
    let nanoseconds = began.elapsed().as_nanos() as f64 / pass.images() as f64;
    best.fetch_min(nanoseconds.to_bits(), Ordering::Relaxed);
}

impl<R: Real> Operation<R> for Timed<R> {
    fn gradients(&self) -> Vec<Tensor> {
        self.operation.gradients()
    }

    fn begins_group(&self) -> bool {
        self.operation.begins_group()
    }

    fn prepare(&self, pass: &mut Pass<'_, R>) {
        self.operation.prepare(pass);
    }

    fn forward(&self, pass: &mut Pass<'_, R>) {
        time(pass, &self.time.forward, |pass| self.operation.forward(pass));
    }

    fn prepare_backward(&self, pass: &mut Pass<'_, R>) {
        self.operation.prepare_backward(pass);
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        time(pass, &self.time.backward, |pass| self.operation.backward(pass));
    }

    fn finish_backward(&self, pass: &mut Pass<'_, R>) {
        self.operation.finish_backward(pass);
    }
}

impl<R: Real> Network<R> {
    /// Times the layers of products from now on.
    fn time_layers(&mut self) -> Vec<Arc<LayerTime>> {
        let mut times = Vec::new();
        let wrap = |operation: Box<dyn Operation<R>>| -> Box<dyn Operation<R>> {
            let Some((name, cost)) = operation.cost() else {
                return operation;
            };
            let never = || AtomicU64::new(f64::INFINITY.to_bits());
            let time = Arc::new(LayerTime { name, cost, forward: never(), backward: never() });
            times.push(time.clone());
            Box::new(Timed { operation, time })
        };
        self.map_operations(wrap);
        times
    }
}

impl CompiledNetwork {
    /// Times the convolutions and linear layers of this network from now on. For benchmarks.
    pub fn time_layers(&mut self) -> Vec<Arc<LayerTime>> {
        self.0.time_layers()
    }
}
