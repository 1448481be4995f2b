//! The GPU engine: all workers of a process on one GPU.
//!
//! Models, gradients and velocities are one buffer each, with a row for every worker. The tensors of a worker's network
//! are views into its row. In a round, one kernel assembles the batches of all workers, and every worker's forward and
//! backward pass runs on a stream. This part is captured once as a CUDA graph and replayed. The host reads each loss as
//! soon as the forward pass has computed it. While the backward passes still run, it makes the plans and launches what
//! follows: one kernel that takes the steps of all workers and mixes their models in one pass over memory, and the next
//! round.
#![allow(unsafe_code)]

mod buffers;
mod engine;
mod exchange;
mod exchange_tables;
mod loss_readback;
mod measure;
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

/// Precision of matrix products and convolutions. Parameters and mixing are always in single precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// bf16, by autocast.
    #[default]
    Bf16,
    /// TF32: single precision whose products have a mantissa of ten bits.
    Tf32,
    /// Single precision.
    F32,
}

/// How an engine uses a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Index of the GPU.
    pub device: usize,
    /// Precision of matrix products and convolutions.
    pub precision: Precision,
    /// How many workers compute in parallel; all of them (at most 32) if `None`. Fewer streams need less memory.
    pub streams: Option<usize>,
    /// Do not capture a CUDA graph: launch every operation individually in every round.
    pub eager: bool,
}

/// How many images a model is scored on at a time.
pub(crate) const SCORING_BATCH: usize = 2000;
/// Rounds before a capture: libraries initialize themselves in the first ones.
const WARM_UP: usize = 3;
const KERNELS: [&str; 5] = ["assemble", "cross_entropy", "take_steps", "step_and_mix", "exchange"];
const ASSEMBLE: usize = 0;
const CROSS_ENTROPY: usize = 1;
const TAKE_STEPS: usize = 2;
const STEP_AND_MIX: usize = 3;
const EXCHANGE: usize = 4;
/// Warps per block of a mixing kernel, each of which processes one row at a time.
const WARPS: u32 = 8;

/// The engine that trains all workers of a process on one GPU.
pub struct CudaEngine {
    layout: Layout,
    data: Arc<Dataset>,
    sampler: Sampler,
    sgd: Sgd,
    options: CudaOptions,
    device: Device,
    kernels: Kernels,
    streams: Rc<Streams>,
    /// Each of these buffers has a row for every worker.
    models: Rows,
    /// Gradients, replaced by steps once these are taken.
    gradients: Rows,
    velocities: Option<Rows>,
    statistics: Rows,
    /// State vectors of the algorithm, and their names.
    state_vectors: Vec<Rows>,
    state_names: Vec<String>,
    /// Parameters and statistics of one model that does not belong to a worker.
    scratch: (Rows, Rows),
    /// Every worker's network, bound to its row, and the network bound to `scratch`.
    networks: Vec<Box<dyn BoundModel>>,
    scratch_network: Box<dyn BoundModel>,
    train: ImagesOnDevice,
    test: ImagesOnDevice,
    inputs: Inputs,
    /// Every worker's loss and number of correct predictions.
    losses: LossReadback,
    uploads: Uploads,
    /// The workers that have training data.
    training_workers: Vec<usize>,
    /// The captured gradients of all training workers.
    graph: Option<Graph>,
    /// For every row whose gradient has not become a step yet, its learning rate.
    pending_rates: Vec<Option<f64>>,
    /// Whether steps stay in flight between rounds, as in asynchronous algorithms.
    keeps_updates: bool,
    /// Why there is no graph although one was requested.
    notice: Option<String>,
    /// For every element of a row, its index in the host's flat vector; created on first use.
    host_indices: Option<Tensor>,
}

impl CudaEngine {
    /// Creates an engine for all workers of a spec. Allocates everything that a run needs and tries it out, so that a
    /// lack of memory shows before the first round.
    pub fn new(spec: &EngineSpec, model: &dyn TorchModel, options: CudaOptions) -> Result<Self, TorchError> {
        match Cuda::detect() {
            Cuda::Devices(count) if options.device < count => {}
            Cuda::Devices(count) => {
                return Err(TorchError(format!(
                    "there is no GPU cuda:{}: this machine has {count} GPU(s), numbered from cuda:0",
                    options.device
                )));
            }
            Cuda::NotBuilt => {
                return Err(TorchError(
                    "this program was built without CUDA: rebuild it with a libtorch that supports CUDA \
                     (scripts/install-torch.sh), or use --device cpu"
                        .into(),
                ));
            }
            Cuda::NoDevice => {
                return Err(TorchError(
                    "no NVIDIA GPU, or no driver for it, was found on this machine (check with nvidia-smi): use \
                     --device cpu"
                        .into(),
                ));
            }
        }
        let free = catch_panics(|| {
            // The device must be initialized before its memory can be queried.
            drop(Tensor::zeros([1], (Kind::Float, Device::Cuda(options.device))));
            Ok(Memory::of(options.device)?.free as u64)
        })?;
        Self::build(spec, model, options).map_err(|error| {
            if !error.is_out_of_memory() {
                return error;
            }
            TorchError(match MemoryEstimate::measured(spec, model, options) {
                Ok(estimate) => estimate.remedy(free),
                Err(error) if error.is_out_of_memory() => format!(
                    "not even one worker fits into the GPU's memory ({:.1} GiB are free): use a smaller \
                     batch size or model",
                    free as f64 / (1u64 << 30) as f64
                ),
                Err(error) => error.0,
            })
        })
    }

    /// Like [`new`](Self::new), but a lack of memory is reported as libtorch's plain error.
    pub(crate) fn build(spec: &EngineSpec, model: &dyn TorchModel, options: CudaOptions) -> Result<Self, TorchError> {
        let workers = spec.starts.len();
        let streams = options.streams.unwrap_or(workers).clamp(1, workers.min(32));
        let engine = catch_panics(|| {
            // Everything is created on the stream that uses it: other streams would not wait for it.
            let streams = Rc::new(Streams::new(options.device, streams)?);
            let mut engine = streams.on_main(|| Self::allocate(spec, model, options, streams.clone()))??;
            engine.warm_up()?;
            Ok(engine)
        });
        if engine.is_err() {
            // Release the memory that was allocated before the failure.
            let _ = shim::release_memory();
        }
        engine
    }

    /// Why rounds are launched operation by operation although a CUDA graph was requested.
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
        let scratch = (Rows::new(1, &layout.parameters, device), Rows::new(1, &layout.statistics, device));
        let scratch_network = bind(&scratch.0, &scratch.1, 0);
        let inputs = Inputs::new(&data, workers, sampler.batch_size(), options.precision, device)?;
        Ok(Self {
            gradients: rows(&layout.parameters),
            velocities: (sgd.momentum != 0.0).then(|| rows(&layout.parameters)),
            losses: LossReadback::new(workers, device)?,
            train: ImagesOnDevice::new(&data.train, device),
            test: ImagesOnDevice::new(&data.test, device),
            uploads: Uploads::new(device),
            training_workers: (0..workers).filter(|&worker| !spec.sampler.shards().images[worker].is_empty()).collect(),
            pending_rates: vec![None; workers],
            keeps_updates: spec.keeps_updates,
            notice: None,
            host_indices: None,
            state_names: spec.state_vectors.iter().map(|vector| vector.name.clone()).collect(),
            state_vectors,
            kernels: Kernels::new(options.device, include_str!("kernels.cu"), &KERNELS)?,
            graph: None,
            streams,
            scratch,
            networks,
            scratch_network,
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

    /// Warms up, scores a model once and captures the graph. Leaves the state unchanged.
    fn warm_up(&mut self) -> Result<(), TorchError> {
        let first: Vec<WorkerBatch> = self.training_workers.iter().map(|&worker| (worker, 0)).collect();
        let picks = self.picks(&first);
        let streams = Rc::clone(&self.streams);
        streams.on_main(|| self.inputs.load(&picks))??;
        streams.on_main(|| {
            // libtorch runs backward passes on its own thread. The first operation there must not be a matrix product:
            // cuBLAS warns about a thread that has not used the device.
            let one = Tensor::ones([1], (Kind::Float, self.device)).set_requires_grad(true);
            let two = &one * 2.0;
            shim::backward(&two, &two.ones_like(), &[one.shallow_clone()], &[one.zeros_like()])
        })??;
        let this = &*self;
        let graph = streams.on_main(|| {
            let statistics = this.statistics.buffer.copy();
            for _ in 0..WARM_UP {
                this.gradients_of(&this.training_workers)?;
            }
            this.score_network(&*this.networks[0], 0, Split::Test)?;
            copy(&this.statistics.buffer, &statistics)?;
            if this.options.eager {
                return Ok(None);
            }
            // A capture allocates from a private pool: release what the warm-up has cached.
            shim::release_memory()?;
            let captured = catch_panics(|| Graph::capture(|| this.gradients_of(&this.training_workers)));
            Ok(Some(captured))
        })??;
        streams.on_main(|| {
            shim::synchronize(self.options.device)?;
            self.losses.clear();
            Ok(())
        })??;
        match graph {
            Some(Ok(graph)) => self.graph = Some(graph),
            Some(Err(error)) if error.is_out_of_memory() => return Err(error),
            Some(Err(error)) => {
                // libtorch's message without tch's wrapper and without the backtrace.
                let why = error.0.split("Torch(\"").last().unwrap_or_default();
                let why = why.split("\\n").next().unwrap_or_default();
                let why = why.lines().next().unwrap_or_default();
                self.notice =
                    Some(format!("cannot capture a CUDA graph; every operation is launched individually: {why}"));
            }
            None => {}
        }
        Ok(())
    }

    /// The memory of the engine's GPU.
    pub fn memory(&self) -> Result<Memory, TorchError> {
        Memory::of(self.options.device)
    }

    fn worker_count(&self) -> usize {
        self.models.rows()
    }
}

/// The optimizer of the kernels: SGD without clipping, or an error.
pub(crate) fn sgd_of(spec: &EngineSpec) -> Result<Sgd, TorchError> {
    if spec.clip.is_some() {
        return Err(TorchError("training.clip has no GPU kernel yet: use --device cpu, or leave it out".into()));
    }
    spec.optimizer.as_sgd().ok_or_else(|| {
        let name = spec.optimizer.name();
        TorchError(format!("the optimizer `{name}` has no GPU kernel: use --device cpu, or the optimizer sgd"))
    })
}

/// Turns rows of (loss, correct) into scores over these numbers of images.
fn scores(results: &Tensor, counts: &[usize]) -> Vec<Score> {
    let results = results.to_device(Device::Cpu);
    let mut numbers = vec![0.0f32; results.numel()];
    let length = numbers.len();
    results.copy_data(&mut numbers, length);
    let results = numbers.chunks_exact(2).zip(counts);
    results.map(|(result, &images)| score(result, images)).collect()
}

fn score(result: &[f32], examples: usize) -> Score {
    Score { loss: f64::from(result[0]), correct: result[1] as usize, examples, clipped: 0 }
}

thread_local! {
    /// Whether `catch_panics` is running on this thread, which turns panics into errors.
    static EXPECTS_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` and turns a panic into an error without printing it: tch panics where libtorch throws an exception.
fn catch_panics<T>(work: impl FnOnce() -> Result<T, TorchError>) -> Result<T, TorchError> {
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
        Err(TorchError(text.unwrap_or_else(|| "libtorch failed without a message".into())))
    })
}
