//! Mixing beside the machine's memory bandwidth, and AL-DSGD's plans beside D-PSGD's.
//!
//! `cargo bench -p upwash` prints one table: eight workers on L1. `part of copy` is how near mixing
//! comes to copying memory, where every number of X and U is counted as read once and every number
//! of X as written once; copying counts a read and a write a number. Both use all cores. The copy is
//! of 256 MB, far more than any cache holds: small models are mixed within the cache in part, and can
//! come out above it.

use rayon::prelude::*;
use std::hint::black_box;
use std::time::{Duration, Instant};
use upwash::algorithm::{AlDsgd, Algorithm, Dpsgd, Plan, Report, Variant, View};
use upwash::mix::mix;
use upwash_topology::{GraphSpec, Round, Schedule, Weights};

const WORKERS: usize = 8;

fn main() {
    let graph = "paper:L1"
        .parse::<GraphSpec>()
        .and_then(|spec| spec.build())
        .expect("L1");
    let round = Schedule::fixed(&graph, &Weights::Optimal)
        .expect("weights")
        .round(0);
    println!(
        "{WORKERS} workers on L1, {} threads",
        rayon::current_num_threads()
    );
    println!("parameters  algorithm   ms a round    GB/s  copy GB/s  part of copy");
    let copy = copy_bandwidth(64 << 20);
    for parameters in [545_930, 5_000_000, 25_000_000] {
        let mut models = vec![0.5f32; WORKERS * parameters];
        let updates = vec![0.001f32; WORKERS * parameters];
        let al_dsgd = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Sound);
        for (name, algorithm) in [
            ("D-PSGD", &Dpsgd::default() as &dyn Algorithm),
            ("AL-DSGD", &al_dsgd),
        ] {
            let time = fastest(|| {
                let plans = plans(algorithm, &round);
                mix(
                    &mut models,
                    &updates,
                    parameters,
                    algorithm.message(),
                    &plans,
                );
            });
            let moved = (3 * WORKERS * parameters * size_of::<f32>()) as f64;
            let rate = moved / time.as_secs_f64() / 1e9;
            println!(
                "{parameters:>10}  {name:<9} {:>12.3} {rate:>7.2} {:>10.2} {:>12.0} %",
                1e3 * time.as_secs_f64(),
                copy / 1e9,
                100.0 * rate * 1e9 / copy
            );
        }
    }
}

fn plans(algorithm: &dyn Algorithm, round: &Round) -> Vec<Plan> {
    let report = |i: usize| Report {
        loss: Some((i * 5 % 8) as f64),
        degree: round.degree(i),
    };
    let plan = |worker: usize| {
        let received: Vec<_> = round.senders(worker).map(|j| (j, report(j))).collect();
        let own = report(worker);
        algorithm.plan(&View {
            worker,
            round,
            rate: 0.1,
            own,
            received: &received,
        })
    };
    (0..WORKERS).map(plan).collect()
}

/// Bytes read and written a second by a plain copy of `count` numbers on all cores.
fn copy_bandwidth(count: usize) -> f64 {
    let from = vec![1.0f32; count];
    let mut to = vec![0.0f32; count];
    let time = fastest(|| {
        let pieces = to.par_chunks_mut(1 << 16).zip(from.par_chunks(1 << 16));
        pieces.for_each(|(to, from)| to.copy_from_slice(from));
        black_box(&to);
    });
    (2 * count * size_of::<f32>()) as f64 / time.as_secs_f64()
}

/// The shortest of many runs, after one to warm up.
fn fastest(mut work: impl FnMut()) -> Duration {
    work();
    let began = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 5 || (began.elapsed() < Duration::from_secs(2) && runs < 200) {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed());
        runs += 1;
    }
    best
}
