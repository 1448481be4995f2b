//! Proper edge colorings, which split a graph into matchings.

use crate::{Edge, Graph, Matching};
use rustworkx_core::bipartite_coloring::bipartite_edge_color;
use rustworkx_core::coloring::misra_gries_edge_color;
use rustworkx_core::dictmap::DictMap;
use rustworkx_core::petgraph::graph::{EdgeIndex, UnGraph};

/// Returns matchings that cover `graph`, the largest first. A bipartite graph needs as many as its largest degree
/// (König); any other graph gets at most one more (Misra and Gries).
pub(crate) fn color(graph: &Graph) -> Vec<Matching> {
    let mut petgraph = UnGraph::<(), ()>::with_capacity(graph.nodes(), graph.edges().len());
    for _ in 0..graph.nodes() {
        petgraph.add_node(());
    }
    for &(u, v) in graph.edges() {
        petgraph.add_edge((u as u32).into(), (v as u32).into(), ());
    }
    let colors: DictMap<EdgeIndex, usize> =
        bipartite_edge_color(&petgraph).unwrap_or_else(|_| misra_gries_edge_color(&petgraph));

    let count = colors.values().max().map_or(0, |&largest| largest + 1);
    let mut matchings = vec![Matching::new(); count];
    for (index, &edge) in graph.edges().iter().enumerate() {
        matchings[colors[&EdgeIndex::new(index)]].push(edge);
    }
    matchings.retain(|matching| !matching.is_empty());
    matchings.sort_by_key(|matching| (std::cmp::Reverse(matching.len()), matching[0]));
    matchings
}

/// Returns the matchings of the complete graph by the round-robin tournament method: n - 1 for an even number of nodes,
/// n for an odd number, where each matching leaves out one node. Both are the fewest possible.
pub(crate) fn round_robin(nodes: usize) -> Vec<Matching> {
    let players = nodes + nodes % 2; // an odd number of nodes gets one dummy player, the last one
    let others = players - 1;
    (0..others)
        .map(|round| {
            let pairs = (1..players / 2)
                .map(|step| ((round + step) % others, (round + others - step) % others))
                .chain([(round, others)]);
            let mut matching: Vec<Edge> =
                pairs.filter(|&(u, v)| u.max(v) < nodes).map(|(u, v)| (u.min(v), u.max(v))).collect();
            matching.sort_unstable();
            matching
        })
        .collect()
}
