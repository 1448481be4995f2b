//! How long a round takes, and where its time goes.

use crate::setup::{config, fleet, parts_of, prepare, turns};
use std::time::Instant;
use upwash::RowIndex;
use upwash::algorithm::Dpsgd;
use upwash::engine::MixOptions;
use upwash::engine::{Engine, Split};
use upwash::experiment::Experiment;
use upwash::run::{ControlFlow, Event, Progress, run};
use upwash_testkit::{row_plans, rows};
use upwash_torch::{CudaEngine, CudaOptions};
/// Milliseconds of a round in a whole run, after the first 20.
fn round_time(experiment: &Experiment, engine: &mut CudaEngine) -> f64 {
    let mut times = Vec::new();
    let mut clock = |event: &Event| {
        if let Event::Round { .. } = event {
            times.push(Instant::now());
        }
        ControlFlow::Continue
    };
    let start = Progress::start(experiment.workers());
    run(experiment, engine, start, &mut clock).expect("a run");
    let rounds = times.len() - 21;
    (times[times.len() - 1] - times[20]).as_secs_f64() * 1e3 / rounds as f64
}

pub(crate) fn speed() {
    for (model, batch, rounds) in
        [("resnet20", 16, 420), ("thin-resnet50", 16, 320), ("thin-resnet50", 128, 120), ("resnet50", 128, 60)]
    {
        let momentum = "momentum = 0.9\n";
        let experiment = prepare(&config(model, "name = \"al-dsgd\"", batch, rounds, momentum));
        let began = Instant::now();
        let mut engine = fleet(&experiment, CudaOptions::default());
        let prepared = began.elapsed().as_secs_f64();
        let whole = round_time(&experiment, &mut engine);
        let memory = engine.memory().expect("memory").peak as f64 / (1u64 << 30) as f64;
        println!(
            "{model}, batch {batch}: {whole:.3} ms a round, {:.0} images/s; prepared in \
             {prepared:.1} s, {memory:.1} GiB",
            8e3 * batch as f64 / whole,
        );
        parts(&experiment, &mut engine);
    }
    let (batch, workers) = (16, 64);
    let images = workers * batch * 120;
    let config = format!(
        "model = \"thin-resnet50\"\n[data]\n\
         name = \"synthetic:shape=3x32x32,test=500,train={images}\"\npartition = \"iid\"\n[graph]\n\
         topology = \"torus:8x8\"\n[training]\nepochs = 1\nbatch_size = {batch}\n"
    );
    let experiment = prepare(&config);
    let mut engine = fleet(&experiment, CudaOptions::default());
    let whole = round_time(&experiment, &mut engine);
    println!("thin-resnet50, batch {batch}, {workers} workers: {whole:.3} ms a round");
}

/// Where a round's time goes, and how fast models are scored.
fn parts(experiment: &Experiment, engine: &mut CudaEngine) {
    const TIMES: usize = 20;
    let time = |work: &mut dyn FnMut()| {
        work();
        let began = Instant::now();
        (0..TIMES).for_each(|_| work());
        began.elapsed().as_secs_f64() * 1e3 / TIMES as f64
    };
    let plans = row_plans(&parts_of(&Dpsgd::default(), experiment));
    let everyone = rows(8);
    // Everything is prepared ahead; the losses are read in every round, or once in twenty.
    let read = time(&mut || {
        for round in 0..TIMES as u64 {
            drop(engine.step(&turns(8, round)).expect("an engine that works"));
            engine.exchange(&plans, vec![], MixOptions::default()).expect("an engine that works");
        }
    }) / TIMES as f64;
    let unread = time(&mut || {
        for round in 0..TIMES as u64 {
            engine.launch(&turns(8, round)).expect("an engine that works");
            engine.exchange(&plans, vec![], MixOptions::default()).expect("an engine that works");
        }
        engine.losses().expect("an engine that works");
    }) / TIMES as f64;
    let mixings = time(&mut || {
        for _ in 0..TIMES {
            engine.wait_with(0.0);
            engine.exchange(&plans, vec![], MixOptions::default()).expect("an engine that works");
        }
        engine.consensus_distance(&everyone).expect("an engine that works");
    });
    let waiting = time(&mut || {
        engine.consensus_distance(&everyone).expect("an engine that works");
    });
    let mut images = 0;
    let scoring = time(&mut || {
        let score = |worker| engine.score(RowIndex(worker), Split::LocalTrain).expect("an engine that works").examples;
        images = (0..8).map(score).sum();
    });
    println!(
        "    losses read {read:.3} ms, not read {unread:.3} ms ({:+.1} %); a step with its mixing \
         {:.3} ms; scoring {:.0} images/s",
        100.0 * (read / unread - 1.0),
        (mixings - waiting) / TIMES as f64,
        1e3 * images as f64 / scoring
    );
}
