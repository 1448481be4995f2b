//! An authenticated connection: reads and writes frames, within the limits of the protocol.

use crate::context::{Outbox, PeerContext};
use crate::frame::{FRAME_HEADER, Frame, FrameError, FrameHeader, Kind, Limits, MAX_CONTROL_BYTES, parse_message};
use crate::handshake::CountingStream;
use crate::protocol::{Outbound, Violation};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsStream;
use upwash::transport::{HEADER, Message};

/// Bytes that are read or written at a time. Each chunk must pass within the failure timeout.
const CHUNK: usize = 64 * 1024;
/// How long a connection that is being closed may still write what was queued before.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// An entry of the send queue of a connection.
pub(crate) enum Queued {
    Frame(Outbound),
    /// Close the connection after all frames queued before.
    Close,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("nothing was received for {} seconds", .0.as_secs_f64())]
    Silent(Duration),
    #[error("nothing could be sent for {} seconds", .0.as_secs_f64())]
    Stuck(Duration),
    #[error("{0}")]
    Refused(String),
}

impl From<Violation> for LinkError {
    fn from(violation: Violation) -> Self {
        Self::Refused(violation.0)
    }
}

/// Reads and writes the frames of an authenticated connection until it ends.
pub(crate) async fn run_connection(context: &Arc<PeerContext>, worker: usize, stream: TlsStream<CountingStream>) {
    let (frames, queue) = mpsc::unbounded_channel();
    let closing = Arc::new(Notify::new());
    let Some(id) = context.connected(worker, Outbox { frames, closing: Arc::clone(&closing) }) else {
        // Do not try again at once, if this side has connected.
        return tokio::time::sleep(CLOSE_TIMEOUT).await;
    };
    let (reader, writer) = tokio::io::split(stream);
    let ended = tokio::select! {
        ended = read_frames(context, worker, id, reader) => ended,
        ended = write_frames(context, worker, id, queue, writer) => ended,
        // The other side may not read what is sent to it.
        () = async { closing.notified().await; tokio::time::sleep(CLOSE_TIMEOUT).await } => Ok(()),
    };
    let why = match ended {
        Ok(()) => "it closed the connection".to_string(),
        Err(LinkError::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "it closed the connection".into()
        }
        Err(error) => {
            if matches!(error, LinkError::Frame(_) | LinkError::Refused(_)) {
                context.refused(format!("worker {worker}: {error}"));
            }
            error.to_string()
        }
    };
    context.disconnected(worker, id, why);
}

/// Writes queued frames.
async fn write_frames(
    context: &PeerContext,
    worker: usize,
    id: u64,
    mut queue: mpsc::UnboundedReceiver<Queued>,
    mut stream: impl AsyncWrite + Unpin,
) -> Result<(), LinkError> {
    let failure_timeout = context.timings.failure_timeout;
    while let Some(Queued::Frame(frame)) = queue.recv().await {
        let kind = match &frame {
            Outbound::Content(kind, content) => {
                write_chunks(&mut stream, *kind, &[content], failure_timeout, |_| ()).await?;
                *kind
            }
            Outbound::Model(content) => {
                let length = content.len();
                let report = |done: usize| {
                    context.drive(|protocol, now| protocol.on_model_written(worker, id, done, length, now));
                };
                write_chunks(&mut stream, Kind::Model, &[content], failure_timeout, report).await?;
                Kind::Model
            }
            Outbound::Message(message) => {
                let (header, values) = (message.header(), bytemuck::cast_slice(&message.values));
                write_chunks(&mut stream, Kind::Message, &[&header, values], failure_timeout, |_| ()).await?;
                Kind::Message
            }
        };
        drop(frame);
        context.drive(|protocol, _| protocol.on_written(worker, id, kind));
    }
    stream.shutdown().await?;
    Ok(())
}

/// Reads frames and enforces the limits of the protocol.
pub(crate) async fn read_frames(
    context: &PeerContext,
    worker: usize,
    id: u64,
    mut stream: impl AsyncRead + Unpin,
) -> Result<(), LinkError> {
    loop {
        context.wait_for_space(worker, id).await;
        let header = within(context, read_header(&mut stream, &context.limits)).await?;
        context.drive(|protocol, now| protocol.admits(worker, id, header.kind, now))?;
        let frame = match header.kind {
            Kind::Message => Frame::Message(read_message(&mut stream, header, context, worker, id).await?),
            kind => {
                let content = read_chunks(&mut stream, header, context, worker, id).await?;
                header.check(&content)?;
                Frame::parse(kind, &content)?
            }
        };
        context.drive(|protocol, now| protocol.on_frame(worker, id, frame, now))?;
    }
}

/// Reads something that must arrive within the failure timeout.
async fn within<T>(context: &PeerContext, read: impl Future<Output = Result<T, LinkError>>) -> Result<T, LinkError> {
    let failure_timeout = context.timings.failure_timeout;
    timeout(failure_timeout, read).await.map_err(|_| LinkError::Silent(failure_timeout))?
}

pub(crate) async fn read_header(
    stream: &mut (impl AsyncRead + Unpin),
    limits: &Limits,
) -> Result<FrameHeader, LinkError> {
    let mut bytes = [0; FRAME_HEADER];
    stream.read_exact(&mut bytes).await?;
    Ok(FrameHeader::parse(&bytes, limits)?)
}

/// Reads a control frame from a peer whose hello has not been checked yet.
pub(crate) async fn read_control_frame(stream: &mut (impl AsyncRead + Unpin)) -> Result<(Kind, Vec<u8>), LinkError> {
    let limits = Limits { message: 0, model: 0 };
    let header = read_header(stream, &limits).await?;
    let mut content = vec![0; (header.length as usize).min(MAX_CONTROL_BYTES)];
    stream.read_exact(&mut content).await?;
    header.check(&content)?;
    Ok((header.kind, content))
}

/// Reads bytes that must arrive within the failure timeout, and reports that they have arrived.
async fn read_chunk(
    stream: &mut (impl AsyncRead + Unpin),
    into: &mut [u8],
    context: &PeerContext,
    worker: usize,
    id: u64,
) -> Result<(), LinkError> {
    let read = async { Ok(stream.read_exact(into).await.map(|_| ())?) };
    within(context, read).await?;
    context.drive(|protocol, now| protocol.on_heard(worker, id, now));
    Ok(())
}

/// Reads the content of a frame. Memory grows with the bytes that have arrived.
async fn read_chunks(
    stream: &mut (impl AsyncRead + Unpin),
    frame: FrameHeader,
    context: &PeerContext,
    worker: usize,
    id: u64,
) -> Result<Vec<u8>, LinkError> {
    let (length, mut content) = (frame.length as usize, Vec::new());
    while content.len() < length {
        let from = content.len();
        content.resize(length.min(from + CHUNK), 0);
        read_chunk(stream, &mut content[from..], context, worker, id).await?;
        if frame.kind == Kind::Model {
            context.drive(|protocol, now| protocol.on_model_read(worker, id, content.len(), length, now));
        }
    }
    Ok(content)
}

async fn read_message(
    stream: &mut (impl AsyncRead + Unpin),
    frame: FrameHeader,
    context: &PeerContext,
    worker: usize,
    id: u64,
) -> Result<Message, LinkError> {
    let length = frame.length as usize;
    if length < HEADER || !length.is_multiple_of(4) {
        return Err(FrameError::Malformed.into());
    }
    let mut header = [0; HEADER];
    read_chunk(stream, &mut header, context, worker, id).await?;
    let count = (length - HEADER) / 4;
    let mut message = parse_message(&header, count)?;
    // Reuses memory of the pool, or grows with the bytes that have arrived. Allocating everything at once would let a
    // header alone claim the memory.
    let mut values = context.pool.spare(count).unwrap_or_default();
    let mut hash = crc32fast::Hasher::new();
    hash.update(&header);
    for from in (0..count).step_by(CHUNK / 4) {
        let to = count.min(from + CHUNK / 4);
        if values.len() < to {
            values.reserve_exact((count - from).min((from + CHUNK).max(CHUNK)));
            values.resize(to, 0.0);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values[from..to]);
        read_chunk(stream, bytes, context, worker, id).await?;
        hash.update(bytes);
    }
    if hash.finalize() != frame.checksum && !cfg!(fuzzing) {
        return Err(FrameError::Checksum.into());
    }
    message.values = if count == 0 { vec![].into() } else { context.pool.wrap(values) };
    Ok(message)
}

/// Writes a frame, and reports how many bytes of it have been written. Each chunk must be accepted within the timeout.
async fn write_chunks(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    content: &[&[u8]],
    failure_timeout: Duration,
    report: impl Fn(usize),
) -> Result<(), LinkError> {
    let header = FrameHeader::of(kind, content).to_bytes();
    let (stuck, mut done) = (|_| LinkError::Stuck(failure_timeout), 0);
    for part in [&[&header[..]], content].concat() {
        for chunk in part.chunks(CHUNK) {
            timeout(failure_timeout, stream.write_all(chunk)).await.map_err(stuck)??;
            done += chunk.len();
            report(done);
        }
    }
    timeout(failure_timeout, stream.flush()).await.map_err(stuck)??;
    Ok(())
}

/// Writes a frame during the handshake, which has a deadline.
pub(crate) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    content: &[&[u8]],
) -> Result<(), LinkError> {
    write_chunks(stream, kind, content, Duration::from_secs(60), |_| ()).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Timings;
    use crate::context::Identity;
    use crate::keys::Key;
    use crate::protocol::{Protocol, ProtocolConfig};
    use upwash::transport::Pool;

    const MODEL: usize = 1 << 20;

    /// A context of worker 0 of two, without a runtime: no clock ticks.
    fn context(timings: Timings) -> PeerContext {
        let key = Key::generate();
        let config = ProtocolConfig {
            own: 0,
            workers: 2,
            neighbors: vec![1],
            rounds: 100,
            has_rounds: true,
            has_end: true,
            timings,
        };
        let (keys, addresses) = (vec![key.fingerprint(); 2], vec![String::new(); 2]);
        let identity = Identity { own: 0, key, keys, addresses, run: 7 };
        let limits = Limits { message: 10, model: MODEL };
        PeerContext::new(identity, limits, timings, Pool::new(1), Protocol::new(config))
    }

    /// The task that reads a connection ends it when nothing arrives, whatever the clock of the protocol does: before a
    /// header, in a header, and in the content of each kind of frame.
    #[test]
    fn a_silent_connection_ends_without_the_clock() {
        let timings = Timings { failure_timeout: Duration::from_millis(100), ..Timings::default() };
        let context = context(timings);
        let (frames, _queue) = mpsc::unbounded_channel();
        let id = context.connected(1, Outbox { frames, closing: Arc::default() }).unwrap();
        context.drive(|protocol, now| protocol.exchange_models(1, id, vec![0; 9], now));
        let header = |kind, length| FrameHeader { kind, length, checksum: 0 }.to_bytes().to_vec();
        let message = [header(Kind::Message, HEADER as u64 + 40), vec![0; HEADER - 1]].concat();
        let cases = [
            vec![],
            header(Kind::Offer, 8)[..FRAME_HEADER - 1].to_vec(),
            header(Kind::Offer, 8),
            header(Kind::Heartbeat, 29),
            header(Kind::Model, MODEL as u64),
            message,
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for sent in cases {
            let ended = runtime.block_on(async {
                let (mut end, stream) = tokio::io::duplex(CHUNK);
                end.write_all(&sent).await.unwrap();
                // The limit is far above the timeout, however busy the machine is.
                timeout(Duration::from_secs(60), read_frames(&context, 1, id, stream)).await
            });
            assert!(matches!(ended, Ok(Err(LinkError::Silent(_)))), "after {} bytes: {ended:?}", sent.len());
        }
    }

    /// Half of a model passes in each direction. The protocol learns of it, because it judges transfers by their progress.
    #[test]
    fn the_progress_of_models_is_reported() {
        let context = context(Timings::default());
        let (frames, queue) = mpsc::unbounded_channel();
        let id = context.connected(1, Outbox { frames, closing: Arc::default() }).unwrap();
        context.drive(|protocol, now| protocol.exchange_models(1, id, vec![0; MODEL], now));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (mut end, stream) = tokio::io::duplex(CHUNK);
            let mut half = vec![0; MODEL / 2 + CHUNK];
            tokio::select! {
                _ = write_frames(&context, 1, id, queue, stream) => panic!("the whole model was written"),
                read = end.read_exact(&mut half) => assert!(read.is_ok()),
            }
            let (mut end, stream) = tokio::io::duplex(2 * MODEL);
            let header = FrameHeader { kind: Kind::Model, length: MODEL as u64, checksum: 0 };
            end.write_all(&header.to_bytes()).await.unwrap();
            end.write_all(&half).await.unwrap();
            let is_read = async {
                while context.drive(|protocol, _| protocol.parts().1) < Some(8) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                _ = read_frames(&context, 1, id, stream) => panic!("the whole model was read"),
                in_time = timeout(Duration::from_secs(60), is_read) => assert!(in_time.is_ok(), "no progress was reported"),
            }
        });
        let written = context.drive(|protocol, _| protocol.parts().0);
        assert!((8..16).contains(&written.unwrap()), "{written:?}");
    }
}
