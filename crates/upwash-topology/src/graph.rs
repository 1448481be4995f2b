//! A simple undirected graph of workers, with the matchings it was given, if any.

use crate::coloring;
use faer::Mat;
use std::sync::OnceLock;

/// A link between two workers, the smaller number first.
pub type Edge = (usize, usize);

/// Links of which no two share a worker: they can all be used at the same time.
pub type Matching = Vec<Edge>;

/// The largest graph that is built; dense spectra of more workers would not fit into memory.
pub(crate) const MAX_NODES: usize = 1 << 16;
/// The most links that a graph may have.
pub(crate) const MAX_EDGES: usize = 1 << 23;

/// A simple undirected graph. Nodes are workers 0 to `nodes() - 1`.
///
/// ```
/// use upwash_topology::Graph;
///
/// let path = Graph::new(3, [(0, 1), (2, 1)])?;
/// assert_eq!(path.edges(), [(0, 1), (1, 2)]); // smaller end first, sorted
/// assert_eq!(path.degrees(), [1, 2, 1]);
/// assert!(path.is_connected());
/// # Ok::<(), upwash_topology::GraphError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Graph {
    edges: Vec<Edge>,
    neighbors: Vec<Vec<usize>>,
    own_matchings: Option<Vec<Matching>>,
    /// An edge coloring takes long for a large graph: it is made once, when first asked for.
    coloring: OnceLock<Vec<Matching>>,
    positions: Option<Vec<[f64; 2]>>,
}

impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        let parts = |graph: &Self| (graph.nodes(), graph.own_matchings.clone());
        self.edges == other.edges && parts(self) == parts(other) && self.positions == other.positions
    }
}

/// Why links do not make a simple graph.
///
/// ```
/// use upwash_topology::{Graph, GraphError};
/// assert_eq!(Graph::new(2, [(1, 1)]), Err(GraphError::SelfLoop { node: 1 }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// There is no worker at all.
    #[error("the graph has no nodes: give it at least one")]
    NoNodes,
    /// More nodes or links than can be worked with.
    #[error("a graph of {nodes} nodes and {edges} links is too large: at most {MAX_NODES} nodes and {MAX_EDGES} links")]
    TooLarge {
        /// How many nodes were asked for.
        nodes: usize,
        /// How many links were asked for.
        edges: usize,
    },
    /// A link from a node to itself.
    #[error("node {node} is linked to itself: remove the link (every worker keeps its own model anyway)")]
    SelfLoop {
        /// The node.
        node: usize,
    },
    /// The same two nodes linked twice.
    #[error("nodes {u} and {v} are linked twice: keep one of the two")]
    DoubledEdge {
        /// The smaller end.
        u: usize,
        /// The larger end.
        v: usize,
    },
    /// A node number that is not below the number of nodes.
    #[error("node {node} is out of range: with {nodes} nodes they are numbered 0 to {}", nodes.saturating_sub(1))]
    OutOfRange {
        /// The offending number.
        node: usize,
        /// How many nodes there are.
        nodes: usize,
    },
    /// A matching in which a node has two links.
    #[error(
        "matching {matching} uses node {node} twice: links of a matching share no node, so move one of them to another matching"
    )]
    NotAMatching {
        /// Which matching, counted from 0.
        matching: usize,
        /// The node that is used twice.
        node: usize,
    },
    /// A relabeling that is not a permutation of the nodes.
    #[error("a relabeling of {nodes} nodes must name each of 0 to {} exactly once", nodes.saturating_sub(1))]
    NotAPermutation {
        /// How many nodes there are.
        nodes: usize,
    },
}

impl Graph {
    /// A graph from its links, in any order and either end first.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(4, [(3, 0), (1, 2)])?.edges(), [(0, 3), (1, 2)]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn new(nodes: usize, edges: impl IntoIterator<Item = Edge>) -> Result<Self, GraphError> {
        let ordered = edges.into_iter().map(|(u, v)| (u.min(v), u.max(v)));
        let mut edges: Vec<Edge> = ordered.take(MAX_EDGES + 1).collect();
        if nodes == 0 {
            return Err(GraphError::NoNodes);
        }
        if nodes > MAX_NODES || edges.len() > MAX_EDGES {
            return Err(GraphError::TooLarge { nodes, edges: edges.len() });
        }
        edges.sort_unstable();
        let mut neighbors = vec![Vec::new(); nodes];
        let mut previous = None;
        for &(u, v) in &edges {
            if v >= nodes {
                return Err(GraphError::OutOfRange { node: v, nodes });
            }
            if u == v {
                return Err(GraphError::SelfLoop { node: u });
            }
            if previous == Some((u, v)) {
                return Err(GraphError::DoubledEdge { u, v });
            }
            previous = Some((u, v));
            neighbors[u].push(v);
            neighbors[v].push(u);
        }
        neighbors.iter_mut().for_each(|list| list.sort_unstable());
        Ok(Self { edges, neighbors, own_matchings: None, coloring: OnceLock::new(), positions: None })
    }

    /// A graph that comes with its own matchings; [`Graph::matchings`] returns them as they are,
    /// less the empty ones.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// let ring = Graph::from_matchings(4, [vec![(0, 1), (2, 3)], vec![(1, 2), (3, 0)]])?;
    /// assert_eq!(ring.matchings()[1], [(1, 2), (0, 3)]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn from_matchings(nodes: usize, matchings: impl IntoIterator<Item = Matching>) -> Result<Self, GraphError> {
        let ordered =
            |matching: Matching| -> Matching { matching.into_iter().map(|(u, v)| (u.min(v), u.max(v))).collect() };
        let matchings: Vec<Matching> = matchings.into_iter().map(ordered).collect();
        let mut graph = Self::new(nodes, matchings.iter().flatten().copied())?;
        for (index, matching) in matchings.iter().enumerate() {
            let mut used = vec![false; nodes];
            for node in matching.iter().flat_map(|&(u, v)| [u, v]) {
                if std::mem::replace(&mut used[node], true) {
                    return Err(GraphError::NotAMatching { matching: index, node });
                }
            }
        }
        graph.own_matchings = Some(matchings.into_iter().filter(|m| !m.is_empty()).collect());
        Ok(graph)
    }

    /// The same graph with a place in the plane for every node, which [`layout`](crate::layout()) keeps.
    pub(crate) fn with_positions(mut self, positions: Vec<[f64; 2]>) -> Self {
        debug_assert_eq!(positions.len(), self.nodes());
        self.positions = Some(positions);
        self
    }

    pub(crate) fn positions(&self) -> Option<&[[f64; 2]]> {
        self.positions.as_deref()
    }

    /// How many workers there are.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(3, [])?.nodes(), 3);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn nodes(&self) -> usize {
        self.neighbors.len()
    }

    /// The links, sorted, the smaller end first.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(3, [(2, 0)])?.edges(), [(0, 2)]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// The workers linked to worker `node`, in increasing order.
    ///
    /// # Panics
    /// If there is no such node.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(3, [(2, 0), (0, 1)])?.neighbors(0), [1, 2]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn neighbors(&self, node: usize) -> &[usize] {
        &self.neighbors[node]
    }

    /// Worker `node` and those linked to it, in increasing order.
    pub(crate) fn closed_neighborhood(&self, node: usize) -> Vec<usize> {
        let mut members = self.neighbors[node].clone();
        let place = members.partition_point(|&other| other < node);
        members.insert(place, node);
        members
    }

    /// How many links each worker has.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(3, [(0, 1)])?.degrees(), [1, 1, 0]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn degrees(&self) -> Vec<usize> {
        self.neighbors.iter().map(Vec::len).collect()
    }

    /// The connected pieces, each in increasing order, by their smallest node.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(4, [(0, 2)])?.pieces(), [vec![0, 2], vec![1], vec![3]]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn pieces(&self) -> Vec<Vec<usize>> {
        let mut seen = vec![false; self.nodes()];
        let mut pieces = Vec::new();
        for start in 0..self.nodes() {
            if seen[start] {
                continue;
            }
            seen[start] = true;
            let mut piece = vec![start];
            let mut next = 0;
            while let Some(&node) = piece.get(next) {
                next += 1;
                for &neighbor in self.neighbors(node) {
                    if !std::mem::replace(&mut seen[neighbor], true) {
                        piece.push(neighbor);
                    }
                }
            }
            piece.sort_unstable();
            pieces.push(piece);
        }
        pieces
    }

    /// Whether every worker can reach every other.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert!(!Graph::new(3, [(0, 1)])?.is_connected());
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn is_connected(&self) -> bool {
        self.pieces().len() == 1
    }

    /// The graph split into matchings: its own where it came with some, otherwise a proper edge
    /// coloring. Deterministic, and never more than the largest degree plus one (exactly the
    /// largest degree where the graph is bipartite).
    ///
    /// ```
    /// # use upwash_topology::GraphSpec;
    /// let ring = "ring:8".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(ring.matchings().len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matchings(&self) -> &[Matching] {
        match &self.own_matchings {
            Some(own) => own,
            None => self.coloring.get_or_init(|| coloring::color(self)),
        }
    }

    /// The same shape with the workers in other places: worker k goes to the place that worker
    /// `places[k]` has here. Matchings and positions go along.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// let path = Graph::new(3, [(0, 1), (1, 2)])?;
    /// assert_eq!(path.relabelled(&[1, 0, 2])?.degrees(), [2, 1, 1]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn relabelled(&self, places: &[usize]) -> Result<Self, GraphError> {
        let worker_at = inverse(places, self.nodes())?;
        let moved = |&(u, v): &Edge| (worker_at[u], worker_at[v]);
        let mut graph = match &self.own_matchings {
            Some(own) => {
                Self::from_matchings(self.nodes(), own.iter().map(|matching| matching.iter().map(moved).collect()))?
            }
            None => Self::new(self.nodes(), self.edges.iter().map(moved))?,
        };
        graph.positions = self.positions.as_ref().map(|here| places.iter().map(|&place| here[place]).collect());
        Ok(graph)
    }

    /// The Laplacian: degrees on the diagonal, -1 for every link.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// let l = Graph::new(2, [(0, 1)])?.laplacian();
    /// assert_eq!((l[(0, 0)], l[(0, 1)]), (1.0, -1.0));
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn laplacian(&self) -> Mat<f64> {
        weighted_laplacian(self.nodes(), self.edges.iter().map(|&edge| (edge, 1.0)))
    }
}

/// The Laplacian of weighted links.
pub(crate) fn weighted_laplacian(nodes: usize, edges: impl IntoIterator<Item = (Edge, f64)>) -> Mat<f64> {
    let mut laplacian = Mat::zeros(nodes, nodes);
    edges.into_iter().for_each(|(edge, weight)| add_link(&mut laplacian, edge, weight));
    laplacian
}

/// Adds a weighted link to a Laplacian.
pub(crate) fn add_link(laplacian: &mut Mat<f64>, (u, v): Edge, weight: f64) {
    laplacian[(u, u)] += weight;
    laplacian[(v, v)] += weight;
    laplacian[(u, v)] -= weight;
    laplacian[(v, u)] -= weight;
}

/// Who stands at each place, when worker k stands at `places[k]`.
pub(crate) fn inverse(places: &[usize], nodes: usize) -> Result<Vec<usize>, GraphError> {
    let mut worker_at = vec![usize::MAX; nodes];
    for (worker, &place) in places.iter().enumerate() {
        match worker_at.get_mut(place) {
            Some(slot) if *slot == usize::MAX => *slot = worker,
            _ => return Err(GraphError::NotAPermutation { nodes }),
        }
    }
    if places.len() != nodes {
        return Err(GraphError::NotAPermutation { nodes });
    }
    Ok(worker_at)
}
