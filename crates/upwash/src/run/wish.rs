//! What someone who watches asks of a run: a word in a file, in the folder of the run. No process need
//! know another for that, or be there at all.

use serde::{Deserialize, Serialize};
use std::io::{Read, Result};
use std::path::Path;

const FILE: &str = "wish";

/// What someone who watches a run can ask for.
///
/// ```
/// use upwash::run::Wish;
/// let folder = tempfile::tempdir()?;
/// Wish::Pause.leave(folder.path())?;
/// assert_eq!(Wish::take(folder.path()), Some(Wish::Pause));
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

    /// Leaves it where the run in this folder will find it after its round. A later wish takes the place
    /// of one that was not found yet.
    pub fn leave(self, folder: &Path) -> Result<()> {
        crate::files::write(&folder.join(FILE), self.name().as_bytes())
    }

    /// What was left, which is then gone.
    pub fn take(folder: &Path) -> Option<Self> {
        let path = folder.join(FILE);
        let file = std::fs::File::open(&path).ok()?;
        let mut word = String::new();
        let read = file.take(32).read_to_string(&mut word);
        std::fs::remove_file(&path).ok()?;
        read.ok()?;
        word.trim().parse().ok()
    }

    /// Whether there is one that nobody has found yet.
    pub fn is_waiting(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }
}

impl std::str::FromStr for Wish {
    type Err = ();

    fn from_str(name: &str) -> std::result::Result<Self, ()> {
        let found = Self::ALL.into_iter().find(|wish| wish.name() == name);
        found.ok_or(())
    }
}
