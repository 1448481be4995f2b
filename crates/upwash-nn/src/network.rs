//! Networks: tensors, the layers between them, and passes over a batch. Long because every layer has a method here, with
//! documentation.

use crate::layers::{
    Activation, BatchNorm, Conv, Flatten, Function, GlobalAverage, Kernel, LayerNorm, Linear, MaxPool, Moments,
    Normalize, Sum, cross_entropy, load_images,
};
use crate::pass::{Operation, Pass, Statistics, Tensor, TensorInfo, Workspace};
use crate::{Instructions, Real, Shape};
use std::ops::Range;

/// The loss of a network on a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The mean loss.
    pub loss: f64,
    /// The number of images that were classified correctly.
    pub correct: usize,
}

/// A network that is built layer by layer. The parameters of a layer are a range of one flat vector.
///
/// ```
/// use upwash_nn::{Network, Workspace};
/// // Two inputs, two classes: a linear layer with four weights and two biases.
/// let mut network = Network::<f32>::flat(2);
/// let logits = network.linear(network.input(), 2, 0..4, 4..6);
/// let network = network.finish(logits);
/// let mut gradient = [0.0; 6];
/// let outcome = network.gradient(
///     &mut Workspace::default(), &[1.0, 0.0, 0.0, 1.0, 0.0, 0.0], &mut [], &[3.0f32, 3.0], &[1], &mut gradient,
/// );
/// assert!((outcome.loss - 2f64.ln()).abs() < 1e-6);
/// assert_eq!(gradient, [1.5, 1.5, -1.5, -1.5, 0.5, -0.5]);
/// ```
#[derive(Debug)]
pub struct Network<R: Real> {
    instructions: Instructions,
    tensors: Vec<TensorInfo>,
    operations: Vec<Box<dyn Operation<R>>>,
    /// The output of each operation.
    outputs: Vec<Tensor>,
    /// Tensors that several layers read, which no operation may change in place.
    kept: Vec<Tensor>,
    /// The groups of operations, in order.
    groups: Vec<Group>,
    logits: Tensor,
}

/// Operations that are computed together, for some images after the other.
#[derive(Clone, Debug)]
struct Group {
    operations: Range<usize>,
    /// The number of images at a time.
    images: usize,
}

/// The size of the tensors of a group that are computed at a time, in bytes. Some of them fit into the cache of a core.
const CHUNK_BYTES: usize = 96 << 10;

/// The parameters of a normalization: scales and shifts, and for batch normalization the running statistics.
#[derive(Clone, Debug)]
pub struct NormRanges {
    /// The scales.
    pub weights: Range<usize>,
    /// The shifts.
    pub bias: Range<usize>,
    /// The running means.
    pub mean: Range<usize>,
    /// The running variances.
    pub variance: Range<usize>,
}

impl<R: Real> Network<R> {
    /// A network of images, given as channels x height x width.
    pub fn images([channels, height, width]: [usize; 3]) -> Self {
        Self::new(Shape::image(channels, height, width))
    }

    /// The same, if only one convolution reads the images. That needs fewer products where images have few channels.
    pub fn convolved_images([channels, height, width]: [usize; 3]) -> Self {
        Self::new(Shape::input(channels, height, width))
    }

    /// A network of flat vectors.
    pub fn flat(features: usize) -> Self {
        Self::new(Shape::flat(features))
    }

    fn new(input: Shape) -> Self {
        let instructions = Instructions::detect();
        let tensors = vec![TensorInfo { shape: input, local: None }];
        Self {
            instructions,
            tensors,
            operations: vec![],
            outputs: vec![],
            kept: vec![],
            groups: vec![],
            logits: Tensor(0),
        }
    }

    /// The input of the network.
    pub fn input(&self) -> Tensor {
        Tensor(0)
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: Tensor) -> Shape {
        self.tensors[tensor.0].shape
    }

    /// The number of operations so far.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are no operations yet.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Computes with other instructions than the best that the processor has.
    #[must_use]
    pub fn with_instructions(mut self, instructions: Instructions) -> Self {
        self.instructions = instructions;
        self
    }

    fn tensor(&mut self, shape: Shape) -> Tensor {
        self.tensors.push(TensorInfo { shape, local: None });
        Tensor(self.tensors.len() - 1)
    }

    fn push(&mut self, output: Tensor, operation: impl Operation<R> + 'static) -> Tensor {
        self.operations.push(Box::new(operation));
        self.outputs.push(output);
        output
    }

    /// The operation that was added last, if this is its output and no other layer reads it.
    fn last(&mut self, output: Tensor) -> Option<&mut Box<dyn Operation<R>>> {
        let is_last = self.outputs.last() == Some(&output) && !self.kept.contains(&output);
        self.operations.last_mut().filter(|_| is_last)
    }

    /// Lets several layers read a tensor. Without this, a ReLU or a sum that follows a batch normalization becomes part of
    /// it, and the tensor then has the result of both.
    pub fn keep(&mut self, tensor: Tensor) {
        self.kept.push(tensor);
    }

    /// Whether a tensor is computed before the group of the operation that precedes the last one. The last operation, a
    /// normalization, passes on the gradient of its output after the backward pass of that group.
    fn precedes_last_group(&self, tensor: Tensor) -> bool {
        let before_last = 0..self.operations.len().saturating_sub(1);
        let start = before_last.rev().find(|&index| self.operations[index].begins_group()).unwrap_or(0);
        let computed = self.outputs.iter().rposition(|&output| output == tensor);
        computed.is_none_or(|index| index < start)
    }

    fn needs_gradient(&self, tensor: Tensor) -> bool {
        tensor != self.input()
    }

    /// A convolution. The weights are outputs x inputs x size x size.
    pub fn conv(&mut self, input: Tensor, kernel: Kernel, weights: Range<usize>, bias: Option<Range<usize>>) -> Tensor {
        let from = self.shape(input);
        let to = kernel.output(from);
        let output = self.tensor(to);
        let place = (self.operations.len(), self.needs_gradient(input));
        self.push(output, Conv::new((input, output), [from, to], kernel, (weights, bias), place))
    }

    /// A linear layer. The weights are outputs x inputs.
    pub fn linear(&mut self, input: Tensor, outputs: usize, weights: Range<usize>, bias: Range<usize>) -> Tensor {
        let (from, to) = (self.shape(input), Shape::flat(outputs));
        let output = self.tensor(to);
        let place = (self.operations.len(), self.needs_gradient(input));
        self.push(output, Linear::new((input, output), [from, to], (weights, bias), place))
    }

    /// Batch normalization.
    pub fn batch_norm(&mut self, input: Tensor, ranges: NormRanges, epsilon: f64, momentum: f64) -> Tensor {
        let shape = self.shape(input);
        let output = self.tensor(shape);
        let NormRanges { weights, bias, mean, variance } = ranges;
        let layer = self.operations.len();
        let norm = BatchNorm { input, output, shape, weights, bias, mean, variance, epsilon, momentum, layer };
        self.push(output, Moments(norm.clone()));
        self.push(output, Normalize { norm, added: None, relu: false })
    }

    /// Layer normalization over the channels of each pixel, or over a flat vector.
    pub fn layer_norm(&mut self, input: Tensor, weights: Range<usize>, bias: Range<usize>, epsilon: f64) -> Tensor {
        let output = self.tensor(self.shape(input));
        let layer = self.operations.len();
        self.push(output, LayerNorm { input, output, weights, bias, epsilon, layer })
    }

    /// A function of every element. After a batch normalization, a ReLU becomes part of it, unless the tensor is
    /// [kept](Self::keep).
    pub fn activation(&mut self, input: Tensor, function: Function) -> Tensor {
        if function == Function::Relu && self.last(input).is_some_and(|layer| layer.fuse_relu()) {
            return input;
        }
        let output = self.tensor(self.shape(input));
        self.push(output, Activation { input, output, function })
    }

    /// The sum of two tensors of the same shape. If the operation that was added last computes the first one, the sum may
    /// become part of it.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn sum(&mut self, first: Tensor, second: Tensor) -> Tensor {
        assert_eq!(self.shape(first), self.shape(second), "only tensors of the same shape have a sum");
        if self.precedes_last_group(second) && self.last(first).is_some_and(|layer| layer.fuse_sum(second)) {
            return first;
        }
        let output = self.tensor(self.shape(first));
        self.push(output, Sum { inputs: [first, second], output })
    }

    /// The maximum over squares that do not overlap.
    pub fn max_pool(&mut self, input: Tensor, size: usize) -> Tensor {
        let shape = self.shape(input);
        let pooled = Shape::image(shape.channels, shape.height / size, shape.width / size);
        let output = self.tensor(pooled);
        self.push(output, MaxPool { input, output, size })
    }

    /// The mean of every channel, as a flat vector.
    pub fn global_average(&mut self, input: Tensor) -> Tensor {
        let output = self.tensor(Shape::flat(self.shape(input).channels));
        self.push(output, GlobalAverage { input, output })
    }

    /// Images as flat vectors. Flat vectors stay as they are.
    pub fn flatten(&mut self, input: Tensor) -> Tensor {
        let shape = self.shape(input);
        if shape.is_flat() {
            return input;
        }
        let output = self.tensor(Shape::flat(shape.features()));
        self.push(output, Flatten { input, output })
    }

    /// Computes the operations from index `from` to index `middle` after those that follow them. This lets the shortcut of
    /// a residual block, which follows its body in the order of parameters, be computed before it, so that the sum is
    /// part of the last layer of the body.
    ///
    /// The moved operations must not depend on each other.
    pub fn compute_later(&mut self, from: usize, middle: usize) {
        self.operations[from..].rotate_left(middle - from);
        self.outputs[from..].rotate_left(middle - from);
    }

    /// Completes the network: this tensor has its logits.
    #[must_use]
    pub fn finish(mut self, logits: Tensor) -> Self {
        self.logits = logits;
        let begins = |index: usize| index == 0 || self.operations[index].begins_group();
        let starts: Vec<usize> = (0..self.operations.len()).filter(|&index| begins(index)).collect();
        let ends = starts.iter().skip(1).copied().chain([self.operations.len()]);
        self.groups = starts.iter().zip(ends).map(|(&start, end)| self.group(start..end)).collect();
        for tensor in 0..self.tensors.len() {
            self.tensors[tensor].local = self.local_images(Tensor(tensor));
        }
        self
    }

    /// Replaces every operation.
    pub(crate) fn map_operations(&mut self, map: impl FnMut(Box<dyn Operation<R>>) -> Box<dyn Operation<R>>) {
        self.operations = std::mem::take(&mut self.operations).into_iter().map(map).collect();
    }

    /// These operations, with the number of images that fit into the cache, or whose activations are as large as the
    /// weights that are read for them.
    fn group(&self, operations: Range<usize>) -> Group {
        let shapes = self.outputs[operations.clone()].iter().map(|&output| self.shape(output));
        let sizes = shapes.filter(|shape| !shape.is_flat()).map(|shape| shape.image_pitch() * size_of::<R>());
        let weights = self.operations[operations.clone()].iter().filter_map(|operation| operation.cost());
        let weights = weights.map(|(_, cost)| cost.weights * size_of::<R>()).max().unwrap_or(0);
        let images = sizes.max().map_or(usize::MAX, |largest| (CHUNK_BYTES.max(weights) / largest).max(1));
        Group { operations, images }
    }

    /// The images of a group at a time, if only that group computes and uses the gradient of a tensor.
    fn local_images(&self, tensor: Tensor) -> Option<usize> {
        let uses = |group: &&Group| {
            let mut operations = self.operations[group.operations.clone()].iter();
            operations.any(|operation| operation.gradients().contains(&tensor))
        };
        let mut groups = self.groups.iter().filter(uses);
        let group = groups.next()?;
        let is_only = groups.next().is_none() && tensor != self.logits;
        Some(group.images).filter(|&images| is_only && images < usize::MAX)
    }

    /// Calls `compute` with every operation of a group, for its images in order.
    fn each_chunk(pass: &mut Pass<'_, R>, group: &Group, mut compute: impl FnMut(&mut Pass<'_, R>)) {
        let mut start = 0;
        while start < pass.batch {
            let end = start.saturating_add(group.images).min(pass.batch);
            pass.set_images(start..end);
            compute(pass);
            start = end;
        }
        pass.set_images(0..pass.batch);
    }

    fn forward<'a, P: Copy + Into<f64>>(
        &'a self,
        memory: &'a mut Workspace<R>,
        parameters: &'a [R],
        statistics: Statistics<'a, R>,
        pixels: &[P],
        gradient: &'a mut [R],
    ) -> Pass<'a, R> {
        let input_shape = self.shape(self.input());
        let images = pixels.len() / input_shape.features();
        assert_eq!(pixels.len(), images * input_shape.features(), "a batch is a number of whole images");
        let tensors = (&self.tensors[..], self.operations.len());
        let arch = self.instructions.arch();
        let mut pass = Pass::new(arch, images, tensors, (parameters, gradient), statistics, memory);
        let mut input = pass.take(self.input());
        load_images(pixels, images, input_shape, &mut input);
        pass.put(self.input(), input);
        for group in &self.groups {
            let operations = &self.operations[group.operations.clone()];
            operations.iter().for_each(|operation| operation.prepare(&mut pass));
            Self::each_chunk(&mut pass, group, |pass| operations.iter().for_each(|operation| operation.forward(pass)));
        }
        pass
    }

    fn backward(&self, pass: &mut Pass<'_, R>) {
        for group in self.groups.iter().rev() {
            let operations = &self.operations[group.operations.clone()];
            operations.iter().for_each(|operation| operation.prepare_backward(pass));
            Self::each_chunk(pass, group, |pass| {
                operations.iter().rev().for_each(|operation| operation.backward(pass));
            });
            operations.iter().for_each(|operation| operation.finish_backward(pass));
        }
    }

    /// The loss of a batch, and its gradient by the parameters. `pixels` has the images, each channels x height x
    /// width. Moves the running statistics toward those of the batch.
    ///
    /// # Panics
    /// If there are not as many labels as images.
    pub fn gradient<P: Copy + Into<f64>>(
        &self,
        memory: &mut Workspace<R>,
        parameters: &[R],
        statistics: &mut [R],
        pixels: &[P],
        labels: &[u8],
        gradient: &mut [R],
    ) -> Outcome {
        let mut pass = self.forward(memory, parameters, Statistics::Train(statistics), pixels, gradient);
        assert_eq!(pass.batch, labels.len(), "every image has a label");
        let (mut slopes, _) = pass.take_gradient(self.logits);
        let shape = pass.shape(self.logits);
        let outcome = cross_entropy(pass.value(self.logits), shape, labels, Some(&mut slopes));
        pass.put_gradient(self.logits, slopes);
        self.backward(&mut pass);
        outcome
    }

    /// The loss of a batch with fixed statistics.
    ///
    /// # Panics
    /// If there are not as many labels as images.
    pub fn score<P: Copy + Into<f64>>(
        &self,
        memory: &mut Workspace<R>,
        parameters: &[R],
        statistics: &[R],
        pixels: &[P],
        labels: &[u8],
    ) -> Outcome {
        let pass = self.forward(memory, parameters, Statistics::Fixed(statistics), pixels, &mut []);
        assert_eq!(pass.batch, labels.len(), "every image has a label");
        cross_entropy(pass.value(self.logits), pass.shape(self.logits), labels, None)
    }

    /// The logits of a batch with fixed statistics: a row for each image, with a column for each class.
    pub fn logits<P: Copy + Into<f64>>(
        &self,
        memory: &mut Workspace<R>,
        parameters: &[R],
        statistics: &[R],
        pixels: &[P],
    ) -> Vec<R> {
        let pass = self.forward(memory, parameters, Statistics::Fixed(statistics), pixels, &mut []);
        let shape = pass.shape(self.logits);
        let rows = pass.value(self.logits).chunks_exact(shape.pitch).take(pass.batch);
        rows.flat_map(|row| row[..shape.channels].iter().copied()).collect()
    }

    /// Writes the statistics of a batch.
    pub fn batch_statistics<P: Copy + Into<f64>>(
        &self,
        memory: &mut Workspace<R>,
        parameters: &[R],
        pixels: &[P],
        found: &mut [R],
    ) {
        self.forward(memory, parameters, Statistics::Collect(found), pixels, &mut []);
    }
}
