//! The runtime of peers on a network: sockets, and threads that serve them.

use crate::context::{Identity, PeerContext};
use crate::protocol::{Protocol, ProtocolConfig, Time};
use crate::runtime::Runtime;
use crate::transport::PeerTransport;
use crate::{Fingerprint, PeersConfig, listener, tls};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upwash::transport::{Pool, TransportError};

/// Transport between peers. Dropping it tells the other peers that this one has finished.
pub type Peers = PeerTransport<Sockets>;

/// Drives the protocol with sockets.
pub struct Sockets {
    context: Arc<PeerContext>,
    neighbors: Vec<usize>,
    runtime: Option<tokio::runtime::Runtime>,
    /// Taken when the first round starts. Connections must not start earlier, because they offer that round.
    listener: Option<(tokio::net::TcpListener, tokio_rustls::TlsAcceptor)>,
}

pub(crate) fn broken(error: impl std::fmt::Display) -> TransportError {
    TransportError::Broken(error.to_string())
}

impl PeerTransport<Sockets> {
    /// Binds the address to listen on. Accepting and opening connections starts with the first round.
    pub fn new(config: PeersConfig) -> Result<Self, TransportError> {
        let PeersConfig { own, key, peers, listen, neighbors, run, rounds, has_rounds, has_end, limits, timings } =
            config;
        let workers = peers.len();
        let (addresses, keys): (Vec<String>, Vec<Fingerprint>) = peers.into_iter().unzip();
        if keys.get(own) != Some(&key.fingerprint()) {
            return Err(broken(format!(
                "the configuration lists a different key for worker {own} than {}: pass the listed key with --key, \
                 or list this one",
                key.fingerprint()
            )));
        }
        let server = tls::server(&key, keys.clone()).map_err(broken)?;
        let pool = Pool::new(neighbors.len() + 2);
        let protocol =
            ProtocolConfig { own, workers, neighbors: neighbors.clone(), rounds, has_rounds, has_end, timings };
        let identity = Identity { own, key, keys, addresses, run };
        let context = PeerContext::new(identity, limits, timings, pool.clone(), Protocol::new(protocol));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("peers")
            .enable_all()
            .build()
            .map_err(broken)?;
        let address = listen.unwrap_or_else(|| context.addresses[own].clone());
        let listener = runtime.block_on(tokio::net::TcpListener::bind(&address)).map_err(|error| {
            broken(format!(
                "cannot listen on {address}: {error} (if this peer is already running, stop it; to listen on another \
                 address, use --listen)"
            ))
        })?;
        let listener = Some((listener, tokio_rustls::TlsAcceptor::from(server)));
        let sockets = Sockets { context: Arc::new(context), neighbors, runtime: Some(runtime), listener };
        Ok(Self::over(sockets, own, workers, pool))
    }
}

impl Runtime for Sockets {
    fn call<T>(&self, call: impl FnOnce(&mut Protocol, Time) -> T) -> T {
        self.context.drive(call)
    }

    fn wait(&self, version: u64, until: Time) {
        self.context.wait(version, until);
    }

    fn bytes(&self) -> (u64, u64) {
        self.context.bytes()
    }

    /// Starts to accept connections and to connect to neighbors.
    fn start(&mut self) {
        let (Some((listener, acceptor)), Some(runtime)) = (self.listener.take(), &self.runtime) else {
            return;
        };
        runtime.spawn(listener::listen(Arc::clone(&self.context), listener, acceptor));
        runtime.spawn(listener::tick(Arc::clone(&self.context)));
        // Of two neighbors, the one with the lower index connects.
        for &worker in self.neighbors.iter().filter(|&&worker| worker > self.context.own) {
            runtime.spawn(listener::keep_connected(Arc::clone(&self.context), worker));
        }
    }
}

impl Drop for Sockets {
    /// Lets the last frames leave before the threads stop.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(async {
                let deadline = Instant::now() + Duration::from_secs(5);
                while self.context.has_open_connections() && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}
