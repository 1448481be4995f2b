//! The processes of a run.

#[cfg(feature = "mpi")]
use crate::runs::error_number;
use anyhow::Result;
use std::process::ExitCode;
use upwash::experiment::Experiment;
use upwash::transport::{InProcess, Transport};

/// `--transport`
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TransportName {
    /// All workers in this process
    Process,
    /// The ranks of an MPI job
    Mpi,
}

/// What this process is a part of.
pub(crate) enum Job {
    /// It is alone.
    Alone,
    /// A rank of several.
    #[cfg(feature = "mpi")]
    Rank(upwash_mpi::Rank),
}

impl Job {
    /// Takes part. The first thing that a program does.
    pub(crate) fn join(transport: TransportName) -> Result<Self> {
        match transport {
            TransportName::Process => Ok(Self::Alone),
            #[cfg(feature = "mpi")]
            TransportName::Mpi => Ok(Self::Rank(upwash_mpi::join()?)),
            #[cfg(not(feature = "mpi"))]
            TransportName::Mpi => anyhow::bail!(
                "this program was built without MPI: install libopenmpi-dev, openmpi-bin and \
                 libclang-dev, and build it with `cargo build --release --features mpi`"
            ),
        }
    }

    /// How many threads are this process's part of the machine, if it shares it.
    pub(crate) fn threads(&self) -> Option<usize> {
        match self {
            Self::Alone => None,
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                Some((cores / rank.local_size).max(1))
            }
        }
    }

    /// Whether this is the process that says what is true of all.
    pub(crate) fn speaks(&self) -> bool {
        match self {
            Self::Alone => true,
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => rank.number == 0,
        }
    }

    /// The way to the others.
    pub(crate) fn transport(&self, experiment: &Experiment) -> Result<Box<dyn Transport>> {
        let workers = experiment.workers();
        match self {
            Self::Alone => Ok(Box::new(InProcess::new(workers))),
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => {
                // Who is slow to start may have a data set to read, or a GPU to warm up.
                let patience = std::time::Duration::from_secs(600);
                Ok(Box::new(upwash_mpi::Mpi::new(*rank, workers, patience)?))
            }
        }
    }

    /// Ends the others too, where this process cannot go on: they would wait for it.
    pub(crate) fn or_end_all(&self, result: Result<ExitCode>) -> Result<ExitCode> {
        match self {
            Self::Alone => result,
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => {
                if let Err(error) = &result {
                    crate::output::tell!("error: rank {}: {error:#}", rank.number);
                    upwash_mpi::abort(error_number(error).into());
                }
                result
            }
        }
    }

    /// The last thing that a program does.
    pub(crate) fn leave(&self) {
        match self {
            Self::Alone => {}
            #[cfg(feature = "mpi")]
            Self::Rank(_) => upwash_mpi::leave(),
        }
    }
}
