//! The bytes of frames, and what liars send instead.

use super::schedule::Lie;
use super::world::LIMITS;
use crate::frame::{FRAME_HEADER, Frame, FrameHeader, Kind, View};
use crate::protocol::Outbound;

/// The bytes of a frame.
pub(super) fn encode(frame: &Outbound) -> Vec<u8> {
    let (kind, content) = match frame {
        Outbound::Content(kind, content) => (*kind, content.clone()),
        Outbound::Model(content) => (Kind::Model, content.to_vec()),
        Outbound::Message(message) => {
            let mut content = message.header().to_vec();
            content.extend(message.values.iter().flat_map(|value| value.to_le_bytes()));
            (Kind::Message, content)
        }
    };
    framed(kind, &content)
}

fn framed(kind: Kind, content: &[u8]) -> Vec<u8> {
    [&FrameHeader::of(kind, &[content]).to_bytes(), content].concat()
}

impl Lie {
    /// What a liar sends instead of a frame.
    pub(super) fn tell(self, bytes: Vec<u8>, workers: usize) -> Vec<Vec<u8>> {
        let Some((header, content)) = bytes.split_first_chunk::<FRAME_HEADER>() else { return vec![bytes] };
        let Ok(header) = FrameHeader::parse(header, &LIMITS) else { return vec![bytes] };
        let Ok(mut frame) = Frame::parse(header.kind, content) else { return vec![bytes] };
        match (self, &mut frame) {
            (Self::Rounds(claimed), Frame::Offer(round)) => *round = claimed,
            (Self::Rounds(claimed), Frame::Heartbeat(view)) => {
                let members = (0..workers as u32).map(|worker| (worker, 0)).collect();
                let other_side = Some((0, claimed));
                *view = View { round: claimed, rounds_together: claimed, is_waiting: false, other_side, members };
            }
            (Self::Rounds(claimed), Frame::Message(message)) => message.round = claimed,
            (Self::Announced(claimed), Frame::Heartbeat(view)) => {
                let members = (0..workers as u32).map(|worker| (worker, 0)).collect();
                let other_side = Some((0, claimed));
                *view = View { round: claimed, rounds_together: claimed, is_waiting: true, other_side, members };
            }
            (Self::Announced(claimed), Frame::Message(message)) if message.values.is_empty() => message.round = claimed,
            (Self::Announced(claimed), Frame::Offer(round)) => *round = claimed,
            (Self::Goodbye, Frame::Heartbeat(_)) => return vec![bytes, framed(Kind::Goodbye, &[])],
            (Self::Flood, Frame::Heartbeat(_)) => return vec![bytes; 30],
            (Self::Fetch, Frame::Heartbeat(_)) => return vec![bytes, framed(Kind::ModelRequest, &[])],
            _ => return vec![bytes],
        }
        vec![match frame {
            Frame::Offer(round) => framed(Kind::Offer, &round.to_le_bytes()),
            Frame::Heartbeat(view) => framed(Kind::Heartbeat, &view.to_bytes()),
            Frame::Message(message) => encode(&Outbound::Message(message.into())),
            _ => bytes,
        }]
    }
}
