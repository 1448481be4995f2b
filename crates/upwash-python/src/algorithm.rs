//! Algorithms in Python. Only the weights of a worker's messages and vectors cross the border between the languages.

use crate::compute;
use crate::errors::Class;
use crate::plans::{self, Names};
use crate::view::PyView;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use upwash::WorkerId;
use upwash::algorithm::{Exchange, Links, Outgoing, StateVector};
use upwash::{Algorithm, LocalView, Plan, WorkerStats};

/// What other threads may know of an algorithm: its first exception, and where it is running.
#[derive(Clone, Default)]
pub(crate) struct Watched(Arc<Inner>);

#[derive(Default)]
struct Inner {
    failure: Mutex<Option<PyErr>>,
    /// Python's identifier of the thread that is calling the algorithm; 0 if there is none.
    thread: AtomicI64,
}

impl Watched {
    fn fail(&self, error: PyErr) {
        self.lock().get_or_insert(error);
    }

    /// The exception, if there was one.
    pub(crate) fn failure(&self, py: Python<'_>) -> Option<PyErr> {
        self.lock().as_ref().map(|error| error.clone_ref(py))
    }

    fn has_failed(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.0.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the algorithm on this thread, which is attached to the interpreter.
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        // SAFETY: this thread is attached to the interpreter.
        #[allow(unsafe_code)]
        let identifier = unsafe { ffi::PyThread_get_thread_ident() };
        self.0.thread.store(identifier as i64, Ordering::Release);
        let _called = Called(&self.0.thread);
        call()
    }

    /// Whether the algorithm is running, which `KeyboardInterrupt` then interrupts if `raises`: it may not return.
    pub(crate) fn is_called(&self, py: Python<'_>, raises: bool) -> bool {
        let thread = self.0.thread.load(Ordering::Acquire);
        if thread != 0 && raises {
            let exception = py.get_type::<PyKeyboardInterrupt>();
            // SAFETY: the interpreter ignores a thread that does not exist.
            #[allow(unsafe_code)]
            unsafe {
                ffi::PyThreadState_SetAsyncExc(thread as _, exception.as_ptr());
            }
        }
        thread != 0
    }
}

/// Forgets the thread of a call at its end, also if it panics.
struct Called<'a>(&'a AtomicI64);

impl Drop for Called<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// An instance of a subclass of `upwash.Algorithm`.
pub(crate) struct PythonAlgorithm {
    object: Py<PyAny>,
    name: String,
    names: Names,
    links: Links,
    /// What every worker sends, unless `messages` is a method of the subclass.
    messages: Option<Vec<Outgoing>>,
    /// The last answer of `messages` for each worker and exchange: the engine asks where it sends and where it plans.
    answers: Mutex<HashMap<(WorkerId, usize), Answer>>,
    /// The exchanges of every round, unless `exchanges` is a method of the subclass.
    exchanges: Option<Vec<Exchange>>,
    has_server: bool,
    supports_directed: bool,
    starts_equal: bool,
    owns_momentum: bool,
    fingerprint: u32,
    pub(crate) watched: Watched,
}

/// An answer of `messages`, and what it was computed from.
struct Answer {
    round: u64,
    own: WorkerStats,
    messages: Vec<Outgoing>,
}

impl std::fmt::Debug for PythonAlgorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl PythonAlgorithm {
    /// Reads what an algorithm declares about itself.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let base = py.import("upwash.algorithm")?.getattr("Algorithm")?.cast_into::<PyType>()?;
        if !object.is_instance(&base)? {
            let kind = object.get_type();
            let text = format!("algorithm: expected an instance of a subclass of upwash.Algorithm, not {kind}");
            return Err(pyo3::exceptions::PyTypeError::new_err(text));
        }
        let is_default =
            |method: &str| -> PyResult<bool> { Ok(object.get_type().getattr(method)?.is(&base.getattr(method)?)) };
        let flag = |name: &str| object.getattr(name)?.is_truthy();
        let names = Names::read(object)?;
        let budget: Option<f64> = object.getattr("matcha_budget")?.extract()?;
        let links = match (budget, flag("uses_graph")?) {
            (Some(budget), _) => Links::Matcha { budget },
            (None, true) => Links::Configured,
            (None, false) => Links::None,
        };
        let algorithm = Self {
            name: object.call_method0("display_name")?.extract()?,
            names,
            links,
            messages: is_default("messages")?.then(|| vec![Outgoing::stepped()]),
            exchanges: is_default("exchanges")?.then(|| vec![Exchange::Neighbors]),
            has_server: flag("has_server")?,
            supports_directed: flag("supports_directed")?,
            starts_equal: flag("starts_equal")?,
            owns_momentum: flag("owns_momentum")?,
            fingerprint: py.import("upwash._fingerprint")?.getattr("fingerprint")?.call1((object,))?.extract()?,
            answers: Mutex::default(),
            watched: Watched::default(),
            object: object.clone().unbind(),
        };
        // Errors in the declaration are reported before the run begins.
        if algorithm.exchanges.is_none() {
            algorithm.read_exchanges(py, 0)?;
        }
        Ok(algorithm)
    }

    fn read_exchanges(&self, py: Python<'_>, round: u64) -> PyResult<Vec<Exchange>> {
        let names: Vec<String> = self.object.bind(py).call_method1("exchanges", (round,))?.extract()?;
        names.iter().map(|name| plans::exchange(py, name)).collect()
    }

    /// Calls `messages`, once for each view. Nothing has been received yet.
    fn read_messages(&self, py: Python<'_>, view: &LocalView<'_>) -> PyResult<Vec<Outgoing>> {
        let (round, key) = (view.context.round.index(), (view.worker, view.context.exchange));
        if let Some(answer) = self.lock_answers().get(&key)
            && (answer.round, answer.own) == (round, view.own)
        {
            return Ok(answer.messages.clone());
        }
        let view = LocalView { received: &[], ..*view };
        let messages = self.object.bind(py).call_method1("messages", (PyView::new(&view),))?;
        let messages = plans::messages(&messages, &self.names)?;
        self.lock_answers().insert(key, Answer { round, own: view.own, messages: messages.clone() });
        Ok(messages)
    }

    fn lock_answers(&self) -> MutexGuard<'_, HashMap<(WorkerId, usize), Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_plan(&self, py: Python<'_>, view: &LocalView<'_>) -> PyResult<Plan> {
        let answer = self.object.bind(py).call_method1("plan", (PyView::new(view),))?;
        let plan = plans::plan(&answer, &self.names)?;
        let exchanges = self.exchanges_of(py, view.context.round.index())?;
        let exchange = exchanges.get(view.context.exchange).copied().unwrap_or(Exchange::Neighbors);
        let count = match &self.messages {
            Some(messages) => messages.len(),
            None => self.read_messages(py, view)?.len(),
        };
        let checked = plan.check(view, exchange, count, self.names.state_vectors.len());
        checked.map_err(|what| Class::Algorithm.error(py, format!("{}.plan: {what}", self.name)))?;
        Ok(plan)
    }

    fn exchanges_of(&self, py: Python<'_>, round: u64) -> PyResult<Vec<Exchange>> {
        match &self.exchanges {
            Some(exchanges) => Ok(exchanges.clone()),
            None => self.read_exchanges(py, round),
        }
    }

    /// Asks Python, or answers with a default after a failure. The run then ends before the answer is used.
    fn ask<T>(&self, default: impl FnOnce() -> T, question: impl FnOnce(Python<'_>) -> PyResult<T>) -> T {
        if self.watched.has_failed() {
            return default();
        }
        let answer = Python::try_attach(|py| match self.watched.call(|| question(py)) {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.watched.fail(error);
                None
            }
        });
        match answer {
            Some(Some(answer)) => answer,
            Some(None) => default(),
            None => {
                self.watched.fail(PyKeyboardInterrupt::new_err("the interpreter is shutting down"));
                default()
            }
        }
    }
}

impl Algorithm for PythonAlgorithm {
    fn plan(&self, view: &LocalView<'_>) -> Plan {
        self.ask(Plan::default, |py| self.read_plan(py, view))
    }

    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        match &self.messages {
            Some(messages) => messages.clone(),
            None => self.ask(|| vec![Outgoing::stepped()], |py| self.read_messages(py, view)),
        }
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        match &self.exchanges {
            Some(exchanges) => exchanges.clone(),
            None => self.ask(|| vec![Exchange::Neighbors], |py| self.read_exchanges(py, round)),
        }
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        self.names.state_vectors.clone()
    }

    fn links(&self) -> Links {
        self.links
    }

    fn display_name(&self) -> String {
        self.name.clone()
    }

    fn has_server(&self) -> bool {
        self.has_server
    }

    fn supports_directed(&self) -> bool {
        self.supports_directed
    }

    fn starts_equal(&self) -> bool {
        self.starts_equal
    }

    fn owns_momentum(&self) -> bool {
        self.owns_momentum
    }

    fn fingerprint(&self) -> u32 {
        self.fingerprint
    }

    fn failure(&self) -> Option<String> {
        if !self.watched.has_failed() {
            return None;
        }
        let text = Python::try_attach(|py| self.watched.failure(py).map(|error| error.to_string()));
        Some(text.flatten().unwrap_or_else(|| "an exception".into()))
    }
}

/// How often plans are timed.
const PASSES: usize = 10;

/// Seconds that it takes to plan for every worker of a graph, per worker and round: for measurements. The same algorithm in Rust,
/// `dpsgd`, is measured if none is given.
#[pyfunction]
#[pyo3(signature = (graph, algorithm, rounds))]
pub(crate) fn time_plans(
    py: Python<'_>,
    graph: &crate::graph::PyGraph,
    algorithm: Option<&Bound<'_, PyAny>>,
    rounds: u64,
) -> PyResult<f64> {
    use upwash::algorithm::{Dpsgd, ExchangeContext};
    use upwash_topology::{Schedule, Weights};
    let algorithm: Box<dyn Algorithm> = match algorithm {
        Some(object) => Box::new(PythonAlgorithm::new(object)?),
        None => Box::new(Dpsgd::default()),
    };
    let graph = Arc::clone(&graph.graph);
    let seconds = compute::detached(py, move || {
        let Ok(schedule) = Schedule::fixed(&graph, &Weights::Optimal) else {
            return Err("the graph has no weights".to_owned());
        };
        let stats: Vec<WorkerStats> = graph
            .degrees()
            .into_iter()
            .enumerate()
            .map(|(worker, degree)| WorkerStats { loss: Some(worker as f64), degree, scalar: 1.0 })
            .collect();
        // The fastest of several passes: what else the machine does can only add to the time.
        let fastest = (0..PASSES).map(|_| {
            let started = std::time::Instant::now();
            for round in 0..rounds {
                let round = schedule.round(round);
                let plans = Exchange::Neighbors.plans(&*algorithm, &ExchangeContext::new(&round, 0.1), &stats);
                std::hint::black_box(plans);
            }
            started.elapsed().as_secs_f64()
        });
        let fastest = fastest.fold(f64::INFINITY, f64::min);
        match algorithm.failure() {
            Some(what) => Err(what),
            None => Ok(fastest / (rounds.max(1) as f64 * stats.len() as f64)),
        }
    })?;
    seconds.map_err(|what| Class::Algorithm.error(py, what))
}
