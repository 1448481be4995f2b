//! Networks, described once: engines build from the same description.
//!
//! A [`Network`] is a list of layers. Its parameters have a fixed order, shape and place in one flat
//! vector, and its starting weights come from here too, so that engines agree on what worker 3's
//! model is to the last bit.

mod activations;
mod layout;
mod zoo;

pub use layout::{Layout, Replica, Slot};
pub use zoo::{CUSTOM, ModelError, ModelSpec};

use upwash_topology::random::Stream;

/// What must be kept of models for going on later: arrays by name.
pub type State = Vec<(String, Vec<f32>)>;

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

impl Layer {
    /// What batch normalisation adds to variances before the root is taken, as in PyTorch.
    pub const NORM_EPSILON: f64 = 1e-5;
    /// How far running statistics move towards a batch's, as in PyTorch.
    pub const NORM_MOMENTUM: f64 = 0.1;
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

/// How a tensor starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Uniform within 1 / sqrt(inputs) of 0, PyTorch's way for linear layers and convolutions.
    Uniform {
        inputs: usize,
    },
    One,
    Zero,
}

impl Network {
    /// Where its tensors are in the flat vectors; of each layer that normalises, the running mean
    /// stands before the running variance.
    pub fn layout(&self) -> Layout {
        let (parameters, statistics) = self.tensors();
        let sized = |tensors: Vec<Tensor>| tensors.into_iter().map(|t| (t.name, t.shape));
        Layout::new(sized(parameters), sized(statistics))
    }

    /// How many parameters there are, even if they are too many to be placed; none where a layer has
    /// nothing to work on.
    pub fn checked_size(&self) -> Option<u128> {
        fn size(layers: &[Layer]) -> Option<u128> {
            layers.iter().try_fold(0u128, |sum, layer| {
                let product = |sides: &[usize]| {
                    sides
                        .iter()
                        .try_fold(1u128, |product, &side| (side > 0).then(|| product.saturating_mul(side as u128)))
                };
                let own = match layer {
                    Layer::Linear { inputs, outputs } => product(&[*inputs, *outputs])?,
                    Layer::Conv { inputs, outputs, size, .. } => product(&[*inputs, *outputs, *size, *size])?,
                    Layer::Residual { body, shortcut } => size(body)?.saturating_add(size(shortcut)?),
                    _ => 0,
                };
                Some(sum.saturating_add(own))
            })
        }
        size(&self.layers)
    }

    /// Starting parameters; another worker, other parameters.
    pub fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        let mut vector = Vec::new();
        for (index, tensor) in self.tensors().0.iter().enumerate() {
            let mut stream = Stream::new(seed, "starting weights", &[worker, index as u64]);
            vector.extend((0..tensor.shape.iter().product()).map(|_| match tensor.start {
                Start::Uniform { inputs } => ((2.0 * stream.uniform() - 1.0) / (inputs as f64).sqrt()) as f32,
                Start::One => 1.0,
                Start::Zero => 0.0,
            }));
        }
        vector
    }

    /// Starting statistics: means 0, variances 1.
    pub fn start_statistics(&self) -> Vec<f32> {
        let mut vector = Vec::new();
        for tensor in self.tensors().1 {
            let value = f32::from(u8::from(tensor.start == Start::One));
            vector.resize(vector.len() + tensor.shape.iter().product::<usize>(), value);
        }
        vector
    }

    /// Parameters and statistics in order.
    fn tensors(&self) -> (Vec<Tensor>, Vec<Tensor>) {
        let mut collector = Collector::default();
        collector.layers(&self.layers, "");
        (collector.parameters, collector.statistics)
    }
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    start: Start,
}

/// Walks the layers and lays their tensors one behind the other.
#[derive(Default)]
struct Collector {
    parameters: Vec<Tensor>,
    statistics: Vec<Tensor>,
}

impl Collector {
    fn layers(&mut self, layers: &[Layer], path: &str) {
        for (index, layer) in layers.iter().enumerate() {
            self.layer(layer, &format!("{path}{index}."));
        }
    }

    fn layer(&mut self, layer: &Layer, path: &str) {
        let tensor =
            |name: &str, shape: &[usize], start| Tensor { name: format!("{path}{name}"), shape: shape.to_vec(), start };
        match *layer {
            Layer::Linear { inputs, outputs } => {
                let start = Start::Uniform { inputs };
                let weight = tensor("weight", &[outputs, inputs], start);
                self.parameters.extend([weight, tensor("bias", &[outputs], start)]);
            }
            Layer::Conv { inputs, outputs, size, bias, .. } => {
                let start = Start::Uniform { inputs: inputs * size * size };
                let shape = [outputs, inputs, size, size];
                self.parameters.push(tensor("weight", &shape, start));
                if bias {
                    self.parameters.push(tensor("bias", &[outputs], start));
                }
            }
            Layer::BatchNorm { channels } => {
                let shape = [channels];
                self.parameters.extend([tensor("weight", &shape, Start::One), tensor("bias", &shape, Start::Zero)]);
                self.statistics
                    .extend([tensor("running_mean", &shape, Start::Zero), tensor("running_var", &shape, Start::One)]);
            }
            Layer::Residual { ref body, ref shortcut } => {
                self.layers(body, &format!("{path}body."));
                self.layers(shortcut, &format!("{path}shortcut."));
            }
            Layer::Relu | Layer::MaxPool { .. } | Layer::GlobalAverage | Layer::Flatten => {}
        }
    }
}
