//! A described network, computed by Burn.

use burn::tensor::activation::relu;
use burn::tensor::module::{batch_norm, batch_norm_train, conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Tensor, TensorData};
use upwash::data::Batch;
use upwash::engine::Model;
use upwash::engine::Score;
use upwash::loss::cross_entropy;
use upwash::model::{Layer, Layout, Network, Slot};

/// A [`Network`] on the CPU.
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
    /// Prepares a network.
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

    /// Logits without a gradient, row by row.
    fn logits<'a>(&'a self, parameters: &[f32], mode: Mode<'a>, batch: &Batch) -> (Vec<f32>, Mode<'a>) {
        let device = Device::flex();
        let leaves = self.leaves(&device, parameters);
        let (logits, mode) = self.forward(&device, leaves, mode, batch);
        (numbers(logits), mode)
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
        let leaves = self.leaves(&device, parameters).requiring_gradients();
        let (logits, _) = self.forward(&device, leaves.clone(), Mode::Train { moving: statistics }, batch);
        let shape = logits.dims();
        let (score, slope) = cross_entropy(&numbers(logits.clone()), &batch.labels, shape[1]);
        // d loss / d parameters = d (logits . slope) / d parameters.
        let slope = Tensor::<2>::from_data(TensorData::new(slope, shape), &device);
        let gradients = (logits * slope).sum().backward();
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

/// What batch normalisation does with statistics.
enum Mode<'a> {
    /// Normalise by the batch's, and move the running ones.
    Train { moving: &'a mut [f32] },
    /// Normalise by the running ones.
    Score { statistics: &'a [f32] },
    /// Normalise by the batch's, and collect them.
    Collect(Vec<f32>),
}

/// A parameter's tensor.
#[derive(Clone)]
enum Leaf {
    One(Tensor<1>),
    Two(Tensor<2>),
    Four(Tensor<4>),
}

#[derive(Clone)]
struct Leaves(Vec<Leaf>);

impl Leaves {
    fn requiring_gradients(self) -> Self {
        Self(self.0.into_iter().map(Leaf::require_grad).collect())
    }
}

impl Leaf {
    fn new(slot: &Slot, vector: &[f32], device: &Device) -> Self {
        let data = TensorData::new(slot.of(vector).to_vec(), slot.shape.clone());
        match slot.shape.len() {
            1 => Self::One(Tensor::from_data(data, device)),
            2 => Self::Two(Tensor::from_data(data, device)),
            _ => Self::Four(Tensor::from_data(data, device)),
        }
    }

    fn require_grad(self) -> Self {
        match self {
            Self::One(tensor) => Self::One(tensor.require_grad()),
            Self::Two(tensor) => Self::Two(tensor.require_grad()),
            Self::Four(tensor) => Self::Four(tensor.require_grad()),
        }
    }

    fn gradient(self, gradients: &burn::tensor::Gradients) -> Vec<f32> {
        let found = match self {
            Self::One(tensor) => tensor.grad(gradients).map(numbers),
            Self::Two(tensor) => tensor.grad(gradients).map(numbers),
            Self::Four(tensor) => tensor.grad(gradients).map(numbers),
        };
        found.expect("every parameter takes part in the logits")
    }
}

pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("floats of single precision")
}

enum Activation {
    Image(Tensor<4>),
    Flat(Tensor<2>),
}

impl Activation {
    fn image(self) -> Tensor<4> {
        match self {
            Self::Image(tensor) => tensor,
            Self::Flat(_) => unreachable!("a layer for images behind one that flattens"),
        }
    }

    fn flat(self) -> Tensor<2> {
        match self {
            Self::Flat(tensor) => tensor,
            Self::Image(tensor) => tensor.flatten(1, 3),
        }
    }
}

/// One way through the network; takes parameters and statistics in the order of the layers.
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
                let (weight, bias) = (self.two(), self.one());
                Activation::Flat(x.flat().matmul(weight.transpose()) + bias.unsqueeze())
            }
            Layer::Conv { stride, padding, bias, .. } => {
                let weight = self.four();
                let bias = bias.then(|| self.one());
                let options = ConvOptions::new([*stride; 2], [*padding; 2], [1; 2], 1);
                Activation::Image(conv2d(x.image(), weight, bias, options))
            }
            Layer::BatchNorm { .. } => Activation::Image(self.batch_norm(x.image())),
            Layer::Relu => match x {
                Activation::Image(x) => Activation::Image(relu(x)),
                Activation::Flat(x) => Activation::Flat(relu(x)),
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
            other => unreachable!("{other:?} is unknown to this engine"),
        }
    }

    fn batch_norm(&mut self, x: Tensor<4>) -> Tensor<4> {
        let (weight, bias) = (self.one(), self.one());
        let slots = self.statistics.next().zip(self.statistics.next());
        let (mean_slot, variance_slot) = slots.expect("two for every layer that normalises");
        if let Mode::Score { statistics } = &self.mode {
            let tensor = |slot: &Slot| {
                Tensor::<1>::from_data(TensorData::new(slot.of(statistics).to_vec(), slot.shape.clone()), self.device)
            };
            return batch_norm(x, weight, bias, tensor(mean_slot), tensor(variance_slot), Layer::NORM_EPSILON);
        }
        let [images, _, height, width] = x.dims();
        let count = (images * height * width) as f32;
        let normal = batch_norm_train(x, weight, bias, Layer::NORM_EPSILON);
        // PyTorch normalises by the biased variance and keeps the unbiased one.
        let unbiased = count / (count - 1.0).max(1.0);
        let (mean, variance) = (numbers(normal.mean), numbers(normal.variance));
        let variance = variance.into_iter().map(|v| v * unbiased);
        match &mut self.mode {
            Mode::Train { moving } => {
                let towards = |old: &mut f32, new: f32| *old += (Layer::NORM_MOMENTUM as f32) * (new - *old);
                mean_slot.of_mut(moving).iter_mut().zip(mean).for_each(|(old, new)| towards(old, new));
                variance_slot.of_mut(moving).iter_mut().zip(variance).for_each(|(old, new)| towards(old, new));
            }
            Mode::Collect(found) => {
                found.extend(mean);
                found.extend(variance);
            }
            Mode::Score { .. } => {}
        }
        normal.output
    }

    fn one(&mut self) -> Tensor<1> {
        match self.leaves.next() {
            Some(Leaf::One(tensor)) => tensor,
            _ => unreachable!("parameters are in the order of the layers"),
        }
    }

    fn two(&mut self) -> Tensor<2> {
        match self.leaves.next() {
            Some(Leaf::Two(tensor)) => tensor,
            _ => unreachable!("parameters are in the order of the layers"),
        }
    }

    fn four(&mut self) -> Tensor<4> {
        match self.leaves.next() {
            Some(Leaf::Four(tensor)) => tensor,
            _ => unreachable!("parameters are in the order of the layers"),
        }
    }
}
