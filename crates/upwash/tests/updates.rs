//! Checks the update rules against exact trajectories: four workers on a path, one parameter each,
//! F_i(x) = a_i (x - b_i)^2 / 2 with exact gradients. The expected values were computed with exact fractions.

#![allow(clippy::unwrap_used)]

mod common;

use common::Simulation;
use upwash::WorkerId;
use upwash::algorithm::{
    AlDsgd, Algorithm, Dpsgd, Exchange, ExchangeContext, LeaderCoefficients, LocalView, Variant, WorkerStats,
};
use upwash::engine::{MixOptions, WorkerVectors, exchange};
use upwash_testkit::row_plans;
use upwash_topology::{GraphSpec, Round, Schedule, Weights};

const A: [f64; 4] = [1.0, 2.0, 3.0, 4.0];
const B: [f64; 4] = [1.0, -1.0, 2.0, 0.5];
const START: [f64; 4] = [0.0, 1.0, -1.0, 2.0];
const RATE: f64 = 0.1;

fn path() -> Schedule {
    let path = "path:4".parse::<GraphSpec>().unwrap().build().unwrap();
    Schedule::fixed(&path, &Weights::Optimal).unwrap()
}

/// One round of the reference implementation, in double precision.
fn step(algorithm: &dyn Algorithm, round: &Round, x: &[f64], u: &[f64], losses: &[f64]) -> Vec<f64> {
    let mut simulation = Simulation::new(algorithm, x);
    simulation.u = u.to_vec();
    simulation.exchange(algorithm, round, RATE, losses);
    simulation.x
}

fn trajectory(algorithm: &dyn Algorithm, rounds: usize) -> Vec<Vec<f64>> {
    let mut x = START.to_vec();
    let mut all = vec![x.clone()];
    for k in 0..rounds {
        let u: Vec<f64> = (0..4).map(|i| RATE * A[i] * (x[i] - B[i])).collect();
        let losses: Vec<f64> = (0..4).map(|i| A[i] * (x[i] - B[i]).powi(2) / 2.0).collect();
        x = step(algorithm, &path().round(k as u64), &x, &u, &losses);
        all.push(x.clone());
    }
    all
}

fn check(algorithm: &dyn Algorithm, expected: &[(usize, [f64; 4])]) {
    let found = trajectory(algorithm, 10);
    for (round, values) in expected {
        for i in 0..4 {
            let (x, known) = (found[*round][i], values[i]);
            assert!((x - known).abs() < 1e-9, "{algorithm:?}, round {round}, worker {i}: {x}, not {known}");
        }
    }
}

fn al_dsgd(variant: Variant) -> AlDsgd {
    AlDsgd::new(Box::new(Dpsgd::default()), variant)
}

#[test]
fn dpsgd_adapts_then_combines() {
    check(
        &Dpsgd::default(),
        &[
            (1, [0.35, 0.0, 1.0, 0.65]),
            (2, [0.1075, 0.8575, 0.195, 0.945]),
            (3, [0.341375, 0.466625, 0.6265, 0.75175]),
            (10, [0.423269198957, 0.725243375067, 0.534971605141, 0.836945781251]),
        ],
    );
}

#[test]
fn dpsgd_combines_then_adapts() {
    check(
        &Dpsgd { overlap: true, ..Default::default() },
        &[(1, [0.6, -0.9, 2.4, -0.1]), (2, [-0.11, 1.48, -0.62, 1.39]), (3, [0.796, -0.861, 2.221, 0.029])],
    );
}

#[test]
fn written_variant_matches_exact_trajectory() {
    check(
        &al_dsgd(Variant::Written),
        &[
            (1, [0.544, -0.3, 1.4, 0.248]),
            (2, [0.136864, 0.802, -0.026, 0.868928]),
            (3, [0.506617984, 0.138232, 0.835464, 0.358855808]),
            (10, [0.507416873634, 0.502746205917, 0.463471272498, 0.487661436439]),
        ],
    );
}

#[test]
fn released_variant_matches_exact_trajectory() {
    check(
        &al_dsgd(Variant::Released),
        &[
            (1, [0.32, 0.194, 0.562, 0.74]),
            (2, [0.197568, 0.384444, 0.61086, 0.797736]),
            (3, [0.20289856, 0.368506984, 0.666575752, 0.832184176]),
        ],
    );
}

/// With one matching up, every worker has one link. No neighbor is better connected, so the pull toward the
/// best-connected one, which is half of the method, is a pull of each worker toward itself.
#[test]
fn released_links_leave_no_better_connected_leader() {
    let l1 = "paper:L1".parse::<GraphSpec>().unwrap().build().unwrap();
    let schedule = Schedule::released_flags(&l1).unwrap();
    let algorithm = al_dsgd(Variant::Released);
    for index in 0..4 {
        let round = schedule.round(index);
        let stats = |worker: usize| WorkerStats {
            loss: Some(1.0 / (1 + worker) as f64),
            degree: round.degree(worker),
            scalar: 1.0,
        };
        let stats: Vec<WorkerStats> = (0..8).map(stats).collect();
        let plans = Exchange::Neighbors.plans(&algorithm, &ExchangeContext::new(&round, RATE), &stats);
        let led = plans.iter().filter(|plan| plan.plan.leaders.is_some());
        assert!(led.clone().count() >= 4);
        for plan in led {
            assert_eq!(plan.plan.leaders.unwrap()[1], plan.worker);
        }
    }
}

#[test]
fn sound_variant_matches_exact_trajectory() {
    check(
        &al_dsgd(Variant::Sound),
        &[
            (1, [0.355, 0.065, 0.934, 0.635]),
            (2, [0.130075, 0.702145, 0.195754, 0.924128]),
            (3, [0.290838235, 0.438069985, 0.554517772, 0.74557781]),
            (10, [0.334326003244, 0.598472940166, 0.469579458275, 0.808129380329]),
        ],
    );
}

#[test]
fn al_dsgd_without_pull_equals_its_base() {
    let none = LeaderCoefficients { w_best: 0.0, w_degree: 0.0, lambda_best: 0.0, lambda_degree: 0.0 };
    for variant in [Variant::Sound, Variant::Released] {
        let mut led = al_dsgd(variant);
        led.pull = none;
        assert_eq!(trajectory(&led, 10), trajectory(&Dpsgd::default(), 10));
    }
    // `written` is then A = W, C = diag W: the inner workers of the path do not learn at all.
    let mut written = al_dsgd(Variant::Written);
    written.pull = none;
    let first = &trajectory(&written, 1)[1];
    let expected = [0.5 * (0.0 + 1.0) - 0.5 * RATE * (0.0 - 1.0), -0.5, 1.5];
    (0..3).for_each(|i| assert!((first[i] - expected[i]).abs() < 1e-12, "{first:?}"));
}

#[test]
fn worker_without_neighbors_takes_a_plain_step() {
    let round = Schedule::one_peer_exponential(1).round(0);
    for variant in [Variant::Sound, Variant::Written, Variant::Released] {
        let x = step(&al_dsgd(variant), &round, &[3.0], &[0.5], &[1.0]);
        assert_eq!(x, [2.5], "{variant:?}");
    }
}

#[test]
fn each_worker_is_its_own_best_until_losses_are_known() {
    let round = path().round(0);
    let unknown = |degree| WorkerStats { loss: None, degree, scalar: 1.0 };
    let view = LocalView {
        worker: WorkerId(1),
        context: ExchangeContext::new(&round, 0.0),
        own: unknown(2),
        received: &[(WorkerId(0), unknown(1)), (WorkerId(2), unknown(2))],
    };
    let plan = AlDsgd::new(Box::new(Dpsgd { overlap: true, ..Default::default() }), Variant::Sound).plan(&view);
    // W_11 = 0, so its own weight is w_best + w_degree: worker 1 wins the tie with worker 2.
    assert!((plan.assignments[0].messages[1].1 - 0.2).abs() < 1e-12, "{plan:?}");
}

/// One round of `overlap`, worked by hand: A = Z over the lazy W, C = I.
#[test]
fn al_dsgd_with_overlap_matches_a_round_by_hand() {
    let base = Dpsgd { overlap: true, lazy: true, ..Default::default() };
    let sound = AlDsgd::new(Box::new(base), Variant::Sound);
    assert!(sound.exchanges(0) == [Exchange::Early]);
    let u: Vec<f64> = (0..4).map(|i| RATE * A[i] * (START[i] - B[i])).collect();
    let found = step(&sound, &path().round(0), &START, &u, &[0.3, 0.1, 0.4, 0.2]);
    for (x, known) in found.iter().zip([0.52, 0.0, 1.34, 0.47]) {
        assert!((x - known).abs() < 1e-9, "{found:?}");
    }
    let base = Dpsgd { overlap: true, lazy: true, ..Default::default() };
    let written = AlDsgd::new(Box::new(base), Variant::Written);
    assert!(written.exchanges(0) == [Exchange::Early]);
}

/// Compares the single-precision kernel, over many columns, with the reference implementation in double precision.
#[test]
fn kernel_matches_the_reference_implementation() {
    let width = 40_003; // several blocks, the last one short
    for algorithm in [&al_dsgd(Variant::Sound) as &dyn Algorithm, &al_dsgd(Variant::Written), &Dpsgd::default()] {
        let value = |seed: usize, i: usize| ((i * 7919 + seed * 104_729) % 1000) as f64 / 500.0 - 1.0;
        let mut models: Vec<f32> = (0..4 * width).map(|i| value(1, i) as f32).collect();
        let updates: Vec<f32> = (0..4 * width).map(|i| value(2, i) as f32).collect();
        let before = models.clone();
        let losses = [0.3, 0.1, 0.4, 0.2];
        let round = path().round(0);
        let stats = |i: usize| WorkerStats { loss: Some(losses[i]), degree: round.degree(i), scalar: 1.0 };
        let stats = [0, 1, 2, 3].map(stats);
        let context = ExchangeContext::new(&round, RATE);
        let plans = Exchange::Neighbors.plans(algorithm, &context, &stats);
        let rows = models.chunks_mut(width).zip(updates.chunks(width));
        let rows = rows.map(|(model, step)| WorkerVectors { model, step, state_vectors: vec![] });
        exchange(rows.collect(), &[], &row_plans(&plans), MixOptions::default());
        for column in (0..width).step_by(997) {
            let pick =
                |buffer: &[f32]| -> Vec<f64> { (0..4).map(|row| f64::from(buffer[row * width + column])).collect() };
            let expected = step(algorithm, &round, &pick(&before), &pick(&updates), &losses);
            for (row, known) in expected.iter().enumerate() {
                let found = f64::from(models[row * width + column]);
                assert!((found - known).abs() < 1e-5, "{found} is not {known}");
            }
        }
    }
}
