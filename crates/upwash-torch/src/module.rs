//! A tch module of one's own.

use crate::model::{BoundModel, TorchModel, numbers};
use std::sync::Mutex;
use tch::nn::{ModuleT, Path, VarStore};
use tch::{Device, Kind, Tensor};
use upwash::model::Layout;
use upwash_topology::random::Stream;

/// A user's own tch module: anything that implements tch's [`ModuleT`]. What its variable store
/// trains is trained; what a pass in training mode changes (the running statistics of batch
/// normalisation) is kept for each worker; all else stays as it was made.
///
/// Starting weights are the module's own, from libtorch's generator with a seed for each worker. (Of
/// tch's layers, batch normalisation starts its weights anywhere between 0 and 1, where PyTorch's are
/// 1.) Layers that draw random numbers, as dropout does, work, but are not the same from run to run.
///
/// `examples/own_torch_model.rs` is a complete program.
pub struct TorchModule {
    make: Box<Make>,
    layout: Layout,
    start_statistics: Vec<f32>,
}

type Make = dyn Fn(&Path<'_>) -> Box<dyn ModuleT> + Send + Sync;

/// libtorch's generator is the process's: whoever seeds it must be alone until everything is drawn.
static SEEDING: Mutex<()> = Mutex::new(());

impl TorchModule {
    /// A module that `make` makes, for images of this shape (channels, height, width).
    pub fn new<M: ModuleT + 'static>(shape: [usize; 3], make: impl Fn(&Path<'_>) -> M + Send + Sync + 'static) -> Self {
        let make: Box<Make> = Box::new(move |path| Box::new(make(path)));
        let (store, module) = made(&make, 0);
        let before = variables(&store);
        let values: Vec<Vec<f32>> = before.iter().map(|(_, tensor)| numbers(tensor)).collect();
        let [channels, height, width] = shape.map(|side| side as i64);
        let noise = Tensor::rand([2, channels, height, width], (Kind::Float, Device::Cpu));
        let _ = tch::no_grad(|| module.forward_t(&noise, true));
        let (mut parameters, mut statistics, mut start_statistics) = (vec![], vec![], vec![]);
        for ((name, tensor), values) in before.into_iter().zip(values) {
            let shape = tensor.size().iter().map(|&side| side as usize).collect();
            if tensor.requires_grad() {
                parameters.push((name, shape));
            } else if numbers(&tensor) != values {
                statistics.push((name, shape));
                start_statistics.extend(values);
            }
        }
        Self { make, layout: Layout::new(parameters, statistics), start_statistics }
    }
}

/// A new module and its variables, on the CPU.
fn made(make: &Make, seed: i64) -> (VarStore, Box<dyn ModuleT>) {
    let _alone = SEEDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    tch::manual_seed(seed);
    let store = VarStore::new(Device::Cpu);
    let module = make(&store.root());
    (store, module)
}

/// By name, in the order of names.
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
        let (store, _) = made(&self.make, seed);
        let trained = variables(&store).into_iter().filter(|(_, tensor)| tensor.requires_grad());
        trained.flat_map(|(_, tensor)| numbers(&tensor)).collect()
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.start_statistics.clone()
    }

    fn bind(&self, parameters: &[Tensor], statistics: &[Tensor]) -> Box<dyn BoundModel> {
        let (mut store, module) = made(&self.make, 0);
        if let Some(first) = parameters.first() {
            store.set_device(first.device());
        }
        let named = store.variables();
        let place = |slots: &[upwash::model::Slot], tensors: &[Tensor]| -> Vec<Tensor> {
            let slots = slots.iter().zip(tensors);
            slots
                .map(|(slot, tensor)| {
                    let mut variable = named[&slot.name].shallow_clone();
                    variable.set_data(tensor);
                    variable
                })
                .collect()
        };
        Box::new(Own {
            leaves: place(&self.layout.parameters, parameters),
            statistics: place(&self.layout.statistics, statistics),
            module,
            _store: store,
        })
    }
}

struct Own {
    module: Box<dyn ModuleT>,
    leaves: Vec<Tensor>,
    statistics: Vec<Tensor>,
    _store: VarStore,
}

impl BoundModel for Own {
    fn leaves(&self) -> &[Tensor] {
        &self.leaves
    }

    fn train(&self, images: Tensor) -> Tensor {
        self.module.forward_t(&images, true)
    }

    fn score(&self, images: Tensor) -> Tensor {
        self.module.forward_t(&images, false)
    }

    /// A pass moves statistics from s to (1 - m) s + m b, with b the batch's and m the layer's own
    /// affair. A first pass from 0 gives p = m b, a second one from there q = (2 - m) p: so
    /// b = p^2 / (2 p - q).
    fn batch_statistics(&self, images: Tensor) -> Vec<Tensor> {
        let set = |all: &[Tensor]| {
            for (statistic, value) in self.statistics.iter().zip(all) {
                statistic.data().copy_(value);
            }
        };
        let now = || -> Vec<Tensor> { self.statistics.iter().map(Tensor::copy).collect() };
        let kept = now();
        set(&kept.iter().map(Tensor::zeros_like).collect::<Vec<_>>());
        let _ = self.module.forward_t(&images, true);
        let first = now();
        let _ = self.module.forward_t(&images, true);
        let second = now();
        set(&kept);
        let batch = |(p, q): (&Tensor, &Tensor)| {
            let b: Tensor = p * p / (p * 2.0 - q);
            b.where_self(&p.ne(0.0), &p.zeros_like())
        };
        first.iter().zip(&second).map(batch).collect()
    }
}
