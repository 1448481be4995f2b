//! Accepts connections within bounds: how many there are, how long a client may take to ask, and how long it may refuse
//! to read.
//!
//! A connection is *waiting* until its request is authorized, and *admitted* from then on. Waiting connections are
//! evicted, the oldest first, so clients that never ask cannot keep others out. A connection carries one request.

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio_io_timeout::TimeoutStream;

/// How long a client may take to send the head of its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take none of what is sent to it.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Connections whose request has not been authorized yet.
    pub(crate) waiting: usize,
    /// Connections whose request was authorized.
    pub(crate) admitted: usize,
}

impl Capacity {
    /// The capacity of a server, however many descriptors there are.
    pub(crate) const MAX: Self = Self { waiting: 64, admitted: 128 };

    /// The capacity with this many file descriptors; `None` if it would be too small to be useful.
    pub(crate) fn of(descriptors: usize) -> Option<Self> {
        const MIN: usize = 8;
        let total = descriptors.min(Self::MAX.waiting + Self::MAX.admitted);
        let waiting = Self::MAX.waiting.min(total / 3);
        (total >= MIN).then_some(Self { waiting, admitted: total - waiting })
    }
}

/// Serves until `ended` completes, and lets admitted connections finish for `grace`.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    capacity: Capacity,
    ended: impl Future<Output = ()>,
    grace: Duration,
) {
    let waiting = Waiting::default();
    let places = Arc::new(Semaphore::new(capacity.admitted));
    let mut tasks = JoinSet::new();
    tokio::pin!(ended);
    for number in 0.. {
        let stream = loop {
            tokio::select! {
                () = &mut ended => break None,
                Some(_) = tasks.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => break Some(stream),
                    // Others may have used up the descriptors. The client stays in the system's queue.
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
            }
        };
        let Some(stream) = stream else { break };
        waiting.make_room(capacity.waiting);
        let connection = Connection { number, waiting: waiting.clone(), places: places.clone(), place: Arc::default() };
        let task = tasks.spawn(serve_connection(stream, router.clone(), connection));
        waiting.lock().push_back((number, task));
    }
    drop(listener);
    waiting.lock().drain(..).for_each(|(_, task)| task.abort());
    let finished = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(grace, finished).await;
}

/// Serves the one request of a connection.
async fn serve_connection(stream: TcpStream, router: Router, connection: Connection) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(STALL_TIMEOUT));
    let service = TowerToHyperService::new(router.layer(Extension(connection.clone())));
    let mut server = http1::Builder::new();
    server.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    // The error is the client's.
    let _ = server.serve_connection(TokioIo::new(Box::pin(stream)), service).await;
    connection.waiting.remove(connection.number);
}

/// The waiting connections, oldest first.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<VecDeque<(u64, AbortHandle)>>>);

impl Waiting {
    /// Closes the oldest connections until there is room for one more.
    fn make_room(&self, capacity: usize) {
        let mut waiting = self.lock();
        while waiting.len() >= capacity
            && let Some((_, oldest)) = waiting.pop_front()
        {
            oldest.abort();
        }
    }

    fn remove(&self, number: u64) {
        self.lock().retain(|(other, _)| *other != number);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, AbortHandle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, as its request sees it.
#[derive(Clone)]
pub(crate) struct Connection {
    number: u64,
    waiting: Waiting,
    places: Arc<Semaphore>,
    /// The place among the admitted ones, until the connection ends.
    place: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Connection {
    /// Admits the connection, whose request is authorized. Returns whether there is a place for it.
    pub(crate) fn admit(&self) -> bool {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return false;
        };
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        self.waiting.remove(self.number);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_leaves_descriptors_to_the_run() {
        assert_eq!(Capacity::of(0), None);
        assert_eq!(Capacity::of(7), None);
        assert_eq!(Capacity::of(30), Some(Capacity { waiting: 10, admitted: 20 }));
        assert_eq!(Capacity::of(1 << 20), Some(Capacity::MAX));
    }
}
