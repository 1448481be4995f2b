//! What all of them start from.

use crate::common::Witness;
use std::sync::Arc;
use upwash::algorithm::{self, Algorithm, Exchange, ExchangeContext, WorkerStats};
use upwash::config::Config;
use upwash::data::Augmentation;
use upwash::engine::{Engine, GradientTask, State};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{Progress, run};
use upwash_torch::{CudaEngine, CudaOptions, Precision, TorchNetwork};
pub(crate) fn prepare(config: &str) -> Experiment {
    let config = Config::parse(config, &[]).expect("a configuration");
    let mut experiment = Experiment::prepare(config, &DataPaths::default()).expect("an experiment");
    let data = Arc::get_mut(&mut experiment.data).expect("ours alone");
    data.augmentation = Augmentation::CropAndFlip;
    experiment
}

/// `rounds` rounds of eight workers in one epoch.
pub(crate) fn config(model: &str, algorithm: &str, batch: usize, rounds: usize, more: &str) -> String {
    let images = 8 * batch * rounds;
    format!(
        "model = \"{model}\"\n[data]\nname = \"synthetic:shape=3x32x32,test=500,train={images}\"\n\
         partition = \"iid\"\n[algorithm]\n{algorithm}\n[training]\nepochs = 1\nbatch_size = {batch}\n\
         learning_rate = 0.01\nweight_decay = 5e-4\n{more}"
    )
}

pub(crate) fn complete(experiment: &Experiment, engine: &mut dyn Engine) -> (Vec<Vec<f64>>, State) {
    let mut witness = Witness::default();
    let start = Progress::start(experiment.workers());
    run(experiment, engine, start, &mut witness).expect("a run");
    (witness.losses, engine.state().expect("an engine that works"))
}

pub(crate) fn fleet(experiment: &Experiment, options: CudaOptions) -> CudaEngine {
    let network = TorchNetwork::new(experiment.network.clone());
    CudaEngine::new(&experiment.engine_spec(), &network, options).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1)
    })
}

pub(crate) struct Table(pub(crate) bool);

impl Table {
    pub(crate) fn line(&mut self, what: &str, found: &str, right: bool) {
        let verdict = if right { "ok" } else { "WRONG" };
        println!("{what:<70} {found:<8} {verdict}");
        self.0 &= right;
    }
}

pub(crate) const F32: CudaOptions = CudaOptions { device: 0, precision: Precision::F32, streams: None, eager: false };

/// Everyone's turn, with a rate that changes nothing.
pub(crate) fn turns(workers: usize, batch: u64) -> Vec<Option<GradientTask>> {
    vec![Some(GradientTask { batch, rate: 0.0 }); workers]
}

/// An exchange with the neighbors of round 0.
pub(crate) fn parts_of(algorithm: &dyn Algorithm, experiment: &Experiment) -> Vec<algorithm::WorkerPlan> {
    let up = experiment.schedule.round(0);
    let report = |i: usize| WorkerStats { loss: Some(i as f64), degree: up.degree(i), scalar: 1.0 };
    let reports: Vec<WorkerStats> = (0..experiment.workers()).map(report).collect();
    Exchange::Neighbors.plans(algorithm, &ExchangeContext::new(&up, 0.1), &reports)
}
