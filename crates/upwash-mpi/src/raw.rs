//! Safe wrappers around the MPI calls that this crate uses.
//!
//! MPI runs with `MPI_THREAD_SERIALIZED`: any thread may call it, but only one at a time. The main thread makes the
//! calls until it starts the communication thread, which makes them until it ends. Only [`abort`] may come from any
//! thread at any time.

use crate::Rank;
use mpi::ffi;
use std::os::raw::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Element type of an MPI buffer.
pub(crate) trait Element: Copy + Default {
    fn datatype() -> ffi::MPI_Datatype;
}

impl Element for f32 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: reads a constant of the MPI library, which nothing modifies.
        unsafe { ffi::RSMPI_FLOAT }
    }
}

impl Element for f64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: reads a constant of the MPI library, which nothing modifies.
        unsafe { ffi::RSMPI_DOUBLE }
    }
}

impl Element for u64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: reads a constant of the MPI library, which nothing modifies.
        unsafe { ffi::RSMPI_UINT64_T }
    }
}

impl Element for u8 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: reads a constant of the MPI library, which nothing modifies.
        unsafe { ffi::RSMPI_UINT8_T }
    }
}

/// The number of values in a message, as MPI counts them.
pub(crate) fn count(values: usize) -> Result<c_int, String> {
    let too_long = |_| format!("MPI cannot send {values} values at once, only {}", c_int::MAX);
    c_int::try_from(values).map_err(too_long)
}

/// Like [`count`], for a length that was checked when the message was accepted. A panic ends the whole job.
fn checked_count(values: usize) -> c_int {
    count(values).unwrap_or_else(|error| panic!("{error}"))
}

/// A rank, as MPI counts them.
fn rank_number(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or_else(|_| panic!("rank {rank} does not exist"))
}

/// Initializes MPI and returns the rank of this process.
pub(crate) fn initialize() -> Result<Rank, String> {
    let (mut provided, mut number, mut size) = (0, 0, 0);
    // SAFETY: the caller calls this once, before any other MPI call. MPI accepts null for both arguments of
    // MPI_Init_thread. The output pointers refer to local variables.
    unsafe {
        let none = std::ptr::null_mut();
        let required = ffi::RSMPI_THREAD_SERIALIZED;
        ffi::MPI_Init_thread(none, std::ptr::null_mut(), required, &mut provided);
        if provided < required {
            return Err(
                "this MPI library does not support MPI_THREAD_SERIALIZED: use one that was built with thread support"
                    .into(),
            );
        }
        ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut number);
        ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut size);
    }
    let number = number.unsigned_abs() as usize;
    Ok(Rank {
        number,
        size: size.unsigned_abs() as usize,
        local_size: Communicator::of_host(number).all_gather([0]).len(),
    })
}

/// Asks the scheduler for short time slices, so that this thread runs soon after it wakes. Otherwise a gradient on the
/// same core finishes its time slice of some milliseconds first. A hint, which kernels before Linux 6.12 ignore.
pub(crate) fn request_short_time_slices() {
    #[cfg(target_os = "linux")]
    {
        // Layout of the kernel's `sched_attr`: size, policy (0: normal), flags, nice, priority, time slice, ...
        let mut attributes = [0u64; 6];
        attributes[0] = size_of_val(&attributes) as u64;
        attributes[3] = TIME_SLICE.as_nanos() as u64;
        // SAFETY: the kernel reads as many bytes as the size field says, which is the size of the array.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, attributes.as_ptr(), 0) };
    }
}

/// The shortest time slice that Linux accepts.
#[cfg(target_os = "linux")]
const TIME_SLICE: std::time::Duration = std::time::Duration::from_micros(100);

static FINALIZED: AtomicBool = AtomicBool::new(false);

/// Finalizes MPI. Calls after the first have no effect.
pub(crate) fn finalize() {
    if !FINALIZED.swap(true, Ordering::SeqCst) {
        // SAFETY: the flag admits one call. The caller makes no MPI call afterwards and has completed its requests.
        unsafe { ffi::MPI_Finalize() };
    }
}

/// Ends all processes of the job.
pub(crate) fn abort(code: i32) -> ! {
    // SAFETY: MPI_Abort takes no pointers. It ends all processes, so it may be called at any time.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code) };
    std::process::exit(code)
}

/// MPI communicator. The order of its messages and collectives is independent of that of other communicators.
pub(crate) struct Communicator(ffi::MPI_Comm);

// SAFETY: a communicator is a handle that any thread may use, one at a time. The callers of this module keep to that.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Communicator of the ranks on this host. A collective call.
    pub(crate) fn of_host(number: usize) -> Self {
        // SAFETY: all ranks create the same communicators in the same order. The output pointer is to a local variable.
        unsafe {
            let mut communicator = ffi::RSMPI_COMM_WORLD;
            ffi::MPI_Comm_split_type(
                ffi::RSMPI_COMM_WORLD,
                ffi::RSMPI_COMM_TYPE_SHARED,
                rank_number(number),
                ffi::RSMPI_INFO_NULL,
                &mut communicator,
            );
            Self(communicator)
        }
    }

    /// Gathers the same number of values from every rank, in the order of the ranks. Blocks until all ranks have called
    /// it.
    pub(crate) fn all_gather<const N: usize>(&self, own: [u64; N]) -> Vec<[u64; N]> {
        let mut size = 0;
        // SAFETY: the communicator is valid, and the output pointer refers to a local variable.
        unsafe { ffi::MPI_Comm_size(self.0, &mut size) };
        let mut all = vec![[0u64; N]; size.unsigned_abs() as usize];
        let count = checked_count(N);
        // SAFETY: every rank sends N values, and the receive buffer has room for N values of every rank.
        unsafe {
            let (from, to) = ((&raw const own).cast(), all.as_mut_ptr().cast());
            ffi::MPI_Allgather(from, count, u64::datatype(), to, count, u64::datatype(), self.0);
        }
        all
    }

    /// A new communicator of all ranks. A collective call.
    pub(crate) fn new() -> Self {
        // SAFETY: all ranks create the same communicators in the same order. The output pointer is to a local variable.
        unsafe {
            let mut communicator = ffi::RSMPI_COMM_WORLD;
            ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut communicator);
            Self(communicator)
        }
    }

    /// Source and size in bytes of a message with this tag that can be received now. The size is `None` if MPI cannot
    /// tell it.
    pub(crate) fn probe(&self, tag: c_int) -> Option<(c_int, Option<usize>)> {
        // SAFETY: a status consists of integers, so all zeroes are valid. MPI_Iprobe fills it in if it sets the flag.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let (mut flag, mut count) = (0, 0);
            let any = ffi::RSMPI_ANY_SOURCE;
            ffi::MPI_Iprobe(any, tag, self.0, &mut flag, &mut status);
            if flag == 0 {
                return None;
            }
            ffi::MPI_Get_count(&status, u8::datatype(), &mut count);
            Some((status.MPI_SOURCE, usize::try_from(count).ok()))
        }
    }

    /// Starts a nonblocking send. The returned value owns the buffer; keep it until the send is done.
    pub(crate) fn send<T: Element, B: std::ops::Deref<Target = [T]>>(
        &self,
        buffer: Arc<B>,
        to: usize,
        tag: c_int,
    ) -> PendingSend<Arc<B>> {
        let values: &[T] = &buffer;
        // SAFETY: the buffer lives on the heap and is not modified. The returned value owns it, and the caller keeps
        // that value until `is_done` returns true.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let pointer = values.as_ptr().cast::<c_void>();
            let (count, to) = (checked_count(values.len()), rank_number(to));
            ffi::MPI_Isend(pointer, count, T::datatype(), to, tag, self.0, &mut request);
            request
        };
        PendingSend { request, _buffer: buffer }
    }

    /// Starts a nonblocking receive of `count` values.
    pub(crate) fn receive<T: Element>(&self, count: usize, from: c_int, tag: c_int) -> Pending<T> {
        let mut values = vec![T::default(); count];
        // SAFETY: the buffer lives on the heap. The returned value owns it, and the caller keeps that value until
        // `is_done` returns true.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let pointer = values.as_mut_ptr().cast::<c_void>();
            ffi::MPI_Irecv(pointer, checked_count(count), T::datatype(), from, tag, self.0, &mut request);
            request
        };
        let _input = vec![];
        Pending { request, values, _input }
    }

    /// Starts a nonblocking all-reduce: the elementwise maximum over all ranks if `maximum`, otherwise the sum.
    pub(crate) fn all_reduce<T: Element>(&self, input: Vec<T>, maximum: bool) -> Pending<T> {
        let mut values = vec![T::default(); input.len()];
        // SAFETY: both buffers live on the heap and have the same length. The returned value owns them, and the caller
        // keeps that value until `is_done` returns true.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let operation = if maximum { ffi::RSMPI_MAX } else { ffi::RSMPI_SUM };
            let (from, to) = (input.as_ptr().cast(), values.as_mut_ptr().cast());
            let count = checked_count(input.len());
            ffi::MPI_Iallreduce(from, to, count, T::datatype(), operation, self.0, &mut request);
            request
        };
        Pending { request, values, _input: input }
    }

    /// Starts a nonblocking barrier over all ranks.
    pub(crate) fn barrier(&self) -> Pending<u8> {
        // SAFETY: a barrier has no buffers. The output pointer refers to a local variable.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            ffi::MPI_Ibarrier(self.0, &mut request);
            request
        };
        let (values, _input) = (vec![], vec![]);
        Pending { request, values, _input }
    }
}

fn is_done(request: &mut ffi::MPI_Request) -> bool {
    let mut done = 0;
    // SAFETY: the request is active, or MPI_REQUEST_NULL after an earlier call found it done. MPI_Test accepts both.
    unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
    done != 0
}

/// A nonblocking send, with its buffer.
pub(crate) struct PendingSend<B> {
    request: ffi::MPI_Request,
    _buffer: B,
}

impl<B> PendingSend<B> {
    pub(crate) fn is_done(&mut self) -> bool {
        is_done(&mut self.request)
    }
}

/// A nonblocking receive or collective, with its buffers.
pub(crate) struct Pending<T> {
    request: ffi::MPI_Request,
    values: Vec<T>,
    /// Input of a collective.
    _input: Vec<T>,
}

impl<T> Pending<T> {
    pub(crate) fn is_done(&mut self) -> bool {
        is_done(&mut self.request)
    }

    /// The result. Call it only after [`is_done`](Self::is_done) has returned true.
    pub(crate) fn into_values(self) -> Vec<T> {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn counts_that_mpi_cannot_express_are_refused() {
        assert_eq!(count(i32::MAX as usize), Ok(i32::MAX));
        let error = count(i32::MAX as usize + 1).unwrap_err();
        assert!(error.contains("cannot send 2147483648 values"), "{error}");
        assert!(count(usize::MAX).is_err());
    }
}
