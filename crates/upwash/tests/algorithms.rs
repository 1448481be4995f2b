//! Every algorithm against its equations, worked by hand or known from theory, in double precision.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Machine, Quadratics};
use upwash::algorithm::{
    AdPsgd, AlDsgd, Algorithm, AllReduce, AsyncEasgd, Choco, D2, Downpour, Dpsgd, Easgd, GoSgd, GossipPga,
    GradientTracking, LocalSgd, Lsgd, ParameterServer, QgMomentum, Sgp, SlowMo, Variant,
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

fn nobody(workers: usize) -> Schedule {
    Schedule::fixed(&Graph::new(workers, []).unwrap(), &Weights::Metropolis).unwrap()
}

/// The models after each round.
fn rounds(
    algorithm: &dyn Algorithm,
    schedule: &Schedule,
    mut machine: Machine,
    rate: f64,
    problem: &Quadratics,
    count: u64,
) -> (Vec<Vec<f64>>, Machine) {
    let mut all = Vec::new();
    for k in 0..count {
        machine.round(algorithm, schedule, k, rate, problem);
        all.push(machine.x.clone());
    }
    (all, machine)
}

fn run(algorithm: &dyn Algorithm, schedule: &Schedule, rate: f64, count: u64) -> Vec<Vec<f64>> {
    let machine = Machine::new(algorithm, &START);
    rounds(algorithm, schedule, machine, rate, &problem(), count).0
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
fn all_reduce_is_one_worker_with_the_mean_gradient() {
    let problem = problem();
    let mut x = 0.25;
    let machine = Machine::new(&AllReduce, &[x; 4]);
    let (found, _) = rounds(&AllReduce, &nobody(4), machine, 0.1, &problem, 20);
    for models in found {
        let mean = (0..4).map(|i| problem.gradient(i, x)).sum::<f64>() / 4.0;
        x -= 0.1 * mean;
        assert_near(&models, &[x; 4], 1e-12);
    }
}

#[test]
fn local_sgd_averages_every_so_often() {
    // H = 1 is an all-reduce of models.
    let every = run(&LocalSgd { period: 1 }, &nobody(4), 0.1, 10);
    assert_same(&every, &run(&AllReduce, &nobody(4), 0.1, 10));
    // H = 2: a plain step each, then the mean of both second steps.
    let found = run(&LocalSgd { period: 2 }, &nobody(4), 0.1, 2);
    let problem = problem();
    let step = |x: &[f64]| -> Vec<f64> { (0..4).map(|i| x[i] - 0.1 * problem.gradient(i, x[i])).collect() };
    let (first, second) = (step(&START), step(&step(&START)));
    assert_near(&found[0], &first, 1e-12);
    assert_near(&found[1], &[second.iter().sum::<f64>() / 4.0; 4], 1e-12);
}

#[test]
fn gossip_pga_is_dpsgd_or_all_reduce_at_its_ends() {
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
fn the_parameter_server_is_an_all_reduce() {
    // From equal starts, with the server in front.
    let with_server = Quadratics { a: [vec![0.0], problem().a].concat(), b: [vec![0.0], problem().b].concat() };
    let equal = Machine::new(&AllReduce, &[0.5; 4]);
    let (known, _) = rounds(&AllReduce, &nobody(4), equal, 0.1, &problem(), 8);
    let mut machine = Machine::new(&ParameterServer, &[0.5; 5]);
    machine.server = Some(0);
    let (found, _) = rounds(&ParameterServer, &nobody(5), machine, 0.1, &with_server, 8);
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
    let mut machine = Machine::new(&easgd, &[0.0, 1.0, 3.0]);
    machine.server = Some(0);
    let (found, _) = rounds(&easgd, &nobody(3), machine.clone(), 0.1, &problem, 2);
    assert_near(&found[0], &[1.6, 0.7, 1.5], 1e-12);
    assert_near(&found[1], &[1.2, 1.19, 1.39], 1e-12);
    // Without elasticity: independent workers, and a server that stays.
    let none = Easgd { beta: 0.0, period: 1 };
    let (found, _) = rounds(&none, &nobody(3), machine.clone(), 0.1, &problem, 1);
    assert_near(&found[0], &[0.0, 1.1, 2.7], 1e-12);
    // Every second round only.
    let rare = Easgd { beta: 0.8, period: 2 };
    let (found, _) = rounds(&rare, &nobody(3), machine.clone(), 0.1, &problem, 2);
    assert_near(&found[0], &[0.0, 1.1, 2.7], 1e-12);
    assert_near(&found[1], &[1.52, 0.75, 1.35], 1e-12);

    // Without a barrier: worker 1 meets the server, then worker 2 does.
    let elastic = AsyncEasgd(easgd);
    machine.u = vec![0.0, -0.1, 0.3];
    machine.turn(&elastic, 1, 0, &[0]);
    assert_near(&machine.x, &[0.4, 0.7, 3.0], 1e-12);
    machine.turn(&elastic, 2, 0, &[0]);
    assert_near(&machine.x, &[0.4 + 0.4 * 2.6, 0.7, 3.0 - 0.3 - 0.4 * 2.6], 1e-12);
}

/// Losses 2, 1, 4, 3 at the start: the leader of the first group is 1, of the second 3, of all 1.
#[test]
fn lsgd_pulls_towards_both_leaders() {
    let lsgd = Lsgd { groups: 2, local: 0.1, global: 0.2, period: 1 };
    let mut machine = Machine::plain(&START);
    machine.u = vec![0.5, 0.0, 0.0, -0.5];
    machine.exchange(&lsgd, &nobody(4).round(0), 0.1, &[2.0, 1.0, 4.0, 3.0]);
    let known = [
        0.0 - 0.5 - 0.1 * (0.0 - 1.0) - 0.2 * (0.0 - 1.0),
        1.0, // its own leader
        -1.0 - 0.1 * (-1.0 - 2.0) - 0.2 * (-1.0 - 1.0),
        2.0 + 0.5 - 0.2 * (2.0 - 1.0),
    ];
    assert_near(&machine.x, &known, 1e-12);
}

/// Two rounds of local steps, then: mean 1.0 -> s = 0.5 s + (a - mean)/gamma, x = a - alpha gamma s.
#[test]
fn slowmo_follows_its_equations() {
    let slowmo = SlowMo { base: Box::new(LocalSgd { period: u64::MAX }), rate: 0.8, momentum: 0.5, period: 2 };
    let problem = problem();
    let (mut anchor, mut slow, mut x) = (0.3, 0.0, [0.3; 4]);
    let machine = Machine::new(&slowmo, &x);
    let (found, _) = rounds(&slowmo, &nobody(4), machine, 0.1, &problem, 6);
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

/// Every round's way counts by the rate that it was gone with, also where that changes within a period,
/// for a base that averages in the slow step's own round and for one that does not.
#[test]
fn slowmo_counts_every_step_by_its_own_rate() {
    let problem = problem();
    let rates = [0.1, 0.1, 0.04, 0.04, 0.02, 0.1, 0.03, 0.0, 0.05, 0.06, 0.07, 0.08];
    for inner in [u64::MAX, 4] {
        let slowmo = SlowMo { base: Box::new(LocalSgd { period: inner }), rate: 0.8, momentum: 0.5, period: 4 };
        let mut machine = Machine::new(&slowmo, &[0.3; 4]);
        let (mut anchor, mut slow, mut x) = (0.3, 0.0, [0.3; 4]);
        let mut gone = [0.0; 4];
        for (k, rate) in rates.into_iter().enumerate() {
            machine.round(&slowmo, &nobody(4), k as u64, rate, &problem);
            for (i, x) in x.iter_mut().enumerate() {
                let gradient = problem.gradient(i, *x);
                gone[i] += if rate > 0.0 { gradient } else { 0.0 };
                *x -= rate * gradient;
            }
            if k % 4 == 3 && rate > 0.0 {
                slow = 0.5 * slow + gone.iter().sum::<f64>() / 4.0;
                anchor -= 0.8 * rate * slow;
            } else if k % 4 == 3 {
                anchor = x.iter().sum::<f64>() / 4.0; // no step, and so only the average
            }
            if k % 4 == 3 {
                (x, gone) = ([anchor; 4], [0.0; 4]);
            }
            assert_near(&machine.x, &x, 1e-12);
        }
    }
}

/// With alpha = 1 and no slow momentum the slow step is the exact average and nothing else.
#[test]
fn slowmo_without_momentum_is_its_base_with_averages() {
    let plain = |base| SlowMo { base, rate: 1.0, momentum: 0.0, period: 3 };
    let slow = plain(Box::new(LocalSgd { period: u64::MAX }));
    let local = LocalSgd { period: 3 };
    let machine = |algorithm: &dyn Algorithm| Machine::new(algorithm, &[0.5; 4]);
    let (a, _) = rounds(&slow, &nobody(4), machine(&slow), 0.1, &problem(), 9);
    let (b, _) = rounds(&local, &nobody(4), machine(&local), 0.1, &problem(), 9);
    assert_same(&a, &b);
    // Over push-sum the average has the weights of the sums: what is conserved is conserved.
    let sgp = plain(Box::new(Sgp));
    let arcs = Schedule::directed(4, &[(0, 1), (0, 2), (1, 2), (2, 3), (3, 0)]).unwrap();
    let machine = Machine::new(&sgp, &START);
    let still = Quadratics { a: vec![0.0; 4], b: vec![0.0; 4] };
    let (found, machine) = rounds(&sgp, &arcs, machine, 0.1, &still, 3);
    assert_near(&found[2], &[0.5; 4], 1e-12); // the mean of the start
    assert_near(&machine.scalars, &[1.0; 4], 1e-12);
}

#[test]
fn d2_and_gradient_tracking_reach_the_optimum_where_dpsgd_does_not() {
    let (ring, optimum) = (fixed("ring:4"), problem().optimum());
    let far = |algorithm: &dyn Algorithm| {
        let last = run(algorithm, &ring, 0.05, 3000).pop().unwrap();
        last.iter().map(|x| (x - optimum).abs()).fold(0.0, f64::max)
    };
    assert!(far(&D2 { lazy: true }) < 1e-9);
    assert!(far(&GradientTracking { lazy: false }) < 1e-9);
    assert!(far(&GradientTracking { lazy: true }) < 1e-9);
    assert!(far(&Dpsgd::default()) > 1e-2);
    // SlowMo jumps; what D2 remembers jumps with the model.
    let slow = SlowMo { base: Box::new(D2 { lazy: true }), rate: 1.0, momentum: 0.2, period: 7 };
    assert!(far(&slow) < 1e-9, "{}", far(&slow));
}

/// How far workers are from the optimum in the rounds after the learning rate is cut to a tenth at it.
fn thrown_by_a_cut(algorithm: &dyn Algorithm) -> f64 {
    let (ring, optimum) = (fixed("ring:4"), problem().optimum());
    let machine = Machine::new(algorithm, &START);
    let (_, machine) = rounds(algorithm, &ring, machine, 0.05, &problem(), 3000);
    let (after, _) = rounds(algorithm, &ring, machine, 0.005, &problem(), 100);
    let far = |models: &Vec<f64>| models.iter().map(|x| (x - optimum).abs()).fold(0.0, f64::max);
    after.iter().map(far).fold(0.0, f64::max)
}

/// Each worker's own gradient is not 0 at the optimum of all: what is kept of it must follow the rate.
#[test]
fn a_cut_of_the_rate_throws_nobody_away_from_the_optimum() {
    assert!(thrown_by_a_cut(&D2 { lazy: true }) < 1e-12);
    assert!(thrown_by_a_cut(&GradientTracking { lazy: false }) < 1e-12);
    assert!(thrown_by_a_cut(&GradientTracking { lazy: true }) < 1e-12);
}

/// The mean of all models goes down by the mean step in every round, whatever the rate does on the way:
/// warm-up from 0, a cut, a cosine.
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
        let mut machine = Machine::new(algorithm, &START);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        for k in 0..90 {
            let before = mean(&machine.x);
            machine.round(algorithm, &path, k, rate(k), &problem);
            let expected = before - mean(&machine.u);
            assert!((mean(&machine.x) - expected).abs() < 1e-12, "{algorithm:?}, round {k}");
        }
    }
}

/// D2 as its paper has it, with the models and steps of the round before.
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
        let extra = |name, start| StateVector { name, start };
        vec![extra("model before", InitialValue::Model), extra("step before", InitialValue::Zero)]
    }
}

/// With one rate D2 is as published. Under SlowMo both reach the optimum: what the published one remembers jumps with
/// the model.
#[test]
fn d2_is_the_published_one_while_the_rate_stays() {
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

/// x' = W (2 x - x_before - u + u_before), two rounds by hand on a pair: W = (I + W)/2 of [[.5, .5]].
#[test]
fn d2_follows_its_equation() {
    let problem = Quadratics { a: vec![1.0, 1.0], b: vec![0.0, 4.0] };
    let d2 = D2 { lazy: true };
    let machine = Machine::new(&d2, &[1.0, 3.0]);
    let (found, _) = rounds(&d2, &fixed("path:2"), machine, 0.5, &problem, 2);
    // u = (0.5, -0.5); y = (0.5, 3.5); W = [[.75, .25], [.25, .75]].
    assert_near(&found[0], &[1.25, 2.75], 1e-12);
    // u = (0.625, -0.625); y = 2 x - before - u + u_before = (1.375, 2.625).
    assert_near(&found[1], &[1.6875, 2.3125], 1e-12);
}

/// A directed graph in which 0 speaks to two and the others to one: not balanced.
#[test]
fn push_sum_averages_exactly_where_plain_averaging_does_not() {
    let arcs = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 0)];
    let schedule = Schedule::directed(4, &arcs).unwrap();
    let still = Quadratics { a: vec![0.0; 4], b: vec![0.0; 4] };
    let machine = Machine::new(&Sgp, &START);
    let (found, machine) = rounds(&Sgp, &schedule, machine, 0.1, &still, 300);
    assert_near(&found[299], &[0.5; 4], 1e-12);
    assert!((machine.scalars.iter().sum::<f64>() - 4.0).abs() < 1e-12);
    let machine = Machine::new(&Dpsgd::default(), &START);
    let (found, _) = rounds(&Dpsgd::default(), &schedule, machine, 0.1, &still, 300);
    assert!((found[299][0] - 0.5).abs() > 0.03, "{:?}", found[299]);
    // With gradients: the sum of w z goes down by the sum of all steps.
    let machine = Machine::new(&Sgp, &START);
    let (_, after) = rounds(&Sgp, &schedule, machine, 0.05, &problem(), 7);
    let sum = |machine: &Machine| -> f64 {
        let pairs = machine.x.iter().zip(&machine.scalars);
        pairs.map(|(z, w)| z * w).sum()
    };
    let mut next = after.clone();
    next.round(&Sgp, &schedule, 7, 0.05, &problem());
    let steps: f64 = next.u.iter().sum();
    assert!((sum(&next) - (sum(&after) - steps)).abs() < 1e-12);
}

/// m' = beta m + (1 - beta) (x - x') / gamma, on one worker: SGD whose momentum is its own way.
#[test]
fn quasi_global_momentum_follows_its_equations() {
    let problem = Quadratics { a: vec![1.0], b: vec![2.0] };
    let qg = QgMomentum { lazy: false };
    let mut machine = Machine::new(&qg, &[0.0]);
    machine.momentum = 0.9;
    let (found, _) = rounds(&qg, &nobody(1), machine, 0.1, &problem, 3);
    let (mut x, mut m) = (0.0, 0.0);
    for models in found {
        let next = x - 0.1 * (problem.gradient(0, x) + 0.9 * m);
        m = 0.9 * m + 0.1 * (x - next) / 0.1;
        x = next;
        assert_near(&models, &[x], 1e-12);
    }
    // Without momentum it is D-PSGD.
    assert_same(&run(&qg, &fixed("path:4"), 0.1, 10), &run(&Dpsgd::default(), &fixed("path:4"), 0.1, 10));
}

#[test]
fn choco_without_compression_is_dpsgd() {
    let choco = Choco { compression: Compression::None, step: 1.0 };
    let path = fixed("path:4");
    assert_same(&run(&choco, &path, 0.1, 20), &run(&Dpsgd::default(), &path, 0.1, 20));
    // Half the step: y + (W y - y) / 2, which is lazy averaging.
    let half = Choco { step: 0.5, ..choco };
    let lazy = Dpsgd { lazy: true, ..Default::default() };
    assert_same(&run(&half, &path, 0.1, 20), &run(&lazy, &path, 0.1, 20));
    // Led, it is AL-DSGD over D-PSGD.
    let led = |base| AlDsgd::new(base, Variant::Sound);
    assert_same(&run(&led(Box::new(choco)), &path, 0.1, 20), &run(&led(Box::<Dpsgd>::default()), &path, 0.1, 20));
}

/// In the rounds of exact averaging there is nobody to follow.
#[test]
fn al_dsgd_over_gossip_pga_leads_between_averages() {
    let base = GossipPga { period: 3, base: Dpsgd::default() };
    let led = AlDsgd::new(Box::new(base), Variant::Sound);
    let plain = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Sound);
    let path = fixed("path:4");
    let (a, b) = (run(&led, &path, 0.1, 3), run(&plain, &path, 0.1, 3));
    assert_same(&a[..2], &b[..2]);
    assert!((a[2][0] - a[2][3]).abs() < 1e-15 && (b[2][0] - b[2][3]).abs() > 1e-3);
}

#[test]
fn ad_psgd_conserves_the_mean_but_for_steps() {
    let mut machine = Machine::plain(&START);
    machine.u = vec![0.1, -0.2, 0.3, 0.0];
    let ring = [[1, 3], [0, 2], [1, 3], [0, 2]];
    let mut expected: f64 = START.iter().sum();
    for (turn, worker) in [0, 2, 1, 3, 3, 0, 1, 2].into_iter().enumerate() {
        machine.turn(&AdPsgd, worker, turn as u64, &ring[worker]);
        expected -= machine.u[worker];
        assert!((machine.x.iter().sum::<f64>() - expected).abs() < 1e-12);
    }
    // By hand: 0 and its only neighbor 1.
    let mut pair = Machine::plain(&[2.0, 4.0]);
    pair.u = vec![0.5, 9.0];
    pair.turn(&AdPsgd, 0, 0, &[1]);
    assert_near(&pair.x, &[2.5, 3.0], 1e-12);
}

#[test]
fn gosgd_conserves_the_weighted_sum_but_for_steps() {
    let mut machine = Machine::plain(&START);
    machine.u = vec![0.1, -0.2, 0.3, 0.0];
    let gosgd = GoSgd { probability: 1.0 };
    let sum = |machine: &Machine| -> f64 {
        let pairs = machine.x.iter().zip(&machine.scalars);
        pairs.map(|(x, w)| x * w).sum()
    };
    for (turn, worker) in [0, 2, 1, 3, 3, 0].into_iter().enumerate() {
        let stepped = sum(&machine) - machine.scalars[worker] * machine.u[worker];
        let others: Vec<usize> = (0..4).filter(|&i| i != worker).collect();
        machine.turn(&gosgd, worker, turn as u64, &others);
        assert!((sum(&machine) - stepped).abs() < 1e-12);
        assert!((machine.scalars.iter().sum::<f64>() - 4.0).abs() < 1e-12);
    }
    let never = GoSgd { probability: 0.0 };
    let mut alone = Machine::plain(&[2.0, 4.0]);
    alone.u = vec![0.5, 0.0];
    alone.turn(&never, 0, 0, &[1]);
    assert_near(&alone.x, &[1.5, 4.0], 1e-12);
}

#[test]
fn downpour_pushes_and_pulls() {
    let mut machine = Machine::plain(&[10.0, 1.0, 2.0]);
    machine.server = Some(0);
    machine.u = vec![0.0, 0.5, 2.0];
    let whole = Downpour { staleness: 1, averaged: false };
    machine.turn(&whole, 1, 0, &[0]);
    assert_near(&machine.x, &[9.5, 9.5, 2.0], 1e-12);
    let averaged = Downpour { staleness: 1, averaged: true };
    machine.turn(&averaged, 2, 0, &[0]);
    assert_near(&machine.x, &[8.5, 9.5, 8.5], 1e-12);
}
