//! All workers of a process on one GPU.
//!
//! Models, gradients and velocities are each one buffer with a row for every worker; the tensors of a
//! worker's network are views into its row. A round is: everyone's batch is put together by one
//! kernel; every worker's forward and backward pass runs on a stream; all that is captured once as a
//! CUDA graph and replayed. Then everyone's loss is read, the plans are made, and one kernel takes
//! everyone's step and mixes, in one pass over memory.
#![allow(unsafe_code)]

mod buffers;

use self::buffers::{ImagesOnDevice, Inputs, Plans, Rows, image_view, numbers_of};
use crate::model::{BoundModel, TorchModel};
use crate::shim;
use crate::shim::{Argument, Cuda, Graph, Kernels, Memory, Streams, TorchError, autocast, copy};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};
use upwash::algorithm::{Message, Plan};
use upwash::data::{Dataset, Pick, Sampler};
use upwash::engine::{ESTIMATION_BATCHES, Engine, Part, Score, State, saved};
use upwash::experiment::Experiment;
use upwash::fleet::Start;
use upwash::model::{Layout, Replica, Slot};
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
const SCORED_AT_ONCE: usize = 2000;
/// Rounds before a capture: libraries prepare themselves in the first ones.
const WARM_UP: usize = 3;
/// Rows that the mixing kernel takes at a time, as warps.
const MIXING_WARPS: u32 = 8;

const KERNELS: [&str; 3] = ["assemble", "cross_entropy", "step_and_mix"];
const ASSEMBLE: usize = 0;
const CROSS_ENTROPY: usize = 1;
const STEP_AND_MIX: usize = 2;

/// The engine.
pub struct CudaFleet {
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
    gradients: Rows,
    velocities: Option<Rows>,
    statistics: Rows,
    /// One more model, for those that are no worker's.
    spare: (Rows, Rows),
    /// Everyone's network in its row, and the spare one.
    networks: Vec<Box<dyn BoundModel>>,
    spare_network: Box<dyn BoundModel>,
    train: ImagesOnDevice,
    test: ImagesOnDevice,
    inputs: Inputs,
    /// Everyone's loss and how many of its images were right.
    results: Tensor,
    plans: Plans,
    graph: Option<Graph>,
    /// The learning rate of the step that has not been taken yet.
    rate: f64,
}

impl CudaFleet {
    /// All workers of an experiment. Everything that a run needs is allocated and tried here, so that
    /// what does not fit is known before the first round.
    pub fn new(
        experiment: &Experiment,
        model: &dyn TorchModel,
        options: CudaOptions,
    ) -> Result<Self, TorchError> {
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
        let workers = experiment.workers();
        let streams = options.streams.unwrap_or(workers).clamp(1, workers.min(32));
        attempt(|| {
            // Everything is made on the stream that uses it: others would not wait for it.
            let streams = Rc::new(Streams::new(options.device, streams)?);
            let mut fleet = streams
                .on_main(|| Self::allocate(experiment, model, options, streams.clone()))??;
            fleet.try_out()?;
            Ok(fleet)
        })
    }

    fn allocate(
        experiment: &Experiment,
        model: &dyn TorchModel,
        options: CudaOptions,
        streams: Rc<Streams>,
    ) -> Result<Self, TorchError> {
        shim::precision(match options.precision {
            Precision::F32 => 0,
            Precision::Tf32 => 1,
            Precision::Bf16 => 2,
        })?;
        let training = &experiment.config.training;
        let (workers, layout, sgd) = (experiment.workers(), model.layout().clone(), training.sgd());
        let device = Device::Cuda(options.device);
        let sampler = experiment.sampler.clone();
        let data = Arc::clone(&experiment.data);
        let rows = |slots: &[Slot]| Rows::new(workers, slots, device);
        let models = rows(&layout.parameters);
        let statistics = rows(&layout.statistics);
        for worker in 0..workers {
            let source = match training.start {
                Start::Different => worker as u64,
                Start::Equal => 0,
            };
            models.upload(worker, &model.start(experiment.config.seed, source));
            statistics.upload(worker, &model.start_statistics());
        }
        let bind = |models: &Rows, statistics: &Rows, row: usize| {
            model.bind(&models.views(row), &statistics.views(row))
        };
        let networks = (0..workers)
            .map(|worker| bind(&models, &statistics, worker))
            .collect();
        let spare = (
            Rows::new(1, &layout.parameters, device),
            Rows::new(1, &layout.statistics, device),
        );
        let spare_network = bind(&spare.0, &spare.1, 0);
        let inputs = Inputs::new(
            &data,
            workers,
            sampler.batch_size(),
            options.precision,
            device,
        )?;
        Ok(Self {
            gradients: rows(&layout.parameters),
            velocities: sgd.has_velocity().then(|| rows(&layout.parameters)),
            results: Tensor::zeros([workers as i64, 2], (Kind::Float, device)),
            train: ImagesOnDevice::new(&data.train, device),
            test: ImagesOnDevice::new(&data.test, device),
            plans: Plans::new(workers, device)?,
            kernels: Kernels::new(options.device, include_str!("kernels.cu"), &KERNELS)?,
            graph: None,
            rate: 0.0,
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
        let picks = self.picks(0);
        let streams = Rc::clone(&self.streams);
        streams.on_main(|| self.inputs.load(&picks))??;
        let this = &*self;
        let graph = streams.on_main(|| {
            let kept = this.statistics.buffer.copy();
            for _ in 0..WARM_UP {
                this.gradients_of_all()?;
            }
            this.score_network(&*this.networks[0], 0, Part::Test)?;
            copy(&this.statistics.buffer, &kept)?;
            if this.options.eager {
                return Ok(None);
            }
            // A capture takes memory of its own: what warming up took would lie idle.
            shim::release_memory()?;
            let captured = attempt(|| Graph::capture(|| this.gradients_of_all()));
            if let Err(error) = &captured {
                eprintln!("warning: rounds are not replayed but launched anew: {error}");
            }
            Ok(captured.ok())
        })??;
        self.graph = graph;
        Ok(())
    }

    /// What the GPU's memory looks like.
    pub fn memory(&self) -> Result<Memory, TorchError> {
        Memory::of(self.options.device)
    }

    /// The first half of [`step`](Engine::step): starts everyone's gradients, and does not wait. For
    /// benchmarks: a second one before [`losses`](Self::losses) may overwrite the first one's batch.
    #[doc(hidden)]
    pub fn launch(&mut self, round: u64, rate: f64) {
        self.rate = rate;
        let picks = match self.inputs.ahead.take() {
            Some((prepared, picks)) if prepared == round => picks,
            _ => self.picks(round),
        };
        let streams = Rc::clone(&self.streams);
        let computed = streams.on_main(|| {
            self.inputs.load(&picks)?;
            match &self.graph {
                Some(graph) => graph.replay(),
                None => self.gradients_of_all(),
            }
        });
        expect(computed.and_then(|done| done));
    }

    /// The second half: waits for everyone's loss.
    #[doc(hidden)]
    pub fn losses(&mut self) -> Vec<Score> {
        let counts = vec![self.sampler.batch_size(); self.workers_count()];
        expect(self.streams.on_main(|| scores(&self.results, &counts)))
    }

    fn workers_count(&self) -> usize {
        self.models.rows()
    }

    fn picks(&self, round: u64) -> Vec<i32> {
        let augmentation = self.data.augmentation;
        (0..self.workers_count())
            .flat_map(|worker| self.sampler.picks(augmentation, worker, round))
            .flat_map(numbers_of)
            .collect()
    }

    /// Everyone's batch, forward and backward pass. This is what is captured.
    fn gradients_of_all(&self) -> Result<(), TorchError> {
        let batch = self.sampler.batch_size();
        let (inputs, count) = (&self.inputs, self.workers_count() * batch);
        self.assemble(
            &self.train,
            &inputs.picks,
            count,
            &inputs.images,
            &inputs.labels,
        )?;
        self.streams.on_others(self.workers_count(), |worker| {
            let images = image_view(&inputs.images, worker * batch, batch);
            let labels = inputs
                .labels
                .narrow(0, (worker * batch) as i64, batch as i64);
            let network = &self.networks[worker];
            let bf16 = self.options.precision == Precision::Bf16;
            let logits = autocast(bf16, || network.train(images));
            let slope = logits.detach().empty_like();
            let result = self.results.get(worker as i64);
            self.cross_entropy(&logits.detach(), &labels, &slope, &result)?;
            shim::backward(
                &logits,
                &slope,
                network.leaves(),
                &self.gradients.views(worker),
            )
        })
    }

    fn assemble(
        &self,
        source: &ImagesOnDevice,
        picks: &Tensor,
        count: usize,
        images: &Tensor,
        labels: &Tensor,
    ) -> Result<(), TorchError> {
        let [channels, height, width] = self.data.train.shape.map(|side| side as i32);
        let block = 256;
        let grid = [
            (channels * height * width).unsigned_abs().div_ceil(block),
            count as u32,
            1,
        ];
        let arguments = [
            Argument::of(&source.pixels),
            Argument::of(&source.labels),
            Argument::of(picks),
            Argument::of(&self.inputs.scaling),
            Argument::of(images),
            Argument::of(labels),
            Argument::Int(count as i32),
            Argument::Int(channels),
            Argument::Int(height),
            Argument::Int(width),
            Argument::Int(Pick::BORDER as i32),
            Argument::Float(self.data.scaling.full),
            Argument::Int(i32::from(images.kind() == Kind::BFloat16)),
        ];
        // SAFETY: as `assemble` takes them; picks name images of this source.
        unsafe { self.kernels.launch(ASSEMBLE, grid, block, 0, &arguments) }
    }

    fn cross_entropy(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        slope: &Tensor,
        result: &Tensor,
    ) -> Result<(), TorchError> {
        let logits = logits.contiguous();
        let (images, classes) = (logits.size()[0], logits.size()[1]);
        let arguments = [
            Argument::of(&logits),
            Argument::of(labels),
            Argument::of(slope),
            Argument::of(result),
            Argument::Int(images as i32),
            Argument::Int(classes as i32),
            Argument::Int(i32::from(logits.kind() == Kind::BFloat16)),
        ];
        // SAFETY: as `cross_entropy` takes them; the slope has the logits' kind and size.
        unsafe {
            self.kernels
                .launch(CROSS_ENTROPY, [1; 3], 1024, 0, &arguments)
        }
    }

    /// The step that is due (if any) and a mixing of rows.
    fn step_and_mix(
        &self,
        rows: &Rows,
        step: Option<f64>,
        message: Message,
        plans: &[Plan],
    ) -> Result<(), TorchError> {
        let width = rows.width();
        if width == 0 {
            return Ok(());
        }
        let [starts, senders, weights, own] = self.plans.load(plans)?;
        let (gradients, velocities) = match step {
            Some(_) => (
                Argument::of(&self.gradients.buffer),
                self.velocities
                    .as_ref()
                    .map_or(Argument::null(), |rows| Argument::of(&rows.buffer)),
            ),
            None => (Argument::null(), Argument::null()),
        };
        let width4 = width / 4;
        let arguments = [
            Argument::of(&rows.buffer),
            gradients,
            velocities,
            starts,
            senders,
            weights,
            own,
            Argument::Int(rows.rows() as i32),
            Argument::Long(width4 as i64),
            Argument::Float(step.unwrap_or(0.0) as f32),
            Argument::Float(self.sgd.momentum as f32),
            Argument::Float(self.sgd.weight_decay as f32),
            Argument::Int(i32::from(self.sgd.nesterov)),
            Argument::Int(i32::from(message == Message::Stepped)),
        ];
        let grid = [width4.div_ceil(32) as u32, 1, 1];
        let shared = (2 * rows.rows() * 128 * size_of::<f32>()) as u32;
        // SAFETY: as `step_and_mix` takes them; all buffers have these rows of this width.
        unsafe {
            self.kernels
                .launch(STEP_AND_MIX, grid, 32 * MIXING_WARPS, shared, &arguments)
        }
    }

    /// How a network does on the test set, or on a worker's share.
    fn score_network(
        &self,
        network: &dyn BoundModel,
        worker: usize,
        part: Part,
    ) -> Result<Score, TorchError> {
        let (source, indices): (_, Vec<u32>) = match part {
            Part::Test => (&self.test, (0..self.data.test.len() as u32).collect()),
            Part::Share => (&self.train, self.sampler.shares().images[worker].clone()),
        };
        let picks: Vec<i32> = indices
            .iter()
            .flat_map(|&image| numbers_of(Pick::whole(image)))
            .collect();
        let picks = Tensor::from_slice(&picks).to_device(self.device);
        let chunks = indices.len().div_ceil(SCORED_AT_ONCE);
        let results = Tensor::zeros([chunks as i64, 2], (Kind::Float, self.device));
        let mut counts = Vec::new();
        for chunk in 0..chunks {
            let from = chunk * SCORED_AT_ONCE;
            let count = SCORED_AT_ONCE.min(indices.len() - from);
            let picks = picks.narrow(0, (4 * from) as i64, (4 * count) as i64);
            let (images, labels) = self.inputs.room(&self.data, count);
            self.assemble(source, &picks, count, &images, &labels)?;
            let images = image_view(&images, 0, count);
            let logits = self.without_gradients(|| network.score(images));
            let slope = logits.empty_like();
            self.cross_entropy(&logits, &labels, &slope, &results.get(chunk as i64))?;
            counts.push(count);
        }
        let scores = scores(&results, &counts);
        Ok(scores.into_iter().fold(Score::default(), Score::join))
    }

    fn without_gradients<T>(&self, work: impl FnOnce() -> T) -> T {
        let bf16 = self.options.precision == Precision::Bf16;
        tch::no_grad(|| autocast(bf16, work))
    }

    /// The mean over some batches out of all workers' images.
    fn estimate_statistics(&self, network: &dyn BoundModel) -> Result<Vec<f32>, TorchError> {
        let count = self.sampler.batch_size();
        let (images, labels) = self.inputs.room(&self.data, count);
        let mut sums: Vec<Tensor> = Vec::new();
        for k in 0..ESTIMATION_BATCHES {
            let picks = self.sampler.mixed_picks(self.data.augmentation, k as u64);
            let picks: Vec<i32> = picks.into_iter().flat_map(numbers_of).collect();
            let picks = Tensor::from_slice(&picks).to_device(self.device);
            self.assemble(&self.train, &picks, count, &images, &labels)?;
            let batch = image_view(&images, 0, count);
            let found = self.without_gradients(|| network.batch_statistics(batch));
            if sums.is_empty() {
                sums = found;
            } else {
                sums.iter_mut().zip(&found).for_each(|(sum, found)| {
                    let _ = sum.g_add_(found);
                });
            }
        }
        let mean = |sum: &Tensor| {
            let mean: Tensor = sum / ESTIMATION_BATCHES as f64;
            Vec::<f32>::try_from(mean.to_device(Device::Cpu)).unwrap_or_default()
        };
        Ok(sums.iter().flat_map(mean).collect())
    }
}

/// (loss, right) rows as scores of so many images.
fn scores(results: &Tensor, counts: &[usize]) -> Vec<Score> {
    let results = results.to_device(Device::Cpu);
    let mut numbers = vec![0.0f32; results.numel()];
    let length = numbers.len();
    results.copy_data(&mut numbers, length);
    let score = |(result, &images): (&[f32], &usize)| Score {
        loss: f64::from(result[0]),
        correct: result[1] as usize,
        images,
    };
    numbers.chunks_exact(2).zip(counts).map(score).collect()
}

/// tch panics where libtorch throws: that is an error too.
fn attempt<T>(work: impl FnOnce() -> Result<T, TorchError>) -> Result<T, TorchError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(TorchError(text.unwrap_or_else(|| "libtorch failed".into())))
    })
}

/// What fails after everything was tried out cannot be helped: the device is lost.
fn expect<T>(result: Result<T, TorchError>) -> T {
    result.unwrap_or_else(|error| panic!("the GPU failed in the middle of a run: {error}"))
}

impl Engine for CudaFleet {
    fn workers(&self) -> usize {
        self.workers_count()
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn step(&mut self, round: u64, rate: f64) -> Vec<Score> {
        self.launch(round, rate);
        // While the GPU is busy.
        self.inputs.ahead = Some((round + 1, self.picks(round + 1)));
        self.losses()
    }

    fn mix(&mut self, message: Message, plans: &[Plan]) {
        let mixed = || self.step_and_mix(&self.models, Some(self.rate), message, plans);
        expect(self.streams.on_main(mixed).and_then(|done| done));
    }

    fn mix_statistics(&mut self, plans: &[Plan]) {
        let mixed = || self.step_and_mix(&self.statistics, None, Message::Model, plans);
        expect(self.streams.on_main(mixed).and_then(|done| done));
    }

    fn score(&mut self, worker: usize, part: Part) -> Score {
        let scored = || self.score_network(&*self.networks[worker], worker, part);
        expect(self.streams.on_main(scored).and_then(|done| done))
    }

    fn average(&mut self) -> Replica {
        let this = &*self;
        let averaged = || {
            let (models, _) = &this.spare;
            let mean = this.models.buffer.mean_dim(0i64, true, Kind::Float);
            copy(&models.buffer, &mean)?;
            Ok(Replica {
                parameters: models.download(0),
                statistics: this.estimate_statistics(&*this.spare_network)?,
            })
        };
        expect(this.streams.on_main(averaged).and_then(|done| done))
    }

    fn score_replica(&mut self, replica: &Replica) -> Score {
        let this = &*self;
        let scored = || {
            let (models, statistics) = &this.spare;
            models.upload(0, &replica.parameters);
            statistics.upload(0, &replica.statistics);
            this.score_network(&*this.spare_network, 0, Part::Test)
        };
        expect(this.streams.on_main(scored).and_then(|done| done))
    }

    fn consensus_distance(&self) -> f64 {
        let distance = || {
            let buffer = &self.models.buffer;
            let apart = buffer - buffer.mean_dim(0i64, true, Kind::Float);
            let sum = apart.square().sum(Kind::Double).double_value(&[]);
            (sum / self.workers_count() as f64).sqrt()
        };
        expect(self.streams.on_main(distance))
    }

    fn state(&self) -> State {
        let all = || {
            let velocities = self.velocities.as_ref();
            vec![
                ("models".into(), self.models.download_all()),
                (
                    "velocities".into(),
                    velocities.map_or(vec![], Rows::download_all),
                ),
                ("statistics".into(), self.statistics.download_all()),
            ]
        };
        expect(self.streams.on_main(all))
    }

    fn restore(&mut self, state: &State) -> Result<(), String> {
        let velocities = self.velocities.as_ref();
        let workers = self.workers_count();
        for (name, rows, width) in [
            ("models", Some(&self.models), self.layout.parameter_count()),
            ("velocities", velocities, self.layout.parameter_count()),
            (
                "statistics",
                Some(&self.statistics),
                self.layout.statistic_count(),
            ),
        ] {
            let saved = saved(state, name, rows.map_or(0, |_| workers * width))?;
            let Some(rows) = rows else { continue };
            expect(self.streams.on_main(|| {
                for worker in 0..workers {
                    rows.upload(worker, &saved[worker * width..][..width]);
                }
            }));
        }
        Ok(())
    }
}
