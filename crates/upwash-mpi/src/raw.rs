//! The MPI calls that are used, each with what makes it safe. They may come from any thread, one at a
//! time: after [`initialise`] only the comm_thread's thread makes them.

use crate::Rank;
use mpi::ffi;
use std::os::raw::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What can be summed over all ranks.
pub(crate) trait Element: Copy + Default {
    fn kind() -> ffi::MPI_Datatype;
}

impl Element for f32 {
    fn kind() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_FLOAT }
    }
}

impl Element for f64 {
    fn kind() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_DOUBLE }
    }
}

impl Element for u64 {
    fn kind() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_UINT64_T }
    }
}

impl Element for u8 {
    fn kind() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_UINT8_T }
    }
}

/// Starts MPI.
pub(crate) fn initialise() -> Result<Rank, String> {
    let (mut provided, mut number, mut count) = (0, 0, 0);
    // SAFETY: called once, before any other call; the places are ones to write to.
    unsafe {
        let none = std::ptr::null_mut();
        let wanted = ffi::RSMPI_THREAD_SERIALIZED;
        ffi::MPI_Init_thread(none, std::ptr::null_mut(), wanted, &mut provided);
        if provided < wanted {
            return Err("this MPI library allows no calls from a second thread".into());
        }
        ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut number);
        ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut count);
    }
    let number = number.unsigned_abs() as usize;
    Ok(Rank { number, count: count.unsigned_abs() as usize, neighbors_here: Group::of_machine(number).gather(0).len() })
}

/// Asks the system to let this thread in soon after it wakes, for short turns; a hint, which older kernels (before
/// Linux 6.12) do not know. Otherwise a gradient on the same core has its turn of some milliseconds first.
pub(crate) fn prefer_short_turns() {
    #[cfg(target_os = "linux")]
    {
        // The layout of the kernel's `sched_attr`: size, policy (0: ordinary), flags, nice, priority, slice ...
        let mut attributes = [0u64; 6];
        attributes[0] = size_of_val(&attributes) as u64;
        attributes[3] = SHORT_TURN.as_nanos() as u64;
        // SAFETY: the call reads as many bytes as the first four of them say.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, attributes.as_ptr(), 0) };
    }
}

/// The shortest turn that the system gives.
#[cfg(target_os = "linux")]
const SHORT_TURN: std::time::Duration = std::time::Duration::from_micros(100);

static DONE: AtomicBool = AtomicBool::new(false);

/// The end of it; once is enough.
pub(crate) fn finalise() {
    if !DONE.swap(true, Ordering::SeqCst) {
        // SAFETY: the last call; everything that was begun is done.
        unsafe { ffi::MPI_Finalize() };
    }
}

pub(crate) fn abort(code: i32) -> ! {
    // SAFETY: may be called at any time; it does not return.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code) };
    std::process::exit(code)
}

/// A group of ranks in which collectives have an order of their own.
pub(crate) struct Group(ffi::MPI_Comm);

// SAFETY: a handle; calls with it come from one thread at a time.
unsafe impl Send for Group {}

impl Group {
    /// Those on this machine.
    pub(crate) fn of_machine(number: usize) -> Self {
        // SAFETY: all ranks make the same ones in the same order.
        unsafe {
            let mut group = ffi::RSMPI_COMM_WORLD;
            ffi::MPI_Comm_split_type(
                ffi::RSMPI_COMM_WORLD,
                ffi::RSMPI_COMM_TYPE_SHARED,
                number as c_int,
                ffi::RSMPI_INFO_NULL,
                &mut group,
            );
            Self(group)
        }
    }

    /// Everyone's number, in the order of their ranks; waits for all.
    pub(crate) fn gather(&self, own: u64) -> Vec<u64> {
        let mut size = 0;
        // SAFETY: the place is one to write to.
        unsafe { ffi::MPI_Comm_size(self.0, &mut size) };
        let mut all = vec![0u64; size.unsigned_abs() as usize];
        // SAFETY: one number from everyone, and room for all of them.
        unsafe {
            let (from, to) = ((&raw const own).cast(), all.as_mut_ptr().cast());
            ffi::MPI_Allgather(from, 1, u64::kind(), to, 1, u64::kind(), self.0);
        }
        all
    }

    /// All ranks.
    pub(crate) fn new() -> Self {
        // SAFETY: all ranks make the same ones in the same order.
        unsafe {
            let mut group = ffi::RSMPI_COMM_WORLD;
            ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut group);
            Self(group)
        }
    }

    /// Who has something for us with this tag, and how many bytes.
    pub(crate) fn probe(&self, tag: c_int) -> Option<(c_int, usize)> {
        // SAFETY: a status is plain numbers, which the call fills in where the flag is set.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let (mut flag, mut count) = (0, 0);
            let any = ffi::RSMPI_ANY_SOURCE;
            ffi::MPI_Iprobe(any, tag, self.0, &mut flag, &mut status);
            if flag == 0 {
                return None;
            }
            ffi::MPI_Get_count(&status, u8::kind(), &mut count);
            Some((status.MPI_SOURCE, count.unsigned_abs() as usize))
        }
    }

    /// Begins to send: the numbers stay where they are until that is done.
    pub(crate) fn send<T: Element, B: std::ops::Deref<Target = [T]>>(
        &self,
        what: Arc<B>,
        to: usize,
        tag: c_int,
    ) -> Sending<Arc<B>> {
        let numbers: &[T] = &what;
        // SAFETY: the buffer is kept in what is returned, on the heap, for as long as it takes.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let place = numbers.as_ptr().cast::<c_void>();
            let count = numbers.len() as c_int;
            ffi::MPI_Isend(place, count, T::kind(), to as c_int, tag, self.0, &mut request);
            request
        };
        Sending { request, _what: what }
    }

    /// Begins to receive just so many numbers.
    pub(crate) fn receive<T: Element>(&self, count: usize, from: c_int, tag: c_int) -> Receiving<T> {
        let mut numbers = vec![T::default(); count];
        // SAFETY: the buffer is kept in what is returned, on the heap, for as long as it takes.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let place = numbers.as_mut_ptr().cast::<c_void>();
            ffi::MPI_Irecv(place, count as c_int, T::kind(), from, tag, self.0, &mut request);
            request
        };
        let _own = vec![];
        Receiving { request, numbers, _own }
    }

    /// Begins a sum (or the largest) over all ranks.
    pub(crate) fn reduce<T: Element>(&self, own: Vec<T>, largest: bool) -> Receiving<T> {
        let mut numbers = vec![T::default(); own.len()];
        // SAFETY: both buffers are kept in what is returned, on the heap, for as long as it takes.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let operation = if largest { ffi::RSMPI_MAX } else { ffi::RSMPI_SUM };
            let (from, to) = (own.as_ptr().cast(), numbers.as_mut_ptr().cast());
            let count = own.len() as c_int;
            ffi::MPI_Iallreduce(from, to, count, T::kind(), operation, self.0, &mut request);
            request
        };
        Receiving { request, numbers, _own: own }
    }

    /// Begins to wait for everyone.
    pub(crate) fn barrier(&self) -> Receiving<u8> {
        // SAFETY: the request is kept.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            ffi::MPI_Ibarrier(self.0, &mut request);
            request
        };
        let (numbers, _own) = (vec![], vec![]);
        Receiving { request, numbers, _own }
    }
}

fn is_done(request: &mut ffi::MPI_Request) -> bool {
    let mut done = 0;
    // SAFETY: a live request, or none.
    unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
    done != 0
}

/// Something on its way out.
pub(crate) struct Sending<B> {
    request: ffi::MPI_Request,
    _what: B,
}

impl<B> Sending<B> {
    pub(crate) fn is_done(&mut self) -> bool {
        is_done(&mut self.request)
    }
}

/// Something on its way in.
pub(crate) struct Receiving<T> {
    request: ffi::MPI_Request,
    numbers: Vec<T>,
    /// What goes into a sum.
    _own: Vec<T>,
}

impl<T> Receiving<T> {
    pub(crate) fn is_done(&mut self) -> bool {
        is_done(&mut self.request)
    }

    /// What came, once it is [done](Self::is_done).
    pub(crate) fn into_numbers(self) -> Vec<T> {
        self.numbers
    }
}
