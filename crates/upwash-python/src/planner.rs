//! The plans of a run whose vectors are in Python: every round, what becomes of them, as dense arrays.
//!
//! A thread owns the run and its directory. Python asks it and waits; the thread asks back what only the owner of the
//! vectors can measure.

mod dense;
mod engine;
mod facts;
mod run;

use crate::algorithm::Watched;
use crate::compute::{Process, SIGNAL_INTERVAL, attached, detached, internal_error};
use crate::errors::{Class, Classified, OrRaise, text};
use crate::setup::Setup;
use dense::Work;
use engine::Command;
use facts::{Facts, check, name_of};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use run::Beginning;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use upwash::algorithm::Registry;
use upwash::data::Sampler;
use upwash::experiment::{DataPaths, DatasetCache, Experiment, ExternalLoop};
use upwash::model::{CUSTOM, Layout, ModelSpec, Replica};
use upwash::run::{Progress, RunError};
use upwash::{Status, StopHandle, Summary};

/// Names and shapes of tensors.
type Tensors = Vec<(String, Vec<usize>)>;

/// What the thread answers.
enum Reply {
    /// The round has begun, or the run is over.
    Begun(Option<Status>),
    /// What Python has to do. The round is finished if there is no question.
    Work(Box<Work>, Option<Status>),
    Progress(String),
    Ended(Box<Summary>),
    Failed(RunError),
    Panicked(Box<dyn Any + Send>),
}

/// The thread of a run, as Python's threads see it.
struct Connection {
    commands: Sender<Command>,
    replies: Mutex<Receiver<Reply>>,
    /// Replies that a wait has not received because Ctrl-C ended it.
    owed: usize,
}

/// A run that has not started yet.
struct Prepared {
    experiment: Experiment,
    has_python: bool,
}

enum State {
    Prepared(Box<Prepared>),
    Running(Connection),
    Ended,
}

#[pyclass(frozen, name = "Planner", module = "upwash._upwash")]
pub(crate) struct PyPlanner {
    state: Mutex<State>,
    experiment: Facts,
    stop: StopHandle,
    watched: Watched,
    process: Process,
}

#[pymethods]
impl PyPlanner {
    #[new]
    #[pyo3(signature = (config, sets, files, *, algorithm, rounds, rounds_per_epoch))]
    fn new(
        py: Python<'_>,
        config: &str,
        sets: Vec<String>,
        files: PathBuf,
        algorithm: Option<&Bound<'_, PyAny>>,
        rounds: Option<u64>,
        rounds_per_epoch: u64,
    ) -> PyResult<Self> {
        let setup = Setup::read(py, config, &sets, files, None, algorithm)?;
        let (watched, has_python) = (setup.watched.clone(), setup.algorithm.is_some());
        let prepared = detached(py, move || {
            let (config, files, mut parts) = setup.custom_parts();
            let (data, optimizer) = ("own batches".into(), "own".into());
            let training_loop =
                ExternalLoop { data, optimizer, rounds, rounds_per_epoch, batch_size: 1, fingerprint: 0 };
            parts.training_loop = Some(training_loop);
            parts.model = Some("module".into());
            let paths = DataPaths { files, ..DataPaths::standard() };
            Experiment::prepare_custom(config, &paths, &Registry::standard(), &mut DatasetCache::default(), parts)
        })?;
        if let Some(error) = watched.failure(py) {
            return Err(error);
        }
        let experiment = prepared.or_raise(py)?;
        check(py, &experiment)?;
        Ok(Self {
            experiment: Facts::of(&experiment),
            state: Mutex::new(State::Prepared(Box::new(Prepared { experiment, has_python }))),
            stop: StopHandle::default(),
            watched,
            process: Process::current(),
        })
    }

    #[getter]
    fn config_toml(&self) -> &str {
        &self.experiment.config
    }

    #[getter]
    fn algorithm(&self) -> &str {
        &self.experiment.name
    }

    #[getter]
    fn workers(&self) -> usize {
        self.experiment.workers
    }

    #[getter]
    fn server(&self) -> Option<usize> {
        self.experiment.server
    }

    #[getter]
    fn starts_equal(&self) -> bool {
        self.experiment.starts_equal
    }

    /// Names of the state vectors, and whether they start as `zero` or as `model`.
    #[getter]
    fn state_vectors(&self) -> Vec<(String, &'static str)> {
        self.experiment.state_vectors.clone()
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.experiment.warnings.clone()
    }

    /// Starts the run, or continues it from `progress` after a round with the learning rate `rate`.
    #[pyo3(signature = (*, model, optimizer, parameters, statistics, batch_size, output, progress, rate))]
    #[allow(clippy::too_many_arguments)]
    fn start(
        &self,
        py: Python<'_>,
        model: String,
        optimizer: &str,
        parameters: Tensors,
        statistics: Tensors,
        batch_size: usize,
        output: Option<PathBuf>,
        progress: Option<&str>,
        rate: Option<f64>,
    ) -> PyResult<()> {
        self.check_process(py)?;
        let progress: Option<Progress> = progress.map(serde_json::from_str).transpose().map_err(|error| {
            Class::Config.error(py, format!("the progress in the state_dict cannot be read: {error}"))
        })?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Prepared(prepared) = std::mem::replace(&mut *state, State::Ended) else {
            return Err(Class::Run.error(py, "the run has already started"));
        };
        let Prepared { mut experiment, has_python } = *prepared;
        if let Some(progress) = &progress
            && progress.losses.len() != experiment.workers()
        {
            let text = format!(
                "the state_dict is of a fleet with {} workers, not {}: load it into a fleet of that size",
                progress.losses.len(),
                experiment.workers()
            );
            return Err(Class::Config.error(py, text));
        }
        experiment.config.model = ModelSpec::Custom(model);
        experiment.config.training.optimizer = format!("{CUSTOM}{optimizer}");
        experiment.config.training.batch_size = batch_size;
        let rounds_per_epoch = experiment.sampler.rounds_per_epoch();
        experiment.sampler = Sampler::without_data(experiment.workers(), batch_size.max(1), rounds_per_epoch);
        let layout = Layout::new(parameters, statistics);
        let start = Beginning { experiment, layout, output, progress, rate, stop: self.stop.clone() };
        let (commands, received) = channel();
        let (reply, replies) = sync_channel(4);
        let body = move || {
            let run = || attached(has_python, || run::run(start, received, &reply));
            let last = match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(None)) => return,
                Ok(Ok(Some(summary))) => Reply::Ended(Box::new(summary)),
                Ok(Err(error)) => Reply::Failed(error),
                Err(panic) => Reply::Panicked(panic),
            };
            let _ = reply.send(last);
        };
        let started = std::thread::Builder::new().name("upwash planner".into()).spawn(body);
        started.map_err(|error| Class::Run.error(py, format!("cannot start a thread: {error}")))?;
        *state = State::Running(Connection { commands, replies: Mutex::new(replies), owed: 0 });
        Ok(())
    }

    /// Whether an algorithm in Python is running, which a `KeyboardInterrupt` then interrupts if `raises`.
    #[pyo3(signature = (*, raises))]
    fn is_planning(&self, py: Python<'_>, raises: bool) -> bool {
        self.process.is_current() && self.watched.is_called(py, raises)
    }

    /// Begins the next round. Returns how the run has ended, if no round is left.
    fn begin(&self, py: Python<'_>) -> PyResult<Option<String>> {
        match self.ask(py, Command::Begin)? {
            Reply::Begun(status) => Ok(status.as_ref().map(name_of)),
            other => Err(unexpected(py, &other)),
        }
    }

    /// Finishes the round with each worker's loss, the number of examples of each, and the learning rate. Returns what
    /// is to be done with the vectors.
    fn finish<'py>(
        &self,
        py: Python<'py>,
        losses: Vec<Option<f64>>,
        examples: usize,
        rate: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        if losses.len() != self.experiment.workers {
            let text = format!("{} losses for {} workers", losses.len(), self.experiment.workers);
            return Err(Class::Internal.error(py, text));
        }
        self.work(py, Command::Finish { losses, examples, rate })
    }

    /// Answers the question of the work before.
    fn answer<'py>(&self, py: Python<'py>, values: Vec<f64>) -> PyResult<Bound<'py, PyDict>> {
        self.work(py, Command::Answer(values))
    }

    /// The progress of the run, as JSON.
    fn progress(&self, py: Python<'_>) -> PyResult<String> {
        match self.ask(py, Command::Progress)? {
            Reply::Progress(progress) => Ok(progress),
            other => Err(unexpected(py, &other)),
        }
    }

    /// Ends the run, with the averaged model and its statistics, or early without. Returns work with a question, or the
    /// summary as JSON.
    fn end<'py>(
        &self,
        py: Python<'py>,
        parameters: Option<PyReadonlyArray1<'py, f32>>,
        statistics: Option<PyReadonlyArray1<'py, f32>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let vector = |array: Option<PyReadonlyArray1<'py, f32>>| array.map(|array| array.as_array().to_vec());
        let replica = vector(parameters)
            .map(|parameters| Replica { parameters, statistics: vector(statistics).unwrap_or_default() });
        self.ended(py, Command::End(replica))
    }

    /// Answers the question of [`end`](Self::end).
    fn answer_end<'py>(&self, py: Python<'py>, values: Vec<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.ended(py, Command::Answer(values))
    }
}

fn unexpected(py: Python<'_>, _: &Reply) -> PyErr {
    Class::Internal.error(py, "the planner answered another question, please report it")
}

impl PyPlanner {
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py, "this fleet", "create another one here")
    }

    fn work<'py>(&self, py: Python<'py>, command: Command) -> PyResult<Bound<'py, PyDict>> {
        match self.ask(py, command)? {
            Reply::Work(work, status) => work.into_python(py, status.as_ref().map(name_of).as_deref()),
            other => Err(unexpected(py, &other)),
        }
    }

    fn ended<'py>(&self, py: Python<'py>, command: Command) -> PyResult<Bound<'py, PyAny>> {
        match self.ask(py, command)? {
            Reply::Work(work, _) => Ok(work.into_python(py, None)?.into_any()),
            Reply::Ended(summary) => {
                *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Ended;
                let summary = serde_json::to_string(&*summary);
                let summary = summary.map_err(|error| Class::Internal.error(py, error.to_string()))?;
                Ok(pyo3::types::PyString::new(py, &summary).into_any())
            }
            other => Err(unexpected(py, &other)),
        }
    }

    /// Sends a command and waits for its reply. Ctrl-C ends the wait; the reply is then dropped before the next command.
    fn ask(&self, py: Python<'_>, command: Command) -> PyResult<Reply> {
        self.check_process(py)?;
        // A wait would hold the interpreter, which the other thread needs.
        let Ok(mut state) = self.state.try_lock() else {
            return Err(Class::Run.error(py, "another thread is using this fleet: wait for it"));
        };
        let State::Running(connection) = &mut *state else {
            return Err(Class::Run.error(py, "the run has ended: create another fleet"));
        };
        let sent = connection.commands.send(command);
        connection.owed += 1;
        loop {
            let replies = &connection.replies;
            let wait = || replies.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNAL_INTERVAL);
            match py.detach(wait) {
                Ok(reply) => {
                    connection.owed = connection.owed.saturating_sub(1);
                    let is_last = matches!(reply, Reply::Failed(_) | Reply::Panicked(_));
                    if is_last {
                        *state = State::Ended;
                        return Err(self.raised(py, reply));
                    }
                    if connection.owed == 0 {
                        return Ok(reply);
                    }
                }
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    *state = State::Ended;
                    let what = if sent.is_ok() { "the planner has ended" } else { "the run has ended" };
                    return Err(Class::Run.error(py, what));
                }
            }
        }
    }

    /// The exception of a run that failed.
    fn raised(&self, py: Python<'_>, reply: Reply) -> PyErr {
        match (reply, self.watched.failure(py)) {
            (Reply::Failed(error), Some(exception)) => {
                let noted = exception.add_note(py, text(&error));
                noted.err().unwrap_or(exception)
            }
            (Reply::Failed(error), None) => error.class().error(py, text(&error)),
            (Reply::Panicked(panic), _) => internal_error(py, &*panic),
            (other, _) => unexpected(py, &other),
        }
    }
}
