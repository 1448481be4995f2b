//! Connections between peers: authentication, timeouts, and reading and writing frames. One file, in the order in which a
//! connection lives: connect, authenticate, read and write, end.

use crate::frame::{
    FRAME_HEADER, FrameError, FrameHeader, Hello, Kind, Limits, MAX_CONTROL_BYTES, VERSION, parse_message, parse_model,
    parse_round,
};
use crate::keys::{Fingerprint, Key};
use crate::membership::{Connection, MembershipTable, OutboundFrame};
use crate::{Timings, tls};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use upwash::transport::{HEADER, MembershipEvent, Message, Pool};

/// Maximum number of connections that have not authenticated yet. Further connections wait.
const MAX_UNAUTHENTICATED: usize = 32;
/// Maximum number of frames per second, other than messages, on one connection.
const MAX_CONTROL_FRAMES: u32 = 200;
/// Bytes that are read at a time. Each chunk must arrive within the failure timeout.
const CHUNK: usize = 64 * 1024;

/// What all connections of a process share.
pub(crate) struct PeerContext {
    pub(crate) own: usize,
    pub(crate) key: Key,
    pub(crate) keys: Vec<Fingerprint>,
    pub(crate) addresses: Vec<String>,
    pub(crate) run: u64,
    pub(crate) rounds: u64,
    pub(crate) limits: Limits,
    pub(crate) timings: Timings,
    pub(crate) table: MembershipTable,
    /// Memory of outgoing and incoming messages, for reuse.
    pub(crate) pool: Pool,
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
    #[error("{0}")]
    Refused(String),
}

/// A TCP stream that counts the bytes it sends and receives.
struct CountingStream {
    stream: TcpStream,
    context: Arc<PeerContext>,
}

impl AsyncRead for CountingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let count = (buffer.filled().len() - before) as u64;
        self.context.table.bytes_received.fetch_add(count, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for CountingStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.context.table.bytes_sent.fetch_add(count as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Accepts connections and runs each of them in its own task.
pub(crate) async fn listen(context: Arc<PeerContext>, listener: TcpListener, acceptor: TlsAcceptor) {
    let unauthenticated = Arc::new(Semaphore::new(MAX_UNAUTHENTICATED));
    loop {
        let Ok(permit) = Arc::clone(&unauthenticated).acquire_owned().await else {
            return;
        };
        let Ok((stream, address)) = listener.accept().await else {
            // The process may be out of file descriptors. Connections that close free some.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (context, acceptor) = (Arc::clone(&context), acceptor.clone());
        tokio::spawn(async move {
            let deadline = context.timings.handshake;
            let accepted = timeout(deadline, accept(&context, stream, acceptor)).await;
            drop(permit);
            let refused = match accepted {
                Ok(Ok(Some((worker, stream)))) => {
                    run_connection(&context, worker, stream).await;
                    return;
                }
                Ok(Ok(None)) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("it did not authenticate within {} seconds", deadline.as_secs_f64()),
            };
            let what = format!("connection from {address}: {refused}");
            context.table.record_event(MembershipEvent::Refused { what });
        });
    }
}

/// Authenticates the connecting side. Returns its worker, or `None` if it only requested the status.
async fn accept(
    context: &Arc<PeerContext>,
    stream: TcpStream,
    acceptor: TlsAcceptor,
) -> Result<Option<(usize, TlsStream<CountingStream>)>, LinkError> {
    stream.set_nodelay(true)?;
    let shared_context = Arc::clone(context);
    let counting = CountingStream { stream, context: shared_context };
    let stream = acceptor.accept(counting).await?;
    let presented = stream.get_ref().1.peer_certificates().and_then(|keys| keys.first());
    let presented = presented.map(|key| Fingerprint::of(key));
    let worker = presented.and_then(|key| context.keys.iter().position(|listed| *listed == key));
    let worker = worker.ok_or_else(|| LinkError::Refused("its key is not listed".into()))?;
    let mut stream = TlsStream::from(stream);
    let (kind, content) = read_control_frame(&mut stream).await?;
    match kind {
        Kind::StatusRequest => {
            let status = serde_json::to_vec(&context.table.status()).unwrap_or_default();
            write(&mut stream, Kind::Status, &[&status]).await?;
            stream.shutdown().await?;
            Ok(None)
        }
        Kind::Hello => {
            check_hello(context, worker, &content)?;
            write(&mut stream, Kind::Hello, &[&hello(context)]).await?;
            Ok(Some((worker, stream)))
        }
        _ => Err(LinkError::Refused(format!("worker {worker} sent {kind:?} instead of Hello"))),
    }
}

fn hello(context: &PeerContext) -> Vec<u8> {
    let hello = Hello { version: VERSION, worker: context.own as u32, run: context.run };
    hello.to_bytes()
}

/// Checks that the hello names the worker of the key, this run and this version of the protocol.
fn check_hello(context: &PeerContext, worker: usize, content: &[u8]) -> Result<(), LinkError> {
    let hello = Hello::parse(content)?;
    let refuse = |why: String| Err(LinkError::Refused(why));
    if hello.version != VERSION {
        return refuse(format!(
            "worker {worker} uses protocol version {}, and this peer uses version {VERSION}: run the same version of \
             upwash everywhere",
            hello.version
        ));
    }
    if hello.worker as usize != worker {
        return refuse(format!("a peer with the key of worker {worker} claims to be worker {}", hello.worker));
    }
    if hello.run != context.run {
        return refuse(format!(
            "worker {worker} has a different configuration or different data: use the same on all machines"
        ));
    }
    Ok(())
}

/// Connects to a worker, and reconnects whenever the connection ends, for as long as the run lasts.
pub(crate) async fn keep_connected(context: Arc<PeerContext>, worker: usize) {
    let Ok(config) = tls::client(&context.key, context.keys[worker]) else {
        return;
    };
    let connector = TlsConnector::from(config);
    let mut pause = Duration::from_millis(50);
    loop {
        let connected = timeout(context.timings.handshake, connect(&context, worker, &connector)).await;
        match connected {
            Ok(Ok(stream)) => {
                pause = Duration::from_millis(50);
                run_connection(&context, worker, stream).await;
            }
            Ok(Err(LinkError::Refused(what))) => {
                context.table.record_unreachable(worker, what.clone());
                context.table.record_event(MembershipEvent::Refused { what });
                pause = Duration::from_secs(2);
            }
            // The worker has not started yet, or has ended.
            Ok(Err(error)) => {
                context.table.record_unreachable(worker, error.to_string());
                pause = (2 * pause).min(Duration::from_secs(2));
            }
            Err(_) => {
                context.table.record_unreachable(worker, "it does not answer".into());
                pause = (2 * pause).min(Duration::from_secs(2));
            }
        }
        tokio::time::sleep(pause).await;
    }
}

async fn connect(
    context: &Arc<PeerContext>,
    worker: usize,
    connector: &TlsConnector,
) -> Result<TlsStream<CountingStream>, LinkError> {
    let stream = TcpStream::connect(&context.addresses[worker]).await?;
    stream.set_nodelay(true)?;
    let counting = CountingStream { stream, context: Arc::clone(context) };
    let mut stream = TlsStream::from(connector.connect(server_name()?, counting).await?);
    write(&mut stream, Kind::Hello, &[&hello(context)]).await?;
    // With TLS 1.3 the handshake succeeds on this side before the other side has verified our key. Only its hello
    // proves that it accepted the key.
    let (kind, content) = read_control_frame(&mut stream).await?;
    if kind != Kind::Hello {
        return Err(LinkError::Refused(format!("worker {worker} answered with {kind:?} instead of Hello")));
    }
    check_hello(context, worker, &content)?;
    Ok(stream)
}

/// A fixed name, which rustls requires. Peers verify keys and ignore names.
fn server_name() -> Result<ServerName<'static>, LinkError> {
    let name = ServerName::try_from("upwash").map(|name| name.to_owned());
    name.map_err(|_| LinkError::Refused("invalid server name".into()))
}

/// Requests the status of a peer, with any listed key. Returns it as JSON.
pub(crate) async fn request_status(key: &Key, address: &str, expected: Fingerprint) -> Result<Vec<u8>, LinkError> {
    let config = tls::client(key, expected).map_err(|e| LinkError::Refused(e.to_string()))?;
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(config).connect(server_name()?, stream).await?;
    write(&mut stream, Kind::StatusRequest, &[]).await?;
    let limits = Limits { message: 0, model: 0 };
    let header = read_header(&mut stream, &limits).await?;
    let mut content = vec![0; header.length as usize];
    stream.read_exact(&mut content).await?;
    header.check(&content)?;
    Ok(content)
}

/// Reads and writes the frames of an authenticated connection until it ends.
async fn run_connection(context: &Arc<PeerContext>, worker: usize, stream: TlsStream<CountingStream>) {
    let (outbox, frames) = mpsc::unbounded_channel();
    let in_flight = Arc::new(AtomicU64::new(0));
    let id = context.table.new_id();
    context.table.on_connected(worker, Connection { id, outbox, in_flight: Arc::clone(&in_flight) });
    let (reader, writer) = tokio::io::split(stream);
    let ended = tokio::select! {
        ended = read_frames(context, worker, id, reader) => ended,
        ended = write_frames(context, frames, &in_flight, writer) => ended,
    };
    let why = match ended {
        Ok(()) => "it closed the connection".to_string(),
        Err(LinkError::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "it closed the connection".into()
        }
        Err(error) => {
            if matches!(error, LinkError::Frame(_) | LinkError::Refused(_)) {
                let what = format!("worker {worker}: {error}");
                context.table.record_event(MembershipEvent::Refused { what });
            }
            error.to_string()
        }
    };
    context.table.on_disconnected(worker, id, why);
}

/// Writes queued frames, and a heartbeat whenever nothing was queued for a while.
async fn write_frames(
    context: &PeerContext,
    mut frames: mpsc::UnboundedReceiver<OutboundFrame>,
    in_flight: &AtomicU64,
    mut stream: impl AsyncWrite + Unpin,
) -> Result<(), LinkError> {
    loop {
        match timeout(context.timings.heartbeat, frames.recv()).await {
            Ok(Some(OutboundFrame::Content(kind, content))) => {
                write(&mut stream, kind, &[&content]).await?;
            }
            Ok(Some(OutboundFrame::Message(message))) => {
                let header = message.header();
                let values: &[u8] = bytemuck::cast_slice(&message.values);
                write(&mut stream, Kind::Message, &[&header, values]).await?;
                in_flight.fetch_sub(1, Ordering::Relaxed);
            }
            Ok(Some(OutboundFrame::Close)) => {
                stream.shutdown().await?;
                return Ok(());
            }
            Ok(None) => return Ok(()),
            // Nothing was queued within the heartbeat interval.
            Err(_) => {
                let round = context.table.current_round().to_le_bytes();
                write(&mut stream, Kind::Heartbeat, &[&round]).await?;
            }
        }
    }
}

/// Reads frames and enforces the limits of the protocol.
pub(crate) async fn read_frames(
    context: &PeerContext,
    worker: usize,
    id: u64,
    mut stream: impl AsyncRead + Unpin,
) -> Result<(), LinkError> {
    let failure_timeout = context.timings.failure_timeout;
    let (mut since, mut control_frames) = (Instant::now(), 0);
    loop {
        context.table.wait_for_space(worker, id).await;
        let read = timeout(failure_timeout, read_header(&mut stream, &context.limits)).await;
        let header = read.map_err(|_| LinkError::Silent(failure_timeout))??;
        if header.kind == Kind::Message {
            let message = read_message(&mut stream, header, failure_timeout, &context.pool).await?;
            if message.from != worker {
                let why = format!("it sent a message as worker {}", message.from);
                return Err(LinkError::Refused(why));
            }
            let queued = context.table.on_message(worker, id, message);
            queued.map_err(|error| LinkError::Refused(error.to_string()))?;
            continue;
        }
        let content = read_chunks(&mut stream, header.length as usize, failure_timeout).await?;
        header.check(&content)?;
        if since.elapsed() > Duration::from_secs(1) {
            (since, control_frames) = (Instant::now(), 0);
        }
        control_frames += 1;
        if control_frames > MAX_CONTROL_FRAMES {
            let why = format!("more than {MAX_CONTROL_FRAMES} control frames in a second");
            return Err(LinkError::Refused(why));
        }
        match header.kind {
            Kind::Offer | Kind::Heartbeat => {
                let round = parse_round(&content)?;
                // A round beyond the last one would make this process skip the rest of its training.
                if round > context.rounds {
                    let why = format!("it claims to be in round {round} of {}", context.rounds);
                    return Err(LinkError::Refused(why));
                }
                match header.kind {
                    Kind::Offer => context.table.on_offer(worker, id, round),
                    _ => context.table.on_heartbeat(worker, id, round),
                }
            }
            Kind::ModelRequest => context.table.on_model_request(worker),
            Kind::Model => {
                let (round, model) = parse_model(&content)?;
                if round > context.rounds || !context.table.on_model(worker, round, model) {
                    return Err(LinkError::Refused("it sent a model that was not requested".into()));
                }
            }
            Kind::Goodbye => context.table.on_goodbye(worker, id),
            Kind::Hello | Kind::StatusRequest | Kind::Status | Kind::Message => {
                let why = format!("unexpected {:?} frame on an established connection", header.kind);
                return Err(LinkError::Refused(why));
            }
        }
    }
}

async fn read_header(stream: &mut (impl AsyncRead + Unpin), limits: &Limits) -> Result<FrameHeader, LinkError> {
    let mut bytes = [0; FRAME_HEADER];
    stream.read_exact(&mut bytes).await?;
    Ok(FrameHeader::parse(&bytes, limits)?)
}

/// Reads a control frame from a peer whose hello has not been checked yet.
async fn read_control_frame(stream: &mut (impl AsyncRead + Unpin)) -> Result<(Kind, Vec<u8>), LinkError> {
    let limits = Limits { message: 0, model: 0 };
    let header = read_header(stream, &limits).await?;
    let mut content = vec![0; (header.length as usize).min(MAX_CONTROL_BYTES)];
    stream.read_exact(&mut content).await?;
    header.check(&content)?;
    Ok((header.kind, content))
}

/// Reads `length` bytes. Each chunk must arrive within the timeout. Memory grows with the bytes that have arrived.
async fn read_chunks(
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
    failure_timeout: Duration,
) -> Result<Vec<u8>, LinkError> {
    let mut content = Vec::new();
    while content.len() < length {
        let from = content.len();
        content.resize(length.min(from + CHUNK), 0);
        let read = timeout(failure_timeout, stream.read_exact(&mut content[from..])).await;
        read.map_err(|_| LinkError::Silent(failure_timeout))??;
    }
    Ok(content)
}

async fn read_message(
    stream: &mut (impl AsyncRead + Unpin),
    frame: FrameHeader,
    failure_timeout: Duration,
    pool: &Pool,
) -> Result<Message, LinkError> {
    let length = frame.length as usize;
    if length < HEADER || !length.is_multiple_of(4) {
        return Err(FrameError::Malformed.into());
    }
    let mut header = [0; HEADER];
    let read = timeout(failure_timeout, stream.read_exact(&mut header)).await;
    read.map_err(|_| LinkError::Silent(failure_timeout))??;
    let count = (length - HEADER) / 4;
    let mut message = parse_message(&header, count)?;
    // Reuses memory of the pool, or grows with the bytes that have arrived. Allocating everything at once would let a
    // header alone claim the memory.
    let mut values = pool.spare(count).unwrap_or_default();
    let mut hash = crc32fast::Hasher::new();
    hash.update(&header);
    for from in (0..count).step_by(CHUNK / 4) {
        let to = count.min(from + CHUNK / 4);
        if values.len() < to {
            values.reserve_exact((count - from).min((from + CHUNK).max(CHUNK)));
            values.resize(to, 0.0);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values[from..to]);
        let read = timeout(failure_timeout, stream.read_exact(bytes)).await;
        read.map_err(|_| LinkError::Silent(failure_timeout))??;
        hash.update(bytes);
    }
    if hash.finalize() != frame.checksum && !cfg!(fuzzing) {
        return Err(FrameError::Checksum.into());
    }
    message.values = pool.wrap(values);
    Ok(message)
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), kind: Kind, content: &[&[u8]]) -> Result<(), LinkError> {
    let header = FrameHeader::of(kind, content);
    stream.write_all(&header.to_bytes()).await?;
    for part in content {
        stream.write_all(part).await?;
    }
    stream.flush().await?;
    Ok(())
}
