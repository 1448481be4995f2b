//! Networks that a [`Network`] describes, computed by libtorch.

use crate::model::{BoundModel, TorchModel};
use crate::shim::{add_scaled, norm, scale};
use std::sync::Arc;
use tch::{Kind, Tensor};
use upwash::model::{Layer, Layout, Network};

/// A network that a [`Network`] describes, computed by libtorch.
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
    /// Wraps a network.
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
        Box::new(BoundNetwork {
            network: Arc::clone(&self.network),
            leaves: parameters.iter().map(leaf).collect(),
            statistics: statistics.iter().map(Tensor::shallow_clone).collect(),
        })
    }
}

struct BoundNetwork {
    network: Arc<Network>,
    leaves: Vec<Tensor>,
    statistics: Vec<Tensor>,
}

impl BoundModel for BoundNetwork {
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
        let mut collected = Vec::new();
        let _ = forward(&self.network, &self.leaves, Mode::Collect(&mut collected), images);
        collected
    }
}

/// How batch normalization uses statistics.
enum Mode<'a> {
    /// Normalize by the statistics of the batch, and update these running statistics.
    Train(&'a [Tensor]),
    /// Normalize by these running statistics.
    Score(&'a [Tensor]),
    /// Normalize by the statistics of the batch, and collect them.
    Collect(&'a mut Vec<Tensor>),
}

/// Computes the logits of a network. `parameters` are in the order of its layout.
fn forward(network: &Network, parameters: &[Tensor], mode: Mode<'_>, images: Tensor) -> Tensor {
    let mut pass = Pass {
        parameters: parameters.iter(),
        mode,
        norm_count: 0,
        norm_follows: false,
        skipped_bias: None,
        relu_follows: false,
        relu_fused: false,
        mean_shifts: (vec![], vec![]),
    };
    let logits = pass.layers(&network.layers, images);
    let (means, biases) = &pass.mean_shifts;
    if !means.is_empty() {
        add_scaled(means, biases, Layer::NORM_MOMENTUM)
            .unwrap_or_else(|error| panic!("updating the running means failed: {error}"));
    }
    logits
}

/// A forward pass. Consumes parameters and statistics in the order of the layers.
struct Pass<'a> {
    parameters: std::slice::Iter<'a, Tensor>,
    mode: Mode<'a>,
    /// How many batch-norm layers the pass has run so far.
    norm_count: usize,
    /// Whether batch normalization follows this layer. It cancels the layer's bias: instead of adding the bias to
    /// every pixel, the pass shifts the mean that is stored or subtracted. In training, such a bias has no gradient
    /// (libraries that compute it return rounding errors).
    norm_follows: bool,
    /// The bias that the preceding convolution left out.
    skipped_bias: Option<&'a Tensor>,
    /// Whether a ReLU follows this layer.
    relu_follows: bool,
    /// Whether this layer has applied that ReLU as well.
    relu_fused: bool,
    /// Running means that must still be shifted by biases that were left out, and those biases. All shifts happen in
    /// one call at the end. Autograd does not record them: it saves the means, but does not need them.
    mean_shifts: (Vec<Tensor>, Vec<Tensor>),
}

impl<'a> Pass<'a> {
    fn layers(&mut self, layers: &[Layer], input: Tensor) -> Tensor {
        let mut x = input;
        let mut index = 0;
        while let Some(layer) = layers.get(index) {
            let overwrite = index > 0 && has_reusable_output(&layers[index - 1]);
            let next = layers.get(index + 1);
            self.norm_follows = matches!(next, Some(Layer::BatchNorm { .. }));
            self.relu_follows = matches!(next, Some(Layer::Relu));
            x = self.layer(layer, x, overwrite);
            // Skip a ReLU that was fused with this layer.
            index += 1 + usize::from(std::mem::take(&mut self.relu_fused));
        }
        x
    }

    /// `overwrite`: nothing else needs the input, so the layer may overwrite it.
    fn layer(&mut self, layer: &Layer, mut x: Tensor, overwrite: bool) -> Tensor {
        match layer {
            Layer::Linear { .. } => {
                let (weight, bias) = (self.parameter(), self.parameter());
                x.flatten(1, -1).linear(weight, Some(bias))
            }
            Layer::Conv { stride, padding, bias, .. } => {
                let weight = self.parameter();
                let mut bias = bias.then(|| self.parameter());
                if self.norm_follows {
                    self.skipped_bias = bias.take();
                }
                let (stride, padding) = (*stride as i64, *padding as i64);
                x.conv2d(weight, bias, [stride; 2], [padding; 2], [1; 2], 1)
            }
            Layer::BatchNorm { .. } => self.batch_norm(&x),
            Layer::LayerNorm { channels } => self.layer_norm(&x, *channels as i64),
            Layer::Relu if overwrite => x.relu_(),
            Layer::Relu => x.relu(),
            Layer::Gelu => x.gelu("tanh"),
            Layer::Silu => x.silu(),
            Layer::Tanh => x.tanh(),
            Layer::MaxPool { size } => {
                let size = [*size as i64; 2];
                x.max_pool2d(size, size, [0; 2], [1; 2], false)
            }
            Layer::GlobalAverage => x.mean_dim(&[2i64, 3][..], false, None::<Kind>),
            Layer::Flatten => x.flatten(1, -1),
            Layer::Residual { body, shortcut } => {
                let mut main = self.layers(body, x.shallow_clone());
                let side = self.layers(shortcut, x);
                if body.last().is_some_and(has_reusable_output) { main.g_add_(&side) } else { main + side }
            }
            other => unreachable!("this engine does not support the layer {other:?}"),
        }
    }

    fn layer_norm(&mut self, x: &Tensor, channels: i64) -> Tensor {
        let (weight, bias) = (self.parameter(), self.parameter());
        let normalized = |x: &Tensor| x.layer_norm([channels], Some(weight), Some(bias), Layer::NORM_EPSILON, true);
        match x.dim() {
            4 => normalized(&x.permute([0, 2, 3, 1])).permute([0, 3, 1, 2]),
            _ => normalized(x),
        }
    }

    fn batch_norm(&mut self, x: &Tensor) -> Tensor {
        let (weight, bias) = (self.parameter(), self.parameter());
        let at = 2 * self.norm_count;
        self.norm_count += 1;
        let normalized = |mean: Option<&Tensor>, variance: Option<&Tensor>, training| {
            let (weight, bias) = (Some(weight), Some(bias));
            x.batch_norm(weight, bias, mean, variance, training, Layer::NORM_MOMENTUM, Layer::NORM_EPSILON, true)
        };
        let skipped_bias = self.skipped_bias.take().map(Tensor::detach);
        match &mut self.mode {
            Mode::Train(running) => {
                let fused = norm(
                    x,
                    weight,
                    bias,
                    [&running[at], &running[at + 1]],
                    Layer::NORM_MOMENTUM,
                    Layer::NORM_EPSILON,
                    self.relu_follows,
                );
                let fused = fused.unwrap_or_else(|error| panic!("batch normalization failed: {error}"));
                self.relu_fused = self.relu_follows && fused.is_some();
                let normalized = fused.unwrap_or_else(|| normalized(Some(&running[at]), Some(&running[at + 1]), true));
                if let Some(bias) = skipped_bias {
                    self.mean_shifts.0.push(running[at].data());
                    self.mean_shifts.1.push(bias);
                }
                normalized
            }
            Mode::Score(running) => {
                let (mean, variance) = (&running[at], &running[at + 1]);
                let mean = skipped_bias.map_or(mean.shallow_clone(), |bias| mean - bias);
                let fused = x.device().is_cuda().then(|| {
                    let factor = weight * (variance + Layer::NORM_EPSILON).rsqrt();
                    let shift = bias - &mean * &factor;
                    let fused = scale(x, &factor, &shift, self.relu_follows);
                    fused.unwrap_or_else(|error| panic!("batch normalization failed: {error}"))
                });
                let fused = fused.flatten();
                self.relu_fused = self.relu_follows && fused.is_some();
                fused.unwrap_or_else(|| normalized(Some(&mean), Some(variance), false))
            }
            Mode::Collect(collected) => {
                let over = &[0i64, 2, 3][..];
                let (variance, mean) = x.to_kind(Kind::Float).var_mean_dim(over, true, false);
                let mean = skipped_bias.map_or(mean.shallow_clone(), |bias| mean + bias);
                collected.extend([mean, variance]);
                normalized(None, None, true)
            }
        }
    }

    fn parameter(&mut self) -> &'a Tensor {
        self.parameters.next().expect("the layout should have all parameters of the layers, in their order")
    }
}

/// Whether a layer's output is a new tensor that its backward pass does not need, so that the next layer may
/// overwrite it.
fn has_reusable_output(layer: &Layer) -> bool {
    matches!(layer, Layer::Linear { .. } | Layer::Conv { .. } | Layer::BatchNorm { .. } | Layer::Residual { .. })
}
