//! The wire format of messages: a header of fixed size, followed by values.

use super::Buffer;
use crate::algorithm::WorkerStats;
use crate::ids::WorkerId;

/// The size of a header in bytes.
pub const HEADER: usize = 64;
/// The version of the layout of headers.
const VERSION: u8 = 1;

/// What a worker sends in an exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The sender.
    pub from: WorkerId,
    /// The round.
    pub round: u64,
    /// The number of the exchange within the round.
    pub exchange: u32,
    /// The sender's stats.
    pub stats: WorkerStats,
    /// Whether the sender has all links up that it should have in this round.
    pub whole: bool,
    /// Whether a public copy is sent in full, and not as a difference from what was sent before.
    pub fresh: bool,
    /// The round in which all workers [restart](crate::algorithm::Restart), because some were lost or have returned.
    pub restart: Option<u64>,
    /// Vectors, one after the other, in their [encodings](super::Encoding).
    pub values: Buffer,
}

/// Why a message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes are not a header.
    #[error("invalid message header")]
    Header,
    /// The sender runs another version of this program.
    #[error("unsupported message format version {0}: run the same version of upwash everywhere")]
    Version(u8),
    /// The message is too short or too long.
    #[error("{found} values instead of {expected}: check that all processes use the same configuration")]
    Length {
        /// The expected number of values.
        expected: usize,
        /// The number of values in the message.
        found: usize,
    },
    /// The message is not the expected one.
    #[error("unexpected message of round {round}, exchange {exchange}")]
    OutOfTurn {
        /// The round of the message.
        round: u64,
        /// The exchange of the message.
        exchange: u32,
    },
    /// The message was altered on the way.
    #[error("checksum mismatch: the message was altered on the way")]
    Checksum,
    /// Values of the message are not finite.
    #[error("the model is not finite")]
    NotFinite,
}

impl Message {
    /// The header: fields at fixed offsets, little-endian.
    pub fn header(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut offset = 0;
        let mut put = |part: &[u8]| {
            bytes[offset..offset + part.len()].copy_from_slice(part);
            offset += part.len();
        };
        put(b"UL");
        put(&[VERSION, u8::from(self.whole) | u8::from(self.fresh) << 1]);
        put(&(self.from.0 as u32).to_le_bytes());
        put(&self.round.to_le_bytes());
        put(&(self.values.len() as u64).to_le_bytes());
        put(&self.exchange.to_le_bytes());
        put(&(self.stats.degree as u32).to_le_bytes());
        // An unknown loss is NaN.
        put(&self.stats.loss.unwrap_or(f64::NAN).to_le_bytes());
        put(&self.stats.scalar.to_le_bytes());
        // Round 0 needs no restart.
        put(&self.restart.unwrap_or(0).to_le_bytes());
        bytes
    }

    /// Parses a header: the message without its values, and the number of values that follow.
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
        let from = WorkerId(u32::from_le_bytes(fixed(take(4))) as usize);
        let round = u64::from_le_bytes(fixed(take(8)));
        let length = u64::from_le_bytes(fixed(take(8)));
        let exchange = u32::from_le_bytes(fixed(take(4)));
        let degree = u32::from_le_bytes(fixed(take(4))) as usize;
        let loss = f64::from_le_bytes(fixed(take(8)));
        let scalar = f64::from_le_bytes(fixed(take(8)));
        let restart = u64::from_le_bytes(fixed(take(8)));
        if flags > 3 || take(8) != [0; 8] {
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
            restart: (restart > 0).then_some(restart),
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
    fn header_is_read_back() {
        for loss in [None, Some(0.25)] {
            let message = Message {
                from: WorkerId(3),
                round: 1 << 40,
                exchange: 2,
                stats: WorkerStats { loss, degree: 5, scalar: 0.5 },
                whole: true,
                fresh: false,
                restart: Some(1 << 33),
                values: vec![1.0, 2.0].into(),
            };
            let (read, length) = Message::from_header(&message.header()).unwrap();
            assert_eq!(length, 2);
            let values = message.values.clone();
            assert_eq!(Message { values, ..read }, message);
        }
    }

    #[test]
    fn invalid_headers_are_rejected() {
        assert_eq!(Message::from_header(&[0; HEADER]), Err(WireError::Header));
        let mut other = [0; HEADER];
        other[..3].copy_from_slice(b"UL\x09");
        assert_eq!(Message::from_header(&other), Err(WireError::Version(9)));
    }
}
