//! A run on a thread of its own, which the calling thread of Python follows.
//!
//! The thread sends events and waits for nothing else of Python, except for an algorithm in Python. If callbacks follow
//! the run, it waits after each event until they have seen it.
//!
//! A child that was forked meanwhile has no such thread, and locks that other threads held are held there forever. So it
//! touches neither locks nor channels: every method looks at the process first.

use crate::algorithm::Watched;
use crate::compute::{Process, attached, internal_error, new_pool};
use crate::dataset::PyDataset;
use crate::errors::{Class, Classified, text};
use crate::setup::Setup;
use pyo3::prelude::*;
use rayon::ThreadPool;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use upwash::run::StopHandle;
use upwash::{Event, Summary, TrainError};

/// How many events may wait until Python reads them.
const MAX_WAITING: usize = 256;
/// How often a round is reported if nothing but a progress bar follows the run.
const ROUND_INTERVAL: Duration = Duration::from_millis(50);

type Outcome = Result<Result<Summary, TrainError>, Box<dyn Any + Send>>;

/// How a run is carried out.
pub(crate) struct Options {
    pub(crate) output: Option<PathBuf>,
    pub(crate) resume: bool,
}

/// The processes of a run: this one, or the ranks of an MPI job.
#[derive(Clone, Copy)]
enum Job {
    ThisProcess,
    #[cfg(feature = "mpi")]
    Rank(upwash_mpi::Rank),
}

impl Job {
    /// Joins the job that a transport names.
    fn join(py: Python<'_>, transport: Option<&str>) -> PyResult<Self> {
        match transport {
            None => Ok(Self::ThisProcess),
            #[cfg(feature = "mpi")]
            Some("mpi") => Ok(Self::Rank(crate::mpi::join(py)?)),
            Some(name) => {
                let text = format!("transport \"{name}\" is unknown to this module: write mpi, or leave it out");
                Err(Class::Config.error(py, text))
            }
        }
    }

    /// The number of threads unless the user chooses one.
    fn threads(self) -> Option<usize> {
        match self {
            Self::ThisProcess => None,
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => Some(crate::mpi::threads(rank)),
        }
    }

    /// The number of this process, from 0.
    fn rank(self) -> usize {
        match self {
            Self::ThisProcess => 0,
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => rank.number,
        }
    }
}

/// The thread's side: forwards events to Python.
pub(crate) struct Forward {
    events: SyncSender<String>,
    seen: Option<Receiver<()>>,
    stop: StopHandle,
    last_round: Option<Instant>,
}

impl Forward {
    #[cfg(feature = "mpi")]
    pub(crate) fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    pub(crate) fn observe(&mut self, event: &Event) {
        if self.seen.is_none() && matches!(event, Event::Round { .. }) {
            if self.last_round.is_some_and(|last| last.elapsed() < ROUND_INTERVAL) {
                return;
            }
            self.last_round = Some(Instant::now());
        }
        let Ok(line) = serde_json::to_string(event) else {
            return;
        };
        let is_read = self.events.send(line).is_ok();
        let is_seen = is_read && self.seen.as_ref().is_none_or(|seen| seen.recv().is_ok());
        // Nobody follows the run any more.
        if !is_seen {
            self.stop.stop();
        }
    }
}

struct Following {
    events: Receiver<String>,
    seen: Option<SyncSender<()>>,
    /// Whether the event that was read last has not been confirmed.
    is_unseen: bool,
}

#[pyclass(frozen, name = "Session", module = "upwash._upwash")]
pub(crate) struct PySession {
    following: Mutex<Option<Following>>,
    outcome: Mutex<Option<Receiver<Outcome>>>,
    stop: StopHandle,
    watched: Watched,
    process: Process,
    rank: usize,
}

fn run(setup: Setup, options: Options, forward: Forward, job: Job) -> Result<Summary, TrainError> {
    attached(setup.algorithm.is_some(), move || match job {
        Job::ThisProcess => train(setup, options, forward),
        #[cfg(feature = "mpi")]
        Job::Rank(rank) => crate::mpi::train(setup, &options, forward, rank),
    })
}

fn train(setup: Setup, options: Options, mut forward: Forward) -> Result<Summary, TrainError> {
    let Options { output, resume } = options;
    let mut trainer = setup.trainer().stopped_by(forward.stop.clone()).resume(resume);
    if let Some(output) = output {
        trainer = trainer.output(output);
    }
    trainer.observe(move |event| forward.observe(event)).run()
}

#[pymethods]
impl PySession {
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (config, sets, files, *, dataset, algorithm, output, resume, threads, every_event, transport))]
    fn new(
        py: Python<'_>,
        config: &str,
        sets: Vec<String>,
        files: PathBuf,
        dataset: Option<&Bound<'_, PyDataset>>,
        algorithm: Option<&Bound<'_, PyAny>>,
        output: Option<PathBuf>,
        resume: bool,
        threads: Option<usize>,
        every_event: bool,
        transport: Option<&str>,
    ) -> PyResult<Self> {
        let setup = Setup::read(py, config, &sets, files, dataset, algorithm)?;
        let job = Job::join(py, transport)?;
        let pool: Arc<ThreadPool> = new_pool(py, threads.or(job.threads()))?;
        let (events, received) = sync_channel(MAX_WAITING);
        let (confirm, seen) = sync_channel(1);
        let (outcome, result) = sync_channel(1);
        let stop = StopHandle::default();
        let forward = Forward { events, seen: every_event.then_some(seen), stop: stop.clone(), last_round: None };
        let options = Options { output, resume };
        let watched = setup.watched.clone();
        let body = move || {
            let run = || pool.install(|| run(setup, options, forward, job));
            let _ = outcome.send(catch_unwind(AssertUnwindSafe(run)));
        };
        let started = std::thread::Builder::new().name("upwash".into()).spawn(body);
        started.map_err(|error| Class::Run.error(py, format!("cannot start a thread: {error}")))?;
        let following = Following { events: received, seen: every_event.then_some(confirm), is_unseen: false };
        Ok(Self {
            following: Mutex::new(Some(following)),
            outcome: Mutex::new(Some(result)),
            stop,
            watched,
            process: Process::current(),
            rank: job.rank(),
        })
    }

    /// The number of this process in its job.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// The next event as JSON; an empty text if there was none for `seconds`; none after the last. The previous event
    /// counts as seen.
    fn next_event(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<String>> {
        self.check_process(py)?;
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        py.detach(|| {
            let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(following) = &mut *following else {
                return Ok(None);
            };
            if std::mem::take(&mut following.is_unseen)
                && let Some(seen) = &following.seen
            {
                let _ = seen.send(());
            }
            match following.events.recv_timeout(timeout) {
                Ok(event) => {
                    following.is_unseen = following.seen.is_some();
                    Ok(Some(event))
                }
                Err(RecvTimeoutError::Timeout) => Ok(Some(String::new())),
                Err(RecvTimeoutError::Disconnected) => Ok(None),
            }
        })
    }

    /// Requests the end of the run, after its current round and with a checkpoint. No event follows. In another process
    /// this does nothing.
    fn stop(&self, py: Python<'_>) {
        if self.process.is_current() {
            self.stop.stop();
            py.detach(|| self.following.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Whether an algorithm in Python is running, which a `KeyboardInterrupt` then interrupts if `raises`.
    #[pyo3(signature = (*, raises))]
    fn is_planning(&self, py: Python<'_>, raises: bool) -> bool {
        self.process.is_current() && self.watched.is_called(py, raises)
    }

    /// Whether the run has ended within `seconds`: its summary as JSON, or its exception. None if it goes on.
    fn result(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<String>> {
        self.check_process(py)?;
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let outcome = py.detach(|| {
            let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
            outcome.as_ref().map_or(Err(RecvTimeoutError::Disconnected), |outcome| outcome.recv_timeout(timeout))
        });
        match outcome {
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Class::Run.error(py, "the run has already ended")),
            Ok(Err(panic)) => Err(internal_error(py, &*panic)),
            Ok(Ok(Err(error))) => match self.watched.failure(py) {
                Some(exception) => {
                    exception.add_note(py, text(&error))?;
                    Err(exception)
                }
                None => Err(error.class().error(py, text(&error))),
            },
            Ok(Ok(Ok(summary))) => match self.watched.failure(py) {
                Some(exception) => Err(exception),
                None => serde_json::to_string(&summary)
                    .map(Some)
                    .map_err(|error| Class::Internal.error(py, error.to_string())),
            },
        }
    }
}

impl PySession {
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py, "this run", "start another run here")
    }
}

impl Drop for PySession {
    /// The run ends by itself after its current round.
    fn drop(&mut self) {
        self.stop.stop();
        if !self.process.is_current() {
            // Closing a channel takes a lock.
            std::mem::forget(self.following.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.outcome.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
