//! Comparison with values computed independently of this crate (Jacobi eigenvalues, golden-section searches, exact
//! fractions, enumeration of all orders of the losses). Long because the values are written out.

#![allow(clippy::unwrap_used)]

use upwash_topology::published::Theorem1;
use upwash_topology::{
    Graph, GraphSpec, LeaderWeights, Leaders, Matcha, Matrix, Mixing, Rotation, Spectrum, Weights, paper_relabelings,
};

fn graph(spec: &str) -> Graph {
    spec.parse::<GraphSpec>().unwrap().build().unwrap()
}

fn close(left: f64, right: f64, tolerance: f64) {
    assert!((left - right).abs() <= tolerance, "{left} is not {right} within {tolerance}");
}

fn largest_eigenvalue(matrix: &Matrix) -> f64 {
    matrix.symmetric_eigenvalues()[matrix.rows() - 1]
}

fn leaders(graph: &Graph, best: f64, degree: f64) -> Leaders {
    let base = Weights::Optimal.mixing(graph).unwrap();
    Leaders::new(graph, &base, LeaderWeights { best, degree })
}

const INDEX: [f64; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

#[test]
fn paper_graphs_have_the_published_links() {
    assert_eq!(graph("paper:L1").degrees(), [3, 5, 2, 4, 1, 2, 3, 4]);
    assert_eq!(graph("paper:L1").matchings().len(), 5);
    for (size, edges) in [(11, 10), (9, 9), (7, 7), (5, 5)] {
        for which in 1..=3 {
            assert_eq!(graph(&format!("paper:L{which}@{size}")).edges().len(), edges);
        }
    }
    // With D = 5, workers 4 and 7 are isolated.
    assert_eq!(graph("paper:L1@5").components(), [vec![0, 1, 2, 3, 5, 6], vec![4], vec![7]]);
    // In L2, L1's link 0-1 is between the workers that take nodes 0 and 1, which are 3 and 4.
    assert!(graph("paper:L2").edges().contains(&(3, 4)));
    assert!(graph("paper:L3").edges().contains(&(3, 6)));
}

#[test]
fn spectra_and_contraction_match_reference_values() {
    for (spec, lambda2, lambda_max, alpha, rho) in [
        ("paper:L1", 0.670023, 6.329977, 0.285714, 0.653777),
        ("ring:8", 0.585786, 4.0, 0.436130, 0.554311),
        ("paper:L1@11", 0.596158, 5.403842, 0.333333, 0.642051),
        ("paper:L2@9", 0.585786, 4.732051, 0.376093, 0.607916),
        ("paper:L3@7", 0.186393, 4.342923, 0.441568, 0.842163),
    ] {
        let graph = graph(spec);
        let spectrum = Spectrum::of(&graph);
        close(spectrum.lambda2(), lambda2, 1e-6);
        close(spectrum.lambda_max(), lambda_max, 1e-6);
        close(spectrum.best_alpha(), alpha, 1e-6);
        close(Weights::Optimal.mixing(&graph).unwrap().contraction(), rho, 1e-6);
    }
    let l1 = Spectrum::of(&graph("paper:L1"));
    let expected = [0.0, 0.67002, 1.61442, 2.41105, 3.0, 4.58895, 5.38558, 6.32998];
    l1.values().iter().zip(expected).for_each(|(&value, known)| close(value, known, 1e-5));
}

#[test]
fn optimal_alpha_on_l1_makes_three_diagonal_weights_negative() {
    let w = Weights::Optimal.mixing(&graph("paper:L1")).unwrap();
    let sevenths: Vec<f64> = (0..8).map(|i| (7.0 * w.weight(i, i)).round()).collect();
    assert_eq!(sevenths, [1.0, -3.0, 3.0, -1.0, 5.0, 3.0, 1.0, -1.0]);
    (0..8).for_each(|i| close(7.0 * w.weight(i, i), sevenths[i], 1e-10));
    assert_eq!(w.without_positive_diagonal(), [1, 3, 7]);
}

#[test]
fn matcha_on_l1_and_ring_matches_reference_values() {
    let l1 = graph("paper:L1");
    for (budget, lambda2, alpha, rho) in [
        (0.1, 0.112240, 0.562069, 0.936794),
        (0.3, 0.336721, 0.514800, 0.776524),
        (0.5, 0.561202, 0.396430, 0.643975),
        (0.6, 0.657077, 0.365585, 0.577269),
        (0.8, 0.666100, 0.324833, 0.614875),
        (1.0, 0.670023, 0.285714, 0.653777),
    ] {
        let matcha = Matcha::solve(&l1, budget).unwrap();
        close(matcha.lambda2(), lambda2, 1e-5);
        close(matcha.alpha(), alpha, 1e-4);
        close(matcha.rho(), rho, 1e-4);
        assert!(matcha.probabilities().iter().sum::<f64>() <= 5.0 * budget + 1e-9);
        assert!(matcha.upper_bound() >= matcha.lambda2() - 1e-9);
        assert!(matcha.upper_bound() <= matcha.lambda2() * (1.0 + 1e-4));
    }
    let ring = Matcha::solve(&graph("ring:8"), 0.5).unwrap();
    close(ring.alpha(), 0.607369, 1e-5);
    close(ring.rho(), 0.783905, 1e-6);
}

/// rho is a maximum over directions of parabolas in alpha. A dense scan over alpha must not find a lower rho.
#[test]
fn matcha_alpha_minimizes_rho() {
    let matcha = Matcha::solve(&graph("paper:L1"), 0.3).unwrap();
    let rho = |alpha: f64| {
        // E[W'W] - J, summed over all sets of active matchings.
        let mut sum = Matrix::from_fn(8, 8, |_, _| -1.0 / 8.0);
        for set in 0..32u32 {
            let is_active = |j: usize| set >> j & 1 == 1;
            let probability: f64 = (0..5)
                .map(|j| {
                    let p = matcha.probabilities()[j];
                    if is_active(j) { p } else { 1.0 - p }
                })
                .product();
            let links = (0..5).filter(|&j| is_active(j)).flat_map(|j| matcha.matchings()[j].clone());
            let w = Matrix::identity(8) - &Graph::new(8, links).unwrap().laplacian().scaled(alpha);
            sum += &(&w.transpose() * &w).scaled(probability);
        }
        largest_eigenvalue(&sum)
    };
    close(rho(matcha.alpha()), matcha.rho(), 1e-9);
    for step in 1..200 {
        assert!(rho(step as f64 / 100.0) >= matcha.rho() - 1e-9);
    }
}

#[test]
fn contraction_with_leaders_on_l1_matches_reference_values() {
    let l1 = graph("paper:L1");
    close(leaders(&l1, 0.0, 0.0).contraction_random(), 0.653777182297, 1e-9);
    let al_dsgd = leaders(&l1, 0.1, 0.1);
    let best = al_dsgd.best_leaders(&INDEX);
    close(al_dsgd.contraction(&best, &al_dsgd.degree_leaders()), 0.694105354220, 1e-9);
    close(al_dsgd.contraction_random(), 0.608637329913, 1e-9);
    let worst = al_dsgd.contraction_worst();
    assert!(worst.exact);
    close(worst.bound, 0.876673839650, 1e-9);
    assert_eq!(worst.leaders, [1, 0, 1, 1, 0, 1, 3, 1]);
    close(al_dsgd.safe_total_weight(), 0.11666, 1e-5);
}

#[test]
fn contraction_with_rotation_matches_reference_values() {
    let rho = |names: &[&str], best, degree| {
        let rounds: Vec<Leaders> = names.iter().map(|name| leaders(&graph(name), best, degree)).collect();
        Leaders::contraction_of_cycle(&rounds)
    };
    let three = ["paper:L1", "paper:L2", "paper:L3"];
    close(rho(&three, 0.0, 0.0), 0.464268653084, 1e-9);
    close(rho(&three, 0.1, 0.1), 0.412764993432, 1e-9);
    close(rho(&three[..2], 0.0, 0.0), 0.5724, 1e-4);
}

/// Compares the closed form over pairs of leaders with an enumeration of all orders of the losses on a small graph.
#[test]
fn mean_over_random_losses_equals_mean_over_all_orders() {
    let graph = Graph::new(5, [(0, 1), (1, 2), (2, 3), (1, 3), (3, 4)]).unwrap();
    let al_dsgd = leaders(&graph, 0.3, 0.05);
    let projection = Matrix::from_fn(5, 5, |i, j| if i == j { 0.8 } else { -0.2 });
    let (mut sum, mut squared_drift, mut count) = (Matrix::zeros(5, 5), 0.0, 0.0);
    for number in 0..3125 {
        let losses: Vec<f64> = (0..5).map(|i| (number / 5usize.pow(i) % 5) as f64).collect();
        let mut sorted = losses.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        if sorted.len() == 5 {
            let a = al_dsgd.matrix(&al_dsgd.best_leaders(&losses), &al_dsgd.degree_leaders());
            sum += &(&(&a.transpose() * &projection) * &a);
            let drift = |j: usize| a.column(j).iter().sum::<f64>() - 1.0;
            squared_drift += (0..5).map(|j| drift(j).powi(2)).sum::<f64>();
            count += 1.0;
        }
    }
    assert_eq!(count, 120.0);
    let rho = largest_eigenvalue(&sum) / count;
    close(al_dsgd.contraction_random(), rho, 1e-12);
    close(al_dsgd.mean_shift_random().mean_drift, (squared_drift / count).sqrt(), 1e-12);
}

#[test]
fn leaders_shift_the_mean() {
    let al_dsgd = leaders(&graph("paper:L1"), 0.1, 0.1);
    let (best, degree) = (al_dsgd.best_leaders(&INDEX), al_dsgd.degree_leaders());
    let a = al_dsgd.matrix(&best, &degree);
    let expected = [1.3, 1.7, 0.8, 1.0, 0.8, 0.8, 0.8, 0.8];
    (0..8).for_each(|j| close(a.column(j).iter().sum(), expected[j], 1e-12));
    let shift = al_dsgd.mean_shift(&best, &degree, &[1.0; 8]);
    let end: f64 = shift.influence.iter().zip(INDEX).map(|(share, x)| share * x).sum();
    close(end, 2.985706077743, 1e-10);
    close(shift.influence.iter().sum(), 1.0, 1e-12);
    // The same by plain iteration.
    let mut x = Matrix::from_fn(8, 1, |i, _| i as f64);
    (0..2000).for_each(|_| x = &a * &x);
    (0..8).for_each(|i| close(x[(i, 0)], end, 1e-9));
}

/// Four workers on a path with F_i(x) = a_i (x - b_i)^2 / 2. As the step goes to 0, the paper's rule as written
/// converges to 13/21, although the average objective is smallest at 7/10. Theorem 2 fails.
#[test]
fn written_rule_minimizes_a_different_objective() {
    let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0, 0.5]);
    let al_dsgd = leaders(&graph("path:4"), 0.1, 0.1);
    let minimum = |weights: &[f64]| {
        let top: f64 = (0..4).map(|i| weights[i] * a[i] * b[i]).sum();
        top / (0..4).map(|i| weights[i] * a[i]).sum::<f64>()
    };
    let mut end = minimum(&[1.0; 4]);
    close(end, 0.7, 1e-12);
    for _ in 0..20 {
        let losses: Vec<f64> = (0..4).map(|i| a[i] * (end - b[i]).powi(2) / 2.0).collect();
        let (best, degree) = (al_dsgd.best_leaders(&losses), al_dsgd.degree_leaders());
        let steps = al_dsgd.written_steps();
        let shift = al_dsgd.mean_shift(&best, &degree, &steps);
        let weights: Vec<f64> = shift.influence.iter().zip(steps).map(|(pi, c)| pi * c).collect();
        end = minimum(&weights);
    }
    close(end, 13.0 / 21.0, 1e-12);
}

#[test]
fn theorem_1_as_printed_has_tiny_empty_or_divergent_ranges() {
    let l1 = graph("paper:L1");
    let matcha = Theorem1::of(&Matcha::solve(&l1, 0.5).unwrap());
    close(matcha.w_best_below, 0.0043, 5e-5);
    assert!(matcha.alpha_within_limit);
    // At budget 0.9 the range of alpha that the theorem gives makes averaging diverge: |1 - alpha lambda_max| > 1.
    let dense = Theorem1::of(&Matcha::solve(&l1, 0.9).unwrap());
    let (low, high) = dense.alpha.unwrap();
    close(low, 0.481, 1e-3);
    close(high, 0.495, 1e-3);
    assert!(!dense.alpha_within_limit && low * dense.lambda_max > 2.0, "{dense:?}");
    let dpsgd = Theorem1::of(&Matcha::solve(&l1, 1.0).unwrap());
    assert_eq!((dpsgd.alpha, dpsgd.w_best_below, dpsgd.zeta), (None, 0.0, 0.0));
}

/// ||E[W~ W~']|| < 1, the theorem's second condition, cannot hold, because 1'W~ = 1' makes the norm at least 1.
#[test]
fn second_condition_of_theorem_1_never_holds() {
    for (best, degree) in [(0.0, 0.0), (0.1, 0.1), (0.001, 0.0)] {
        let al_dsgd = leaders(&graph("paper:L1"), best, degree);
        let a = al_dsgd.matrix(&al_dsgd.best_leaders(&INDEX), &al_dsgd.degree_leaders());
        let largest = largest_eigenvalue(&(&a.transpose() * &a));
        assert!(largest >= 1.0 - 1e-12, "{largest}");
    }
}

#[test]
fn rotations_of_l1_match_reference_values() {
    let l1 = graph("paper:L1");
    for (n, variance, lambda2) in [(2, 0.125, 2.0), (3, 0.305556, 2.079861)] {
        let paper = Rotation::new(&l1, paper_relabelings()[..n].to_vec()).unwrap();
        close(paper.degree_variance(), variance, 1e-6);
        close(paper.lambda2_mean(), lambda2, 1e-6);
    }
    let two = Rotation::balance(&l1, 2).unwrap();
    assert_eq!(two.expected_degrees(), [3.0; 8]);
    close(two.lambda2_mean(), 3.0, 1e-9);
    let three = Rotation::balance(&l1, 3).unwrap();
    assert_eq!(three.degree_variance(), 0.0);
    assert!(three.lambda2_mean() > 2.8, "{}", three.lambda2_mean());
    assert_eq!(three, Rotation::balance(&l1, 3).unwrap());
}

#[test]
fn disconnected_graph_is_treated_component_by_component() {
    // A pair (eigenvalues 0, 2), a triangle (0, 3, 3) and an isolated worker.
    let graph = Graph::new(6, [(0, 1), (2, 3), (3, 4), (2, 4)]).unwrap();
    let w = Weights::Optimal.mixing(&graph).unwrap();
    close(w.weight(0, 1), 0.5, 1e-12);
    close(w.weight(2, 3), 1.0 / 3.0, 1e-12);
    assert_eq!(w.row(5), [(5, 1.0)]);
    let matcha = Matcha::solve(&graph, 0.5).unwrap();
    assert_eq!(matcha.rho(), 1.0);
    // The smallest lambda_2 over the components reaches its upper bound.
    assert!(matcha.lambda2() > 0.0 && matcha.lambda2() >= 0.9999 * matcha.upper_bound());
}

#[test]
fn averaging_weights_match_their_definitions() {
    let star = graph("star:4");
    let metropolis = Weights::Metropolis.mixing(&star).unwrap();
    assert_eq!(metropolis.row(1), [(0, 0.25), (1, 0.75)]);
    let uniform = Weights::Uniform.mixing(&star).unwrap();
    assert_eq!(uniform.row(0), [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]);
    assert_eq!(uniform.row(1), [(0, 0.5), (1, 0.5)]);
    let alpha = Weights::Alpha(0.25).mixing(&star).unwrap();
    assert_eq!(alpha.row(0)[0], (0, 0.25));
    let given = vec![vec![0.25; 4], vec![0.25, 0.75, 0.0, 0.0], vec![0.25, 0.0, 0.75, 0.0], vec![0.25, 0.0, 0.0, 0.75]];
    assert_eq!(Weights::Given(given).mixing(&star).unwrap(), metropolis);
    assert!(Mixing::average(4).contraction() < 1e-30);
}

/// Probabilities scale with the budget, down to tiny budgets.
#[test]
fn probabilities_are_proportional_to_a_tiny_budget() {
    let (small, tiny) = (1e-3, 1e-9);
    let l1 = graph("paper:L1");
    let [small_p, tiny_p] = [small, tiny].map(|budget| Matcha::solve(&l1, budget).unwrap());
    for (p, q) in small_p.probabilities().iter().zip(tiny_p.probabilities()) {
        close(p / small, q / tiny, 5e-3); // the optimum is flat
    }
    assert!(tiny_p.rho() < 1.0 && tiny_p.alpha() > 0.0);
}

/// Compares AL-DSGD over MATCHA with an enumeration of all sets of matchings and all orders of the losses.
#[test]
fn leaders_over_matcha_are_averaged_over_draws_and_losses() {
    use upwash_topology::{Analysis, AnalysisOptions};
    let graph = Graph::new(4, [(0, 1), (1, 2), (2, 3), (1, 3)]).unwrap();
    let weights = LeaderWeights { best: 0.2, degree: 0.15 };
    let options = AnalysisOptions { budget: Some(0.6), leaders: Some(weights), ..Default::default() };
    let found = Analysis::of(&graph, options).unwrap().matcha.unwrap().al_dsgd.unwrap();
    assert!(found.exact);

    let matcha = Matcha::solve(&graph, 0.6).unwrap();
    let projection = Matrix::from_fn(4, 4, |i, j| if i == j { 0.75 } else { -0.25 });
    let orders: Vec<Vec<f64>> = (0..256)
        .map(|number| (0..4).map(|i| (number >> (2 * i) & 3) as f64).collect::<Vec<f64>>())
        .filter(|losses| (0..4).all(|x| losses.contains(&f64::from(x))))
        .collect();
    assert_eq!(orders.len(), 24);
    let mut sum = Matrix::zeros(4, 4);
    for set in 0..1usize << matcha.matchings().len() {
        let mut probability = 1.0;
        let mut links = vec![];
        for (j, (matching, p)) in matcha.matchings().iter().zip(matcha.probabilities()).enumerate() {
            let is_active = set >> j & 1 == 1;
            probability *= if is_active { *p } else { 1.0 - p };
            links.extend(matching.iter().copied().filter(|_| is_active));
        }
        let active = Graph::new(4, links).unwrap();
        let w = Weights::Alpha(matcha.alpha()).mixing(&active).unwrap();
        let leaders = Leaders::new(&active, &w, weights);
        for losses in &orders {
            let a = leaders.matrix(&leaders.best_leaders(losses), &leaders.degree_leaders());
            sum += &(&(&a.transpose() * &projection) * &a).scaled(probability / 24.0);
        }
    }
    let rho = largest_eigenvalue(&sum);
    close(found.rho_random, rho, 1e-10);
}

#[test]
fn influence_matches_hand_computed_values() {
    // A star whose leaves all follow the center: A' = [[1, w, w], ...], computed by hand.
    let star = graph("star:3");
    let w = Weights::Given(vec![vec![1.0, 0.0, 0.0], vec![0.0, 1.0, 0.0], vec![0.0, 0.0, 1.0]]);
    let base = w.mixing(&star).unwrap();
    let leaders = Leaders::new(&star, &base, LeaderWeights { best: 0.0, degree: 0.5 });
    let shift = leaders.mean_shift_random();
    assert_eq!(shift.influence, [1.0, 0.0, 0.0]);
    close(shift.effective_workers, 1.0, 1e-12);
    // Column sums are 2, 0.5, 0.5: ||A'1 - 1||^2 = 1 + 0.25 + 0.25.
    close(shift.mean_drift, 1.5f64.sqrt(), 1e-12);
    let written = leaders.mean_shift_random_written();
    close(written.step_factor, 0.5, 1e-12);

    // Two hubs that follow themselves: the consensus depends on the initial models.
    let hubs = Graph::new(6, [(0, 1), (0, 2), (0, 3), (3, 4), (3, 5)]).unwrap();
    let base = Weights::Metropolis.mixing(&hubs).unwrap();
    let split = Leaders::new(&hubs, &base, LeaderWeights { best: 0.0, degree: 1.0 });
    let shift = split.mean_shift_random();
    close(shift.influence.iter().sum(), 1.0, 1e-9);
    assert!(shift.influence.iter().all(|share| share.is_finite() && *share >= -1e-9));
}

/// Computes the printed bound of Theorem 2 by hand, term by term.
#[test]
fn theorem_2_bound_matches_hand_computation() {
    use upwash_topology::published::Theorem2;
    let theorem = Theorem2 {
        rho: 0.25,
        alpha: 0.5,
        omega: 0.2,
        workers: 4,
        gamma: 0.25,
        lambda: 0.2,
        rounds: 1000.0,
        lipschitz: 2.0,
        slope: 3.0,
        noise: 1.0,
        heterogeneity: 0.5,
        spread: 0.1,
        gap: 5.0,
    };
    close(theorem.eta(), 0.1, 1e-12);
    // 8 gap / (eta K) = 0.4. M = 0.0025 + 0.006 + 0.0012 + 0.000004, 8 M / eta = 0.77632.
    // 8 eta^2 L^2 rho / (1 - 0.5) = 0.16, times (4 + 0.0004) / (4 * 1.5) + 3 * 0.25 / 0.5.
    let disagreement = 0.16 * (4.0004 / 6.0 + 1.5);
    close(theorem.bound(), 0.4 + 0.77632 + disagreement, 1e-9);
}

/// The paper's text has another example: "the node 7, that is adjacent to node 0, has the largest degree".
#[test]
fn best_connected_neighbor_of_worker_0_in_the_released_list_is_worker_1() {
    let l1 = graph("paper:L1");
    let degree = |worker: usize| l1.neighbors(worker).len();
    let neighbors = l1.neighbors(0);
    assert!(neighbors.contains(&7));
    let best = neighbors.iter().copied().max_by_key(|&w| degree(w));
    assert_eq!((best, degree(1), degree(7)), (Some(1), 5, 4));
}
