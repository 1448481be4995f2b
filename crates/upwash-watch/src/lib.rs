//! A run in a browser while it goes on: a small server that reads the run's folder, as reports do, and tells those who
//! watch what is new. It changes nothing but what someone asks for at a button, which it leaves in the folder as a
//! [request](upwash::run::ControlRequest). It does not matter whether it is in the run's process or in one of its own.

mod reader;
mod requests;
mod token;

pub use token::{Token, TokenError};

use reader::Reader;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use upwash_report::ReadError;

/// How long a server that ends waits for those who watch to hear the last of it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why a run cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// There is no run.
    #[error(transparent)]
    Run(#[from] ReadError),
    /// Someone listens there already.
    #[error(
        "{0} is in use, perhaps by another `watch`: choose another with `watch --listen ADDRESS:PORT` or `train \
         --watch=ADDRESS:PORT`; port 0 is any that is free"
    )]
    InUse(SocketAddr),
    /// The system does not let us.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// Others could look, and stop the run.
    #[error("{0} can be reached from other machines: watching there needs a token")]
    NeedsToken(SocketAddr),
}

/// An address at which browsers may ask, and nobody answers yet.
pub struct Place {
    listener: TcpListener,
    address: SocketAddr,
    token: Option<Token>,
}

impl Place {
    /// Takes an address. Where other machines can reach it, a token must be part of every request.
    pub fn take(address: SocketAddr, token: Option<Token>) -> Result<Self, WatchError> {
        if token.is_none() && !address.ip().is_loopback() {
            return Err(WatchError::NeedsToken(address));
        }
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => WatchError::InUse(address),
            _ => WatchError::Listen { address, error },
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, token })
    }

    /// Shows the run in a folder there.
    pub fn show(self, folder: &Path) -> Result<Server, WatchError> {
        let Self { listener, address, token } = self;
        let failed = |error| WatchError::Listen { address, error };
        let reader = Reader::open(folder)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, asked) = (stop.clone(), token.clone());
        let serve = move || {
            let (news, reading) = reader.follow(stopped);
            runtime.block_on(requests::serve(listener, news, asked));
            let _ = reading.join();
            runtime.shutdown_timeout(FAREWELL);
        };
        let thread = std::thread::Builder::new().name("watch".into());
        let thread = Some(thread.spawn(serve).map_err(failed)?);
        Ok(Server { address, token, stop, thread })
    }
}

/// A server, until it is dropped.
pub struct Server {
    address: SocketAddr,
    token: Option<Token>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Whether browsers on this machine alone can reach it.
    pub fn is_local(&self) -> bool {
        self.address.ip().is_loopback()
    }

    /// What to open in a browser.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        // An address that stands for all is none that one can go to.
        let host = match ip.is_unspecified() {
            true => "THIS-MACHINE".into(),
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

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
