//! How the processes of a run reach each other.

use super::NodeError;
use crate::errors::Class;
use pyo3::prelude::*;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use upwash::engine::Engine;
use upwash::experiment::Experiment;
use upwash::run::RunError;
use upwash::transport::{InProcess, Transport, TransportError};
use upwash_peers::{Key, Peers, PeersConfig, SetupError, lock_key, own_worker};

/// How long to wait for a key, an address or a directory that is in use. Processes that were forked from a killed worker,
/// such as those that load data, hold them until they notice its end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);

/// How the processes of a run reach each other.
pub(super) enum Rendezvous {
    /// There is only this one.
    Alone,
    /// Machines that may die. This process has the key of its worker.
    Peers(PathBuf),
    #[cfg(feature = "mpi")]
    Mpi(upwash_mpi::Rank),
}

/// The connection of this process with the others.
pub(super) struct Connection {
    pub(super) transport: Box<dyn Transport>,
    /// Keeps other processes from using the same key.
    _key: Option<File>,
}

impl Rendezvous {
    pub(super) fn new(py: Python<'_>, transport: Option<&str>, key: Option<PathBuf>) -> PyResult<Self> {
        match (transport, key) {
            (None, None) => Ok(Self::Alone),
            (Some("peers"), Some(key)) => Ok(Self::Peers(key)),
            #[cfg(feature = "mpi")]
            (Some("mpi"), _) => Ok(Self::Mpi(crate::mpi::join(py)?)),
            (transport, _) => {
                let text = format!("transport {transport:?} is unknown to this module: write peers or mpi");
                Err(Class::Config.error(py, text))
            }
        }
    }

    /// The number of threads unless the user chooses one.
    pub(super) fn threads(&self) -> Option<usize> {
        match self {
            // Other workers and the training loop use the cores.
            Self::Alone | Self::Peers(_) => Some(1),
            #[cfg(feature = "mpi")]
            Self::Mpi(rank) => Some(crate::mpi::threads(*rank)),
        }
    }

    /// The number of this process's worker.
    pub(super) fn worker(&self, experiment: &Experiment) -> Result<usize, NodeError> {
        let workers = experiment.workers();
        match self {
            Self::Alone if workers == 1 => Ok(0),
            Self::Alone => Err(NodeError::new(
                Class::Config,
                format!(
                    "the graph `{}` has {workers} workers, and this process is one: start the script with `python -m \
                     upwash.launch -n {workers} SCRIPT.py`, or list the workers in network.peers",
                    experiment.config.graph.topology
                ),
            )),
            Self::Peers(key) => Ok(own_worker(experiment, &Key::load(key)?)?),
            #[cfg(feature = "mpi")]
            Self::Mpi(rank) if rank.size == workers => Ok(rank.number),
            #[cfg(feature = "mpi")]
            Self::Mpi(rank) => Err(NodeError::new(
                Class::Config,
                format!(
                    "the graph `{}` has {workers} workers, but the job has {} ranks: start it with `mpirun -n {workers}`",
                    experiment.config.graph.topology, rank.size
                ),
            )),
        }
    }

    /// Ends an MPI job in which this rank fails: the others would wait for it. Otherwise the error is raised in the loop.
    #[cfg_attr(not(feature = "mpi"), allow(unused_variables))]
    pub(super) fn failed(&self, error: &NodeError) {
        match self {
            Self::Alone | Self::Peers(_) => {}
            #[cfg(feature = "mpi")]
            Self::Mpi(rank) => crate::mpi::end_job(*rank, |py| Some(error.exception(py))),
        }
    }

    /// Whether all processes must end their runs together.
    pub(super) fn ends_together(&self, experiment: &Experiment) -> bool {
        !matches!(self, Self::Alone | Self::Peers(_)) && experiment.workers() > 1
    }

    /// Connects this process, whose worker has this engine, when its first round begins.
    pub(super) fn connect(
        &self,
        experiment: &Experiment,
        worker: usize,
        engine: &mut dyn Engine,
    ) -> Result<Connection, NodeError> {
        let without_key = |transport: Box<dyn Transport>| Connection { transport, _key: None };
        match self {
            Self::Alone => Ok(without_key(Box::new(InProcess::new(1)))),
            Self::Peers(path) => {
                let is_in_use = |error: &SetupError| matches!(error, SetupError::InUse { .. });
                let key = when_released(|| lock_key(path, worker), is_in_use)?;
                let config = PeersConfig::of(experiment, worker, Key::load(path)?, engine)?;
                let is_bound = |error: &TransportError| error.to_string().contains("already in use");
                let transport = when_released(|| Peers::new(config.clone()), is_bound);
                Ok(Connection { transport: Box::new(transport.map_err(RunError::from)?), _key: Some(key) })
            }
            #[cfg(feature = "mpi")]
            Self::Mpi(rank) => {
                let transport = upwash_mpi::Mpi::new(*rank, experiment.workers(), crate::mpi::TIMEOUT);
                Ok(without_key(Box::new(transport.map_err(RunError::from)?)))
            }
        }
    }
}

/// Tries again while something that another process has is in use.
pub(super) fn when_released<T, E>(
    mut take: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match take() {
            Err(error) if is_in_use(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(200));
            }
            result => return result,
        }
    }
}
