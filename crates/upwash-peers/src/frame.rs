//! What goes over a connection: frames, each with its kind, its length and a checksum. Nothing is
//! allocated before the length has been found to be allowed.

use upwash::engine::State;
use upwash::transport::{HEADER, Message, WireError};

/// Bytes before a frame's content.
pub const FRAME_HEADER: usize = 16;
/// Changes when peers of different versions would not understand each other.
pub const VERSION: u16 = 1;
/// The longest content of anything but messages and models.
pub const SMALL: usize = 4096;
/// The longest answer to who asks how things are.
const ANSWER: usize = 1 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Who calls, and in which run it is.
    Hello = 1,
    /// From which round on messages can be hoped for.
    Offer = 2,
    /// Still there, and in this round.
    Beat = 3,
    /// A [`Message`].
    Message = 4,
    /// Please send your model.
    Fetch = 5,
    /// A model with all that belongs to it.
    Model = 6,
    /// How are things?
    Ask = 7,
    /// Like this (JSON).
    Answer = 8,
    /// The run is over for me.
    Goodbye = 9,
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Not a frame at all.
    #[error("garbage instead of a frame")]
    Garbage,
    /// Longer than anything of its kind.
    #[error("a frame of {length} bytes, where {most} are the most")]
    TooLong {
        /// What it says.
        length: u64,
        /// What is allowed.
        most: u64,
    },
    /// Changed on its way.
    #[error("a frame whose checksum is wrong")]
    Checksum,
    /// A message that is none.
    #[error("{0}")]
    Message(#[from] WireError),
}

/// How much may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Buffer in a message.
    pub message: usize,
    /// Bytes of a model with all that belongs to it.
    pub model: usize,
}

impl Limits {
    fn most(&self, kind: Kind) -> u64 {
        let most = match kind {
            Kind::Message => HEADER + 4 * self.message,
            Kind::Model => self.model,
            Kind::Answer => ANSWER,
            _ => SMALL,
        };
        most as u64
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it is.
    pub kind: Kind,
    /// Bytes of content.
    pub length: u64,
    /// CRC-32 of the content.
    pub checksum: u32,
}

impl FrameHeader {
    /// Of some content, in pieces.
    pub fn of(kind: Kind, content: &[&[u8]]) -> Self {
        let mut hash = crc32fast::Hasher::new();
        content.iter().for_each(|piece| hash.update(piece));
        Self { kind, length: content.iter().map(|piece| piece.len() as u64).sum(), checksum: hash.finalize() }
    }

    /// As bytes.
    pub fn to_bytes(self) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[..3].copy_from_slice(b"UF1");
        bytes[3] = self.kind as u8;
        bytes[4..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// From bytes, if such a frame may come.
    pub fn parse(bytes: &[u8; FRAME_HEADER], limits: &Limits) -> Result<Self, FrameError> {
        const KINDS: [Kind; 9] = [
            Kind::Hello,
            Kind::Offer,
            Kind::Beat,
            Kind::Message,
            Kind::Fetch,
            Kind::Model,
            Kind::Ask,
            Kind::Answer,
            Kind::Goodbye,
        ];
        let kind = KINDS.into_iter().find(|kind| *kind as u8 == bytes[3]);
        let (Some(kind), b"UF1") = (kind, &bytes[..3]) else {
            return Err(FrameError::Garbage);
        };
        let length = u64::from_le_bytes(array(&bytes[4..12]));
        let checksum = u32::from_le_bytes(array(&bytes[12..]));
        let most = limits.most(kind);
        if length > most {
            return Err(FrameError::TooLong { length, most });
        }
        Ok(Self { kind, length, checksum })
    }

    /// Whether this is its content.
    pub fn check(&self, content: &[u8]) -> Result<(), FrameError> {
        // Nobody guesses checksums; a fuzzer shall look behind them.
        match crc32fast::hash(content) == self.checksum || cfg!(fuzzing) {
            true => Ok(()),
            false => Err(FrameError::Checksum),
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

/// The first thing that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version of this protocol.
    pub version: u16,
    /// Who speaks.
    pub worker: u32,
    /// A number that is the same for all who run the same configuration on the same data.
    pub run: u64,
}

impl Hello {
    /// As bytes.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.version.to_le_bytes().to_vec();
        bytes.extend(self.worker.to_le_bytes());
        bytes.extend(self.run.to_le_bytes());
        bytes
    }

    /// From bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        if bytes.len() != 14 {
            return Err(FrameError::Garbage);
        }
        Ok(Self {
            version: u16::from_le_bytes(array(&bytes[..2])),
            worker: u32::from_le_bytes(array(&bytes[2..6])),
            run: u64::from_le_bytes(array(&bytes[6..])),
        })
    }
}

/// The content of an offer or a beat: a round.
pub fn parse_round(bytes: &[u8]) -> Result<u64, FrameError> {
    match bytes.len() {
        8 => Ok(u64::from_le_bytes(array(bytes))),
        _ => Err(FrameError::Garbage),
    }
}

/// A message out of a frame's content: its header here, its numbers in place.
pub fn parse_message(header: &[u8; HEADER], numbers: usize) -> Result<Message, FrameError> {
    let (message, expected) = Message::from_header(header)?;
    if expected != numbers as u64 {
        let (expected, found) = (usize::try_from(expected).unwrap_or(usize::MAX), numbers);
        return Err(WireError::Length { expected, found }.into());
    }
    Ok(message)
}

/// A model with the round that it is of.
pub fn model_to_bytes(round: u64, state: &State) -> Vec<u8> {
    let mut bytes = round.to_le_bytes().to_vec();
    bytes.push(state.len() as u8);
    for (name, array) in state {
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.extend((array.len() as u64).to_le_bytes());
        bytes.extend(array.iter().flat_map(|number| number.to_le_bytes()));
    }
    bytes
}

/// From bytes; what is not finite is refused.
pub fn parse_model(bytes: &[u8]) -> Result<(u64, State), FrameError> {
    let mut rest = bytes;
    let mut take = |count: usize| {
        let (part, after) = rest.split_at_checked(count).ok_or(FrameError::Garbage)?;
        rest = after;
        Ok::<&[u8], FrameError>(part)
    };
    let round = u64::from_le_bytes(array(take(8)?));
    let count = take(1)?[0];
    let mut state = State::new();
    for _ in 0..count {
        let length = take(1)?[0];
        let name = String::from_utf8(take(length.into())?.to_vec());
        let numbers = u64::from_le_bytes(array(take(8)?));
        let size = numbers.checked_mul(4).and_then(|size| usize::try_from(size).ok());
        let numbers = take(size.ok_or(FrameError::Garbage)?)?;
        let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        let numbers: Vec<f32> = numbers.as_chunks::<4>().0.iter().map(number).collect();
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(WireError::NotFinite.into());
        }
        state.push((name.map_err(|_| FrameError::Garbage)?, numbers));
    }
    match rest.is_empty() {
        true => Ok((round, state)),
        false => Err(FrameError::Garbage),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIMITS: Limits = Limits { message: 100, model: 1000 };

    #[test]
    fn what_is_written_is_read() {
        let header = FrameHeader::of(Kind::Message, &[b"ab", b"c"]);
        assert_eq!(header.length, 3);
        assert_eq!(FrameHeader::parse(&header.to_bytes(), &LIMITS), Ok(header));
        assert_eq!(header.check(b"abc"), Ok(()));
        assert_eq!(header.check(b"abd"), Err(FrameError::Checksum));
        let hello = Hello { version: VERSION, worker: 3, run: 99 };
        assert_eq!(Hello::parse(&hello.to_bytes()), Ok(hello));
        let state = vec![("models".to_string(), vec![1.0, 2.0]), ("empty".into(), vec![])];
        let bytes = model_to_bytes(7, &state);
        assert_eq!(parse_model(&bytes), Ok((7, state)));
        for length in 0..bytes.len() {
            assert!(parse_model(&bytes[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_comes() {
        for (kind, most) in [(Kind::Message, 64 + 400), (Kind::Model, 1000), (Kind::Beat, SMALL as u64)] {
            for (length, right) in [(most, true), (most + 1, false), (1 << 63, false)] {
                let checksum = 0;
                let header = FrameHeader { kind, length, checksum };
                let read = FrameHeader::parse(&header.to_bytes(), &LIMITS);
                assert_eq!(read.is_ok(), right, "{kind:?} {length}");
            }
        }
        assert_eq!(FrameHeader::parse(b"GET / HTTP/1.1\r\n", &LIMITS), Err(FrameError::Garbage));
    }

    #[test]
    fn a_model_that_is_not_finite_is_refused() {
        let state = vec![("models".to_string(), vec![1.0, f32::NAN])];
        let bytes = model_to_bytes(0, &state);
        assert_eq!(parse_model(&bytes), Err(WireError::NotFinite.into()));
    }
}
