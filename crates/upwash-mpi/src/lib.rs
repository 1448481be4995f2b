//! Upwash between the ranks of an MPI job.
//!
//! `mpirun -np 8 upwash train CONFIG.toml --transport mpi`: the same run as in one process, with its
//! workers shared out among the ranks. A thread of its own makes all MPI calls, so that messages travel
//! while gradients are computed: without calls MPI moves nothing over a network. Only neighbors talk
//! in a round; collectives serve algorithms that average over all, and tests at the end of an epoch.
//! A rank that is lost ends the job, which is what MPI does.
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

/// This process's place in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Its number, from 0.
    pub number: usize,
    /// How many there are.
    pub count: usize,
    /// How many of them are on this machine.
    pub neighbors_here: usize,
}

/// Takes part in the job that mpirun (or srun) has started. Call it once, before any thread is made.
/// From here on a panic ends the whole job, with its message.
pub fn join() -> Result<Rank, TransportError> {
    let rank = raw::initialise().map_err(TransportError::Broken)?;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        abort(101);
    }));
    Ok(rank)
}

/// Leaves the job, if no transport has done so: the last call.
pub fn leave() {
    raw::finalise();
}

/// Ends the whole job at once.
pub fn abort(code: i32) -> ! {
    raw::abort(code)
}

/// Who can read this rank's memory: all others of its machine, if every one of them can read every
/// other's, which is tried.
fn readers(rank: Rank) -> Vec<bool> {
    let machine = raw::Group::of_machine(rank.number);
    let ranks = machine.gather(rank.number as u64);
    let probe = Probe::new();
    let own = probe.address().map_or([0; Address::LENGTH], Address::to_bytes);
    let all = machine.gather(u64::from_le_bytes(own));
    let address = |bytes: &u64| Address::from_bytes(bytes.to_le_bytes());
    let readable = all.iter().map(address).all(Probe::is_readable);
    let agreed = machine.gather(u64::from(readable));
    let mut here = vec![false; rank.count];
    if !agreed.contains(&0) {
        let others = ranks.iter().filter(|&&other| other != rank.number as u64);
        others.for_each(|&other| here[other as usize] = true);
    }
    here
}

/// The transport. Dropping it says goodbye to the others.
pub struct Mpi {
    placement: Placement,
    patience: Duration,
    requests: Sender<CommRequest>,
    signals: Receiver<Signal>,
    shared: Arc<Shared>,
    comm_thread: Option<std::thread::JoinHandle<()>>,
    /// Messages that came before they were asked for, of each sender in their order.
    waiting: BTreeMap<usize, VecDeque<Message>>,
    expected: Vec<usize>,
    /// What others of this machine read, if there are any who can.
    pages: Option<SharedMemory>,
    round: u64,
    traffic: Traffic,
    /// Someone's loss is lost.
    diverged: Option<(usize, u64)>,
}

impl Mpi {
    /// For `workers` in all ranks together; waits for others for so long.
    pub fn new(rank: Rank, workers: usize, patience: Duration) -> Result<Self, TransportError> {
        if rank.count > workers {
            return Err(TransportError::Broken(format!(
                "there are {} ranks and {workers} workers: start at most {workers}",
                rank.count
            )));
        }
        let (requests, todo) = channel();
        let (tell, signals) = channel();
        let shared = Arc::new(Shared::default());
        let known = Arc::clone(&shared);
        let here = readers(rank);
        let pages = here.contains(&true).then(SharedMemory::default);
        let comm_thread = std::thread::Builder::new()
            .name("mpi".into())
            .spawn(move || CommThread::new(rank, here, todo, tell, known).run())
            .map_err(|error| TransportError::Broken(format!("no thread for MPI: {error}")))?;
        Ok(Self {
            placement: Placement::new(workers, rank.count, rank.number),
            patience,
            requests,
            signals,
            shared,
            comm_thread: Some(comm_thread),
            waiting: BTreeMap::new(),
            expected: vec![],
            pages,
            round: 0,
            traffic: Traffic::default(),
            diverged: None,
        })
    }

    fn ask(&self, request: CommRequest) -> Result<(), TransportError> {
        let gone = |_| TransportError::Broken("the thread that talks to MPI is gone".into());
        self.requests.send(request).map_err(gone)
    }

    /// The next thing that the comm_thread tells, before the deadline.
    fn listen(&mut self, deadline: Instant, for_whom: usize) -> Result<Signal, TransportError> {
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
                Err(TransportError::Silence { from: for_whom, round: self.round, seconds: self.patience.as_secs() })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(TransportError::Broken("the thread that talks to MPI is gone".into()))
            }
        }
    }

    /// A sum over all ranks.
    fn reduced(&mut self, numbers: Vec<f64>) -> Result<Vec<f64>, TransportError> {
        self.ask(CommRequest::SumWide(numbers))?;
        let deadline = Instant::now() + self.patience;
        loop {
            match self.listen(deadline, self.placement.this())? {
                Signal::SumWide(sums) => return Ok(sums),
                Signal::Message(message) => self.keep(message),
                _ => {}
            }
        }
    }

    fn keep(&mut self, message: Message) {
        self.waiting.entry(message.from).or_default().push_back(message);
    }
}

impl Membership for Mpi {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survives_loss: false, authenticated: false, progresses: true }
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    /// A rank that is asked to stop tells all others; everyone goes on to the last round that anyone
    /// has begun, so that nobody waits for a message that will not come.
    fn may_begin(&mut self, round: u64, stop: bool) -> Result<RoundStart, TransportError> {
        self.round = round;
        if stop {
            self.ask(CommRequest::Stop)?;
        }
        let mut state = self.shared.lock();
        if stop || state.stopping {
            let deadline = Instant::now() + self.patience;
            while state.agreed.is_none() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(TransportError::Broken(format!(
                        "round {round}: the ranks could not agree where to stop within {} seconds",
                        self.patience.as_secs()
                    )));
                }
                let waited = self.shared.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        if state.agreed.is_some_and(|last| round >= last) {
            return Ok(RoundStart::Stop);
        }
        state.committed = round + 1;
        Ok(RoundStart::Go)
    }

    fn leave(&mut self, worker: usize, round: u64) -> Result<(), TransportError> {
        self.diverged = Some((worker, round));
        self.ask(CommRequest::Diverged { worker, round })
    }
}

impl MessageExchange for Mpi {
    fn allocate(&mut self, length: usize) -> Buffer {
        match &mut self.pages {
            Some(pages) => pages.allocate(length),
            None => vec![0.0; length].into(),
        }
    }

    fn begin_exchange(
        &mut self,
        outgoing: Vec<(Message, Vec<usize>)>,
        expected: &[usize],
    ) -> Result<(), TransportError> {
        for (message, places) in outgoing {
            let bytes = upwash::transport::HEADER as u64 + 4 * message.values.len() as u64;
            self.traffic.messages += places.len() as u64;
            self.traffic.bytes += bytes * places.len() as u64;
            self.ask(CommRequest::Post { message, places })?;
        }
        self.expected = expected.to_vec();
        Ok(())
    }

    fn finish_exchange(&mut self, _: u32) -> Result<Vec<Message>, TransportError> {
        let deadline = Instant::now() + self.patience;
        let mut found = Vec::with_capacity(self.expected.len());
        for from in std::mem::take(&mut self.expected) {
            let message = loop {
                if let Some(message) = self.waiting.get_mut(&from).and_then(VecDeque::pop_front) {
                    break message;
                }
                if let Signal::Message(message) = self.listen(deadline, from)? {
                    self.keep(message);
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

    fn send(&mut self, to: usize, message: Message) -> Result<bool, TransportError> {
        let places = vec![self.placement.process_of(to)];
        self.begin_exchange(vec![(message, places)], &[])?;
        Ok(true)
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Message>, TransportError> {
        let mut found: Vec<Message> = Vec::new();
        let deadline = Instant::now() + wait;
        loop {
            // The first may take its time; the rest is there or not.
            let until = if found.is_empty() { deadline } else { Instant::now() };
            match self.listen(until, self.placement.this()) {
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
    fn all_reduce(&mut self, _: u32, numbers: &mut [f32]) -> Result<(), TransportError> {
        self.ask(CommRequest::Sum(numbers.to_vec()))?;
        let deadline = Instant::now() + self.patience;
        let sums = loop {
            match self.listen(deadline, self.placement.this())? {
                Signal::Sum(sums) => break sums,
                Signal::Message(message) => self.keep(message),
                _ => {}
            }
        };
        numbers.copy_from_slice(&sums);
        // As a ring does it: everyone sends everything twice, but for its own part.
        let others = 2 * (self.placement.processes() as u64).saturating_sub(1);
        self.traffic.messages += others;
        self.traffic.bytes += 4 * numbers.len() as u64 * others / self.placement.processes() as u64;
        Ok(())
    }

    fn gather_scalars(&mut self, numbers: &mut [f64]) -> Result<(), TransportError> {
        let own = self.placement.own();
        // What is known nowhere is no number; but a sum with it would be none either.
        let known = |(worker, x): (usize, &f64)| match own.contains(&worker) && !x.is_nan() {
            true => [*x, 1.0],
            false => [0.0, 0.0],
        };
        let pairs: Vec<f64> = numbers.iter().enumerate().flat_map(known).collect();
        let sums = self.reduced(pairs)?;
        for (number, pair) in numbers.iter_mut().zip(sums.chunks_exact(2)) {
            *number = if pair[1] > 0.0 { pair[0] } else { f64::NAN };
        }
        Ok(())
    }

    fn sum(&mut self, number: f64) -> Result<Option<f64>, TransportError> {
        Ok(self.reduced(vec![number])?.first().copied())
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let _ = self.requests.send(CommRequest::Goodbye);
        if let Some(comm_thread) = self.comm_thread.take() {
            let _ = comm_thread.join();
        }
    }
}

/// The state that main thread and comm_thread share.
impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, comm_thread::Stopping> {
        Mutex::lock(&self.stopping).unwrap_or_else(PoisonError::into_inner)
    }
}
