//! One spelling for graphs, in configuration, on the command line and in code.

use crate::graph::{MAX_EDGES, MAX_NODES};
use crate::{Graph, GraphError, edge_list, generators, paper};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

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

const fn kind(
    name: &'static str,
    spelling: &'static str,
    example: &'static str,
    about: &'static str,
) -> GraphKind {
    GraphKind {
        name,
        spelling,
        example,
        about,
    }
}

#[rustfmt::skip]
const KINDS: [GraphKind; 15] = [
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
    #[error("graph `{spec}`: {source}")]
    Graph {
        /// The whole spelling.
        spec: String,
        /// Why.
        source: GraphError,
    },
    /// No connected graph turned up.
    #[error(
        "graph `{spec}`: none of {tries} draws was connected; make links more likely, or leave `connected` out"
    )]
    NeverConnected {
        /// The whole spelling.
        spec: String,
        /// How many graphs were drawn.
        tries: u64,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
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

/// How often a random graph is drawn in the search for a connected one.
const TRIES: u64 = 1000;
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
        self.build_in(Path::new(""))
    }

    /// Builds the graph; a file's path is taken from `folder`, as of a configuration that names it.
    ///
    /// ```
    /// # use upwash_topology::GraphSpec;
    /// let folder = tempfile::tempdir()?;
    /// std::fs::write(folder.path().join("graph.txt"), "0 1\n1 2\n")?;
    /// let spec: GraphSpec = "file:graph.txt".parse()?;
    /// assert_eq!(spec.build_in(folder.path())?.nodes(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_in(&self, folder: &Path) -> Result<Graph, SpecError> {
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
                return self.draw(random, |seed| {
                    generators::erdos_renyi(random.nodes, p, seed)
                });
            }
            Self::Geometric(random, radius) => {
                return self.draw(random, |seed| {
                    generators::geometric(random.nodes, radius, seed)
                });
            }
            Self::Regular(random, degree) => {
                return self.draw(random, |seed| {
                    generators::regular(random.nodes, degree, seed)
                });
            }
            Self::BarabasiAlbert(random, links) => {
                return self.draw(random, |seed| {
                    generators::barabasi_albert(random.nodes, links, seed)
                });
            }
            Self::File(ref path, nodes) => {
                return read(&folder.join(path), nodes, edge_list::edges);
            }
            Self::Matchings(ref path, nodes) => {
                return read(&folder.join(path), nodes, edge_list::matchings);
            }
            Self::Paper(which, links) => paper::graph(which, links),
        };
        graph.map_err(|source| SpecError::Graph {
            spec: self.to_string(),
            source,
        })
    }

    /// Draws with the seed itself; where that must be connected and is not, with seeds made from it.
    fn draw(
        &self,
        random: Random,
        generate: impl Fn(u64) -> Result<Graph, GraphError>,
    ) -> Result<Graph, SpecError> {
        let tries = if random.connected { TRIES } else { 1 };
        for attempt in 0..tries {
            let seed = random.seed.wrapping_add(attempt << 32);
            let graph = generate(seed).map_err(|source| SpecError::Graph {
                spec: self.to_string(),
                source,
            })?;
            if !random.connected || graph.is_connected() {
                return Ok(graph);
            }
        }
        Err(SpecError::NeverConnected {
            spec: self.to_string(),
            tries,
        })
    }
}

fn read(
    path: &Path,
    nodes: Option<usize>,
    parse: impl Fn(&str, Option<usize>) -> Result<Graph, edge_list::Problem>,
) -> Result<Graph, SpecError> {
    let unreadable = |source| SpecError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let wrong = |line, problem| SpecError::File {
        path: path.to_owned(),
        line,
        problem,
    };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > MAX_FILE_BYTES {
        return Err(wrong(
            0,
            format!("{length} bytes are too many for an edge list"),
        ));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let text = std::str::from_utf8(&bytes)
        .ok()
        .filter(|text| !text.contains('\0'));
    let text = text.ok_or_else(|| {
        wrong(
            0,
            "this is not a text file; an edge list has a link a line, as `0 1`".into(),
        )
    })?;
    parse(text, nodes).map_err(|problem| wrong(problem.line, problem.message))
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
        if self.connected {
            write!(f, ",connected")
        } else {
            Ok(())
        }
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

impl FromStr for GraphSpec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let (name, rest) = spec.split_once(':').unwrap_or((spec, ""));
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let distance = |kind: &&GraphKind| strsim::damerau_levenshtein(kind.name, name);
            let nearest = KINDS
                .iter()
                .min_by_key(distance)
                .filter(|kind| distance(kind) <= 3);
            return Err(SpecError::UnknownName {
                spec: spec.into(),
                name: name.into(),
                nearest: nearest.map(|kind| kind.name),
            });
        };
        parse(kind.name, rest).map_err(|problem| SpecError::Spelling {
            spec: spec.into(),
            problem,
            spelling: kind.spelling,
            example: kind.example,
        })
    }
}

/// Parses what follows the colon. The checks here are those of which the user can be told in the
/// words of the spelling; what remains is [`Graph::new`]'s.
fn parse(name: &str, rest: &str) -> Result<GraphSpec, String> {
    if name == "file" || name == "matchings" {
        let (path, nodes) = match rest.rsplit_once(",nodes=") {
            Some((path, count)) => (path, Some(number(count, "nodes")?)),
            None => (rest, None),
        };
        if path.is_empty() {
            return Err("the path is missing".into());
        }
        let path = PathBuf::from(path);
        return Ok(match name {
            "file" => GraphSpec::File(path, nodes),
            _ => GraphSpec::Matchings(path, nodes),
        });
    }
    if name == "paper" {
        return paper_spec(rest);
    }

    let mut options = Options::split(rest)?;
    let size = options.size.clone();
    let spec = match name {
        "ring" => GraphSpec::Ring(at_least(2, &size)?),
        "path" => GraphSpec::Path(at_least(1, &size)?),
        "star" => GraphSpec::Star(at_least(2, &size)?),
        "complete" => {
            let n = at_least(1, &size)?;
            few_enough(n * (n - 1) / 2)?;
            GraphSpec::Complete(n)
        }
        "grid" => sides(&size, 1).map(|(rows, columns)| GraphSpec::Grid(rows, columns))?,
        "torus" => sides(&size, 2).map(|(rows, columns)| GraphSpec::Torus(rows, columns))?,
        "hypercube" => match at_least(2, &size)? {
            n if n.is_power_of_two() => GraphSpec::Hypercube(n),
            n => {
                let below = 1usize << n.ilog2();
                let near = format!("{below} or {}", below.saturating_mul(2));
                return Err(format!(
                    "{n} is not a power of two (the nearest are {near})"
                ));
            }
        },
        "exponential" => GraphSpec::Exponential(at_least(2, &size)?),
        "erdos-renyi" => {
            let p = options.take("p")?;
            if !(p > 0.0 && p <= 1.0) {
                return Err(format!("p={p} is not above 0 and at most 1"));
            }
            GraphSpec::ErdosRenyi(options.random(at_least(1, &size)?)?, p)
        }
        "geometric" => {
            let radius: f64 = options.take("radius")?;
            if !(radius > 0.0 && radius.is_finite()) {
                return Err(format!("radius={radius} is not above 0"));
            }
            GraphSpec::Geometric(options.random(at_least(1, &size)?)?, radius)
        }
        "regular" => {
            let (n, degree): (_, usize) = (at_least(2, &size)?, options.take("degree")?);
            if degree == 0 || degree >= n {
                return Err(format!("degree={degree} is not between 1 and {}", n - 1));
            }
            if n % 2 == 1 && degree % 2 == 1 {
                return Err(format!(
                    "{n} workers cannot all have {degree} links: make one even"
                ));
            }
            few_enough(n * degree / 2)?;
            GraphSpec::Regular(options.random(n)?, degree)
        }
        _ => {
            let (n, links): (_, usize) = (at_least(2, &size)?, options.take("links")?);
            if links == 0 || links >= n {
                return Err(format!("links={links} is not between 1 and {}", n - 1));
            }
            few_enough(n * links)?;
            GraphSpec::BarabasiAlbert(options.random(n)?, links)
        }
    };
    options.finish()?;
    Ok(spec)
}

fn paper_spec(rest: &str) -> Result<GraphSpec, String> {
    let (graph, links) = rest.split_once('@').unwrap_or((rest, "13"));
    let which = ["L1", "L2", "L3"].iter().position(|&known| known == graph);
    let which = which.ok_or_else(|| format!("the paper has L1, L2 and L3, not `{graph}`"))? + 1;
    let links = number(links, "the number of links")?;
    if !paper::SIZES.iter().any(|&(label, _)| label == links) {
        return Err(format!(
            "the paper has 13, 11, 9, 7 and 5 links, not {links}"
        ));
    }
    Ok(GraphSpec::Paper(which, links))
}

/// The size, and `key=value` or `key` after it.
struct Options<'a> {
    size: String,
    given: BTreeMap<&'a str, &'a str>,
}

impl<'a> Options<'a> {
    fn split(rest: &'a str) -> Result<Self, String> {
        let mut parts = rest.split(',');
        let size = parts.next().unwrap_or("").to_string();
        if size.is_empty() {
            return Err("the size is missing".into());
        }
        let mut given = BTreeMap::new();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if given.insert(key, value).is_some() {
                return Err(format!("`{key}` is given twice"));
            }
        }
        Ok(Self { size, given })
    }

    fn take<T: FromStr>(&mut self, key: &str) -> Result<T, String> {
        let value = self
            .given
            .remove(key)
            .ok_or_else(|| format!("`{key}=` is missing"))?;
        number(value, key)
    }

    fn random(&mut self, nodes: usize) -> Result<Random, String> {
        let seed = if self.given.contains_key("seed") {
            self.take("seed")?
        } else {
            0
        };
        let connected = match self.given.remove("connected") {
            None => false,
            Some("") => true,
            Some(value) => return Err(format!("`connected={value}`: write `connected` alone")),
        };
        Ok(Random {
            nodes,
            seed,
            connected,
        })
    }

    fn finish(self) -> Result<(), String> {
        match self.given.keys().next() {
            Some(unknown) => Err(format!("`{unknown}` is no option of it")),
            None => Ok(()),
        }
    }
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{what}: `{text}` is not a number that fits"))
}

fn at_least(least: usize, size: &str) -> Result<usize, String> {
    let n = number(size, "the number of workers")?;
    if n < least {
        return Err(format!("{n} workers are too few: at least {least}"));
    }
    // Checked before anything is allocated: a mistyped size must not fill the memory.
    if n > MAX_NODES {
        return Err(format!("{n} workers are too many: at most {MAX_NODES}"));
    }
    Ok(n)
}

fn few_enough(links: usize) -> Result<(), String> {
    if links > MAX_EDGES {
        return Err(format!("{links} links are too many: at most {MAX_EDGES}"));
    }
    Ok(())
}

fn sides(size: &str, least: usize) -> Result<(usize, usize), String> {
    let (rows, columns) = size
        .split_once('x')
        .ok_or_else(|| format!("`{size}` is not rows x columns, as 4x4"))?;
    let side = |text| {
        let side: usize = number(text, "a side")?;
        if side < least {
            Err(format!("a side of {side} is too short: at least {least}"))
        } else {
            Ok(side)
        }
    };
    let (rows, columns) = (side(rows)?, side(columns)?);
    let workers = rows.saturating_mul(columns);
    at_least(1, &workers.to_string())?;
    Ok((rows, columns))
}
