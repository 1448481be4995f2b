//! The interface between engines and networks, and the adapter that runs a network on the CPU.

use crate::shim;
use std::sync::{Arc, Mutex, PoisonError};
use tch::{Device, Kind, Tensor};
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::Score;
use upwash::loss::cross_entropy;
use upwash::model::{Layout, Slot};

/// A network that can be bound to given tensors: one that a description defines
/// ([`TorchNetwork`](crate::TorchNetwork)), or a user-defined module ([`TorchModule`](crate::TorchModule)).
pub trait TorchModel: Send + Sync {
    /// Where each tensor is in the flat vectors of parameters and statistics.
    fn layout(&self) -> &Layout;

    /// Initial parameters of a worker.
    fn start(&self, seed: u64, worker: u64) -> Vec<f32>;

    /// Initial batch-norm statistics.
    fn start_statistics(&self) -> Vec<f32>;

    /// Binds the network to these tensors, in the order of the layout: it reads and updates them in place.
    fn bind(&self, parameters: &[Tensor], statistics: &[Tensor]) -> Box<dyn BoundModel>;
}

/// A network that is bound to its tensors.
pub trait BoundModel: Send {
    /// The parameters, as leaves of the autograd graph.
    fn leaves(&self) -> &[Tensor];

    /// Logits in training mode. Updates the running statistics.
    fn train(&self, images: Tensor) -> Tensor;

    /// Logits in evaluation mode, with the running statistics.
    fn score(&self, images: Tensor) -> Tensor;

    /// Batch-norm statistics of this batch.
    fn batch_statistics(&self, images: Tensor) -> Vec<Tensor>;
}

/// A network on the CPU for a [`CpuEngine`](upwash::engine::CpuEngine): single-threaded functions of flat vectors.
pub struct TorchCpuModel {
    model: Arc<dyn TorchModel>,
    input: [i64; 3],
    /// Bound networks that are not in use. There are at most as many as threads.
    idle: Mutex<Vec<Bound>>,
}

thread_local! {
    /// Makes libtorch single-threaded on the current thread. The libraries below libtorch keep this setting per thread,
    /// and multi-threaded sums round differently.
    static SINGLE_THREADED: () = tch::set_num_threads(1);
}

struct Bound {
    network: Box<dyn BoundModel>,
    parameters: Tensor,
    statistics: Tensor,
    gradient: Tensor,
    targets: Vec<Tensor>,
}

impl TorchCpuModel {
    /// Creates the adapter for images of shape `input` (channels, height, width). Disables libtorch's threads on every
    /// thread that computes with it, because the cores are busy with other workers.
    pub fn new(model: Arc<dyn TorchModel>, input: [usize; 3]) -> Self {
        Self { model, input: input.map(|side| side as i64), idle: Mutex::default() }
    }

    /// Runs `work` with a bound network that has these parameters and statistics.
    fn with_network<T>(&self, parameters: &[f32], statistics: &[f32], work: impl FnOnce(&mut Bound) -> T) -> T {
        SINGLE_THREADED.with(|_| ());
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle().pop();
        let mut bound = found.unwrap_or_else(|| self.bind());
        bound.parameters.copy_(&Tensor::from_slice(parameters));
        bound.statistics.copy_(&Tensor::from_slice(statistics));
        let result = work(&mut bound);
        idle().push(bound);
        result
    }

    fn bind(&self) -> Bound {
        let layout = self.model.layout();
        let flat = |count: usize| Tensor::zeros([count as i64], (Kind::Float, Device::Cpu));
        let parameters = flat(layout.parameter_count());
        let statistics = flat(layout.statistic_count());
        let gradient = flat(layout.parameter_count());
        Bound {
            network: self.model.bind(&views(&parameters, &layout.parameters), &views(&statistics, &layout.statistics)),
            targets: views(&gradient, &layout.parameters),
            parameters,
            statistics,
            gradient,
        }
    }

    fn images(&self, batch: &Batch) -> Tensor {
        let [channels, height, width] = self.input;
        Tensor::from_slice(&batch.pixels).view([-1, channels, height, width])
    }
}

impl Model for TorchCpuModel {
    fn layout(&self) -> &Layout {
        self.model.layout()
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        self.model.start(seed, worker)
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.model.start_statistics()
    }

    fn gradient(&self, parameters: &[f32], statistics: &mut [f32], batch: &Batch, gradient: &mut [f32]) -> Score {
        let initial = statistics.to_vec();
        self.with_network(parameters, &initial, |bound| {
            let logits = bound.network.train(self.images(batch));
            let classes = logits.size()[1] as usize;
            let (score, grad_logits) = cross_entropy(&tensor_values(&logits), &batch.labels, classes);
            let grad_logits = Tensor::from_slice(&grad_logits).view_as(&logits);
            shim::backward(&logits, &grad_logits, bound.network.leaves(), &bound.targets)
                .expect("the backward pass should not fail after its forward pass");
            let length = gradient.len();
            bound.gradient.copy_data(gradient, length);
            let length = statistics.len();
            bound.statistics.copy_data(statistics, length);
            score
        })
    }

    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score {
        self.with_network(parameters, statistics, |bound| {
            let logits = tch::no_grad(|| bound.network.score(self.images(batch)));
            let classes = logits.size()[1] as usize;
            cross_entropy(&tensor_values(&logits), &batch.labels, classes).0
        })
    }

    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32> {
        let start = self.model.start_statistics();
        self.with_network(parameters, &start, |bound| {
            let found = tch::no_grad(|| bound.network.batch_statistics(self.images(batch)));
            found.iter().flat_map(tensor_values).collect()
        })
    }
}

/// The elements of a tensor, in row-major order.
pub(crate) fn tensor_values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
    let mut values = vec![0.0; tensor.numel()];
    let length = values.len();
    tensor.copy_data(&mut values, length);
    values
}

/// Views of the tensors in a flat vector.
fn views(vector: &Tensor, slots: &[Slot]) -> Vec<Tensor> {
    let view = |slot: &Slot| {
        let shape: Vec<i64> = slot.shape.iter().map(|&side| side as i64).collect();
        vector.narrow(0, slot.offset as i64, slot.size() as i64).view(&shape[..])
    };
    slots.iter().map(view).collect()
}
