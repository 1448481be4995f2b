//! What the engines need of a network, and all of it on the CPU.

use crate::shim;
use std::sync::{Arc, Mutex, PoisonError};
use tch::{Device, Kind, Tensor};
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::Score;
use upwash::loss::cross_entropy;
use upwash::model::{Layout, Slot};

/// A network whose tensors can be put anywhere: a described one
/// ([`TorchNetwork`](crate::TorchNetwork)) or a module of one's own
/// ([`TorchModule`](crate::TorchModule)).
pub trait TorchModel: Send + Sync {
    /// Which tensor is where in its flat vectors.
    fn layout(&self) -> &Layout;

    /// Starting parameters of a worker.
    fn start(&self, seed: u64, worker: u64) -> Vec<f32>;

    /// Starting statistics.
    fn start_statistics(&self) -> Vec<f32>;

    /// A network that uses these tensors, in the order of the layout: they are its memory.
    fn bind(&self, parameters: &[Tensor], statistics: &[Tensor]) -> Box<dyn BoundModel>;
}

/// A network in its place.
pub trait BoundModel: Send {
    /// Its parameters, for gradients.
    fn leaves(&self) -> &[Tensor];

    /// Logits in training mode: statistics move.
    fn train(&self, images: Tensor) -> Tensor;

    /// Logits with the statistics as they are.
    fn score(&self, images: Tensor) -> Tensor;

    /// The batch's own statistics.
    fn batch_statistics(&self, images: Tensor) -> Vec<Tensor>;
}

/// A network on the CPU: functions of flat vectors, one thread each, for a
/// [`CpuEngine`](upwash::engine::CpuEngine).
pub struct TorchCpuModel {
    model: Arc<dyn TorchModel>,
    input: [i64; 3],
    /// Networks that are not in use now; as many as there are threads.
    free: Mutex<Vec<Bound>>,
}

thread_local! {
    /// Number of threads is each thread's own context for the libraries below libtorch, and sums in
    /// several threads have other bits.
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
    /// For images of this shape. Threads inside libtorch are switched off on every thread that
    /// computes with it: the cores are busy with other workers.
    pub fn new(model: Arc<dyn TorchModel>, input: [usize; 3]) -> Self {
        Self { model, input: input.map(|side| side as i64), free: Mutex::default() }
    }

    /// Does something with a network that has these numbers.
    fn with<T>(&self, parameters: &[f32], statistics: &[f32], work: impl FnOnce(&mut Bound) -> T) -> T {
        SINGLE_THREADED.with(|_| ());
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free().pop();
        let mut bound = found.unwrap_or_else(|| self.bind());
        bound.parameters.copy_(&Tensor::from_slice(parameters));
        bound.statistics.copy_(&Tensor::from_slice(statistics));
        let result = work(&mut bound);
        free().push(bound);
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
        let held = statistics.to_vec();
        self.with(parameters, &held, |bound| {
            let logits = bound.network.train(self.images(batch));
            let classes = logits.size()[1] as usize;
            let (score, slope) = cross_entropy(&numbers(&logits), &batch.labels, classes);
            let slope = Tensor::from_slice(&slope).view_as(&logits);
            shim::backward(&logits, &slope, bound.network.leaves(), &bound.targets)
                .expect("a gradient of what was just computed");
            let length = gradient.len();
            bound.gradient.copy_data(gradient, length);
            let length = statistics.len();
            bound.statistics.copy_data(statistics, length);
            score
        })
    }

    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score {
        self.with(parameters, statistics, |bound| {
            let logits = tch::no_grad(|| bound.network.score(self.images(batch)));
            let classes = logits.size()[1] as usize;
            cross_entropy(&numbers(&logits), &batch.labels, classes).0
        })
    }

    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32> {
        let start = self.model.start_statistics();
        self.with(parameters, &start, |bound| {
            let found = tch::no_grad(|| bound.network.batch_statistics(self.images(batch)));
            found.iter().flat_map(numbers).collect()
        })
    }
}

/// A tensor's numbers, row by row.
pub(crate) fn numbers(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
    let mut numbers = vec![0.0; tensor.numel()];
    let length = numbers.len();
    tensor.copy_data(&mut numbers, length);
    numbers
}

/// The tensors of a flat vector.
fn views(vector: &Tensor, slots: &[Slot]) -> Vec<Tensor> {
    let view = |slot: &Slot| {
        let shape: Vec<i64> = slot.shape.iter().map(|&side| side as i64).collect();
        vector.narrow(0, slot.offset as i64, slot.size() as i64).view(&shape[..])
    };
    slots.iter().map(view).collect()
}
