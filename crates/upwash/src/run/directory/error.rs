//! Why a run directory cannot be used.

use crate::run::checkpoint::CheckpointError;
use std::path::{Path, PathBuf};

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// A file or directory cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Another process is writing to the directory.
    #[error("a run is writing to {}: wait until it ends, or stop it", .0.display())]
    InUse(PathBuf),
    /// The directory holds a run, which would be overwritten.
    #[error("{} holds a run already: {remedy}choose another directory (--out)", path.display())]
    Occupied {
        /// The directory.
        path: PathBuf,
        /// What else the user can do.
        remedy: &'static str,
    },
    /// The directory has a configuration that no run has written.
    #[error(
        "{} already has a config.toml, which a run would overwrite: choose another directory (--out)",
        .0.display()
    )]
    ForeignConfig(PathBuf),
    /// The directory holds a run with a different configuration.
    #[error("{} holds another run: {what}; choose another directory (--out)", path.display())]
    OtherRun {
        /// The directory.
        path: PathBuf,
        /// The keys that differ.
        what: String,
    },
    /// The run is finished, so there is nothing to resume.
    #[error("the run in {} is finished: see its summary.json, or choose another directory (--out)", .0.display())]
    Finished(PathBuf),
    /// The directory is inside that of another run.
    #[error("{} is inside the run in {}: choose another directory (--out)", path.display(), run.display())]
    InsideRun {
        /// The directory.
        path: PathBuf,
        /// The directory of the run around it.
        run: PathBuf,
    },
    /// The run belongs to peers, which resume it themselves.
    #[error("{} holds a run of peers: resume it with `upwash launch` and the same --out", .0.display())]
    PeerRun(PathBuf),
    /// The directory has checkpoints of some of the workers only.
    #[error(
        "{} holds one peer's part of a run: continue it with `upwash launch` and its --out, or with `upwash peer`",
        .0.display()
    )]
    PartOfRun(PathBuf),
    /// There is nothing to resume from.
    #[error(
        "{} has no checkpoint to resume from: remove it or choose another directory (--out), and run without --resume",
        .0.display()
    )]
    NoCheckpoint(PathBuf),
    /// The checkpoint belongs to a different configuration, graph or data set.
    #[error(
        "{} was run with a different configuration: {what}; resume with its own, in its config.toml, or choose another \
         directory (--out)",
        path.display()
    )]
    OtherConfiguration {
        /// The directory.
        path: PathBuf,
        /// The keys that differ.
        what: String,
    },
    /// The directory already has a different file of the same name.
    #[error("{} already exists and differs from {}: choose another directory (--out)", copy.display(), file.display())]
    OtherFile {
        /// The file in the directory.
        copy: PathBuf,
        /// The file that the configuration names.
        file: PathBuf,
    },
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl DirectoryError {
    /// Whether the cause may pass by itself: the disk is full, or too many files are open.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Io { source, .. } | Self::Checkpoint(CheckpointError::Io { source, .. }) => {
                crate::files::is_transient(source)
            }
            _ => false,
        }
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
