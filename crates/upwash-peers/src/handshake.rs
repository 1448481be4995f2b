//! Handshakes: how two peers prove who they are and that they take part in the same run.

use crate::connection::{LinkError, read_control_frame, read_header, write};
use crate::context::PeerContext;
use crate::frame::{Hello, Kind, Limits, VERSION};
use crate::keys::{Fingerprint, Key};
use crate::tls;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// A TCP stream that counts the bytes it sends and receives.
pub(crate) struct CountingStream {
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
        self.context.bytes_received.fetch_add(count, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for CountingStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.context.bytes_sent.fetch_add(count as u64, Ordering::Relaxed);
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

/// Authenticates the connecting side. Returns its worker, or `None` if it only requested the status.
pub(crate) async fn accept(
    context: &Arc<PeerContext>,
    stream: TcpStream,
    acceptor: TlsAcceptor,
) -> Result<Option<(usize, TlsStream<CountingStream>)>, LinkError> {
    stream.set_nodelay(true)?;
    let counting = CountingStream { stream, context: Arc::clone(context) };
    let stream = acceptor.accept(counting).await?;
    let presented = stream.get_ref().1.peer_certificates().and_then(|keys| keys.first());
    let presented = presented.map(|key| Fingerprint::of(key));
    let worker = presented.and_then(|key| context.keys.iter().position(|listed| *listed == key));
    let worker = worker.ok_or_else(|| LinkError::Refused("its key is not listed".into()))?;
    let mut stream = TlsStream::from(stream);
    let (kind, content) = read_control_frame(&mut stream).await?;
    match kind {
        Kind::StatusRequest => {
            let status = serde_json::to_vec(&context.status()).unwrap_or_default();
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

/// Connects to a worker.
pub(crate) async fn connect(
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
