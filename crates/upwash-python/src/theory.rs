//! `upwash.Matcha`, `upwash.Rotation` and `upwash.Leaders`: what theory says about a graph.

use crate::arrays::{self, GraphNumber};
use crate::compute::detached;
use crate::errors::{Class, OrRaise};
use crate::graph;
use crate::origin::{Origin, Reduced, kept_weights};
use crate::schedule::PySchedule;
use numpy::{PyArray1, PyArray2};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;
use upwash_topology::{Leaders, Matcha, Rotation, Schedule};

/// MATCHA on a graph: every matching is active in a round with a probability of its own. `Graph.matcha` makes it.
///
/// >>> matcha = upwash.Graph("paper:L1").matcha(0.5)
/// >>> len(matcha.probabilities), round(float(matcha.probabilities.sum()), 6)
/// (5, 2.5)
/// >>> matcha.lambda2 <= matcha.lambda2_upper_bound
/// True
#[pyclass(frozen, name = "Matcha", module = "upwash")]
pub(crate) struct PyMatcha {
    pub(crate) matcha: Arc<Matcha>,
    pub(crate) origin: Origin,
}

#[pymethods]
impl PyMatcha {
    /// The expected fraction of matchings that are active in a round.
    #[getter]
    fn budget(&self) -> f64 {
        self.matcha.budget()
    }

    /// The activation probability of each matching.
    #[getter]
    fn probabilities<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        arrays::numbers(py, self.matcha.probabilities())
    }

    /// The matchings, as arrays of links.
    #[getter]
    fn matchings<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyArray2<i64>>> {
        self.matcha.matchings().iter().map(|matching| arrays::links(py, matching)).collect()
    }

    /// The second smallest eigenvalue of the expected Laplacian.
    #[getter]
    fn lambda2(&self) -> f64 {
        self.matcha.lambda2()
    }

    /// A bound on `lambda2` over all probabilities within the budget, which certifies the optimum.
    #[getter]
    fn lambda2_upper_bound(&self) -> f64 {
        self.matcha.upper_bound()
    }

    /// The alpha of W = I - alpha L for which disagreement shrinks fastest.
    #[getter]
    fn alpha(&self) -> f64 {
        self.matcha.alpha()
    }

    /// The factor by which a round shrinks the squared disagreement in expectation.
    #[getter]
    fn rho(&self) -> f64 {
        self.matcha.rho()
    }

    /// The expected number of links that are up in a round.
    #[getter]
    fn expected_links(&self) -> f64 {
        let parts = self.matcha.matchings().iter().zip(self.matcha.probabilities());
        parts.map(|(matching, probability)| matching.len() as f64 * probability).sum()
    }

    /// The links of each round, drawn with a seed.
    ///
    /// >>> schedule = upwash.Graph("paper:L1").matcha(0.5).schedule(seed=7)
    /// >>> (schedule.round(3).mixing == schedule.round(3).mixing).all()       # a round is always the same
    /// np.True_
    #[pyo3(signature = (*, weights = None, seed = 0))]
    fn schedule(
        slf: &Bound<'_, Self>,
        weights: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arrays::seed)] seed: u64,
    ) -> PyResult<PySchedule> {
        let (py, matcha) = (slf.py(), Arc::clone(&slf.get().matcha));
        let keywords = [("weights", kept_weights(weights)?), ("seed", Some(seed.into_bound_py_any(py)?))];
        let origin = Origin::new(slf, "schedule", PyTuple::empty(py), &keywords)?;
        let weights = graph::weights(weights)?;
        let schedule = detached(py, move || Schedule::matcha_with(&matcha, weights, seed))?;
        Ok(PySchedule::new(schedule.or_raise(py)?, origin))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        self.origin.reduce(py)
    }

    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __repr__(&self) -> String {
        let (budget, rho, links) = (self.matcha.budget(), self.matcha.rho(), self.expected_links());
        format!("<upwash.Matcha: budget {budget}, rho {rho:.4}, {links:.2} links in an average round>")
    }
}

/// Relabeled copies of a graph that take turns. `Graph.rotation` makes it.
///
/// >>> rotation = upwash.Graph("star:4").rotation(relabelings=[[0, 1, 2, 3], [1, 0, 2, 3]])
/// >>> rotation.expected_degrees
/// array([2., 2., 1., 1.])
#[pyclass(frozen, name = "Rotation", module = "upwash")]
pub(crate) struct PyRotation {
    pub(crate) rotation: Rotation,
    pub(crate) origin: Origin,
}

#[pymethods]
impl PyRotation {
    /// In row c, the node that each worker takes in copy c.
    #[getter]
    fn relabelings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i64>>> {
        let row = |relabeling: &Vec<usize>| relabeling.iter().map(|&node| node as i64).collect();
        let rows: Vec<Vec<i64>> = self.rotation.relabelings().iter().map(row).collect();
        Ok(PyArray2::from_vec2(py, &rows)?)
    }

    /// Each worker's degree, averaged over the copies.
    #[getter]
    fn expected_degrees<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        arrays::numbers(py, self.rotation.expected_degrees())
    }

    /// The variance of the expected degrees.
    #[getter]
    fn degree_variance(&self) -> f64 {
        self.rotation.degree_variance()
    }

    /// The second smallest eigenvalue of the mean Laplacian.
    #[getter]
    fn lambda2_mean(&self) -> f64 {
        self.rotation.lambda2_mean()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        self.origin.reduce(py)
    }

    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __repr__(&self) -> String {
        let (copies, variance) = (self.rotation.relabelings().len(), self.rotation.degree_variance());
        format!("<upwash.Rotation: {copies} copies, degree variance {variance:.4}>")
    }
}

/// AL-DSGD's mixing matrices A = (1 - w) W + w_best e_N + w_degree e_T on a graph. `Graph.leaders` makes it.
///
/// >>> leaders = upwash.Graph("ring:4").leaders(0.1, 0.1)
/// >>> best = leaders.best_leaders([4.0, 3.0, 2.0, 1.0])
/// >>> best
/// array([3, 2, 3, 3])
/// >>> leaders.matrix(best, leaders.degree_leaders()).sum(axis=1)
/// array([1., 1., 1., 1.])
#[pyclass(frozen, name = "Leaders", module = "upwash")]
pub(crate) struct PyLeaders {
    pub(crate) leaders: Arc<Leaders>,
    pub(crate) nodes: usize,
    pub(crate) origin: Origin,
}

impl PyLeaders {
    /// Leaders that a caller gives: one for each worker.
    fn check(&self, py: Python<'_>, what: &str, leaders: &[usize]) -> PyResult<()> {
        let nodes = self.nodes;
        if leaders.len() != nodes || leaders.iter().any(|&leader| leader >= nodes) {
            let text = format!("{what}: expected the leader of each of {nodes} workers, from 0 to {}", nodes - 1);
            return Err(Class::Graph.error(py, text));
        }
        Ok(())
    }
}

#[pymethods]
impl PyLeaders {
    /// The best-connected candidate of each worker: its neighbors and itself.
    fn degree_leaders<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        arrays::integers(py, self.leaders.degree_leaders())
    }

    /// The candidate of each worker with the lowest loss.
    fn best_leaders<'py>(&self, py: Python<'py>, losses: Vec<f64>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        if losses.len() != self.nodes {
            let text = format!("losses: expected one for each of {} workers, not {}", self.nodes, losses.len());
            return Err(Class::Graph.error(py, text));
        }
        Ok(arrays::integers(py, self.leaders.best_leaders(&losses)))
    }

    /// The mixing matrix for the leaders of each worker.
    fn matrix<'py>(
        &self,
        py: Python<'py>,
        best: Vec<GraphNumber>,
        degree: Vec<GraphNumber>,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let (best, degree) = (arrays::workers(best), arrays::workers(degree));
        self.check(py, "best", &best)?;
        self.check(py, "degree", &degree)?;
        arrays::check_dense(py, self.nodes, 2)?;
        Ok(arrays::matrix(py, &self.leaders.matrix(&best, &degree)))
    }

    /// rho of the mixing matrix for the leaders of each worker.
    fn contraction(&self, py: Python<'_>, best: Vec<GraphNumber>, degree: Vec<GraphNumber>) -> PyResult<f64> {
        let (best, degree) = (arrays::workers(best), arrays::workers(degree));
        self.check(py, "best", &best)?;
        self.check(py, "degree", &degree)?;
        let leaders = Arc::clone(&self.leaders);
        detached(py, move || leaders.contraction(&best, &degree))
    }

    /// rho in expectation over random losses.
    fn contraction_random(&self, py: Python<'_>) -> PyResult<f64> {
        let leaders = Arc::clone(&self.leaders);
        detached(py, move || leaders.contraction_random())
    }

    /// An upper bound of rho over all leaders, the worst leaders found, and whether the bound is exact.
    fn contraction_worst(&self, py: Python<'_>) -> PyResult<(f64, Vec<usize>, bool)> {
        let leaders = Arc::clone(&self.leaders);
        let worst = detached(py, move || leaders.contraction_worst())?;
        Ok((worst.bound, worst.leaders, worst.exact))
    }

    /// A limit on w_best + w_degree below which averaging contracts for any leaders.
    fn safe_total_weight(&self, py: Python<'_>) -> PyResult<f64> {
        let leaders = Arc::clone(&self.leaders);
        detached(py, move || leaders.safe_total_weight())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        self.origin.reduce(py)
    }

    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: Bound<'_, PyAny>) -> Py<Self> {
        slf
    }
}
