//! Values of a configuration that follow from others.

use crate::algorithm::{Links as AlgorithmLinks, Method, OptionInfo};
use crate::config::{Config, CopyOrder, Links, Relabelings, Start};
use upwash_topology::GraphSpec;

/// Writes out every value that follows from others, once the algorithm has read its options.
pub(super) fn resolve(config: &mut Config, method: &Method, read: Vec<OptionInfo>) {
    let algorithm = method.synchronous();
    let released = algorithm.is_some_and(|algorithm| algorithm.is_released());
    let configured = method.links() == AlgorithmLinks::Configured;
    let graph = &mut config.graph;
    graph.links.get_or_insert(if released && configured { Links::Released } else { Links::Whole });
    // The paper has three graphs of eight workers; for others a search finds them.
    let theirs = released && graph.copies <= 3 && matches!(graph.topology, GraphSpec::Paper(..));
    graph.relabelings.get_or_insert(if theirs { Relabelings::Paper } else { Relabelings::Balanced });
    graph.order.get_or_insert(if released && graph.copies <= 3 { CopyOrder::Released } else { CopyOrder::InTurn });
    config.training.start.get_or_insert(if method.starts_equal() { Start::Equal } else { Start::Different });
    let options = read.into_iter().map(|option| (option.key.into(), option.value));
    config.algorithm.options = options.collect();
}
