//! A described network, computed by libtorch.

use tch::{Device, Kind, Tensor};
use upwash::data::Batch;
use upwash::engine::Score;
use upwash::fleet::Model;
use upwash::loss::cross_entropy;
use upwash::model::{Layer, Layout, Network, Slot};

use crate::shim;

/// What is added to variances before the root is taken, as in PyTorch.
const EPSILON: f64 = 1e-5;
/// How far running statistics move towards a batch's, as in PyTorch.
const MOMENTUM: f64 = 0.1;

/// A [`Network`] on the CPU: functions of flat vectors, one thread each, for a
/// [`Fleet`](upwash::fleet::Fleet).
///
/// ```
/// use upwash::fleet::Model;
/// use upwash::model::ModelSpec;
/// use upwash_torch::TorchNetwork;
/// let network = ModelSpec::Softmax.network([1, 8, 8], 10);
/// assert_eq!(TorchNetwork::new(network).layout().parameter_count(), 650);
/// ```
pub struct TorchNetwork {
    network: Network,
    layout: Layout,
}

impl TorchNetwork {
    /// Prepares a network. Threads inside libtorch are switched off for the whole process: the
    /// cores are busy with other workers.
    pub fn new(network: Network) -> Self {
        tch::set_num_threads(1);
        let layout = network.layout();
        Self { network, layout }
    }

    fn images(&self, batch: &Batch) -> Tensor {
        let [channels, height, width] = self.network.input.map(|side| side as i64);
        Tensor::from_slice(&batch.pixels).view([-1, channels, height, width])
    }

    /// Logits without a gradient, row by row.
    fn logits(&self, parameters: &[f32], mode: Mode<'_>, batch: &Batch) -> Vec<f32> {
        tch::no_grad(|| {
            let leaves = views(&Tensor::from_slice(parameters), &self.layout.parameters);
            numbers(&forward(&self.network, &leaves, mode, self.images(batch)))
        })
    }
}

impl Model for TorchNetwork {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
        self.network.start(seed, worker)
    }

    fn start_statistics(&self) -> Vec<f32> {
        self.network.start_statistics()
    }

    fn gradient(
        &self,
        parameters: &[f32],
        statistics: &mut [f32],
        batch: &Batch,
        gradient: &mut [f32],
    ) -> Score {
        let leaves: Vec<Tensor> = views(&Tensor::from_slice(parameters), &self.layout.parameters)
            .into_iter()
            .map(|view| view.detach().set_requires_grad(true))
            .collect();
        let moving = Tensor::from_slice(statistics);
        let running = views(&moving, &self.layout.statistics);
        let logits = forward(
            &self.network,
            &leaves,
            Mode::Train(&running),
            self.images(batch),
        );
        let classes = self.network.classes;
        let (score, slope) = cross_entropy(&numbers(&logits), &batch.labels, classes);
        let slope = Tensor::from_slice(&slope).view_as(&logits);
        let found = Tensor::zeros([gradient.len() as i64], (Kind::Float, Device::Cpu));
        shim::backward(
            &logits,
            &slope,
            &leaves,
            &views(&found, &self.layout.parameters),
        )
        .expect("a gradient of what was just computed");
        let length = gradient.len();
        found.copy_data(gradient, length);
        let length = statistics.len();
        moving.copy_data(statistics, length);
        score
    }

    fn score(&self, parameters: &[f32], statistics: &[f32], batch: &Batch) -> Score {
        let running = views(&Tensor::from_slice(statistics), &self.layout.statistics);
        let logits = self.logits(parameters, Mode::Score(&running), batch);
        cross_entropy(&logits, &batch.labels, self.network.classes).0
    }

    fn batch_statistics(&self, parameters: &[f32], batch: &Batch) -> Vec<f32> {
        let mut found = Vec::new();
        self.logits(parameters, Mode::Collect(&mut found), batch);
        found.iter().flat_map(numbers).collect()
    }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    let mut numbers = vec![0.0; tensor.numel()];
    let length = numbers.len();
    tensor.contiguous().copy_data(&mut numbers, length);
    numbers
}

/// The tensors of a flat vector.
fn views(vector: &Tensor, slots: &[Slot]) -> Vec<Tensor> {
    let view = |slot: &Slot| {
        let shape: Vec<i64> = slot.shape.iter().map(|&side| side as i64).collect();
        vector
            .narrow(0, slot.offset as i64, slot.size() as i64)
            .view(&shape[..])
    };
    slots.iter().map(view).collect()
}

/// What batch normalisation does with statistics.
pub(crate) enum Mode<'a> {
    /// Normalise by the batch's, and move these.
    Train(&'a [Tensor]),
    /// Normalise by these.
    Score(&'a [Tensor]),
    /// Normalise by the batch's, and collect them.
    Collect(&'a mut Vec<Tensor>),
}

/// The network's logits, with its parameters in the order of its layout.
pub(crate) fn forward(
    network: &Network,
    parameters: &[Tensor],
    mode: Mode<'_>,
    images: Tensor,
) -> Tensor {
    let mut pass = Pass {
        parameters: parameters.iter(),
        mode,
        normalised: 0,
        cancels_bias: false,
        bias_left_out: None,
    };
    pass.layers(&network.layers, images)
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
}

impl<'a> Pass<'a> {
    fn layers(&mut self, layers: &[Layer], input: Tensor) -> Tensor {
        let mut x = input;
        for (index, layer) in layers.iter().enumerate() {
            let fresh = index > 0 && makes_a_tensor_of_its_own(&layers[index - 1]);
            let next = layers.get(index + 1);
            self.cancels_bias = matches!(next, Some(Layer::BatchNorm { .. }));
            x = self.layer(layer, x, fresh);
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
            Layer::Conv {
                stride,
                padding,
                bias,
                ..
            } => {
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
                if body.last().is_some_and(makes_a_tensor_of_its_own) {
                    main.g_add_(&side)
                } else {
                    main + side
                }
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
            x.batch_norm(
                weight, bias, mean, variance, training, MOMENTUM, EPSILON, true,
            )
        };
        let bias_left_out = self.bias_left_out.take().map(Tensor::detach);
        match &mut self.mode {
            Mode::Train(running) => {
                let normal = normal(Some(&running[at]), Some(&running[at + 1]), true);
                if let Some(bias) = bias_left_out {
                    // Behind autograd's back: it keeps the running mean, but does not need it.
                    let _ = running[at].data().g_add_(&(bias * MOMENTUM));
                }
                normal
            }
            Mode::Score(running) => match bias_left_out {
                Some(bias) => normal(Some(&(&running[at] - bias)), Some(&running[at + 1]), false),
                None => normal(Some(&running[at]), Some(&running[at + 1]), false),
            },
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
        self.parameters
            .next()
            .expect("parameters are in the order of the layers")
    }
}

/// Whether a layer's output is a new tensor that its own backward pass does not need.
fn makes_a_tensor_of_its_own(layer: &Layer) -> bool {
    matches!(
        layer,
        Layer::Linear { .. }
            | Layer::Conv { .. }
            | Layer::BatchNorm { .. }
            | Layer::Residual { .. }
    )
}
