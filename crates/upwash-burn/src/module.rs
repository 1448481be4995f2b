//! A Burn module of one's own, as the engine wants it: functions of flat vectors.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Distribution, Gradients, Tensor, TensorData};
use std::sync::{Mutex, PoisonError};
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::Score;
use upwash::loss::cross_entropy;
use upwash::model::Layout;
use upwash_topology::random::Stream;

use crate::network::numbers;

/// What a module of one's own must be able to do.
pub trait Classifier: Module {
    /// A row of numbers, one for each class, for every image (images x channels x height x width).
    fn logits(&self, images: Tensor<4>) -> Tensor<2>;
}

/// A user's own Burn module. Everything in it that requires a gradient is trained; what a pass in
/// training mode changes (the running statistics of batch normalisation) is kept for each worker;
/// all else stays as it was made.
///
/// Layers that draw random numbers, as dropout does, work, but Burn's generator is the whole
/// process's: with them, two runs of more than one thread are not alike.
///
/// `examples/own_model.rs` is a complete program.
pub struct BurnModule<M> {
    make: Box<dyn Fn(&Device) -> M + Send + Sync>,
    /// A copy to put numbers into. Modules can be sent to other threads but not shared by them.
    template: Mutex<M>,
    layout: Layout,
    roles: Vec<Role>,
    start_statistics: Vec<f32>,
    shape: [usize; 3],
}

/// What a tensor of the module is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Trained,
    Statistic,
    Constant,
}

/// Burn's seed is the process's: whoever sets it must be alone until everything is drawn.
static SEEDING: Mutex<()> = Mutex::new(());

impl<M: Classifier> BurnModule<M> {
    /// A module that `make` makes, for images of this shape (channels, height, width).
    pub fn new(shape: [usize; 3], make: impl Fn(&Device) -> M + Send + Sync + 'static) -> Self {
        let device = Device::flex().autodiff();
        let module = made(&make, &device, 0);
        let before = Tensors::of(&module);
        // What a pass in training mode changes is a statistic.
        let [channels, height, width] = shape;
        let noise = Tensor::random([2, channels, height, width], Distribution::Default, &device);
        let trial = module.valid().train();
        trial.logits(noise);
        let after = Tensors::of(&trial.valid());
        let role = |(before, after): (&Found, &Found)| match before {
            Found { trained: true, .. } => Role::Trained,
            Found { values, .. } if *values != after.values => Role::Statistic,
            _ => Role::Constant,
        };
        let roles: Vec<Role> = before.0.iter().zip(&after.0).map(role).collect();
        let with = |wanted: Role| {
            let fitting = before.0.iter().zip(&roles);
            fitting.filter_map(move |(found, role)| (*role == wanted).then_some(found))
        };
        let named = |found: &Found| (found.name.clone(), found.shape.clone());
        let layout = Layout::new(with(Role::Trained).map(named), with(Role::Statistic).map(named));
        let start_statistics = with(Role::Statistic).flat_map(|found| found.values.clone()).collect();
        Self { make: Box::new(make), template: Mutex::new(module), layout, roles, start_statistics, shape }
    }

    /// A module of its own with these numbers: clones would share their statistics.
    fn filled(&self, parameters: &[f32], statistics: &[f32], training: bool) -> M {
        let template = self.template.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = template.valid();
        drop(template);
        let mut filler = Filler { roles: self.roles.iter(), parameters, statistics };
        let copy = copy.map(&mut filler);
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
        let found = Tensors::of(&made(&self.make, &Device::flex().autodiff(), seed)).0;
        let trained = found.into_iter().filter(|found| found.trained);
        trained.flat_map(|found| found.values).collect()
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.start_statistics.clone()
    }

    fn gradient(&self, parameters: &[f32], statistics: &mut [f32], batch: &Batch, gradient: &mut [f32]) -> Score {
        let device = Device::flex().autodiff();
        let module = self.filled(parameters, statistics, true);
        let logits = module.logits(self.images(batch, &device));
        let shape = logits.dims();
        let (score, slope) = cross_entropy(&numbers(logits.clone()), &batch.labels, shape[1]);
        // d loss / d parameters = d (logits . slope) / d parameters.
        let slope = Tensor::<2>::from_data(TensorData::new(slope, shape), &device);
        let mut slopes =
            Slopes { gradients: (logits * slope).sum().backward(), roles: self.roles.iter(), rest: gradient };
        module.visit(&mut slopes);
        statistics.copy_from_slice(&self.statistics_of(&module));
        score
    }

    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score {
        let module = self.filled(parameters, statistics, false);
        let logits = module.logits(self.images(batch, &Device::flex()));
        let classes = logits.dims()[1];
        cross_entropy(&numbers(logits), &batch.labels, classes).0
    }

    /// A pass moves statistics from s to (1 - m) s + m b, with b the batch's and m the layer's own
    /// affair. A first pass from 0 gives p = m b, a second one from there q = (2 - m) p: so
    /// b = p^2 / (2 p - q).
    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32> {
        let device = Device::flex().autodiff();
        let pass = |start: &[f32]| {
            let module = self.filled(parameters, start, true);
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

/// A new module, its numbers drawn at once: Burn would draw them when they are first used.
fn made<M: Classifier>(make: &impl Fn(&Device) -> M, device: &Device, seed: u64) -> M {
    let _alone = SEEDING.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(seed);
    let module = make(device);
    Tensors::of(&module);
    module
}

/// A float tensor of a module.
struct Found {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
    trained: bool,
}

/// All float tensors of a module, in its own order.
#[derive(Default)]
struct Tensors(Vec<Found>, Vec<String>);

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
        self.0.push(Found {
            name: self.1.join("."),
            shape: tensor.dims().to_vec(),
            trained: tensor.is_require_grad(),
            values: numbers(tensor),
        });
    }
}

/// Puts the numbers of flat vectors into a module.
struct Filler<'a> {
    roles: std::slice::Iter<'a, Role>,
    parameters: &'a [f32],
    statistics: &'a [f32],
}

impl ModuleMapper for Filler<'_> {
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

/// Takes gradients out of a module, in its own order.
struct Slopes<'a> {
    gradients: Gradients,
    roles: std::slice::Iter<'a, Role>,
    rest: &'a mut [f32],
}

impl ModuleVisitor for Slopes<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.roles.next() != Some(&Role::Trained) {
            return;
        }
        let tensor = param.val();
        let (own, rest) = std::mem::take(&mut self.rest).split_at_mut(tensor.shape().num_elements());
        match tensor.grad(&self.gradients) {
            Some(gradient) => own.copy_from_slice(&numbers(gradient)),
            // A parameter that has no part in the logits.
            None => own.fill(0.0),
        }
        self.rest = rest;
    }
}
