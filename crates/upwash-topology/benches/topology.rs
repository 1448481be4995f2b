//! Benchmarks of edge coloring, spectra and MATCHA's probabilities for 8 to 1,024 workers.
//!
//! Run them with `cargo bench -p upwash-topology`. `benches/peers/peers.py` measures the same in Python.

use upwash_topology::{Graph, GraphSpec, Matcha, Spectrum};

const SIZES: [usize; 4] = [8, 64, 256, 1024];

fn main() {
    divan::main();
}

/// Draws a connected graph with about four times as many links as workers.
fn graph(nodes: usize) -> Graph {
    let p = 7.8 / (nodes as f64 - 1.0).max(8.0);
    let spec = format!("erdos-renyi:{nodes},p={p},seed=1,connected").parse::<GraphSpec>();
    spec.and_then(|spec| spec.build()).expect("a connected graph of this size")
}

#[divan::bench(args = SIZES)]
fn coloring(bencher: divan::Bencher<'_, '_>, nodes: usize) {
    let graph = graph(nodes);
    bencher.bench_local(|| graph.matchings());
}

#[divan::bench(args = SIZES)]
fn spectrum(bencher: divan::Bencher<'_, '_>, nodes: usize) {
    let graph = graph(nodes);
    bencher.bench_local(|| Spectrum::of(&graph));
}

#[divan::bench(args = SIZES, max_time = 40)]
fn matcha(bencher: divan::Bencher<'_, '_>, nodes: usize) {
    let graph = graph(nodes);
    bencher.bench_local(|| Matcha::solve(&graph, 0.5));
}
