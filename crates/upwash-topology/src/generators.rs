//! Generators for the graphs that a [`GraphSpec`](crate::GraphSpec) can name.
//!
//! Random graphs draw from this crate's random streams and not from rustworkx-core's generators: those may change with
//! a version of `rand`, but a seed must always give the same graph.
//!
//! [`GraphSpec::build`](crate::GraphSpec::build) checks sizes before it calls these functions.

use crate::coloring::round_robin;
use crate::random::Stream;
use crate::{Edge, Graph, GraphError};
use std::collections::BTreeSet;
use std::f64::consts::{PI, TAU};

pub(crate) fn ring(n: usize) -> Result<Graph, GraphError> {
    // A ring of two nodes has one link, not two.
    let edges = (0..n).map(|i| (i, (i + 1) % n)).take(if n == 2 { 1 } else { n });
    Ok(Graph::new(n, edges)?.with_positions(circle(n)))
}

pub(crate) fn path(n: usize) -> Result<Graph, GraphError> {
    let positions = (0..n).map(|i| [i as f64, 0.0]).collect();
    Ok(Graph::new(n, (1..n).map(|i| (i - 1, i)))?.with_positions(positions))
}

pub(crate) fn star(n: usize) -> Result<Graph, GraphError> {
    let mut positions = vec![[0.0, 0.0]];
    positions.extend(circle(n - 1));
    Ok(Graph::new(n, (1..n).map(|i| (0, i)))?.with_positions(positions))
}

pub(crate) fn complete(n: usize) -> Result<Graph, GraphError> {
    Ok(Graph::from_matchings(n, round_robin(n))?.with_positions(circle(n)))
}

pub(crate) fn grid(rows: usize, columns: usize) -> Result<Graph, GraphError> {
    lattice(rows, columns, false)
}

pub(crate) fn torus(rows: usize, columns: usize) -> Result<Graph, GraphError> {
    lattice(rows, columns, true)
}

/// Builds a grid in which node `r * columns + c` is in row r and column c. If `wrapped`, opposite sides are linked too.
fn lattice(rows: usize, columns: usize, wrapped: bool) -> Result<Graph, GraphError> {
    let at = |r: usize, c: usize| r * columns + c;
    let mut edges = Vec::new();
    for r in 0..rows {
        for c in 0..columns {
            // With a side of 2, the opposite node is already the next one.
            if c + 1 < columns || (wrapped && columns > 2) {
                edges.push((at(r, c), at(r, (c + 1) % columns)));
            }
            if r + 1 < rows || (wrapped && rows > 2) {
                edges.push((at(r, c), at((r + 1) % rows, c)));
            }
        }
    }
    // In a straight drawing of a torus, the wrapping links would lie on top of the others: bend the lattice.
    let bend = |i: usize, n: usize| {
        if wrapped { 0.22 * (PI * i as f64 / (n - 1) as f64).sin() } else { 0.0 }
    };
    let position = |r: usize, c: usize| [c as f64 + bend(r, rows), r as f64 + bend(c, columns)];
    let positions = (0..rows * columns).map(|i| position(i / columns, i % columns)).collect();
    Ok(Graph::new(rows * columns, edges)?.with_positions(positions))
}

pub(crate) fn hypercube(n: usize) -> Result<Graph, GraphError> {
    let dimensions = n.ilog2();
    let edges = (0..n).flat_map(|i| (0..dimensions).map(move |d| (i, i ^ (1 << d))));
    // Give every dimension a different direction and length, so that no two nodes coincide.
    let position = |i: usize| {
        (0..dimensions).filter(|d| i & (1 << d) != 0).fold([0.0, 0.0], |[x, y], d| {
            let angle = PI * f64::from(d) / f64::from(dimensions);
            let length = 1.3f64.powi(d as i32);
            [x + length * angle.cos(), y - length * angle.sin()]
        })
    };
    Ok(Graph::new(n, edges.filter(|(u, v)| u < v))?.with_positions((0..n).map(position).collect()))
}

/// Links every node i to nodes i + 1, i + 2, i + 4, i + 8, ... (mod n).
pub(crate) fn exponential(n: usize) -> Result<Graph, GraphError> {
    let mut edges: Vec<Edge> = Vec::new();
    let mut hop = 1;
    while hop < n {
        edges.extend((0..n).map(|i| (i, (i + hop) % n)).map(|(u, v)| (u.min(v), u.max(v))));
        hop *= 2;
    }
    edges.sort_unstable();
    edges.dedup();
    Ok(Graph::new(n, edges)?.with_positions(circle(n)))
}

/// Links every pair of nodes with probability `p`.
pub(crate) fn erdos_renyi(n: usize, p: f64, seed: u64) -> Result<Graph, GraphError> {
    let mut stream = Stream::new(seed, "erdos-renyi graph", &[]);
    Graph::new(n, pairs(n).filter(|_| stream.uniform() < p))
}

/// Draws a random graph in which every node has the same degree. A dense graph is drawn as the complement of a sparse
/// one.
pub(crate) fn regular(n: usize, degree: usize, seed: u64) -> Result<Graph, GraphError> {
    let mut stream = Stream::new(seed, "regular graph", &[]);
    let sparse = degree.min(n - 1 - degree);
    // The probability that a sparse draw succeeds does not decrease with n, so restarts are few.
    let links = std::iter::repeat_with(|| draw_regular(n, sparse, &mut stream)).flatten().next();
    let links = links.unwrap_or_default();
    if sparse == degree {
        return Graph::new(n, links);
    }
    Graph::new(n, pairs(n).filter(|pair| !links.contains(pair)))
}

/// Joins free link ends in random order and retries those that cannot be joined (Steger and Wormald). Returns `None` if
/// all remaining ends belong to nodes that are already linked.
fn draw_regular(n: usize, degree: usize, stream: &mut Stream) -> Option<BTreeSet<Edge>> {
    let mut edges = BTreeSet::<Edge>::new();
    let mut free: Vec<usize> = (0..n).flat_map(|i| std::iter::repeat_n(i, degree)).collect();
    while !free.is_empty() {
        let before = free.len();
        stream.shuffle(&mut free);
        let mut left = Vec::new();
        for pair in free.chunks_exact(2) {
            let (u, v) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
            if u == v || !edges.insert((u, v)) {
                left.extend([u, v]);
            }
        }
        free = left;
        let possible = |&u: &usize| free.iter().any(|&v| u < v && !edges.contains(&(u, v)));
        if free.len() == before && !free.iter().any(possible) {
            return None;
        }
    }
    Some(edges)
}

/// Adds nodes one by one and links each to `links` others, chosen with probability proportional to their degree. The
/// first `links + 1` nodes form a star.
pub(crate) fn barabasi_albert(n: usize, links: usize, seed: u64) -> Result<Graph, GraphError> {
    let mut stream = Stream::new(seed, "barabasi-albert graph", &[]);
    let mut edges: Vec<Edge> = (1..=links).map(|i| (0, i)).collect();
    for new in links + 1..n {
        let mut chosen = BTreeSet::new();
        while chosen.len() < links {
            // A random end of a random link is a node with probability proportional to its degree.
            let (u, v) = edges[stream.below(edges.len())];
            chosen.insert(if stream.below(2) == 0 { u } else { v });
        }
        edges.extend(chosen.into_iter().map(|old| (old, new)));
    }
    Graph::new(n, edges)
}

/// Puts nodes at random positions in the unit square and links those closer than `radius`.
pub(crate) fn geometric(n: usize, radius: f64, seed: u64) -> Result<Graph, GraphError> {
    let mut stream = Stream::new(seed, "geometric graph", &[]);
    let positions: Vec<[f64; 2]> = (0..n).map(|_| [stream.uniform(), stream.uniform()]).collect();
    let near = |&(u, v): &Edge| {
        let [dx, dy] = [0, 1].map(|axis| positions[u][axis] - positions[v][axis]);
        dx * dx + dy * dy < radius * radius
    };
    Ok(Graph::new(n, pairs(n).filter(near))?.with_positions(positions))
}

fn pairs(n: usize) -> impl Iterator<Item = Edge> {
    (0..n).flat_map(move |u| (u + 1..n).map(move |v| (u, v)))
}

/// Returns n positions on a circle, clockwise from the top (the y axis points down).
pub(crate) fn circle(n: usize) -> Vec<[f64; 2]> {
    (0..n)
        .map(|i| {
            let angle = TAU * (i as f64 / n as f64 - 0.25);
            [angle.cos(), angle.sin()]
        })
        .collect()
}
