//! Checkpoints: everything that a run needs to resume as if it had never stopped.
//!
//! A checkpoint is written to a temporary file, synced and renamed, so that it is either complete or absent. It ends
//! with a checksum of everything before it. The previous checkpoint is kept: if a file was truncated or damaged, this
//! is detected, and the previous one is used.
//!
//! Layout, with little-endian numbers: `UPWASH1\n`, the length of the header (u64), the header (JSON), the values of
//! the arrays (f32) one after the other, the CRC-32 of everything so far (u32).

use super::Progress;
use crate::model::State;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"UPWASH1\n";
/// The number of checkpoints that are kept.
const MAX_CHECKPOINTS: usize = 2;

/// A checkpoint of a run, taken between two rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The resolved configuration to which the checkpoint belongs, as TOML.
    pub config: String,
    /// The progress of the run.
    pub progress: Progress,
    /// The engine's state, by name.
    pub arrays: State,
    /// The first worker that has rows in the arrays: 0, unless other processes hold other workers.
    pub first: usize,
    /// The number of workers that have rows in the arrays.
    pub count: usize,
    /// The time that the run has taken so far, in seconds.
    pub wall_seconds: f64,
}

#[derive(Serialize, Deserialize)]
struct Header {
    config: String,
    progress: Progress,
    arrays: Vec<(String, usize)>,
    #[serde(default)]
    first: usize,
    /// All workers, if absent.
    #[serde(default)]
    count: Option<usize>,
    #[serde(default)]
    wall_seconds: f64,
}

/// Why a checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Writing or listing checkpoints failed.
    #[error("checkpoint {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file cannot be read now, and may be intact.
    #[error(
        "cannot read checkpoint {} ({source}): make it readable, or move it away to continue without it",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is truncated or damaged.
    #[error("checkpoint {} is damaged ({what})", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage that was detected.
        what: &'static str,
    },
}

impl CheckpointError {
    /// The file or folder that could not be used.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. } | Self::Unreadable { path, .. } | Self::Damaged { path, .. } => path,
        }
    }
}

impl Checkpoint {
    /// Writes `checkpoint-ROUND.upwash` into `folder` and removes all others but the one before it. Those of later rounds
    /// are of a future that the run has abandoned when it went back to an earlier round: it must not resume from them.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, CheckpointError> {
        let path = self.write_as(&folder.join(Self::file_name(self.progress.round)))?;
        let failed = |source| CheckpointError::Io { path: path.clone(), source };
        let all = list(folder).map_err(failed)?;
        let (kept, abandoned) = all.split_at(all.partition_point(|other| *other <= path));
        for other in abandoned.iter().chain(kept.iter().rev().skip(MAX_CHECKPOINTS)) {
            std::fs::remove_file(other).map_err(failed)?;
        }
        Ok(path)
    }

    /// The file name of a checkpoint before this round.
    pub(super) fn file_name(round: u64) -> String {
        format!("checkpoint-{round:09}.upwash")
    }

    /// Writes the checkpoint to `path`. The file is either complete or absent.
    pub fn write_as(&self, path: &Path) -> Result<PathBuf, CheckpointError> {
        let failed = |source| CheckpointError::Io { path: path.to_owned(), source };
        crate::files::replace_by(path, |file| self.write_to(file)).map_err(failed).map(|()| path.to_owned())
    }

    /// The newest intact checkpoint in `folder`, if any, and the errors of newer ones.
    pub fn newest(folder: &Path) -> Result<(Option<Self>, Vec<CheckpointError>), CheckpointError> {
        let failed = |source| CheckpointError::Io { path: folder.to_owned(), source };
        let mut damaged = Vec::new();
        for path in list(folder).map_err(failed)?.into_iter().rev() {
            match Self::read(&path) {
                Ok(Some(checkpoint)) => return Ok((Some(checkpoint), damaged)),
                Ok(None) => {}
                Err(error) => damaged.push(error),
            }
        }
        Ok((None, damaged))
    }

    /// The newest checkpoint of a run in several processes that covers all workers. It is joined from the parts in
    /// `folders`, however many processes wrote them, and contains the rows of `own`.
    pub fn newest_of(
        folders: &[PathBuf],
        own: std::ops::Range<usize>,
    ) -> Result<(Option<Self>, Vec<CheckpointError>), CheckpointError> {
        let mut damaged = Vec::new();
        let mut names = std::collections::BTreeMap::<_, Vec<PathBuf>>::new();
        for folder in folders {
            let failed = |source| CheckpointError::Io { path: folder.clone(), source };
            for path in list(folder).map_err(failed)? {
                let name = path.file_name().map(std::ffi::OsStr::to_owned);
                names.entry(name).or_default().push(path);
            }
        }
        for paths in names.into_values().rev() {
            let mut parts = Vec::new();
            for path in paths {
                match Self::read(&path) {
                    Ok(part) => parts.extend(part),
                    Err(error) => damaged.push(error),
                }
            }
            if let Some(joined) = Self::join(parts, own.clone()) {
                return Ok((Some(joined), damaged));
            }
        }
        Ok((None, damaged))
    }

    /// Joins several parts, and keeps the rows of `own`. Returns `None` if the parts do not cover all workers.
    fn join(mut parts: Vec<Self>, own: std::ops::Range<usize>) -> Option<Self> {
        parts.sort_by_key(|part| (part.first, part.count));
        let mut joined = parts.first()?.clone();
        let workers = joined.progress.clocks.len();
        let mut next = 0;
        let mut sent = super::RunCost::default();
        joined.arrays.iter_mut().for_each(|(_, array)| array.clear());
        for part in &parts {
            // Workers that are in two parts have the same rows in both.
            let rows = part.first.max(next)..part.first + part.count;
            if part.first > next || part.config != joined.config {
                return None;
            }
            if rows.is_empty() {
                continue;
            }
            next = rows.end;
            joined.wall_seconds = joined.wall_seconds.max(part.wall_seconds);
            sent = sent.with(part.progress.sent);
            let Progress { clocks, scalars, losses, epoch_scores, .. } = &part.progress;
            for worker in rows.clone() {
                joined.progress.clocks[worker] = *clocks.get(worker)?;
                joined.progress.scalars[worker] = *scalars.get(worker)?;
                joined.progress.losses[worker] = *losses.get(worker)?;
                joined.progress.epoch_scores[worker] = *epoch_scores.get(worker)?;
            }
            for ((_, all), (_, array)) in joined.arrays.iter_mut().zip(&part.arrays) {
                let width = array.len() / part.count.max(1);
                let from = rows.start.max(own.start).min(rows.end);
                let to = rows.end.min(own.end).max(from);
                all.extend(&array[(from - part.first) * width..(to - part.first) * width]);
            }
        }
        if next != workers {
            return None;
        }
        // The total cost must count only once, so the first process takes it over.
        joined.progress.sent = match own.start {
            0 => sent,
            _ => super::RunCost { simulated_seconds: sent.simulated_seconds, ..Default::default() },
        };
        (joined.first, joined.count) = (own.start, own.len());
        Some(joined)
    }

    /// Writes the file chunk by chunk, because it can be as large as all models together.
    fn write_to(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let header = Header {
            config: self.config.clone(),
            progress: self.progress.clone(),
            first: self.first,
            count: Some(self.count),
            wall_seconds: self.wall_seconds,
            arrays: self.arrays.iter().map(|(name, array)| (name.clone(), array.len())).collect(),
        };
        let header = serde_json::to_vec(&header).expect("a header can be serialized");
        let mut hash = crc32fast::Hasher::new();
        let mut append = |bytes: &[u8]| {
            hash.update(bytes);
            out.write_all(bytes)
        };
        append(MAGIC)?;
        append(&(header.len() as u64).to_le_bytes())?;
        append(&header)?;
        let mut chunk = Vec::with_capacity(1 << 16);
        for (_, array) in &self.arrays {
            for values in array.chunks(1 << 14) {
                chunk.clear();
                chunk.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                append(&chunk)?;
            }
        }
        out.write_all(&hash.finalize().to_le_bytes())
    }

    /// Reads a checkpoint; `None` if another process has removed it. A file of another kind is not loaded, however long
    /// it is.
    fn read(path: &Path) -> Result<Option<Self>, CheckpointError> {
        let failed = |source| CheckpointError::Unreadable { path: path.to_owned(), source };
        let damaged = |what| CheckpointError::Damaged { path: path.to_owned(), what };
        let mut file = match crate::files::open_regular(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(damaged("not a regular file")),
            file => file.map_err(failed)?,
        };
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(failed)?;
        if bytes != MAGIC {
            return Err(damaged("not a checkpoint"));
        }
        let length = file.metadata().map_err(failed)?.len();
        let rest = usize::try_from(length).map_err(|_| damaged("too long"))?.saturating_sub(bytes.len());
        bytes.try_reserve_exact(rest).map_err(|_| damaged("longer than the memory"))?;
        file.read_to_end(&mut bytes).map_err(failed)?;
        Self::from_bytes(&bytes).map(Some).map_err(damaged)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, &'static str> {
        let (content, checksum) = bytes.split_last_chunk::<4>().ok_or("too short")?;
        let rest = content.strip_prefix(MAGIC).ok_or("not a checkpoint")?;
        if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
            return Err("checksum mismatch");
        }
        let (length, rest) = rest.split_first_chunk::<8>().ok_or("too short")?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| "header too long")?;
        let (header, mut values) = rest.split_at_checked(length).ok_or("truncated header")?;
        let header: Header = serde_json::from_slice(header).map_err(|_| "invalid header")?;
        let mut arrays = Vec::new();
        for (name, count) in header.arrays {
            let size = count.checked_mul(4).ok_or("array too long")?;
            let (array, rest) = values.split_at_checked(size).ok_or("truncated array")?;
            let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
            arrays.push((name, array.as_chunks::<4>().0.iter().map(value).collect()));
            values = rest;
        }
        Ok(Self {
            config: header.config,
            first: header.first,
            count: header.count.unwrap_or(header.progress.clocks.len()),
            wall_seconds: header.wall_seconds,
            progress: header.progress,
            arrays,
        })
    }
}

/// The checkpoints in a folder, oldest first.
fn list(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
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
        let progress = Progress { round, ..Progress::start(2) };
        let arrays = vec![("models".into(), vec![1.5, -2.0, f32::MIN_POSITIVE]), ("empty".into(), vec![])];
        Checkpoint { config: "seed = 1\n".into(), progress, arrays, first: 0, count: 2, wall_seconds: 1.5 }
    }

    /// Checkpoints of three processes can be read by two processes, and by one.
    #[test]
    fn parts_are_joined_for_any_number_of_processes() {
        let root = tempfile::tempdir().unwrap();
        let folders: Vec<PathBuf> = (0..3).map(|i| root.path().join(i.to_string())).collect();
        let part = |first: usize, count: usize, round: u64| {
            let rows = (first..first + count).flat_map(|w| [w as f32, 10.0 + w as f32]);
            let mut progress = Progress::start(5);
            progress.round = round;
            progress.sent.bytes_sent = 7;
            (first..first + count).for_each(|w| progress.scalars[w] = w as f64);
            Checkpoint {
                config: "seed = 1\n".into(),
                progress,
                arrays: vec![("models".into(), rows.collect())],
                first,
                count,
                wall_seconds: first as f64,
            }
        };
        for (folder, (first, count)) in folders.iter().zip([(0, 2), (2, 2), (4, 1)]) {
            std::fs::create_dir(folder).unwrap();
            part(first, count, 10).write(folder).unwrap();
        }
        // A newer checkpoint that does not cover all workers.
        part(0, 2, 20).write(&folders[0]).unwrap();
        for own in [0..5, 0..3, 3..5] {
            let (found, damaged) = Checkpoint::newest_of(&folders, own.clone()).unwrap();
            let found = found.unwrap();
            assert!(damaged.is_empty());
            assert_eq!(found.progress.round, 10);
            assert_eq!(found.arrays, part(own.start, own.len(), 10).arrays);
            assert_eq!(found.progress.scalars, [0.0, 1.0, 2.0, 3.0, 4.0]);
            assert_eq!(found.wall_seconds, 4.0);
            assert_eq!(found.progress.sent.bytes_sent, if own.start == 0 { 21 } else { 0 });
        }
        assert!(Checkpoint::newest_of(&folders[..2], 0..5).unwrap().0.is_none());
    }

    #[test]
    fn checkpoint_is_read_back_and_newest_two_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        (1..=4).for_each(|round| drop(checkpoint(round).write(folder.path()).unwrap()));
        let (newest, damaged) = Checkpoint::newest(folder.path()).unwrap();
        assert!(newest == Some(checkpoint(4)) && damaged.is_empty());
        assert_eq!(list(folder.path()).unwrap().len(), MAX_CHECKPOINTS);
        assert_eq!(Checkpoint::newest(tempfile::tempdir().unwrap().path()).unwrap().0, None);
    }

    #[test]
    fn checkpoints_of_an_abandoned_future_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for (round, kept) in [(475, 1), (500, 2), (150, 1), (175, 2)] {
            checkpoint(round).write(folder.path()).unwrap();
            assert_eq!(list(folder.path()).unwrap().len(), kept);
            assert_eq!(Checkpoint::newest(folder.path()).unwrap().0, Some(checkpoint(round)));
        }
    }

    #[test]
    fn damage_is_detected_at_any_position() {
        let mut bytes = Vec::new();
        checkpoint(3).write_to(&mut bytes).unwrap();
        assert_eq!(Checkpoint::from_bytes(&bytes), Ok(checkpoint(3)));
        for length in 0..bytes.len() {
            assert!(Checkpoint::from_bytes(&bytes[..length]).is_err(), "cut at {length}");
        }
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            assert!(Checkpoint::from_bytes(&damaged).is_err(), "flipped at {index}");
        }
    }

    #[test]
    fn previous_checkpoint_is_used_if_newest_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        checkpoint(1).write(folder.path()).unwrap();
        let second = checkpoint(2).write(folder.path()).unwrap();
        let bytes = std::fs::read(&second).unwrap();
        std::fs::write(&second, &bytes[..bytes.len() / 2]).unwrap();
        let (newest, damaged) = Checkpoint::newest(folder.path()).unwrap();
        assert_eq!(newest, Some(checkpoint(1)));
        assert_eq!(damaged.len(), 1);
        assert!(damaged[0].to_string().contains("checkpoint-000000002.upwash is damaged"));
    }
}
