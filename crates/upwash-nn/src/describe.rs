//! Networks from descriptions.

use crate::network::{Network, NormRanges, Outcome};
use crate::pass::{Tensor, Workspace};
use crate::{Function, Instructions, Kernel, Layer, Real};
use std::ops::Range;

/// The ranges of parameters and statistics that are left for layers to take, in the order of the layers.
struct Ranges<P, S> {
    parameters: P,
    statistics: S,
}

impl<P: Iterator<Item = Range<usize>>, S: Iterator<Item = Range<usize>>> Ranges<P, S> {
    fn parameter(&mut self) -> Range<usize> {
        self.parameters.next().expect("there should be a range for every tensor of parameters")
    }

    fn statistic(&mut self) -> Range<usize> {
        self.statistics.next().expect("there should be a range for every tensor of statistics")
    }

    fn add_layers<R: Real>(&mut self, network: &mut Network<R>, layers: &[Layer], input: Tensor) -> Tensor {
        layers.iter().fold(input, |x, layer| self.add(network, layer, x))
    }

    fn add<R: Real>(&mut self, network: &mut Network<R>, layer: &Layer, x: Tensor) -> Tensor {
        match *layer {
            Layer::Linear { outputs, .. } => {
                let x = network.flatten(x);
                let (weights, bias) = (self.parameter(), self.parameter());
                network.linear(x, outputs, weights, bias)
            }
            Layer::Conv { outputs, size, stride, padding, bias, .. } => {
                let weights = self.parameter();
                let bias = bias.then(|| self.parameter());
                network.conv(x, Kernel { outputs, size, stride, padding }, weights, bias)
            }
            Layer::BatchNorm { .. } => {
                let (weights, bias) = (self.parameter(), self.parameter());
                let (mean, variance) = (self.statistic(), self.statistic());
                let ranges = NormRanges { weights, bias, mean, variance };
                network.batch_norm(x, ranges, Layer::NORM_EPSILON, Layer::NORM_MOMENTUM)
            }
            Layer::LayerNorm { .. } => {
                let (weights, bias) = (self.parameter(), self.parameter());
                network.layer_norm(x, weights, bias, Layer::NORM_EPSILON)
            }
            Layer::Relu => network.activation(x, Function::Relu),
            Layer::Gelu => network.activation(x, Function::Gelu),
            Layer::Silu => network.activation(x, Function::Silu),
            Layer::Tanh => network.activation(x, Function::Tanh),
            Layer::MaxPool { size } => network.max_pool(x, size),
            Layer::GlobalAverage => network.global_average(x),
            Layer::Flatten => network.flatten(x),
            Layer::Residual { ref body, ref shortcut } => {
                // The body and the shortcut both read it.
                network.keep(x);
                let first = network.len();
                let main = self.add_layers(network, body, x);
                let middle = network.len();
                let side = self.add_layers(network, shortcut, x);
                network.compute_later(first, middle);
                network.sum(main, side)
            }
        }
    }
}

impl<R: Real> Network<R> {
    /// Builds a network from its layers. The iterators yield where each tensor of parameters and of statistics is, in
    /// the order of the layers: weights before biases, means before variances, bodies before shortcuts.
    ///
    /// # Panics
    /// If the layers do not fit each other or the ranges.
    pub fn described(
        input: [usize; 3],
        layers: &[Layer],
        parameters: impl Iterator<Item = Range<usize>>,
        statistics: impl Iterator<Item = Range<usize>>,
    ) -> Self {
        let mut network = match layers.first() {
            Some(Layer::Flatten | Layer::Linear { .. }) => Self::flat(input.iter().product()),
            Some(Layer::Conv { .. }) => Self::convolved_images(input),
            _ => Self::images(input),
        };
        let input = network.input();
        let logits = Ranges { parameters, statistics }.add_layers(&mut network, layers, input);
        network.finish(logits)
    }
}

/// A network in f32. Its functions are compiled with this crate, and so are fast also where the crates that use it are
/// compiled without optimization.
#[derive(Debug)]
pub struct CompiledNetwork(pub(crate) Network<f32>);

impl CompiledNetwork {
    /// Builds a network: see [`Network::described`].
    pub fn new(
        input: [usize; 3],
        layers: &[Layer],
        parameters: Vec<Range<usize>>,
        statistics: Vec<Range<usize>>,
    ) -> Self {
        Self(Network::described(input, layers, parameters.into_iter(), statistics.into_iter()))
    }

    /// Computes with other instructions than the best that the processor has.
    #[must_use]
    pub fn with_instructions(self, instructions: Instructions) -> Self {
        Self(self.0.with_instructions(instructions))
    }

    /// The loss of a batch and its gradient: see [`Network::gradient`].
    pub fn gradient(
        &self,
        memory: &mut Workspace<f32>,
        parameters: &[f32],
        statistics: &mut [f32],
        pixels: &[f32],
        labels: &[u8],
        gradient: &mut [f32],
    ) -> Outcome {
        self.0.gradient(memory, parameters, statistics, pixels, labels, gradient)
    }

    /// The loss of a batch with fixed statistics.
    pub fn score(
        &self,
        memory: &mut Workspace<f32>,
        parameters: &[f32],
        statistics: &[f32],
        pixels: &[f32],
        labels: &[u8],
    ) -> Outcome {
        self.0.score(memory, parameters, statistics, pixels, labels)
    }

    /// The logits of a batch with fixed statistics: see [`Network::logits`].
    pub fn logits(
        &self,
        memory: &mut Workspace<f32>,
        parameters: &[f32],
        statistics: &[f32],
        pixels: &[f32],
    ) -> Vec<f32> {
        self.0.logits(memory, parameters, statistics, pixels)
    }

    /// Writes the statistics of a batch.
    pub fn batch_statistics(&self, memory: &mut Workspace<f32>, parameters: &[f32], pixels: &[f32], found: &mut [f32]) {
        self.0.batch_statistics(memory, parameters, pixels, found);
    }
}
