//! What one worker sends others in an exchange: a header of fixed size, and numbers.

use super::Buffer;
use crate::algorithm::WorkerStats;

/// Bytes of a header.
pub const HEADER: usize = 64;
/// Changes with the layout of headers.
const VERSION: u8 = 1;

/// What a worker sends in an exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who.
    pub from: usize,
    /// When.
    pub round: u64,
    /// Which of the round's exchanges, from 0.
    pub exchange: u32,
    /// What it says of itself.
    pub stats: WorkerStats,
    /// Whether it holds all links that it should have in this round.
    pub whole: bool,
    /// Whether a public copy comes whole, and not as a difference from what was sent before.
    pub fresh: bool,
    /// Vectors, one after the other, as they were [coded](super::Encoding).
    pub values: Buffer,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Not a header.
    #[error("invalid message header")]
    Header,
    /// Another version of this program.
    #[error("message format version {0}: run the same version of upwash everywhere")]
    Version(u8),
    /// Cut short, or longer than it should be.
    #[error("{found} numbers instead of {expected}: is its configuration the same?")]
    Length {
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Something other than was waited for.
    #[error("unexpected message of round {round}, exchange {exchange}")]
    OutOfTurn {
        /// Its round.
        round: u64,
        /// Its exchange.
        exchange: u32,
    },
    /// Changed on its way.
    #[error("checksum mismatch: the message was altered on its way")]
    Checksum,
    /// Buffer that are none.
    #[error("the model is not finite")]
    NotFinite,
}

impl Message {
    /// The header: fixed places, little-endian.
    pub fn header(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(b"UL");
        put(&[VERSION, u8::from(self.whole) | u8::from(self.fresh) << 1]);
        put(&(self.from as u32).to_le_bytes());
        put(&self.round.to_le_bytes());
        put(&(self.values.len() as u64).to_le_bytes());
        put(&self.exchange.to_le_bytes());
        put(&(self.stats.degree as u32).to_le_bytes());
        // A loss that is not known is no number.
        put(&self.stats.loss.unwrap_or(f64::NAN).to_le_bytes());
        put(&self.stats.scalar.to_le_bytes());
        bytes
    }

    /// A message without its numbers, and how many those will be.
    pub fn from_header(bytes: &[u8; HEADER]) -> Result<(Self, u64), WireError> {
        let mut rest = &bytes[..];
        let mut take = |count: usize| {
            let (part, after) = rest.split_at(count);
            rest = after;
            part
        };
        if take(2) != b"UL" {
            return Err(WireError::Header);
        }
        let [version, flags] = fixed(take(2));
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let from = u32::from_le_bytes(fixed(take(4))) as usize;
        let round = u64::from_le_bytes(fixed(take(8)));
        let length = u64::from_le_bytes(fixed(take(8)));
        let exchange = u32::from_le_bytes(fixed(take(4)));
        let degree = u32::from_le_bytes(fixed(take(4))) as usize;
        let loss = f64::from_le_bytes(fixed(take(8)));
        let scalar = f64::from_le_bytes(fixed(take(8)));
        if flags > 3 || take(16) != [0; 16] {
            return Err(WireError::Header);
        }
        let stats = WorkerStats { loss: (!loss.is_nan()).then_some(loss), degree, scalar };
        let message = Self {
            from,
            round,
            exchange,
            stats,
            whole: flags & 1 != 0,
            fresh: flags & 2 != 0,
            values: Buffer::default(),
        };
        Ok((message, length))
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for loss in [None, Some(0.25)] {
            let message = Message {
                from: 3,
                round: 1 << 40,
                exchange: 2,
                stats: WorkerStats { loss, degree: 5, scalar: 0.5 },
                whole: true,
                fresh: false,
                values: vec![1.0, 2.0].into(),
            };
            let (read, length) = Message::from_header(&message.header()).unwrap();
            assert_eq!(length, 2);
            let numbers = message.values.clone();
            assert_eq!(Message { values: numbers, ..read }, message);
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        assert_eq!(Message::from_header(&[0; HEADER]), Err(WireError::Header));
        let mut other = [0; HEADER];
        other[..3].copy_from_slice(b"UL\x09");
        assert_eq!(Message::from_header(&other), Err(WireError::Version(9)));
    }
}
