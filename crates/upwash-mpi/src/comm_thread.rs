//! The thread that makes all MPI calls.
//!
//! A message is two messages: its header, and its numbers as they lie in memory. To a rank of the same
//! machine the header goes alone, and says [where](crate::shared_memory) the numbers are. Messages of one rank
//! arrive in the order in which they were posted, because MPI keeps messages of one sender in order.

use crate::Rank;
use crate::raw::{Group, Receiving, Sending, abort, finalise, prefer_short_turns};
use crate::shared_memory::{Address, RemoteRegion, SharedRegion};
use std::collections::VecDeque;
use std::io::Write;
use std::os::raw::c_int;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use upwash::transport::{Buffer, HEADER, Message};

const HEADERS: c_int = 1;
const NUMBERS: c_int = 2;
const NOTES: c_int = 3;

/// A header, and where its numbers are: nowhere, if they come as a message.
const ENVELOPE: usize = HEADER + Address::LENGTH;

/// How often it looks around without a pause before it rests.
const LOOKS: u32 = 10;
const REST: Duration = Duration::from_micros(50);
/// Who has said goodbye waits so long for the others to do so.
const FAREWELL: Duration = Duration::from_secs(600);

/// What the main thread wants done.
pub(crate) enum CommRequest {
    Post { message: Message, places: Vec<usize> },
    Sum(Vec<f32>),
    SumWide(Vec<f64>),
    Stop,
    Diverged { worker: usize, round: u64 },
    Goodbye,
}

/// What it is told.
pub(crate) enum Signal {
    Message(Message),
    Sum(Vec<f32>),
    SumWide(Vec<f64>),
    Diverged { worker: usize, round: u64 },
}

/// Where the run stops, if it does.
#[derive(Default)]
pub(crate) struct Stopping {
    /// Someone wants it.
    pub(crate) stopping: bool,
    /// Rounds that this rank has begun.
    pub(crate) committed: u64,
    /// Rounds that everyone completes.
    pub(crate) agreed: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) stopping: Mutex<Stopping>,
    pub(crate) changed: Condvar,
}

pub(crate) struct CommThread {
    rank: Rank,
    todo: Receiver<CommRequest>,
    tell: Sender<Signal>,
    shared: Arc<Shared>,
    /// Messages and sums; and what is agreed on about the end, in an order of its own.
    group: Group,
    council: Group,
    headers: Vec<Sending<Arc<Vec<u8>>>>,
    sending: Vec<Sending<Arc<Buffer>>>,
    /// Who is on this machine, and what of theirs has been read.
    here: Vec<bool>,
    known: RemoteRegion,
    notes: Vec<Sending<Arc<Vec<u64>>>>,
    /// Messages on their way in, of each rank in their order.
    arriving: Vec<VecDeque<Arriving>>,
    sum: Option<Receiving<f32>>,
    sum_wide: Option<Receiving<f64>>,
    agreement: Option<Receiving<u64>>,
    farewell: Option<Receiving<u8>>,
    leaving: bool,
}

/// A message on its way in, and the numbers that are still to come.
type Arriving = (Message, Option<Receiving<f32>>);

/// What a note says: the first number.
const STOP: u64 = 1;
const DIVERGED: u64 = 2;

impl CommThread {
    pub(crate) fn new(
        rank: Rank,
        here: Vec<bool>,
        todo: Receiver<CommRequest>,
        tell: Sender<Signal>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            here,
            known: RemoteRegion::default(),
            rank,
            todo,
            tell,
            shared,
            group: Group::new(),
            council: Group::new(),
            headers: vec![],
            sending: vec![],
            notes: vec![],
            arriving: (0..rank.count).map(|_| VecDeque::new()).collect(),
            sum: None,
            sum_wide: None,
            agreement: None,
            farewell: None,
            leaving: false,
        }
    }

    /// Until everyone has said goodbye.
    pub(crate) fn run(mut self) {
        prefer_short_turns();
        let (mut looks, mut left) = (0, None);
        loop {
            let mut busy = self.run_errands();
            busy |= self.send_on();
            busy |= self.take_in();
            busy |= self.reduce();
            busy |= self.read_notes();
            if self.leaving {
                if self.is_gone() {
                    finalise();
                    return;
                }
                let since = *left.get_or_insert_with(Instant::now);
                if since.elapsed() > FAREWELL {
                    let seconds = FAREWELL.as_secs();
                    let _ = writeln!(
                        std::io::stderr(),
                        "error: the other ranks did not end within {seconds} seconds of this one"
                    );
                    abort(2);
                }
            }
            // MPI moves nothing without being called. But who sleeps a little is let in at once when it
            // wakes, where who only gives way waits until a gradient on the same core has had its turn.
            looks = if busy { 0 } else { looks + 1 };
            if looks > LOOKS {
                looks = 0;
                match self.todo.recv_timeout(REST) {
                    Ok(request) => self.do_errand(request),
                    Err(RecvTimeoutError::Timeout) => {}
                    // Nobody is there to say goodbye.
                    Err(RecvTimeoutError::Disconnected) => self.leaving = true,
                }
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn run_errands(&mut self) -> bool {
        let mut busy = false;
        loop {
            match self.todo.try_recv() {
                Ok(request) => self.do_errand(request),
                Err(TryRecvError::Empty) => return busy,
                Err(TryRecvError::Disconnected) => {
                    self.leaving = true;
                    return busy;
                }
            }
            busy = true;
        }
    }

    fn do_errand(&mut self, request: CommRequest) {
        match request {
            CommRequest::Post { message, places } => {
                let header = message.header();
                let envelope = |address: [u8; Address::LENGTH]| Arc::new([&header[..], &address].concat());
                let numbers = Arc::new(message.values);
                let region: Option<&SharedRegion> = numbers.as_lent();
                let (near, far): (Vec<usize>, Vec<usize>) = match region {
                    Some(_) => places.into_iter().partition(|&to| self.here[to]),
                    None => (vec![], places),
                };
                if let Some(region) = region {
                    region.lend(near.len() as u32);
                    let envelope = envelope(region.address().to_bytes());
                    for to in near {
                        let sending = self.group.send(Arc::clone(&envelope), to, HEADERS);
                        self.headers.push(sending);
                    }
                }
                let envelope = envelope([0; Address::LENGTH]);
                for to in far {
                    let sending = self.group.send(Arc::clone(&envelope), to, HEADERS);
                    self.headers.push(sending);
                    if !numbers.is_empty() {
                        let sending = self.group.send(Arc::clone(&numbers), to, NUMBERS);
                        self.sending.push(sending);
                    }
                }
            }
            CommRequest::Sum(numbers) => self.sum = Some(self.group.reduce(numbers, false)),
            CommRequest::SumWide(numbers) => self.sum_wide = Some(self.group.reduce(numbers, false)),
            CommRequest::Stop => self.stop(true),
            CommRequest::Diverged { worker, round } => {
                self.tell_all(&[DIVERGED, worker as u64, round]);
            }
            CommRequest::Goodbye => self.leaving = true,
        }
    }

    fn tell_all(&mut self, note: &[u64]) {
        let note = Arc::new(note.to_vec());
        for to in (0..self.rank.count).filter(|&to| to != self.rank.number) {
            let note = self.group.send(Arc::clone(&note), to, NOTES);
            self.notes.push(note);
        }
    }

    /// Someone wants an end: everyone says how far it has gone, and the farthest counts.
    fn stop(&mut self, tell: bool) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if std::mem::replace(&mut state.stopping, true) {
            return;
        }
        if tell {
            self.tell_all(&[STOP, 0, 0]);
        }
        self.agreement = Some(self.council.reduce(vec![state.committed], true));
    }

    fn send_on(&mut self) -> bool {
        let before = self.headers.len() + self.sending.len() + self.notes.len();
        self.headers.retain_mut(|sending| !sending.is_done());
        self.sending.retain_mut(|sending| !sending.is_done());
        self.notes.retain_mut(|sending| !sending.is_done());
        before > self.headers.len() + self.sending.len() + self.notes.len()
    }

    fn take_in(&mut self) -> bool {
        let mut busy = false;
        while let Some((from, _)) = self.group.probe(HEADERS) {
            busy = true;
            let mut envelope = self.group.receive::<u8>(ENVELOPE, from, HEADERS);
            while !envelope.is_done() {
                std::hint::spin_loop();
            }
            let arriving = self.open(&envelope.into_numbers(), from);
            let arriving = arriving.unwrap_or_else(|error| panic!("from rank {from}: {error}"));
            self.arriving[from.unsigned_abs() as usize].push_back(arriving);
        }
        for queue in &mut self.arriving {
            while let Some((_, numbers)) = queue.front_mut() {
                if numbers.as_mut().is_some_and(|numbers| !numbers.is_done()) {
                    break;
                }
                busy = true;
                if let Some((mut message, numbers)) = queue.pop_front() {
                    if let Some(numbers) = numbers {
                        message.values = numbers.into_numbers().into();
                    }
                    // Nobody listens any more once the run is over.
                    let _ = self.tell.send(Signal::Message(message));
                }
            }
        }
        busy
    }

    fn open(&mut self, envelope: &[u8], from: c_int) -> Result<Arriving, String> {
        let (header, address) = envelope.split_at(HEADER);
        let header = header.try_into().map_err(|_| "no header")?;
        let address = address.try_into().map_err(|_| "no address")?;
        let read = Message::from_header(&header).map_err(|error| error.to_string());
        let (mut message, length) = read?;
        let length = length as usize;
        let mut numbers = None;
        if address != [0; Address::LENGTH] {
            message.values = self.known.read(Address::from_bytes(address), length)?;
        } else if length > 0 {
            numbers = Some(self.group.receive::<f32>(length, from, NUMBERS));
        }
        Ok((message, numbers))
    }

    fn reduce(&mut self) -> bool {
        let mut busy = false;
        if let Some(sum) = self.sum.take_if(|sum| sum.is_done()) {
            busy = true;
            let _ = self.tell.send(Signal::Sum(sum.into_numbers()));
        }
        if let Some(sum) = self.sum_wide.take_if(|sum| sum.is_done()) {
            busy = true;
            let _ = self.tell.send(Signal::SumWide(sum.into_numbers()));
        }
        if let Some(agreed) = self.agreement.take_if(|agreed| agreed.is_done()) {
            busy = true;
            self.shared.lock().agreed = agreed.into_numbers().first().copied();
            self.shared.changed.notify_all();
        }
        busy
    }

    fn read_notes(&mut self) -> bool {
        let Some((from, _)) = self.group.probe(NOTES) else {
            return false;
        };
        let mut note = self.group.receive::<u64>(3, from, NOTES);
        while !note.is_done() {
            std::hint::spin_loop();
        }
        match note.into_numbers()[..] {
            [DIVERGED, worker, round] => {
                let worker = worker as usize;
                let _ = self.tell.send(Signal::Diverged { worker, round });
            }
            _ => self.stop(false),
        }
        true
    }

    /// Whether all that was sent has arrived, here and everywhere: nobody waits for anything then.
    fn is_gone(&mut self) -> bool {
        let sent = self.headers.is_empty() && self.sending.is_empty() && self.notes.is_empty();
        if self.farewell.is_none() {
            if !sent || self.agreement.is_some() {
                return false;
            }
            self.farewell = Some(self.council.barrier());
        }
        self.farewell.as_mut().is_some_and(Receiving::is_done)
    }
}
