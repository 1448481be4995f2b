//! Accepts and opens connections, within bounds on those that have not proved who they are.

use crate::connection::{LinkError, run_connection};
use crate::context::PeerContext;
use crate::{handshake, tls};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Maximum number of connections that have not authenticated yet, in all and from one address, besides one for each
/// worker. A further connection replaces the oldest.
const MAX_UNAUTHENTICATED: usize = 32;
const MAX_UNAUTHENTICATED_PER_ADDRESS: usize = 8;
/// Maximum number of open connections of one key: one that is used, and some that are being closed.
const MAX_PER_KEY: usize = 4;

/// Connections that have not authenticated yet, oldest first.
struct Handshakes {
    open: VecDeque<(IpAddr, AbortHandle)>,
    limit: usize,
    limit_per_address: usize,
}

impl Handshakes {
    fn new(workers: usize) -> Self {
        Self {
            open: VecDeque::new(),
            limit: MAX_UNAUTHENTICATED + workers,
            limit_per_address: MAX_UNAUTHENTICATED_PER_ADDRESS + workers,
        }
    }

    /// Makes room for another connection from this address. An address that has its share replaces its own oldest
    /// connection, so that it cannot shut out others.
    fn make_room(&mut self, address: IpAddr) {
        self.open.retain(|(_, task)| !task.is_finished());
        let is_same = |entry: &(IpAddr, AbortHandle)| entry.0 == address;
        let from_same = self.open.iter().filter(|entry| is_same(entry)).count();
        let evicted = match from_same >= self.limit_per_address {
            true => self.open.iter().position(is_same),
            false => (self.open.len() >= self.limit).then_some(0),
        };
        if let Some((_, task)) = evicted.and_then(|index| self.open.remove(index)) {
            task.abort();
        }
    }

    fn add(&mut self, address: IpAddr, task: AbortHandle) {
        self.open.push_back((address, task));
    }
}

/// Accepts connections and runs each of them in a task.
pub(crate) async fn listen(context: Arc<PeerContext>, listener: TcpListener, acceptor: TlsAcceptor) {
    let mut handshakes = Handshakes::new(context.keys.len());
    let per_key: Arc<Vec<AtomicUsize>> = Arc::new(context.keys.iter().map(|_| AtomicUsize::new(0)).collect());
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            // The process may be out of file descriptors. Connections that close free some.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        handshakes.make_room(address.ip());
        let (context, acceptor, per_key) = (Arc::clone(&context), acceptor.clone(), Arc::clone(&per_key));
        let task: JoinHandle<()> = tokio::spawn(async move {
            let deadline = context.timings.handshake;
            let refused = match timeout(deadline, handshake::accept(&context, stream, acceptor)).await {
                Ok(Ok(None)) => return,
                Ok(Ok(Some((worker, stream)))) => {
                    let open = per_key[worker].fetch_add(1, Ordering::Relaxed);
                    if open < MAX_PER_KEY {
                        // A task of its own, which does not count as a handshake any more.
                        tokio::spawn(async move {
                            run_connection(&context, worker, stream).await;
                            per_key[worker].fetch_sub(1, Ordering::Relaxed);
                        });
                        return;
                    }
                    per_key[worker].fetch_sub(1, Ordering::Relaxed);
                    format!("worker {worker} has {open} open connections")
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("it did not authenticate within {} seconds", deadline.as_secs_f64()),
            };
            context.refused(format!("connection from {address}: {refused}"));
        });
        handshakes.add(address.ip(), task.abort_handle());
    }
}

/// Connects to a worker, and reconnects whenever the connection ends, for as long as the run lasts.
pub(crate) async fn keep_connected(context: Arc<PeerContext>, worker: usize) {
    const SHORTEST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(2);
    let Ok(config) = tls::client(&context.key, context.keys[worker]) else {
        return;
    };
    let connector = TlsConnector::from(config);
    let mut pause = SHORTEST;
    loop {
        let connected = timeout(context.timings.handshake, handshake::connect(&context, worker, &connector)).await;
        let failed = match connected {
            Ok(Ok(stream)) => {
                pause = SHORTEST;
                run_connection(&context, worker, stream).await;
                None
            }
            Ok(Err(LinkError::Refused(what))) => {
                context.refused(what.clone());
                pause = LONGEST;
                Some(what)
            }
            // The worker has not started yet, or has ended.
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it does not answer".into()),
        };
        if let Some(why) = failed {
            context.drive(|protocol, _| protocol.record_unreachable(worker, why));
            pause = (2 * pause).min(LONGEST);
        }
        tokio::time::sleep(pause).await;
    }
}

/// Lets the protocol know that time passes.
pub(crate) async fn tick(context: Arc<PeerContext>) {
    let mut ticks = tokio::time::interval(context.timings.heartbeat / 4);
    loop {
        ticks.tick().await;
        context.drive(|protocol, now| protocol.on_tick(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_replace_their_own_oldest_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.map(|runtime| runtime.block_on(check_eviction())).unwrap_or_default();
    }

    async fn check_eviction() {
        let mut handshakes = Handshakes::new(0);
        let mut tasks = Vec::new();
        let mut add = |handshakes: &mut Handshakes, address: [u8; 4]| {
            handshakes.make_room(address.into());
            let task = tokio::spawn(std::future::pending::<()>());
            handshakes.add(address.into(), task.abort_handle());
            tasks.push(task);
        };
        add(&mut handshakes, [10, 0, 0, 1]);
        for _ in 0..1000 {
            add(&mut handshakes, [10, 0, 0, 2]);
        }
        let from_neighbor =
            |handshakes: &Handshakes| handshakes.open.iter().any(|entry| entry.0 == IpAddr::from([10, 0, 0, 1]));
        assert!(from_neighbor(&handshakes), "one address shut out another");
        assert_eq!(handshakes.open.len(), 1 + MAX_UNAUTHENTICATED_PER_ADDRESS);
        for k in 0..=255 {
            add(&mut handshakes, [10, 0, 1, k]);
        }
        assert_eq!(handshakes.open.len(), MAX_UNAUTHENTICATED);
        assert!(!from_neighbor(&handshakes), "the oldest goes first");
        // The runtime ends some tasks in each turn.
        let open = || tasks.iter().filter(|task| !task.is_finished()).count();
        for _ in 0..tasks.len() {
            tokio::task::yield_now().await;
        }
        assert_eq!(open(), MAX_UNAUTHENTICATED, "evicted connections are closed");
    }
}
