//! A described network, computed by libtorch.

use crate::model::{BoundModel, TorchModel};
use crate::shim::{add_scaled, norm, scale};
use std::sync::Arc;
use tch::{Kind, Tensor};
use upwash::model::{Layer, Layout, Network};

/// A described [`Network`].
///
/// ```
/// use upwash::model::ModelSpec;
/// use upwash_torch::{TorchModel, TorchNetwork};
/// let network = ModelSpec::Softmax.network([1, 8, 8], 10);
/// assert_eq!(TorchNetwork::new(network).layout().parameter_count(), 650);
/// ```
pub struct TorchNetwork {
    network: Arc<Network>,
    layout: Layout,
}

impl TorchNetwork {
    /// Prepares a network.
    pub fn new(network: Network) -> Self {
        let layout = network.layout();
        let network = Arc::new(network);
        Self { network, layout }
    }
}

impl TorchModel for TorchNetwork {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        self.network.start(seed, worker)
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.network.start_statistics()
    }

    fn bind(&self, parameters: &[Tensor], statistics: &[Tensor]) -> Box<dyn BoundModel> {
        let leaf = |view: &Tensor| view.detach().set_requires_grad(true);
        Box::new(Described {
            network: Arc::clone(&self.network),
            leaves: parameters.iter().map(leaf).collect(),
            statistics: statistics.iter().map(Tensor::shallow_clone).collect(),
        })
    }
}

struct Described {
    network: Arc<Network>,
    leaves: Vec<Tensor>,
    statistics: Vec<Tensor>,
}

impl BoundModel for Described {
    fn leaves(&self) -> &[Tensor] {
        &self.leaves
    }

    fn train(&self, images: Tensor) -> Tensor {
        forward(&self.network, &self.leaves, Mode::Train(&self.statistics), images)
    }

    fn score(&self, images: Tensor) -> Tensor {
        forward(&self.network, &self.leaves, Mode::Score(&self.statistics), images)
    }

    fn batch_statistics(&self, images: Tensor) -> Vec<Tensor> {
        let mut found = Vec::new();
        let _ = forward(&self.network, &self.leaves, Mode::Collect(&mut found), images);
        found
    }
}

/// What batch normalisation does with statistics.
enum Mode<'a> {
    /// Normalise by the batch's, and move these.
    Train(&'a [Tensor]),
    /// Normalise by these.
    Score(&'a [Tensor]),
    /// Normalise by the batch's, and collect them.
    Collect(&'a mut Vec<Tensor>),
}

/// The network's logits, with its parameters in the order of its layout.
fn forward(network: &Network, parameters: &[Tensor], mode: Mode<'_>, images: Tensor) -> Tensor {
    let mut pass = Pass {
        parameters: parameters.iter(),
        mode,
        normalised: 0,
        cancels_bias: false,
        bias_left_out: None,
        rectifies: false,
        rectified: false,
        moved_means: (vec![], vec![]),
    };
    let logits = pass.layers(&network.layers, images);
    let (means, biases) = &pass.moved_means;
    if !means.is_empty() {
        add_scaled(means, biases, Layer::NORM_MOMENTUM)
            .unwrap_or_else(|error| panic!("running means cannot be moved: {error}"));
    }
    logits
}

/// One way through the network; takes parameters and statistics in the order of the layers.
struct Pass<'a> {
    parameters: std::slice::Iter<'a, Tensor>,
    mode: Mode<'a>,
    /// Layers that have normalised so far.
    normalised: usize,
    /// Whether the layer behind this one normalises. It takes away what a bias adds: instead of
    /// adding it to every pixel, the mean that is kept or taken away is moved by it. When training,
    /// such a bias has no gradient (libraries that compute it find rounding errors).
    cancels_bias: bool,
    bias_left_out: Option<&'a Tensor>,
    /// Whether a rectifier comes behind this layer, and whether the layer has done its work, too.
    rectifies: bool,
    rectified: bool,
    /// Running means that biases which were left out still have to move, and those biases: all at once
    /// at the end. Behind autograd's back: it keeps the means, but does not need them.
    moved_means: (Vec<Tensor>, Vec<Tensor>),
}

impl<'a> Pass<'a> {
    fn layers(&mut self, layers: &[Layer], input: Tensor) -> Tensor {
        let mut x = input;
        let mut index = 0;
        while let Some(layer) = layers.get(index) {
            let fresh = index > 0 && makes_a_tensor_of_its_own(&layers[index - 1]);
            let next = layers.get(index + 1);
            self.cancels_bias = matches!(next, Some(Layer::BatchNorm { .. }));
            self.rectifies = matches!(next, Some(Layer::Relu));
            x = self.layer(layer, x, fresh);
            // A rectifier that was done along with the layer before it.
            index += 1 + usize::from(std::mem::take(&mut self.rectified));
        }
        x
    }

    /// `fresh`: nobody else needs the input, so that it may be overwritten.
    fn layer(&mut self, layer: &Layer, mut x: Tensor, fresh: bool) -> Tensor {
        match layer {
            Layer::Linear { .. } => {
                let (weight, bias) = (self.parameter(), self.parameter());
                x.flatten(1, -1).linear(weight, Some(bias))
            }
            Layer::Conv { stride, padding, bias, .. } => {
                let weight = self.parameter();
                let mut bias = bias.then(|| self.parameter());
                if self.cancels_bias {
                    self.bias_left_out = bias.take();
                }
                let (stride, padding) = (*stride as i64, *padding as i64);
                x.conv2d(weight, bias, [stride; 2], [padding; 2], [1; 2], 1)
            }
            Layer::BatchNorm { .. } => self.batch_norm(&x),
            Layer::Relu if fresh => x.relu_(),
            Layer::Relu => x.relu(),
            Layer::MaxPool { size } => {
                let size = [*size as i64; 2];
                x.max_pool2d(size, size, [0; 2], [1; 2], false)
            }
            Layer::GlobalAverage => x.mean_dim(&[2i64, 3][..], false, None::<Kind>),
            Layer::Flatten => x.flatten(1, -1),
            Layer::Residual { body, shortcut } => {
                let mut main = self.layers(body, x.shallow_clone());
                let side = self.layers(shortcut, x);
                if body.last().is_some_and(makes_a_tensor_of_its_own) { main.g_add_(&side) } else { main + side }
            }
            other => unreachable!("{other:?} is unknown to this engine"),
        }
    }

    fn batch_norm(&mut self, x: &Tensor) -> Tensor {
        let (weight, bias) = (self.parameter(), self.parameter());
        let at = 2 * self.normalised;
        self.normalised += 1;
        let normal = |mean: Option<&Tensor>, variance: Option<&Tensor>, training| {
            let (weight, bias) = (Some(weight), Some(bias));
            x.batch_norm(weight, bias, mean, variance, training, Layer::NORM_MOMENTUM, Layer::NORM_EPSILON, true)
        };
        let bias_left_out = self.bias_left_out.take().map(Tensor::detach);
        match &mut self.mode {
            Mode::Train(running) => {
                let own = norm(
                    x,
                    weight,
                    bias,
                    [&running[at], &running[at + 1]],
                    Layer::NORM_MOMENTUM,
                    Layer::NORM_EPSILON,
                    self.rectifies,
                );
                let own = own.unwrap_or_else(|error| panic!("batch normalisation failed: {error}"));
                self.rectified = self.rectifies && own.is_some();
                let normal = own.unwrap_or_else(|| normal(Some(&running[at]), Some(&running[at + 1]), true));
                if let Some(bias) = bias_left_out {
                    self.moved_means.0.push(running[at].data());
                    self.moved_means.1.push(bias);
                }
                normal
            }
            Mode::Score(running) => {
                let (mean, variance) = (&running[at], &running[at + 1]);
                let mean = bias_left_out.map_or(mean.shallow_clone(), |bias| mean - bias);
                let own = x.device().is_cuda().then(|| {
                    let factor = weight * (variance + Layer::NORM_EPSILON).rsqrt();
                    let shift = bias - &mean * &factor;
                    let own = scale(x, &factor, &shift, self.rectifies);
                    own.unwrap_or_else(|error| panic!("batch normalisation failed: {error}"))
                });
                let own = own.flatten();
                self.rectified = self.rectifies && own.is_some();
                own.unwrap_or_else(|| normal(Some(&mean), Some(variance), false))
            }
            Mode::Collect(found) => {
                let over = &[0i64, 2, 3][..];
                let (variance, mean) = x.to_kind(Kind::Float).var_mean_dim(over, true, false);
                let mean = bias_left_out.map_or(mean.shallow_clone(), |bias| mean + bias);
                found.extend([mean, variance]);
                normal(None, None, true)
            }
        }
    }

    fn parameter(&mut self) -> &'a Tensor {
        self.parameters.next().expect("parameters are in the order of the layers")
    }
}

/// Whether a layer's output is a new tensor that its own backward pass does not need.
fn makes_a_tensor_of_its_own(layer: &Layer) -> bool {
    matches!(layer, Layer::Linear { .. } | Layer::Conv { .. } | Layer::BatchNorm { .. } | Layer::Residual { .. })
}
