//! The file of events: buffered writes that survive a full disk, and truncation when a run is resumed.

use crate::files::MAX_TEXT_BYTES;
use crate::run::Event;
use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

/// How long an event may stay in the buffer. A reader may be watching the run.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// How many bytes of events wait for a full disk.
const MAX_PENDING: usize = 64 << 20;

/// Appends events to a file. Unlike a `BufWriter`, it keeps what a full disk did not take, to the byte.
pub(super) struct EventWriter {
    file: File,
    pending: Vec<u8>,
    flushed: Instant,
}

impl EventWriter {
    pub(super) fn new(file: File) -> Self {
        Self { file, pending: Vec::new(), flushed: Instant::now() }
    }

    /// Appends an event. If it fails, the event is still pending, unless too much is.
    pub(super) fn append(&mut self, event: &Event) -> Result<()> {
        if self.pending.len() > MAX_PENDING {
            self.flush().map_err(|error| {
                // No longer transient: the next event would be lost.
                Error::other(format!("{error}, and {} MB of events are waiting", MAX_PENDING >> 20))
            })?;
        }
        serde_json::to_writer(&mut self.pending, event)?;
        self.pending.push(b'\n');
        if !matches!(event, Event::Round { .. }) || self.flushed.elapsed() > FLUSH_INTERVAL {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the pending events. If that fails, what was not written stays pending.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        let mut written = 0;
        let mut result = Ok(());
        while written < self.pending.len() && result.is_ok() {
            match self.file.write(&self.pending[written..]) {
                Ok(0) => result = Err(ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        self.pending.drain(..written);
        result
    }
}

impl Drop for EventWriter {
    /// A run that fails has not written its last rounds yet, and they may say why it fails.
    fn drop(&mut self) {
        // Where the disk is full, the error of the run has said so.
        let _ = self.flush();
    }
}

/// Removes the events after a checkpoint before `round`, because the resumed run reports them again.
pub(super) fn truncate(events: &mut File, round: u64, rounds_per_epoch: u64) -> Result<()> {
    let is_kept = |line: &[u8]| match serde_json::from_slice(line) {
        Ok(Event::Round { round: index, .. }) => index < round,
        Ok(Event::Epoch { epoch, .. }) => epoch.saturating_mul(rounds_per_epoch) <= round,
        Ok(Event::Peer { round: next, .. } | Event::Control { round: next, .. }) => next <= round,
        Ok(Event::Started { .. } | Event::Graph { .. } | Event::Warning { .. }) => true,
        Ok(Event::Ended { .. } | Event::Unknown) | Err(_) => false,
    };
    let (mut kept, mut line) = (0, Vec::new());
    let mut reader = BufReader::new(&mut *events);
    loop {
        line.clear();
        // A line that is longer than any event is not one, and ends the search.
        let length = reader.by_ref().take(MAX_TEXT_BYTES).read_until(b'\n', &mut line)?;
        if length == 0 || !is_kept(&line) {
            break;
        }
        kept += length as u64;
    }
    events.set_len(kept)?;
    events.seek(SeekFrom::End(0))?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `/dev/full` takes nothing, like a full disk.
    #[cfg(target_os = "linux")]
    #[test]
    fn events_wait_for_a_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut writer = EventWriter::new(full);
        for message in ["one", "two"] {
            let error = writer.append(&Event::Warning { message: message.into() }).unwrap_err();
            assert!(crate::files::is_transient(&error), "{error}");
        }
        writer.file = File::create(&path).unwrap();
        writer.append(&Event::Warning { message: "three".into() }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let messages = text.lines().map(|line| serde_json::from_str::<Event>(line).unwrap());
        let expected = ["one", "two", "three"].map(|message| Event::Warning { message: message.into() });
        assert!(messages.eq(expected), "{text}");
    }
}
