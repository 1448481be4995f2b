//! Every spelling, for lists and help.

/// A spelling and what it means, for lists and help.
///
/// ```
/// use upwash_topology::{GraphKind, GraphSpec};
/// for kind in GraphKind::all() {
///     assert!(kind.example.starts_with(kind.name));
///     kind.example.parse::<GraphSpec>()?;
/// }
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GraphKind {
    /// What stands before the colon.
    pub name: &'static str,
    /// The whole spelling, options in brackets.
    pub spelling: &'static str,
    /// One that can be typed as it is.
    pub example: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
}

const fn kind(name: &'static str, spelling: &'static str, example: &'static str, about: &'static str) -> GraphKind {
    GraphKind { name, spelling, example, about }
}

#[rustfmt::skip]
pub(super) const KINDS: [GraphKind; 15] = [
    kind("ring", "ring:N", "ring:8", "a circle"),
    kind("path", "path:N", "path:8", "a line"),
    kind("star", "star:N", "star:8", "worker 0 in the middle"),
    kind("complete", "complete:N", "complete:8", "everyone with everyone"),
    kind("grid", "grid:RxC", "grid:3x4", "rows and columns"),
    kind("torus", "torus:RxC", "torus:4x4", "a grid whose far ends are linked"),
    kind("hypercube", "hypercube:N", "hypercube:16", "N a power of two"),
    kind("exponential", "exponential:N", "exponential:16", "links 1, 2, 4, 8, ... places further on"),
    kind("erdos-renyi", "erdos-renyi:N,p=P[,seed=S][,connected]", "erdos-renyi:16,p=0.3,seed=7",
        "any two linked with probability P"),
    kind("geometric", "geometric:N,radius=R[,seed=S][,connected]", "geometric:16,radius=0.4,seed=7",
        "random places in a unit square, near ones linked"),
    kind("regular", "regular:N,degree=D[,seed=S][,connected]", "regular:16,degree=3,seed=7",
        "random, every worker with D links"),
    kind("barabasi-albert", "barabasi-albert:N,links=L[,seed=S]", "barabasi-albert:16,links=2,seed=7",
        "newcomers link to the well-connected"),
    kind("file", "file:PATH[,nodes=N]", "file:graph.txt", "an edge list: `u v` a line, # comments"),
    kind("matchings", "matchings:PATH[,nodes=N]", "matchings:matchings.txt",
        "a matching a line: `0-1 2-3`"),
    kind("paper", "paper:L1|L2|L3[@11|9|7|5]", "paper:L1", "the AL-DSGD paper's graphs, whole or reduced"),
];

impl GraphKind {
    /// Every spelling there is.
    ///
    /// ```
    /// use upwash_topology::GraphKind;
    /// assert!(GraphKind::all().iter().any(|kind| kind.name == "torus"));
    /// ```
    pub fn all() -> &'static [GraphKind] {
        &KINDS
    }
}
