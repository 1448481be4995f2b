//! Computations outside of the interpreter, which Ctrl-C ends and which a fork does not break.

use crate::errors::Class;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a waiting thread looks for Ctrl-C.
pub(crate) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// The process that started a thread. A fork does not copy threads, so its child must leave alone what they use.
#[derive(Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    pub(crate) fn is_current(self) -> bool {
        std::process::id() == self.0
    }

    /// Refuses a child, which another process was forked from.
    pub(crate) fn check(self, py: Python<'_>, what: &str, remedy: &str) -> PyResult<()> {
        match self.is_current() {
            true => Ok(()),
            false => {
                let text = format!("{what} belongs to the process that this one was forked from: {remedy}");
                Err(Class::Run.error(py, text))
            }
        }
    }
}

/// Computes on this thread. If it often calls Python, the thread keeps its state of the interpreter all the while, which makes
/// each call cheaper.
pub(crate) fn attached<T: Send>(calls_python: bool, compute: impl FnOnce() -> T + Send) -> T {
    match calls_python {
        true => Python::attach(|py| py.detach(compute)),
        false => compute(),
    }
}

/// The threads of one process.
struct ProcessPool {
    process: u32,
    pool: Arc<ThreadPool>,
}

/// The pool of this process. A fork does not copy threads, so a child needs a pool of its own. No lock, because another
/// thread might hold it at the time of the fork.
static POOL: AtomicPtr<ProcessPool> = AtomicPtr::new(std::ptr::null_mut());

/// Creates a pool of `threads` threads; `None` means one for each core.
pub(crate) fn new_pool(py: Python<'_>, threads: Option<usize>) -> PyResult<Arc<ThreadPool>> {
    let pool = ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
    pool.map(Arc::new).map_err(|error| Class::Run.error(py, format!("cannot start threads: {error}")))
}

/// The threads of this process: one for each core.
pub(crate) fn pool(py: Python<'_>) -> PyResult<Arc<ThreadPool>> {
    let known = POOL.load(Ordering::Acquire);
    // SAFETY: a pool is never freed once it is in POOL.
    #[allow(unsafe_code)]
    if let Some(known) = unsafe { known.as_ref() }
        && known.process == std::process::id()
    {
        return Ok(Arc::clone(&known.pool));
    }
    let pool = new_pool(py, None)?;
    let mine = Box::into_raw(Box::new(ProcessPool { process: std::process::id(), pool: Arc::clone(&pool) }));
    // If another thread was faster, its pool is used from now on, and this one is used once.
    let _ = POOL.compare_exchange(known, mine, Ordering::AcqRel, Ordering::Acquire);
    Ok(pool)
}

/// Computes without the interpreter, on the threads of this process. Ctrl-C ends the wait; the computation is then
/// completed in the background, and its result is dropped.
pub(crate) fn detached<T: Send + 'static>(py: Python<'_>, compute: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let receiver = Mutex::new(receiver);
    let wait = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNAL_INTERVAL);
    pool(py)?.spawn(move || {
        let _ = sender.send(catch_unwind(AssertUnwindSafe(compute)));
    });
    loop {
        match py.detach(wait) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(panic)) => return Err(internal_error(py, &*panic)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(internal_error(py, &"a thread ended")),
        }
    }
}

/// The exception for a panic, which is an error in this package.
pub(crate) fn internal_error(py: Python<'_>, panic: &(dyn Any + Send)) -> PyErr {
    let what = panic.downcast_ref::<String>().map(String::as_str);
    let what = what.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown cause");
    Class::Internal.error(py, format!("an error in upwash itself, please report it: {what}"))
}
