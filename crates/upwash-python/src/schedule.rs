//! `upwash.Schedule` and `upwash.Round`: which links are up in round k, and with which weights.

use crate::arrays::{self, GraphNumber, RunNumber};
use crate::compute::detached;
use crate::errors::{Class, OrRaise};
use crate::origin::{self, Origin, Reduced};
use crate::theory::PyRotation;
use numpy::{PyArray1, PyArray2};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use std::sync::Arc;
use upwash_topology::{Graph, Order, Round, Schedule, ScheduleError, Weights};

const LINKS: &str = "whole, alternating, random-matching, released, one-peer-exponential, \
                     one-peer-hypercube, exponential, base-2, base-3, base-4 or base-5";

/// Which links are up in round k, and with which weights. Any round can be computed without those before it.
///
/// `Graph.schedule`, `Matcha.schedule` and `Experiment.schedule` make schedules.
///
/// >>> schedule = upwash.Graph("ring:4").schedule()
/// >>> schedule.round(10_000)
/// <upwash.Round 10000: 4 links>
#[pyclass(frozen, name = "Schedule", module = "upwash")]
pub(crate) struct PySchedule {
    schedule: Arc<Schedule>,
    /// None for the schedule of an experiment.
    origin: Option<Origin>,
    /// Whether there are rounds in which all workers are linked.
    averages: bool,
}

impl From<Schedule> for PySchedule {
    /// The schedule of an experiment.
    fn from(schedule: Schedule) -> Self {
        Self { schedule: Arc::new(schedule), origin: None, averages: false }
    }
}

impl PySchedule {
    pub(crate) fn new(schedule: Schedule, origin: Origin) -> Self {
        Self { schedule: Arc::new(schedule), origin: Some(origin), averages: false }
    }

    /// The origin of a schedule that a method of this one makes: none if this one has none.
    fn derived<'py>(
        slf: &Bound<'py, Self>,
        method: &str,
        arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
        keywords: &[(&str, Option<Bound<'py, PyAny>>)],
    ) -> PyResult<Option<Origin>> {
        match slf.get().origin {
            Some(_) => Origin::new(slf, method, arguments, keywords).map(Some),
            None => Ok(None),
        }
    }

    /// A schedule over the links of a graph, by its name in configurations.
    pub(crate) fn over(
        py: Python<'_>,
        graph: &Arc<Graph>,
        links: &str,
        weights: Weights,
        seed: u64,
    ) -> PyResult<Schedule> {
        let (graph, name) = (Arc::clone(graph), links.to_owned());
        if links != "whole" && weights != Weights::Optimal {
            let text = format!("weights: links \"{links}\" have weights of their own; leave them out");
            return Err(Class::Graph.error(py, text));
        }
        let schedule = detached(py, move || -> Result<Option<Schedule>, ScheduleError> {
            Ok(Some(match &name[..] {
                "whole" => Schedule::fixed(&graph, &weights)?,
                "alternating" => Schedule::alternating(&graph),
                "random-matching" => Schedule::random_matching(&graph, seed),
                "released" => Schedule::released_flags(&graph)?,
                "one-peer-exponential" => Schedule::one_peer_exponential(graph.nodes()),
                "one-peer-hypercube" => Schedule::hypercube(graph.nodes())?,
                "exponential" => Schedule::exponential(graph.nodes()),
                "base-2" => Schedule::base(graph.nodes(), 1),
                "base-3" => Schedule::base(graph.nodes(), 2),
                "base-4" => Schedule::base(graph.nodes(), 3),
                "base-5" => Schedule::base(graph.nodes(), 4),
                _ => return Ok(None),
            }))
        })?;
        let schedule = schedule.or_raise(py)?;
        let unknown = || Class::Graph.error(py, format!("links \"{links}\" are unknown: write {LINKS}"));
        schedule.ok_or_else(unknown)
    }
}

#[pymethods]
impl PySchedule {
    /// Directed links, as (sender, receiver), in every round. A worker averages what it receives with its own model.
    ///
    /// >>> upwash.Schedule.directed(3, [(0, 1), (1, 2), (2, 0)]).round(0).mixing[1]
    /// array([0.5, 0.5, 0. ])
    #[classmethod]
    fn directed(cls: &Bound<'_, PyType>, nodes: GraphNumber, edges: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (py, nodes, edges) = (cls.py(), usize::from(nodes), arrays::pairs(edges)?);
        if nodes == 0 {
            return Err(Class::Graph.error(py, "a schedule needs at least one worker"));
        }
        let origin = Origin::new(cls, "directed", (nodes, edges.clone()), &[])?;
        Ok(Self::new(detached(py, move || Schedule::directed(nodes, &edges))?.or_raise(py)?, origin))
    }

    /// The schedule on the copies of a rotation, `in-turn` or in `random` order.
    ///
    /// >>> graph = upwash.Graph("paper:L1")
    /// >>> schedule = graph.schedule().rotating(graph.rotation(3))
    /// >>> [schedule.round(k).copy for k in range(4)]
    /// [0, 1, 2, 0]
    #[pyo3(signature = (rotation, order = "in-turn", *, seed = 0))]
    fn rotating(
        slf: &Bound<'_, Self>,
        rotation: &Bound<'_, PyRotation>,
        order: &str,
        #[pyo3(from_py_with = arrays::seed)] seed: u64,
    ) -> PyResult<Self> {
        let py = slf.py();
        let keywords = [("seed", Some(seed.into_bound_py_any(py)?))];
        let origin = Self::derived(slf, "rotating", (rotation, order), &keywords)?;
        let order = match order {
            "in-turn" => Order::InTurn { start: 0 },
            "random" => Order::Random { seed },
            _ => {
                let text = format!("order \"{order}\" is unknown: write in-turn or random");
                return Err(Class::Graph.error(py, text));
            }
        };
        let (base, relabelings) = (Arc::clone(&slf.get().schedule), rotation.get().rotation.relabelings().to_vec());
        let schedule = detached(py, move || (*base).clone().rotating(&relabelings, order))?.or_raise(py)?;
        Ok(Self { schedule: Arc::new(schedule), origin, averages: slf.get().averages })
    }

    /// The schedule, with an average of all workers after every `rounds` rounds.
    fn averaging_every(slf: &Bound<'_, Self>, rounds: GraphNumber) -> PyResult<Self> {
        let (py, base, rounds) = (slf.py(), Arc::clone(&slf.get().schedule), rounds.0);
        let origin = Self::derived(slf, "averaging_every", (rounds,), &[])?;
        let schedule = detached(py, move || (*base).clone().averaging_every(rounds))?.or_raise(py)?;
        Ok(Self { schedule: Arc::new(schedule), origin, averages: true })
    }

    /// The number of workers.
    #[getter]
    fn nodes(&self) -> usize {
        self.schedule.nodes()
    }

    /// The links and weights of a round, which is numbered from 0.
    fn round(&self, py: Python<'_>, index: RunNumber) -> PyResult<PyRound> {
        let (index, schedule) = (arrays::check_round(py, index)?, Arc::clone(&self.schedule));
        Ok(PyRound(detached(py, move || schedule.round(index))?))
    }

    /// Every (sender, receiver) that is linked in some round.
    fn possible_links<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i64>>> {
        if self.averages {
            arrays::check_dense(py, self.schedule.nodes(), 4)?;
        }
        let schedule = Arc::clone(&self.schedule);
        Ok(arrays::links(py, &detached(py, move || schedule.possible_links())?))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        origin::reduce(py, self.origin.as_ref(), "pickle the configuration of the experiment")
    }

    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __repr__(&self) -> String {
        format!("<upwash.Schedule of {} workers>", self.schedule.nodes())
    }
}

/// The links and mixing weights of a round. `Schedule.round` makes it.
///
/// >>> upwash.Graph("path:3").schedule().round(0).links
/// array([[0, 1],
///        [1, 2]])
#[pyclass(frozen, name = "Round", module = "upwash")]
pub(crate) struct PyRound(Round);

#[pymethods]
impl PyRound {
    /// The number of the round.
    #[getter]
    fn index(&self) -> u64 {
        self.0.index()
    }

    /// The copy of the graph that is in use.
    #[getter]
    fn copy(&self) -> usize {
        self.0.copy()
    }

    /// The links that are up, one a row: pairs, or (sender, receiver) if directed.
    #[getter]
    fn links<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray2<i64>> {
        arrays::links(py, self.0.links())
    }

    /// Whether links are directed.
    #[getter]
    fn is_directed(&self) -> bool {
        self.0.is_directed()
    }

    /// The indices of the active matchings.
    #[getter]
    fn matchings<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        arrays::integers(py, self.0.matchings().iter().copied())
    }

    /// The mixing matrix W of the round.
    #[getter]
    fn mixing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        arrays::mixing(py, self.0.mixing())
    }

    /// The mixing matrix W of the round as a `csr_array` of scipy.
    ///
    /// >>> upwash.Graph("ring:60000").schedule("alternating").round(0).sparse_mixing().nnz
    /// 120000
    fn sparse_mixing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        arrays::sparse(py, self.0.mixing())
    }

    /// The number of workers from which each worker receives.
    #[getter]
    fn degrees<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        arrays::integers(py, (0..self.0.mixing().nodes()).map(|worker| self.0.degree(worker)))
    }

    /// rho of this round.
    fn contraction(&self, py: Python<'_>) -> PyResult<f64> {
        arrays::check_spectrum(py, self.0.mixing().nodes())?;
        let round = self.0.clone();
        detached(py, move || round.mixing().contraction())
    }

    fn __repr__(&self) -> String {
        format!("<upwash.Round {}: {} links>", self.0.index(), self.0.links().len())
    }
}
