//! Networks that a [`Network`] describes, computed by Burn.

use burn::tensor::activation::{relu, silu, tanh};
use burn::tensor::module::{batch_norm, batch_norm_train, conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Tensor, TensorData};
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::Score;
use upwash::loss::cross_entropy;
use upwash::model::{Layer, Layout, Network, Slot};

/// A network that a [`Network`] describes, computed by Burn on the CPU.
///
/// ```
/// use upwash::engine::Model;
/// use upwash::model::ModelSpec;
/// use upwash_burn::BurnNetwork;
/// let network = ModelSpec::Softmax.network([1, 8, 8], 10);
/// assert_eq!(BurnNetwork::new(network).layout().parameter_count(), 650);
/// ```
pub struct BurnNetwork {
    network: Network,
    layout: Layout,
}

impl BurnNetwork {
    /// Wraps a network.
    pub fn new(network: Network) -> Self {
        let layout = network.layout();
        Self { network, layout }
    }

    fn forward<'a>(&'a self, device: &Device, leaves: Leaves, mode: Mode<'a>, batch: &Batch) -> (Tensor<2>, Mode<'a>) {
        let [channels, height, width] = self.network.input;
        let shape = [batch.labels.len(), channels, height, width];
        let data = TensorData::new(batch.pixels.clone(), shape);
        let image = Activation::Image(Tensor::from_data(data, device));
        let mut pass = Pass { leaves: leaves.0.into_iter(), statistics: self.layout.statistics.iter(), mode, device };
        match pass.layers(&self.network.layers, image) {
            Activation::Flat(logits) => (logits, pass.mode),
            Activation::Image(_) => unreachable!("networks end in a linear layer"),
        }
    }

    fn leaves(&self, device: &Device, parameters: &[f32]) -> Leaves {
        Leaves(self.layout.parameters.iter().map(|slot| Leaf::new(slot, parameters, device)).collect())
    }

    /// Logits without gradients, in row-major order.
    fn logits<'a>(&'a self, parameters: &[f32], mode: Mode<'a>, batch: &Batch) -> (Vec<f32>, Mode<'a>) {
        let device = Device::flex();
        let leaves = self.leaves(&device, parameters);
        let (logits, mode) = self.forward(&device, leaves, mode, batch);
        (tensor_values(logits), mode)
    }
}

impl Model for BurnNetwork {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        self.network.start(seed, worker)
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.network.start_statistics()
    }

    fn gradient(&self, parameters: &[f32], statistics: &mut [f32], batch: &Batch, gradient: &mut [f32]) -> Score {
        let device = Device::flex().autodiff();
        let leaves = self.leaves(&device, parameters).requiring_grad();
        let (logits, _) = self.forward(&device, leaves.clone(), Mode::Train { running: statistics }, batch);
        let shape = logits.dims();
        let (score, grad_logits) = cross_entropy(&tensor_values(logits.clone()), &batch.labels, shape[1]);
        // d loss / d parameters = d (logits . grad_logits) / d parameters.
        let grad_logits = Tensor::<2>::from_data(TensorData::new(grad_logits, shape), &device);
        let gradients = (logits * grad_logits).sum().backward();
        for (slot, leaf) in self.layout.parameters.iter().zip(leaves.0) {
            slot.of_mut(gradient).copy_from_slice(&leaf.gradient(&gradients));
        }
        score
    }

    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score {
        let (logits, _) = self.logits(parameters, Mode::Score { statistics }, batch);
        cross_entropy(&logits, &batch.labels, self.network.classes).0
    }

    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32> {
        match self.logits(parameters, Mode::Collect(Vec::new()), batch).1 {
            Mode::Collect(found) => found,
            _ => Vec::new(),
        }
    }
}

/// How batch normalization uses statistics.
enum Mode<'a> {
    /// Normalize by the statistics of the batch, and update the running statistics.
    Train { running: &'a mut [f32] },
    /// Normalize by the running statistics.
    Score { statistics: &'a [f32] },
    /// Normalize by the statistics of the batch, and collect them.
    Collect(Vec<f32>),
}

/// The tensor of a parameter, by its rank.
#[derive(Clone)]
enum Leaf {
    Rank1(Tensor<1>),
    Rank2(Tensor<2>),
    Rank4(Tensor<4>),
}

#[derive(Clone)]
struct Leaves(Vec<Leaf>);

impl Leaves {
    fn requiring_grad(self) -> Self {
        Self(self.0.into_iter().map(Leaf::require_grad).collect())
    }
}

impl Leaf {
    fn new(slot: &Slot, vector: &[f32], device: &Device) -> Self {
        let data = TensorData::new(slot.of(vector).to_vec(), slot.shape.clone());
        match slot.shape.len() {
            1 => Self::Rank1(Tensor::from_data(data, device)),
            2 => Self::Rank2(Tensor::from_data(data, device)),
            _ => Self::Rank4(Tensor::from_data(data, device)),
        }
    }

    fn require_grad(self) -> Self {
        match self {
            Self::Rank1(tensor) => Self::Rank1(tensor.require_grad()),
            Self::Rank2(tensor) => Self::Rank2(tensor.require_grad()),
            Self::Rank4(tensor) => Self::Rank4(tensor.require_grad()),
        }
    }

    fn gradient(self, gradients: &burn::tensor::Gradients) -> Vec<f32> {
        let found = match self {
            Self::Rank1(tensor) => tensor.grad(gradients).map(tensor_values),
            Self::Rank2(tensor) => tensor.grad(gradients).map(tensor_values),
            Self::Rank4(tensor) => tensor.grad(gradients).map(tensor_values),
        };
        found.expect("the logits should depend on every parameter")
    }
}

/// The elements of a tensor, in row-major order.
pub(crate) fn tensor_values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("the tensor should hold f32 values")
}

enum Activation {
    Image(Tensor<4>),
    Flat(Tensor<2>),
}

impl Activation {
    fn image(self) -> Tensor<4> {
        match self {
            Self::Image(tensor) => tensor,
            Self::Flat(_) => unreachable!("a layer for images follows a layer that flattens"),
        }
    }

    fn flat(self) -> Tensor<2> {
        match self {
            Self::Flat(tensor) => tensor,
            Self::Image(tensor) => tensor.flatten(1, 3),
        }
    }
}

/// A function of every element.
fn function<const D: usize>(layer: &Layer, x: Tensor<D>) -> Tensor<D> {
    match layer {
        Layer::Relu => relu(x),
        Layer::Silu => silu(x),
        Layer::Tanh => tanh(x),
        // GELU in its approximation by a hyperbolic tangent.
        _ => {
            let inner = (x.clone() + x.clone().powi_scalar(3) * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
            x * (tanh(inner) + 1.0) * 0.5
        }
    }
}

/// Normalizes the last dimension.
fn layer_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Tensor<1>) -> Tensor<D> {
    let centered = x.clone() - x.mean_dim(D - 1);
    let variance = centered.clone().powi_scalar(2).mean_dim(D - 1);
    centered / (variance + Layer::NORM_EPSILON).sqrt() * weight.unsqueeze() + bias.unsqueeze()
}

/// A forward pass. Consumes parameters and statistics in the order of the layers.
struct Pass<'a, 'b> {
    leaves: std::vec::IntoIter<Leaf>,
    statistics: std::slice::Iter<'a, Slot>,
    mode: Mode<'a>,
    device: &'b Device,
}

impl Pass<'_, '_> {
    fn layers(&mut self, layers: &[Layer], input: Activation) -> Activation {
        layers.iter().fold(input, |x, layer| self.layer(layer, x))
    }

    fn layer(&mut self, layer: &Layer, x: Activation) -> Activation {
        match layer {
            Layer::Linear { .. } => {
                let (weight, bias) = (self.next_rank2(), self.next_rank1());
                Activation::Flat(x.flat().matmul(weight.transpose()) + bias.unsqueeze())
            }
            Layer::Conv { stride, padding, bias, .. } => {
                let weight = self.next_rank4();
                let bias = bias.then(|| self.next_rank1());
                let options = ConvOptions::new([*stride; 2], [*padding; 2], [1; 2], 1);
                Activation::Image(conv2d(x.image(), weight, bias, options))
            }
            Layer::BatchNorm { .. } => Activation::Image(self.batch_norm(x.image())),
            Layer::LayerNorm { .. } => {
                let (weight, bias) = (self.next_rank1(), self.next_rank1());
                match x {
                    Activation::Image(x) => {
                        let x = layer_norm(x.permute([0, 2, 3, 1]), weight, bias);
                        Activation::Image(x.permute([0, 3, 1, 2]))
                    }
                    Activation::Flat(x) => Activation::Flat(layer_norm(x, weight, bias)),
                }
            }
            Layer::Relu | Layer::Gelu | Layer::Silu | Layer::Tanh => match x {
                Activation::Image(x) => Activation::Image(function(layer, x)),
                Activation::Flat(x) => Activation::Flat(function(layer, x)),
            },
            Layer::MaxPool { size } => {
                let options = MaxPoolOptions::new([*size; 2]);
                Activation::Image(max_pool2d(x.image(), options))
            }
            Layer::GlobalAverage => {
                let x = x.image();
                let [images, channels, ..] = x.dims();
                Activation::Flat(x.mean_dims(&[2, 3]).reshape([images, channels]))
            }
            Layer::Flatten => Activation::Flat(x.flat()),
            Layer::Residual { body, shortcut } => {
                let x = x.image();
                let main = self.layers(body, Activation::Image(x.clone())).image();
                let side = self.layers(shortcut, Activation::Image(x)).image();
                Activation::Image(main + side)
            }
            other => unreachable!("this engine does not support the layer {other:?}"),
        }
    }

    fn batch_norm(&mut self, x: Tensor<4>) -> Tensor<4> {
        let (weight, bias) = (self.next_rank1(), self.next_rank1());
        let slots = self.statistics.next().zip(self.statistics.next());
        let (mean_slot, variance_slot) =
            slots.expect("the layout should have two statistics for every batch-norm layer");
        if let Mode::Score { statistics } = &self.mode {
            let tensor = |slot: &Slot| {
                Tensor::<1>::from_data(TensorData::new(slot.of(statistics).to_vec(), slot.shape.clone()), self.device)
            };
            return batch_norm(x, weight, bias, tensor(mean_slot), tensor(variance_slot), Layer::NORM_EPSILON);
        }
        let [images, _, height, width] = x.dims();
        let count = (images * height * width) as f32;
        let normalized = batch_norm_train(x, weight, bias, Layer::NORM_EPSILON);
        // PyTorch normalizes by the biased variance and keeps the unbiased variance in the running statistics.
        let unbiased = count / (count - 1.0).max(1.0);
        let (mean, variance) = (tensor_values(normalized.mean), tensor_values(normalized.variance));
        let variance = variance.into_iter().map(|v| v * unbiased);
        match &mut self.mode {
            Mode::Train { running } => {
                let update = |old: &mut f32, new: f32| *old += (Layer::NORM_MOMENTUM as f32) * (new - *old);
                mean_slot.of_mut(running).iter_mut().zip(mean).for_each(|(old, new)| update(old, new));
                variance_slot.of_mut(running).iter_mut().zip(variance).for_each(|(old, new)| update(old, new));
            }
            Mode::Collect(found) => {
                found.extend(mean);
                found.extend(variance);
            }
            Mode::Score { .. } => {}
        }
        normalized.output
    }

    fn next_rank1(&mut self) -> Tensor<1> {
        match self.leaves.next() {
            Some(Leaf::Rank1(tensor)) => tensor,
            _ => unreachable!("parameters are in the order of the layers"),
        }
    }

    fn next_rank2(&mut self) -> Tensor<2> {
        match self.leaves.next() {
            Some(Leaf::Rank2(tensor)) => tensor,
            _ => unreachable!("parameters are in the order of the layers"),
        }
    }

    fn next_rank4(&mut self) -> Tensor<4> {
        match self.leaves.next() {
            Some(Leaf::Rank4(tensor)) => tensor,
            _ => unreachable!("parameters are in the order of the layers"),
        }
    }
}
