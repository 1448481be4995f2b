//! The graphs of the AL-DSGD experiments.
//!
//! L1 is the eight-worker graph of the paper's Figure 1, which is also the Erdos-Renyi graph of the
//! MATCHA paper: worker 4 hangs on worker 0 alone. L2 and L3 are L1 with the workers' places
//! exchanged. The paper says that L1 has 13 links and its reduced versions 11, 9, 7 and 5; the edge
//! list published with the experiments has 12, and the reduced ones have 10, 9, 7 and 5. They keep
//! the paper's names here: `paper:L1@11` is the one that the paper calls D = 11.

use crate::{Edge, Graph, GraphError};

const NODES: usize = 8;

/// L1's links in the five matchings of the published experiments, in their order.
const MATCHINGS: [&[Edge]; 5] =
    [&[(1, 5), (6, 7), (0, 4), (2, 3)], &[(1, 7), (3, 6)], &[(0, 1), (3, 7), (5, 6)], &[(1, 2), (0, 7)], &[(1, 3)]];

/// The links taken away, in this order; each reduced version drops a beginning of the list.
const DROPPED: [Edge; 7] = [(6, 7), (1, 3), (1, 7), (1, 5), (0, 7), (0, 4), (3, 7)];

/// (the paper's count of links, how many of `DROPPED` are gone)
pub(crate) const SIZES: [(usize, usize); 5] = [(13, 0), (11, 2), (9, 3), (7, 5), (5, 7)];

/// Where each worker of L1 stands in L1, L2 and L3.
const PLACES: [[usize; NODES]; 3] = [[0, 1, 2, 3, 4, 5, 6, 7], [3, 4, 7, 0, 1, 6, 5, 2], [6, 3, 5, 1, 7, 2, 0, 4]];

/// The relabelings of L1 that give the paper's dynamic graphs: L1 itself, L2 and L3. The first
/// two are its "two graphs", all of them its "three graphs".
///
/// ```
/// use upwash_topology::{GraphSpec, paper_relabelings};
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let l3 = "paper:L3".parse::<GraphSpec>()?.build()?;
/// assert_eq!(l1.relabelled(&paper_relabelings()[2])?.edges(), l3.edges());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn paper_relabelings() -> [Vec<usize>; 3] {
    PLACES.map(|places| places.to_vec())
}

/// `which` is 1, 2 or 3; `links` the paper's count: 13, 11, 9, 7 or 5.
pub(crate) fn graph(which: usize, links: usize) -> Result<Graph, GraphError> {
    let dropped = SIZES.iter().find(|&&(label, _)| label == links).map_or(0, |&(_, count)| count);
    let kept = |edge: &&Edge| !DROPPED[..dropped].contains(edge);
    let matchings = MATCHINGS.map(|matching| matching.iter().filter(kept).copied().collect());
    Graph::from_matchings(NODES, matchings)?.relabelled(&PLACES[which - 1])
}
