//! Counts the activations of a network, to estimate memory.

use super::{Layer, Network};

/// Follows the shape of an image through a network and records the size of each layer's output.
struct ShapeTracker {
    shape: [usize; 3],
    outputs: Vec<usize>,
}

impl Network {
    /// The number of activations for one image that the backward pass needs: the outputs of all layers that allocate
    /// new ones.
    pub fn activations(&self) -> usize {
        self.outputs().iter().sum()
    }

    /// The largest number of inputs or outputs of a layer, for one image.
    pub fn largest_activation(&self) -> usize {
        let input = self.input.iter().product();
        self.outputs().into_iter().fold(input, usize::max)
    }

    fn outputs(&self) -> Vec<usize> {
        let mut tracker = ShapeTracker { shape: self.input, outputs: vec![] };
        tracker.layers(&self.layers);
        tracker.outputs
    }
}

impl ShapeTracker {
    fn layers(&mut self, layers: &[Layer]) {
        for layer in layers {
            let [_, height, width] = self.shape;
            match layer {
                Layer::Linear { outputs, .. } => self.push([*outputs, 1, 1]),
                Layer::Conv { outputs, size, stride, padding, .. } => {
                    let side = |side: usize| (side + 2 * padding).saturating_sub(*size) / stride + 1;
                    self.push([*outputs, side(height), side(width)]);
                }
                Layer::BatchNorm { .. } | Layer::LayerNorm { .. } => self.push(self.shape),
                Layer::Gelu | Layer::Silu | Layer::Tanh => self.push(self.shape),
                Layer::MaxPool { size } => {
                    let [channels, ..] = self.shape;
                    self.push([channels, height / size, width / size]);
                }
                Layer::GlobalAverage => self.push([self.shape[0], 1, 1]),
                Layer::Residual { body, shortcut } => {
                    let before = self.shape;
                    self.layers(shortcut);
                    self.shape = before;
                    self.layers(body);
                }
                // ReLU works in place, and flattening returns a view.
                _ => {}
            }
        }
    }

    fn push(&mut self, shape: [usize; 3]) {
        self.shape = shape;
        self.outputs.push(shape.iter().product());
    }
}

#[cfg(test)]
mod tests {
    use crate::model::ModelSpec;

    /// The expected numbers are counted by hand, for an MLP and for ResNet-20.
    #[test]
    fn activations_match_a_count_by_hand() {
        let count = |name: &str, shape| {
            let network = name.parse::<ModelSpec>().unwrap().network(shape, 10);
            (network.activations(), network.largest_activation())
        };
        assert_eq!(count("mlp:64", [1, 8, 8]), (64 + 10, 64));
        // A stem of 16 channels; 3 stages of 3 blocks with 16, 32 and 64 channels, each block with two convolutions and
        // two normalizations; shortcuts where the shape changes; global average; linear layer.
        let stage = |channels: usize, side: usize| 12 * channels * side * side;
        let stem = 2 * 16 * 32 * 32;
        let body = stage(16, 32) + stage(32, 16) + stage(64, 8);
        let (total, largest) = count("resnet20", [3, 32, 32]);
        let shortcuts = total - stem - body - 64 - 10;
        assert!(shortcuts <= 2 * (32 * 16 * 16 + 64 * 8 * 8), "{shortcuts}");
        assert_eq!(largest, 16 * 32 * 32);
    }
}
