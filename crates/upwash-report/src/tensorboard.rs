//! TensorBoard event files: checksummed records, each of which is a protocol buffer.

use crate::Run;
use crate::charts::Quantity;

/// The content of an event file for each worker, and of one for values that concern all workers, as (name, bytes).
pub fn tensorboard(run: &Run) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for worker in run.training_workers() {
        let mut file = Records::new();
        for epoch in &run.epochs {
            let loss = epoch.losses.get(worker).copied().flatten();
            let accuracy = epoch.accuracies.as_ref();
            let accuracy = accuracy.and_then(|all| all.get(worker).copied().flatten());
            let values = [("train/loss", loss), ("test/accuracy", accuracy)];
            file.epoch(epoch.epoch, epoch.seconds, &values);
        }
        files.push((format!("worker-{worker}"), file.bytes));
    }
    let mut file = Records::new();
    let seconds = if run.is_real_time { "all/seconds" } else { "all/simulated_seconds" };
    for epoch in &run.epochs {
        let part = |percent: f64| percent / 100.0;
        // With the tags of the workers, so that TensorBoard draws the means into the same charts.
        let values = [
            ("train/loss", Quantity::MeanLoss.value(run, epoch)),
            ("test/accuracy", Quantity::MeanAccuracy.value(run, epoch).map(part)),
            ("all/worst_accuracy", Quantity::SmallestAccuracy.value(run, epoch).map(part)),
            ("all/consensus_distance", epoch.consensus),
            ("all/gigabytes_sent", Some(epoch.bytes as f64 / 1e9)),
            (seconds, Some(epoch.seconds)),
        ];
        file.epoch(epoch.epoch, epoch.seconds, &values);
    }
    files.push(("all".into(), file.bytes));
    files
}

struct Records {
    bytes: Vec<u8>,
}

impl Records {
    fn new() -> Self {
        let mut records = Self { bytes: vec![] };
        // The third field is Event.file_version.
        let mut event = Vec::new();
        double(&mut event, 1, 0.0);
        bytes(&mut event, 3, b"brain.Event:2");
        records.push(&event);
        records
    }

    /// Adds Event { wall_time = 1, step = 2, summary = 5 { value = 1 { tag = 1, simple_value = 2 } } }.
    fn epoch(&mut self, step: u64, seconds: f64, values: &[(&str, Option<f64>)]) {
        let mut summary = Vec::new();
        for (tag, number) in values {
            let Some(number) = number else {
                continue;
            };
            let mut value = Vec::new();
            bytes(&mut value, 1, tag.as_bytes());
            float(&mut value, 2, *number as f32);
            bytes(&mut summary, 1, &value);
        }
        let mut event = Vec::new();
        double(&mut event, 1, seconds);
        key(&mut event, 2, 0);
        varint(&mut event, step);
        bytes(&mut event, 5, &summary);
        self.push(&event);
    }

    /// Appends a record: length and content, each followed by its masked CRC-32C.
    fn push(&mut self, event: &[u8]) {
        let length = (event.len() as u64).to_le_bytes();
        self.bytes.extend(length);
        self.bytes.extend(masked(&length).to_le_bytes());
        self.bytes.extend(event);
        self.bytes.extend(masked(event).to_le_bytes());
    }
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the CRC-32C (Castagnoli) of `bytes`. The files are small: bit by bit is fast enough.
fn crc32c(bytes: &[u8]) -> u32 {
    let shift = |sum: u32, _| sum >> 1 ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), shift))
}

fn varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn key(to: &mut Vec<u8>, field: u64, kind: u64) {
    varint(to, field << 3 | kind);
}

fn double(to: &mut Vec<u8>, field: u64, number: f64) {
    key(to, field, 1);
    to.extend(number.to_le_bytes());
}

fn float(to: &mut Vec<u8>, field: u64, number: f32) {
    key(to, field, 5);
    to.extend(number.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u64, content: &[u8]) {
    key(to, field, 2);
    varint(to, content.len() as u64);
    to.extend(content);
}

#[cfg(test)]
mod tests {
    /// The check value of the catalogues of checksums, and one of RFC 3720 (32 bytes of zeros).
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(super::crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
