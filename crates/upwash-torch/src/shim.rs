//! The C++ file, made safe: what fails is an error, and what is made is freed.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use tch::Tensor;

/// Something that libtorch or CUDA could not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TorchError(pub(crate) String);

impl TorchError {
    /// Whether the device's memory was too small.
    pub(crate) fn lacks_memory(&self) -> bool {
        self.0.contains("out of memory")
    }
}

type Message = *mut c_char;
type Handle = *mut c_void;

unsafe extern "C" {
    fn upwash_free(message: Message);
    fn upwash_backward(
        logits: Handle,
        slope: Handle,
        leaves: *const Handle,
        targets: *const Handle,
        count: usize,
    ) -> Message;
    fn upwash_copy(to: Handle, from: Handle) -> Message;
    fn upwash_add_scaled(to: *const Handle, from: *const Handle, count: usize, scale: f64) -> Message;
    fn upwash_forget_peak(device: c_int) -> Message;
    fn upwash_wait(device: c_int) -> Message;
    fn upwash_is_idle(device: c_int, idle: *mut c_int) -> Message;
    fn upwash_scale(x: Handle, stats: Handle, rectify: c_int, result: *mut Handle) -> Message;
    fn upwash_norm_prepare(device: c_int, source: *const c_char) -> Message;
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
    ) -> Message;
    fn upwash_pin(tensor: Handle, pinned: *mut Handle) -> Message;
    fn upwash_cuda_state(devices: *mut c_int) -> c_int;
    fn upwash_precision(precision: c_int) -> Message;
    fn upwash_autocast(enabled: c_int) -> Message;
    fn upwash_release_memory() -> Message;
    fn upwash_memory(
        device: c_int,
        in_use: *mut usize,
        peak: *mut usize,
        free: *mut usize,
        total: *mut usize,
    ) -> Message;
    fn upwash_streams_new(device: c_int, count: usize, streams: *mut Handle) -> Message;
    fn upwash_streams_free(streams: Handle);
    fn upwash_streams_use(streams: Handle, index: c_int) -> Message;
    fn upwash_streams_fork(streams: Handle) -> Message;
    fn upwash_streams_join(streams: Handle) -> Message;
    fn upwash_graph_new(graph: *mut Handle) -> Message;
    fn upwash_graph_free(graph: Handle);
    fn upwash_graph_begin(graph: Handle) -> Message;
    fn upwash_graph_end(graph: Handle) -> Message;
    fn upwash_graph_replay(graph: Handle) -> Message;
    fn upwash_kernels_new(
        device: c_int,
        source: *const c_char,
        names: *const *const c_char,
        count: usize,
        kernels: *mut Handle,
    ) -> Message;
    fn upwash_kernels_free(kernels: Handle);
    fn upwash_kernels_launch(
        kernels: Handle,
        index: usize,
        grid: *const u32,
        block: u32,
        shared_bytes: u32,
        arguments: *mut *mut c_void,
    ) -> Message;
}

fn check(message: Message) -> Result<(), TorchError> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: every function returns null or a string of its own that we free.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        upwash_free(message);
        Err(TorchError(text))
    }
}

fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr() as Handle
}

/// Gradients of `logits` in the direction `slope` with respect to `leaves`, put into `targets`.
pub(crate) fn backward(
    logits: &Tensor,
    slope: &Tensor,
    leaves: &[Tensor],
    targets: &[Tensor],
) -> Result<(), TorchError> {
    assert_eq!(leaves.len(), targets.len());
    let leaves: Vec<Handle> = leaves.iter().map(handle).collect();
    let targets: Vec<Handle> = targets.iter().map(handle).collect();
    // SAFETY: all are live tensors, and the lists are as long as said.
    check(unsafe { upwash_backward(handle(logits), handle(slope), leaves.as_ptr(), targets.as_ptr(), leaves.len()) })
}

/// Copies without waiting for it, where `from` is pinned memory.
pub(crate) fn copy(to: &Tensor, from: &Tensor) -> Result<(), TorchError> {
    // SAFETY: both are live tensors.
    check(unsafe { upwash_copy(handle(to), handle(from)) })
}

/// to[i] += scale x from[i], for all at once and behind autograd's back.
pub(crate) fn add_scaled(to: &[Tensor], from: &[Tensor], scale: f64) -> Result<(), TorchError> {
    assert_eq!(to.len(), from.len());
    let to: Vec<Handle> = to.iter().map(handle).collect();
    let from: Vec<Handle> = from.iter().map(handle).collect();
    // SAFETY: all are live tensors, and the lists are as long as said.
    check(unsafe { upwash_add_scaled(to.as_ptr(), from.as_ptr(), to.len(), scale) })
}

/// Makes our own batch normalisation ready for a device.
pub(crate) fn prepare_norm(device: usize) -> Result<(), TorchError> {
    let source = CString::new(include_str!("norm.cu")).expect("no zero within");
    // SAFETY: a string that lives until the call returns.
    check(unsafe { upwash_norm_prepare(device as c_int, source.as_ptr()) })
}

/// Batch normalisation in training, with a rectifier behind it if asked for, where ours is ready and made
/// for such tensors; running statistics (mean, variance) move.
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
    // SAFETY: live tensors; the new one is ours, and tch's from here on.
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

/// x scale + shift for each channel, with a rectifier behind it if asked for and without a slope, where
/// our own kernels are ready and made for such tensors.
pub(crate) fn scale(x: &Tensor, scale: &Tensor, shift: &Tensor, rectify: bool) -> Result<Option<Tensor>, TorchError> {
    let stats = Tensor::stack(&[scale, scale, scale, shift], 0);
    let mut result = std::ptr::null_mut();
    // SAFETY: live tensors; the new one is ours, and tch's from here on.
    unsafe {
        let rectify = c_int::from(rectify);
        check(upwash_scale(handle(x), handle(&stats), rectify, &mut result))?;
        Ok((!result.is_null()).then(|| Tensor::from_ptr(result.cast())))
    }
}

/// Counts the most memory that was held from here on.
pub(crate) fn forget_peak(device: usize) -> Result<(), TorchError> {
    // SAFETY: no pointers.
    check(unsafe { upwash_forget_peak(device as c_int) })
}

/// Waits for the current stream of a device.
pub(crate) fn wait(device: usize) -> Result<(), TorchError> {
    // SAFETY: no pointers.
    check(unsafe { upwash_wait(device as c_int) })
}

/// Whether the current stream of a device has done everything that it was given.
pub(crate) fn is_idle(device: usize) -> Result<bool, TorchError> {
    let mut idle = 0;
    // SAFETY: the place is one to write to.
    check(unsafe { upwash_is_idle(device as c_int, &mut idle) })?;
    Ok(idle != 0)
}

/// The numbers of a tensor in this machine's memory.
///
/// # Panics
/// If it is not there, not in one piece, or of another kind.
pub(crate) fn numbers_of<T: tch::kind::Element>(tensor: &mut Tensor) -> &mut [T] {
    assert_eq!(tensor.device(), tch::Device::Cpu);
    assert!(tensor.is_contiguous() && tensor.kind() == T::KIND);
    // SAFETY: so many numbers of this kind lie there, for as long as the tensor is borrowed.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel()) }
}

/// A copy in memory that the GPU can read while the program goes on.
pub(crate) fn pin(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let mut pinned = std::ptr::null_mut();
    // SAFETY: a live tensor; the new one is ours, and tch's from here on.
    unsafe {
        check(upwash_pin(handle(tensor), &mut pinned))?;
        Ok(Tensor::from_ptr(pinned.cast()))
    }
}

/// Whether there is a GPU to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuda {
    /// This many.
    Devices(usize),
    /// The program was built beside a libtorch, or headers, without CUDA.
    NotBuilt,
    /// There is no GPU, or no driver for it.
    NoDevice,
}

impl Cuda {
    /// What is here.
    pub fn here() -> Self {
        let mut devices = 0;
        // SAFETY: the place is one to write to.
        match unsafe { upwash_cuda_state(&mut devices) } {
            0 => Self::Devices(devices.unsigned_abs() as usize),
            1 => Self::NotBuilt,
            _ => Self::NoDevice,
        }
    }
}

/// 0 for f32, 1 for TF32, 2 for bf16.
pub(crate) fn precision(precision: c_int) -> Result<(), TorchError> {
    // SAFETY: no pointers.
    check(unsafe { upwash_precision(precision) })
}

/// Runs `work` with autocast to bf16 on the GPU, where `enabled`.
pub(crate) fn autocast<T>(enabled: bool, work: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            // SAFETY: no pointers.
            let _ = check(unsafe { upwash_autocast(0) });
        }
    }
    if !enabled {
        return work();
    }
    // SAFETY: no pointers.
    let _ = check(unsafe { upwash_autocast(1) });
    let _off = Off;
    work()
}

/// Gives memory that is not in use back to the device.
pub(crate) fn release_memory() -> Result<(), TorchError> {
    // SAFETY: no pointers.
    check(unsafe { upwash_release_memory() })
}

/// Bytes of a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Held by libtorch now.
    pub in_use: usize,
    /// The most that it has held.
    pub peak: usize,
    /// Free for anyone.
    pub free: usize,
    /// All of it.
    pub total: usize,
}

impl Memory {
    /// Of this device.
    pub fn of(device: usize) -> Result<Self, TorchError> {
        let mut memory = Self::default();
        // SAFETY: four places to write to.
        check(unsafe {
            upwash_memory(device as c_int, &mut memory.in_use, &mut memory.peak, &mut memory.free, &mut memory.total)
        })?;
        Ok(memory)
    }
}

/// A main stream and some others.
pub(crate) struct Streams {
    streams: Handle,
    count: usize,
    /// Which one is in use: -2 is the one before ours, -1 the main one.
    current: std::cell::Cell<c_int>,
}

impl Streams {
    pub(crate) fn new(device: usize, count: usize) -> Result<Self, TorchError> {
        let mut streams = std::ptr::null_mut();
        // SAFETY: the place is one to write to.
        check(unsafe { upwash_streams_new(device as c_int, count, &mut streams) })?;
        let current = (-2).into();
        Ok(Self { streams, count, current })
    }

    /// Runs `work` with the main stream as the current one.
    pub(crate) fn on_main<T>(&self, work: impl FnOnce() -> T) -> Result<T, TorchError> {
        self.on(-1, work)
    }

    /// Runs `work` for each of `0..workers` on the others in turn, between a fork and a join.
    pub(crate) fn on_others(
        &self,
        workers: usize,
        mut work: impl FnMut(usize) -> Result<(), TorchError>,
    ) -> Result<(), TorchError> {
        // SAFETY: our own streams.
        check(unsafe { upwash_streams_fork(self.streams) })?;
        for worker in 0..workers {
            self.on((worker % self.count) as c_int, || work(worker))??;
        }
        // SAFETY: our own streams.
        check(unsafe { upwash_streams_join(self.streams) })
    }

    fn on<T>(&self, index: c_int, work: impl FnOnce() -> T) -> Result<T, TorchError> {
        /// Goes back to the stream that was in use, even from a panic: a recording must end where it
        /// began.
        struct Back<'a>(&'a Streams, c_int);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                let _ = self.0.use_stream(self.1);
            }
        }
        let before = self.current.get();
        self.use_stream(index)?;
        let _back = Back(self, before);
        Ok(work())
    }

    fn use_stream(&self, index: c_int) -> Result<(), TorchError> {
        // SAFETY: our own streams; the index is checked there.
        check(unsafe { upwash_streams_use(self.streams, index) })?;
        self.current.set(index);
        Ok(())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // SAFETY: made by upwash_streams_new and freed once.
        unsafe { upwash_streams_free(self.streams) }
    }
}

/// Work on the GPU, recorded once.
pub(crate) struct Graph(Handle);

impl Graph {
    /// Records what `work` does on the current stream and those forked from it. Nothing is run. The
    /// recording ends even if `work` fails or panics.
    pub(crate) fn capture(work: impl FnOnce() -> Result<(), TorchError>) -> Result<Self, TorchError> {
        struct Recording(Handle, bool);
        impl Recording {
            fn end(&mut self) -> Result<(), TorchError> {
                if std::mem::replace(&mut self.1, false) {
                    // SAFETY: our own graph, which is recording.
                    return check(unsafe { upwash_graph_end(self.0) });
                }
                Ok(())
            }
        }
        impl Drop for Recording {
            fn drop(&mut self) {
                let _ = self.end();
            }
        }
        let mut graph = std::ptr::null_mut();
        // SAFETY: the place is one to write to.
        check(unsafe { upwash_graph_new(&mut graph) })?;
        let graph = Self(graph);
        // SAFETY: our own graph.
        check(unsafe { upwash_graph_begin(graph.0) })?;
        let mut recording = Recording(graph.0, true);
        let done = work();
        let ended = recording.end();
        done?;
        ended?;
        Ok(graph)
    }

    pub(crate) fn replay(&self) -> Result<(), TorchError> {
        // SAFETY: our own graph, which was captured.
        check(unsafe { upwash_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by upwash_graph_new and freed once.
        unsafe { upwash_graph_free(self.0) }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Argument {
    Pointer(*mut c_void),
    Int(i32),
    Long(i64),
    Float(f32),
}

impl Argument {
    /// The memory of a tensor, from its first element on.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self::Pointer(tensor.data_ptr())
    }

    pub(crate) fn null() -> Self {
        Self::Pointer(std::ptr::null_mut())
    }
}

/// Kernels of our own, compiled for a device.
pub(crate) struct Kernels(Handle);

impl Kernels {
    pub(crate) fn new(device: usize, source: &str, names: &[&str]) -> Result<Self, TorchError> {
        let c_string = |text: &str| CString::new(text).expect("no zero within");
        let source = c_string(source);
        let names: Vec<CString> = names.iter().map(|name| c_string(name)).collect();
        let pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let mut kernels = std::ptr::null_mut();
        // SAFETY: strings that live until the call returns.
        check(unsafe {
            upwash_kernels_new(device as c_int, source.as_ptr(), pointers.as_ptr(), names.len(), &mut kernels)
        })?;
        Ok(Self(kernels))
    }

    /// Launches kernel `index` on the current stream.
    ///
    /// # Safety
    /// The arguments must be what the kernel takes, and memory that it may use.
    pub(crate) unsafe fn launch(
        &self,
        index: usize,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> Result<(), TorchError> {
        let mut arguments = arguments.to_vec();
        let mut places: Vec<*mut c_void> = arguments
            .iter_mut()
            .map(|argument| match argument {
                Argument::Pointer(value) => std::ptr::from_mut(value).cast(),
                Argument::Int(value) => std::ptr::from_mut(value).cast(),
                Argument::Long(value) => std::ptr::from_mut(value).cast(),
                Argument::Float(value) => std::ptr::from_mut(value).cast(),
            })
            .collect();
        // SAFETY: the driver copies the arguments before it returns; the rest is the caller's word.
        check(unsafe { upwash_kernels_launch(self.0, index, grid.as_ptr(), block, shared_bytes, places.as_mut_ptr()) })
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: made by upwash_kernels_new and freed once.
        unsafe { upwash_kernels_free(self.0) }
    }
}
