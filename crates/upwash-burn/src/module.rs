//! User-defined Burn modules, as functions of flat vectors.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Distribution, Gradients, Tensor, TensorData};
use std::sync::{Mutex, PoisonError};
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::Score;
use upwash::loss::cross_entropy;
use upwash::model::Layout;
use upwash_topology::random::Stream;

use crate::network::tensor_values;

/// A user-defined module that classifies images.
pub trait Classifier: Module {
    /// Computes the logits (images x classes) of a batch (images x channels x height x width).
    fn logits(&self, images: Tensor<4>) -> Tensor<2>;
}

/// A user-defined Burn module. The tensors that require a gradient are the parameters. Tensors that a pass in training
/// mode changes (the running statistics of batch normalization) are kept for each worker. All other tensors keep their
/// initial values.
///
/// Layers that draw random numbers, such as dropout, work, but Burn has one generator per process: with them, runs on
/// more than one thread are not reproducible.
///
/// `examples/own_module.rs` is a complete program.
pub struct BurnModule<M> {
    make: Box<dyn Fn(&Device) -> M + Send + Sync>,
    /// The module that is copied and filled with parameters. Modules are `Send` but not `Sync`.
    template: Mutex<M>,
    layout: Layout,
    roles: Vec<Role>,
    start_statistics: Vec<f32>,
    shape: [usize; 3],
}

/// The role of a tensor of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Trained,
    Statistic,
    Constant,
}

/// Burn has one generator per process. Holding this lock keeps other modules from drawing between seeding and
/// initialization.
static SEEDING: Mutex<()> = Mutex::new(());

impl<M: Classifier> BurnModule<M> {
    /// Wraps the modules that `make` creates, for images of this shape (channels, height, width).
    pub fn new(shape: [usize; 3], make: impl Fn(&Device) -> M + Send + Sync + 'static) -> Self {
        let device = Device::flex().autodiff();
        let module = create(&make, &device, 0);
        let before = Tensors::of(&module);
        // Tensors that a pass in training mode changes are statistics.
        let [channels, height, width] = shape;
        let noise = Tensor::random([2, channels, height, width], Distribution::Default, &device);
        let trained = module.valid().train();
        trained.logits(noise);
        let after = Tensors::of(&trained.valid());
        let role = |(before, after): (&TensorInfo, &TensorInfo)| match before {
            TensorInfo { trained: true, .. } => Role::Trained,
            TensorInfo { values, .. } if *values != after.values => Role::Statistic,
            _ => Role::Constant,
        };
        let roles: Vec<Role> = before.0.iter().zip(&after.0).map(role).collect();
        let with = |wanted: Role| {
            let tensors = before.0.iter().zip(&roles);
            tensors.filter_map(move |(found, role)| (*role == wanted).then_some(found))
        };
        let named = |found: &TensorInfo| (found.name.clone(), found.shape.clone());
        let layout = Layout::new(with(Role::Trained).map(named), with(Role::Statistic).map(named));
        let start_statistics = with(Role::Statistic).flat_map(|found| found.values.clone()).collect();
        Self { make: Box::new(make), template: Mutex::new(module), layout, roles, start_statistics, shape }
    }

    /// Creates a module with these parameters and statistics. It is not a clone, which would share its statistics.
    fn instantiate(&self, parameters: &[f32], statistics: &[f32], training: bool) -> M {
        let template = self.template.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = template.valid();
        drop(template);
        let mut loader = Loader { roles: self.roles.iter(), parameters, statistics };
        let copy = copy.map(&mut loader);
        if training { copy.train() } else { copy }
    }

    fn images(&self, batch: &Batch, device: &Device) -> Tensor<4> {
        let [channels, height, width] = self.shape;
        let shape = [batch.labels.len(), channels, height, width];
        Tensor::from_data(TensorData::new(batch.pixels.clone(), shape), device)
    }

    /// The statistics of a module after a pass.
    fn statistics_of(&self, module: &M) -> Vec<f32> {
        let found = Tensors::of(&module.valid()).0;
        let statistics = found.into_iter().zip(&self.roles);
        statistics.filter(|(_, role)| **role == Role::Statistic).flat_map(|(found, _)| found.values).collect()
    }
}

impl<M: Classifier> Model for BurnModule<M> {
    fn name(&self) -> String {
        let name = std::any::type_name::<M>();
        name.rsplit("::").next().unwrap_or_default().to_owned()
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        let mut stream = Stream::new(seed, "starting weights", &[worker]);
        let seed = stream.below(usize::MAX) as u64;
        let found = Tensors::of(&create(&self.make, &Device::flex().autodiff(), seed)).0;
        let trained = found.into_iter().filter(|found| found.trained);
        trained.flat_map(|found| found.values).collect()
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.start_statistics.clone()
    }

    fn gradient(&self, parameters: &[f32], statistics: &mut [f32], batch: &Batch, gradient: &mut [f32]) -> Score {
        let device = Device::flex().autodiff();
        let module = self.instantiate(parameters, statistics, true);
        let logits = module.logits(self.images(batch, &device));
        let shape = logits.dims();
        let (score, grad_logits) = cross_entropy(&tensor_values(logits.clone()), &batch.labels, shape[1]);
        // d loss / d parameters = d (logits . grad_logits) / d parameters.
        let grad_logits = Tensor::<2>::from_data(TensorData::new(grad_logits, shape), &device);
        let mut collector = GradientCollector {
            gradients: (logits * grad_logits).sum().backward(),
            roles: self.roles.iter(),
            rest: gradient,
        };
        module.visit(&mut collector);
        statistics.copy_from_slice(&self.statistics_of(&module));
        score
    }

    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score {
        let module = self.instantiate(parameters, statistics, false);
        let logits = module.logits(self.images(batch, &Device::flex()));
        let classes = logits.dims()[1];
        cross_entropy(&tensor_values(logits), &batch.labels, classes).0
    }

    /// A pass moves statistics from s to (1 - m) s + m b, where b are the batch's statistics and m is the layer's
    /// momentum, which is unknown here. A first pass from 0 gives p = m b; a second pass from there gives
    /// q = (2 - m) p. Hence b = p^2 / (2 p - q).
    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32> {
        let device = Device::flex().autodiff();
        let pass = |start: &[f32]| {
            let module = self.instantiate(parameters, start, true);
            module.logits(self.images(batch, &device));
            self.statistics_of(&module)
        };
        let first = pass(&vec![0.0; self.layout.statistic_count()]);
        let second = pass(&first);
        let batch = |(&p, &q): (&f32, &f32)| {
            let (p, q) = (f64::from(p), f64::from(q));
            if p == 0.0 { 0.0 } else { (p * p / (2.0 * p - q)) as f32 }
        };
        first.iter().zip(&second).map(batch).collect()
    }
}

/// Creates a module and initializes its tensors at once: Burn would initialize them on first use.
fn create<M: Classifier>(make: &impl Fn(&Device) -> M, device: &Device, seed: u64) -> M {
    let _lock = SEEDING.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(seed);
    let module = make(device);
    Tensors::of(&module);
    module
}

/// A float tensor of a module.
struct TensorInfo {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
    trained: bool,
}

/// Collects all float tensors of a module in its order, along with the path of the current submodule.
#[derive(Default)]
struct Tensors(Vec<TensorInfo>, Vec<String>);

impl Tensors {
    fn of(module: &impl Module) -> Self {
        let mut tensors = Self::default();
        module.visit(&mut tensors);
        tensors
    }
}

impl ModuleVisitor for Tensors {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.1.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.1.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        self.0.push(TensorInfo {
            name: self.1.join("."),
            shape: tensor.dims().to_vec(),
            trained: tensor.is_require_grad(),
            values: tensor_values(tensor),
        });
    }
}

/// Loads flat vectors into a module.
struct Loader<'a> {
    roles: std::slice::Iter<'a, Role>,
    parameters: &'a [f32],
    statistics: &'a [f32],
}

impl ModuleMapper for Loader<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let source = match self.roles.next() {
            Some(Role::Trained) => &mut self.parameters,
            Some(Role::Statistic) => &mut self.statistics,
            _ => return param,
        };
        param.map(|tensor| {
            let shape = tensor.dims();
            let (own, rest) = source.split_at(shape.iter().product());
            *source = rest;
            Tensor::from_data(TensorData::new(own.to_vec(), shape), &tensor.device())
        })
    }
}

/// Copies the gradients of a module into a flat vector, in the module's order.
struct GradientCollector<'a> {
    gradients: Gradients,
    roles: std::slice::Iter<'a, Role>,
    rest: &'a mut [f32],
}

impl ModuleVisitor for GradientCollector<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.roles.next() != Some(&Role::Trained) {
            return;
        }
        let tensor = param.val();
        let (own, rest) = std::mem::take(&mut self.rest).split_at_mut(tensor.shape().num_elements());
        match tensor.grad(&self.gradients) {
            Some(gradient) => own.copy_from_slice(&tensor_values(gradient)),
            // The logits do not depend on this parameter.
            None => own.fill(0.0),
        }
        self.rest = rest;
    }
}
