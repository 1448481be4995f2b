//! Checkpoints: all that a run needs to go on as if it had never stopped.
//!
//! A file is written beside its place, synced and renamed, so that it is whole or not there. It ends
//! with a checksum of all before it, and the one before it is kept: a file that was cut short or
//! damaged is recognised, and its predecessor used.
//!
//! Layout, numbers little-endian: `UPWASH1\n`, the length of the header (u64), the header (JSON), the
//! arrays' numbers (f32) one after the other, the CRC-32 of everything so far (u32).

use crate::engine::State;
use crate::run::Progress;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"UPWASH1\n";
/// How many checkpoints are kept.
const KEPT: usize = 2;

/// A run between two rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The resolved configuration, as TOML: a checkpoint belongs to it.
    pub config: String,
    /// Where the round loop is.
    pub progress: Progress,
    /// What the engine holds, by name.
    pub arrays: State,
}

#[derive(Serialize, Deserialize)]
struct Header {
    config: String,
    progress: Progress,
    arrays: Vec<(String, usize)>,
}

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// It could not be written or read.
    #[error("checkpoint {}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not whole.
    #[error("checkpoint {} is damaged ({what})", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What shows it.
        what: &'static str,
    },
}

impl CheckpointError {
    /// The file or folder that it is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. } | Self::Damaged { path, .. } => path,
        }
    }
}

impl Checkpoint {
    /// Writes `checkpoint-ROUND.upwash` into `folder` and removes all but the newest two.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, CheckpointError> {
        let path = folder.join(format!("checkpoint-{:09}.upwash", self.progress.round));
        let path = self.write_as(&path)?;
        let failed = |source| CheckpointError::Io {
            path: path.clone(),
            source,
        };
        for old in list(folder).map_err(failed)?.iter().rev().skip(KEPT) {
            std::fs::remove_file(old).map_err(failed)?;
        }
        Ok(path)
    }

    /// Writes it to `path`, which is whole or not there.
    pub fn write_as(&self, path: &Path) -> Result<PathBuf, CheckpointError> {
        let failed = |source| CheckpointError::Io {
            path: path.to_owned(),
            source,
        };
        crate::files::write_by(path, |file| self.write_to(file)).map_err(failed)?;
        Ok(path.to_owned())
    }

    /// The newest checkpoint in `folder` that is whole, if any, and what was wrong with newer ones.
    pub fn newest(folder: &Path) -> Result<(Option<Self>, Vec<CheckpointError>), CheckpointError> {
        let failed = |source| CheckpointError::Io {
            path: folder.to_owned(),
            source,
        };
        let mut damaged = Vec::new();
        for path in list(folder).map_err(failed)?.into_iter().rev() {
            match std::fs::read(&path).map(|bytes| Self::from_bytes(&bytes)) {
                Ok(Ok(checkpoint)) => return Ok((Some(checkpoint), damaged)),
                Ok(Err(what)) => damaged.push(CheckpointError::Damaged { path, what }),
                Err(source) => damaged.push(CheckpointError::Io { path, source }),
            }
        }
        Ok((None, damaged))
    }

    /// The whole file, piece by piece: it can be as large as all models together.
    fn write_to(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let header = Header {
            config: self.config.clone(),
            progress: self.progress.clone(),
            arrays: self
                .arrays
                .iter()
                .map(|(name, array)| (name.clone(), array.len()))
                .collect(),
        };
        let header = serde_json::to_vec(&header).expect("a header can be written");
        let mut hash = crc32fast::Hasher::new();
        let mut put = |bytes: &[u8]| {
            hash.update(bytes);
            out.write_all(bytes)
        };
        put(MAGIC)?;
        put(&(header.len() as u64).to_le_bytes())?;
        put(&header)?;
        let mut piece = Vec::with_capacity(1 << 16);
        for (_, array) in &self.arrays {
            for numbers in array.chunks(1 << 14) {
                piece.clear();
                piece.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                put(&piece)?;
            }
        }
        out.write_all(&hash.finalize().to_le_bytes())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, &'static str> {
        let (content, checksum) = bytes.split_last_chunk::<4>().ok_or("too short")?;
        let rest = content.strip_prefix(MAGIC).ok_or("not a checkpoint")?;
        if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
            return Err("its checksum is wrong");
        }
        let (length, rest) = rest.split_first_chunk::<8>().ok_or("too short")?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| "too long")?;
        let (header, mut numbers) = rest.split_at_checked(length).ok_or("its header is cut")?;
        let header: Header =
            serde_json::from_slice(header).map_err(|_| "its header is unreadable")?;
        let mut arrays = Vec::new();
        for (name, count) in header.arrays {
            let size = count.checked_mul(4).ok_or("an array is too long")?;
            let (array, rest) = numbers.split_at_checked(size).ok_or("an array is cut")?;
            let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
            arrays.push((name, array.as_chunks::<4>().0.iter().map(number).collect()));
            numbers = rest;
        }
        Ok(Self {
            config: header.config,
            progress: header.progress,
            arrays,
        })
    }
}

/// The checkpoints of a folder, oldest first.
fn list(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("");
        if name.starts_with("checkpoint-") && name.ends_with(".upwash") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(round: u64) -> Checkpoint {
        let progress = Progress {
            round,
            ..Progress::start(2)
        };
        let arrays = vec![
            ("models".into(), vec![1.5, -2.0, f32::MIN_POSITIVE]),
            ("empty".into(), vec![]),
        ];
        Checkpoint {
            config: "seed = 1\n".into(),
            progress,
            arrays,
        }
    }

    #[test]
    fn what_is_written_is_read_and_two_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        (1..=4).for_each(|round| drop(checkpoint(round).write(folder.path()).unwrap()));
        let (newest, damaged) = Checkpoint::newest(folder.path()).unwrap();
        assert_eq!(newest, Some(checkpoint(4)));
        assert!(damaged.is_empty());
        assert_eq!(list(folder.path()).unwrap().len(), KEPT);
        assert_eq!(
            Checkpoint::newest(tempfile::tempdir().unwrap().path())
                .unwrap()
                .0,
            None
        );
    }

    #[test]
    fn damage_is_recognised_wherever_it_is() {
        let mut bytes = Vec::new();
        checkpoint(3).write_to(&mut bytes).unwrap();
        assert_eq!(Checkpoint::from_bytes(&bytes), Ok(checkpoint(3)));
        for length in 0..bytes.len() {
            assert!(
                Checkpoint::from_bytes(&bytes[..length]).is_err(),
                "cut at {length}"
            );
        }
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x10;
            assert!(
                Checkpoint::from_bytes(&damaged).is_err(),
                "flipped at {place}"
            );
        }
    }

    #[test]
    fn the_one_before_a_damaged_one_is_used() {
        let folder = tempfile::tempdir().unwrap();
        checkpoint(1).write(folder.path()).unwrap();
        let second = checkpoint(2).write(folder.path()).unwrap();
        let bytes = std::fs::read(&second).unwrap();
        std::fs::write(&second, &bytes[..bytes.len() / 2]).unwrap();
        let (newest, damaged) = Checkpoint::newest(folder.path()).unwrap();
        assert_eq!(newest, Some(checkpoint(1)));
        assert_eq!(damaged.len(), 1);
        assert!(
            damaged[0]
                .to_string()
                .contains("checkpoint-000000002.upwash is damaged")
        );
    }
}
