//! Networks, described once: engines build from the same description.
//!
//! A [`Network`] is a list of layers. Its parameters have a fixed order, shape and place in one flat
//! vector, and its starting weights come from here too, so that engines agree on what worker 3's
//! model is to the last bit.

mod zoo;

pub use zoo::{ModelError, ModelSpec};

use upwash_topology::random::Stream;

/// A layer. Images are laid out as channels, height, width.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layer {
    /// y = W x + b on flat vectors; W is stored row by row, outputs x inputs.
    Linear {
        /// Numbers in.
        inputs: usize,
        /// Numbers out.
        outputs: usize,
    },
    /// A square convolution; its weight is stored as outputs x inputs x size x size.
    Conv {
        /// Channels in.
        inputs: usize,
        /// Channels out.
        outputs: usize,
        /// Side of the kernel.
        size: usize,
        /// Step between places.
        stride: usize,
        /// Zeros around the image.
        padding: usize,
        /// Whether a number is added to each channel.
        bias: bool,
    },
    /// Normalises each channel over the batch, then scales and shifts it. Keeps running statistics.
    BatchNorm {
        /// Channels.
        channels: usize,
    },
    /// max(x, 0).
    Relu,
    /// The largest of each square of this side.
    MaxPool {
        /// Side and step of the square.
        size: usize,
    },
    /// The mean of each channel.
    GlobalAverage,
    /// An image as a vector.
    Flatten,
    /// The sum of two ways through: the body, and the shortcut (nothing in it: the input itself).
    Residual {
        /// One way.
        body: Vec<Layer>,
        /// The other.
        shortcut: Vec<Layer>,
    },
}

/// A network: image in, a number for each class out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Channels, height, width of an image.
    pub input: [usize; 3],
    /// How many classes.
    pub classes: usize,
    /// From input to output.
    pub layers: Vec<Layer>,
}

/// A tensor within the flat vector of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// As `3.body.0.weight`: the path of layer numbers, then what it is.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Where it begins in the vector.
    pub offset: usize,
    /// How it starts.
    start: Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Uniform within 1 / sqrt(inputs) of 0, PyTorch's way for linear layers and convolutions.
    Uniform {
        inputs: usize,
    },
    One,
    Zero,
}

impl Slot {
    /// Numbers in it.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Never: every slot has numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its part of a flat vector.
    pub fn of<'a>(&self, vector: &'a [f32]) -> &'a [f32] {
        &vector[self.offset..][..self.len()]
    }

    /// Its part of a flat vector.
    pub fn of_mut<'a>(&self, vector: &'a mut [f32]) -> &'a mut [f32] {
        &mut vector[self.offset..][..self.len()]
    }
}

impl Network {
    /// What is trained, in order.
    pub fn parameters(&self) -> Vec<Slot> {
        self.slots().0
    }

    /// Running statistics of batch normalisation, in order: mean, then variance, of each layer.
    pub fn statistics(&self) -> Vec<Slot> {
        self.slots().1
    }

    fn slots(&self) -> (Vec<Slot>, Vec<Slot>) {
        let mut collector = Collector::default();
        collector.layers(&self.layers, "");
        (collector.parameters, collector.statistics)
    }

    /// Starting parameters; another worker, other parameters.
    pub fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        let mut vector = Vec::new();
        for (index, slot) in self.parameters().iter().enumerate() {
            let mut stream = Stream::new(seed, "starting weights", &[worker, index as u64]);
            vector.extend((0..slot.len()).map(|_| match slot.start {
                Start::Uniform { inputs } => {
                    ((2.0 * stream.uniform() - 1.0) / (inputs as f64).sqrt()) as f32
                }
                Start::One => 1.0,
                Start::Zero => 0.0,
            }));
        }
        vector
    }

    /// Starting statistics: means 0, variances 1.
    pub fn start_statistics(&self) -> Vec<f32> {
        let value = |slot: &Slot| if slot.start == Start::One { 1.0 } else { 0.0 };
        let slots = self.statistics();
        slots
            .iter()
            .flat_map(|slot| std::iter::repeat_n(value(slot), slot.len()))
            .collect()
    }
}

/// Walks the layers and lays their tensors one behind the other.
#[derive(Default)]
struct Collector {
    parameters: Vec<Slot>,
    statistics: Vec<Slot>,
}

impl Collector {
    fn layers(&mut self, layers: &[Layer], path: &str) {
        for (index, layer) in layers.iter().enumerate() {
            self.layer(layer, &format!("{path}{index}."));
        }
    }

    fn layer(&mut self, layer: &Layer, path: &str) {
        match *layer {
            Layer::Linear { inputs, outputs } => {
                let start = Start::Uniform { inputs };
                self.parameter(format!("{path}weight"), vec![outputs, inputs], start);
                self.parameter(format!("{path}bias"), vec![outputs], start);
            }
            Layer::Conv {
                inputs,
                outputs,
                size,
                bias,
                ..
            } => {
                let start = Start::Uniform {
                    inputs: inputs * size * size,
                };
                self.parameter(
                    format!("{path}weight"),
                    vec![outputs, inputs, size, size],
                    start,
                );
                if bias {
                    self.parameter(format!("{path}bias"), vec![outputs], start);
                }
            }
            Layer::BatchNorm { channels } => {
                self.parameter(format!("{path}weight"), vec![channels], Start::One);
                self.parameter(format!("{path}bias"), vec![channels], Start::Zero);
                push(
                    &mut self.statistics,
                    format!("{path}mean"),
                    vec![channels],
                    Start::Zero,
                );
                push(
                    &mut self.statistics,
                    format!("{path}variance"),
                    vec![channels],
                    Start::One,
                );
            }
            Layer::Residual {
                ref body,
                ref shortcut,
            } => {
                self.layers(body, &format!("{path}body."));
                self.layers(shortcut, &format!("{path}shortcut."));
            }
            Layer::Relu | Layer::MaxPool { .. } | Layer::GlobalAverage | Layer::Flatten => {}
        }
    }

    fn parameter(&mut self, name: String, shape: Vec<usize>, start: Start) {
        push(&mut self.parameters, name, shape, start);
    }
}

fn push(slots: &mut Vec<Slot>, name: String, shape: Vec<usize>, start: Start) {
    let offset = slots.last().map_or(0, |slot| slot.offset + slot.len());
    slots.push(Slot {
        name,
        shape,
        offset,
        start,
    });
}
