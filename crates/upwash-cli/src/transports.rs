//! The transport of a run: one process or the ranks of an MPI job.

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

/// The job that this process belongs to.
pub(crate) enum Job {
    /// A job of this process only.
    SingleProcess,
    /// A rank of an MPI job.
    #[cfg(feature = "mpi")]
    Rank(upwash_mpi::Rank),
}

impl Job {
    /// Joins the job. This must be the first action of the program.
    pub(crate) fn join(transport: TransportName) -> Result<Self> {
        match transport {
            TransportName::Process => Ok(Self::SingleProcess),
            #[cfg(feature = "mpi")]
            TransportName::Mpi => Ok(Self::Rank(upwash_mpi::join()?)),
            #[cfg(not(feature = "mpi"))]
            TransportName::Mpi => anyhow::bail!(
                "this program was built without MPI: install libopenmpi-dev, openmpi-bin and \
                 libclang-dev, and build it with `cargo build --release --features mpi`"
            ),
        }
    }

    /// The number of threads for this process if it shares the machine with other ranks.
    pub(crate) fn threads(&self) -> Option<usize> {
        match self {
            Self::SingleProcess => None,
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                Some((cores / rank.local_size).max(1))
            }
        }
    }

    /// Whether this process prints the output of the whole job: rank 0.
    pub(crate) fn speaks(&self) -> bool {
        match self {
            Self::SingleProcess => true,
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => rank.number == 0,
        }
    }

    /// The transport between the processes of the job.
    pub(crate) fn transport(&self, experiment: &Experiment) -> Result<Box<dyn Transport>> {
        let workers = experiment.workers();
        match self {
            Self::SingleProcess => Ok(Box::new(InProcess::new(workers))),
            #[cfg(feature = "mpi")]
            Self::Rank(rank) => {
                // A rank may start late because it reads a data set or warms up a GPU.
                let timeout = std::time::Duration::from_secs(600);
                Ok(Box::new(upwash_mpi::Mpi::new(*rank, workers, timeout)?))
            }
        }
    }

    /// Aborts the whole job if this process failed. The other ranks would wait for it forever.
    pub(crate) fn or_end_all(&self, result: Result<ExitCode>) -> Result<ExitCode> {
        match self {
            Self::SingleProcess => result,
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

    /// Leaves the job. This must be the last action of the program.
    pub(crate) fn leave(&self) {
        match self {
            Self::SingleProcess => {}
            #[cfg(feature = "mpi")]
            Self::Rank(_) => upwash_mpi::leave(),
        }
    }
}
