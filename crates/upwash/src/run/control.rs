//! What someone who watches asks of a run: an empty file in the folder of the run, by its name. No process
//! need know another for that, or be there at all.

use serde::{Deserialize, Serialize};
use std::io::Result;
use std::path::{Path, PathBuf};

/// What someone who watches a run can ask for.
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
    /// To wait between two rounds.
    Pause,
    /// To go on.
    Continue,
    /// A checkpoint now.
    Checkpoint,
    /// To end with a checkpoint.
    Stop,
}

impl ControlRequest {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Pause, Self::Continue, Self::Checkpoint, Self::Stop];

    /// As it is spelled.
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

    /// Leaves it where the run in this folder will find it after its round: the file `control-NAME`. What it
    /// contradicts, to pause or to go on, is taken back.
    pub fn leave(self, folder: &Path) -> Result<()> {
        let opposite = match self {
            Self::Pause => Some(Self::Continue),
            Self::Continue => Some(Self::Pause),
            Self::Checkpoint | Self::Stop => None,
        };
        if let Some(opposite) = opposite {
            let _ = std::fs::remove_file(opposite.file(folder));
        }
        std::fs::File::create(self.file(folder)).map(drop)
    }

    /// One of those that were left, which is then gone; to stop comes last.
    pub fn take(folder: &Path) -> Option<Self> {
        let mut order = [Self::Checkpoint, Self::Continue, Self::Pause, Self::Stop].into_iter();
        // Whoever can remove it has found it.
        order.find(|request| std::fs::remove_file(request.file(folder)).is_ok())
    }

    /// Whether there is one that nobody has found yet.
    pub fn is_waiting(folder: &Path) -> bool {
        Self::ALL.iter().any(|request| request.file(folder).exists())
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
