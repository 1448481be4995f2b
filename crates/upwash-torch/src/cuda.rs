//! All workers of a process on one GPU.
//!
//! Models, gradients and velocities are each one buffer with a row for every worker; the tensors of a
//! worker's network are views into its row. A round is: everyone's batch is put together by one
//! kernel; every worker's forward and backward pass runs on a stream; all that is captured once as a
//! CUDA graph and replayed. Everyone's loss is read as soon as the forward passes have it; while the
//! backward passes still run, the plans are made and what follows is launched: one kernel that takes
//! everyone's step and mixes, in one pass over memory, and the next round.
#![allow(unsafe_code)]

mod buffers;
mod engine;
mod exchange;
mod exchange_tables;
mod loss_readback;
mod scoring;
mod step;

use self::buffers::{ImagesOnDevice, Inputs, Rows, Uploads, WorkerBatch};
use self::loss_readback::LossReadback;
use crate::memory_estimate::MemoryEstimate;
use crate::model::{BoundModel, TorchModel};
use crate::shim;
use crate::shim::{Cuda, Graph, Kernels, Memory, Streams, TorchError, copy};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Once};
use tch::{Device, Kind, Tensor};
use upwash::algorithm::InitialValue;
use upwash::data::{Dataset, Sampler};
use upwash::engine::{EngineSpec, StateRows};
use upwash::engine::{Score, Split};
use upwash::model::{Layout, Slot};
use upwash::optimizer::Sgd;

/// How numbers are multiplied. Parameters and mixing are always in single precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Products of half the length (bf16), by autocast.
    #[default]
    Bf16,
    /// Single precision whose products have ten bits.
    Tf32,
    /// Single precision.
    F32,
}

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which one.
    pub device: usize,
    /// How numbers are multiplied.
    pub precision: Precision,
    /// How many workers are computed side by side; all of them (at most 32) if not given. Fewer need
    /// less memory.
    pub streams: Option<usize>,
    /// Do not capture a graph: every operation is launched anew in every round.
    pub eager: bool,
}

/// Images that a model is scored on at a time.
pub(crate) const SCORED_AT_ONCE: usize = 2000;
/// Rounds before a capture: libraries prepare themselves in the first ones.
const WARM_UP: usize = 3;
const KERNELS: [&str; 5] = ["assemble", "cross_entropy", "take_steps", "step_and_mix", "exchange"];
const ASSEMBLE: usize = 0;
const CROSS_ENTROPY: usize = 1;
const TAKE_STEPS: usize = 2;
const STEP_AND_MIX: usize = 3;
const EXCHANGE: usize = 4;
/// Warps in a block of a mixing kernel, which takes as many rows at a time.
const WARPS: u32 = 8;

/// The engine.
pub struct CudaEngine {
    layout: Layout,
    data: Arc<Dataset>,
    sampler: Sampler,
    sgd: Sgd,
    options: CudaOptions,
    device: Device,
    kernels: Kernels,
    streams: Rc<Streams>,
    /// A row for every worker in each of these.
    models: Rows,
    /// Gradients, and in their place steps once they are taken.
    gradients: Rows,
    velocities: Option<Rows>,
    statistics: Rows,
    /// The algorithm's vectors, and their names.
    state_vectors: Vec<Rows>,
    state_names: Vec<String>,
    /// One more model, for those that are no worker's.
    spare: (Rows, Rows),
    /// Everyone's network in its row, and the spare one.
    networks: Vec<Box<dyn BoundModel>>,
    spare_network: Box<dyn BoundModel>,
    train: ImagesOnDevice,
    test: ImagesOnDevice,
    inputs: Inputs,
    /// Everyone's loss, and how many of its images were right.
    losses: LossReadback,
    uploads: Uploads,
    /// Those who have data, and everyone's pass as it was recorded.
    trained: Vec<usize>,
    graph: Option<Graph>,
    /// The learning rates of the gradients that have not been made steps yet.
    waiting: Vec<Option<f64>>,
    /// Whether steps are in flight between rounds.
    keeps_updates: bool,
    /// Why there is no graph, where there should be one.
    notice: Option<String>,
    /// For every number of a row, where the host has it; made when it is needed.
    host_places: Option<Tensor>,
}

impl CudaEngine {
    /// All workers of a spec. Everything that a run needs is allocated and tried here, so that what does
    /// not fit is known before the first round.
    pub fn new(spec: &EngineSpec, model: &dyn TorchModel, options: CudaOptions) -> Result<Self, TorchError> {
        let found = Cuda::here();
        match found {
            Cuda::Devices(count) if options.device < count => {}
            Cuda::Devices(count) => {
                return Err(TorchError(format!(
                    "there is no GPU cuda:{}: this machine has {count}, counted from cuda:0",
                    options.device
                )));
            }
            Cuda::NotBuilt => {
                return Err(TorchError(
                    "this program was built without CUDA: build it beside a libtorch that has it \
                     (scripts/install-torch.sh), or use --device cpu"
                        .into(),
                ));
            }
            Cuda::NoDevice => {
                return Err(TorchError(
                    "there is no NVIDIA GPU here, or no driver for it (nvidia-smi shows both): use \
                     --device cpu"
                        .into(),
                ));
            }
        }
        let free = attempt(|| {
            // The device must be in use before it can be asked.
            drop(Tensor::zeros([1], (Kind::Float, Device::Cuda(options.device))));
            Ok(Memory::of(options.device)?.free as u64)
        })?;
        Self::make(spec, model, options).map_err(|error| {
            if !error.lacks_memory() {
                return error;
            }
            TorchError(match MemoryEstimate::measured(spec, model, options) {
                Ok(needs) => needs.remedy(free),
                Err(error) if error.lacks_memory() => format!(
                    "not even one worker fits into the GPU's memory ({:.1} GiB are free): take a smaller \
                     batch or model",
                    free as f64 / (1u64 << 30) as f64
                ),
                Err(error) => error.0,
            })
        })
    }

    /// The same, without an explanation of what does not fit.
    pub(crate) fn make(spec: &EngineSpec, model: &dyn TorchModel, options: CudaOptions) -> Result<Self, TorchError> {
        let workers = spec.starts.len();
        let streams = options.streams.unwrap_or(workers).clamp(1, workers.min(32));
        let made = attempt(|| {
            // Everything is made on the stream that uses it: others would not wait for it.
            let streams = Rc::new(Streams::new(options.device, streams)?);
            let mut engine = streams.on_main(|| Self::allocate(spec, model, options, streams.clone()))??;
            engine.try_out()?;
            Ok(engine)
        });
        if made.is_err() {
            // What was taken before it failed is free again.
            let _ = shim::release_memory();
        }
        made
    }

    /// Why rounds are not replayed, where they should be and cannot.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    fn allocate(
        spec: &EngineSpec,
        model: &dyn TorchModel,
        options: CudaOptions,
        streams: Rc<Streams>,
    ) -> Result<Self, TorchError> {
        shim::precision(match options.precision {
            Precision::F32 => 0,
            Precision::Tf32 => 1,
            Precision::Bf16 => 2,
        })?;
        shim::prepare_norm(options.device)?;
        let (workers, layout) = (spec.starts.len(), model.layout().clone());
        let sgd = sgd_of(spec)?;
        let device = Device::Cuda(options.device);
        let sampler = spec.sampler.clone();
        let data = Arc::clone(&spec.data);
        let rows = |slots: &[Slot]| Rows::new(workers, slots, device);
        let models = rows(&layout.parameters);
        let statistics = rows(&layout.statistics);
        for (row, &(seed, worker)) in spec.starts.iter().enumerate() {
            models.upload(row, &model.start(seed, worker));
            statistics.upload(row, &model.start_statistics());
        }
        let state_rows = |vector: &StateRows| {
            let rows = rows(&layout.parameters);
            for (row, start) in vector.starts.iter().enumerate() {
                if *start == InitialValue::Model {
                    let row = row as i64;
                    copy(&rows.buffer.get(row), &models.buffer.get(row))?;
                }
            }
            Ok(rows)
        };
        let state_vectors = spec.state_vectors.iter().map(state_rows);
        let state_vectors = state_vectors.collect::<Result<Vec<Rows>, TorchError>>()?;
        let bind =
            |models: &Rows, statistics: &Rows, row: usize| model.bind(&models.views(row), &statistics.views(row));
        let networks = (0..workers).map(|worker| bind(&models, &statistics, worker)).collect();
        let spare = (Rows::new(1, &layout.parameters, device), Rows::new(1, &layout.statistics, device));
        let spare_network = bind(&spare.0, &spare.1, 0);
        let inputs = Inputs::new(&data, workers, sampler.batch_size(), options.precision, device)?;
        Ok(Self {
            gradients: rows(&layout.parameters),
            velocities: (sgd.momentum != 0.0).then(|| rows(&layout.parameters)),
            losses: LossReadback::new(workers, device)?,
            train: ImagesOnDevice::new(&data.train, device),
            test: ImagesOnDevice::new(&data.test, device),
            uploads: Uploads::new(device),
            trained: (0..workers).filter(|&worker| !spec.sampler.shards().images[worker].is_empty()).collect(),
            waiting: vec![None; workers],
            keeps_updates: spec.keeps_updates,
            notice: None,
            host_places: None,
            state_names: spec.state_vectors.iter().map(|vector| vector.name.clone()).collect(),
            state_vectors,
            kernels: Kernels::new(options.device, include_str!("kernels.cu"), &KERNELS)?,
            graph: None,
            streams,
            spare,
            networks,
            spare_network,
            layout,
            data,
            sampler,
            sgd,
            options,
            device,
            models,
            statistics,
            inputs,
        })
    }

    /// Warms up, scores a model once and captures the graph; the state is as before.
    fn try_out(&mut self) -> Result<(), TorchError> {
        let first: Vec<WorkerBatch> = self.trained.iter().map(|&worker| (worker, 0)).collect();
        let picks = self.picks(&first);
        let streams = Rc::clone(&self.streams);
        streams.on_main(|| self.inputs.load(&picks))??;
        streams.on_main(|| {
            // Slopes are computed on a thread of libtorch's own. Its first work must not be a product of
            // matrices: the library for those warns of a thread that has not used the device.
            let one = Tensor::ones([1], (Kind::Float, self.device)).set_requires_grad(true);
            let two = &one * 2.0;
            shim::backward(&two, &two.ones_like(), &[one.shallow_clone()], &[one.zeros_like()])
        })??;
        let this = &*self;
        let graph = streams.on_main(|| {
            let kept = this.statistics.buffer.copy();
            for _ in 0..WARM_UP {
                this.gradients_of(&this.trained)?;
            }
            this.score_network(&*this.networks[0], 0, Split::Test)?;
            copy(&this.statistics.buffer, &kept)?;
            if this.options.eager {
                return Ok(None);
            }
            // A capture takes memory of its own: what warming up took would lie idle.
            shim::release_memory()?;
            let captured = attempt(|| Graph::capture(|| this.gradients_of(&this.trained)));
            Ok(Some(captured))
        })??;
        streams.on_main(|| {
            shim::wait(self.options.device)?;
            self.losses.clear();
            Ok(())
        })??;
        match graph {
            Some(Ok(graph)) => self.graph = Some(graph),
            Some(Err(error)) if error.lacks_memory() => return Err(error),
            Some(Err(error)) => {
                // libtorch's words, without where they come from.
                let why = error.0.split("Torch(\"").last().unwrap_or_default();
                let why = why.split("\\n").next().unwrap_or_default();
                let why = why.lines().next().unwrap_or_default();
                self.notice = Some(format!("rounds cannot be recorded, and are launched anew each time: {why}"));
            }
            None => {}
        }
        Ok(())
    }

    /// What the GPU's memory looks like.
    pub fn memory(&self) -> Result<Memory, TorchError> {
        Memory::of(self.options.device)
    }

    fn workers_count(&self) -> usize {
        self.models.rows()
    }
}

/// The optimizer that the kernels have.
pub(crate) fn sgd_of(spec: &EngineSpec) -> Result<Sgd, TorchError> {
    spec.optimizer.as_sgd().ok_or_else(|| {
        let name = spec.optimizer.name();
        TorchError(format!("the optimizer `{name}` has no kernel for GPUs: use --device cpu, or sgd"))
    })
}

/// (loss, right) rows as scores of so many images.
fn scores(results: &Tensor, counts: &[usize]) -> Vec<Score> {
    let results = results.to_device(Device::Cpu);
    let mut numbers = vec![0.0f32; results.numel()];
    let length = numbers.len();
    results.copy_data(&mut numbers, length);
    let results = numbers.chunks_exact(2).zip(counts);
    results.map(|(result, &images)| score(result, images)).collect()
}

fn score(result: &[f32], examples: usize) -> Score {
    Score { loss: f64::from(result[0]), correct: result[1] as usize, examples }
}

thread_local! {
    /// Whether panics of this thread are errors of libtorch, which their caller reports.
    static EXPECTS_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// tch panics where libtorch throws: that is an error too, and nobody shall read of a panic.
fn attempt<T>(work: impl FnOnce() -> Result<T, TorchError>) -> Result<T, TorchError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !EXPECTS_PANICS.get() {
                hook(panic);
            }
        }));
    });
    let outer = EXPECTS_PANICS.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    EXPECTS_PANICS.set(outer);
    done.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(TorchError(text.unwrap_or_else(|| "libtorch failed".into())))
    })
}
