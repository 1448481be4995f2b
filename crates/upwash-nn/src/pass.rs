//! A pass over the operations of a network, forward or backward, and the memory that it works in.

use crate::buffer::Buffer;
use crate::timing::Cost;
use crate::{Real, Shape};
use pulp::Arch;
use std::ops::Range;

/// A tensor of activations, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor(pub(crate) usize);

/// How normalization layers use statistics.
#[derive(Debug)]
pub enum Statistics<'a, R> {
    /// They normalize by the statistics of the batch and move the running statistics toward them.
    Train(&'a mut [R]),
    /// They normalize by these statistics.
    Fixed(&'a [R]),
    /// They normalize by the statistics of the batch and write them here.
    Collect(&'a mut [R]),
}

/// What a layer keeps during a pass.
#[derive(Debug, Default)]
pub(crate) struct Kept<R> {
    /// Packed weights.
    pub(crate) packed: Vec<Buffer<R>>,
    /// The gradient of the weights, packed.
    pub(crate) gradient: Buffer<R>,
    /// Sums over the images so far.
    pub(crate) sums: [Vec<f64>; 2],
    /// One number per channel, several times.
    pub(crate) channels: Vec<Vec<R>>,
    /// A tensor whose gradient is that of the output.
    pub(crate) added: Option<Tensor>,
}

/// The gradient of a tensor.
#[derive(Debug, Default)]
struct Gradient<R> {
    buffer: Option<Buffer<R>>,
    /// The end of the images that have a gradient. Operations go through the images in order, so that the gradient of
    /// the current images has been computed in part if this is beyond their start.
    filled: usize,
}

/// The memory of a pass. The first pass of a network and batch size allocates tensors, which later passes use again.
#[derive(Debug, Default)]
pub struct Workspace<R> {
    /// The shapes of the tensors, and the number of images that fit.
    shapes: Vec<Shape>,
    capacity: usize,
    values: Vec<Buffer<R>>,
    gradients: Vec<Gradient<R>>,
    /// Gradients that are not needed any more, for tensors of the same shape and number of images. Their halos are
    /// still 0.
    spare: Vec<(Shape, usize, Buffer<R>)>,
    kept: Vec<Kept<R>>,
    scratch: Buffer<R>,
}

impl<R: Real> Workspace<R> {
    /// Makes room for `images` images.
    fn reserve(&mut self, tensors: &[TensorInfo], layers: usize, images: usize) {
        let fits = tensors.iter().map(|tensor| &tensor.shape).eq(&self.shapes);
        if !fits || images > self.capacity {
            self.shapes = tensors.iter().map(|tensor| tensor.shape).collect();
            self.capacity = images;
            self.values = tensors.iter().map(|tensor| Buffer::zeros(tensor.shape.len(images))).collect();
            self.spare.clear();
            self.kept.clear();
        }
        self.gradients.clear();
        self.gradients.resize_with(tensors.len(), Gradient::default);
        self.kept.resize_with(layers, Kept::default);
    }
}

/// What a network knows of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorInfo {
    pub(crate) shape: Shape,
    /// The number of images of its gradient that are needed at a time, if not all: its gradient is computed and used
    /// within one group of operations.
    pub(crate) local: Option<usize>,
}

/// What the operations of a network see while they compute: the tensors of some images of the batch.
#[derive(Debug)]
pub struct Pass<'a, R> {
    pub(crate) arch: Arch,
    /// The number of images of the batch.
    pub(crate) batch: usize,
    /// The images that are being computed.
    current: Range<usize>,
    tensors: &'a [TensorInfo],
    pub(crate) parameters: &'a [R],
    /// The gradient of the parameters. Empty in a forward pass.
    pub(crate) parameter_gradient: &'a mut [R],
    pub(crate) statistics: Statistics<'a, R>,
    memory: &'a mut Workspace<R>,
}

impl<'a, R: Real> Pass<'a, R> {
    pub(crate) fn new(
        arch: Arch,
        batch: usize,
        (tensors, layers): (&'a [TensorInfo], usize),
        (parameters, parameter_gradient): (&'a [R], &'a mut [R]),
        statistics: Statistics<'a, R>,
        memory: &'a mut Workspace<R>,
    ) -> Self {
        memory.reserve(tensors, layers, batch);
        Self { arch, batch, current: 0..batch, tensors, parameters, parameter_gradient, statistics, memory }
    }

    /// Goes on to these images.
    pub(crate) fn set_images(&mut self, images: Range<usize>) {
        self.current = images;
    }

    /// The number of images that are being computed.
    pub(crate) fn images(&self) -> usize {
        self.current.len()
    }

    pub(crate) fn shape(&self, tensor: Tensor) -> Shape {
        self.tensors[tensor.0].shape
    }

    /// Where the current images begin in a tensor.
    fn offset(&self, tensor: Tensor) -> usize {
        self.current.start * self.shape(tensor).image_pitch()
    }

    /// The value of a tensor, from the first of the current images on.
    pub(crate) fn value(&self, tensor: Tensor) -> &[R] {
        &self.memory.values[tensor.0][self.offset(tensor)..]
    }

    /// Takes the value of a tensor out, to write it. [`put`](Self::put) puts it back.
    pub(crate) fn take(&mut self, tensor: Tensor) -> Buffer<R> {
        let mut value = std::mem::take(&mut self.memory.values[tensor.0]);
        value.hide(self.offset(tensor));
        value
    }

    pub(crate) fn put(&mut self, tensor: Tensor, mut value: Buffer<R>) {
        value.hide(0);
        self.memory.values[tensor.0] = value;
    }

    /// Takes the gradient of a tensor: what operations have computed of it so far, if that is something for the current
    /// images; otherwise anything. Tells which. [`put_gradient`](Self::put_gradient) puts it back.
    pub(crate) fn take_gradient(&mut self, tensor: Tensor) -> (Buffer<R>, bool) {
        let local = self.tensors[tensor.0].local;
        let offset = if local.is_some() { 0 } else { self.offset(tensor) };
        let Gradient { buffer, filled } = &mut self.memory.gradients[tensor.0];
        let is_filled = *filled > self.current.start;
        let buffer = buffer.take();
        let mut buffer = buffer.unwrap_or_else(|| self.fresh(tensor));
        buffer.hide(offset);
        (buffer, is_filled)
    }

    /// The same, but zeros instead of anything.
    pub(crate) fn take_sum(&mut self, tensor: Tensor) -> Buffer<R> {
        let (mut gradient, is_filled) = self.take_gradient(tensor);
        if !is_filled {
            let (shape, images) = (self.shape(tensor), self.images());
            gradient[..shape.len(images)].fill(R::default());
        }
        gradient
    }

    pub(crate) fn put_gradient(&mut self, tensor: Tensor, mut gradient: Buffer<R>) {
        gradient.hide(0);
        let place = &mut self.memory.gradients[tensor.0];
        place.buffer = Some(gradient);
        place.filled = place.filled.max(self.current.end);
    }

    /// A buffer for the gradient of a tensor. Its halo is 0, the rest is anything.
    fn fresh(&mut self, tensor: Tensor) -> Buffer<R> {
        let TensorInfo { shape, local } = self.tensors[tensor.0];
        let images = local.unwrap_or(self.memory.capacity);
        let fits = |(spare, count, _): &(Shape, usize, Buffer<R>)| (*spare, *count) == (shape, images);
        match self.memory.spare.iter().rposition(fits) {
            Some(index) => self.memory.spare.swap_remove(index).2,
            None => Buffer::zeros(shape.len(images)),
        }
    }

    /// Lets go of the gradient of a tensor, after the operations that computed and used it are done with all images.
    pub(crate) fn drop_gradient(&mut self, tensor: Tensor) {
        if let Some(buffer) = std::mem::take(&mut self.memory.gradients[tensor.0]).buffer {
            let TensorInfo { shape, local } = self.tensors[tensor.0];
            self.memory.spare.push((shape, local.unwrap_or(self.memory.capacity), buffer));
        }
    }

    /// Adds the gradient of a tensor to that of another one of the same shape, after the operations that computed and
    /// used it are done with all images. Neither is local to a group.
    pub(crate) fn move_gradient(&mut self, from: Tensor, to: Tensor) {
        let moved = std::mem::take(&mut self.memory.gradients[from.0]);
        let sum = &mut self.memory.gradients[to.0];
        match (&mut sum.buffer, &moved.buffer) {
            (Some(sum), Some(terms)) => sum.iter_mut().zip(&**terms).for_each(|(sum, &term)| *sum += term),
            _ => return *sum = moved,
        }
        self.memory.gradients[from.0] = moved;
        self.drop_gradient(from);
    }

    /// A buffer that an operation needs only while it computes.
    pub(crate) fn take_scratch(&mut self) -> Buffer<R> {
        std::mem::take(&mut self.memory.scratch)
    }

    pub(crate) fn put_scratch(&mut self, scratch: Buffer<R>) {
        self.memory.scratch = scratch;
    }

    /// Takes what a layer keeps during a pass. [`put_kept`](Self::put_kept) puts it back.
    pub(crate) fn take_kept(&mut self, layer: usize) -> Kept<R> {
        std::mem::take(&mut self.memory.kept[layer])
    }

    pub(crate) fn put_kept(&mut self, layer: usize, kept: Kept<R>) {
        self.memory.kept[layer] = kept;
    }

    pub(crate) fn parameters(&self, range: &Range<usize>) -> &'a [R] {
        &self.parameters[range.clone()]
    }

    /// Some parameters, filled up with zeros to a length.
    pub(crate) fn padded(&self, range: &Range<usize>, len: usize) -> Vec<R> {
        let mut padded = self.parameters(range).to_vec();
        padded.resize(len, R::default());
        padded
    }
}

/// An operation of a network: how its output follows from its inputs, and the gradients of its inputs and parameters from
/// that of its output.
///
/// Operations come in groups. A pass goes through a group for some images at a time, few enough that what one operation
/// writes is still in the cache when the next one reads it, and then on to the next group.
///
/// A new kind of layer is a file that implements this trait, a method of [`Network`](crate::Network) that adds it, and a
/// variant of [`Layer`](crate::Layer).
pub trait Operation<R: Real>: Send + Sync + std::fmt::Debug {
    /// The tensors whose gradients it reads or writes.
    fn gradients(&self) -> Vec<Tensor>;

    /// Whether it needs what earlier operations have computed of all images, and so begins a group.
    fn begins_group(&self) -> bool {
        false
    }

    /// Prepares for computing outputs, before those of the first images.
    fn prepare(&self, _pass: &mut Pass<'_, R>) {}

    /// Computes the output of the current images.
    fn forward(&self, pass: &mut Pass<'_, R>);

    /// Prepares for computing gradients, before those of the first images.
    fn prepare_backward(&self, _pass: &mut Pass<'_, R>) {}

    /// Adds to the gradients of the inputs, for the current images.
    fn backward(&self, pass: &mut Pass<'_, R>);

    /// Writes the gradient of its parameters, after those of the last images.
    fn finish_backward(&self, _pass: &mut Pass<'_, R>) {}

    /// For layers of products: a name, and what their passes cost.
    fn cost(&self) -> Option<(String, Cost)> {
        None
    }

    /// Makes max(x, 0) part of this operation, if it can be.
    fn fuse_relu(&mut self) -> bool {
        false
    }

    /// Makes the sum with another tensor of the same shape part of this operation, if it can be.
    fn fuse_sum(&mut self, _other: Tensor) -> bool {
        false
    }
}
