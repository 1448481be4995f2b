//! Fills in the configuration values that depend on others.

use crate::algorithm::{Links as AlgorithmLinks, Method, OptionInfo};
use crate::config::{Config, CopyOrder, Links, Relabelings, Start};
use upwash_topology::GraphSpec;

/// Writes out every value that depends on others. `read` has the options that the algorithm has read.
pub(super) fn resolve(config: &mut Config, method: &Method, read: Vec<OptionInfo>) {
    let algorithm = method.synchronous();
    let is_released = algorithm.is_some_and(|algorithm| algorithm.is_released());
    let is_configured = method.links() == AlgorithmLinks::Configured;
    let graph = &mut config.graph;
    graph.links.get_or_insert(if is_released && is_configured { Links::Released } else { Links::Whole });
    // The paper has relabelings for three graphs of eight workers. For other graphs a search finds them.
    let has_paper_relabelings = is_released && graph.copies <= 3 && matches!(graph.topology, GraphSpec::Paper(..));
    graph.relabelings.get_or_insert(if has_paper_relabelings { Relabelings::Paper } else { Relabelings::Balanced });
    graph.order.get_or_insert(if is_released && graph.copies <= 3 { CopyOrder::Released } else { CopyOrder::InTurn });
    let is_equal = method.starts_equal() || config.training.initial_model.is_some();
    config.training.start.get_or_insert(if is_equal { Start::Equal } else { Start::Different });
    config.training.fill_in_optimizer();
    let options = read.into_iter().map(|option| (option.key.into(), option.value));
    config.algorithm.options = options.collect();
}
