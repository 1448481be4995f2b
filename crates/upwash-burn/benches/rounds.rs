//! Times whole rounds on the CPU: gradients, optimizer, plans and mixing.
//!
//! `cargo bench -p upwash-burn` prints images per second of eight workers on L1 (ResNet-20, batch size 32), each on one
//! core at a time, and the overhead of AL-DSGD over D-PSGD.
//!
//! `cargo bench -p upwash-burn --features burn-threads` prints images per second of one model on the same cores with
//! Burn's own threads. `benches/peers/rounds.sh` runs both in turn, and PyTorch for comparison.

use std::sync::Arc;
use std::time::Instant;
use upwash::config::Config;
use upwash::engine::CpuEngine;
use upwash::engine::Engine;
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Progress, run};
use upwash_burn::BurnNetwork;

const MODEL: &str = "resnet20";
const BATCH: usize = 32;

fn main() {
    if cfg!(feature = "burn-threads") {
        let (seconds, images) = rounds("path:1", "dpsgd", 12);
        println!("one model on all cores, Burn's threads: {:.1} images/s", images / seconds);
        return;
    }
    let (dpsgd, images) = rounds("paper:L1", "dpsgd", 6);
    let (al_dsgd, _) = rounds("paper:L1", "al-dsgd", 6);
    println!("8 workers, D-PSGD:  {:.1} images/s", images / dpsgd);
    println!("8 workers, AL-DSGD: {:.1} images/s", images / al_dsgd);
    println!("round of AL-DSGD / round of D-PSGD: {:.4}", al_dsgd / dpsgd);
}

/// Seconds of the rounds after the first (best of three runs), and the number of images in them.
fn rounds(graph: &str, algorithm: &str, count: u64) -> (f64, f64) {
    let (experiment, mut engine) = prepare(graph, algorithm, count);
    let images = (count - 1) as usize * BATCH * engine.workers();
    let best = (0..3).map(|_| once(&experiment, &mut engine)).fold(f64::INFINITY, f64::min);
    (best, images as f64)
}

/// Seconds of the rounds after the first.
fn once(experiment: &Experiment, engine: &mut CpuEngine) -> f64 {
    let (mut began, mut seconds) = (None, 0.0);
    let mut clock = |event: &Event| {
        if let Event::Round { .. } = event {
            let began = *began.get_or_insert_with(Instant::now);
            seconds = began.elapsed().as_secs_f64();
        }
        ControlFlow::Continue
    };
    let start = Progress::start(experiment.workers());
    run(experiment, engine, start, &mut clock).expect("the run should not fail");
    seconds
}

/// An experiment of one epoch with `count` rounds on synthetic images, and its engine.
fn prepare(graph: &str, algorithm: &str, count: u64) -> (Experiment, CpuEngine) {
    let workers = if graph == "path:1" { 1 } else { 8 };
    let images = count as usize * BATCH * workers;
    let config = format!(
        "model = \"{MODEL}\"\n[data]\nname = \"synthetic:shape=3x32x32,test=1,train={images}\"\n\
         partition = \"iid\"\n[graph]\ntopology = \"{graph}\"\n[algorithm]\nname = \"{algorithm}\"\n\
         [training]\nepochs = 1\nbatch_size = {BATCH}\n"
    );
    let config = Config::parse(&config, &[]).expect("the configuration should be valid");
    let experiment = Experiment::prepare(config, &DataPaths::default()).expect("the experiment should be valid");
    let network = BurnNetwork::new(experiment.network.clone());
    let engine = experiment.cpu_engine(Arc::new(network));
    (experiment, engine)
}
