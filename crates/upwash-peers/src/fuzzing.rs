//! For the fuzz target alone (`--cfg fuzzing`): a listed peer may send any bytes. Checksums are not looked at then.

use crate::Timings;
use crate::frame::{Limits, parse_model};
use crate::keys::Key;
use crate::link::{PeerContext, hear};
use crate::membership::{Connection, MembershipTable};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use upwash::compress::Compression;
use upwash::transport::{Encoding, Pool};

const LIMITS: Limits = Limits { message: 256, model: 2048 };

/// What a peer that has proved who it is can send. Panics are what is looked for.
pub fn receive(bytes: &[u8]) {
    thread_local! {
        static TOOLS: (tokio::runtime::Runtime, Key) = (
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"),
            Key::generate(),
        );
    }
    TOOLS.with(|(runtime, key)| {
        let context = PeerContext {
            own: 0,
            key: key.clone(),
            keys: vec![],
            addresses: vec![],
            run: 1,
            rounds: 100,
            limits: LIMITS,
            timings: Timings::default(),
            table: MembershipTable::new(2, 0),
            pool: Pool::new(2),
        };
        let (outbox, _frames) = tokio::sync::mpsc::unbounded_channel();
        let under_way = Arc::new(AtomicU64::new(0));
        let id = context.table.new_id();
        let connection = Connection { id, outbox, under_way };
        context.table.connected(1, connection);
        // Who has sent as many messages as are kept waits for someone to read them: nobody does here.
        let heard = hear(&context, 1, id, bytes);
        let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_millis(1), heard).await });
    });
}

/// The parts of it alone, which get farther without frames around them.
pub fn decode(bytes: &[u8]) {
    if let Ok((round, state)) = parse_model(bytes) {
        let again = crate::frame::model_to_bytes(round, &state);
        assert_eq!(again, bytes, "a model is read as it is written");
    }
    let Some((&[count, which], rest)) = bytes.split_first_chunk() else {
        return;
    };
    let units: Vec<f32> = rest.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    let encoding = match which % 6 {
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
