//! Safe wrappers of the C++ shim (`cpp/shim.cpp`): failures become [`TorchError`]s, and handles are freed on drop.
//! One file, so that all declarations of foreign functions stand beside each other and beside their invariants.
//!
//! Invariants that the `SAFETY` comments refer to:
//! - A tensor handle comes from [`handle`] and points to the `at::Tensor` of a [`Tensor`] that the caller borrows for
//!   the whole call. The shim copies the `at::Tensor` (which is reference-counted) and does not keep the handle.
//! - An out-pointer refers to a local variable of the calling function, and the shim writes it only during the call.
//! - A stream, graph or kernel handle is created by its `_new` function and owned by exactly one Rust value, whose
//!   `Drop` frees it.
//! - No C++ exception crosses the boundary: the shim turns each one into an error message.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use tch::Tensor;

/// An error of libtorch or CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TorchError(pub(crate) String);

impl TorchError {
    /// Whether the device ran out of memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.0.contains("out of memory")
    }
}

/// An error message that the caller frees with `upwash_free`; null on success.
type ErrorText = *mut c_char;
/// An opaque pointer to a C++ object.
type Handle = *mut c_void;

unsafe extern "C" {
    fn upwash_free(message: ErrorText);
    fn upwash_backward(
        logits: Handle,
        grad_logits: Handle,
        leaves: *const Handle,
        targets: *const Handle,
        count: usize,
    ) -> ErrorText;
    fn upwash_copy(to: Handle, from: Handle) -> ErrorText;
    fn upwash_add_scaled(to: *const Handle, from: *const Handle, count: usize, scale: f64) -> ErrorText;
    fn upwash_reset_peak(device: c_int) -> ErrorText;
    fn upwash_synchronize(device: c_int) -> ErrorText;
    fn upwash_is_idle(device: c_int, idle: *mut c_int) -> ErrorText;
    fn upwash_scale(x: Handle, stats: Handle, rectify: c_int, result: *mut Handle) -> ErrorText;
    fn upwash_norm_prepare(device: c_int, source: *const c_char) -> ErrorText;
    fn upwash_norm(
        x: Handle,
        weight: Handle,
        bias: Handle,
        running_mean: Handle,
        running_variance: Handle,
        momentum: f64,
        epsilon: f64,
        rectify: c_int,
        result: *mut Handle,
    ) -> ErrorText;
    fn upwash_pin(tensor: Handle, pinned: *mut Handle) -> ErrorText;
    fn upwash_cuda_state(devices: *mut c_int) -> c_int;
    fn upwash_precision(precision: c_int) -> ErrorText;
    fn upwash_autocast(enabled: c_int) -> ErrorText;
    fn upwash_release_memory() -> ErrorText;
    fn upwash_memory(
        device: c_int,
        in_use: *mut usize,
        peak: *mut usize,
        free: *mut usize,
        total: *mut usize,
    ) -> ErrorText;
    fn upwash_streams_new(device: c_int, count: usize, streams: *mut Handle) -> ErrorText;
    fn upwash_streams_free(streams: Handle);
    fn upwash_streams_use(streams: Handle, index: c_int) -> ErrorText;
    fn upwash_streams_fork(streams: Handle) -> ErrorText;
    fn upwash_streams_join(streams: Handle) -> ErrorText;
    fn upwash_graph_new(graph: *mut Handle) -> ErrorText;
    fn upwash_graph_free(graph: Handle);
    fn upwash_graph_begin(graph: Handle) -> ErrorText;
    fn upwash_graph_end(graph: Handle) -> ErrorText;
    fn upwash_graph_replay(graph: Handle) -> ErrorText;
    fn upwash_kernels_new(
        device: c_int,
        source: *const c_char,
        names: *const *const c_char,
        count: usize,
        kernels: *mut Handle,
    ) -> ErrorText;
    fn upwash_kernels_free(kernels: Handle);
    fn upwash_kernels_launch(
        kernels: Handle,
        index: usize,
        grid: *const u32,
        block: u32,
        shared_bytes: u32,
        arguments: *mut *mut c_void,
    ) -> ErrorText;
}

/// Turns an error message of the shim into an error, and frees it.
fn check(message: ErrorText) -> Result<(), TorchError> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: the message is not null, so it is a NUL-terminated string that the shim allocated for its caller. It is
    // read before it is freed, and freed once, because every message is passed to this function exactly once.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        upwash_free(message);
        Err(TorchError(text))
    }
}

fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr() as Handle
}

/// Backpropagates `grad_logits`, the gradient of the loss with respect to `logits`, and writes the gradients with
/// respect to `leaves` into `targets`.
pub(crate) fn backward(
    logits: &Tensor,
    grad_logits: &Tensor,
    leaves: &[Tensor],
    targets: &[Tensor],
) -> Result<(), TorchError> {
    assert_eq!(leaves.len(), targets.len());
    let leaves: Vec<Handle> = leaves.iter().map(handle).collect();
    let targets: Vec<Handle> = targets.iter().map(handle).collect();
    // SAFETY: all handles are of tensors borrowed for the call, and both lists have `leaves.len()` elements (asserted
    // above).
    check(unsafe {
        upwash_backward(handle(logits), handle(grad_logits), leaves.as_ptr(), targets.as_ptr(), leaves.len())
    })
}

/// Copies `from` to `to`. Does not block when `from` is pinned memory.
pub(crate) fn copy(to: &Tensor, from: &Tensor) -> Result<(), TorchError> {
    // SAFETY: both handles are of tensors borrowed for the call.
    check(unsafe { upwash_copy(handle(to), handle(from)) })
}

/// `to[i] += scale x from[i]` for all i in one call, not recorded by autograd.
pub(crate) fn add_scaled(to: &[Tensor], from: &[Tensor], scale: f64) -> Result<(), TorchError> {
    assert_eq!(to.len(), from.len());
    let to: Vec<Handle> = to.iter().map(handle).collect();
    let from: Vec<Handle> = from.iter().map(handle).collect();
    // SAFETY: all handles are of tensors borrowed for the call, and both lists have `to.len()` elements (asserted
    // above).
    check(unsafe { upwash_add_scaled(to.as_ptr(), from.as_ptr(), to.len(), scale) })
}

/// Compiles the custom batch normalization for a device.
pub(crate) fn prepare_norm(device: usize) -> Result<(), TorchError> {
    let source = CString::new(include_str!("norm.cu")).expect("the kernel source has no NUL byte");
    // SAFETY: `source` is NUL-terminated and lives until the call returns; the shim does not keep the pointer.
    check(unsafe { upwash_norm_prepare(device as c_int, source.as_ptr()) })
}

/// Custom batch normalization in training mode, followed by a ReLU if `rectify`. Updates the running statistics
/// (mean, variance). Returns `None` if the kernels are not compiled for the tensor's device or do not support its
/// type or layout.
///
/// `weight`, `bias` and the running statistics must be contiguous f32 tensors on the device of `x` with one value per
/// channel.
pub(crate) fn norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    running: [&Tensor; 2],
    momentum: f64,
    epsilon: f64,
    rectify: bool,
) -> Result<Option<Tensor>, TorchError> {
    let mut result = std::ptr::null_mut();
    // SAFETY: all handles are of tensors borrowed for the call. The shim checks type and layout of `x`; the caller
    // upholds those of the others, which the kernels address as `channels` f32 values. On success `result` is null or
    // a new `at::Tensor` that nothing else refers to, so that `Tensor::from_ptr` becomes its only owner.
    unsafe {
        check(upwash_norm(
            handle(x),
            handle(weight),
            handle(bias),
            handle(running[0]),
            handle(running[1]),
            momentum,
            epsilon,
            c_int::from(rectify),
            &mut result,
        ))?;
        Ok((!result.is_null()).then(|| Tensor::from_ptr(result.cast())))
    }
}

/// x scale + shift for each channel, followed by a ReLU if `rectify`; not differentiable. Returns `None` under the same
/// conditions as [`norm`].
///
/// `scale` and `shift` must be f32 tensors on the device of `x` with one value per channel.
pub(crate) fn scale(x: &Tensor, scale: &Tensor, shift: &Tensor, rectify: bool) -> Result<Option<Tensor>, TorchError> {
    let stats = Tensor::stack(&[scale, scale, scale, shift], 0);
    let mut result = std::ptr::null_mut();
    // SAFETY: both handles are of tensors that live until the call returns. The shim checks type and layout of `x`;
    // the caller upholds those of `scale` and `shift`, and `stack` makes the rows of `stats` contiguous. On success
    // `result` is null or a new `at::Tensor` that nothing else refers to, so that `Tensor::from_ptr` becomes its only
    // owner.
    unsafe {
        let rectify = c_int::from(rectify);
        check(upwash_scale(handle(x), handle(&stats), rectify, &mut result))?;
        Ok((!result.is_null()).then(|| Tensor::from_ptr(result.cast())))
    }
}

/// Restarts the measurement of peak memory.
pub(crate) fn reset_peak(device: usize) -> Result<(), TorchError> {
    // SAFETY: passes no pointers; the shim reports an invalid device as an error.
    check(unsafe { upwash_reset_peak(device as c_int) })
}

/// Blocks until the current stream of a device has finished.
pub(crate) fn synchronize(device: usize) -> Result<(), TorchError> {
    // SAFETY: passes no pointers; the shim reports an invalid device as an error.
    check(unsafe { upwash_synchronize(device as c_int) })
}

/// Whether the current stream of a device has finished all its work.
pub(crate) fn is_idle(device: usize) -> Result<bool, TorchError> {
    let mut idle = 0;
    // SAFETY: `idle` is a local variable that the shim writes only during the call.
    check(unsafe { upwash_is_idle(device as c_int, &mut idle) })?;
    Ok(idle != 0)
}

/// The elements of a CPU tensor.
///
/// # Panics
/// If the tensor is not on the CPU, not contiguous, or of another element type.
pub(crate) fn host_slice_mut<T: tch::kind::Element>(tensor: &mut Tensor) -> &mut [T] {
    assert_eq!(tensor.device(), tch::Device::Cpu);
    assert!(tensor.is_contiguous() && tensor.kind() == T::KIND);
    // SAFETY: the tensor is contiguous CPU memory of `numel` elements of type `T` (asserted above), which it keeps
    // allocated while it is borrowed. Callers own the tensor and hold no other slice of its memory. `LossReadback`,
    // whose memory the GPU writes concurrently, uses volatile reads.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel()) }
}

/// Copies a tensor into pinned memory, from which the GPU copies asynchronously.
pub(crate) fn pin(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let mut pinned = std::ptr::null_mut();
    // SAFETY: the handle is of a tensor borrowed for the call. On success `pinned` is a new `at::Tensor` that nothing
    // else refers to, so that `Tensor::from_ptr` becomes its only owner.
    unsafe {
        check(upwash_pin(handle(tensor), &mut pinned))?;
        Ok(Tensor::from_ptr(pinned.cast()))
    }
}

/// Whether CUDA is available, and on how many GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuda {
    /// The number of GPUs.
    Devices(usize),
    /// The program was built with a libtorch without CUDA, or without the CUDA headers.
    NotBuilt,
    /// The machine has no GPU, or no driver for it.
    NoDevice,
}

impl Cuda {
    /// Detects the GPUs of this machine.
    pub fn detect() -> Self {
        let mut devices = 0;
        // SAFETY: `devices` is a local variable that the shim writes only during the call.
        match unsafe { upwash_cuda_state(&mut devices) } {
            0 => Self::Devices(devices.unsigned_abs() as usize),
            1 => Self::NotBuilt,
            _ => Self::NoDevice,
        }
    }
}

/// Sets libtorch's precision for this process: 0 for f32, 1 for TF32, 2 for bf16.
pub(crate) fn precision(precision: c_int) -> Result<(), TorchError> {
    // SAFETY: passes no pointers.
    check(unsafe { upwash_precision(precision) })
}

/// Runs `work` with autocast to bf16 on the GPU if `enabled`.
pub(crate) fn autocast<T>(enabled: bool, work: impl FnOnce() -> T) -> T {
    struct DisableOnDrop;
    impl Drop for DisableOnDrop {
        fn drop(&mut self) {
            // SAFETY: passes no pointers.
            let _ = check(unsafe { upwash_autocast(0) });
        }
    }
    if !enabled {
        return work();
    }
    // SAFETY: passes no pointers.
    let _ = check(unsafe { upwash_autocast(1) });
    let _disable = DisableOnDrop;
    work()
}

/// Returns cached memory that is not in use to the device.
pub(crate) fn release_memory() -> Result<(), TorchError> {
    // SAFETY: passes no pointers.
    check(unsafe { upwash_release_memory() })
}

/// Memory of a GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Currently reserved by libtorch.
    pub in_use: usize,
    /// The peak of what libtorch has reserved.
    pub peak: usize,
    /// Free on the device, for any process.
    pub free: usize,
    /// Total memory of the device.
    pub total: usize,
}

impl Memory {
    /// The memory of this device.
    pub fn of(device: usize) -> Result<Self, TorchError> {
        let mut memory = Self::default();
        // SAFETY: the four out-pointers are fields of a local variable; the shim writes them only during the call.
        check(unsafe {
            upwash_memory(device as c_int, &mut memory.in_use, &mut memory.peak, &mut memory.free, &mut memory.total)
        })?;
        Ok(memory)
    }
}

/// A main CUDA stream and some side streams.
pub(crate) struct Streams {
    streams: Handle,
    count: usize,
    /// The current stream: -2 is the one that was current at creation, -1 the main stream, otherwise a side stream.
    current: std::cell::Cell<c_int>,
}

impl Streams {
    pub(crate) fn new(device: usize, count: usize) -> Result<Self, TorchError> {
        let mut streams = std::ptr::null_mut();
        // SAFETY: `streams` is a local variable that the shim writes only during the call. `Drop` frees the handle.
        check(unsafe { upwash_streams_new(device as c_int, count, &mut streams) })?;
        let current = (-2).into();
        Ok(Self { streams, count, current })
    }

    /// Runs `work` with the main stream as the current stream.
    pub(crate) fn on_main<T>(&self, work: impl FnOnce() -> T) -> Result<T, TorchError> {
        self.on(-1, work)
    }

    /// Runs `work` for each of `0..workers` on the side streams in turn, between a fork from the main stream and a
    /// join.
    pub(crate) fn on_side_streams(
        &self,
        workers: usize,
        mut work: impl FnMut(usize) -> Result<(), TorchError>,
    ) -> Result<(), TorchError> {
        // SAFETY: `self` owns the handle, which stays valid until `Drop`.
        check(unsafe { upwash_streams_fork(self.streams) })?;
        for worker in 0..workers {
            self.on((worker % self.count) as c_int, || work(worker))??;
        }
        // SAFETY: as above.
        check(unsafe { upwash_streams_join(self.streams) })
    }

    fn on<T>(&self, index: c_int, work: impl FnOnce() -> T) -> Result<T, TorchError> {
        /// Makes the previous stream current again, even after a panic: a capture must end on the stream on which it
        /// began.
        struct RestoreStream<'a>(&'a Streams, c_int);
        impl Drop for RestoreStream<'_> {
            fn drop(&mut self) {
                let _ = self.0.use_stream(self.1);
            }
        }
        let previous = self.current.get();
        self.use_stream(index)?;
        let _restore = RestoreStream(self, previous);
        Ok(work())
    }

    fn use_stream(&self, index: c_int) -> Result<(), TorchError> {
        // SAFETY: `self` owns the handle, which stays valid until `Drop`. The shim reports an index out of range as
        // an error.
        check(unsafe { upwash_streams_use(self.streams, index) })?;
        self.current.set(index);
        Ok(())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // SAFETY: the handle comes from `upwash_streams_new`, only `self` owns it, and it is not used after this.
        unsafe { upwash_streams_free(self.streams) }
    }
}

/// A captured CUDA graph.
pub(crate) struct Graph(Handle);

impl Graph {
    /// Captures the GPU work that `work` launches on the current stream and on streams forked from it, without
    /// running it. The capture ends even if `work` fails or panics.
    pub(crate) fn capture(work: impl FnOnce() -> Result<(), TorchError>) -> Result<Self, TorchError> {
        struct CaptureGuard(Handle, bool);
        impl CaptureGuard {
            fn end(&mut self) -> Result<(), TorchError> {
                if std::mem::replace(&mut self.1, false) {
                    // SAFETY: the `Graph` that owns the handle outlives this guard, which is declared after it and so
                    // dropped before it. The flag ensures that the capture is in progress and ended once.
                    return check(unsafe { upwash_graph_end(self.0) });
                }
                Ok(())
            }
        }
        impl Drop for CaptureGuard {
            fn drop(&mut self) {
                let _ = self.end();
            }
        }
        let mut graph = std::ptr::null_mut();
        // SAFETY: `graph` is a local variable that the shim writes only during the call. `Drop` frees the handle.
        check(unsafe { upwash_graph_new(&mut graph) })?;
        let graph = Self(graph);
        // SAFETY: the `Graph` above owns the handle.
        check(unsafe { upwash_graph_begin(graph.0) })?;
        let mut guard = CaptureGuard(graph.0, true);
        let result = work();
        let ended = guard.end();
        result?;
        ended?;
        Ok(graph)
    }

    /// Launches the captured work on the current stream.
    pub(crate) fn replay(&self) -> Result<(), TorchError> {
        // SAFETY: `self` owns the handle, and `capture` returns a `Graph` only after the capture has ended.
        // `CudaEngine` owns the graph along with all buffers that it reads and writes.
        check(unsafe { upwash_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the handle comes from `upwash_graph_new`, only `self` owns it, and it is not used after this.
        unsafe { upwash_graph_free(self.0) }
    }
}

/// An argument of a kernel launch.
#[derive(Clone, Copy)]
pub(crate) enum Argument {
    Pointer(*mut c_void),
    Int(i32),
    Long(i64),
    Float(f32),
}

impl Argument {
    /// A pointer to the first element of a tensor. It does not keep the tensor alive.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self::Pointer(tensor.data_ptr())
    }

    pub(crate) fn null() -> Self {
        Self::Pointer(std::ptr::null_mut())
    }
}

/// Custom kernels, compiled for a device.
pub(crate) struct Kernels(Handle);

impl Kernels {
    pub(crate) fn new(device: usize, source: &str, names: &[&str]) -> Result<Self, TorchError> {
        let c_string = |text: &str| CString::new(text).expect("kernel sources and names have no NUL byte");
        let source = c_string(source);
        let names: Vec<CString> = names.iter().map(|name| c_string(name)).collect();
        let pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let mut kernels = std::ptr::null_mut();
        // SAFETY: the source and all names are NUL-terminated and live until the call returns; `pointers` has
        // `names.len()` elements; `kernels` is a local variable that the shim writes only during the call. `Drop`
        // frees the handle.
        check(unsafe {
            upwash_kernels_new(device as c_int, source.as_ptr(), pointers.as_ptr(), names.len(), &mut kernels)
        })?;
        Ok(Self(kernels))
    }

    /// Launches kernel `index` on the current stream.
    ///
    /// # Safety
    /// `arguments` must match the parameters of the kernel in number, order and type. Every pointer must be
    /// device-accessible memory that covers all accesses of the kernel for this grid and these arguments. That memory
    /// must not be reused before the kernel has run. Tensors that were allocated on the current stream may be dropped
    /// earlier: libtorch's allocator reuses their memory only for later work on the same stream.
    pub(crate) unsafe fn launch(
        &self,
        index: usize,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> Result<(), TorchError> {
        let mut arguments = arguments.to_vec();
        let mut pointers: Vec<*mut c_void> = arguments
            .iter_mut()
            .map(|argument| match argument {
                Argument::Pointer(value) => std::ptr::from_mut(value).cast(),
                Argument::Int(value) => std::ptr::from_mut(value).cast(),
                Argument::Long(value) => std::ptr::from_mut(value).cast(),
                Argument::Float(value) => std::ptr::from_mut(value).cast(),
            })
            .collect();
        // SAFETY: `self` owns the handle; the shim reports an index out of range as an error. `grid` has three
        // elements. The pointers refer to `arguments`, which lives until the call returns, and the driver copies the
        // values before that. The caller guarantees that the arguments fit the kernel.
        check(unsafe {
            upwash_kernels_launch(self.0, index, grid.as_ptr(), block, shared_bytes, pointers.as_mut_ptr())
        })
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: the handle comes from `upwash_kernels_new`, only `self` owns it, and it is not used after this.
        unsafe { upwash_kernels_free(self.0) }
    }
}
