//! MPI transport for Upwash.
//!
//! `mpirun -np 8 upwash train CONFIG.toml --transport mpi` runs the same training as one process, with the workers
//! distributed over the ranks. A separate thread makes all MPI calls, so that messages travel while gradients are
//! computed: MPI makes progress only during calls. In a round only neighbors communicate. Collectives serve algorithms
//! that average over all workers, and evaluations at the end of an epoch. If a rank is lost, MPI ends the job.
#![cfg(feature = "mpi")]
#![allow(unsafe_code)]

mod comm_thread;
mod raw;
mod shared_memory;

use comm_thread::{CommRequest, CommThread, Shared, Signal};
use shared_memory::{Address, Probe, SharedMemory};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use upwash::transport::{
    Buffer, Capabilities, Collectives, Membership, Message, MessageExchange, Placement, RoundStart, Traffic,
    TransportError, WireError,
};
use upwash::{RowIndex, WorkerId};

/// Rank of this process in the MPI job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The rank, from 0.
    pub number: usize,
    /// Number of ranks in the job.
    pub size: usize,
    /// Number of ranks on this host, this one included.
    pub local_size: usize,
}

/// Joins the job that mpirun (or srun) has started, for a program that catches panics and then calls [`abort`]: other
/// ranks would wait for this one forever. Call it once, before starting any thread.
pub fn join_catching() -> Result<Rank, TransportError> {
    raw::initialize().map_err(TransportError::Broken)
}

/// Joins the job that mpirun (or srun) has started. Call it once, before starting any thread. From then on a panic
/// prints its message and ends the whole job.
pub fn join() -> Result<Rank, TransportError> {
    let rank = join_catching()?;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        abort(101);
    }));
    Ok(rank)
}

/// Leaves the job, unless a transport has already done so. Make no MPI call afterwards.
pub fn leave() {
    raw::finalize();
}

/// Ends the whole job at once.
pub fn abort(code: i32) -> ! {
    raw::abort(code)
}

/// For each rank, whether it shares memory with this one. The ranks on a host share memory if a test shows that every
/// one of them can read the memory of every other.
fn shares_memory(rank: Rank) -> Result<Vec<bool>, TransportError> {
    let host = raw::Communicator::of_host(rank.number);
    let ranks = host.all_gather([rank.number as u64]);
    let probe = Probe::new();
    let own = probe.address().map_or([0; Address::WORDS], Address::to_words);
    let all = host.all_gather(own);
    let readable = all.into_iter().map(Address::from_words).all(Probe::is_readable);
    let results = host.all_gather([u64::from(readable)]);
    let mut shares = vec![false; rank.size];
    if !results.contains(&[0]) {
        for [other] in ranks.into_iter().filter(|&[other]| other != rank.number as u64) {
            *entry(&mut shares, other)? = true;
        }
    }
    Ok(shares)
}

/// The entry of a rank, whose number another rank has sent.
fn entry(shares: &mut [bool], rank: u64) -> Result<&mut bool, TransportError> {
    let size = shares.len();
    let shared = usize::try_from(rank).ok().and_then(|rank| shares.get_mut(rank));
    shared.ok_or_else(|| TransportError::Broken(format!("a rank on this host claims to be rank {rank} of {size}")))
}

/// MPI transport. Dropping it waits until all ranks have finished, and finalizes MPI.
pub struct Mpi {
    placement: Placement,
    timeout: Duration,
    requests: Sender<CommRequest>,
    signals: Receiver<Signal>,
    shared: Arc<Shared>,
    comm_thread: Option<std::thread::JoinHandle<()>>,
    /// For each sender, the messages that have not been taken yet, in order.
    inbox: BTreeMap<WorkerId, VecDeque<Message>>,
    expected: Vec<WorkerId>,
    /// Memory that other ranks on this host read, if any of them can.
    shared_memory: Option<SharedMemory>,
    round: u64,
    traffic: Traffic,
    /// A worker that has diverged, and the round.
    diverged: Option<(WorkerId, u64)>,
}

impl Mpi {
    /// A transport for `workers` workers over all ranks. Waiting for another rank fails after `timeout`.
    pub fn new(rank: Rank, workers: usize, timeout: Duration) -> Result<Self, TransportError> {
        if rank.size > workers {
            return Err(TransportError::Broken(format!(
                "there are {} ranks but only {workers} workers: start at most {workers} ranks",
                rank.size
            )));
        }
        let (requests, request_receiver) = channel();
        let (signal_sender, signals) = channel();
        let shared = Arc::new(Shared::default());
        let thread_shared = Arc::clone(&shared);
        let can_share = shares_memory(rank)?;
        let shared_memory = can_share.contains(&true).then(SharedMemory::default);
        let comm_thread = std::thread::Builder::new()
            .name("mpi".into())
            .spawn(move || CommThread::new(rank, can_share, request_receiver, signal_sender, thread_shared).run())
            .map_err(|error| TransportError::Broken(format!("cannot start the thread for MPI: {error}")))?;
        Ok(Self {
            placement: Placement::new(workers, rank.size, rank.number),
            timeout,
            requests,
            signals,
            shared,
            comm_thread: Some(comm_thread),
            inbox: BTreeMap::new(),
            expected: vec![],
            shared_memory,
            round: 0,
            traffic: Traffic::default(),
            diverged: None,
        })
    }

    fn request(&self, request: CommRequest) -> Result<(), TransportError> {
        let ended = |_| TransportError::Broken("the communication thread of MPI has ended".into());
        self.requests.send(request).map_err(ended)
    }

    /// Refuses a message that MPI cannot carry.
    fn check_length(&self, values: usize) -> Result<(), TransportError> {
        let checked = raw::count(values).map(|_| ());
        checked.map_err(|what| TransportError::Broken(format!("round {}: {what}", self.round)))
    }

    /// Waits for the next signal of the communication thread. A timeout is reported as silence of worker `from`.
    fn next_signal(&mut self, deadline: Instant, from: WorkerId) -> Result<Signal, TransportError> {
        if let Some((worker, round)) = self.diverged {
            return Err(TransportError::Diverged { worker, round });
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match self.signals.recv_timeout(left) {
            Ok(Signal::Diverged { worker, round }) => {
                self.diverged = Some((worker, round));
                Err(TransportError::Diverged { worker, round })
            }
            Ok(signal) => Ok(signal),
            Err(RecvTimeoutError::Timeout) => {
                Err(TransportError::Silence { from, round: self.round, seconds: self.timeout.as_secs() })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(TransportError::Broken("the communication thread of MPI has ended".into()))
            }
        }
    }

    /// The first worker of this rank, for which it waits in collectives.
    fn own(&self) -> WorkerId {
        self.placement.worker_at(RowIndex(0))
    }

    /// Elementwise sum over all ranks.
    fn sum_over_ranks(&mut self, values: Vec<f64>) -> Result<Vec<f64>, TransportError> {
        self.request(CommRequest::SumF64(values))?;
        let deadline = Instant::now() + self.timeout;
        loop {
            match self.next_signal(deadline, self.own())? {
                Signal::SumF64(sums) => return Ok(sums),
                Signal::Message(message) => self.enqueue(message),
                _ => {}
            }
        }
    }

    fn enqueue(&mut self, message: Message) {
        self.inbox.entry(message.from).or_default().push_back(message);
    }
}

impl Membership for Mpi {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survives_loss: false, authenticated: false, progresses: true }
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    /// A rank that is to stop notifies all other ranks. All of them complete the last round that any rank has begun, so
    /// that no rank waits for a message that is never sent.
    fn may_begin(&mut self, round: u64, stop: bool) -> Result<RoundStart, TransportError> {
        self.round = round;
        if stop {
            self.request(CommRequest::Stop)?;
        }
        let mut state = self.shared.lock();
        if stop || state.requested {
            let deadline = Instant::now() + self.timeout;
            while state.agreed.is_none() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(TransportError::Broken(format!(
                        "round {round}: the ranks did not agree on where to stop within {} seconds",
                        self.timeout.as_secs()
                    )));
                }
                let waited = self.shared.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        if state.agreed.is_some_and(|last| round >= last) {
            return Ok(RoundStart::Stop);
        }
        state.begun = round + 1;
        Ok(RoundStart::Go)
    }

    fn leave(&mut self, worker: WorkerId, round: u64) -> Result<(), TransportError> {
        self.diverged = Some((worker, round));
        self.request(CommRequest::Diverged { worker, round })
    }
}

impl MessageExchange for Mpi {
    fn allocate(&mut self, length: usize) -> Buffer {
        match &mut self.shared_memory {
            Some(shared_memory) => shared_memory.allocate(length),
            None => vec![0.0; length].into(),
        }
    }

    fn begin_exchange(
        &mut self,
        outgoing: Vec<(Message, Vec<usize>)>,
        expected: &[WorkerId],
    ) -> Result<(), TransportError> {
        for (message, receivers) in outgoing {
            self.check_length(message.values.len())?;
            let bytes = upwash::transport::HEADER as u64 + 4 * message.values.len() as u64;
            self.traffic.messages += receivers.len() as u64;
            self.traffic.bytes += bytes * receivers.len() as u64;
            self.request(CommRequest::Post { message, receivers })?;
        }
        self.expected = expected.to_vec();
        Ok(())
    }

    fn finish_exchange(&mut self, _: u32) -> Result<Vec<Message>, TransportError> {
        let deadline = Instant::now() + self.timeout;
        let mut found = Vec::with_capacity(self.expected.len());
        for from in std::mem::take(&mut self.expected) {
            let message = loop {
                if let Some(message) = self.inbox.get_mut(&from).and_then(VecDeque::pop_front) {
                    break message;
                }
                if let Signal::Message(message) = self.next_signal(deadline, from)? {
                    self.enqueue(message);
                }
            };
            if message.round != self.round {
                let (round, exchange) = (message.round, message.exchange);
                let what = WireError::OutOfTurn { round, exchange };
                return Err(TransportError::Message { from, what });
            }
            found.push(message);
        }
        Ok(found)
    }

    fn send(&mut self, to: WorkerId, message: Message) -> Result<bool, TransportError> {
        let receivers = vec![self.placement.process_of(to)];
        self.begin_exchange(vec![(message, receivers)], &[])?;
        Ok(true)
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Message>, TransportError> {
        // A sum sets messages that arrive meanwhile aside.
        let mut found: Vec<Message> = self.inbox.values_mut().flat_map(std::mem::take).collect();
        let deadline = Instant::now() + wait;
        loop {
            // Waits for the first message only. Takes further ones if they have already arrived.
            let until = if found.is_empty() { deadline } else { Instant::now() };
            match self.next_signal(until, self.own()) {
                Ok(Signal::Message(message)) => found.push(message),
                Ok(_) => {}
                Err(TransportError::Silence { .. }) => return Ok(found),
                Err(error) => return Err(error),
            }
        }
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl Collectives for Mpi {
    fn all_reduce(&mut self, _: u32, values: &mut [f32]) -> Result<(), TransportError> {
        self.check_length(values.len())?;
        self.request(CommRequest::SumF32(values.to_vec()))?;
        let deadline = Instant::now() + self.timeout;
        let sums = loop {
            match self.next_signal(deadline, self.own())? {
                Signal::SumF32(sums) => break sums,
                Signal::Message(message) => self.enqueue(message),
                _ => {}
            }
        };
        values.copy_from_slice(&sums);
        // Counts the traffic of a ring all-reduce: each rank sends all values twice, except for its own part.
        let others = 2 * (self.placement.processes() as u64).saturating_sub(1);
        self.traffic.messages += others;
        self.traffic.bytes += 4 * values.len() as u64 * others / self.placement.processes() as u64;
        Ok(())
    }

    fn gather_scalars(&mut self, scalars: &mut [f64]) -> Result<(), TransportError> {
        let own = self.placement.own_range();
        // An unknown scalar is NaN and must not enter the sum. So each scalar comes with a flag: 1 if known, 0 if not.
        let known = |(worker, x): (usize, &f64)| match own.contains(&worker) && !x.is_nan() {
            true => [*x, 1.0],
            false => [0.0, 0.0],
        };
        let pairs: Vec<f64> = scalars.iter().enumerate().flat_map(known).collect();
        let sums = self.sum_over_ranks(pairs)?;
        for (scalar, pair) in scalars.iter_mut().zip(sums.chunks_exact(2)) {
            *scalar = if pair[1] > 0.0 { pair[0] } else { f64::NAN };
        }
        Ok(())
    }

    fn sum(&mut self, number: f64) -> Result<Option<f64>, TransportError> {
        Ok(self.sum_over_ranks(vec![number])?.first().copied())
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let _ = self.requests.send(CommRequest::Shutdown);
        if let Some(comm_thread) = self.comm_thread.take() {
            let _ = comm_thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, comm_thread::StopState> {
        Mutex::lock(&self.stop).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ranks_that_do_not_exist_share_no_memory() {
        let mut shares = [false; 3];
        assert!(super::entry(&mut shares, 2).is_ok());
        for rank in [3, u64::from(u32::MAX), u64::MAX] {
            let error = super::entry(&mut shares, rank).map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(error, Err(format!("a rank on this host claims to be rank {rank} of 3")));
        }
    }
}
