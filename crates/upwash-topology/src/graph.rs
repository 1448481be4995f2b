//! Simple undirected graphs of workers.

use crate::{Matrix, coloring};
use std::sync::OnceLock;

/// A link between two workers, with the smaller number first.
pub type Edge = (usize, usize);

/// Links of which no two share a worker, so that all can be used at the same time.
pub type Matching = Vec<Edge>;

/// The maximum number of nodes. Dense spectra of larger graphs would not fit into memory.
pub(crate) const MAX_NODES: usize = 1 << 16;
/// The maximum number of links.
pub(crate) const MAX_EDGES: usize = 1 << 23;

/// A simple undirected graph. Its nodes are workers 0 to `nodes() - 1`.
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
    /// The matchings that the graph was built from, if any.
    own_matchings: Option<Vec<Matching>>,
    /// The edge coloring, computed on first use because it is slow for large graphs.
    coloring: OnceLock<Vec<Matching>>,
    /// Positions of the nodes in the plane, if the graph has a natural layout.
    positions: Option<Vec<[f64; 2]>>,
}

impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        let parts = |graph: &Self| (graph.nodes(), graph.own_matchings.clone());
        self.edges == other.edges && parts(self) == parts(other) && self.positions == other.positions
    }
}

/// The reason why links, matchings or a relabeling are invalid.
///
/// ```
/// use upwash_topology::{Graph, GraphError};
/// assert_eq!(Graph::new(2, [(1, 1)]), Err(GraphError::SelfLoop { node: 1 }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The graph has no nodes.
    #[error("the graph has no nodes: give it at least one")]
    NoNodes,
    /// The graph has too many nodes or links.
    #[error(
        "a graph of {nodes} nodes and {edges} links is too large: at most {MAX_NODES} nodes and {MAX_EDGES} links are supported"
    )]
    TooLarge {
        /// The number of nodes.
        nodes: usize,
        /// The number of links.
        edges: usize,
    },
    /// A link leads from a node to itself.
    #[error("node {node} is linked to itself: remove the link (every worker keeps its own model anyway)")]
    SelfLoop {
        /// The node.
        node: usize,
    },
    /// Two nodes are linked twice.
    #[error("nodes {u} and {v} are linked twice: keep one of the two")]
    DuplicateEdge {
        /// The smaller node (the sender of a directed link).
        u: usize,
        /// The larger node (the receiver of a directed link).
        v: usize,
    },
    /// A node number is not below the number of nodes.
    #[error("node {node} is out of range: {nodes} nodes are numbered 0 to {}", nodes.saturating_sub(1))]
    OutOfRange {
        /// The node number.
        node: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// A node has two links in the same matching.
    #[error(
        "matching {matching} uses node {node} twice: links of a matching share no node, so move one of them to another matching"
    )]
    NotAMatching {
        /// The index of the matching, counted from 0.
        matching: usize,
        /// The node that is used twice.
        node: usize,
    },
    /// The relabeling is not a permutation of the nodes.
    #[error("a relabeling of {nodes} nodes must contain each of 0 to {} exactly once", nodes.saturating_sub(1))]
    NotAPermutation {
        /// The number of nodes.
        nodes: usize,
    },
}

impl Graph {
    /// Creates a graph from its links, in any order and with either end first.
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
                return Err(GraphError::DuplicateEdge { u, v });
            }
            previous = Some((u, v));
            neighbors[u].push(v);
            neighbors[v].push(u);
        }
        neighbors.iter_mut().for_each(|list| list.sort_unstable());
        Ok(Self { edges, neighbors, own_matchings: None, coloring: OnceLock::new(), positions: None })
    }

    /// Creates a graph from its matchings. [`Graph::matchings`] returns them unchanged, except that empty ones are
    /// removed.
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

    /// Attaches positions in the plane, which [`layout`](crate::layout()) keeps.
    pub(crate) fn with_positions(mut self, positions: Vec<[f64; 2]>) -> Self {
        debug_assert_eq!(positions.len(), self.nodes());
        self.positions = Some(positions);
        self
    }

    pub(crate) fn positions(&self) -> Option<&[[f64; 2]]> {
        self.positions.as_deref()
    }

    /// Returns the number of workers.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(3, [])?.nodes(), 3);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn nodes(&self) -> usize {
        self.neighbors.len()
    }

    /// Returns the links, sorted, with the smaller end first.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(3, [(2, 0)])?.edges(), [(0, 2)]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Returns the neighbors of worker `node`, in increasing order.
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

    /// Returns worker `node` and its neighbors, in increasing order.
    pub(crate) fn closed_neighborhood(&self, node: usize) -> Vec<usize> {
        let mut members = self.neighbors[node].clone();
        let index = members.partition_point(|&other| other < node);
        members.insert(index, node);
        members
    }

    /// Returns the number of links of each worker.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(3, [(0, 1)])?.degrees(), [1, 1, 0]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn degrees(&self) -> Vec<usize> {
        self.neighbors.iter().map(Vec::len).collect()
    }

    /// Returns the connected components, sorted by their smallest node, each in increasing order.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert_eq!(Graph::new(4, [(0, 2)])?.components(), [vec![0, 2], vec![1], vec![3]]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn components(&self) -> Vec<Vec<usize>> {
        let mut seen = vec![false; self.nodes()];
        let mut components = Vec::new();
        for start in 0..self.nodes() {
            if seen[start] {
                continue;
            }
            seen[start] = true;
            let mut component = vec![start];
            let mut next = 0;
            while let Some(&node) = component.get(next) {
                next += 1;
                for &neighbor in self.neighbors(node) {
                    if !std::mem::replace(&mut seen[neighbor], true) {
                        component.push(neighbor);
                    }
                }
            }
            component.sort_unstable();
            components.push(component);
        }
        components
    }

    /// Returns whether every worker can reach every other.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// assert!(!Graph::new(3, [(0, 1)])?.is_connected());
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn is_connected(&self) -> bool {
        self.components().len() == 1
    }

    /// Returns matchings that together contain every link exactly once: those that the graph was created from,
    /// otherwise a proper edge coloring. The coloring is deterministic and has at most one color more than the largest
    /// degree (exactly the largest degree if the graph is bipartite).
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

    /// Returns the graph with its workers relabeled: worker k takes the position of node `relabeling[k]` of this graph.
    /// Matchings and positions are relabeled as well.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// let path = Graph::new(3, [(0, 1), (1, 2)])?;
    /// assert_eq!(path.relabeled(&[1, 0, 2])?.degrees(), [2, 1, 1]);
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn relabeled(&self, relabeling: &[usize]) -> Result<Self, GraphError> {
        let worker_at = inverse(relabeling, self.nodes())?;
        let moved = |&(u, v): &Edge| (worker_at[u], worker_at[v]);
        let mut graph = match &self.own_matchings {
            Some(own) => {
                Self::from_matchings(self.nodes(), own.iter().map(|matching| matching.iter().map(moved).collect()))?
            }
            None => Self::new(self.nodes(), self.edges.iter().map(moved))?,
        };
        graph.positions = self.positions.as_ref().map(|here| relabeling.iter().map(|&node| here[node]).collect());
        Ok(graph)
    }

    /// Returns the Laplacian: degrees on the diagonal, -1 for every link.
    ///
    /// ```
    /// # use upwash_topology::Graph;
    /// let l = Graph::new(2, [(0, 1)])?.laplacian();
    /// assert_eq!((l[(0, 0)], l[(0, 1)]), (1.0, -1.0));
    /// # Ok::<(), upwash_topology::GraphError>(())
    /// ```
    pub fn laplacian(&self) -> Matrix {
        weighted_laplacian(self.nodes(), self.edges.iter().map(|&edge| (edge, 1.0)))
    }
}

/// Returns the Laplacian of weighted links.
pub(crate) fn weighted_laplacian(nodes: usize, edges: impl IntoIterator<Item = (Edge, f64)>) -> Matrix {
    let mut laplacian = Matrix::zeros(nodes, nodes);
    edges.into_iter().for_each(|(edge, weight)| add_link(&mut laplacian, edge, weight));
    laplacian
}

/// Adds a weighted link to a Laplacian.
pub(crate) fn add_link(laplacian: &mut Matrix, (u, v): Edge, weight: f64) {
    laplacian[(u, u)] += weight;
    laplacian[(v, v)] += weight;
    laplacian[(u, v)] -= weight;
    laplacian[(v, u)] -= weight;
}

/// Returns the inverse permutation: the worker at each node, when worker k takes node `relabeling[k]`.
pub(crate) fn inverse(relabeling: &[usize], nodes: usize) -> Result<Vec<usize>, GraphError> {
    let mut worker_at = vec![usize::MAX; nodes];
    for (worker, &node) in relabeling.iter().enumerate() {
        match worker_at.get_mut(node) {
            Some(slot) if *slot == usize::MAX => *slot = worker,
            _ => return Err(GraphError::NotAPermutation { nodes }),
        }
    }
    if relabeling.len() != nodes {
        return Err(GraphError::NotAPermutation { nodes });
    }
    Ok(worker_at)
}
