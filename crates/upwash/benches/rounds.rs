//! Times whole rounds on the CPU: batches, gradients, optimizer, plans and mixing.
//!
//! `cargo bench -p upwash --bench rounds` prints images per second of eight workers on L1, each on one core at a time,
//! for several models, and the overhead of AL-DSGD over D-PSGD. With names of models as arguments, only those.
//! `benches/peers/rounds.py` does the same in PyTorch.

use std::time::Instant;
use upwash::config::Config;
use upwash::engine::{Engine, native_engine};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Progress, run};

const BATCH: usize = 32;

/// The models, with the shape of their images and the number of rounds.
const MODELS: [(&str, &str, u64); 5] = [
    ("resnet20", "3x32x32", 8),
    ("thin-resnet50", "3x32x32", 4),
    ("cnn", "1x8x8", 100),
    ("mlp:64", "1x8x8", 1000),
    ("mlp:256,128", "1x28x28", 200),
];

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    for (model, shape, count) in MODELS {
        if !chosen.is_empty() && !chosen.iter().any(|name| name == model) {
            continue;
        }
        let images = ((count - 1) as usize * BATCH * 8) as f64;
        let [dpsgd, al_dsgd] = ["dpsgd", "al-dsgd"].map(|algorithm| rounds(model, shape, algorithm, count));
        println!(
            "{model}, batch {BATCH}: D-PSGD {:.0} images/s, AL-DSGD {:.0}, AL-DSGD / D-PSGD time {:.4}",
            images / dpsgd,
            images / al_dsgd,
            al_dsgd / dpsgd
        );
    }
}

/// Seconds of the rounds after the first, the best of three runs.
fn rounds(model: &str, shape: &str, algorithm: &str, count: u64) -> f64 {
    let images = count as usize * BATCH * 8;
    let config = format!(
        "model = \"{model}\"\n[data]\nname = \"synthetic:shape={shape},test=1,train={images}\"\n\
         partition = \"iid\"\n[graph]\ntopology = \"paper:L1\"\n[algorithm]\nname = \"{algorithm}\"\n\
         [training]\nepochs = 1\nbatch_size = {BATCH}\nmomentum = 0.9\n"
    );
    let config = Config::parse(&config, &[]).expect("the configuration should be valid");
    let experiment = Experiment::prepare(config, &DataPaths::default()).expect("the experiment should be valid");
    let mut engine = native_engine(&experiment.engine_spec()).expect("the engine should be created");
    (0..3).map(|_| once(&experiment, &mut *engine)).fold(f64::INFINITY, f64::min)
}

/// Seconds of the rounds after the first.
fn once(experiment: &Experiment, engine: &mut dyn Engine) -> f64 {
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
