//! Entry points of the fuzz target, compiled only with `--cfg fuzzing`. A listed peer may send any bytes. Checksums are
//! not verified in this configuration.

use crate::Timings;
use crate::connection::read_frames;
use crate::context::{Identity, Outbox, PeerContext};
use crate::frame::{Limits, parse_model};
use crate::keys::Key;
use crate::protocol::{Protocol, ProtocolConfig};
use std::sync::Arc;
use std::time::Duration;
use upwash::compress::Compression;
use upwash::transport::{Encoding, Pool};

const LIMITS: Limits = Limits { message: 256, model: 2048 };

/// Feeds bytes to the reader of an authenticated connection. The fuzzer looks for panics.
pub fn receive(bytes: &[u8]) {
    thread_local! {
        static FIXTURE: (tokio::runtime::Runtime, Key) = (
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime starts"),
            Key::generate(),
        );
    }
    FIXTURE.with(|(runtime, key)| {
        let protocol = ProtocolConfig {
            own: 0,
            workers: 2,
            neighbors: vec![1],
            rounds: 100,
            has_rounds: true,
            has_end: true,
            timings: Timings::default(),
        };
        let keys = vec![key.fingerprint(); 2];
        let identity = Identity { own: 0, key: key.clone(), keys, addresses: vec![], run: 1 };
        let context = PeerContext::new(identity, LIMITS, Timings::default(), Pool::new(2), Protocol::new(protocol));
        let (frames, _queue) = tokio::sync::mpsc::unbounded_channel();
        let Some(id) = context.connected(1, Outbox { frames, closing: Arc::default() }) else { return };
        // The reader blocks once the queue of messages is full, because nothing takes messages out of it here.
        let reading = read_frames(&context, 1, id, bytes);
        let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_millis(1), reading).await });
    });
}

/// Feeds bytes to the decoders of models and vectors directly. Without frames around them the fuzzer reaches deeper.
pub fn decode(bytes: &[u8]) {
    if let Ok((round, state)) = parse_model(bytes) {
        let encoded = crate::frame::model_to_bytes(round, &state);
        assert_eq!(encoded, bytes, "a decoded model must encode to the same bytes");
    }
    let Some((&[count, selector], rest)) = bytes.split_first_chunk() else {
        return;
    };
    let units: Vec<f32> = rest.as_chunks().0.iter().map(|unit| f32::from_le_bytes(*unit)).collect();
    let encoding = match selector % 6 {
        0 => Encoding::F32,
        1 => Encoding::Bf16,
        2 => Encoding::Compressed(Compression::TopK(0.1)),
        3 => Encoding::Compressed(Compression::RandomK(0.1)),
        4 => Encoding::Compressed(Compression::Sign),
        _ => Encoding::Compressed(Compression::EightBit),
    };
    let decoded = encoding.decode(&units, count.into(), &[1, 2]);
    assert!(decoded.is_none_or(|vector| vector.len() == usize::from(count)));
}
