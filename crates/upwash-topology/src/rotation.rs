//! Rotation: relabeled copies of one graph, so that no worker is always poorly connected.

use crate::graph::{add_link, inverse};
use crate::random::Stream;
use crate::{Graph, GraphError, Matrix};

/// Relabelings of one graph to use in turn, and measures of how well they balance it.
///
/// ```
/// use upwash_topology::{GraphSpec, Rotation, paper_relabelings};
///
/// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
/// let paper = Rotation::new(&l1, paper_relabelings().to_vec())?;
/// let ours = Rotation::balance(&l1, 3)?;
/// assert!(ours.degree_variance() < paper.degree_variance());
/// assert!(ours.lambda2_mean() > paper.lambda2_mean());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    relabelings: Vec<Vec<usize>>,
    expected_degrees: Vec<f64>,
    lambda2_mean: f64,
}

/// The reason why a rotation is invalid.
///
/// ```
/// use upwash_topology::{Graph, Rotation, RotationError};
/// let pair = Graph::new(2, [(0, 1)])?;
/// assert_eq!(Rotation::balance(&pair, 0).unwrap_err(), RotationError::NoCopies);
/// # Ok::<(), upwash_topology::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RotationError {
    /// The rotation has no copies.
    #[error("a rotation needs at least 1 copy of the graph")]
    NoCopies,
    /// The rotation has too many copies.
    #[error("a rotation of {0} copies is too long: use at most 1024")]
    TooMany(usize),
    /// A relabeling is invalid.
    #[error(transparent)]
    Relabeling(#[from] GraphError),
}

impl Rotation {
    /// Measures given relabelings. In copy c, worker k takes node `relabelings[c][k]`.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Rotation};
    /// let star = "star:3".parse::<GraphSpec>()?.build()?;
    /// let rotation = Rotation::new(&star, vec![vec![0, 1, 2], vec![1, 0, 2], vec![2, 1, 0]])?;
    /// assert_eq!(rotation.degree_variance(), 0.0); // every worker is the center once
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(graph: &Graph, relabelings: Vec<Vec<usize>>) -> Result<Self, RotationError> {
        if relabelings.is_empty() {
            return Err(RotationError::NoCopies);
        }
        for relabeling in &relabelings {
            inverse(relabeling, graph.nodes())?;
        }
        let search = Search { graph, degrees: graph.degrees() };
        let (lambda2_mean, _) = search.fiedler(&relabelings);
        let n = relabelings.len() as f64;
        let sums = search.degree_sums(&relabelings);
        let expected_degrees = sums.iter().map(|&sum| sum as f64 / n).collect();
        Ok(Self { relabelings, expected_degrees, lambda2_mean })
    }

    /// Finds `copies` relabelings that make the workers' expected degrees as equal as possible and, among those,
    /// lambda_2 of the mean Laplacian large. The first relabeling is the identity. The search is deterministic.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Rotation};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let two = Rotation::balance(&l1, 2)?;
    /// assert_eq!(two.expected_degrees(), [3.0; 8]);
    /// assert!((two.lambda2_mean() - 3.0).abs() < 1e-9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn balance(graph: &Graph, copies: usize) -> Result<Self, RotationError> {
        match copies {
            0 => return Err(RotationError::NoCopies),
            1025.. => return Err(RotationError::TooMany(copies)),
            _ => {}
        }
        let search = Search { graph, degrees: graph.degrees() };
        Self::new(graph, search.run(copies))
    }

    /// Returns the node that each worker takes in each copy.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Rotation};
    /// let ring = "ring:4".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Rotation::balance(&ring, 2)?.relabelings()[0], [0, 1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relabelings(&self) -> &[Vec<usize>] {
        &self.relabelings
    }

    /// Returns each worker's degree, averaged over the copies.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Rotation};
    /// let ring = "ring:4".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Rotation::balance(&ring, 2)?.expected_degrees(), [2.0; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expected_degrees(&self) -> &[f64] {
        &self.expected_degrees
    }

    /// Returns the variance of the expected degrees over the workers, which is 0 if all are equal.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Rotation, paper_relabelings};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let paper = Rotation::new(&l1, paper_relabelings()[..2].to_vec())?;
    /// assert_eq!(paper.degree_variance(), 0.125);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn degree_variance(&self) -> f64 {
        let n = self.expected_degrees.len() as f64;
        let mean = self.expected_degrees.iter().sum::<f64>() / n;
        self.expected_degrees.iter().map(|degree| (degree - mean).powi(2)).sum::<f64>() / n
    }

    /// Returns lambda_2 of the mean of the copies' Laplacians: how well connected the workers are over a full cycle
    /// through the copies.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Rotation, paper_relabelings};
    /// let l1 = "paper:L1".parse::<GraphSpec>()?.build()?;
    /// let paper = Rotation::new(&l1, paper_relabelings()[..2].to_vec())?;
    /// assert!((paper.lambda2_mean() - 2.0).abs() < 1e-9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lambda2_mean(&self) -> f64 {
        self.lambda2_mean
    }
}

/// The search for good relabelings: balanced starts, then swaps that keep the balance.
struct Search<'a> {
    graph: &'a Graph,
    degrees: Vec<usize>,
}

impl Search<'_> {
    fn run(&self, copies: usize) -> Vec<Vec<usize>> {
        let m = self.graph.nodes();
        let identity: Vec<usize> = (0..m).collect();
        if copies == 1 || m == 1 {
            return vec![identity; copies];
        }
        // An eigenvector costs about m^3 operations: spend about the same time on graphs of any size.
        let evaluations = (600_000_000 / (m * m * m + 20_000)).clamp(24, 6_000);
        let starts = (evaluations / 100).clamp(2, 40);

        let mut best: Option<(u64, f64, Vec<Vec<usize>>)> = None;
        for start in 0..starts {
            let mut stream = Stream::new(start as u64, "rotation", &[copies as u64]);
            let mut relabelings = self.balanced_start(copies, &mut stream);
            let lambda2 = self.raise_lambda2(&mut relabelings, evaluations / starts, &mut stream);
            let spread = self.spread(&self.degree_sums(&relabelings));
            let better =
                best.as_ref().is_none_or(|(least, largest, _)| (spread, -lambda2) < (*least, -largest - 1e-12));
            if better {
                best = Some((spread, lambda2, relabelings));
            }
        }
        best.map_or(vec![identity; copies], |(_, _, relabelings)| relabelings)
    }

    /// Returns relabelings with balanced degrees. Each copy gives the workers with the fewest links so far the
    /// best-connected nodes; random swaps then remove the remaining imbalance.
    fn balanced_start(&self, copies: usize, stream: &mut Stream) -> Vec<Vec<usize>> {
        let m = self.graph.nodes();
        let mut relabelings = vec![(0..m).collect::<Vec<usize>>()];
        let mut sums = self.degrees.clone();
        for _ in 1..copies {
            let mut nodes: Vec<usize> = (0..m).collect();
            let mut workers = nodes.clone();
            stream.shuffle(&mut nodes);
            stream.shuffle(&mut workers);
            nodes.sort_by_key(|&node| std::cmp::Reverse(self.degrees[node]));
            workers.sort_by_key(|&worker| sums[worker]);
            let mut copy = vec![0; m];
            for (&worker, &node) in workers.iter().zip(&nodes) {
                copy[worker] = node;
                sums[worker] += self.degrees[node];
            }
            relabelings.push(copy);
        }
        // Accept random swaps that do not increase the imbalance, including neutral ones: plateaus are wide.
        for _ in 0..200 * m {
            let (copy, a, b) = self.random_swap(copies, stream);
            let shift = self.degrees[relabelings[copy][b]] as i64 - self.degrees[relabelings[copy][a]] as i64;
            let (x, y) = (sums[a] as i64, sums[b] as i64);
            if (x + shift).pow(2) + (y - shift).pow(2) <= x * x + y * y {
                relabelings[copy].swap(a, b);
                (sums[a], sums[b]) = ((x + shift) as usize, (y - shift) as usize);
            }
        }
        relabelings
    }

    /// Raises lambda_2 by swaps that do not change the spread of degrees, and returns it. The eigenvector tells which
    /// of several random swaps is the most promising.
    fn raise_lambda2(&self, relabelings: &mut [Vec<usize>], evaluations: usize, stream: &mut Stream) -> f64 {
        const CANDIDATES: usize = 24;
        let mut sums = self.degree_sums(relabelings);
        let (mut lambda2, mut v) = self.fiedler(relabelings);
        let mut best = (lambda2, relabelings.to_vec());
        for step in 0..evaluations {
            let mut choice: Option<(f64, (usize, usize, usize))> = None;
            for _ in 0..CANDIDATES {
                let swap @ (copy, a, b) = self.random_swap(relabelings.len(), stream);
                let [from, to] = [a, b].map(|worker| self.degrees[relabelings[copy][worker]] as i64);
                let (x, y, shift) = (sums[a] as i64, sums[b] as i64, to - from);
                if (x + shift).pow(2) + (y - shift).pow(2) == x * x + y * y {
                    let gain = self.gain(&relabelings[copy], a, b, &v);
                    if choice.is_none_or(|(most, _)| gain > most) {
                        choice = Some((gain, swap));
                    }
                }
            }
            let Some((_, (copy, a, b))) = choice else {
                continue;
            };
            relabelings[copy].swap(a, b);
            let (new, eigenvector) = self.fiedler(relabelings);
            // Accept small decreases too, ever smaller ones, because lambda_2 has many local maxima.
            let tolerance = 0.1 * lambda2 * (1.0 - step as f64 / evaluations as f64);
            if new > lambda2 - tolerance * stream.uniform().powi(2) {
                (lambda2, v) = (new, eigenvector);
                sums = self.degree_sums(relabelings);
                if lambda2 > best.0 + 1e-12 {
                    best = (lambda2, relabelings.to_vec());
                }
            } else {
                relabelings[copy].swap(a, b);
            }
        }
        relabelings.clone_from_slice(&best.1);
        best.0
    }

    /// Draws a copy and two workers to swap in it. It is never the first copy, which stays the identity.
    fn random_swap(&self, copies: usize, stream: &mut Stream) -> (usize, usize, usize) {
        let m = self.graph.nodes();
        let a = stream.below(m);
        let b = (a + 1 + stream.below(m - 1)) % m;
        (1 + stream.below(copies - 1), a, b)
    }

    /// Returns the change of v'Lv when workers a and b are swapped in a copy.
    fn gain(&self, relabeling: &[usize], a: usize, b: usize, v: &[f64]) -> f64 {
        let (at_a, at_b) = (relabeling[a], relabeling[b]);
        let mut value_at = vec![0.0; v.len()];
        relabeling.iter().zip(v).for_each(|(&node, &x)| value_at[node] = x);
        let around = |node: usize, other: usize, x: f64| {
            let neighbors = self.graph.neighbors(node).iter().filter(|&&next| next != other);
            neighbors.map(|&next| (x - value_at[next]).powi(2)).sum::<f64>()
        };
        around(at_a, at_b, v[b]) + around(at_b, at_a, v[a]) - around(at_a, at_b, v[a]) - around(at_b, at_a, v[b])
    }

    /// Returns the sum of each worker's degrees over the copies.
    fn degree_sums(&self, relabelings: &[Vec<usize>]) -> Vec<usize> {
        let sum = |worker| relabelings.iter().map(|relabeling| self.degrees[relabeling[worker]]).sum();
        (0..self.graph.nodes()).map(sum).collect()
    }

    /// Returns the sum of squares, which is smallest if all sums are equal.
    fn spread(&self, sums: &[usize]) -> u64 {
        sums.iter().map(|&sum| (sum * sum) as u64).sum()
    }

    /// Returns lambda_2 of the mean Laplacian and its eigenvector.
    fn fiedler(&self, relabelings: &[Vec<usize>]) -> (f64, Vec<f64>) {
        let m = self.graph.nodes();
        if m == 1 {
            return (0.0, vec![0.0]);
        }
        let share = 1.0 / relabelings.len() as f64;
        let mut mean = Matrix::zeros(m, m);
        for relabeling in relabelings {
            let mut worker_at = vec![0; m];
            relabeling.iter().enumerate().for_each(|(worker, &node)| worker_at[node] = worker);
            for &(u, v) in self.graph.edges() {
                add_link(&mut mean, (worker_at[u], worker_at[v]), share);
            }
        }
        let (lambda2, vector) = mean.symmetric_eigenvector(1);
        (lambda2.max(0.0), vector)
    }
}
