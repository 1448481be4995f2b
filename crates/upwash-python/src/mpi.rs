//! Runs of several ranks under mpirun, each in a Python process of its own.
//!
//! An error in one rank ends the whole job, because the other ranks would wait for it forever. So does a panic of the run;
//! a panic in another call from Python is an exception there.

use crate::algorithm::Watched;
use crate::compute::internal_error;
use crate::errors::{Class, text};
use crate::session::{Forward, Options};
use crate::setup::Setup;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use upwash::algorithm::Registry;
use upwash::engine::native_engine;
use upwash::experiment::{DataPaths, DatasetCache, Experiment};
use upwash::run::{ControlFlow, DirectoryError, RunDirectory, RunError, RunLocation, Summary, run_in};
use upwash::transport::Membership;
use upwash::{Event, TrainError};
use upwash_mpi::{Mpi, Rank};

/// How long a rank waits for another one, which may read a data set first.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(600);

/// Joins the job that mpirun has started, once a process.
pub(crate) fn join(py: Python<'_>) -> PyResult<Rank> {
    static RANK: OnceLock<Result<Rank, String>> = OnceLock::new();
    static IS_USED: AtomicBool = AtomicBool::new(false);
    let rank = RANK.get_or_init(|| upwash_mpi::join_catching().map_err(|error| error.to_string()));
    let rank = rank.clone().map_err(|what| Class::Run.error(py, what))?;
    match IS_USED.swap(true, Ordering::Relaxed) {
        false => Ok(rank),
        true => {
            let what = "MPI ends with the first run of a process: start another job with mpirun for the next run";
            Err(Class::Run.error(py, what))
        }
    }
}

/// The number of threads for this process, which shares its host with other ranks.
pub(crate) fn threads(rank: Rank) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / rank.local_size).max(1)
}

/// Trains the workers of this rank. An error ends the job.
pub(crate) fn train(setup: Setup, options: &Options, forward: Forward, rank: Rank) -> Result<Summary, TrainError> {
    let watched = setup.watched.clone();
    let prepared = catch_unwind(AssertUnwindSafe(|| prepare(setup, rank)));
    let (experiment, mut transport) = or_end_job(prepared, &watched, rank)?;
    // The transport outlives an error and a panic, because dropping it waits for the other ranks.
    let result = catch_unwind(AssertUnwindSafe(|| train_with(&experiment, &mut transport, options, forward)));
    or_end_job(result, &watched, rank)
}

fn prepare(setup: Setup, rank: Rank) -> Result<(Experiment, Mpi), TrainError> {
    let (config, files, parts) = setup.custom_parts();
    let paths = DataPaths { files, ..DataPaths::standard() };
    let cache = &mut DatasetCache::default();
    let experiment = Experiment::prepare_custom(config, &paths, &Registry::standard(), cache, parts)?;
    let transport = Mpi::new(rank, experiment.workers(), TIMEOUT).map_err(RunError::from)?;
    Ok((experiment, transport))
}

fn train_with(
    experiment: &Experiment,
    transport: &mut Mpi,
    options: &Options,
    mut forward: Forward,
) -> Result<Summary, TrainError> {
    let placement = transport.placement().clone();
    let own: Vec<_> = placement.own().collect();
    let mut engine = native_engine(&experiment.engine_spec().only(&own))?;
    let location = RunLocation { placement, is_shared: true };
    let top = options.output.clone().unwrap_or_default();
    let mut directory = match options.resume {
        true => match RunDirectory::open(&top, experiment, &location)? {
            Some(directory) => directory,
            None => return Err(DirectoryError::Finished(top).into()),
        },
        false => RunDirectory::create(&top, experiment, &location)?,
    };
    let stop = forward.stop_handle();
    let mut observer = move |event: &Event| {
        forward.observe(event);
        ControlFlow::Continue
    };
    Ok(run_in(&mut directory, experiment, &mut *engine, transport, &stop, &mut observer)?)
}

/// Prints an error, with the traceback of an algorithm, and ends the job. A job of one rank passes errors and panics on.
fn or_end_job<T>(
    result: std::thread::Result<Result<T, TrainError>>,
    watched: &Watched,
    rank: Rank,
) -> Result<T, TrainError> {
    let exception = |py: Python<'_>| match &result {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => {
            let own = watched.failure(py);
            Some(own.unwrap_or_else(|| Class::Run.error(py, format!("rank {}: {}", rank.number, text(error)))))
        }
        Err(panic) => Some(internal_error(py, &**panic)),
    };
    if !matches!(result, Ok(Ok(_))) {
        end_job(rank, exception);
    }
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Prints an exception, and ends the job. Does nothing in a job of one rank.
pub(crate) fn end_job(rank: Rank, exception: impl FnOnce(Python<'_>) -> Option<PyErr>) {
    if rank.size > 1 {
        Python::try_attach(|py| exception(py).map(|exception| exception.print(py)));
        upwash_mpi::abort(1);
    }
}
