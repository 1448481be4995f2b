//! Places in the plane for the nodes of a graph, so that a person can see its structure.

use crate::Graph;
use crate::generators::circle;
use crate::random::Stream;

/// A place for every node, in the square from (0, 0) to (1, 1), y pointing down.
///
/// Graphs with a natural shape (rings, grids, hypercubes, random places) keep it. Others are laid
/// out so that the distance on the page is near the distance in the graph (stress majorization).
///
/// ```
/// use upwash_topology::{GraphSpec, layout};
/// let places = layout(&"grid:2x2".parse::<GraphSpec>()?.build()?);
/// assert_eq!(places, [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]);
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
pub fn layout(graph: &Graph) -> Vec<[f64; 2]> {
    match graph.positions() {
        Some(positions) => fitted(positions.to_vec()),
        None => fitted(majorized(graph)),
    }
}

/// Scaled and centred into the unit square, the proportions kept.
fn fitted(positions: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    let range = |axis: usize| {
        let values = positions.iter().map(|position| position[axis]);
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    };
    let ranges = [range(0), range(1)];
    let size = ranges.iter().map(|(low, high)| high - low).fold(0.0, f64::max);
    let scale = if size > 0.0 { 1.0 / size } else { 0.0 };
    let fit = |position: [f64; 2]| {
        [0, 1].map(|axis| {
            let (low, high) = ranges[axis];
            0.5 + scale * (position[axis] - 0.5 * (low + high))
        })
    };
    positions.into_iter().map(fit).collect()
}

/// The best of several layouts: few links that run through other nodes or cross, then low stress.
fn majorized(graph: &Graph) -> Vec<[f64; 2]> {
    let n = graph.nodes();
    let hops = distances(graph);
    let starts = if n <= 40 { 24 } else { 1 };
    let candidate = |start: u64| {
        let mut order: Vec<usize> = (0..n).collect();
        if start > 0 {
            Stream::new(start, "layout", &[]).shuffle(&mut order);
        }
        let places = settled(&hops, &order);
        let flaws = if starts > 1 { flaws(graph, &places) } else { 0.0 };
        (flaws, stress(&hops, &places), places)
    };
    let by_quality = |a: &(f64, f64, _), b: &(f64, f64, _)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
    (0..starts).map(candidate).min_by(by_quality).map_or(vec![], |(_, _, places)| places)
}

/// How much a link that runs through a node counts beside one that crosses another link.
const HIDDEN_LINK: f64 = 10.0;

fn flaws(graph: &Graph, places: &[[f64; 2]]) -> f64 {
    // Twice the signed area of the triangle abc.
    let turn = |a: usize, b: usize, c: usize| {
        let ([ax, ay], [bx, by], [cx, cy]) = (places[a], places[b], places[c]);
        (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
    };
    let mut flaws = 0.0;
    for (index, &(a, b)) in graph.edges().iter().enumerate() {
        for &(c, d) in &graph.edges()[..index] {
            let apart = a != c && a != d && b != c && b != d;
            let crossing = turn(a, b, c) * turn(a, b, d) < 0.0 && turn(c, d, a) * turn(c, d, b) < 0.0;
            flaws += f64::from(u8::from(apart && crossing));
        }
        let [dx, dy] = [0, 1].map(|axis| places[b][axis] - places[a][axis]);
        let length = dx.hypot(dy).max(1e-9);
        for node in (0..graph.nodes()).filter(|&node| node != a && node != b) {
            let along = (places[node][0] - places[a][0]) * dx + (places[node][1] - places[a][1]) * dy;
            let beside = (0.0..length * length).contains(&along);
            if beside && turn(a, b, node).abs() / length < 0.25 {
                flaws += HIDDEN_LINK;
            }
        }
    }
    flaws
}

/// sum (|x_i - x_j| - d_ij)^2 / d_ij^2, d the number of hops.
fn stress(hops: &[Vec<f64>], places: &[[f64; 2]]) -> f64 {
    let pair = |i: usize, j: usize| {
        let apart = (places[i][0] - places[j][0]).hypot(places[i][1] - places[j][1]);
        (apart / hops[i][j] - 1.0).powi(2)
    };
    (0..hops.len()).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| pair(i, j)).sum()
}

/// Lowers the stress by moving every node to where its distances to all others want it, from a
/// circle in the given order. Pieces of a graph keep a distance of their own.
fn settled(hops: &[Vec<f64>], order: &[usize]) -> Vec<[f64; 2]> {
    let n = hops.len();
    // Many steps for small graphs, where they show; few for large ones, where they cost.
    let steps = (40_000_000 / (n * n + 1)).clamp(30, 300);
    let radius = hops.iter().flatten().copied().fold(0.0f64, f64::max) / 2.0;
    let circle = circle(n);
    let mut places: Vec<[f64; 2]> = order.iter().map(|&k| circle[k].map(|x| x * radius)).collect();
    for _ in 0..steps {
        for i in 0..n {
            let (mut sum, mut total) = ([0.0, 0.0], 0.0);
            for j in (0..n).filter(|&j| j != i) {
                let target = hops[i][j];
                let weight = 1.0 / (target * target);
                let apart = [0, 1].map(|axis| places[i][axis] - places[j][axis]);
                let length = apart[0].hypot(apart[1]).max(1e-9);
                for axis in 0..2 {
                    sum[axis] += weight * (places[j][axis] + target * apart[axis] / length);
                }
                total += weight;
            }
            if total > 0.0 {
                places[i] = sum.map(|x| x / total);
            }
        }
    }
    places
}

/// Hops between all pairs; between pieces, a little more than the longest within any.
fn distances(graph: &Graph) -> Vec<Vec<f64>> {
    let n = graph.nodes();
    let mut hops = vec![vec![f64::INFINITY; n]; n];
    for (start, row) in hops.iter_mut().enumerate() {
        row[start] = 0.0;
        let mut queue = std::collections::VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for &next in graph.neighbors(node) {
                if row[next].is_infinite() {
                    row[next] = row[node] + 1.0;
                    queue.push_back(next);
                }
            }
        }
    }
    let longest = hops.iter().flatten().copied().filter(|hop| hop.is_finite()).fold(1.0, f64::max);
    for hop in hops.iter_mut().flatten().filter(|hop| hop.is_infinite()) {
        *hop = longest + 1.0;
    }
    hops
}
