//! Coloring, spectra and MATCHA's probabilities at 8 to 1,024 workers.
//!
//! `cargo bench -p upwash-topology`; the same in Python: `benches/peers/peers.py`.

use upwash_topology::{Graph, GraphSpec, Matcha, Spectrum};

const SIZES: [usize; 4] = [8, 64, 256, 1024];

fn main() {
    divan::main();
}

/// Some four links a worker, whatever the size.
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
