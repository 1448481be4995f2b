//! `upwash.Graph`: a graph of workers. Long because every method is documented with an example for Python.

use crate::arrays::{self, GraphNumber};
use crate::compute::detached;
use crate::errors::{Class, OrRaise};
use crate::origin::{Origin, kept_weights};
use crate::schedule::PySchedule;
use crate::theory::{PyLeaders, PyMatcha, PyRotation};
use numpy::{PyArray1, PyArray2};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use std::sync::Arc;
use upwash_topology::{
    Analysis, AnalysisOptions, Drawing, Graph, GraphKind, GraphSpec, LeaderWeights, Leaders, Matcha, Matching,
    Rotation, Spectrum, Weights, layout,
};

/// The most workers that are drawn.
const MAX_DRAWN: usize = 4096;

/// A graph of workers, which are numbered from 0.
///
/// `Graph("ring:8")` takes the notation of configurations (`upwash.graph_kinds()` lists it), an adjacency matrix of numpy or
/// scipy, or a networkx graph.
///
/// >>> graph = upwash.Graph("paper:L1")
/// >>> graph
/// <upwash.Graph paper:L1: 8 workers, 12 links>
/// >>> graph.degrees
/// array([3, 5, 2, 4, 1, 2, 3, 4])
/// >>> upwash.Graph(np.ones((3, 3)) - np.eye(3)) == upwash.Graph("complete:3")
/// True
#[pyclass(frozen, eq, name = "Graph", module = "upwash")]
pub(crate) struct PyGraph {
    pub(crate) graph: Arc<Graph>,
    /// Its notation, if it was built from one.
    spec: Option<GraphSpec>,
}

/// An analysis, as `upwash topology analyze --json` prints it.
#[derive(serde::Serialize)]
struct Analyzed {
    /// None for a graph without a notation.
    graph: Option<String>,
    #[serde(flatten)]
    analysis: Analysis,
}

impl PartialEq for PyGraph {
    fn eq(&self, other: &Self) -> bool {
        self.graph.nodes() == other.graph.nodes() && self.graph.edges() == other.graph.edges()
    }
}

impl From<Graph> for PyGraph {
    fn from(graph: Graph) -> Self {
        Self { graph: Arc::new(graph), spec: None }
    }
}

impl PyGraph {
    pub(crate) fn named(graph: Graph, spec: GraphSpec) -> Self {
        Self { graph: Arc::new(graph), spec: Some(spec) }
    }

    fn title(&self) -> String {
        self.spec.as_ref().map_or_else(|| "custom".into(), GraphSpec::to_string)
    }

    fn check_worker(&self, py: Python<'_>, worker: usize) -> PyResult<()> {
        let nodes = self.graph.nodes();
        match worker < nodes {
            true => Ok(()),
            false => Err(Class::Graph.error(py, format!("worker {worker}: workers are numbered 0 to {}", nodes - 1))),
        }
    }

    /// Weights for this graph. The optimal ones need its eigenvalues.
    fn checked_weights(&self, py: Python<'_>, weights: Option<&Bound<'_, PyAny>>) -> PyResult<Weights> {
        let weights = self::weights(weights)?;
        if weights == Weights::Optimal {
            arrays::check_spectrum(py, self.graph.nodes())?;
        }
        Ok(weights)
    }

    fn drawing(&self, py: Python<'_>, copies: Option<usize>) -> PyResult<String> {
        let nodes = self.graph.nodes();
        if nodes > MAX_DRAWN {
            let text = format!("{nodes} workers are too many to draw: at most {MAX_DRAWN}");
            return Err(Class::Graph.error(py, text));
        }
        let (graph, title) = (Arc::clone(&self.graph), self.title());
        let draw = move || match copies {
            None => Ok(Drawing::new(&graph, &title).svg()),
            Some(copies) => {
                let rotation = Rotation::balance(&graph, copies)?;
                Ok(Drawing::of_rotation(&graph, &title, rotation.relabelings())?.svg())
            }
        };
        let drawn: Result<String, upwash_topology::RotationError> = detached(py, draw)?;
        drawn.or_raise(py)
    }
}

/// The weights that a name or a matrix describes.
pub(crate) fn weights(value: Option<&Bound<'_, PyAny>>) -> PyResult<Weights> {
    let Some(value) = value else {
        return Ok(Weights::Optimal);
    };
    match value.extract::<String>() {
        Ok(name) => name.parse::<Weights>().or_raise(value.py()),
        Err(_) => Ok(Weights::Given(arrays::square(value, "weights")?)),
    }
}

/// A matrix as a graph: every pair with a nonzero entry is linked.
fn from_adjacency(py: Python<'_>, nodes: usize, mut entries: Vec<(usize, usize)>) -> PyResult<Graph> {
    entries.sort_unstable();
    entries.dedup();
    let without_reverse = entries.iter().find(|&&(i, j)| entries.binary_search(&(j, i)).is_err());
    if let Some((i, j)) = without_reverse {
        let text = format!(
            "the adjacency matrix is not symmetric: ({i}, {j}) and ({j}, {i}) differ; links have no direction \
             (for directed links, use Schedule.directed)"
        );
        return Err(Class::Graph.error(py, text));
    }
    Graph::new(nodes, entries.into_iter().filter(|(i, j)| i <= j)).or_raise(py)
}

#[pymethods]
impl PyGraph {
    #[new]
    fn new(graph: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = graph.py();
        if let Ok(spec) = graph.extract::<String>() {
            let spec = spec.parse::<GraphSpec>().or_raise(py)?;
            let built = spec.clone();
            let built = detached(py, move || built.build())?.or_raise(py)?;
            return Ok(Self::named(built, spec));
        }
        if let Ok(other) = graph.cast::<Self>() {
            let other = other.get();
            return Ok(Self { graph: Arc::clone(&other.graph), spec: other.spec.clone() });
        }
        if graph.hasattr("adjacency")? && graph.hasattr("nodes")? {
            return Self::from_networkx(&py.get_type::<Self>(), graph);
        }
        if graph.hasattr("toarray")? || graph.hasattr("shape")? || graph.extract::<Vec<Vec<f64>>>().is_ok() {
            return Self::from_adjacency(&py.get_type::<Self>(), graph);
        }
        let kind = graph.get_type();
        Err(PyTypeError::new_err(format!(
            "a graph is a notation such as \"ring:8\", an adjacency matrix, or a networkx graph, not {kind}; see also \
             Graph.from_edges and Graph.from_matchings"
        )))
    }

    /// A graph from its links, in any order and with either end first.
    ///
    /// >>> upwash.Graph.from_edges(4, [(3, 0), (1, 2)]).edges.tolist()
    /// [[0, 3], [1, 2]]
    #[classmethod]
    fn from_edges(cls: &Bound<'_, PyType>, nodes: GraphNumber, edges: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Graph::new(nodes.into(), arrays::pairs(edges)?).or_raise(cls.py())?.into())
    }

    /// A graph from its matchings: lists of links of which no two share a worker.
    ///
    /// >>> ring = upwash.Graph.from_matchings(4, [[(0, 1), (2, 3)], [(1, 2), (3, 0)]])
    /// >>> [matching.tolist() for matching in ring.matchings]
    /// [[[0, 1], [2, 3]], [[1, 2], [0, 3]]]
    #[classmethod]
    fn from_matchings(cls: &Bound<'_, PyType>, nodes: GraphNumber, matchings: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let matchings: Vec<Matching> = matchings.iter().map(arrays::pairs).collect::<PyResult<_>>()?;
        Ok(Graph::from_matchings(nodes.into(), matchings).or_raise(cls.py())?.into())
    }

    /// A graph from a symmetric matrix of numpy or scipy. Every pair with an entry other than 0 is linked.
    ///
    /// >>> upwash.Graph.from_adjacency([[0, 1], [1, 0]]).edges.tolist()
    /// [[0, 1]]
    #[classmethod]
    fn from_adjacency(cls: &Bound<'_, PyType>, matrix: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = cls.py();
        let (nodes, entries) = match matrix.hasattr("tocoo")? {
            true => arrays::sparse_entries(matrix, "the adjacency matrix")?,
            false => arrays::dense_entries(matrix, "the adjacency matrix")?,
        };
        Ok(from_adjacency(py, nodes, entries)?.into())
    }

    /// A graph from an undirected networkx graph. Workers are numbered in the order of its nodes.
    ///
    /// >>> import networkx
    /// >>> upwash.Graph.from_networkx(networkx.petersen_graph())
    /// <upwash.Graph: 10 workers, 15 links>
    #[classmethod]
    fn from_networkx(cls: &Bound<'_, PyType>, graph: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = cls.py();
        if graph.call_method0("is_directed")?.is_truthy()? {
            let text = "the networkx graph is directed, and links have no direction: use graph.to_undirected(), or \
                        Schedule.directed for directed links";
            return Err(Class::Graph.error(py, text));
        }
        let worker_of = PyDict::new(py);
        for (worker, node) in graph.try_iter()?.enumerate() {
            worker_of.set_item(node?, worker)?;
        }
        let mut links = Vec::new();
        for link in graph.getattr("edges")?.try_iter()? {
            let link = link?;
            let end = |index: usize| worker_of.as_any().get_item(link.get_item(index)?)?.extract::<usize>();
            links.push((end(0)?, end(1)?));
        }
        Ok(Graph::new(worker_of.len(), links).or_raise(py)?.into())
    }

    /// The graph as a networkx graph.
    ///
    /// >>> import networkx
    /// >>> networkx.diameter(upwash.Graph("ring:8").to_networkx())
    /// 4
    fn to_networkx<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let networkx = py.import("networkx").map_err(|_| {
            let text = "to_networkx needs the package networkx: pip install networkx, or upwash[graphs]";
            Class::MissingPackage.error(py, text)
        })?;
        let graph = networkx.call_method0("Graph")?;
        graph.call_method1("add_nodes_from", ((0..self.graph.nodes()).collect::<Vec<_>>(),))?;
        graph.call_method1("add_edges_from", (self.graph.edges().to_vec(),))?;
        Ok(graph)
    }

    /// The notation from which the graph was built, or None.
    #[getter]
    fn name(&self) -> Option<String> {
        self.spec.as_ref().map(GraphSpec::to_string)
    }

    /// The number of workers.
    #[getter]
    fn nodes(&self) -> usize {
        self.graph.nodes()
    }

    /// The links, one a row, smaller end first.
    #[getter]
    fn edges<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray2<i64>> {
        arrays::links(py, self.graph.edges())
    }

    /// Matchings that together have every link once: those that the graph was built from, or an edge coloring.
    #[getter]
    fn matchings<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyArray2<i64>>>> {
        let graph = Arc::clone(&self.graph);
        let matchings = detached(py, move || graph.matchings().to_vec())?;
        Ok(matchings.iter().map(|matching| arrays::links(py, matching)).collect())
    }

    /// The number of links of each worker.
    #[getter]
    fn degrees<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        arrays::integers(py, self.graph.degrees())
    }

    /// The connected components, each in increasing order.
    #[getter]
    fn components<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyArray1<i64>>> {
        self.graph.components().into_iter().map(|component| arrays::integers(py, component)).collect()
    }

    /// Whether every worker can reach every other.
    #[getter]
    fn is_connected(&self) -> bool {
        self.graph.is_connected()
    }

    /// Positions in the plane, one worker a row, as in drawings.
    #[getter]
    fn positions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let graph = Arc::clone(&self.graph);
        let positions = detached(py, move || layout(&graph))?;
        let rows: Vec<Vec<f64>> = positions.into_iter().map(Vec::from).collect();
        Ok(PyArray2::from_vec2(py, &rows)?)
    }

    /// The neighbors of a worker, in increasing order.
    ///
    /// >>> upwash.Graph("ring:5").neighbors(0)
    /// array([1, 4])
    fn neighbors<'py>(&self, py: Python<'py>, worker: GraphNumber) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let worker = worker.into();
        self.check_worker(py, worker)?;
        Ok(arrays::integers(py, self.graph.neighbors(worker).iter().copied()))
    }

    /// The adjacency matrix.
    ///
    /// >>> upwash.Graph("path:3").adjacency()
    /// array([[0., 1., 0.],
    ///        [1., 0., 1.],
    ///        [0., 1., 0.]])
    fn adjacency<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        arrays::check_dense(py, self.graph.nodes(), 2)?;
        let mut matrix = upwash_topology::Matrix::zeros(self.graph.nodes(), self.graph.nodes());
        for &(u, v) in self.graph.edges() {
            matrix[(u, v)] = 1.0;
            matrix[(v, u)] = 1.0;
        }
        Ok(arrays::matrix(py, &matrix))
    }

    /// The Laplacian: degrees on the diagonal, -1 for every link.
    ///
    /// >>> upwash.Graph("path:3").laplacian().sum()
    /// np.float64(0.0)
    fn laplacian<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        arrays::check_dense(py, self.graph.nodes(), 2)?;
        Ok(arrays::matrix(py, &self.graph.laplacian()))
    }

    /// The eigenvalues of the Laplacian, in increasing order. The second is the algebraic connectivity.
    ///
    /// >>> upwash.Graph("complete:4").spectrum().round(6)
    /// array([0., 4., 4., 4.])
    fn spectrum<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<f64>>> {
        arrays::check_spectrum(py, self.graph.nodes())?;
        let graph = Arc::clone(&self.graph);
        let spectrum = detached(py, move || Spectrum::of(&graph))?;
        Ok(arrays::numbers(py, spectrum.values()))
    }

    /// The mixing matrix W, whose row i has the weights that worker i gives to each worker's model.
    ///
    /// Weights are `optimal` (I - alpha L with the alpha that mixes fastest), `metropolis`, `uniform`, `alpha=NUMBER`, or a matrix
    /// of your own, which is checked. With `sparse`, W is a `csr_array` of scipy, which graphs of any size have.
    ///
    /// >>> upwash.Graph("path:3").mixing("metropolis").round(3)
    /// array([[0.667, 0.333, 0.   ],
    ///        [0.333, 0.333, 0.333],
    ///        [0.   , 0.333, 0.667]])
    #[pyo3(signature = (weights = None, *, sparse = false))]
    fn mixing<'py>(
        &self,
        py: Python<'py>,
        weights: Option<&Bound<'py, PyAny>>,
        sparse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let weights = self.checked_weights(py, weights)?;
        let graph = Arc::clone(&self.graph);
        let mixing = detached(py, move || weights.mixing(&graph))?.or_raise(py)?;
        match sparse {
            true => arrays::sparse(py, &mixing),
            false => Ok(arrays::mixing(py, &mixing)?.into_any()),
        }
    }

    /// rho: the largest factor by which averaging with these weights multiplies the squared disagreement of the workers.
    ///
    /// >>> round(upwash.Graph("paper:L1").contraction(), 6)
    /// 0.653777
    #[pyo3(signature = (weights = None))]
    fn contraction(&self, py: Python<'_>, weights: Option<&Bound<'_, PyAny>>) -> PyResult<f64> {
        arrays::check_spectrum(py, self.graph.nodes())?;
        let (graph, weights) = (Arc::clone(&self.graph), self::weights(weights)?);
        let rho = detached(py, move || weights.mixing(&graph).map(|mixing| mixing.contraction()))?;
        rho.or_raise(py)
    }

    /// MATCHA on this graph: the best activation probabilities of its matchings for a budget, the expected fraction of matchings
    /// that are active in a round.
    ///
    /// >>> upwash.Graph("paper:L1").matcha(0.5)
    /// <upwash.Matcha: budget 0.5, rho 0.6440, 7.73 links in an average round>
    fn matcha(slf: &Bound<'_, Self>, budget: f64) -> PyResult<PyMatcha> {
        let (py, graph) = (slf.py(), Arc::clone(&slf.get().graph));
        arrays::check_spectrum(py, graph.nodes())?;
        let matcha = detached(py, move || Matcha::solve(&graph, budget))?.or_raise(py)?;
        Ok(PyMatcha { matcha: Arc::new(matcha), origin: Origin::new(slf, "matcha", (budget,), &[])? })
    }

    /// A rotation of the workers through copies of the graph, so that no worker is always at its edge: relabelings that balance the
    /// degrees, or relabelings of your own.
    ///
    /// >>> rotation = upwash.Graph("paper:L1").rotation(2)
    /// >>> rotation.expected_degrees
    /// array([3., 3., 3., 3., 3., 3., 3., 3.])
    #[pyo3(signature = (copies = None, *, relabelings = None))]
    fn rotation(
        slf: &Bound<'_, Self>,
        copies: Option<GraphNumber>,
        relabelings: Option<Vec<Vec<GraphNumber>>>,
    ) -> PyResult<PyRotation> {
        let (py, graph) = (slf.py(), Arc::clone(&slf.get().graph));
        arrays::check_spectrum(py, graph.nodes())?;
        let rotation = match (copies, relabelings) {
            (Some(copies), None) => detached(py, move || Rotation::balance(&graph, copies.into()))?,
            (None, Some(relabelings)) => {
                let relabelings = relabelings.into_iter().map(arrays::workers).collect();
                detached(py, move || Rotation::new(&graph, relabelings))?
            }
            _ => return Err(PyTypeError::new_err("rotation: give either the number of copies or relabelings")),
        };
        let rotation = rotation.or_raise(py)?;
        let relabelings = rotation.relabelings().to_vec().into_bound_py_any(py)?;
        let origin = Origin::new(slf, "rotation", PyTuple::empty(py), &[("relabelings", Some(relabelings))])?;
        Ok(PyRotation { rotation, origin })
    }

    /// AL-DSGD's mixing matrices on this graph: the weights of `mixing`, and additional weights for the best and the
    /// best-connected neighbor.
    ///
    /// >>> leaders = upwash.Graph("paper:L1").leaders(0.1, 0.1)
    /// >>> round(leaders.contraction_random(), 6)
    /// 0.608637
    #[pyo3(signature = (w_best = 0.1, w_degree = 0.1, *, weights = None))]
    fn leaders(
        slf: &Bound<'_, Self>,
        w_best: f64,
        w_degree: f64,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyLeaders> {
        let (py, graph) = (slf.py(), Arc::clone(&slf.get().graph));
        let nodes = graph.nodes();
        arrays::check_spectrum(py, nodes)?;
        let leader_weights = leader_weights(py, w_best, w_degree)?;
        let origin = Origin::new(slf, "leaders", (w_best, w_degree), &[("weights", kept_weights(weights)?)])?;
        let weights = self::weights(weights)?;
        let leaders = detached(py, move || {
            let mixing = weights.mixing(&graph)?;
            Ok::<_, upwash_topology::WeightError>(Leaders::new(&graph, &mixing, leader_weights))
        })?;
        Ok(PyLeaders { leaders: Arc::new(leaders.or_raise(py)?), nodes, origin })
    }

    /// Which links are up in which round: `whole` (all), `alternating` (one matching after the other), `random-matching`,
    /// `released` (as in the code of the AL-DSGD paper), `one-peer-exponential`, `one-peer-hypercube`,
    /// `exponential`, or `base-2` to `base-5` (Base-(k+1) graphs, exact after a known number of rounds).
    ///
    /// >>> schedule = upwash.Graph("ring:8").schedule("alternating")
    /// >>> [len(schedule.round(k).links) for k in range(3)]
    /// [4, 4, 4]
    #[pyo3(signature = (links = "whole", *, weights = None, seed = 0))]
    fn schedule(
        slf: &Bound<'_, Self>,
        links: &str,
        weights: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arrays::seed)] seed: u64,
    ) -> PyResult<PySchedule> {
        let (py, graph) = (slf.py(), &slf.get().graph);
        let keywords = [("weights", kept_weights(weights)?), ("seed", Some(seed.into_bound_py_any(py)?))];
        let origin = Origin::new(slf, "schedule", (links,), &keywords)?;
        let weights = match links {
            "whole" => slf.get().checked_weights(py, weights)?,
            _ => self::weights(weights)?,
        };
        Ok(PySchedule::new(PySchedule::over(py, graph, links, weights, seed)?, origin))
    }

    /// What `upwash topology analyze --json` prints, as attributes: the graph's notation, degrees, spectra and contraction; of
    /// MATCHA if a budget is given, of a rotation through `rotate` copies, and of AL-DSGD with the leader weights
    /// `(w_best, w_degree)`.
    ///
    /// >>> analysis = upwash.Graph("paper:L1").analyze(budget=0.5, rotate=3, leaders=(0.1, 0.1))
    /// >>> round(analysis.dpsgd.rho, 6), round(analysis.matcha.rho, 4), round(analysis.al_dsgd.rho_random, 6)
    /// (0.653777, 0.644, 0.608637)
    /// >>> analysis.rotation.expected_degrees
    /// array([3., 3., 3., 3., 3., 3., 3., 3.])
    #[pyo3(signature = (budget = None, rotate = None, leaders = None))]
    fn analyze<'py>(
        &self,
        py: Python<'py>,
        budget: Option<f64>,
        rotate: Option<GraphNumber>,
        leaders: Option<(f64, f64)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let leaders = leaders.map(|(best, degree)| leader_weights(py, best, degree)).transpose()?;
        let graph = Arc::clone(&self.graph);
        let options = AnalysisOptions { budget, rotate: rotate.map(usize::from), leaders };
        let analysis = detached(py, move || Analysis::of(&graph, options))?.or_raise(py)?;
        let analysis = Analyzed { graph: self.name(), analysis };
        let text = serde_json::to_string(&analysis).map_err(|error| Class::Internal.error(py, error.to_string()))?;
        py.import("upwash._records")?.call_method1("of_json", (text,))
    }

    /// The graph as a file of matchings, which a configuration can name.
    fn matchings_file(&self) -> String {
        let link = |(u, v): &(usize, usize)| format!("{u}-{v}");
        let line = |matching: &Matching| matching.iter().map(link).collect::<Vec<_>>().join(" ") + "\n";
        self.graph.matchings().iter().map(line).collect()
    }

    /// A drawing, which a notebook shows; with `copies`, of that many copies through which the workers rotate.
    ///
    /// >>> upwash.Graph("torus:4x4").draw()
    /// <upwash.Svg of ... characters: save it, or show it in a notebook>
    #[pyo3(signature = (*, copies = None))]
    fn draw<'py>(&self, py: Python<'py>, copies: Option<GraphNumber>) -> PyResult<Bound<'py, PyAny>> {
        let svg = self.drawing(py, copies.map(usize::from))?;
        py.import("upwash._display")?.call_method1("Svg", (svg,))
    }

    fn _repr_svg_(&self, py: Python<'_>) -> Option<String> {
        self.drawing(py, None).ok()
    }

    fn __repr__(&self) -> String {
        let (nodes, links) = (self.graph.nodes(), self.graph.edges().len());
        match &self.spec {
            Some(spec) => format!("<upwash.Graph {spec}: {nodes} workers, {links} links>"),
            None => format!("<upwash.Graph: {nodes} workers, {links} links>"),
        }
    }

    fn __len__(&self) -> usize {
        self.graph.nodes()
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (self.graph.nodes(), self.graph.edges()).hash(&mut hasher);
        hasher.finish()
    }

    /// A graph from a file is pickled with its links.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let class = py.get_type::<Self>();
        match self.spec.as_ref().filter(|spec| spec.file().is_none()) {
            Some(spec) => Ok((class.into_any(), (spec.to_string(),).into_pyobject(py)?)),
            None => {
                let matchings = (self.graph.nodes(), self.matchings(py)?).into_pyobject(py)?;
                Ok((class.getattr("from_matchings")?, matchings))
            }
        }
    }

    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: Bound<'_, PyAny>) -> Py<Self> {
        slf
    }
}

fn leader_weights(py: Python<'_>, best: f64, degree: f64) -> PyResult<LeaderWeights> {
    format!("{best},{degree}").parse::<LeaderWeights>().or_raise(py)
}

/// (syntax, description, example) of every kind of graph.
#[pyfunction]
pub(crate) fn graph_kinds() -> Vec<(&'static str, &'static str, &'static str)> {
    GraphKind::all().iter().map(|kind| (kind.syntax, kind.about, kind.example)).collect()
}
