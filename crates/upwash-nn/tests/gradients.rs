//! Gradients of every kind of layer against finite differences in f64, with all instructions of this processor; and the
//! same bits from instructions of different widths.

use std::ops::Range;
use upwash_nn::{Function, Instructions, Kernel, Layer, Network, NormRanges, Real, Tensor, Workspace};

const EPSILON: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

/// A network with the numbers of its parameters and statistics.
type Built<R> = (Network<R>, usize, usize);

/// Builds a network and lays out its parameters and statistics.
struct Builder<R: Real> {
    network: Network<R>,
    parameters: usize,
    statistics: usize,
}

impl<R: Real> Builder<R> {
    fn new(network: Network<R>) -> Self {
        Self { network, parameters: 0, statistics: 0 }
    }

    fn next(&mut self, count: usize) -> Range<usize> {
        self.parameters += count;
        self.parameters - count..self.parameters
    }

    fn conv(&mut self, x: Tensor, outputs: usize, size: usize, stride: usize, padding: usize, bias: bool) -> Tensor {
        let weights = self.next(outputs * self.network.shape(x).channels * size * size);
        let bias = bias.then(|| self.next(outputs));
        self.network.conv(x, Kernel { outputs, size, stride, padding }, weights, bias)
    }

    fn linear(&mut self, x: Tensor, outputs: usize) -> Tensor {
        let (weights, bias) = (self.next(outputs * self.network.shape(x).channels), self.next(outputs));
        self.network.linear(x, outputs, weights, bias)
    }

    fn norm(&mut self, x: Tensor) -> Tensor {
        let channels = self.network.shape(x).channels;
        let (weights, bias) = (self.next(channels), self.next(channels));
        self.statistics += 2 * channels;
        let variance = self.statistics - channels..self.statistics;
        let mean = variance.start - channels..variance.start;
        self.network.batch_norm(x, NormRanges { weights, bias, mean, variance }, EPSILON, MOMENTUM)
    }

    fn layer_norm(&mut self, x: Tensor) -> Tensor {
        let channels = self.network.shape(x).channels;
        let (weights, bias) = (self.next(channels), self.next(channels));
        self.network.layer_norm(x, weights, bias, EPSILON)
    }

    fn act(&mut self, x: Tensor, function: Function) -> Tensor {
        self.network.activation(x, function)
    }

    fn finish(mut self, x: Tensor) -> Built<R> {
        let x = self.network.flatten(x);
        let logits = self.linear(x, 3);
        (self.network.finish(logits), self.parameters, self.statistics)
    }
}

const INPUT: [usize; 3] = [3, 6, 5];

/// The sizes of the parameters and statistics of layers, in their order.
fn sizes(layers: &[Layer], parameters: &mut Vec<usize>, statistics: &mut Vec<usize>) {
    for layer in layers {
        match *layer {
            Layer::Linear { inputs, outputs } => parameters.extend([inputs * outputs, outputs]),
            Layer::Conv { inputs, outputs, size, bias, .. } => {
                parameters.push(inputs * outputs * size * size);
                parameters.extend(bias.then_some(outputs));
            }
            Layer::BatchNorm { channels } => {
                parameters.extend([channels; 2]);
                statistics.extend([channels; 2]);
            }
            Layer::LayerNorm { channels } => parameters.extend([channels; 2]),
            Layer::Residual { ref body, ref shortcut } => {
                sizes(body, parameters, statistics);
                sizes(shortcut, parameters, statistics);
            }
            _ => {}
        }
    }
}

/// A network of layers that end in four channels.
fn described<R: Real>(input: [usize; 3], layers: &[Layer]) -> Built<R> {
    let layers: Vec<Layer> =
        layers.iter().cloned().chain([Layer::GlobalAverage, Layer::Linear { inputs: 4, outputs: 3 }]).collect();
    let (mut parameters, mut statistics) = (vec![], vec![]);
    sizes(&layers, &mut parameters, &mut statistics);
    let ranges = |sizes: &[usize]| -> Vec<Range<usize>> {
        let ends = sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end - size..*end)
        });
        ends.collect()
    };
    let network = Network::described(input, &layers, ranges(&parameters).into_iter(), ranges(&statistics).into_iter());
    (network, parameters.iter().sum(), statistics.iter().sum())
}

fn conv(inputs: usize, stride: usize) -> Layer {
    Layer::Conv { inputs, outputs: 4, size: 3, stride, padding: 1, bias: false }
}

fn norm() -> Layer {
    Layer::BatchNorm { channels: 4 }
}

fn residual(body: impl Into<Vec<Layer>>, shortcut: impl Into<Vec<Layer>>) -> Layer {
    Layer::Residual { body: body.into(), shortcut: shortcut.into() }
}

/// Residual blocks in which a norm that ends the body meets the shortcut in many ways.
fn blocks() -> Vec<(&'static str, Vec<Layer>)> {
    let first = || [conv(3, 1), norm(), Layer::Tanh];
    let with = |layer: Layer| first().into_iter().chain([layer]).collect::<Vec<_>>();
    let block = || [conv(4, 1), norm()];
    vec![
        ("one norm in the body", with(residual(block(), []))),
        ("one norm in the body, after a norm", vec![conv(3, 1), norm(), residual(block(), [])]),
        ("one norm in the body and in the shortcut", with(residual(block(), block()))),
        ("one norm in the body, a convolution as shortcut", with(residual(block(), [conv(4, 1)]))),
        ("a norm alone", with(residual([norm()], []))),
        ("norms before convolutions", with(residual([norm(), Layer::Tanh, conv(4, 2)], [conv(4, 2)]))),
        ("a block in a block", with(residual([residual(block(), []), conv(4, 1)], []))),
    ]
}

/// The networks, with what is special about each.
fn networks<R: Real>() -> Vec<(&'static str, Built<R>)> {
    let images = || Builder::<R>::new(Network::images(INPUT));
    let convolved = || Builder::<R>::new(Network::convolved_images(INPUT));
    let mut all = Vec::new();
    let mut flat = Builder::new(Network::flat(90));
    let x = flat.linear(flat.network.input(), 20);
    let x = flat.act(x, Function::Tanh);
    let x = flat.linear(x, 7);
    let x = flat.layer_norm(x);
    all.push(("perceptron with layer norm", flat.finish(x)));
    for (name, outputs, size, stride, padding, bias) in [
        ("3x3", 16, 3, 1, 1, false),
        ("3x3, 40 channels", 40, 3, 1, 1, true),
        ("3x3, stride 2", 32, 3, 2, 1, true),
        ("1x1", 20, 1, 1, 0, true),
        ("1x1, stride 2", 16, 1, 2, 0, false),
        ("5x5", 8, 5, 1, 2, true),
        ("3x3 without padding", 5, 3, 1, 0, false),
        ("2x2, stride 3", 4, 2, 3, 1, true),
    ] {
        // Twice, so that the gradient of an input is checked, too.
        let mut b = convolved();
        let x = b.conv(b.network.input(), 17, 3, 1, 1, true);
        let x = b.act(x, Function::Silu);
        let x = b.conv(x, outputs, size, stride, padding, bias);
        let x = b.act(x, Function::Gelu);
        all.push((name, b.finish(x)));
    }
    for stride in [1, 2] {
        let mut b = convolved();
        let x = b.conv(b.network.input(), 16, 3, 1, 1, false);
        let x = b.norm(x);
        let x = b.act(x, Function::Relu);
        let start = b.network.len();
        let y = b.conv(x, 16, 3, stride, 1, false);
        let y = b.norm(y);
        let y = b.act(y, Function::Relu);
        let y = b.conv(y, 16, 3, 1, 1, false);
        let y = b.norm(y);
        let middle = b.network.len();
        let mut side = x;
        if stride == 2 {
            side = b.conv(x, 16, 1, 2, 0, false);
            side = b.norm(side);
            b.network.compute_later(start, middle);
        }
        let y = b.network.sum(y, side);
        let y = b.act(y, Function::Relu);
        let y = b.network.global_average(y);
        all.push((["residual block", "residual block with shortcut"][stride - 1], b.finish(y)));
    }
    let mut b = images();
    let x = b.norm(b.network.input());
    let x = b.act(x, Function::Relu);
    let y = b.conv(x, 3, 3, 1, 1, true);
    let x = b.network.sum(y, x);
    let x = b.network.max_pool(x, 2);
    let x = b.layer_norm(x);
    all.push(("norm first, sum, pooling", b.finish(x)));
    all.extend(blocks().into_iter().map(|(name, layers)| (name, described(INPUT, &layers))));
    all
}

/// A number between -1 and 1 for every index.
fn noise(index: usize) -> f64 {
    let mixed = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed >> 11) as f64) / (1u64 << 52) as f64 - 1.0
}

fn numbers<R: Real>(count: usize, seed: usize, scale: f64) -> Vec<R> {
    (0..count).map(|index| R::of(scale * noise(index + 7919 * seed))).collect()
}

const IMAGES: usize = 5;
const LABELS: [u8; IMAGES] = [0, 2, 1, 1, 0];

fn pixels() -> Vec<f64> {
    numbers(IMAGES * INPUT.iter().product::<usize>(), 1, 1.0)
}

fn gradient<R: Real>(network: &Network<R>, parameters: &[R], statistics: usize) -> (f64, Vec<R>) {
    let (mut memory, mut statistics) = (Workspace::default(), vec![R::of(0.0); statistics]);
    let mut gradient = vec![R::of(f64::NAN); parameters.len()];
    let outcome = network.gradient(&mut memory, parameters, &mut statistics, &pixels(), &LABELS, &mut gradient);
    // Again in memory that is not new, after a larger batch.
    let twice: Vec<f64> = pixels().into_iter().chain(pixels()).collect();
    let labels = [LABELS, LABELS].concat();
    let mut other = gradient.clone();
    network.gradient(&mut memory, parameters, &mut statistics, &twice, &labels, &mut other);
    let again = network.gradient(&mut memory, parameters, &mut statistics, &pixels(), &LABELS, &mut other);
    assert_eq!((again, &other), (outcome, &gradient), "used memory should not matter");
    (outcome.loss, gradient)
}

#[test]
fn gradients_agree_with_finite_differences() {
    for instructions in Instructions::available() {
        for (name, (network, count, statistics)) in networks::<f64>() {
            let network = network.with_instructions(instructions);
            let parameters: Vec<f64> = numbers(count, 2, 0.3);
            let (_, found) = gradient(&network, &parameters, statistics);
            let largest = found.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            let mut memory = Workspace::default();
            let mut loss = |parameters: &[f64]| {
                let mut statistics = vec![0.0; statistics];
                let mut gradient = vec![0.0; count];
                network.gradient(&mut memory, parameters, &mut statistics, &pixels(), &LABELS, &mut gradient).loss
            };
            let samples = if instructions == Instructions::Portable { 20 } else { 200 };
            for index in (0..count).step_by(count.div_ceil(samples)) {
                let step = 1e-5;
                let mut moved = parameters.clone();
                moved[index] += step;
                let above = loss(&moved);
                moved[index] -= 2.0 * step;
                let slope = (above - loss(&moved)) / (2.0 * step);
                let error = (slope - found[index]).abs() / largest;
                assert!(error < 1e-7, "{name}, {instructions}: {slope} and {} at {index} ({error:e})", found[index]);
            }
        }
    }
}

/// The shortcut of a block is its input, not what the body makes of it in place. Pooling over single pixels copies.
#[test]
fn bodies_do_not_change_the_input_of_their_block() {
    let relu_first = residual([Layer::Relu, conv(4, 1)], []);
    for block in [relu_first, residual([], []), residual([], [Layer::Relu]), residual([Layer::Relu], [Layer::Relu])] {
        let [fused, copied] = [false, true].map(|copies| {
            let copy = copies.then_some(Layer::MaxPool { size: 1 });
            let layers: Vec<Layer> = [conv(3, 1), norm()].into_iter().chain(copy).chain([block.clone()]).collect();
            let (network, count, statistics) = described::<f64>(INPUT, &layers);
            gradient(&network, &numbers(count, 2, 0.3), statistics)
        });
        assert!((fused.0 - copied.0).abs() < 1e-12, "{block:?}: {} and {}", fused.0, copied.0);
        let errors = fused.1.iter().zip(&copied.1).map(|(x, y)| (x - y).abs());
        assert!(errors.fold(0.0, f64::max) < 1e-12, "{block:?}");
    }
}

/// Large images are computed one after the other, or a few at a time.
#[test]
fn gradients_of_large_images_agree_with_finite_differences() {
    let images = [4, 37, 41];
    let (network, count, statistics) =
        described::<f64>(images, &[conv(4, 2), norm(), residual([conv(4, 1), norm()], [])]);
    let pixels: Vec<f64> = numbers(IMAGES * images.iter().product::<usize>(), 1, 1.0);
    let (parameters, mut memory): (Vec<f64>, _) = (numbers(count, 2, 0.3), Workspace::default());
    let mut gradient = |parameters: &[f64]| {
        let (mut statistics, mut gradient) = (vec![0.0; statistics], vec![0.0; count]);
        let outcome = network.gradient(&mut memory, parameters, &mut statistics, &pixels, &LABELS, &mut gradient);
        (outcome.loss, gradient)
    };
    let (_, found) = gradient(&parameters);
    let largest = found.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    for index in (0..count).step_by(count / 40) {
        let at = |step: f64| {
            let mut moved = parameters.clone();
            moved[index] += step;
            moved
        };
        let slope = (gradient(&at(1e-5)).0 - gradient(&at(-1e-5)).0) / 2e-5;
        assert!((slope - found[index]).abs() < 1e-7 * largest, "{slope} and {} at {index}", found[index]);
    }
}

/// A run that diverges is noticed wherever the NaN is.
#[test]
fn pooling_keeps_nan() {
    let layers = [Layer::MaxPool { size: 2 }, Layer::Linear { inputs: 1, outputs: 2 }];
    let ranges = [0..2, 2..4];
    let network = Network::<f32>::described([1, 2, 2], &layers, ranges.into_iter(), [].into_iter());
    for broken in 0..4 {
        let mut pixels = [1.0f32; 4];
        pixels[broken] = f32::NAN;
        let outcome = network.score(&mut Workspace::default(), &[1.0, -1.0, 0.0, 0.0], &[], &pixels, &[0]);
        assert!(outcome.loss.is_nan(), "pixel {broken}");
    }
}

#[test]
fn memory_of_another_network_does_not_matter() {
    let (wide, count, _) = described::<f64>([3, 6, 5], &[conv(3, 1), Layer::Tanh]);
    let (tall, ..) = described::<f64>([3, 5, 6], &[conv(3, 1), Layer::Tanh]);
    let parameters: Vec<f64> = numbers(count, 2, 0.3);
    let loss = |network: &Network<f64>, memory: &mut Workspace<f64>| {
        network.score(memory, &parameters, &[], &pixels(), &LABELS).loss
    };
    let (mut used, alone) = (Workspace::default(), loss(&tall, &mut Workspace::default()));
    loss(&wide, &mut used);
    assert_eq!(loss(&tall, &mut used), alone);
}

#[test]
#[should_panic(expected = "every image has a label")]
fn batches_with_missing_labels_are_refused() {
    let (network, count, _) = described::<f64>(INPUT, &[conv(3, 1)]);
    network.score(&mut Workspace::default(), &numbers::<f64>(count, 2, 0.3), &[], &pixels(), &LABELS[1..]);
}

/// All instructions with fused multiply-add sum in the same order.
#[test]
fn instructions_of_different_widths_give_the_same_bits() {
    let found: Vec<Instructions> =
        Instructions::available().into_iter().filter(|&found| found != Instructions::Portable).collect();
    for (index, (name, (_, count, statistics))) in networks::<f32>().into_iter().enumerate() {
        let parameters: Vec<f32> = numbers(count, 2, 0.3);
        let all = found.iter().map(|&instructions| {
            let (_, (network, ..)) = networks::<f32>().swap_remove(index);
            gradient(&network.with_instructions(instructions), &parameters, statistics)
        });
        let all: Vec<_> = all.collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{name}");
    }
}

#[test]
fn single_precision_is_close_to_double() {
    for ((name, (single, count, statistics)), (_, (double, ..))) in networks::<f32>().into_iter().zip(networks::<f64>())
    {
        let (loss, found) = gradient(&single, &numbers(count, 2, 0.3), statistics);
        let parameters: Vec<f64> = numbers::<f32>(count, 2, 0.3).into_iter().map(f64::from).collect();
        let (exact_loss, exact) = gradient(&double, &parameters, statistics);
        assert!((loss - exact_loss).abs() < 1e-5, "{name}: {loss} and {exact_loss}");
        let largest = exact.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        let error = found.iter().zip(&exact).map(|(x, y)| (f64::from(*x) - y).abs()).fold(0.0, f64::max);
        assert!(error < 1e-5 * largest, "{name}: {error} of {largest}");
    }
}

/// Every 64-bit Arm processor has NEON, also the one that `scripts/check-neon.sh` emulates.
#[cfg(target_arch = "aarch64")]
#[test]
fn arm_computes_with_neon() {
    assert_eq!(Instructions::detect(), Instructions::Neon);
}
