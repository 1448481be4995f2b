//! Control requests to a run. A request is an empty file in the run's directory, named after the request, so the sender
//! needs no connection to the run's process, and that process need not even exist.

use serde::{Deserialize, Serialize};
use std::io::Result;
use std::path::{Path, PathBuf};

/// A request to a run in progress.
///
/// ```
/// use upwash::run::ControlRequest;
/// let folder = tempfile::tempdir()?;
/// ControlRequest::Checkpoint.leave(folder.path())?;
/// ControlRequest::Pause.leave(folder.path())?;
/// assert_eq!(ControlRequest::take(folder.path()), Some(ControlRequest::Checkpoint));
/// ControlRequest::Continue.leave(folder.path())?;
/// assert_eq!(ControlRequest::take(folder.path()), Some(ControlRequest::Continue));
/// assert_eq!(ControlRequest::take(folder.path()), None);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlRequest {
    /// Wait between two rounds.
    Pause,
    /// Continue after a pause.
    Continue,
    /// Write a checkpoint now.
    Checkpoint,
    /// Stop, with a checkpoint.
    Stop,
}

impl ControlRequest {
    /// All requests.
    pub const ALL: [Self; 4] = [Self::Pause, Self::Continue, Self::Checkpoint, Self::Stop];

    /// The name of the request.
    ///
    /// ```
    /// # use upwash::run::ControlRequest;
    /// assert_eq!("checkpoint".parse(), Ok(ControlRequest::Checkpoint));
    /// assert_eq!(ControlRequest::Checkpoint.name(), "checkpoint");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Continue => "continue",
            Self::Checkpoint => "checkpoint",
            Self::Stop => "stop",
        }
    }

    /// Leaves the request for the run in this folder, as the file `control-NAME`. The run finds it after its current
    /// round. Withdraws a pending request that it contradicts (to pause, or to continue).
    pub fn leave(self, folder: &Path) -> Result<()> {
        let opposite = match self {
            Self::Pause => Some(Self::Continue),
            Self::Continue => Some(Self::Pause),
            Self::Checkpoint | Self::Stop => None,
        };
        if let Some(opposite) = opposite {
            let _ = std::fs::remove_file(opposite.file(folder));
        }
        // Creates the file or finds it, and never follows a link or changes a file that somebody else put there.
        let file = self.file(folder);
        crate::files::open_regular_with(std::fs::File::options().append(true).create(true), &file).map(drop)
    }

    /// Takes and removes one of the pending requests. A request to stop comes last.
    pub fn take(folder: &Path) -> Option<Self> {
        let mut order = [Self::Checkpoint, Self::Continue, Self::Pause, Self::Stop].into_iter();
        // The process that succeeds in removing the file has the request.
        order.find(|request| std::fs::remove_file(request.file(folder)).is_ok())
    }

    /// Whether any request is pending.
    pub fn is_waiting(folder: &Path) -> bool {
        Self::ALL.iter().any(|request| request.file(folder).symlink_metadata().is_ok())
    }

    fn file(self, folder: &Path) -> PathBuf {
        folder.join(format!("control-{}", self.name()))
    }
}

impl std::str::FromStr for ControlRequest {
    type Err = ();

    fn from_str(name: &str) -> std::result::Result<Self, ()> {
        let found = Self::ALL.into_iter().find(|request| request.name() == name);
        found.ok_or(())
    }
}
