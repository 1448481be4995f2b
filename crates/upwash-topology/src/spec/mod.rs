//! Textual graph specifications, as used in configuration files, on the command line and in code.

mod kinds;
mod parse;

pub use kinds::GraphKind;

use crate::{Graph, GraphError, edge_list, generators, paper};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A graph specification such as `ring:8`, `torus:4x4`, `erdos-renyi:16,p=0.3,seed=7`, `file:graph.txt` or `paper:L1`.
/// [`GraphKind::all`] lists the syntax of every kind.
///
/// Options follow the size, separated by commas. `seed` defaults to 0. With `connected`, a random graph is redrawn
/// until it is connected.
///
/// ```
/// use upwash_topology::GraphSpec;
///
/// let spec: GraphSpec = "erdos-renyi:16,p=0.3,seed=7,connected".parse()?;
/// assert!(spec.build()?.is_connected());
/// assert_eq!(spec.to_string(), "erdos-renyi:16,p=0.3,seed=7,connected");
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum GraphSpec {
    /// `ring:8`: a cycle.
    Ring(usize),
    /// `path:8`: a line.
    Path(usize),
    /// `star:8`: worker 0 is linked to all others.
    Star(usize),
    /// `complete:8`: every pair of workers is linked.
    Complete(usize),
    /// `grid:3x4`: rows and columns.
    Grid(usize, usize),
    /// `torus:4x4`: a grid whose opposite sides are linked.
    Torus(usize, usize),
    /// `hypercube:16`: a hypercube; the number of workers is a power of two.
    Hypercube(usize),
    /// `exponential:16`: each worker is linked to those 1, 2, 4, 8, ... further around a ring.
    Exponential(usize),
    /// `erdos-renyi:16,p=0.3`: every pair is linked with probability p.
    ErdosRenyi(RandomOptions, f64),
    /// `geometric:16,radius=0.4`: random points in the unit square, linked where they are closer than the radius.
    Geometric(RandomOptions, f64),
    /// `regular:16,degree=3`: random, and every worker has the same degree.
    Regular(RandomOptions, usize),
    /// `barabasi-albert:16,links=2`: each new worker links to others, preferring well-connected ones.
    BarabasiAlbert(RandomOptions, usize),
    /// `file:graph.txt`: an edge list with one link `u v` per line, and optionally the number of nodes.
    File(PathBuf, Option<usize>),
    /// `matchings:file.txt`: one matching `u-v u-v` per line, and optionally the number of nodes.
    Matchings(PathBuf, Option<usize>),
    /// `paper:L1`, `paper:L2@9`: a graph of the AL-DSGD paper, by its number and the paper's number of links.
    Paper(usize, usize),
}

/// Options that all random graphs share: size, seed, and whether the graph must be connected.
///
/// ```
/// use upwash_topology::GraphSpec;
/// let GraphSpec::ErdosRenyi(random, _) = "erdos-renyi:8,p=0.5,seed=3".parse()? else { panic!() };
/// assert_eq!((random.nodes, random.seed, random.connected), (8, 3, false));
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomOptions {
    /// The number of workers.
    pub nodes: usize,
    /// The random seed.
    pub seed: u64,
    /// Whether to redraw until the graph is connected.
    pub connected: bool,
}

/// A graph specification that is invalid or cannot be built.
///
/// ```
/// use upwash_topology::GraphSpec;
/// let error = "rign:8".parse::<GraphSpec>().unwrap_err();
/// assert!(error.to_string().contains("did you mean `ring`?"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The kind of graph is unknown.
    #[error("graph `{spec}`: unknown kind `{name}`{}; run `upwash topology list` to see all kinds", match nearest {
        Some(nearest) => format!(", did you mean `{nearest}`?"),
        None => String::new(),
    })]
    UnknownName {
        /// The whole specification.
        spec: String,
        /// The part before the colon.
        name: String,
        /// The most similar known name, if one is close enough.
        nearest: Option<&'static str>,
    },
    /// The kind is known, but the part after the colon is invalid.
    #[error("graph `{spec}`: {problem}; write it as `{syntax}`, for example `{example}`")]
    Syntax {
        /// The whole specification.
        spec: String,
        /// What is wrong.
        problem: String,
        /// The syntax of this kind.
        syntax: &'static str,
        /// A valid specification of this kind.
        example: &'static str,
    },
    /// The graph cannot be built.
    #[error("graph `{spec}`")]
    Graph {
        /// The whole specification.
        spec: String,
        /// The reason.
        source: GraphError,
    },
    /// No draw of a random graph was connected.
    #[error("graph `{spec}`: none of {tries} draws was connected; make links more likely, or leave out `connected`")]
    NeverConnected {
        /// The whole specification.
        spec: String,
        /// The number of graphs drawn.
        tries: u64,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}; name a file with the two nodes of a link on each line", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file does not describe a graph.
    #[error("{}{}: {problem}", path.display(), match line { 0 => String::new(), line => format!(", line {line}") })]
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1; 0 for the whole file.
        line: usize,
        /// What is wrong there, and what to do.
        problem: String,
    },
}

/// The maximum number of draws in search of a connected random graph.
const MAX_TRIES: u64 = 1000;
/// The maximum number of node pairs examined over all those draws.
const MAX_PAIRS: u64 = 2_000_000_000;
/// The maximum size of an edge list.
const MAX_FILE_BYTES: u64 = 1 << 28;

impl GraphSpec {
    /// Builds the graph. The path of a file is relative to the current directory.
    ///
    /// ```
    /// # use upwash_topology::GraphSpec;
    /// assert_eq!(GraphSpec::Torus(3, 3).build()?.edges().len(), 18);
    /// # Ok::<(), upwash_topology::SpecError>(())
    /// ```
    pub fn build(&self) -> Result<Graph, SpecError> {
        // A specification constructed in code has not passed the checks of the parser.
        if !matches!(self, Self::File(..) | Self::Matchings(..)) {
            self.to_string().parse::<Self>()?;
        }
        let graph = match *self {
            Self::Ring(n) => generators::ring(n),
            Self::Path(n) => generators::path(n),
            Self::Star(n) => generators::star(n),
            Self::Complete(n) => generators::complete(n),
            Self::Grid(rows, columns) => generators::grid(rows, columns),
            Self::Torus(rows, columns) => generators::torus(rows, columns),
            Self::Hypercube(n) => generators::hypercube(n),
            Self::Exponential(n) => generators::exponential(n),
            Self::ErdosRenyi(random, p) => {
                return self.draw(random, |seed| generators::erdos_renyi(random.nodes, p, seed));
            }
            Self::Geometric(random, radius) => {
                return self.draw(random, |seed| generators::geometric(random.nodes, radius, seed));
            }
            Self::Regular(random, degree) => {
                return self.draw(random, |seed| generators::regular(random.nodes, degree, seed));
            }
            Self::BarabasiAlbert(random, links) => {
                return self.draw(random, |seed| generators::barabasi_albert(random.nodes, links, seed));
            }
            Self::File(ref path, nodes) => {
                return read(path, nodes, edge_list::edges);
            }
            Self::Matchings(ref path, nodes) => {
                return read(path, nodes, edge_list::matchings);
            }
            Self::Paper(which, links) => paper::graph(which, links),
        };
        graph.map_err(|source| SpecError::Graph { spec: self.to_string(), source })
    }

    /// Returns this specification with the path of a file made absolute, relative to `folder`, so that it does not
    /// depend on the current directory.
    ///
    /// ```
    /// # use upwash_topology::GraphSpec;
    /// let folder = tempfile::tempdir()?;
    /// std::fs::write(folder.path().join("graph.txt"), "0 1\n1 2\n")?;
    /// let spec: GraphSpec = "file:graph.txt".parse()?;
    /// assert_eq!(spec.located_in(folder.path()).build()?.nodes(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn located_in(&self, folder: &Path) -> Self {
        let located = |path: &PathBuf| {
            let path = folder.join(path);
            std::path::absolute(&path).unwrap_or(path)
        };
        match self {
            Self::File(path, nodes) => Self::File(located(path), *nodes),
            Self::Matchings(path, nodes) => Self::Matchings(located(path), *nodes),
            other => other.clone(),
        }
    }

    /// Returns the file that the graph is read from, if any.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path, _) | Self::Matchings(path, _) => Some(path),
            _ => None,
        }
    }

    /// Returns this specification with the path of a file reduced to the file name.
    ///
    /// ```
    /// use upwash_topology::GraphSpec;
    /// let spec: GraphSpec = "file:/here/or/there/graph.txt".parse()?;
    /// assert_eq!(spec.without_folder().to_string(), "file:graph.txt");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn without_folder(&self) -> Self {
        let name = |path: &PathBuf| path.file_name().map_or(path.clone(), PathBuf::from);
        match self {
            Self::File(path, nodes) => Self::File(name(path), *nodes),
            Self::Matchings(path, nodes) => Self::Matchings(name(path), *nodes),
            other => other.clone(),
        }
    }

    /// Draws a random graph with its seed. If it must be connected and is not, draws again with seeds derived from it.
    fn draw(
        &self,
        random: RandomOptions,
        generate: impl Fn(u64) -> Result<Graph, GraphError>,
    ) -> Result<Graph, SpecError> {
        let pairs = (random.nodes as u64).pow(2).max(1);
        let tries = if random.connected { (MAX_PAIRS / pairs).clamp(2, MAX_TRIES) } else { 1 };
        for attempt in 0..tries {
            let seed = random.seed.wrapping_add(attempt << 32);
            let graph = generate(seed).map_err(|source| SpecError::Graph { spec: self.to_string(), source })?;
            if !random.connected || graph.is_connected() {
                return Ok(graph);
            }
        }
        Err(SpecError::NeverConnected { spec: self.to_string(), tries })
    }
}

fn read(
    path: &Path,
    nodes: Option<usize>,
    parse: impl Fn(&str, Option<usize>) -> Result<Graph, edge_list::Problem>,
) -> Result<Graph, SpecError> {
    let unreadable = |source| SpecError::Unreadable { path: path.to_owned(), source };
    let invalid = |line, problem| SpecError::File { path: path.to_owned(), line, problem };
    let mut bytes = Vec::new();
    // Limit the bytes read rather than check the length: a device file has none and may never end.
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(invalid(0, format!("more than {MAX_FILE_BYTES} bytes, which is too large for an edge list")));
    }
    let text = std::str::from_utf8(&bytes).ok().filter(|text| !text.contains('\0'));
    let text = text.ok_or_else(|| {
        invalid(0, "this is not a text file; an edge list has one link per line, such as `0 1`".into())
    })?;
    parse(text.trim_start_matches('\u{feff}'), nodes).map_err(|problem| invalid(problem.line, problem.message))
}

impl std::fmt::Display for GraphSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = |count: &Option<usize>| match count {
            Some(count) => format!(",nodes={count}"),
            None => String::new(),
        };
        match self {
            Self::Ring(n) => write!(f, "ring:{n}"),
            Self::Path(n) => write!(f, "path:{n}"),
            Self::Star(n) => write!(f, "star:{n}"),
            Self::Complete(n) => write!(f, "complete:{n}"),
            Self::Grid(rows, columns) => write!(f, "grid:{rows}x{columns}"),
            Self::Torus(rows, columns) => write!(f, "torus:{rows}x{columns}"),
            Self::Hypercube(n) => write!(f, "hypercube:{n}"),
            Self::Exponential(n) => write!(f, "exponential:{n}"),
            Self::ErdosRenyi(random, p) => write!(f, "erdos-renyi:{},p={p}{random}", random.nodes),
            Self::Geometric(random, radius) => {
                write!(f, "geometric:{},radius={radius}{random}", random.nodes)
            }
            Self::Regular(random, degree) => {
                write!(f, "regular:{},degree={degree}{random}", random.nodes)
            }
            Self::BarabasiAlbert(random, links) => {
                write!(f, "barabasi-albert:{},links={links}{random}", random.nodes)
            }
            Self::File(path, count) => write!(f, "file:{}{}", path.display(), nodes(count)),
            Self::Matchings(path, count) => {
                write!(f, "matchings:{}{}", path.display(), nodes(count))
            }
            Self::Paper(which, 13) => write!(f, "paper:L{which}"),
            Self::Paper(which, links) => write!(f, "paper:L{which}@{links}"),
        }
    }
}

impl std::fmt::Display for RandomOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, ",seed={}", self.seed)?;
        if self.connected { write!(f, ",connected") } else { Ok(()) }
    }
}

impl From<GraphSpec> for String {
    fn from(spec: GraphSpec) -> Self {
        spec.to_string()
    }
}

impl TryFrom<String> for GraphSpec {
    type Error = SpecError;
    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}
