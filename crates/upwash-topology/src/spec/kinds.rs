//! The table of all graph kinds, for lists and help texts.

/// A kind of graph: its name, its syntax and a description, for lists and help texts.
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
    /// The name before the colon.
    pub name: &'static str,
    /// The full syntax, with optional parts in brackets.
    pub syntax: &'static str,
    /// A valid specification of this kind.
    pub example: &'static str,
    /// A short description.
    pub about: &'static str,
}

const fn kind(name: &'static str, syntax: &'static str, example: &'static str, about: &'static str) -> GraphKind {
    GraphKind { name, syntax, example, about }
}

#[rustfmt::skip]
pub(super) const KINDS: [GraphKind; 15] = [
    kind("ring", "ring:N", "ring:8", "a cycle"),
    kind("path", "path:N", "path:8", "a line"),
    kind("star", "star:N", "star:8", "worker 0 linked to all others"),
    kind("complete", "complete:N", "complete:8", "every pair of workers linked"),
    kind("grid", "grid:RxC", "grid:3x4", "rows and columns"),
    kind("torus", "torus:RxC", "torus:4x4", "a grid whose opposite sides are linked"),
    kind("hypercube", "hypercube:N", "hypercube:16", "a hypercube; N must be a power of two"),
    kind("exponential", "exponential:N", "exponential:16",
        "each worker linked to those 1, 2, 4, 8, ... further around a ring"),
    kind("erdos-renyi", "erdos-renyi:N,p=P[,seed=S][,connected]", "erdos-renyi:16,p=0.3,seed=7",
        "every pair linked with probability P"),
    kind("geometric", "geometric:N,radius=R[,seed=S][,connected]", "geometric:16,radius=0.4,seed=7",
        "random points in the unit square, linked where closer than R"),
    kind("regular", "regular:N,degree=D[,seed=S][,connected]", "regular:16,degree=3,seed=7",
        "random, every worker with D links"),
    kind("barabasi-albert", "barabasi-albert:N,links=L[,seed=S]", "barabasi-albert:16,links=2,seed=7",
        "each new worker links to L others, preferring well-connected ones"),
    kind("file", "file:PATH[,nodes=N]", "file:graph.txt", "an edge list: one link `u v` per line, # starts a comment"),
    kind("matchings", "matchings:PATH[,nodes=N]", "matchings:matchings.txt",
        "one matching per line: `0-1 2-3`"),
    kind("paper", "paper:L1|L2|L3[@11|9|7|5]", "paper:L1", "the AL-DSGD paper's graphs, full or reduced"),
];

impl GraphKind {
    /// Returns all kinds of graphs.
    ///
    /// ```
    /// use upwash_topology::GraphKind;
    /// assert!(GraphKind::all().iter().any(|kind| kind.name == "torus"));
    /// ```
    pub fn all() -> &'static [GraphKind] {
        &KINDS
    }
}
