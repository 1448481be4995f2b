//! Live view of a run in a browser.
//!
//! A small HTTP server follows the run's folder, as reports do, and streams changes to the connected browsers. It only
//! writes to the folder when a user presses a button: then it leaves a
//! [control request](upwash::run::ControlRequest) there. The server can be part of the run's process or a separate one.

mod connections;
mod descriptors;
mod reader;
mod requests;
mod token;

pub use token::{Token, TokenError};

use connections::Capacity;
use reader::Reader;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use upwash_report::ReadError;

/// How many browsers can receive updates at a time.
pub const MAX_VIEWERS: usize = 64;
/// How long a server that shuts down waits for browsers to receive the last messages.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a run cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The folder is not a run, or cannot be read.
    #[error(transparent)]
    Run(#[from] ReadError),
    /// Another program already listens on the address.
    #[error(
        "{0} is in use, perhaps by another `watch`: choose another address with `watch --listen ADDRESS:PORT` or \
         `train --watch=ADDRESS:PORT`; port 0 selects a free port"
    )]
    InUse(SocketAddr),
    /// The system refused to listen on the address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// Connections would take file descriptors that training needs.
    #[error(
        "too few files may be open for the live page: raise the limit to {0} or more with `ulimit -n`, or do without \
         the page"
    )]
    Descriptors(u64),
    /// Without a token, anyone on the network could watch and stop the run.
    #[error("{0} can be reached from other machines: listening there requires a token")]
    NeedsToken(SocketAddr),
}

/// A bound address that does not serve a run yet.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    token: Option<Token>,
    capacity: Capacity,
}

impl Listener {
    /// Binds an address. Every request must carry the token, if there is one. An address that other machines can reach
    /// needs one. Raises the soft limit of open files of this process, if it is low.
    pub fn bind(address: SocketAddr, token: Option<Token>) -> Result<Self, WatchError> {
        if token.is_none() && !address.ip().is_loopback() {
            return Err(WatchError::NeedsToken(address));
        }
        let capacity = Capacity::of(descriptors::for_connections());
        let capacity = capacity.ok_or(WatchError::Descriptors(descriptors::needed()))?;
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => WatchError::InUse(address),
            _ => WatchError::Listen { address, error },
        };
        let socket = TcpListener::bind(address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self { socket, address, token, capacity })
    }

    /// Starts serving the run in a folder.
    pub fn serve(self, folder: &Path) -> Result<Server, WatchError> {
        let Self { socket, address, token, capacity } = self;
        let failed = |error| WatchError::Listen { address, error };
        let reader = Reader::open(folder)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, required) = (stop.clone(), token.clone());
        let serve = move || {
            let (updates, reading) = reader.follow(stopped);
            runtime.block_on(requests::serve(socket, updates, required, capacity));
            let _ = reading.join();
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        };
        let thread = std::thread::Builder::new().name("watch".into());
        let thread = Some(thread.spawn(serve).map_err(failed)?);
        Ok(Server { address, token, stop, thread })
    }
}

/// A running server. Dropping it shuts it down.
pub struct Server {
    address: SocketAddr,
    token: Option<Token>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Whether only browsers on this machine can reach the server.
    pub fn is_local(&self) -> bool {
        self.address.ip().is_loopback()
    }

    /// The URL to open in a browser, including the token.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        // The unspecified address (0.0.0.0 or ::) is not one that a browser can open.
        let host = match ip.is_unspecified() {
            true => host_name().unwrap_or_else(|| "localhost".into()),
            false if ip.is_ipv6() => format!("[{ip}]"),
            false => ip.to_string(),
        };
        let port = self.address.port();
        match &self.token {
            Some(token) => format!("http://{host}:{port}/?token={}", token.as_str()),
            None => format!("http://{host}:{port}/"),
        }
    }
}

/// The name of this machine in its network, if it has one that can be part of a URL.
fn host_name() -> Option<String> {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!name.is_empty() && name.chars().all(is_plain)).then_some(name)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
