//! One spelling for graphs, in configuration, on the command line and in code.

mod kinds;
mod parse;

pub use kinds::GraphKind;

use crate::{Graph, GraphError, edge_list, generators, paper};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A graph by name: `ring:8`, `torus:4x4`, `erdos-renyi:16,p=0.3,seed=7`, `file:graph.txt`,
/// `paper:L1`. [`GraphKind::all`] lists every spelling.
///
/// Options follow the size, separated by commas. `seed` is 0 unless given. With `connected`, a
/// random graph is drawn again until it is in one piece.
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
    /// `ring:8`: a circle.
    Ring(usize),
    /// `path:8`: a line.
    Path(usize),
    /// `star:8`: worker 0 in the middle.
    Star(usize),
    /// `complete:8`: everyone with everyone.
    Complete(usize),
    /// `grid:3x4`: rows and columns.
    Grid(usize, usize),
    /// `torus:4x4`: a grid whose far ends are linked.
    Torus(usize, usize),
    /// `hypercube:16`: a power of two.
    Hypercube(usize),
    /// `exponential:16`: links to those 1, 2, 4, 8, ... further.
    Exponential(usize),
    /// `erdos-renyi:16,p=0.3`: every two linked with probability p.
    ErdosRenyi(Random, f64),
    /// `geometric:16,radius=0.4`: random places in a unit square, linked where they are near.
    Geometric(Random, f64),
    /// `regular:16,degree=3`: random, every worker with the same degree.
    Regular(Random, usize),
    /// `barabasi-albert:16,links=2`: newcomers link to the well-connected.
    BarabasiAlbert(Random, usize),
    /// `file:graph.txt`: an edge list, `u v` a line.
    File(PathBuf, Option<usize>),
    /// `matchings:file.txt`: a matching a line, `u-v u-v`.
    Matchings(PathBuf, Option<usize>),
    /// `paper:L1`, `paper:L2@9`: the graphs of the AL-DSGD paper, by their number and the paper's
    /// count of links.
    Paper(usize, usize),
}

/// What every random graph is told: size, seed, and whether it must be connected.
///
/// ```
/// use upwash_topology::GraphSpec;
/// let GraphSpec::ErdosRenyi(random, _) = "erdos-renyi:8,p=0.5,seed=3".parse()? else { panic!() };
/// assert_eq!((random.nodes, random.seed, random.connected), (8, 3, false));
/// # Ok::<(), upwash_topology::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random {
    /// How many workers.
    pub nodes: usize,
    /// Which of the possible graphs.
    pub seed: u64,
    /// Draw again until it is in one piece.
    pub connected: bool,
}

/// Why a graph cannot be had.
///
/// ```
/// use upwash_topology::GraphSpec;
/// let error = "rign:8".parse::<GraphSpec>().unwrap_err();
/// assert!(error.to_string().contains("did you mean `ring`?"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No graph has that name.
    #[error("graph `{spec}`: no graph is called `{name}`{}; `upwash topology list` shows all", match nearest {
        Some(nearest) => format!(", did you mean `{nearest}`?"),
        None => String::new(),
    })]
    UnknownName {
        /// The whole spelling.
        spec: String,
        /// The part before the colon.
        name: String,
        /// The name that looks most like it.
        nearest: Option<&'static str>,
    },
    /// The name is known, what follows is wrong.
    #[error("graph `{spec}`: {problem}; write it as `{spelling}`, for example `{example}`")]
    Spelling {
        /// The whole spelling.
        spec: String,
        /// What is wrong.
        problem: String,
        /// How this kind is spelled.
        spelling: &'static str,
        /// One that works.
        example: &'static str,
    },
    /// The graph cannot be built.
    #[error("graph `{spec}`")]
    Graph {
        /// The whole spelling.
        spec: String,
        /// Why.
        source: GraphError,
    },
    /// No connected graph turned up.
    #[error("graph `{spec}`: none of {tries} draws was connected; make links more likely, or leave `connected` out")]
    NeverConnected {
        /// The whole spelling.
        spec: String,
        /// How many graphs were drawn.
        tries: u64,
    },
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a graph.
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

/// How often a random graph is drawn in the search for a connected one, at most,
const MAX_TRIES: u64 = 1000;
/// and how many pairs of nodes are looked at in all.
const MAX_PAIRS: u64 = 2_000_000_000;
/// The largest edge list that is read.
const MAX_FILE_BYTES: u64 = 1 << 28;

impl GraphSpec {
    /// Builds the graph; a file's path is taken from the current directory.
    ///
    /// ```
    /// # use upwash_topology::GraphSpec;
    /// assert_eq!(GraphSpec::Torus(3, 3).build()?.edges().len(), 18);
    /// # Ok::<(), upwash_topology::SpecError>(())
    /// ```
    pub fn build(&self) -> Result<Graph, SpecError> {
        // One made in code has not been through the checks of one that was spelled.
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

    /// The same, but that a file is named by its whole path, taken from `folder`: it means the same
    /// wherever it is read.
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

    /// The file that it is read from, if any.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path, _) | Self::Matchings(path, _) => Some(path),
            _ => None,
        }
    }

    /// The same with a file's name alone, wherever it is.
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

    /// Draws with the seed itself; where that must be connected and is not, with seeds made from it.
    fn draw(&self, random: Random, generate: impl Fn(u64) -> Result<Graph, GraphError>) -> Result<Graph, SpecError> {
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
    let wrong = |line, problem| SpecError::File { path: path.to_owned(), line, problem };
    let mut bytes = Vec::new();
    // A device has no length and no end: read no more than can be an edge list.
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(0, format!("more than {MAX_FILE_BYTES} bytes are no edge list")));
    }
    let text = std::str::from_utf8(&bytes).ok().filter(|text| !text.contains('\0'));
    let text =
        text.ok_or_else(|| wrong(0, "this is not a text file; an edge list has a link a line, as `0 1`".into()))?;
    parse(text.trim_start_matches('\u{feff}'), nodes).map_err(|problem| wrong(problem.line, problem.message))
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

impl std::fmt::Display for Random {
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
