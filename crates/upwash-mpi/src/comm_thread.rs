//! The thread that makes all MPI calls.
//!
//! A message consists of two MPI messages: an envelope with the header, and the values. If the values are in
//! [shared memory](crate::shared_memory), a receiver on the same host gets only the envelope, with their address.
//! Messages from one rank arrive in the order in which it posted them, because MPI keeps the order of each sender.

use crate::Rank;
use crate::raw::{Communicator, Pending, PendingSend, abort, count, finalize, request_short_time_slices};
use crate::shared_memory::{Address, RemoteRegions, SharedRegion};
use std::collections::VecDeque;
use std::io::Write;
use std::os::raw::c_int;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use upwash::WorkerId;
use upwash::transport::{Buffer, HEADER, Message};

// MPI tags.
const ENVELOPE_TAG: c_int = 1;
const VALUES_TAG: c_int = 2;
const CONTROL_TAG: c_int = 3;

/// Bytes of an envelope: a header and the address of the values. The address is zero if the values follow over MPI.
const ENVELOPE_BYTES: usize = HEADER + Address::LENGTH;

/// Polls without any work before the thread sleeps.
const IDLE_POLLS: u32 = 10;
const SLEEP: Duration = Duration::from_micros(50);
/// How long a rank that has finished waits for the other ranks to finish.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(600);

/// A request from the main thread to the communication thread.
pub(crate) enum CommRequest {
    Post { message: Message, receivers: Vec<usize> },
    SumF32(Vec<f32>),
    SumF64(Vec<f64>),
    Stop,
    Diverged { worker: WorkerId, round: u64 },
    Shutdown,
}

/// A result or an event that the communication thread reports to the main thread.
pub(crate) enum Signal {
    Message(Message),
    SumF32(Vec<f32>),
    SumF64(Vec<f64>),
    Diverged { worker: WorkerId, round: u64 },
}

/// The agreement of the ranks on where to stop.
#[derive(Default)]
pub(crate) struct StopState {
    /// Some rank has requested a stop.
    pub(crate) requested: bool,
    /// Number of rounds that this rank has begun.
    pub(crate) begun: u64,
    /// Number of rounds that all ranks complete, once they agree.
    pub(crate) agreed: Option<u64>,
}

/// State shared by the main thread and the communication thread.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) stop: Mutex<StopState>,
    pub(crate) changed: Condvar,
}

/// The communication thread.
pub(crate) struct CommThread {
    rank: Rank,
    requests: Receiver<CommRequest>,
    signals: Sender<Signal>,
    shared: Arc<Shared>,
    /// Communicator of messages and sums.
    data: Communicator,
    /// Communicator of the collectives that end a run. Their order is independent of that of the sums.
    shutdown: Communicator,
    envelope_sends: Vec<PendingSend<Arc<Vec<u8>>>>,
    value_sends: Vec<PendingSend<Arc<Buffer>>>,
    /// For each rank, whether it can read the shared memory of this one.
    can_share: Vec<bool>,
    remote_regions: RemoteRegions,
    control_sends: Vec<PendingSend<Arc<Vec<u64>>>>,
    /// For each rank, the messages that are being received, in order.
    incoming: Vec<VecDeque<Incoming>>,
    sum_f32: Option<Pending<f32>>,
    sum_f64: Option<Pending<f64>>,
    agreement: Option<Pending<u64>>,
    final_barrier: Option<Pending<u8>>,
    shutting_down: bool,
}

/// A message that is being received, with the receive of its values unless they are in shared memory.
type Incoming = (Message, Option<Pending<f32>>);

/// Values of a control message.
const CONTROL_VALUES: usize = 3;
// Kinds of control messages: their first element.
const STOP: u64 = 1;
const DIVERGED: u64 = 2;

impl CommThread {
    pub(crate) fn new(
        rank: Rank,
        can_share: Vec<bool>,
        requests: Receiver<CommRequest>,
        signals: Sender<Signal>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            can_share,
            remote_regions: RemoteRegions::default(),
            rank,
            requests,
            signals,
            shared,
            data: Communicator::new(),
            shutdown: Communicator::new(),
            envelope_sends: vec![],
            value_sends: vec![],
            control_sends: vec![],
            incoming: (0..rank.size).map(|_| VecDeque::new()).collect(),
            sum_f32: None,
            sum_f64: None,
            agreement: None,
            final_barrier: None,
            shutting_down: false,
        }
    }

    /// Serves requests until all ranks have shut down.
    pub(crate) fn run(mut self) {
        request_short_time_slices();
        let (mut idle_polls, mut shutdown_began) = (0, None);
        loop {
            let mut busy = self.handle_requests();
            busy |= self.complete_sends();
            busy |= self.receive_messages();
            busy |= self.complete_collectives();
            busy |= self.receive_control();
            if self.shutting_down {
                if self.is_shut_down() {
                    finalize();
                    return;
                }
                let since = *shutdown_began.get_or_insert_with(Instant::now);
                if since.elapsed() > SHUTDOWN_TIMEOUT {
                    let seconds = SHUTDOWN_TIMEOUT.as_secs();
                    let _ = writeln!(
                        std::io::stderr(),
                        "error: the other ranks did not finish within {seconds} seconds after this one"
                    );
                    abort(2);
                }
            }
            // MPI makes progress only during calls, so this thread must poll. A thread that sleeps briefly runs as soon
            // as it wakes. A thread that only yields waits until a gradient on the same core has used its time slice.
            idle_polls = if busy { 0 } else { idle_polls + 1 };
            if idle_polls > IDLE_POLLS {
                idle_polls = 0;
                match self.requests.recv_timeout(SLEEP) {
                    Ok(request) => self.handle_request(request),
                    Err(RecvTimeoutError::Timeout) => {}
                    // The main thread has ended without a shutdown request.
                    Err(RecvTimeoutError::Disconnected) => self.shutting_down = true,
                }
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Handles all waiting requests. Like the other steps of the loop, returns whether there was any work.
    fn handle_requests(&mut self) -> bool {
        let mut busy = false;
        loop {
            match self.requests.try_recv() {
                Ok(request) => self.handle_request(request),
                Err(TryRecvError::Empty) => return busy,
                Err(TryRecvError::Disconnected) => {
                    self.shutting_down = true;
                    return busy;
                }
            }
            busy = true;
        }
    }

    fn handle_request(&mut self, request: CommRequest) {
        match request {
            CommRequest::Post { message, receivers } => {
                let header = message.header();
                let envelope = |address: [u8; Address::LENGTH]| Arc::new([&header[..], &address].concat());
                let values = Arc::new(message.values);
                let region: Option<&SharedRegion> = values.as_shared();
                let (local, remote): (Vec<usize>, Vec<usize>) = match region {
                    Some(_) => receivers.into_iter().partition(|&to| self.can_share[to]),
                    None => (vec![], receivers),
                };
                if let Some(region) = region {
                    region.add_readers(u32::try_from(local.len()).unwrap_or_else(|_| panic!("too many receivers")));
                    let envelope = envelope(region.address().to_bytes());
                    for to in local {
                        let send = self.data.send(Arc::clone(&envelope), to, ENVELOPE_TAG);
                        self.envelope_sends.push(send);
                    }
                }
                let envelope = envelope([0; Address::LENGTH]);
                for to in remote {
                    let send = self.data.send(Arc::clone(&envelope), to, ENVELOPE_TAG);
                    self.envelope_sends.push(send);
                    if !values.is_empty() {
                        let send = self.data.send(Arc::clone(&values), to, VALUES_TAG);
                        self.value_sends.push(send);
                    }
                }
            }
            CommRequest::SumF32(values) => self.sum_f32 = Some(self.data.all_reduce(values, false)),
            CommRequest::SumF64(values) => self.sum_f64 = Some(self.data.all_reduce(values, false)),
            CommRequest::Stop => self.stop(true),
            CommRequest::Diverged { worker, round } => {
                self.send_control(&[DIVERGED, worker.0 as u64, round]);
            }
            CommRequest::Shutdown => self.shutting_down = true,
        }
    }

    /// Sends a control message to all other ranks.
    fn send_control(&mut self, control: &[u64; CONTROL_VALUES]) {
        let control = Arc::new(control.to_vec());
        for to in (0..self.rank.size).filter(|&to| to != self.rank.number) {
            let send = self.data.send(Arc::clone(&control), to, CONTROL_TAG);
            self.control_sends.push(send);
        }
    }

    /// Starts the agreement on where to stop: the largest number of rounds that any rank has begun.
    fn stop(&mut self, notify: bool) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if std::mem::replace(&mut state.requested, true) {
            return;
        }
        if notify {
            self.send_control(&[STOP, 0, 0]);
        }
        self.agreement = Some(self.shutdown.all_reduce(vec![state.begun], true));
    }

    fn complete_sends(&mut self) -> bool {
        let before = self.envelope_sends.len() + self.value_sends.len() + self.control_sends.len();
        self.envelope_sends.retain_mut(|send| !send.is_done());
        self.value_sends.retain_mut(|send| !send.is_done());
        self.control_sends.retain_mut(|send| !send.is_done());
        before > self.envelope_sends.len() + self.value_sends.len() + self.control_sends.len()
    }

    fn receive_messages(&mut self) -> bool {
        let mut busy = false;
        while let Some((from, size)) = self.data.probe(ENVELOPE_TAG) {
            busy = true;
            assert!(size == Some(ENVELOPE_BYTES), "invalid message from rank {from}: its envelope has {size:?} bytes");
            let mut envelope = self.data.receive::<u8>(ENVELOPE_BYTES, from, ENVELOPE_TAG);
            while !envelope.is_done() {
                std::hint::spin_loop();
            }
            let incoming = self.parse_envelope(&envelope.into_values(), from);
            let incoming = incoming.unwrap_or_else(|error| panic!("invalid message from rank {from}: {error}"));
            self.incoming[from.unsigned_abs() as usize].push_back(incoming);
        }
        for queue in &mut self.incoming {
            while let Some((_, values)) = queue.front_mut() {
                if values.as_mut().is_some_and(|values| !values.is_done()) {
                    break;
                }
                busy = true;
                if let Some((mut message, values)) = queue.pop_front() {
                    if let Some(values) = values {
                        message.values = values.into_values().into();
                    }
                    // After the run the main thread no longer receives signals.
                    let _ = self.signals.send(Signal::Message(message));
                }
            }
        }
        busy
    }

    /// Decodes an envelope and starts to receive the values, or maps them if they are in shared memory.
    fn parse_envelope(&mut self, envelope: &[u8], from: c_int) -> Result<Incoming, String> {
        let (header, address) = envelope.split_at(HEADER);
        let header = header.try_into().map_err(|_| "missing header")?;
        let address = address.try_into().map_err(|_| "missing address")?;
        let parsed = Message::from_header(&header).map_err(|error| error.to_string());
        let (mut message, length) = parsed?;
        let length = usize::try_from(length).map_err(|_| format!("{length} values"))?;
        count(length)?;
        let mut values = None;
        if address != [0; Address::LENGTH] {
            message.values = self.remote_regions.read(Address::from_bytes(address), length)?;
        } else if length > 0 {
            values = Some(self.data.receive::<f32>(length, from, VALUES_TAG));
        }
        Ok((message, values))
    }

    fn complete_collectives(&mut self) -> bool {
        let mut busy = false;
        if let Some(sum) = self.sum_f32.take_if(|sum| sum.is_done()) {
            busy = true;
            let _ = self.signals.send(Signal::SumF32(sum.into_values()));
        }
        if let Some(sum) = self.sum_f64.take_if(|sum| sum.is_done()) {
            busy = true;
            let _ = self.signals.send(Signal::SumF64(sum.into_values()));
        }
        if let Some(agreed) = self.agreement.take_if(|agreed| agreed.is_done()) {
            busy = true;
            self.shared.lock().agreed = agreed.into_values().first().copied();
            self.shared.changed.notify_all();
        }
        busy
    }

    fn receive_control(&mut self) -> bool {
        let Some((from, size)) = self.data.probe(CONTROL_TAG) else {
            return false;
        };
        assert!(
            size == Some(size_of::<u64>() * CONTROL_VALUES),
            "invalid message from rank {from}: its control message has {size:?} bytes"
        );
        let mut control = self.data.receive::<u64>(CONTROL_VALUES, from, CONTROL_TAG);
        while !control.is_done() {
            std::hint::spin_loop();
        }
        match control.into_values()[..] {
            [DIVERGED, worker, round] => {
                let worker = usize::try_from(worker)
                    .map(WorkerId)
                    .unwrap_or_else(|error| panic!("invalid message from rank {from}: worker {worker}: {error}"));
                let _ = self.signals.send(Signal::Diverged { worker, round });
            }
            _ => self.stop(false),
        }
        true
    }

    /// Whether all ranks are shutting down and have completed their sends.
    fn is_shut_down(&mut self) -> bool {
        let sent = self.envelope_sends.is_empty() && self.value_sends.is_empty() && self.control_sends.is_empty();
        if self.final_barrier.is_none() {
            if !sent || self.agreement.is_some() {
                return false;
            }
            self.final_barrier = Some(self.shutdown.barrier());
        }
        self.final_barrier.as_mut().is_some_and(Pending::is_done)
    }
}
