//! What someone who watches asks of a run: an empty file in the folder of the run, by its name. No process
//! need know another for that, or be there at all.

use serde::{Deserialize, Serialize};
use std::io::Result;
use std::path::{Path, PathBuf};

/// What someone who watches a run can ask for.
///
/// ```
/// use upwash::run::Wish;
/// let folder = tempfile::tempdir()?;
/// Wish::Checkpoint.leave(folder.path())?;
/// Wish::Pause.leave(folder.path())?;
/// assert_eq!(Wish::take(folder.path()), Some(Wish::Checkpoint));
/// Wish::Continue.leave(folder.path())?;
/// assert_eq!(Wish::take(folder.path()), Some(Wish::Continue));
/// assert_eq!(Wish::take(folder.path()), None);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// To wait between two rounds.
    Pause,
    /// To go on.
    Continue,
    /// A checkpoint now.
    Checkpoint,
    /// To end with a checkpoint.
    Stop,
}

impl Wish {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Pause, Self::Continue, Self::Checkpoint, Self::Stop];

    /// As it is spelled.
    ///
    /// ```
    /// # use upwash::run::Wish;
    /// assert_eq!("checkpoint".parse(), Ok(Wish::Checkpoint));
    /// assert_eq!(Wish::Checkpoint.name(), "checkpoint");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Continue => "continue",
            Self::Checkpoint => "checkpoint",
            Self::Stop => "stop",
        }
    }

    /// Leaves it where the run in this folder will find it after its round: the file `wish-NAME`. What is no
    /// longer wished for then, to pause or to go on, is taken back.
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
        order.find(|wish| std::fs::remove_file(wish.file(folder)).is_ok())
    }

    /// Whether there is one that nobody has found yet.
    pub fn is_waiting(folder: &Path) -> bool {
        Self::ALL.iter().any(|wish| wish.file(folder).exists())
    }

    fn file(self, folder: &Path) -> PathBuf {
        folder.join(format!("wish-{}", self.name()))
    }
}

impl std::str::FromStr for Wish {
    type Err = ();

    fn from_str(name: &str) -> std::result::Result<Self, ()> {
        let found = Self::ALL.into_iter().find(|wish| wish.name() == name);
        found.ok_or(())
    }
}
