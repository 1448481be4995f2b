//! Connections: who may speak, for how long it may be silent, and what it says.

use crate::frame::{
    FRAME_HEADER, FrameError, FrameHeader, Hello, Kind, Limits, SMALL, VERSION, parse_message, parse_model, parse_round,
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

/// Connections that have not proved yet who they are: more must wait.
const MAX_UNAUTHENTICATED: usize = 32;
/// Small frames of one connection in a second: more is no conversation.
const SMALL_FRAMES: u32 = 200;
/// A piece of a frame that must arrive in time.
const PIECE: usize = 64 * 1024;

/// What all connections of a process know.
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
    /// Memory of messages, on their way out and in.
    pub(crate) pool: Pool,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("nothing was heard for {} seconds", .0.as_secs_f64())]
    Silent(Duration),
    #[error("{0}")]
    Refused(String),
}

/// Counts what goes over the wire.
struct Counted {
    stream: TcpStream,
    context: Arc<PeerContext>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let count = (buffer.filled().len() - before) as u64;
        self.context.table.received.fetch_add(count, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.context.table.sent.fetch_add(count as u64, Ordering::Relaxed);
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

/// Answers whoever calls.
pub(crate) async fn listen(context: Arc<PeerContext>, listener: TcpListener, acceptor: TlsAcceptor) {
    let strangers = Arc::new(Semaphore::new(MAX_UNAUTHENTICATED));
    loop {
        let Ok(permit) = Arc::clone(&strangers).acquire_owned().await else {
            return;
        };
        let Ok((stream, address)) = listener.accept().await else {
            // Out of something: others will give it back.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (context, acceptor) = (Arc::clone(&context), acceptor.clone());
        tokio::spawn(async move {
            let deadline = context.timings.handshake;
            let answered = timeout(deadline, answer(&context, stream, acceptor)).await;
            drop(permit);
            let refused = match answered {
                Ok(Ok(Some((worker, stream)))) => {
                    converse(&context, worker, stream).await;
                    return;
                }
                Ok(Ok(None)) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("it did not say who it is within {} seconds", deadline.as_secs_f64()),
            };
            let what = format!("a connection from {address}: {refused}");
            context.table.tell(MembershipEvent::Refused { what });
        });
    }
}

/// Who calls, once it has proved it; none if it only asked how things are.
async fn answer(
    context: &Arc<PeerContext>,
    stream: TcpStream,
    acceptor: TlsAcceptor,
) -> Result<Option<(usize, TlsStream<Counted>)>, LinkError> {
    stream.set_nodelay(true)?;
    let house_too = Arc::clone(context);
    let counted = Counted { stream, context: house_too };
    let stream = acceptor.accept(counted).await?;
    let presented = stream.get_ref().1.peer_certificates().and_then(|keys| keys.first());
    let presented = presented.map(|key| Fingerprint::of(key));
    let worker = presented.and_then(|key| context.keys.iter().position(|known| *known == key));
    let worker = worker.ok_or_else(|| LinkError::Refused("its key is not listed".into()))?;
    let mut stream = TlsStream::from(stream);
    let (kind, content) = read_small(&mut stream).await?;
    match kind {
        Kind::Ask => {
            let status = serde_json::to_vec(&context.table.status()).unwrap_or_default();
            write(&mut stream, Kind::Answer, &[&status]).await?;
            stream.shutdown().await?;
            Ok(None)
        }
        Kind::Hello => {
            check_hello(context, worker, &content)?;
            write(&mut stream, Kind::Hello, &[&hello(context)]).await?;
            Ok(Some((worker, stream)))
        }
        _ => Err(LinkError::Refused(format!("worker {worker} began with {kind:?}"))),
    }
}

fn hello(context: &PeerContext) -> Vec<u8> {
    let hello = Hello { version: VERSION, worker: context.own as u32, run: context.run };
    hello.to_bytes()
}

/// Each may speak only as itself, in the same run and the same language.
fn check_hello(context: &PeerContext, worker: usize, content: &[u8]) -> Result<(), LinkError> {
    let said = Hello::parse(content)?;
    let refuse = |why: String| Err(LinkError::Refused(why));
    if said.version != VERSION {
        return refuse(format!(
            "worker {worker} speaks version {}, and this is {VERSION}: run the same upwash everywhere",
            said.version
        ));
    }
    if said.worker as usize != worker {
        return refuse(format!("the key of worker {worker} spoke as worker {}", said.worker));
    }
    if said.run != context.run {
        return refuse(format!("worker {worker} runs another configuration, or has other data"));
    }
    Ok(())
}

/// Calls a worker, again and again, for as long as the run lasts.
pub(crate) async fn call(context: Arc<PeerContext>, worker: usize) {
    let Ok(config) = tls::client(&context.key, context.keys[worker]) else {
        return;
    };
    let connector = TlsConnector::from(config);
    let mut pause = Duration::from_millis(50);
    loop {
        let called = timeout(context.timings.handshake, reach(&context, worker, &connector)).await;
        match called {
            Ok(Ok(stream)) => {
                pause = Duration::from_millis(50);
                converse(&context, worker, stream).await;
            }
            Ok(Err(LinkError::Refused(what))) => {
                context.table.unreachable(worker, what.clone());
                context.table.tell(MembershipEvent::Refused { what });
                pause = Duration::from_secs(2);
            }
            // Not there yet, or not any more.
            Ok(Err(error)) => {
                context.table.unreachable(worker, error.to_string());
                pause = (2 * pause).min(Duration::from_secs(2));
            }
            Err(_) => {
                context.table.unreachable(worker, "it does not answer".into());
                pause = (2 * pause).min(Duration::from_secs(2));
            }
        }
        tokio::time::sleep(pause).await;
    }
}

async fn reach(
    context: &Arc<PeerContext>,
    worker: usize,
    connector: &TlsConnector,
) -> Result<TlsStream<Counted>, LinkError> {
    let stream = TcpStream::connect(&context.addresses[worker]).await?;
    stream.set_nodelay(true)?;
    let counted = Counted { stream, context: Arc::clone(context) };
    let mut stream = TlsStream::from(connector.connect(server_name()?, counted).await?);
    write(&mut stream, Kind::Hello, &[&hello(context)]).await?;
    // A key that is not listed there is known by its silence: connecting alone proves nothing.
    let (kind, content) = read_small(&mut stream).await?;
    if kind != Kind::Hello {
        return Err(LinkError::Refused(format!("worker {worker} answered with {kind:?}")));
    }
    check_hello(context, worker, &content)?;
    Ok(stream)
}

/// Keys are checked, not names.
fn server_name() -> Result<ServerName<'static>, LinkError> {
    let name = ServerName::try_from("upwash").map(|name| name.to_owned());
    name.map_err(|_| LinkError::Refused("no name".into()))
}

/// Asks a peer how things are, with any listed key.
pub(crate) async fn ask(key: &Key, address: &str, theirs: Fingerprint) -> Result<Vec<u8>, LinkError> {
    let config = tls::client(key, theirs).map_err(|e| LinkError::Refused(e.to_string()))?;
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(config).connect(server_name()?, stream).await?;
    write(&mut stream, Kind::Ask, &[]).await?;
    let limits = Limits { message: 0, model: 0 };
    let header = read_header(&mut stream, &limits).await?;
    let mut content = vec![0; header.length as usize];
    stream.read_exact(&mut content).await?;
    header.check(&content)?;
    Ok(content)
}

/// All that two peers say to each other, until one of them is gone.
async fn converse(context: &Arc<PeerContext>, worker: usize, stream: TlsStream<Counted>) {
    let (outbox, frames) = mpsc::unbounded_channel();
    let under_way = Arc::new(AtomicU64::new(0));
    let id = context.table.new_id();
    context.table.connected(worker, Connection { id, outbox, under_way: Arc::clone(&under_way) });
    let (reader, writer) = tokio::io::split(stream);
    let ended = tokio::select! {
        ended = hear(context, worker, id, reader) => ended,
        ended = speak(context, frames, &under_way, writer) => ended,
    };
    let why = match ended {
        Ok(()) => "it ended the connection".to_string(),
        Err(LinkError::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "it ended the connection".into()
        }
        Err(error) => {
            if matches!(error, LinkError::Frame(_) | LinkError::Refused(_)) {
                let what = format!("worker {worker}: {error}");
                context.table.tell(MembershipEvent::Refused { what });
            }
            error.to_string()
        }
    };
    context.table.disconnected(worker, id, why);
}

async fn speak(
    context: &PeerContext,
    mut frames: mpsc::UnboundedReceiver<OutboundFrame>,
    under_way: &AtomicU64,
    mut stream: impl AsyncWrite + Unpin,
) -> Result<(), LinkError> {
    loop {
        match timeout(context.timings.heartbeat, frames.recv()).await {
            Ok(Some(OutboundFrame::Small(kind, content))) => {
                write(&mut stream, kind, &[&content]).await?;
            }
            Ok(Some(OutboundFrame::Message(message))) => {
                let header = message.header();
                let numbers: &[u8] = bytemuck::cast_slice(&message.values);
                write(&mut stream, Kind::Message, &[&header, numbers]).await?;
                under_way.fetch_sub(1, Ordering::Relaxed);
            }
            Ok(Some(OutboundFrame::Close)) => {
                stream.shutdown().await?;
                return Ok(());
            }
            Ok(None) => return Ok(()),
            // Nothing to say: still there.
            Err(_) => {
                let round = context.table.round().to_le_bytes();
                write(&mut stream, Kind::Beat, &[&round]).await?;
            }
        }
    }
}

pub(crate) async fn hear(
    context: &PeerContext,
    worker: usize,
    id: u64,
    mut stream: impl AsyncRead + Unpin,
) -> Result<(), LinkError> {
    let failure_timeout = context.timings.failure_timeout;
    let (mut since, mut small) = (Instant::now(), 0);
    loop {
        context.table.room_for(worker, id).await;
        let read = timeout(failure_timeout, read_header(&mut stream, &context.limits)).await;
        let header = read.map_err(|_| LinkError::Silent(failure_timeout))??;
        if header.kind == Kind::Message {
            let message = read_message(&mut stream, header, failure_timeout, &context.pool).await?;
            if message.from != worker {
                let why = format!("it spoke as worker {}", message.from);
                return Err(LinkError::Refused(why));
            }
            let kept = context.table.message(worker, id, message);
            kept.map_err(|error| LinkError::Refused(error.to_string()))?;
            continue;
        }
        let content = read_pieces(&mut stream, header.length as usize, failure_timeout).await?;
        header.check(&content)?;
        if since.elapsed() > Duration::from_secs(1) {
            (since, small) = (Instant::now(), 0);
        }
        small += 1;
        if small > SMALL_FRAMES {
            let why = format!("more than {SMALL_FRAMES} small frames in a second");
            return Err(LinkError::Refused(why));
        }
        match header.kind {
            Kind::Offer | Kind::Beat => {
                let round = parse_round(&content)?;
                // Nobody shall make us skip what there is to train.
                if round > context.rounds {
                    let why = format!("it is in round {round} of {}", context.rounds);
                    return Err(LinkError::Refused(why));
                }
                match header.kind {
                    Kind::Offer => context.table.promise(worker, id, round),
                    _ => context.table.beat(worker, id, round),
                }
            }
            Kind::Fetch => context.table.fetch(worker),
            Kind::Model => {
                let (round, model) = parse_model(&content)?;
                if round > context.rounds || !context.table.model(worker, round, model) {
                    return Err(LinkError::Refused("a model that nobody asked for".into()));
                }
            }
            Kind::Goodbye => context.table.goodbye(worker, id),
            Kind::Hello | Kind::Ask | Kind::Answer | Kind::Message => {
                let why = format!("{:?} in the middle of a conversation", header.kind);
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

/// A frame from someone who has not said who it is.
async fn read_small(stream: &mut (impl AsyncRead + Unpin)) -> Result<(Kind, Vec<u8>), LinkError> {
    let limits = Limits { message: 0, model: 0 };
    let header = read_header(stream, &limits).await?;
    let mut content = vec![0; (header.length as usize).min(SMALL)];
    stream.read_exact(&mut content).await?;
    header.check(&content)?;
    Ok((header.kind, content))
}

/// So many bytes, of which some must come all the time. Memory is taken as they come.
async fn read_pieces(
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
    failure_timeout: Duration,
) -> Result<Vec<u8>, LinkError> {
    let mut content = Vec::new();
    while content.len() < length {
        let from = content.len();
        content.resize(length.min(from + PIECE), 0);
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
        return Err(FrameError::Garbage.into());
    }
    let mut header = [0; HEADER];
    let read = timeout(failure_timeout, stream.read_exact(&mut header)).await;
    read.map_err(|_| LinkError::Silent(failure_timeout))??;
    let count = (length - HEADER) / 4;
    let mut message = parse_message(&header, count)?;
    // Memory that is there already, or takes as much as comes: all at once would let a promise alone
    // take it.
    let mut numbers = pool.spare(count).unwrap_or_default();
    let mut hash = crc32fast::Hasher::new();
    hash.update(&header);
    for from in (0..count).step_by(PIECE / 4) {
        let to = count.min(from + PIECE / 4);
        if numbers.len() < to {
            numbers.reserve_exact((count - from).min((from + PIECE).max(PIECE)));
            numbers.resize(to, 0.0);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut numbers[from..to]);
        let read = timeout(failure_timeout, stream.read_exact(bytes)).await;
        read.map_err(|_| LinkError::Silent(failure_timeout))??;
        hash.update(bytes);
    }
    if hash.finalize() != frame.checksum && !cfg!(fuzzing) {
        return Err(FrameError::Checksum.into());
    }
    message.values = pool.lend(numbers);
    Ok(message)
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), kind: Kind, content: &[&[u8]]) -> Result<(), LinkError> {
    let header = FrameHeader::of(kind, content);
    stream.write_all(&header.to_bytes()).await?;
    for piece in content {
        stream.write_all(piece).await?;
    }
    stream.flush().await?;
    Ok(())
}
