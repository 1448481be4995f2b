//! Measures how long a round takes, and where its time goes.

use crate::setup::{config, cuda_engine, gradient_tasks, neighbor_plans, prepare};
use std::time::Instant;
use upwash::RowIndex;
use upwash::algorithm::Dpsgd;
use upwash::engine::MixOptions;
use upwash::engine::{Engine, Split};
use upwash::experiment::Experiment;
use upwash::run::{ControlFlow, Event, Progress, run};
use upwash_testkit::{row_plans, rows};
use upwash_torch::{CudaEngine, CudaOptions};

/// Mean milliseconds per round of a whole run, after the first 20 rounds.
fn round_time(experiment: &Experiment, engine: &mut CudaEngine) -> f64 {
    let mut times = Vec::new();
    let mut clock = |event: &Event| {
        if let Event::Round { .. } = event {
            times.push(Instant::now());
        }
        ControlFlow::Continue
    };
    let start = Progress::start(experiment.workers());
    run(experiment, engine, start, &mut clock).expect("the run should not fail");
    let rounds = times.len() - 21;
    (times[times.len() - 1] - times[20]).as_secs_f64() * 1e3 / rounds as f64
}

/// Prints the time per round of several networks.
pub(crate) fn speed() {
    for (model, batch, rounds) in
        [("resnet20", 16, 420), ("thin-resnet50", 16, 320), ("thin-resnet50", 128, 120), ("resnet50", 128, 60)]
    {
        let momentum = "momentum = 0.9\n";
        let experiment = prepare(&config(model, "name = \"al-dsgd\"", batch, rounds, momentum));
        let began = Instant::now();
        let mut engine = cuda_engine(&experiment, CudaOptions::default());
        let prepared = began.elapsed().as_secs_f64();
        let round_ms = round_time(&experiment, &mut engine);
        let memory = engine.memory().expect("the memory query should not fail").peak as f64 / (1u64 << 30) as f64;
        println!(
            "{model}, batch {batch}: {round_ms:.3} ms per round, {:.0} images/s; prepared in \
             {prepared:.1} s, {memory:.1} GiB",
            8e3 * batch as f64 / round_ms,
        );
        breakdown(&experiment, &mut engine);
    }
    let (batch, workers) = (16, 64);
    let images = workers * batch * 120;
    let config = format!(
        "model = \"thin-resnet50\"\n[data]\n\
         name = \"synthetic:shape=3x32x32,test=500,train={images}\"\npartition = \"iid\"\n[graph]\n\
         topology = \"torus:8x8\"\n[training]\nepochs = 1\nbatch_size = {batch}\n"
    );
    let experiment = prepare(&config);
    let mut engine = cuda_engine(&experiment, CudaOptions::default());
    let round_ms = round_time(&experiment, &mut engine);
    println!("thin-resnet50, batch {batch}, {workers} workers: {round_ms:.3} ms per round");
}

/// Prints where a round's time goes, and how fast models are scored.
fn breakdown(experiment: &Experiment, engine: &mut CudaEngine) {
    const TIMES: usize = 20;
    let time = |work: &mut dyn FnMut()| {
        work();
        let began = Instant::now();
        (0..TIMES).for_each(|_| work());
        began.elapsed().as_secs_f64() * 1e3 / TIMES as f64
    };
    let plans = row_plans(&neighbor_plans(&Dpsgd::default(), experiment));
    let all_rows = rows(8);
    // All plans are ready; the losses are read in every round, or once in twenty rounds.
    let read = time(&mut || {
        for round in 0..TIMES as u64 {
            drop(engine.step(&gradient_tasks(8, round)).expect("the engine should not fail"));
            engine.exchange(&plans, vec![], MixOptions::default()).expect("the engine should not fail");
        }
    }) / TIMES as f64;
    let unread = time(&mut || {
        for round in 0..TIMES as u64 {
            engine.launch(&gradient_tasks(8, round)).expect("the engine should not fail");
            engine.exchange(&plans, vec![], MixOptions::default()).expect("the engine should not fail");
        }
        engine.losses().expect("the engine should not fail");
    }) / TIMES as f64;
    let mixings = time(&mut || {
        for _ in 0..TIMES {
            engine.set_pending(0.0);
            engine.exchange(&plans, vec![], MixOptions::default()).expect("the engine should not fail");
        }
        engine.consensus_distance(&all_rows).expect("the engine should not fail");
    });
    let idle = time(&mut || {
        engine.consensus_distance(&all_rows).expect("the engine should not fail");
    });
    let mut images = 0;
    let scoring = time(&mut || {
        let score =
            |worker| engine.score(RowIndex(worker), Split::LocalTrain).expect("the engine should not fail").examples;
        images = (0..8).map(score).sum();
    });
    println!(
        "    losses read {read:.3} ms, not read {unread:.3} ms ({:+.1} %); step and mixing \
         {:.3} ms; scoring {:.0} images/s",
        100.0 * (read / unread - 1.0),
        (mixings - idle) / TIMES as f64,
        1e3 * images as f64 / scoring
    );
}
