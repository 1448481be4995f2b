//! Positions of a graph's nodes in the plane, for drawings.

use crate::Graph;
use crate::generators::circle;
use crate::random::Stream;

/// Returns a position for every node in the square from (0, 0) to (1, 1), with the y axis pointing down.
///
/// Graphs with a natural layout (rings, grids, hypercubes, random points) keep it. Others are laid out by stress
/// majorization, so that distances in the drawing approximate distances in the graph.
///
/// ```
/// use upwash_topology::{GraphSpec, layout};
/// let positions = layout(&"grid:2x2".parse::<GraphSpec>()?.build()?);
/// assert_eq!(positions, [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]);
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
pub fn layout(graph: &Graph) -> Vec<[f64; 2]> {
    match graph.positions() {
        Some(positions) => fitted(positions.to_vec()),
        None => fitted(best_of_several(graph)),
    }
}

/// Scales and centers the positions to fit the unit square, keeping their proportions.
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

/// Returns the best of several layouts: the fewest crossings and links through other nodes, then the lowest stress.
fn best_of_several(graph: &Graph) -> Vec<[f64; 2]> {
    let n = graph.nodes();
    let hops = distances(graph);
    let starts = if n <= 40 { 24 } else { 1 };
    let candidate = |start: u64| {
        let mut order: Vec<usize> = (0..n).collect();
        if start > 0 {
            Stream::new(start, "layout", &[]).shuffle(&mut order);
        }
        let positions = minimize_stress(&hops, &order);
        let flaws = if starts > 1 { flaws(graph, &positions) } else { 0.0 };
        (flaws, stress(&hops, &positions), positions)
    };
    let by_quality = |a: &(f64, f64, _), b: &(f64, f64, _)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
    (0..starts).map(candidate).min_by(by_quality).map_or(vec![], |(_, _, positions)| positions)
}

/// The penalty of a link that runs through a node, relative to that of two links that cross.
const HIDDEN_LINK: f64 = 10.0;

/// Returns the weighted number of crossings and of links that run through other nodes.
fn flaws(graph: &Graph, positions: &[[f64; 2]]) -> f64 {
    // Twice the signed area of the triangle abc.
    let area = |a: usize, b: usize, c: usize| {
        let ([ax, ay], [bx, by], [cx, cy]) = (positions[a], positions[b], positions[c]);
        (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
    };
    let mut flaws = 0.0;
    for (index, &(a, b)) in graph.edges().iter().enumerate() {
        for &(c, d) in &graph.edges()[..index] {
            let disjoint = a != c && a != d && b != c && b != d;
            let crossing = area(a, b, c) * area(a, b, d) < 0.0 && area(c, d, a) * area(c, d, b) < 0.0;
            flaws += f64::from(u8::from(disjoint && crossing));
        }
        let [dx, dy] = [0, 1].map(|axis| positions[b][axis] - positions[a][axis]);
        let length = dx.hypot(dy).max(1e-9);
        for node in (0..graph.nodes()).filter(|&node| node != a && node != b) {
            let along = (positions[node][0] - positions[a][0]) * dx + (positions[node][1] - positions[a][1]) * dy;
            let beside = (0.0..length * length).contains(&along);
            if beside && area(a, b, node).abs() / length < 0.25 {
                flaws += HIDDEN_LINK;
            }
        }
    }
    flaws
}

/// Returns sum (|x_i - x_j| - d_ij)^2 / d_ij^2, where d is the number of hops.
fn stress(hops: &[Vec<f64>], positions: &[[f64; 2]]) -> f64 {
    let pair = |i: usize, j: usize| {
        let distance = (positions[i][0] - positions[j][0]).hypot(positions[i][1] - positions[j][1]);
        (distance / hops[i][j] - 1.0).powi(2)
    };
    (0..hops.len()).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| pair(i, j)).sum()
}

/// Minimizes the stress by repeatedly moving every node to the position that best matches its distances to all others.
/// Starts from a circle in the given order.
fn minimize_stress(hops: &[Vec<f64>], order: &[usize]) -> Vec<[f64; 2]> {
    let n = hops.len();
    // Many steps for small graphs, where they are visible; few for large ones, where they are expensive.
    let steps = (40_000_000 / (n * n + 1)).clamp(30, 300);
    let radius = hops.iter().flatten().copied().fold(0.0f64, f64::max) / 2.0;
    let circle = circle(n);
    let mut positions: Vec<[f64; 2]> = order.iter().map(|&k| circle[k].map(|x| x * radius)).collect();
    for _ in 0..steps {
        for i in 0..n {
            let (mut sum, mut total) = ([0.0, 0.0], 0.0);
            for j in (0..n).filter(|&j| j != i) {
                let target = hops[i][j];
                let weight = 1.0 / (target * target);
                let offset = [0, 1].map(|axis| positions[i][axis] - positions[j][axis]);
                let length = offset[0].hypot(offset[1]).max(1e-9);
                for axis in 0..2 {
                    sum[axis] += weight * (positions[j][axis] + target * offset[axis] / length);
                }
                total += weight;
            }
            if total > 0.0 {
                positions[i] = sum.map(|x| x / total);
            }
        }
    }
    positions
}

/// Returns the hops between all pairs of nodes. Between connected components it is one more than the longest distance
/// within any.
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
