//! The graphs of the AL-DSGD experiments.
//!
//! L1 is the eight-worker graph of the paper's Figure 1, which is also the Erdos-Renyi graph of the MATCHA paper.
//! Worker 4's only neighbor is worker 0. L2 and L3 are relabelings of L1. According to the paper, L1 has 13 links and
//! its reduced versions have 11, 9, 7 and 5. The edge list published with the experiments has 12 links, and the reduced
//! versions have 10, 9, 7 and 5. The names follow the paper: `paper:L1@11` is the graph that the paper calls D = 11.

use crate::{Edge, Graph, GraphError};

const NODES: usize = 8;

/// L1's links, split into the five matchings of the published experiments and in the same order.
const MATCHINGS: [&[Edge]; 5] =
    [&[(1, 5), (6, 7), (0, 4), (2, 3)], &[(1, 7), (3, 6)], &[(0, 1), (3, 7), (5, 6)], &[(1, 2), (0, 7)], &[(1, 3)]];

/// The links that the reduced versions lack. Each reduced version drops a prefix of this list.
const DROPPED: [Edge; 7] = [(6, 7), (1, 3), (1, 7), (1, 5), (0, 7), (0, 4), (3, 7)];

/// Pairs of (number of links according to the paper, number of links of `DROPPED` to remove).
pub(crate) const SIZES: [(usize, usize); 5] = [(13, 0), (11, 2), (9, 3), (7, 5), (5, 7)];

/// The relabelings of L1 that give L1, L2 and L3.
const RELABELINGS: [[usize; NODES]; 3] = [[0, 1, 2, 3, 4, 5, 6, 7], [3, 4, 7, 0, 1, 6, 5, 2], [6, 3, 5, 1, 7, 2, 0, 4]];

/// Returns the relabelings of L1 that give the paper's dynamic graphs: L1 itself, L2 and L3. The first two are the
/// paper's "two graphs", all three its "three graphs".
///
/// ```
/// use upwash_topology::{GraphSpec, paper_relabelings};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let l3 = "paper:L3".parse::<GraphSpec>()?.build()?;
/// assert_eq!(l1.relabeled(&paper_relabelings()[2])?.edges(), l3.edges());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn paper_relabelings() -> [Vec<usize>; 3] {
    RELABELINGS.map(|relabeling| relabeling.to_vec())
}

/// Builds L1, L2 or L3 (`which` is 1, 2 or 3). `links` is the paper's number of links: 13, 11, 9, 7 or 5.
pub(crate) fn graph(which: usize, links: usize) -> Result<Graph, GraphError> {
    let dropped = SIZES.iter().find(|&&(label, _)| label == links).map_or(0, |&(_, count)| count);
    let kept = |edge: &&Edge| !DROPPED[..dropped].contains(edge);
    let matchings = MATCHINGS.map(|matching| matching.iter().filter(kept).copied().collect());
    Graph::from_matchings(NODES, matchings)?.relabeled(&RELABELINGS[which - 1])
}
