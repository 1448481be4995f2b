//! A worker whose training loop is in Python: `upwash.torch.Decentralized`.
//!
//! A thread of its own drives the worker's [node](upwash::Node), which borrows its experiment and transport for the whole
//! run. The loop sends it one request at a time and waits for the answer, so that only one of the two uses the vectors at
//! any time.

mod events;
mod rendezvous;
mod thread;
mod vectors;

use crate::algorithm::Watched;
use crate::compute::{Process, SIGNAL_INTERVAL, attached, internal_error};
use crate::errors::{Class, Classified, OrRaise, text};
use crate::setup::Setup;
use events::Events;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rendezvous::Rendezvous;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use thread::{Answer, Parts, Ready, Reply, Request};
use upwash::StopHandle;
use upwash::engine::State;
use upwash::experiment::ExternalLoop;
use upwash::model::Layout;
use vectors::Vectors;

/// Names and shapes of tensors, in the order of a flat vector.
type Tensors = Vec<(String, Vec<usize>)>;

#[pyclass(frozen, name = "NativeNode", module = "upwash._upwash")]
pub(crate) struct PyNode {
    channel: Mutex<Option<Channel>>,
    is_busy: AtomicBool,
    ready: Ready,
    events: Events,
    stop: StopHandle,
    watched: Watched,
    process: Process,
    /// Keep the vectors alive while the thread uses them.
    arrays: [Py<PyArray1<f32>>; 2],
}

/// The loop's end of the connection with the thread.
struct Channel {
    requests: SyncSender<Request>,
    replies: Receiver<Reply>,
}

#[pymethods]
impl PyNode {
    /// Prepares a worker, and connects it with the others when its first round begins. `model` and `statistics` are the
    /// vectors of the loop, in which it finds its model after every round.
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (
        config, sets, files, *, algorithm, model_name, data_name, optimizer_name, parameters, buffers, model, statistics,
        rounds, rounds_per_epoch, batch_size, key, output, threads, transport
    ))]
    fn new(
        py: Python<'_>,
        config: &str,
        sets: Vec<String>,
        files: PathBuf,
        algorithm: Option<&Bound<'_, PyAny>>,
        model_name: String,
        data_name: String,
        optimizer_name: String,
        parameters: Tensors,
        buffers: Tensors,
        model: Bound<'_, PyArray1<f32>>,
        statistics: Bound<'_, PyArray1<f32>>,
        rounds: Option<u64>,
        rounds_per_epoch: u64,
        batch_size: usize,
        key: Option<PathBuf>,
        output: Option<PathBuf>,
        threads: Option<usize>,
        transport: Option<&str>,
    ) -> PyResult<Self> {
        let setup = Setup::read(py, config, &sets, files, None, algorithm)?;
        let layout = Layout::new(parameters, buffers);
        let vectors = Vectors::new(py, &layout, &model, &statistics)?;
        let training_loop = ExternalLoop {
            data: data_name,
            optimizer: optimizer_name,
            rounds,
            rounds_per_epoch,
            batch_size,
            fingerprint: fingerprint(&layout),
        };
        let (stop, events) = (StopHandle::default(), Events::default());
        let (watched, calls_python) = (setup.watched.clone(), setup.algorithm.is_some());
        let parts = Parts {
            rendezvous: Rendezvous::new(py, transport, key)?,
            setup: setup.with_loop(training_loop, model_name),
            layout,
            vectors,
            output,
            stop: stop.clone(),
            events: events.clone(),
            watched: watched.clone(),
        };
        let pool = crate::compute::new_pool(py, threads.or(parts.rendezvous.threads()))?;
        let (requests, received) = sync_channel(1);
        let (replies, answers) = sync_channel(1);
        let serve = move || thread::serve(parts, &received, &replies);
        let body = move || pool.install(move || attached(calls_python, serve));
        let started = std::thread::Builder::new().name("upwash".into()).spawn(body);
        started.map_err(|error| Class::Run.error(py, format!("cannot start a thread: {error}")))?;
        let mut node = Self {
            channel: Mutex::new(Some(Channel { requests, replies: answers })),
            is_busy: AtomicBool::new(false),
            ready: Ready::default(),
            events,
            stop,
            watched,
            process: Process::current(),
            arrays: [model.unbind(), statistics.unbind()],
        };
        match node.receive(py)? {
            Answer::Ready(ready) => node.ready = ready,
            _ => return Err(internal_error(py, &"the thread of a worker gave a wrong answer")),
        }
        Ok(node)
    }

    /// The number of this worker.
    #[getter]
    fn worker(&self) -> usize {
        self.ready.worker
    }

    #[getter]
    fn workers(&self) -> usize {
        self.ready.workers
    }

    /// The name of the algorithm in reports.
    #[getter]
    fn algorithm(&self) -> &str {
        &self.ready.algorithm
    }

    /// Whether the algorithm does nothing sensible without losses.
    #[getter]
    fn needs_losses(&self) -> bool {
        self.ready.needs_losses
    }

    /// Whether this worker has data, and takes steps.
    #[getter]
    fn trains(&self) -> bool {
        self.ready.trains
    }

    /// The resolved configuration, in TOML.
    #[getter]
    fn config_toml(&self) -> &str {
        &self.ready.config
    }

    /// Whether an algorithm in Python is running, which a `KeyboardInterrupt` then interrupts if `raises`.
    #[pyo3(signature = (*, raises))]
    fn is_planning(&self, py: Python<'_>, raises: bool) -> bool {
        self.process.is_current() && self.watched.is_called(py, raises)
    }

    /// Begins the next round. Returns its number, whether another worker's model was adopted, and how the run ended, as
    /// JSON, if it has.
    fn begin(&self, py: Python<'_>) -> PyResult<(u64, bool, Option<String>)> {
        match self.ask(py, Request::Begin)? {
            Answer::Begun { round, is_adopted, status } => Ok((round, is_adopted, status.map(|status| json(&status)))),
            _ => Err(internal_error(py, &"the thread of a worker gave a wrong answer")),
        }
    }

    /// Keeps the model before the step.
    fn save(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, Request::Save).map(drop)
    }

    /// Finishes the round after the step: exchanges models with neighbors, and mixes them. Returns how the run ended, as
    /// JSON, if it has.
    fn finish(&self, py: Python<'_>, loss: Option<f64>, rate: f64) -> PyResult<Option<String>> {
        match self.ask(py, Request::Finish { loss, rate })? {
            Answer::Done(status) => Ok(status.map(|status| json(&status))),
            _ => Err(internal_error(py, &"the thread of a worker gave a wrong answer")),
        }
    }

    /// What the worker needs to resume, besides its model and optimizer: its progress as JSON, and the algorithm's state
    /// vectors.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        match self.ask(py, Request::Snapshot)? {
            Answer::Snapshot { progress, vectors } => {
                let arrays = PyDict::new(py);
                for (name, vector) in vectors {
                    arrays.set_item(name, PyArray1::from_vec(py, vector))?;
                }
                Ok((progress, arrays))
            }
            _ => Err(internal_error(py, &"the thread of a worker gave a wrong answer")),
        }
    }

    /// Restores a snapshot before the first round. `rate` is the learning rate of the last round.
    fn restore(&self, py: Python<'_>, progress: String, arrays: &Bound<'_, PyDict>, rate: Option<f64>) -> PyResult<()> {
        let mut vectors = State::new();
        for (name, array) in arrays {
            let array: PyReadonlyArray1<'_, f32> = array.extract()?;
            vectors.push((name.extract()?, array.as_array().to_vec()));
        }
        self.ask(py, Request::Restore { progress, vectors, rate }).map(drop)
    }

    /// Ends the run, and leaves the other workers. Returns the summary as JSON.
    #[pyo3(signature = (*, is_finished))]
    fn end(&self, py: Python<'_>, is_finished: bool) -> PyResult<Option<String>> {
        let ended = self.ask(py, Request::End { is_finished });
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).take();
        match ended? {
            Answer::Ended(summary) => Ok(summary),
            _ => Err(internal_error(py, &"the thread of a worker gave a wrong answer")),
        }
    }

    /// Warnings and what happened to other workers since the last call, as JSON.
    fn take_events(&self) -> Vec<String> {
        self.events.take()
    }
}

impl PyNode {
    fn ask(&self, py: Python<'_>, request: Request) -> PyResult<Answer> {
        self.process.check(py, "this worker", "only that process can train it")?;
        if self.is_busy.swap(true, Ordering::Acquire) {
            let text = "another thread is using this worker: call its methods from one thread at a time";
            return Err(Class::Run.error(py, text));
        }
        let sent = match &*self.channel.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(channel) => channel.requests.send(request).is_ok(),
            None => false,
        };
        let answer = match sent {
            true => self.receive(py),
            false => Err(Class::Run.error(py, "this worker has already left the run: create another one")),
        };
        self.is_busy.store(false, Ordering::Release);
        answer
    }

    /// Waits for the answer. Ctrl-C requests the end of the run, and is raised once the thread has stopped using the
    /// vectors, within the deadlines of the transport; pressed again, it is raised at once, and the worker is given up.
    fn receive(&self, py: Python<'_>) -> PyResult<Answer> {
        let mut interrupt = None;
        let reply = loop {
            let reply = py.detach(|| match &*self.channel.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(channel) => channel.replies.recv_timeout(SIGNAL_INTERVAL),
                None => Err(RecvTimeoutError::Disconnected),
            });
            match reply {
                Ok(reply) => break reply,
                Err(RecvTimeoutError::Disconnected) => return Err(internal_error(py, &"the thread of a worker ended")),
                Err(RecvTimeoutError::Timeout) => match (py.check_signals(), &interrupt) {
                    (Ok(()), _) => {}
                    (Err(error), None) => {
                        self.stop.stop();
                        interrupt = Some(error);
                    }
                    (Err(error), Some(_)) => {
                        self.abandon(py);
                        return Err(error);
                    }
                },
            }
        };
        match (interrupt, reply) {
            (Some(interrupt), _) => Err(interrupt),
            (None, Ok(answer)) => Ok(answer),
            (None, Err(error)) => Err(error.exception(py)),
        }
    }

    /// Gives the worker up while its thread may still use the vectors: they are never freed.
    fn abandon(&self, py: Python<'_>) {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.arrays.iter().for_each(|array| std::mem::forget(array.clone_ref(py)));
    }
}

impl Drop for PyNode {
    /// The thread ends by itself, without using the vectors. In a forked child there is none.
    fn drop(&mut self) {
        if self.process.is_current() {
            self.stop.stop();
        }
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A checksum of the names and shapes of a model's tensors.
fn fingerprint(layout: &Layout) -> u32 {
    crc32fast::hash(format!("{layout:?}").as_bytes())
}

/// Why a request failed.
struct NodeError {
    class: Class,
    what: String,
    /// The algorithm in Python, whose exception is raised.
    watched: Watched,
}

impl NodeError {
    fn new(class: Class, what: impl Into<String>) -> Self {
        Self { class, what: what.into(), watched: Watched::default() }
    }

    fn exception(&self, py: Python<'_>) -> PyErr {
        let raised = self.watched.failure(py);
        raised.unwrap_or_else(|| self.class.error(py, self.what.as_str()))
    }
}

impl<E: Classified> From<E> for NodeError {
    fn from(error: E) -> Self {
        Self::new(error.class(), text(&error))
    }
}

/// Creates a key in a new file that only its owner can read. Returns its fingerprint.
#[pyfunction]
pub(crate) fn new_key(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let key = upwash_peers::Key::generate();
    key.save(&path).or_raise(py)?;
    Ok(key.fingerprint().to_string())
}

/// The fingerprint of a key, which configurations list.
#[pyfunction]
pub(crate) fn key_fingerprint(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    Ok(upwash_peers::Key::load(&path).or_raise(py)?.fingerprint().to_string())
}
