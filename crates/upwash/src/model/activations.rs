//! How many numbers a network makes of an image.

use super::{Layer, Network};

/// A shape on its way through a network, and what was made on the way.
struct Walk {
    shape: [usize; 3],
    made: Vec<usize>,
}

impl Network {
    /// Numbers that one image becomes on its way through the network, each of which its gradient needs:
    /// the outputs of all layers that make new ones.
    pub fn activations(&self) -> usize {
        self.outputs().iter().sum()
    }

    /// The largest output of a layer, for one image.
    pub fn largest_activation(&self) -> usize {
        let input = self.input.iter().product();
        self.outputs().into_iter().fold(input, usize::max)
    }

    fn outputs(&self) -> Vec<usize> {
        let mut walk = Walk { shape: self.input, made: vec![] };
        walk.layers(&self.layers);
        walk.made
    }
}

impl Walk {
    fn layers(&mut self, layers: &[Layer]) {
        for layer in layers {
            let [_, height, width] = self.shape;
            match layer {
                Layer::Linear { outputs, .. } => self.makes([*outputs, 1, 1]),
                Layer::Conv { outputs, size, stride, padding, .. } => {
                    let side = |side: usize| (side + 2 * padding).saturating_sub(*size) / stride + 1;
                    self.makes([*outputs, side(height), side(width)]);
                }
                Layer::BatchNorm { .. } => self.makes(self.shape),
                Layer::MaxPool { size } => {
                    let [channels, ..] = self.shape;
                    self.makes([channels, height / size, width / size]);
                }
                Layer::GlobalAverage => self.makes([self.shape[0], 1, 1]),
                Layer::Residual { body, shortcut } => {
                    let before = self.shape;
                    self.layers(shortcut);
                    self.shape = before;
                    self.layers(body);
                }
                // In place, or a view.
                Layer::Relu | Layer::Flatten => {}
            }
        }
    }

    fn makes(&mut self, shape: [usize; 3]) {
        self.shape = shape;
        self.made.push(shape.iter().product());
    }
}

#[cfg(test)]
mod tests {
    use crate::model::ModelSpec;

    /// By hand: the CNN's outputs on an image of 8x8, and an MLP's.
    #[test]
    fn outputs_are_counted() {
        let of = |name: &str, shape| {
            let network = name.parse::<ModelSpec>().unwrap().network(shape, 10);
            (network.activations(), network.largest_activation())
        };
        assert_eq!(of("mlp:64", [1, 8, 8]), (64 + 10, 64));
        // A stem of 16 channels, then 3 stages of 3 blocks with 16, 32 and 64 channels, two
        // convolutions with normalisation each; shortcuts where the size changes; average, linear.
        let stage = |channels: usize, side: usize| 12 * channels * side * side;
        let stem = 2 * 16 * 32 * 32;
        let body = stage(16, 32) + stage(32, 16) + stage(64, 8);
        let (found, largest) = of("resnet20", [3, 32, 32]);
        let shortcuts = found - stem - body - 64 - 10;
        assert!(shortcuts <= 2 * (32 * 16 * 16 + 64 * 8 * 8), "{shortcuts}");
        assert_eq!(largest, 16 * 32 * 32);
    }
}
