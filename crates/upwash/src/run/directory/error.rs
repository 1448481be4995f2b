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
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Another process writes there now.
    #[error("a run is writing to {}: wait for its end, or stop it", .0.display())]
    InUse(PathBuf),
    /// It holds a run, which would be overwritten.
    #[error("{} holds a run already: {remedy}choose another directory (--out)", path.display())]
    Occupied {
        /// The directory.
        path: PathBuf,
        /// What else can be done about it.
        remedy: &'static str,
    },
    /// It has a configuration that no run has left.
    #[error(
        "{} has a config.toml of its own, which a run would overwrite: choose another directory (--out)",
        .0.display()
    )]
    ForeignConfig(PathBuf),
    /// It holds a run of another configuration.
    #[error("{} holds another run (see its config.toml): choose another directory (--out)", .0.display())]
    OtherRun(PathBuf),
    /// The run is finished: there is nothing to resume.
    #[error("the run in {} is finished: see its summary.json, or choose another directory (--out)", .0.display())]
    Finished(PathBuf),
    /// The run was made by peers, which resume it themselves.
    #[error("{} holds a run of peers: `upwash launch` with the same --out goes on with it", .0.display())]
    OfPeers(PathBuf),
    /// There is nothing to resume from.
    #[error(
        "{} has no checkpoint to resume from: remove it or choose another directory (--out), and run without --resume",
        .0.display()
    )]
    NoCheckpoint(PathBuf),
    /// The checkpoint belongs to another configuration, graph or data set.
    #[error(
        "{} was run with another configuration, graph or data (see its config.toml): resume with those",
        .0.display()
    )]
    OtherConfiguration(PathBuf),
    /// A graph's file of that name is there already, and is another.
    #[error("{} is another file than {}: choose another directory (--out)", copy.display(), file.display())]
    OtherGraphFile {
        /// The file in the directory.
        copy: PathBuf,
        /// The one that the configuration names.
        file: PathBuf,
    },
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl DirectoryError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
