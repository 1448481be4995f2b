//! Proper edge colorings: a graph split into matchings.

use crate::{Edge, Graph, Matching};
use rustworkx_core::bipartite_coloring::bipartite_edge_color;
use rustworkx_core::coloring::misra_gries_edge_color;
use rustworkx_core::dictmap::DictMap;
use rustworkx_core::petgraph::graph::{EdgeIndex, UnGraph};

/// Matchings that cover `graph`: as many as its largest degree where it is bipartite (König),
/// otherwise at most one more (Misra and Gries). The largest matching comes first.
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

/// The complete graph's matchings as a round-robin tournament plays them: n - 1 for an even number
/// of nodes, n for an odd one (in each, one node then stands aside). Both are the fewest possible.
pub(crate) fn round_robin(nodes: usize) -> Vec<Matching> {
    let seats = nodes + nodes % 2; // an odd tournament has an empty seat, the last one
    let others = seats - 1;
    (0..others)
        .map(|round| {
            let pairs = (1..seats / 2)
                .map(|step| ((round + step) % others, (round + others - step) % others))
                .chain([(round, others)]);
            let mut matching: Vec<Edge> =
                pairs.filter(|&(u, v)| u.max(v) < nodes).map(|(u, v)| (u.min(v), u.max(v))).collect();
            matching.sort_unstable();
            matching
        })
        .collect()
}
