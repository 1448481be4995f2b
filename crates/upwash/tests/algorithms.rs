//! Checks every algorithm against its equations in double precision, with results worked by hand or known from theory.
//! One file, because the algorithms share the small problems that they are tested on.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Quadratics, Simulation};
use upwash::algorithm::{
    AdPsgd, AlDsgd, Algorithm, AllReduce, AsyncEasgd, Choco, D2, DecentLaM, DiLoCo, Downpour, Dpsgd, Easgd, Epidemic,
    GoSgd, GossipPga, GradientTracking, LocalSgd, Lsgd, NoLoCo, ParameterServer, QgMomentum, Sgp, SlowMo, Variant,
};
use upwash::algorithm::{Assignment, InitialValue, LocalView, Outgoing, Plan, StateVector, Vector};
use upwash::compress::Compression;
use upwash_topology::{Graph, GraphSpec, Schedule, Weights};

const START: [f64; 4] = [0.0, 1.0, -1.0, 2.0];

fn problem() -> Quadratics {
    Quadratics { a: vec![1.0, 2.0, 3.0, 4.0], b: vec![1.0, -1.0, 2.0, 0.5] }
}

fn fixed(graph: &str) -> Schedule {
    let graph = graph.parse::<GraphSpec>().unwrap().build().unwrap();
    Schedule::fixed(&graph, &Weights::Metropolis).unwrap()
}

fn unconnected(workers: usize) -> Schedule {
    Schedule::fixed(&Graph::new(workers, []).unwrap(), &Weights::Metropolis).unwrap()
}

/// Runs some rounds. Returns the models after each round, and the simulation.
fn rounds(
    algorithm: &dyn Algorithm,
    schedule: &Schedule,
    mut simulation: Simulation,
    rate: f64,
    problem: &Quadratics,
    count: u64,
) -> (Vec<Vec<f64>>, Simulation) {
    let mut all = Vec::new();
    for k in 0..count {
        simulation.round(algorithm, schedule, k, rate, problem);
        all.push(simulation.x.clone());
    }
    (all, simulation)
}

fn run(algorithm: &dyn Algorithm, schedule: &Schedule, rate: f64, count: u64) -> Vec<Vec<f64>> {
    let simulation = Simulation::new(algorithm, &START);
    rounds(algorithm, schedule, simulation, rate, &problem(), count).0
}

fn assert_near(found: &[f64], known: &[f64], tolerance: f64) {
    assert_eq!(found.len(), known.len());
    for (x, y) in found.iter().zip(known) {
        assert!((x - y).abs() <= tolerance, "{found:?} is not {known:?}");
    }
}

fn assert_same(a: &[Vec<f64>], b: &[Vec<f64>]) {
    assert!(!a.is_empty() && a.len() == b.len());
    a.iter().zip(b).for_each(|(a, b)| assert_near(a, b, 1e-12));
}

#[test]
fn all_reduce_equals_one_worker_with_the_mean_gradient() {
    let problem = problem();
    let mut x = 0.25;
    let simulation = Simulation::new(&AllReduce, &[x; 4]);
    let (found, _) = rounds(&AllReduce, &unconnected(4), simulation, 0.1, &problem, 20);
    for models in found {
        let mean = (0..4).map(|i| problem.gradient(i, x)).sum::<f64>() / 4.0;
        x -= 0.1 * mean;
        assert_near(&models, &[x; 4], 1e-12);
    }
}

#[test]
fn local_sgd_averages_once_per_period() {
    // H = 1 is an all-reduce of models.
    let every = run(&LocalSgd { period: 1 }, &unconnected(4), 0.1, 10);
    assert_same(&every, &run(&AllReduce, &unconnected(4), 0.1, 10));
    // H = 2: a plain step of each worker, then the mean of the models after the second step.
    let found = run(&LocalSgd { period: 2 }, &unconnected(4), 0.1, 2);
    let problem = problem();
    let step = |x: &[f64]| -> Vec<f64> { (0..4).map(|i| x[i] - 0.1 * problem.gradient(i, x[i])).collect() };
    let (first, second) = (step(&START), step(&step(&START)));
    assert_near(&found[0], &first, 1e-12);
    assert_near(&found[1], &[second.iter().sum::<f64>() / 4.0; 4], 1e-12);
}

/// DiLoCo, written as its authors do: an outer optimizer (SGD with Nesterov momentum, as in PyTorch) gets the difference
/// between the last common model and the mean of the models as its gradient.
#[test]
fn diloco_takes_outer_nesterov_steps() {
    let (period, rate, momentum) = (3, 0.7, 0.9);
    let problem = problem();
    let equal = Simulation::new(&DiLoCo { period, rate, momentum }, &[0.5; 4]);
    let (found, _) = rounds(&DiLoCo { period, rate, momentum }, &unconnected(4), equal, 0.1, &problem, 12);
    let (mut common, mut buffer) = (0.5, 0.0);
    for outer in 0..4 {
        let mut models = [common; 4];
        for _ in 0..period {
            (0..4).for_each(|i| models[i] -= 0.1 * problem.gradient(i, models[i]));
        }
        let gradient = common - models.iter().sum::<f64>() / 4.0;
        buffer = momentum * buffer + gradient;
        common -= rate * (gradient + momentum * buffer);
        assert_near(&found[3 * outer + 2], &[common; 4], 1e-12);
    }
    // With the outer rate 1 and without momentum, it is local SGD.
    let plain = DiLoCo { period, rate: 1.0, momentum: 0.0 };
    assert_same(&run(&plain, &unconnected(4), 0.1, 9), &run(&LocalSgd { period: 3 }, &unconnected(4), 0.1, 9));
}

/// NoLoCo in its own terms: an outer gradient and the slow models of a pair, whose means enter the momentum.
#[test]
fn noloco_takes_outer_steps_in_pairs() {
    let (period, eta, mu) = (2, 0.7, 0.5);
    let noloco = NoLoCo { period, rate: eta, momentum: mu };
    let graph = "complete:4".parse::<GraphSpec>().unwrap().build().unwrap();
    let schedule = Schedule::random_matching(&graph, 5);
    let problem = problem();
    let simulation = Simulation::new(&noloco, &START);
    let (found, _) = rounds(&noloco, &schedule, simulation, 0.1, &problem, 8);
    let (mut slow, mut momentum) = (START, [0.0; 4]);
    for outer in 0..4u64 {
        let mut fast = slow;
        for _ in 0..period {
            (0..4).for_each(|i| fast[i] -= 0.1 * problem.gradient(i, fast[i]));
        }
        let round = schedule.round(period * outer + 1);
        let mut pairs = [[0, 0]; 4];
        (0..4).for_each(|i| pairs[i] = [i, i]);
        round.links().iter().for_each(|&(a, b)| (pairs[a], pairs[b]) = ([a, b], [a, b]));
        assert_eq!(round.links().len(), 2);
        let (before, outer_gradient): (_, Vec<f64>) = (slow, (0..4).map(|i| fast[i] - slow[i]).collect());
        for i in 0..4 {
            let [a, b] = pairs[i];
            let gradient = (outer_gradient[a] + outer_gradient[b]) / 2.0;
            let apart = before[i] - (before[a] + before[b]) / 2.0;
            momentum[i] = mu * momentum[i] + eta * gradient - eta * apart;
            slow[i] = before[i] + momentum[i];
        }
        assert_near(&found[(period * outer + 1) as usize], &slow, 1e-12);
    }
}

/// DecentLaM: without momentum it is D-PSGD. With momentum, workers end at the same distance from the optimum as D-PSGD
/// does without, where D-PSGD with momentum ends farther away.
#[test]
fn decentlam_has_the_bias_of_dpsgd_without_momentum() {
    let ring = fixed("ring:4");
    let plain = run(&Dpsgd { lazy: true, ..Default::default() }, &ring, 0.02, 4000);
    let without = run(&DecentLaM { lazy: true }, &ring, 0.02, 4000);
    assert_same(&plain[..50], &without[..50]);
    let simulation = Simulation { momentum: 0.8, ..Simulation::new(&DecentLaM { lazy: true }, &START) };
    let (with, _) = rounds(&DecentLaM { lazy: true }, &ring, simulation, 0.02, &problem(), 4000);
    assert_near(&with[3999], &plain[3999], 1e-9);
    // It is the fixed point of D-PSGD, not the optimum itself.
    assert!(plain[3999].iter().any(|x| (x - problem().optimum()).abs() > 1e-3));
}

/// Epidemic Learning: every worker takes the plain mean of its own stepped model and those that it has received.
#[test]
fn epidemic_learning_averages_what_arrives() {
    let epidemic = Epidemic { fanout: 2, base: Dpsgd::default() };
    let schedule = Schedule::random_out(4, 2, 3);
    let found = run(&epidemic, &schedule, 0.1, 6);
    let (problem, mut x) = (problem(), START);
    for (k, found) in found.iter().enumerate() {
        let stepped: Vec<f64> = (0..4).map(|i| x[i] - 0.1 * problem.gradient(i, x[i])).collect();
        let round = schedule.round(k as u64);
        for (i, x) in x.iter_mut().enumerate() {
            let senders = round.links().iter().filter(|link| link.1 == i).map(|link| link.0);
            let heard: Vec<f64> = senders.chain([i]).map(|j| stepped[j]).collect();
            *x = heard.iter().sum::<f64>() / heard.len() as f64;
        }
        assert!((0..4).all(|i| round.links().iter().filter(|link| link.0 == i).count() == 2));
        assert_near(found, &x, 1e-12);
    }
    assert_ne!(schedule.round(0).links(), schedule.round(1).links());
}

#[test]
fn gossip_pga_reduces_to_dpsgd_and_to_all_reduce() {
    let base = Dpsgd::default();
    let pga = |period| GossipPga { period, base };
    let path = fixed("path:4");
    assert_same(&run(&pga(u64::MAX), &path, 0.1, 20), &run(&base, &path, 0.1, 20));
    assert_same(&run(&pga(1), &path, 0.1, 20), &run(&AllReduce, &path, 0.1, 20));
    let mixed = run(&pga(3), &path, 0.1, 3);
    assert!(mixed[1][0] != mixed[1][3]);
    assert!((mixed[2][0] - mixed[2][3]).abs() < 1e-15);
}

#[test]
fn parameter_server_equals_all_reduce() {
    // From equal starts. The server is worker 0.
    let with_server = Quadratics { a: [vec![0.0], problem().a].concat(), b: [vec![0.0], problem().b].concat() };
    let equal = Simulation::new(&AllReduce, &[0.5; 4]);
    let (known, _) = rounds(&AllReduce, &unconnected(4), equal, 0.1, &problem(), 8);
    let mut simulation = Simulation::new(&ParameterServer, &[0.5; 5]);
    simulation.server = Some(0.into());
    let (found, _) = rounds(&ParameterServer, &unconnected(5), simulation, 0.1, &with_server, 8);
    for (found, known) in found.iter().zip(known) {
        assert_near(&found[1..], &known, 1e-12);
        assert!((found[0] - known[0]).abs() < 1e-12);
    }
}

/// Two workers and a server: x_1 = 1, x_2 = 3, c = 0; F_i = (x - b_i)^2 / 2, b = (2, 0); rate 0.1,
/// beta 0.8, so alpha 0.4. By the paper's two equations:
/// x_1' = 1 - 0.1 (1 - 2) - 0.4 (1 - 0) = 0.7,  x_2' = 3 - 0.1 (3 - 0) - 0.4 (3 - 0) = 1.5,
/// c' = 0.2 * 0 + 0.8 * (1 + 3)/2 = 1.6. Then
/// x_1'' = 0.7 + 0.13 - 0.4 (0.7 - 1.6) = 1.19, x_2'' = 1.5 - 0.15 - 0.4 (1.5 - 1.6) = 1.39,
/// c'' = 0.2 * 1.6 + 0.8 * 1.1 = 1.2.
#[test]
fn easgd_follows_its_two_equations() {
    let problem = Quadratics { a: vec![0.0, 1.0, 1.0], b: vec![0.0, 2.0, 0.0] };
    let easgd = Easgd { beta: 0.8, period: 1 };
    let mut simulation = Simulation::new(&easgd, &[0.0, 1.0, 3.0]);
    simulation.server = Some(0.into());
    let (found, _) = rounds(&easgd, &unconnected(3), simulation.clone(), 0.1, &problem, 2);
    assert_near(&found[0], &[1.6, 0.7, 1.5], 1e-12);
    assert_near(&found[1], &[1.2, 1.19, 1.39], 1e-12);
    // Without elasticity, the workers are independent and the server does not move.
    let none = Easgd { beta: 0.0, period: 1 };
    let (found, _) = rounds(&none, &unconnected(3), simulation.clone(), 0.1, &problem, 1);
    assert_near(&found[0], &[0.0, 1.1, 2.7], 1e-12);
    // An exchange in every second round only.
    let rare = Easgd { beta: 0.8, period: 2 };
    let (found, _) = rounds(&rare, &unconnected(3), simulation.clone(), 0.1, &problem, 2);
    assert_near(&found[0], &[0.0, 1.1, 2.7], 1e-12);
    assert_near(&found[1], &[1.52, 0.75, 1.35], 1e-12);

    // Asynchronous: worker 1 exchanges with the server, then worker 2 does.
    let elastic = AsyncEasgd(easgd);
    simulation.u = vec![0.0, -0.1, 0.3];
    simulation.async_step(&elastic, 1, 0, &[0]);
    assert_near(&simulation.x, &[0.4, 0.7, 3.0], 1e-12);
    simulation.async_step(&elastic, 2, 0, &[0]);
    assert_near(&simulation.x, &[0.4 + 0.4 * 2.6, 0.7, 3.0 - 0.3 - 0.4 * 2.6], 1e-12);
}

/// With losses 2, 1, 4, 3 the leader of the first group is worker 1, of the second worker 3, and of all worker 1.
#[test]
fn lsgd_pulls_toward_both_leaders() {
    let lsgd = Lsgd { groups: 2, local: 0.1, global: 0.2, period: 1 };
    let mut simulation = Simulation::plain(&START);
    simulation.u = vec![0.5, 0.0, 0.0, -0.5];
    simulation.exchange(&lsgd, &unconnected(4).round(0), 0.1, &[2.0, 1.0, 4.0, 3.0]);
    let known = [
        0.0 - 0.5 - 0.1 * (0.0 - 1.0) - 0.2 * (0.0 - 1.0),
        1.0, // it leads itself
        -1.0 - 0.1 * (-1.0 - 2.0) - 0.2 * (-1.0 - 1.0),
        2.0 + 0.5 - 0.2 * (2.0 - 1.0),
    ];
    assert_near(&simulation.x, &known, 1e-12);
}

/// Two rounds of local steps, then: mean 1.0 -> s = 0.5 s + (a - mean)/gamma, x = a - alpha gamma s.
#[test]
fn slowmo_follows_its_equations() {
    let slowmo = SlowMo { base: Box::new(LocalSgd { period: u64::MAX }), rate: 0.8, momentum: 0.5, period: 2 };
    let problem = problem();
    let (mut anchor, mut slow, mut x) = (0.3, 0.0, [0.3; 4]);
    let simulation = Simulation::new(&slowmo, &x);
    let (found, _) = rounds(&slowmo, &unconnected(4), simulation, 0.1, &problem, 6);
    for (k, models) in found.iter().enumerate() {
        for (i, x) in x.iter_mut().enumerate() {
            *x -= 0.1 * problem.gradient(i, *x);
        }
        if k % 2 == 1 {
            let mean = x.iter().sum::<f64>() / 4.0;
            slow = 0.5 * slow + (anchor - mean) / 0.1;
            anchor -= 0.8 * 0.1 * slow;
            x = [anchor; 4];
        }
        assert_near(models, &x, 1e-12);
    }
}

/// Every step is divided by the rate that it was taken with, also if the rate changes within a period. Checked for a
/// base that averages in the round of the slow step and for one that does not.
#[test]
fn slowmo_divides_every_step_by_its_own_rate() {
    let problem = problem();
    let rates = [0.1, 0.1, 0.04, 0.04, 0.02, 0.1, 0.03, 0.0, 0.05, 0.06, 0.07, 0.08];
    for inner in [u64::MAX, 4] {
        let slowmo = SlowMo { base: Box::new(LocalSgd { period: inner }), rate: 0.8, momentum: 0.5, period: 4 };
        let mut simulation = Simulation::new(&slowmo, &[0.3; 4]);
        let (mut anchor, mut slow, mut x) = (0.3, 0.0, [0.3; 4]);
        let mut steps = [0.0; 4];
        for (k, rate) in rates.into_iter().enumerate() {
            simulation.round(&slowmo, &unconnected(4), k as u64, rate, &problem);
            for (i, x) in x.iter_mut().enumerate() {
                let gradient = problem.gradient(i, *x);
                steps[i] += if rate > 0.0 { gradient } else { 0.0 };
                *x -= rate * gradient;
            }
            if k % 4 == 3 && rate > 0.0 {
                slow = 0.5 * slow + steps.iter().sum::<f64>() / 4.0;
                anchor -= 0.8 * rate * slow;
            } else if k % 4 == 3 {
                anchor = x.iter().sum::<f64>() / 4.0; // without a step, only the average
            }
            if k % 4 == 3 {
                (x, steps) = ([anchor; 4], [0.0; 4]);
            }
            assert_near(&simulation.x, &x, 1e-12);
        }
    }
}

/// With alpha = 1 and no slow momentum, the slow step is just the exact average.
#[test]
fn slowmo_without_momentum_only_averages() {
    let plain = |base| SlowMo { base, rate: 1.0, momentum: 0.0, period: 3 };
    let slow = plain(Box::new(LocalSgd { period: u64::MAX }));
    let local = LocalSgd { period: 3 };
    let simulation = |algorithm: &dyn Algorithm| Simulation::new(algorithm, &[0.5; 4]);
    let (a, _) = rounds(&slow, &unconnected(4), simulation(&slow), 0.1, &problem(), 9);
    let (b, _) = rounds(&local, &unconnected(4), simulation(&local), 0.1, &problem(), 9);
    assert_same(&a, &b);
    // Over push-sum, the average uses the push-sum weights, so it preserves the weighted sum.
    let sgp = plain(Box::new(Sgp));
    let edges = Schedule::directed(4, &[(0, 1), (0, 2), (1, 2), (2, 3), (3, 0)]).unwrap();
    let simulation = Simulation::new(&sgp, &START);
    let flat = Quadratics { a: vec![0.0; 4], b: vec![0.0; 4] };
    let (found, simulation) = rounds(&sgp, &edges, simulation, 0.1, &flat, 3);
    assert_near(&found[2], &[0.5; 4], 1e-12); // the mean of the starting models
    assert_near(&simulation.scalars, &[1.0; 4], 1e-12);
}

#[test]
fn d2_and_gradient_tracking_reach_the_optimum_where_dpsgd_does_not() {
    let (ring, optimum) = (fixed("ring:4"), problem().optimum());
    let error = |algorithm: &dyn Algorithm| {
        let last = run(algorithm, &ring, 0.05, 3000).pop().unwrap();
        last.iter().map(|x| (x - optimum).abs()).fold(0.0, f64::max)
    };
    assert!(error(&D2 { lazy: true }) < 1e-9);
    assert!(error(&GradientTracking { lazy: false }) < 1e-9);
    assert!(error(&GradientTracking { lazy: true }) < 1e-9);
    assert!(error(&Dpsgd::default()) > 1e-2);
    // SlowMo jumps, and the state of D2 jumps with the model.
    let slow = SlowMo { base: Box::new(D2 { lazy: true }), rate: 1.0, momentum: 0.2, period: 7 };
    assert!(error(&slow) < 1e-9, "{}", error(&slow));
}

/// Converges to the optimum, then cuts the learning rate to a tenth. Returns the largest distance of a worker from the
/// optimum after the cut.
fn distance_after_rate_cut(algorithm: &dyn Algorithm) -> f64 {
    let (ring, optimum) = (fixed("ring:4"), problem().optimum());
    let simulation = Simulation::new(algorithm, &START);
    let (_, simulation) = rounds(algorithm, &ring, simulation, 0.05, &problem(), 3000);
    let (after, _) = rounds(algorithm, &ring, simulation, 0.005, &problem(), 100);
    let distance = |models: &Vec<f64>| models.iter().map(|x| (x - optimum).abs()).fold(0.0, f64::max);
    after.iter().map(distance).fold(0.0, f64::max)
}

/// A worker's own gradient is not 0 at the common optimum, so the stored corrections must follow the rate.
#[test]
fn rate_cut_does_not_move_workers_away_from_the_optimum() {
    assert!(distance_after_rate_cut(&D2 { lazy: true }) < 1e-12);
    assert!(distance_after_rate_cut(&GradientTracking { lazy: false }) < 1e-12);
    assert!(distance_after_rate_cut(&GradientTracking { lazy: true }) < 1e-12);
}

/// In every round the mean of all models moves by the mean step, for any schedule of the rate: warm-up from 0, a cut, a
/// cosine.
#[test]
fn d2_and_gradient_tracking_move_the_mean_by_the_mean_step() {
    let (path, problem) = (fixed("path:4"), problem());
    let rate = |k: u64| match k {
        0..10 => 0.01 * k as f64,
        10..30 => 0.1,
        30..50 => 0.01,
        _ => 0.05 * (1.0 + (k as f64 / 30.0).cos()),
    };
    let algorithms: [&dyn Algorithm; 2] = [&D2 { lazy: true }, &GradientTracking { lazy: false }];
    for algorithm in algorithms {
        let mut simulation = Simulation::new(algorithm, &START);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        for k in 0..90 {
            let before = mean(&simulation.x);
            simulation.round(algorithm, &path, k, rate(k), &problem);
            let expected = before - mean(&simulation.u);
            assert!((mean(&simulation.x) - expected).abs() < 1e-12, "{algorithm:?}, round {k}");
        }
    }
}

/// D2 as published, with the models and steps of the previous round.
#[derive(Debug)]
struct PublishedD2;

impl Algorithm for PublishedD2 {
    fn messages(&self, _: &LocalView<'_>) -> Vec<Outgoing> {
        vec![Outgoing::of([
            (Vector::Model, 2.0),
            (Vector::State(0), -1.0),
            (Vector::Step, -1.0),
            (Vector::State(1), 1.0),
        ])]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        [
            Assignment::of(Vector::State(0), [(Vector::Model, 1.0)]),
            Assignment::of(Vector::State(1), [(Vector::Step, 1.0)]),
            Assignment::mixed(Vector::Model, view.weights(true)),
        ]
        .into()
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        let vector = |name, start| StateVector { name, start };
        vec![vector("model before", InitialValue::Model), vector("step before", InitialValue::Zero)]
    }
}

/// At a constant rate D2 equals the published form. Under SlowMo both reach the optimum: the state of the published
/// form jumps with the model.
#[test]
fn d2_matches_the_published_form_at_a_constant_rate() {
    let path = fixed("path:4");
    assert_same(&run(&D2 { lazy: true }, &path, 0.1, 40), &run(&PublishedD2, &path, 0.1, 40));
    let slow = |base| SlowMo { base, rate: 1.0, momentum: 0.2, period: 7 };
    let bases: [Box<dyn Algorithm>; 2] = [Box::new(PublishedD2), Box::new(D2 { lazy: true })];
    for base in bases {
        let found = run(&slow(base), &path, 0.05, 3000);
        let optimum = problem().optimum();
        assert_near(found.last().unwrap(), &[optimum; 4], 1e-9);
    }
}

/// x' = W (2 x - x_before - u + u_before), two rounds by hand on two workers: (I + W)/2 with W = [[.5, .5]].
#[test]
fn d2_follows_its_equation() {
    let problem = Quadratics { a: vec![1.0, 1.0], b: vec![0.0, 4.0] };
    let d2 = D2 { lazy: true };
    let simulation = Simulation::new(&d2, &[1.0, 3.0]);
    let (found, _) = rounds(&d2, &fixed("path:2"), simulation, 0.5, &problem, 2);
    // u = (0.5, -0.5); y = (0.5, 3.5); W = [[.75, .25], [.25, .75]].
    assert_near(&found[0], &[1.25, 2.75], 1e-12);
    // u = (0.625, -0.625); y = 2 x - before - u + u_before = (1.375, 2.625).
    assert_near(&found[1], &[1.6875, 2.3125], 1e-12);
}

/// Worker 0 of this directed graph sends to two workers, the others send to one: the graph is not balanced.
#[test]
fn push_sum_averages_exactly_where_plain_averaging_does_not() {
    let edges = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 0)];
    let schedule = Schedule::directed(4, &edges).unwrap();
    let flat = Quadratics { a: vec![0.0; 4], b: vec![0.0; 4] };
    let simulation = Simulation::new(&Sgp, &START);
    let (found, simulation) = rounds(&Sgp, &schedule, simulation, 0.1, &flat, 300);
    assert_near(&found[299], &[0.5; 4], 1e-12);
    assert!((simulation.scalars.iter().sum::<f64>() - 4.0).abs() < 1e-12);
    let simulation = Simulation::new(&Dpsgd::default(), &START);
    let (found, _) = rounds(&Dpsgd::default(), &schedule, simulation, 0.1, &flat, 300);
    assert!((found[299][0] - 0.5).abs() > 0.03, "{:?}", found[299]);
    // With gradients, each round decreases the sum of w z by the sum of all steps.
    let simulation = Simulation::new(&Sgp, &START);
    let (_, after) = rounds(&Sgp, &schedule, simulation, 0.05, &problem(), 7);
    let sum = |simulation: &Simulation| -> f64 {
        let pairs = simulation.x.iter().zip(&simulation.scalars);
        pairs.map(|(z, w)| z * w).sum()
    };
    let mut next = after.clone();
    next.round(&Sgp, &schedule, 7, 0.05, &problem());
    let steps: f64 = next.u.iter().sum();
    assert!((sum(&next) - (sum(&after) - steps)).abs() < 1e-12);
}

/// m' = beta m + (1 - beta) (x - x') / gamma, on one worker: SGD with momentum along its own trajectory.
#[test]
fn quasi_global_momentum_follows_its_equations() {
    let problem = Quadratics { a: vec![1.0], b: vec![2.0] };
    let qg = QgMomentum { lazy: false };
    let mut simulation = Simulation::new(&qg, &[0.0]);
    simulation.momentum = 0.9;
    let (found, _) = rounds(&qg, &unconnected(1), simulation, 0.1, &problem, 3);
    let (mut x, mut m) = (0.0, 0.0);
    for models in found {
        let next = x - 0.1 * (problem.gradient(0, x) + 0.9 * m);
        m = 0.9 * m + 0.1 * (x - next) / 0.1;
        x = next;
        assert_near(&models, &[x], 1e-12);
    }
    // Without momentum it equals D-PSGD.
    assert_same(&run(&qg, &fixed("path:4"), 0.1, 10), &run(&Dpsgd::default(), &fixed("path:4"), 0.1, 10));
}

#[test]
fn choco_without_compression_equals_dpsgd() {
    let choco = Choco { compression: Compression::None, step: 1.0 };
    let path = fixed("path:4");
    assert_same(&run(&choco, &path, 0.1, 20), &run(&Dpsgd::default(), &path, 0.1, 20));
    // Half the step: y + (W y - y) / 2, which is lazy averaging.
    let half = Choco { step: 0.5, ..choco };
    let lazy = Dpsgd { lazy: true, ..Default::default() };
    assert_same(&run(&half, &path, 0.1, 20), &run(&lazy, &path, 0.1, 20));
    // Under AL-DSGD it equals AL-DSGD over D-PSGD.
    let led = |base| AlDsgd::new(base, Variant::Sound);
    assert_same(&run(&led(Box::new(choco)), &path, 0.1, 20), &run(&led(Box::<Dpsgd>::default()), &path, 0.1, 20));
}

/// Rounds with an exact average have no leaders.
#[test]
fn al_dsgd_over_gossip_pga_pulls_only_between_averages() {
    let base = GossipPga { period: 3, base: Dpsgd::default() };
    let led = AlDsgd::new(Box::new(base), Variant::Sound);
    let plain = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Sound);
    let path = fixed("path:4");
    let (a, b) = (run(&led, &path, 0.1, 3), run(&plain, &path, 0.1, 3));
    assert_same(&a[..2], &b[..2]);
    assert!((a[2][0] - a[2][3]).abs() < 1e-15 && (b[2][0] - b[2][3]).abs() > 1e-3);
}

#[test]
fn ad_psgd_changes_the_mean_only_by_steps() {
    let mut simulation = Simulation::plain(&START);
    simulation.u = vec![0.1, -0.2, 0.3, 0.0];
    let ring = [[1, 3], [0, 2], [1, 3], [0, 2]];
    let mut expected: f64 = START.iter().sum();
    for (step, worker) in [0, 2, 1, 3, 3, 0, 1, 2].into_iter().enumerate() {
        simulation.async_step(&AdPsgd, worker, step as u64, &ring[worker]);
        expected -= simulation.u[worker];
        assert!((simulation.x.iter().sum::<f64>() - expected).abs() < 1e-12);
    }
    // By hand: worker 0 and its only neighbor, worker 1.
    let mut pair = Simulation::plain(&[2.0, 4.0]);
    pair.u = vec![0.5, 9.0];
    pair.async_step(&AdPsgd, 0, 0, &[1]);
    assert_near(&pair.x, &[2.5, 3.0], 1e-12);
}

#[test]
fn gosgd_changes_the_weighted_sum_only_by_steps() {
    let mut simulation = Simulation::plain(&START);
    simulation.u = vec![0.1, -0.2, 0.3, 0.0];
    let gosgd = GoSgd { probability: 1.0 };
    let sum = |simulation: &Simulation| -> f64 {
        let pairs = simulation.x.iter().zip(&simulation.scalars);
        pairs.map(|(x, w)| x * w).sum()
    };
    for (step, worker) in [0, 2, 1, 3, 3, 0].into_iter().enumerate() {
        let stepped = sum(&simulation) - simulation.scalars[worker] * simulation.u[worker];
        let others: Vec<usize> = (0..4).filter(|&i| i != worker).collect();
        simulation.async_step(&gosgd, worker, step as u64, &others);
        assert!((sum(&simulation) - stepped).abs() < 1e-12);
        assert!((simulation.scalars.iter().sum::<f64>() - 4.0).abs() < 1e-12);
    }
    let never = GoSgd { probability: 0.0 };
    let mut alone = Simulation::plain(&[2.0, 4.0]);
    alone.u = vec![0.5, 0.0];
    alone.async_step(&never, 0, 0, &[1]);
    assert_near(&alone.x, &[1.5, 4.0], 1e-12);
}

#[test]
fn downpour_pushes_steps_and_pulls_the_model() {
    let mut simulation = Simulation::plain(&[10.0, 1.0, 2.0]);
    simulation.server = Some(0.into());
    simulation.u = vec![0.0, 0.5, 2.0];
    let whole = Downpour { staleness: 1, averaged: false };
    simulation.async_step(&whole, 1, 0, &[0]);
    assert_near(&simulation.x, &[9.5, 9.5, 2.0], 1e-12);
    let averaged = Downpour { staleness: 1, averaged: true };
    simulation.async_step(&averaged, 2, 0, &[0]);
    assert_near(&simulation.x, &[8.5, 9.5, 8.5], 1e-12);
}
