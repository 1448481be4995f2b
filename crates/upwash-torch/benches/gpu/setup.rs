//! Experiments and engines shared by all benchmarks of the GPU engine.

use crate::common::Recorder;
use std::sync::Arc;
use upwash::algorithm::{self, Algorithm, Exchange, ExchangeContext, WorkerStats};
use upwash::config::Config;
use upwash::data::Augmentation;
use upwash::engine::{Engine, GradientTask, State};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{Progress, run};
use upwash_torch::{CudaEngine, CudaOptions, Precision, TorchNetwork};

/// An experiment with augmentation of its images.
pub(crate) fn prepare(config: &str) -> Experiment {
    let config = Config::parse(config, &[]).expect("the configuration should be valid");
    let mut experiment = Experiment::prepare(config, &DataPaths::default()).expect("the experiment should be valid");
    let data = Arc::get_mut(&mut experiment.data).expect("nothing else should share the data yet");
    data.augmentation = Augmentation::CropAndFlip;
    experiment
}

/// The configuration of `rounds` rounds of eight workers in one epoch.
pub(crate) fn config(model: &str, algorithm: &str, batch: usize, rounds: usize, more: &str) -> String {
    let images = 8 * batch * rounds;
    format!(
        "model = \"{model}\"\n[data]\nname = \"synthetic:shape=3x32x32,test=500,train={images}\"\n\
         partition = \"iid\"\n[algorithm]\n{algorithm}\n[training]\nepochs = 1\nbatch_size = {batch}\n\
         learning_rate = 0.01\nweight_decay = 5e-4\n{more}"
    )
}

/// Runs an experiment to its end. Returns the losses of every round and the final state.
pub(crate) fn run_to_end(experiment: &Experiment, engine: &mut dyn Engine) -> (Vec<Vec<f64>>, State) {
    let mut recorder = Recorder::default();
    let start = Progress::start(experiment.workers());
    run(experiment, engine, start, &mut recorder).expect("the run should not fail");
    (recorder.losses, engine.state().expect("the engine should not fail"))
}

/// An engine on the GPU; exits if there is none.
pub(crate) fn cuda_engine(experiment: &Experiment, options: CudaOptions) -> CudaEngine {
    let network = TorchNetwork::new(experiment.network.clone());
    CudaEngine::new(&experiment.engine_spec(), &network, options).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1)
    })
}

/// A table of checks; holds whether all of them passed.
pub(crate) struct Table(pub(crate) bool);

impl Table {
    pub(crate) fn line(&mut self, what: &str, found: &str, passed: bool) {
        let verdict = if passed { "ok" } else { "WRONG" };
        println!("{what:<70} {found:<8} {verdict}");
        self.0 &= passed;
    }
}

pub(crate) const F32: CudaOptions = CudaOptions { device: 0, precision: Precision::F32, streams: None, eager: false };

/// A gradient of every worker, with a learning rate of 0.
pub(crate) fn gradient_tasks(workers: usize, batch: u64) -> Vec<Option<GradientTask>> {
    vec![Some(GradientTask { batch, rate: 0.0 }); workers]
}

/// The plans of an exchange with the neighbors of round 0.
pub(crate) fn neighbor_plans(algorithm: &dyn Algorithm, experiment: &Experiment) -> Vec<algorithm::WorkerPlan> {
    let up = experiment.schedule.round(0);
    let report = |i: usize| WorkerStats { loss: Some(i as f64), degree: up.degree(i), scalar: 1.0 };
    let reports: Vec<WorkerStats> = (0..experiment.workers()).map(report).collect();
    Exchange::Neighbors.plans(algorithm, &ExchangeContext::new(&up, 0.1), &reports)
}
