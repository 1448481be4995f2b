//! Mixing weights for the links of a graph.

use crate::spectrum::Spectrum;
use crate::{Graph, Mixing};
use std::str::FromStr;

/// A rule that assigns mixing weights to the links of a graph. The text form is `optimal`, `metropolis`, `uniform` or
/// `alpha=0.3`; a custom matrix is [`Weights::Given`].
///
/// ```
/// use upwash_topology::Weights;
/// assert_eq!("metropolis".parse::<Weights>()?, Weights::Metropolis);
/// assert_eq!("alpha=0.25".parse::<Weights>()?, Weights::Alpha(0.25));
/// # Ok::<(), upwash_topology::WeightError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Weights {
    /// W = I - alpha L with the alpha that mixes fastest, 2 / (lambda_2 + lambda_max). Each connected component has its
    /// own alpha. The diagonal can be negative.
    #[default]
    Optimal,
    /// W = I - alpha L with this alpha.
    Alpha(f64),
    /// Metropolis-Hastings weights, W_ij = 1 / (1 + the larger degree of i and j). The matrix is symmetric and never
    /// negative, and each worker needs to know only its neighbors' degrees.
    Metropolis,
    /// Each worker takes the plain mean of its own and its neighbors' models. The matrix is symmetric only where all
    /// degrees are equal; otherwise the workers' average drifts.
    Uniform,
    /// A custom matrix, row by row.
    Given(Vec<Vec<f64>>),
}

/// Weights that are invalid or do not fit the graph.
///
/// ```
/// use upwash_topology::{Graph, Weights};
/// let pair = Graph::new(2, [(0, 1)])?;
/// let error = Weights::Given(vec![vec![0.5, 0.6], vec![0.5, 0.5]]).mixing(&pair).unwrap_err();
/// assert_eq!(error.to_string(), "row 0 of the weights sums to 1.1, not to 1");
/// # Ok::<(), upwash_topology::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The text does not name any weights.
    #[error("unknown weights `{text}`: write optimal, metropolis, uniform or alpha=NUMBER{}", hint(text))]
    Unknown {
        /// The text.
        text: String,
    },
    /// Alpha is not a positive finite number.
    #[error("alpha={alpha} is out of range: alpha must be a finite number above 0")]
    Alpha {
        /// The given value.
        alpha: f64,
    },
    /// The matrix is not square, or its size differs from that of the graph.
    #[error(
        "the weights have {rows} rows, and row {row} has {columns} numbers: a graph of {nodes} workers needs {nodes} rows of {nodes}"
    )]
    Shape {
        /// The number of rows.
        rows: usize,
        /// A row of the wrong length (or the last row).
        row: usize,
        /// The length of that row.
        columns: usize,
        /// The number of workers, which rows and columns must match.
        nodes: usize,
    },
    /// An entry is not a finite number.
    #[error("weight ({row}, {column}) is {value}: every weight must be finite")]
    NotFinite {
        /// The row of the entry.
        row: usize,
        /// The column of the entry.
        column: usize,
        /// The value of the entry.
        value: f64,
    },
    /// A row does not sum to 1, so models would grow or shrink.
    #[error("row {row} of the weights sums to {sum}, not to 1")]
    RowSum {
        /// The row.
        row: usize,
        /// The sum of the row.
        sum: f64,
    },
    /// A column does not sum to 1, so the workers' average would drift.
    #[error("column {column} of the weights sums to {sum}, not to 1: the workers' average would drift")]
    ColumnSum {
        /// The column.
        column: usize,
        /// The sum of the column.
        sum: f64,
    },
    /// A weight between two workers that are not linked is not 0.
    #[error(
        "weight ({row}, {column}) is not 0, but the graph has no link between {row} and {column}: add the link or set the weight to 0"
    )]
    NoLink {
        /// The row of the weight.
        row: usize,
        /// The column of the weight.
        column: usize,
    },
}

impl Weights {
    /// Returns the mixing matrix of these weights on `graph`.
    ///
    /// A custom matrix must have the size of the graph, use only the links of the graph, and have rows and columns that
    /// sum to 1 (within 1e-9).
    ///
    /// ```
    /// # use upwash_topology::{GraphSpec, Weights};
    /// let star = "star:5".parse::<GraphSpec>()?.build()?;
    /// assert_eq!(Weights::Uniform.mixing(&star)?.weight(1, 0), 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mixing(&self, graph: &Graph) -> Result<Mixing, WeightError> {
        let (nodes, edges) = (graph.nodes(), graph.edges());
        match self {
            Self::Optimal => {
                let mut alpha = vec![0.0; nodes];
                for component in graph.components() {
                    let best = Spectrum::of(&subgraph(graph, &component)).best_alpha();
                    component.iter().for_each(|&node| alpha[node] = best);
                }
                Ok(Mixing::laplacian(nodes, edges, |node| alpha[node]))
            }
            Self::Alpha(alpha) if alpha.is_finite() && *alpha > 0.0 => Ok(Mixing::laplacian(nodes, edges, |_| *alpha)),
            Self::Alpha(alpha) => Err(WeightError::Alpha { alpha: *alpha }),
            Self::Metropolis => {
                let degree = graph.degrees();
                let weight = |&(u, v): &(usize, usize)| (u, v, 1.0 / (1 + degree[u].max(degree[v])) as f64);
                Ok(Mixing::symmetric(nodes, edges.iter().map(weight)))
            }
            Self::Uniform => {
                let row = |i: usize| {
                    let members = graph.closed_neighborhood(i);
                    let share = 1.0 / members.len() as f64;
                    members.into_iter().map(|j| (j, share)).collect()
                };
                Ok(Mixing::from_rows((0..nodes).map(row).collect()))
            }
            Self::Given(matrix) => custom(matrix, graph),
        }
    }
}

/// Validates a custom matrix and converts it to sparse form.
fn custom(matrix: &[Vec<f64>], graph: &Graph) -> Result<Mixing, WeightError> {
    let nodes = graph.nodes();
    let wrong_length = matrix.iter().position(|row| row.len() != nodes);
    if matrix.len() != nodes || wrong_length.is_some() {
        let row = wrong_length.unwrap_or(matrix.len().saturating_sub(1));
        let columns = matrix.get(row).map_or(0, Vec::len);
        return Err(WeightError::Shape { rows: matrix.len(), row, columns, nodes });
    }
    let mut columns = vec![0.0; nodes];
    for (row, entries) in matrix.iter().enumerate() {
        if let Some(column) = entries.iter().position(|value| !value.is_finite()) {
            return Err(WeightError::NotFinite { row, column, value: entries[column] });
        }
        let sum: f64 = entries.iter().sum();
        if (sum - 1.0).abs() > 1e-9 {
            return Err(WeightError::RowSum { row, sum });
        }
        columns.iter_mut().zip(entries).for_each(|(total, value)| *total += value);
    }
    if let Some(column) = columns.iter().position(|sum| (sum - 1.0).abs() > 1e-9) {
        return Err(WeightError::ColumnSum { column, sum: columns[column] });
    }
    // Keep zeros where there is a link: the link is up whatever its weight.
    let row = |(i, entries): (usize, &Vec<f64>)| {
        let kept = |&(j, value): &(usize, f64)| value != 0.0 || i == j || graph.neighbors(i).binary_search(&j).is_ok();
        entries.iter().copied().enumerate().filter(kept).collect()
    };
    let mixing = Mixing::from_rows(matrix.iter().enumerate().map(row).collect());
    match mixing.entry_without_link(graph) {
        Some((row, column)) => Err(WeightError::NoLink { row, column }),
        None => Ok(mixing),
    }
}

/// Returns the subgraph induced by `component`, with its nodes renumbered from 0 in the same order.
pub(crate) fn subgraph(graph: &Graph, component: &[usize]) -> Graph {
    let new = |node: usize| component.binary_search(&node);
    let inside = graph.edges().iter().filter_map(|&(u, v)| Some((new(u).ok()?, new(v).ok()?)));
    Graph::new(component.len(), inside).expect("a subgraph of a simple graph is simple")
}

impl std::fmt::Display for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Optimal => write!(f, "optimal"),
            Self::Alpha(alpha) => write!(f, "alpha={alpha}"),
            Self::Metropolis => write!(f, "metropolis"),
            Self::Uniform => write!(f, "uniform"),
            Self::Given(_) => write!(f, "given"),
        }
    }
}

/// "; did you mean ...?" for a name that resembles a known one, or nothing.
fn hint(text: &str) -> String {
    let text = text.to_lowercase();
    let known = ["optimal", "metropolis", "uniform"];
    let near = known.into_iter().find(|known| strsim::damerau_levenshtein(known, &text) <= 2);
    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

impl FromStr for Weights {
    type Err = WeightError;

    fn from_str(text: &str) -> Result<Self, WeightError> {
        let unknown = || WeightError::Unknown { text: text.into() };
        match text {
            "optimal" => Ok(Self::Optimal),
            "metropolis" => Ok(Self::Metropolis),
            "uniform" => Ok(Self::Uniform),
            _ => {
                let number = text.strip_prefix("alpha=").ok_or_else(unknown)?;
                let alpha: f64 = number.parse().map_err(|_| unknown())?;
                if alpha.is_finite() && alpha > 0.0 {
                    Ok(Self::Alpha(alpha))
                } else {
                    Err(WeightError::Alpha { alpha })
                }
            }
        }
    }
}
