//! Frames: the units that peers send over a connection. Each frame has a kind, a length and a checksum. The parser
//! checks the length against the limit of its kind before it allocates anything.

use upwash::engine::State;
use upwash::transport::{HEADER, Message, WireError};

/// Bytes of a frame header.
pub const FRAME_HEADER: usize = 16;
/// Version of the protocol. Peers with different versions refuse each other.
pub const VERSION: u16 = 3;
/// Longest content, in bytes, of a control frame: any frame but a message, a model or a status.
pub const MAX_CONTROL_BYTES: usize = 4096;
/// Longest content, in bytes, of a heartbeat, which lists workers.
const MAX_HEARTBEAT_BYTES: usize = 1 << 16;
/// Longest content, in bytes, of a status frame.
const MAX_STATUS_BYTES: usize = 1 << 20;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// First frame in each direction: the sender and its run ([`Hello`]).
    Hello = 1,
    /// The first round in which the sender can use this link.
    Offer = 2,
    /// The sender is alive ([`View`]).
    Heartbeat = 3,
    /// A [`Message`].
    Message = 4,
    /// Asks the receiver for its model.
    ModelRequest = 5,
    /// A model with its optimizer state, statistics and state vectors.
    Model = 6,
    /// Asks the receiver for its status.
    StatusRequest = 7,
    /// A status, as JSON.
    Status = 8,
    /// The sender has finished its run.
    Goodbye = 9,
}

/// Why received bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes do not follow the format.
    #[error("malformed frame")]
    Malformed,
    /// The frame is longer than its kind allows.
    #[error("frame of {length} bytes exceeds the limit of {limit} bytes")]
    TooLong {
        /// Length given in the header.
        length: u64,
        /// Longest length allowed.
        limit: u64,
    },
    /// The content does not match the checksum.
    #[error("frame checksum mismatch: the frame was altered on its way")]
    Checksum,
    /// The frame contains an invalid message.
    #[error("{0}")]
    Message(#[from] WireError),
}

/// The largest messages and models that a peer accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Values in a message.
    pub message: usize,
    /// Bytes of a model with its optimizer state, statistics and state vectors.
    pub model: usize,
}

impl Limits {
    fn max_length(&self, kind: Kind) -> u64 {
        let limit = match kind {
            Kind::Message => HEADER + 4 * self.message,
            Kind::Model => self.model,
            Kind::Status => MAX_STATUS_BYTES,
            Kind::Heartbeat => MAX_HEARTBEAT_BYTES,
            _ => MAX_CONTROL_BYTES,
        };
        limit as u64
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the frame.
    pub kind: Kind,
    /// Bytes of content.
    pub length: u64,
    /// CRC-32 of the content.
    pub checksum: u32,
}

impl FrameHeader {
    /// The header of a frame whose content is the concatenation of these parts.
    pub fn of(kind: Kind, content: &[&[u8]]) -> Self {
        let mut hash = crc32fast::Hasher::new();
        content.iter().for_each(|part| hash.update(part));
        Self { kind, length: content.iter().map(|part| part.len() as u64).sum(), checksum: hash.finalize() }
    }

    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[..3].copy_from_slice(b"UF1");
        bytes[3] = self.kind as u8;
        bytes[4..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header. Fails if the frame is longer than `limits` allow.
    pub fn parse(bytes: &[u8; FRAME_HEADER], limits: &Limits) -> Result<Self, FrameError> {
        const KINDS: [Kind; 9] = [
            Kind::Hello,
            Kind::Offer,
            Kind::Heartbeat,
            Kind::Message,
            Kind::ModelRequest,
            Kind::Model,
            Kind::StatusRequest,
            Kind::Status,
            Kind::Goodbye,
        ];
        let kind = KINDS.into_iter().find(|kind| *kind as u8 == bytes[3]);
        let (Some(kind), b"UF1") = (kind, &bytes[..3]) else {
            return Err(FrameError::Malformed);
        };
        let length = u64::from_le_bytes(array(&bytes[4..12]));
        let checksum = u32::from_le_bytes(array(&bytes[12..]));
        let limit = limits.max_length(kind);
        if length > limit {
            return Err(FrameError::TooLong { length, limit });
        }
        Ok(Self { kind, length, checksum })
    }

    /// Checks the content against the checksum.
    pub fn check(&self, content: &[u8]) -> Result<(), FrameError> {
        // A fuzzer cannot guess checksums. It must reach the code behind them.
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

/// Content of the first frame in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol.
    pub version: u16,
    /// Worker of the sender.
    pub worker: u32,
    /// Identifies the run: equal for peers with the same configuration and data.
    pub run: u64,
}

impl Hello {
    /// Encodes the hello.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.version.to_le_bytes().to_vec();
        bytes.extend(self.worker.to_le_bytes());
        bytes.extend(self.run.to_le_bytes());
        bytes
    }

    /// Decodes a hello.
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        if bytes.len() != 14 {
            return Err(FrameError::Malformed);
        }
        Ok(Self {
            version: u16::from_le_bytes(array(&bytes[..2])),
            worker: u32::from_le_bytes(array(&bytes[2..6])),
            run: u64::from_le_bytes(array(&bytes[6..])),
        })
    }
}

/// Content of a heartbeat: what the sender tells about itself and about the workers on its side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The first round that it has not begun.
    pub round: u64,
    /// Rounds that it has run together with others.
    pub rounds_together: u64,
    /// Whether it waits for others.
    pub is_waiting: bool,
    /// A worker on another side that wins over its own, and the round that messages of that worker have shown to it.
    pub other_side: Option<(u32, u64)>,
    /// The workers on its side, and how many milliseconds ago each was last known to be alive.
    pub members: Vec<(u32, u32)>,
}

impl View {
    /// Encodes the view.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.round.to_le_bytes().to_vec();
        bytes.extend(self.rounds_together.to_le_bytes());
        bytes.push(self.is_waiting.into());
        let (worker, round) = self.other_side.unwrap_or((u32::MAX, 0));
        bytes.extend(worker.to_le_bytes());
        bytes.extend(round.to_le_bytes());
        for (worker, age) in &self.members {
            bytes.extend(worker.to_le_bytes());
            bytes.extend(age.to_le_bytes());
        }
        bytes
    }

    /// Decodes a view.
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let (header, members) = bytes.split_first_chunk::<29>().ok_or(FrameError::Malformed)?;
        let (members, rest) = members.as_chunks::<8>();
        if header[16] > 1 || !rest.is_empty() {
            return Err(FrameError::Malformed);
        }
        let number = |bytes: &[u8]| u32::from_le_bytes(array(bytes));
        let other_side = Some(number(&header[17..21])).filter(|worker| *worker != u32::MAX);
        Ok(Self {
            round: u64::from_le_bytes(array(&header[..8])),
            rounds_together: u64::from_le_bytes(array(&header[8..16])),
            is_waiting: header[16] == 1,
            other_side: other_side.map(|worker| (worker, u64::from_le_bytes(array(&header[21..])))),
            members: members.iter().map(|member| (number(&member[..4]), number(&member[4..]))).collect(),
        })
    }
}

/// A frame on an established connection, decoded.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// The first round in which the sender can use this link.
    Offer(u64),
    /// The sender is alive.
    Heartbeat(View),
    /// A message.
    Message(Message),
    /// The sender wants a model.
    ModelRequest,
    /// A model, and the round before which it was the sender's.
    Model(u64, State),
    /// The sender has finished its run.
    Goodbye,
}

impl Frame {
    /// Decodes a frame of this kind. Its checksum has been checked.
    pub fn parse(kind: Kind, content: &[u8]) -> Result<Self, FrameError> {
        match kind {
            Kind::Offer => Ok(Self::Offer(parse_round(content)?)),
            Kind::Heartbeat => Ok(Self::Heartbeat(View::parse(content)?)),
            Kind::ModelRequest if content.is_empty() => Ok(Self::ModelRequest),
            Kind::Goodbye if content.is_empty() => Ok(Self::Goodbye),
            Kind::Model => parse_model(content).map(|(round, state)| Self::Model(round, state)),
            Kind::Message => {
                let (header, values) = content.split_first_chunk().ok_or(FrameError::Malformed)?;
                let (values, rest) = values.as_chunks::<4>();
                let mut message = parse_message(header, values.len())?;
                message.values = values.iter().map(|value| f32::from_le_bytes(*value)).collect::<Vec<_>>().into();
                if rest.is_empty() { Ok(Self::Message(message)) } else { Err(FrameError::Malformed) }
            }
            _ => Err(FrameError::Malformed),
        }
    }
}

/// Decodes the content of an offer: a round.
pub fn parse_round(bytes: &[u8]) -> Result<u64, FrameError> {
    match bytes.len() {
        8 => Ok(u64::from_le_bytes(array(bytes))),
        _ => Err(FrameError::Malformed),
    }
}

/// Decodes the header of a message and checks that `count` values follow it. The returned message has no values yet.
pub fn parse_message(header: &[u8; HEADER], count: usize) -> Result<Message, FrameError> {
    let (message, expected) = Message::from_header(header)?;
    if expected != count as u64 {
        let (expected, found) = (usize::try_from(expected).unwrap_or(usize::MAX), count);
        return Err(WireError::Length { expected, found }.into());
    }
    Ok(message)
}

/// Encodes the state of a model before round `round`.
pub fn model_to_bytes(round: u64, state: &State) -> Vec<u8> {
    let mut bytes = round.to_le_bytes().to_vec();
    bytes.push(state.len() as u8);
    for (name, array) in state {
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.extend((array.len() as u64).to_le_bytes());
        bytes.extend(array.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes
}

/// Decodes what [`model_to_bytes`] encodes. Refuses values that are not finite.
pub fn parse_model(bytes: &[u8]) -> Result<(u64, State), FrameError> {
    let mut rest = bytes;
    let mut take = |count: usize| {
        let (part, after) = rest.split_at_checked(count).ok_or(FrameError::Malformed)?;
        rest = after;
        Ok::<&[u8], FrameError>(part)
    };
    let round = u64::from_le_bytes(array(take(8)?));
    let count = take(1)?[0];
    let mut state = State::new();
    for _ in 0..count {
        let length = take(1)?[0];
        let name = String::from_utf8(take(length.into())?.to_vec());
        let values = u64::from_le_bytes(array(take(8)?));
        let size = values.checked_mul(4).and_then(|size| usize::try_from(size).ok());
        let values = take(size.ok_or(FrameError::Malformed)?)?;
        let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        let values: Vec<f32> = values.as_chunks::<4>().0.iter().map(value).collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(WireError::NotFinite.into());
        }
        state.push((name.map_err(|_| FrameError::Malformed)?, values));
    }
    match rest.is_empty() {
        true => Ok((round, state)),
        false => Err(FrameError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIMITS: Limits = Limits { message: 100, model: 1000 };

    #[test]
    fn encoded_frames_decode_to_the_same_content() {
        let header = FrameHeader::of(Kind::Message, &[b"ab", b"c"]);
        assert_eq!(header.length, 3);
        assert_eq!(FrameHeader::parse(&header.to_bytes(), &LIMITS), Ok(header));
        assert_eq!(header.check(b"abc"), Ok(()));
        assert_eq!(header.check(b"abd"), Err(FrameError::Checksum));
        let hello = Hello { version: VERSION, worker: 3, run: 99 };
        assert_eq!(Hello::parse(&hello.to_bytes()), Ok(hello));
        for other_side in [None, Some((3, 1 << 40))] {
            let members = vec![(0, 0), (7, 250)];
            let view = View { round: 3, rounds_together: 2, is_waiting: true, other_side, members };
            assert_eq!(Frame::parse(Kind::Heartbeat, &view.to_bytes()), Ok(Frame::Heartbeat(view)));
        }
        assert!(View::parse(&[0; 28]).is_err() && View::parse(&[0; 30]).is_err() && View::parse(&[9; 29]).is_err());
        let state = vec![("models".to_string(), vec![1.0, 2.0]), ("empty".into(), vec![])];
        let bytes = model_to_bytes(7, &state);
        assert_eq!(parse_model(&bytes), Ok((7, state)));
        for length in 0..bytes.len() {
            assert!(parse_model(&bytes[..length]).is_err(), "truncated to {length} bytes");
        }
    }

    #[test]
    fn header_of_a_frame_that_is_too_long_is_refused() {
        for (kind, limit) in [(Kind::Message, 64 + 400), (Kind::Model, 1000), (Kind::Offer, MAX_CONTROL_BYTES as u64)] {
            for (length, allowed) in [(limit, true), (limit + 1, false), (1 << 63, false)] {
                let checksum = 0;
                let header = FrameHeader { kind, length, checksum };
                let parsed = FrameHeader::parse(&header.to_bytes(), &LIMITS);
                assert_eq!(parsed.is_ok(), allowed, "{kind:?} {length}");
            }
        }
        assert_eq!(FrameHeader::parse(b"GET / HTTP/1.1\r\n", &LIMITS), Err(FrameError::Malformed));
    }

    #[test]
    fn model_with_nan_is_refused() {
        let state = vec![("models".to_string(), vec![1.0, f32::NAN])];
        let bytes = model_to_bytes(0, &state);
        assert_eq!(parse_model(&bytes), Err(WireError::NotFinite.into()));
    }
}
