//! Engine-independent descriptions of networks.
//!
//! A [`Network`] is a list of layers. Its parameters have a fixed order, shape and offset in one flat vector, and this
//! module also draws the initial weights. All engines build from this description, so that they agree on the model of
//! each worker to the last bit.

mod activations;
mod description;
mod file;
mod info;
mod layout;
mod zoo;

pub use description::{DescriptionError, LayerSpec};
pub use file::{ModelFile, ModelFileError};
pub use info::ModelInfo;
pub use layout::{Layout, Replica, Slot};
pub use zoo::{CUSTOM, ModelError, ModelSpec};

pub use upwash_nn::Layer;

use upwash_topology::random::Stream;

/// The state of models that a checkpoint stores: arrays by name.
pub type State = Vec<(String, Vec<f32>)>;

/// A network that maps an image to one logit per class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The channels, height and width of an image.
    pub input: [usize; 3],
    /// The number of classes.
    pub classes: usize,
    /// The layers, from input to output.
    pub layers: Vec<Layer>,
}

/// How a tensor is initialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Init {
    /// Uniform between -1 / sqrt(inputs) and 1 / sqrt(inputs), as PyTorch initializes linear layers and convolutions.
    Uniform {
        inputs: usize,
    },
    One,
    Zero,
}

impl Network {
    /// The layout of the tensors in the flat vectors. The running mean of a normalization layer precedes its running
    /// variance.
    pub fn layout(&self) -> Layout {
        let (parameters, statistics) = self.tensors();
        let sized = |tensors: Vec<Tensor>| tensors.into_iter().map(|t| (t.name, t.shape));
        Layout::new(sized(parameters), sized(statistics))
    }

    /// The number of weights of linear layers and convolutions, without allocating them and without overflow. `None` if
    /// a layer has no inputs or no outputs.
    pub fn checked_size(&self) -> Option<u128> {
        fn size(layers: &[Layer]) -> Option<u128> {
            layers.iter().try_fold(0u128, |sum, layer| {
                let product = |sides: &[usize]| {
                    sides
                        .iter()
                        .try_fold(1u128, |product, &side| (side > 0).then(|| product.saturating_mul(side as u128)))
                };
                let count = match layer {
                    Layer::Linear { inputs, outputs } => product(&[*inputs, *outputs])?,
                    Layer::Conv { inputs, outputs, size, .. } => product(&[*inputs, *outputs, *size, *size])?,
                    Layer::Residual { body, shortcut } => size(body)?.saturating_add(size(shortcut)?),
                    _ => 0,
                };
                Some(sum.saturating_add(count))
            })
        }
        size(&self.layers)
    }

    /// The initial parameters of a worker. Different workers get different parameters.
    pub fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        let mut vector = Vec::new();
        for (index, tensor) in self.tensors().0.iter().enumerate() {
            let mut stream = Stream::new(seed, "starting weights", &[worker, index as u64]);
            vector.extend((0..tensor.shape.iter().product()).map(|_| match tensor.init {
                Init::Uniform { inputs } => ((2.0 * stream.uniform() - 1.0) / (inputs as f64).sqrt()) as f32,
                Init::One => 1.0,
                Init::Zero => 0.0,
            }));
        }
        vector
    }

    /// The initial running statistics: means 0, variances 1.
    pub fn start_statistics(&self) -> Vec<f32> {
        let mut vector = Vec::new();
        for tensor in self.tensors().1 {
            let value = f32::from(u8::from(tensor.init == Init::One));
            vector.resize(vector.len() + tensor.shape.iter().product::<usize>(), value);
        }
        vector
    }

    /// The parameter tensors and the statistics tensors, in order.
    fn tensors(&self) -> (Vec<Tensor>, Vec<Tensor>) {
        let mut collector = Collector::default();
        collector.layers(&self.layers, "");
        (collector.parameters, collector.statistics)
    }
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    init: Init,
}

/// Collects the tensors of layers in order.
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
            |name: &str, shape: &[usize], init| Tensor { name: format!("{path}{name}"), shape: shape.to_vec(), init };
        match *layer {
            Layer::Linear { inputs, outputs } => {
                let init = Init::Uniform { inputs };
                let weight = tensor("weight", &[outputs, inputs], init);
                self.parameters.extend([weight, tensor("bias", &[outputs], init)]);
            }
            Layer::Conv { inputs, outputs, size, bias, .. } => {
                let init = Init::Uniform { inputs: inputs * size * size };
                let shape = [outputs, inputs, size, size];
                self.parameters.push(tensor("weight", &shape, init));
                if bias {
                    self.parameters.push(tensor("bias", &[outputs], init));
                }
            }
            Layer::BatchNorm { channels } => {
                let shape = [channels];
                self.parameters.extend([tensor("weight", &shape, Init::One), tensor("bias", &shape, Init::Zero)]);
                self.statistics
                    .extend([tensor("running_mean", &shape, Init::Zero), tensor("running_var", &shape, Init::One)]);
            }
            Layer::LayerNorm { channels } => {
                let shape = [channels];
                self.parameters.extend([tensor("weight", &shape, Init::One), tensor("bias", &shape, Init::Zero)]);
            }
            Layer::Residual { ref body, ref shortcut } => {
                self.layers(body, &format!("{path}body."));
                self.layers(shortcut, &format!("{path}shortcut."));
            }
            // The other layers have no parameters.
            _ => {}
        }
    }
}
