//! User-defined tch modules.

use crate::model::{BoundModel, TorchModel, tensor_values};
use std::sync::Mutex;
use tch::nn::{ModuleT, Path, VarStore};
use tch::{Device, Kind, Tensor};
use upwash::model::Layout;
use upwash_topology::random::Stream;

/// A user-defined tch module: anything that implements tch's [`ModuleT`]. The trainable variables of its variable
/// store are the parameters. Variables that a pass in training mode changes (the running statistics of batch
/// normalization) are kept for each worker. All other variables keep their initial values.
///
/// The module initializes its weights with libtorch's generator, seeded for each worker. (tch's batch normalization
/// draws its initial weights from between 0 and 1, whereas PyTorch sets them to 1.) Layers that draw random numbers,
/// such as dropout, work, but make runs irreproducible.
///
/// `examples/own_torch_model.rs` is a complete program.
pub struct TorchModule {
    make: Box<Make>,
    layout: Layout,
    start_statistics: Vec<f32>,
}

type Make = dyn Fn(&Path<'_>) -> Box<dyn ModuleT> + Send + Sync;

/// libtorch has one generator per process. Holding this lock keeps other modules from drawing between seeding and
/// initialization.
static SEEDING: Mutex<()> = Mutex::new(());

impl TorchModule {
    /// Wraps the modules that `make` creates, for images of this shape (channels, height, width).
    pub fn new<M: ModuleT + 'static>(shape: [usize; 3], make: impl Fn(&Path<'_>) -> M + Send + Sync + 'static) -> Self {
        let make: Box<Make> = Box::new(move |path| Box::new(make(path)));
        let (store, module) = create(&make, 0);
        let before = variables(&store);
        let values: Vec<Vec<f32>> = before.iter().map(|(_, tensor)| tensor_values(tensor)).collect();
        let [channels, height, width] = shape.map(|side| side as i64);
        let noise = Tensor::rand([2, channels, height, width], (Kind::Float, Device::Cpu));
        let _ = tch::no_grad(|| module.forward_t(&noise, true));
        let (mut parameters, mut statistics, mut start_statistics) = (vec![], vec![], vec![]);
        for ((name, tensor), values) in before.into_iter().zip(values) {
            let shape = tensor.size().iter().map(|&side| side as usize).collect();
            if tensor.requires_grad() {
                parameters.push((name, shape));
            } else if tensor_values(&tensor) != values {
                statistics.push((name, shape));
                start_statistics.extend(values);
            }
        }
        Self { make, layout: Layout::new(parameters, statistics), start_statistics }
    }
}

/// Creates a module and its variables on the CPU.
fn create(make: &Make, seed: i64) -> (VarStore, Box<dyn ModuleT>) {
    let _lock = SEEDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    tch::manual_seed(seed);
    let store = VarStore::new(Device::Cpu);
    let module = make(&store.root());
    (store, module)
}

/// The variables of a store, sorted by name.
fn variables(store: &VarStore) -> Vec<(String, Tensor)> {
    let mut all: Vec<(String, Tensor)> = store.variables().into_iter().collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

impl TorchModel for TorchModule {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        let mut stream = Stream::new(seed, "starting weights", &[worker]);
        let seed = stream.below(1 << 62) as i64;
        let (store, _) = create(&self.make, seed);
        let trainable = variables(&store).into_iter().filter(|(_, tensor)| tensor.requires_grad());
        trainable.flat_map(|(_, tensor)| tensor_values(&tensor)).collect()
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.start_statistics.clone()
    }

    fn bind(&self, parameters: &[Tensor], statistics: &[Tensor]) -> Box<dyn BoundModel> {
        let (mut store, module) = create(&self.make, 0);
        if let Some(first) = parameters.first() {
            store.set_device(first.device());
        }
        let named = store.variables();
        let bind = |slots: &[upwash::model::Slot], tensors: &[Tensor]| -> Vec<Tensor> {
            let slots = slots.iter().zip(tensors);
            slots
                .map(|(slot, tensor)| {
                    let mut variable = named[&slot.name].shallow_clone();
                    variable.set_data(tensor);
                    variable
                })
                .collect()
        };
        Box::new(BoundModule {
            leaves: bind(&self.layout.parameters, parameters),
            statistics: bind(&self.layout.statistics, statistics),
            module,
            _store: store,
        })
    }
}

struct BoundModule {
    module: Box<dyn ModuleT>,
    leaves: Vec<Tensor>,
    statistics: Vec<Tensor>,
    _store: VarStore,
}

impl BoundModel for BoundModule {
    fn leaves(&self) -> &[Tensor] {
        &self.leaves
    }

    fn train(&self, images: Tensor) -> Tensor {
        self.module.forward_t(&images, true)
    }

    fn score(&self, images: Tensor) -> Tensor {
        self.module.forward_t(&images, false)
    }

    /// A pass moves statistics from s to (1 - m) s + m b, where b are the batch's statistics and m is the layer's
    /// momentum, which is unknown here. A first pass from 0 gives p = m b; a second pass from there gives
    /// q = (2 - m) p. Hence b = p^2 / (2 p - q).
    fn batch_statistics(&self, images: Tensor) -> Vec<Tensor> {
        let set = |all: &[Tensor]| {
            for (statistic, value) in self.statistics.iter().zip(all) {
                statistic.data().copy_(value);
            }
        };
        let current = || -> Vec<Tensor> { self.statistics.iter().map(Tensor::copy).collect() };
        let initial = current();
        set(&initial.iter().map(Tensor::zeros_like).collect::<Vec<_>>());
        let _ = self.module.forward_t(&images, true);
        let first = current();
        let _ = self.module.forward_t(&images, true);
        let second = current();
        set(&initial);
        let batch = |(p, q): (&Tensor, &Tensor)| {
            let b: Tensor = p * p / (p * 2.0 - q);
            b.where_self(&p.ne(0.0), &p.zeros_like())
        };
        first.iter().zip(&second).map(batch).collect()
    }
}
