//! Rotation: the same graph with the workers in other places, so that nobody is always at its edge.

use crate::graph::{add_link, inverse};
use crate::random::Stream;
use crate::{Graph, GraphError};
use faer::{Mat, Side};

/// Relabelings of one graph, to be used in turn, and how well they balance it.
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

/// Why a rotation cannot be had.
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
    /// No copies.
    #[error("a rotation of 0 copies is none: ask for at least 1")]
    NoCopies,
    /// So many copies that nothing would come of it.
    #[error("a rotation of {0} copies is too long: ask for at most 1024")]
    TooMany(usize),
    /// The relabeling is wrong.
    #[error(transparent)]
    Relabeling(#[from] GraphError),
}

impl Rotation {
    /// Measures given relabelings: in copy c, worker k stands at place `relabelings[c][k]`.
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Rotation};
    /// let star = "star:3".parse::<GraphSpec>()?.build()?;
    /// let turn = Rotation::new(&star, vec![vec![0, 1, 2], vec![1, 0, 2], vec![2, 1, 0]])?;
    /// assert_eq!(turn.degree_variance(), 0.0); // everyone is in the middle once
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(graph: &Graph, relabelings: Vec<Vec<usize>>) -> Result<Self, RotationError> {
        if relabelings.is_empty() {
            return Err(RotationError::NoCopies);
        }
        for places in &relabelings {
            inverse(places, graph.nodes())?;
        }
        let search = Search { graph, degrees: graph.degrees() };
        let (lambda2_mean, _) = search.fiedler(&relabelings);
        let n = relabelings.len() as f64;
        let sums = search.degree_sums(&relabelings);
        let expected_degrees = sums.iter().map(|&sum| sum as f64 / n).collect();
        Ok(Self { relabelings, expected_degrees, lambda2_mean })
    }

    /// Finds `copies` relabelings (the first is the graph as it is) that give every worker as
    /// nearly as possible the same expected degree and, among those, a large lambda_2 of the mean
    /// Laplacian. Deterministic.
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

    /// Where each worker stands in each copy.
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

    /// Each worker's degree, on average over the copies.
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

    /// The variance of the expected degrees over the workers: 0 where all are alike.
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

    /// lambda_2 of the mean of the copies' Laplacians: how well connected the workers are over a
    /// whole turn.
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

/// The search for good relabelings: balanced starts, then exchanges that keep the balance.
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
        // An eigenvector costs some m^3: spend about the same time on graphs of any size.
        let evaluations = (600_000_000 / (m * m * m + 20_000)).clamp(24, 6_000);
        let starts = (evaluations / 100).clamp(2, 40);

        let mut best: Option<(u64, f64, Vec<Vec<usize>>)> = None;
        for start in 0..starts {
            let mut stream = Stream::new(start as u64, "rotation", &[copies as u64]);
            let mut places = self.balanced(copies, &mut stream);
            let lambda2 = self.climb(&mut places, evaluations / starts, &mut stream);
            let spread = self.spread(&self.degree_sums(&places));
            let better =
                best.as_ref().is_none_or(|(least, largest, _)| (spread, -lambda2) < (*least, -largest - 1e-12));
            if better {
                best = Some((spread, lambda2, places));
            }
        }
        best.map_or(vec![identity; copies], |(_, _, places)| places)
    }

    /// Each copy puts those with few links so far where the links are; then exchanges repair what
    /// that leaves uneven.
    fn balanced(&self, copies: usize, stream: &mut Stream) -> Vec<Vec<usize>> {
        let m = self.graph.nodes();
        let mut relabelings = vec![(0..m).collect::<Vec<usize>>()];
        let mut sums = self.degrees.clone();
        for _ in 1..copies {
            let mut places: Vec<usize> = (0..m).collect();
            let mut workers = places.clone();
            stream.shuffle(&mut places);
            stream.shuffle(&mut workers);
            places.sort_by_key(|&place| std::cmp::Reverse(self.degrees[place]));
            workers.sort_by_key(|&worker| sums[worker]);
            let mut copy = vec![0; m];
            for (&worker, &place) in workers.iter().zip(&places) {
                copy[worker] = place;
                sums[worker] += self.degrees[place];
            }
            relabelings.push(copy);
        }
        // Random exchanges that do not make it worse; the plateaus between are wide.
        for _ in 0..200 * m {
            let (copy, a, b) = self.exchange(copies, stream);
            let shift = self.degrees[relabelings[copy][b]] as i64 - self.degrees[relabelings[copy][a]] as i64;
            let (x, y) = (sums[a] as i64, sums[b] as i64);
            if (x + shift).pow(2) + (y - shift).pow(2) <= x * x + y * y {
                relabelings[copy].swap(a, b);
                (sums[a], sums[b]) = ((x + shift) as usize, (y - shift) as usize);
            }
        }
        relabelings
    }

    /// Raises lambda_2 by exchanges that leave the spread of degrees as it is. The eigenvector says
    /// which of some random ones capabilities most.
    fn climb(&self, places: &mut [Vec<usize>], evaluations: usize, stream: &mut Stream) -> f64 {
        const CANDIDATES: usize = 24;
        let mut sums = self.degree_sums(places);
        let (mut lambda2, mut v) = self.fiedler(places);
        let mut best = (lambda2, places.to_vec());
        for step in 0..evaluations {
            let mut choice: Option<(f64, (usize, usize, usize))> = None;
            for _ in 0..CANDIDATES {
                let swap @ (copy, a, b) = self.exchange(places.len(), stream);
                let [from, to] = [a, b].map(|worker| self.degrees[places[copy][worker]] as i64);
                let (x, y, shift) = (sums[a] as i64, sums[b] as i64, to - from);
                if (x + shift).pow(2) + (y - shift).pow(2) == x * x + y * y {
                    let gain = self.gain(&places[copy], a, b, &v);
                    if choice.is_none_or(|(most, _)| gain > most) {
                        choice = Some((gain, swap));
                    }
                }
            }
            let Some((_, (copy, a, b))) = choice else {
                continue;
            };
            places[copy].swap(a, b);
            let (new, eigenvector) = self.fiedler(places);
            // Now and then a small step down, ever smaller: lambda_2 has many local maxima.
            let patience = 0.1 * lambda2 * (1.0 - step as f64 / evaluations as f64);
            if new > lambda2 - patience * stream.uniform().powi(2) {
                (lambda2, v) = (new, eigenvector);
                sums = self.degree_sums(places);
                if lambda2 > best.0 + 1e-12 {
                    best = (lambda2, places.to_vec());
                }
            } else {
                places[copy].swap(a, b);
            }
        }
        places.clone_from_slice(&best.1);
        best.0
    }

    /// Two workers to change places in one copy; never in the first, which stays as it is.
    fn exchange(&self, copies: usize, stream: &mut Stream) -> (usize, usize, usize) {
        let m = self.graph.nodes();
        let a = stream.below(m);
        let b = (a + 1 + stream.below(m - 1)) % m;
        (1 + stream.below(copies - 1), a, b)
    }

    /// How v'Lv changes when workers a and b change places in a copy.
    fn gain(&self, places: &[usize], a: usize, b: usize, v: &[f64]) -> f64 {
        let (at_a, at_b) = (places[a], places[b]);
        let mut value_at = vec![0.0; v.len()];
        places.iter().zip(v).for_each(|(&place, &x)| value_at[place] = x);
        let around = |place: usize, other: usize, x: f64| {
            let neighbors = self.graph.neighbors(place).iter().filter(|&&next| next != other);
            neighbors.map(|&next| (x - value_at[next]).powi(2)).sum::<f64>()
        };
        around(at_a, at_b, v[b]) + around(at_b, at_a, v[a]) - around(at_a, at_b, v[a]) - around(at_b, at_a, v[b])
    }

    fn degree_sums(&self, relabelings: &[Vec<usize>]) -> Vec<usize> {
        let sum = |worker| relabelings.iter().map(|places| self.degrees[places[worker]]).sum();
        (0..self.graph.nodes()).map(sum).collect()
    }

    /// The sum of squares: least where all are alike.
    fn spread(&self, sums: &[usize]) -> u64 {
        sums.iter().map(|&sum| (sum * sum) as u64).sum()
    }

    /// lambda_2 of the mean Laplacian and its eigenvector.
    fn fiedler(&self, relabelings: &[Vec<usize>]) -> (f64, Vec<f64>) {
        let m = self.graph.nodes();
        if m == 1 {
            return (0.0, vec![0.0]);
        }
        let share = 1.0 / relabelings.len() as f64;
        let mut mean = Mat::<f64>::zeros(m, m);
        for places in relabelings {
            let mut worker_at = vec![0; m];
            places.iter().enumerate().for_each(|(worker, &place)| worker_at[place] = worker);
            for &(u, v) in self.graph.edges() {
                add_link(&mut mean, (worker_at[u], worker_at[v]), share);
            }
        }
        let eigen = mean.self_adjoint_eigen(Side::Lower).expect("a finite symmetric matrix");
        (eigen.S()[1].max(0.0), eigen.U().col(1).iter().copied().collect())
    }
}
