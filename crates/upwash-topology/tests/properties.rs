//! Properties that hold for every graph.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::BTreeSet;
use upwash_topology::{
    Edge, Graph, LeaderWeights, Leaders, Matcha, Mixing, Order, Rotation, Schedule, Spectrum, Weights, layout,
};

/// Generates simple graphs of up to 11 nodes.
fn graphs() -> impl Strategy<Value = Graph> {
    (1usize..12).prop_flat_map(|n| {
        let pairs: Vec<Edge> = (0..n).flat_map(|u| (u + 1..n).map(move |v| (u, v))).collect();
        let count = pairs.len();
        (Just(n), proptest::sample::subsequence(pairs, 0..=count)).prop_map(|(n, edges)| Graph::new(n, edges).unwrap())
    })
}

/// Generates a graph and a permutation of its nodes.
fn relabeled_graphs() -> impl Strategy<Value = (Graph, Vec<usize>)> {
    graphs().prop_flat_map(|graph| {
        let order: Vec<usize> = (0..graph.nodes()).collect();
        (Just(graph), Just(order).prop_shuffle())
    })
}

fn assert_doubly_stochastic(w: &Mixing) {
    let dense = w.to_dense();
    for i in 0..w.nodes() {
        assert!((dense.transpose().column(i).iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((dense.column(i).iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}

fn assert_symmetric(w: &Mixing) {
    for i in 0..w.nodes() {
        w.row(i).iter().for_each(|&(j, weight)| assert_eq!(w.weight(j, i), weight));
    }
}

fn assert_matching(links: &[Edge], nodes: usize) {
    let ends: BTreeSet<usize> = links.iter().flat_map(|&(u, v)| [u, v]).collect();
    assert_eq!(ends.len(), 2 * links.len());
    assert!(ends.iter().all(|&end| end < nodes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn matchings_are_disjoint_few_and_cover_the_graph(graph in graphs()) {
        let matchings = graph.matchings();
        matchings.iter().for_each(|matching| assert_matching(matching, graph.nodes()));
        let mut covered: Vec<Edge> = matchings.iter().flatten().copied().collect();
        covered.sort_unstable();
        prop_assert_eq!(&covered[..], graph.edges());
        let largest = graph.degrees().into_iter().max().unwrap_or(0);
        prop_assert!(matchings.len() <= largest + 1);
        let again = Graph::new(graph.nodes(), graph.edges().iter().copied()).unwrap();
        prop_assert_eq!(matchings, again.matchings());
    }

    #[test]
    fn weights_are_symmetric_and_doubly_stochastic(graph in graphs()) {
        for weights in [Weights::Optimal, Weights::Metropolis, Weights::Alpha(0.1)] {
            let w = weights.mixing(&graph).unwrap();
            assert_symmetric(&w);
            assert_doubly_stochastic(&w);
            assert_symmetric(&w.lazy());
            assert_doubly_stochastic(&w.lazy());
            prop_assert!(w.contraction() < 1.0 + 1e-9 || weights == Weights::Alpha(0.1));
        }
        let metropolis = Weights::Metropolis.mixing(&graph).unwrap();
        prop_assert!(metropolis.without_positive_diagonal().is_empty());
        // Averaging contracts if and only if the graph is connected.
        let rho = Weights::Optimal.mixing(&graph).unwrap().contraction();
        prop_assert_eq!(rho < 1.0 - 1e-9, graph.is_connected());
    }

    #[test]
    fn relabeling_preserves_degrees_spectra_and_weights((graph, relabeling) in relabeled_graphs()) {
        let moved = graph.relabeled(&relabeling).unwrap();
        for (worker, &node) in relabeling.iter().enumerate() {
            prop_assert_eq!(moved.degrees()[worker], graph.degrees()[node]);
        }
        let (before, after) = (Spectrum::of(&graph), Spectrum::of(&moved));
        for (x, y) in before.values().iter().zip(after.values()) {
            prop_assert!((x - y).abs() < 1e-9);
        }
        let w = Weights::Metropolis.mixing(&graph).unwrap();
        let difference = w.relabeled(&relabeling).unwrap().to_dense()
            - &Weights::Metropolis.mixing(&moved).unwrap().to_dense();
        prop_assert!(difference.max_norm() < 1e-15);
    }

    #[test]
    fn every_schedule_is_deterministic_and_doubly_stochastic(graph in graphs(), seed: u64, round in 0u64..1_000_000) {
        let fixed = Schedule::fixed(&graph, &Weights::Optimal).unwrap();
        let rotation = Rotation::new(&graph, vec![
            (0..graph.nodes()).collect(),
            (0..graph.nodes()).rev().collect(),
        ]).unwrap();
        let rotated = |schedule: &Schedule, order| {
            schedule.clone().rotating(rotation.relabelings(), order).unwrap()
        };
        let random = Schedule::random_matching(&graph, seed);
        let matcha = Matcha::solve(&graph, 0.4).unwrap();
        let drawn = Schedule::matcha(&matcha, seed);
        let schedules = [
            rotated(&drawn, Order::InTurn { start: 1 }),
            Schedule::matcha_with(&matcha, Weights::Metropolis, seed).unwrap(),
            Schedule::released_flags(&graph).unwrap_or(drawn),
            rotated(&fixed, Order::InTurn { start: seed as usize % 7 }),
            rotated(&random, Order::Random { seed }),
            rotated(&Schedule::alternating(&graph), Order::Released { rounds_per_epoch: 49 }),
            fixed.clone().averaging_every(3).unwrap(),
            Schedule::one_peer_exponential(graph.nodes()),
            Schedule::base(graph.nodes(), 2),
        ];
        for schedule in schedules {
            let up = schedule.round(round);
            assert_doubly_stochastic(up.mixing());
            prop_assert_eq!(&up, &schedule.round(round));
            let received: usize = (0..graph.nodes()).map(|i| up.degree(i)).sum();
            let per_link = if up.is_directed() { 1 } else { 2 };
            let all = graph.nodes() * (graph.nodes() - 1);
            prop_assert!(received == per_link * up.links().len() || received == all);
            let possible = schedule.possible_links();
            for receiver in 0..graph.nodes() {
                for sender in up.senders(receiver) {
                    prop_assert!(possible.binary_search(&(sender, receiver)).is_ok());
                }
            }
        }
        assert_matching(random.round(round).links(), graph.nodes());
    }

    #[test]
    fn leaders_preserve_consensus_and_satisfy_their_bounds(
        graph in graphs(), best in 0.0..0.5f64, degree in 0.0..0.5f64, seed: u64,
    ) {
        let base = Weights::Metropolis.mixing(&graph).unwrap();
        let leaders = Leaders::new(&graph, &base, LeaderWeights { best, degree });
        let mut losses: Vec<f64> = (0..graph.nodes()).map(|i| i as f64).collect();
        upwash_topology::random::Stream::new(seed, "test", &[]).shuffle(&mut losses);
        let (n, t) = (leaders.best_leaders(&losses), leaders.degree_leaders());
        let a = leaders.matrix(&n, &t);
        for i in 0..graph.nodes() {
            prop_assert!((a.transpose().column(i).iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
        if graph.nodes() <= 6 {
            let worst = leaders.contraction_worst();
            prop_assert!(worst.exact);
            prop_assert!(leaders.contraction(&n, &t) <= worst.bound + 1e-9);
            prop_assert!(leaders.contraction_random() <= worst.bound + 1e-9);
            if best + degree < leaders.safe_total_weight() {
                prop_assert!(worst.bound < 1.0);
            }
        }
    }

    #[test]
    fn layouts_are_inside_the_unit_square(graph in graphs()) {
        let positions = layout(&graph);
        prop_assert_eq!(positions.len(), graph.nodes());
        prop_assert!(positions.iter().flatten().all(|x| (-1e-9..=1.0 + 1e-9).contains(x)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn matcha_respects_the_budget_and_certifies_the_optimum(graph in graphs(), budget in 0.05..1.0f64) {
        let matcha = Matcha::solve(&graph, budget).unwrap();
        let p = matcha.probabilities();
        prop_assert!(p.iter().all(|p| (0.0..=1.0).contains(p)));
        prop_assert!(p.iter().sum::<f64>() <= budget * p.len() as f64 + 1e-9);
        prop_assert!(matcha.lambda2() <= matcha.upper_bound() + 1e-9);
        // Each probability is rounded to 1e-6.
        prop_assert!(matcha.upper_bound() - matcha.lambda2() <= 2e-5 * p.len().max(1) as f64);
        let equal = budget * Spectrum::of(&graph).lambda2();
        prop_assert!(!graph.is_connected() || matcha.lambda2() >= equal - 1e-4);
        prop_assert_eq!(matcha.rho() < 1.0, graph.is_connected());
    }

    #[test]
    fn rotation_never_increases_the_degree_variance(graph in graphs(), copies in 1usize..4) {
        let (rotation, still) =
            (Rotation::balance(&graph, copies).unwrap(), Rotation::balance(&graph, 1).unwrap());
        prop_assert_eq!(rotation.relabelings().len(), copies);
        prop_assert!(rotation.degree_variance() <= still.degree_variance() + 1e-9);
    }
}
