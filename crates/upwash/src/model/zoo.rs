//! The built-in networks, by name.

use super::description::{self, DescriptionError};
use super::{Layer, Network};
use crate::names::hint;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The prefix of the path of a file that describes a network.
const FILE: &str = "file:";

/// The prefix of names in configurations for parts that the embedding program supplies.
pub const CUSTOM: &str = "custom:";

/// A network by name: `softmax`, `mlp:64,32`, `cnn`, `resnet20`, `thin-resnet50`, `resnet50` or `wrn28-10`; or
/// `file:NET.toml`, which [lists its layers](super::LayerSpec).
///
/// ```
/// use upwash::model::ModelSpec;
/// let thin: ModelSpec = "thin-resnet50".parse()?;
/// assert_eq!(thin.network([3, 32, 32], 10).layout().parameter_count(), 545_930);
/// # Ok::<(), upwash::model::ModelError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSpec {
    /// Softmax regression: one linear layer.
    Softmax,
    /// A multilayer perceptron with hidden layers of these sizes and ReLU activations.
    Mlp(Vec<usize>),
    /// Two convolutions with batch normalization, then a linear layer; for small images.
    Cnn,
    /// ResNet-20 for 32x32 images (He et al. 2016), with 1x1 convolutions in the shortcuts where shapes change.
    Resnet20,
    /// The "ResNet-50" of the AL-DSGD experiments: three stages of 3, 4 and 6 bottleneck blocks with 16, 32 and 64
    /// planes, with a bias in every convolution.
    ThinResnet50,
    /// ResNet-50 with a 3x3 stem for 32x32 images.
    Resnet50,
    /// WRN-28-10 without dropout and with a bias in every convolution, as in the AL-DSGD experiments.
    Wrn28x10,
    /// A network that a TOML file describes: `file:NET.toml`.
    File(PathBuf),
    /// A model that the embedding program supplies: `custom:NAME`.
    Custom(String),
}

/// The name does not name a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// There is no network of this name.
    #[error(
        "model `{0}` is unknown: write softmax, mlp:64,32, cnn, resnet20, thin-resnet50, resnet50 or wrn28-10, or \
         file:NET.toml for a network of your own{hint}",
        hint = hint(.0, ["softmax", "cnn", "resnet20", "thin-resnet50", "resnet50", "wrn28-10", "mlp:64"])
    )]
    Unknown(String),
    /// The sizes of the layers of a perceptron are invalid.
    #[error("model `{0}`: write the sizes of the hidden layers, whole numbers above 0, as in mlp:64 or mlp:64,32")]
    Sizes(String),
}

impl FromStr for ModelSpec {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let unknown = || ModelError::Unknown(text.into());
        let sizes_error = || ModelError::Sizes(text.into());
        Ok(match text {
            "softmax" => Self::Softmax,
            "cnn" => Self::Cnn,
            "resnet20" => Self::Resnet20,
            "thin-resnet50" => Self::ThinResnet50,
            "resnet50" => Self::Resnet50,
            "wrn28-10" => Self::Wrn28x10,
            _ if text.starts_with(FILE) && text.len() > FILE.len() => Self::File(text[FILE.len()..].into()),
            _ if text.starts_with(CUSTOM) => Self::Custom(text[CUSTOM.len()..].into()),
            _ => {
                let sizes = text.strip_prefix("mlp").ok_or_else(unknown)?;
                let sizes = sizes.strip_prefix(':').ok_or_else(sizes_error)?;
                let size = |size: &str| size.trim().parse().ok().filter(|&size| size > 0);
                Self::Mlp(sizes.split(',').map(size).collect::<Option<_>>().ok_or_else(sizes_error)?)
            }
        })
    }
}

impl std::fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Softmax => write!(f, "softmax"),
            Self::Mlp(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                write!(f, "mlp:{}", sizes.join(","))
            }
            Self::Cnn => write!(f, "cnn"),
            Self::Resnet20 => write!(f, "resnet20"),
            Self::ThinResnet50 => write!(f, "thin-resnet50"),
            Self::Resnet50 => write!(f, "resnet50"),
            Self::Wrn28x10 => write!(f, "wrn28-10"),
            Self::File(path) => write!(f, "{FILE}{}", path.display()),
            Self::Custom(name) => write!(f, "{CUSTOM}{name}"),
        }
    }
}

impl ModelSpec {
    /// Builds the network for images of this shape and this number of classes, also from a file.
    pub fn build(&self, input: [usize; 3], classes: usize) -> Result<Network, DescriptionError> {
        match self {
            Self::File(path) => Network::described(input, classes, &description::read(path)?)
                .map_err(|error| DescriptionError { place: format!("{}: {}", path.display(), error.place), ..error }),
            _ => Ok(self.network(input, classes)),
        }
    }

    /// The file that describes the network, if any.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            _ => None,
        }
    }

    /// The same, with the path of a file relative to `folder` made absolute.
    #[must_use]
    pub fn located_in(&self, folder: &Path) -> Self {
        match self {
            Self::File(path) => {
                let path = folder.join(path);
                Self::File(std::path::absolute(&path).unwrap_or(path))
            }
            other => other.clone(),
        }
    }

    /// The same, with the path of a file reduced to its name.
    #[must_use]
    pub fn without_folder(&self) -> Self {
        match self {
            Self::File(path) => Self::File(path.file_name().unwrap_or_default().into()),
            other => other.clone(),
        }
    }

    /// Builds a built-in network for images of this shape and this number of classes. A custom model and one from a
    /// file have no layers here.
    pub fn network(&self, input: [usize; 3], classes: usize) -> Network {
        let channels = input[0];
        let layers = match self {
            Self::Softmax => perceptron(input, &[], classes),
            Self::Mlp(sizes) => perceptron(input, sizes, classes),
            Self::Cnn => cnn(input, classes),
            Self::Resnet20 => resnet20(channels, classes),
            Self::ThinResnet50 => bottlenecks(channels, 16, &[(16, 3), (32, 4), (64, 6)], true, classes),
            Self::Resnet50 => {
                let stages = [(64, 3), (128, 4), (256, 6), (512, 3)];
                bottlenecks(channels, 64, &stages, false, classes)
            }
            Self::Wrn28x10 => wide(channels, 4, 10, classes),
            // The embedding program or the file has the layers.
            Self::Custom(_) | Self::File(_) => vec![],
        };
        Network { input, classes, layers }
    }
}

fn perceptron(input: [usize; 3], sizes: &[usize], classes: usize) -> Vec<Layer> {
    let mut layers = vec![Layer::Flatten];
    let mut inputs = input.iter().product();
    for &outputs in sizes {
        layers.extend([Layer::Linear { inputs, outputs }, Layer::Relu]);
        inputs = outputs;
    }
    layers.push(Layer::Linear { inputs, outputs: classes });
    layers
}

fn conv(inputs: usize, outputs: usize, size: usize, stride: usize, bias: bool) -> Layer {
    Layer::Conv { inputs, outputs, size, stride, padding: size / 2, bias }
}

fn norm(channels: usize) -> Layer {
    Layer::BatchNorm { channels }
}

fn cnn([channels, height, width]: [usize; 3], classes: usize) -> Vec<Layer> {
    let inputs = 32 * (height / 2) * (width / 2);
    vec![
        conv(channels, 16, 3, 1, false),
        norm(16),
        Layer::Relu,
        conv(16, 32, 3, 1, false),
        norm(32),
        Layer::Relu,
        Layer::MaxPool { size: 2 },
        Layer::Flatten,
        Layer::Linear { inputs, outputs: classes },
    ]
}

/// The shortcut around a block: the identity, or a 1x1 convolution where the shape changes.
fn shortcut(inputs: usize, outputs: usize, stride: usize, bias: bool) -> Vec<Layer> {
    if inputs == outputs && stride == 1 {
        return vec![];
    }
    vec![conv(inputs, outputs, 1, stride, bias), norm(outputs)]
}

fn resnet20(channels: usize, classes: usize) -> Vec<Layer> {
    let stages = [(16, 3), (32, 3), (64, 3)];
    residual(channels, 16, &stages, 1, false, classes, |inputs, planes, stride| {
        vec![
            conv(inputs, planes, 3, stride, false),
            norm(planes),
            Layer::Relu,
            conv(planes, planes, 3, 1, false),
            norm(planes),
        ]
    })
}

/// A network with stages of (planes, bottleneck blocks). The output of a block has four times its planes.
fn bottlenecks(channels: usize, stem: usize, stages: &[(usize, usize)], bias: bool, classes: usize) -> Vec<Layer> {
    residual(channels, stem, stages, 4, bias, classes, |inputs, planes, stride| {
        vec![
            conv(inputs, planes, 1, 1, bias),
            norm(planes),
            Layer::Relu,
            conv(planes, planes, 3, stride, bias),
            norm(planes),
            Layer::Relu,
            conv(planes, 4 * planes, 1, 1, bias),
            norm(4 * planes),
        ]
    })
}

/// A residual network: a stem, then stages of (planes, blocks). The first block of every stage but the first halves the
/// height and width. The output of a block has `expansion` times its planes.
fn residual(
    channels: usize,
    stem: usize,
    stages: &[(usize, usize)],
    expansion: usize,
    bias: bool,
    classes: usize,
    body: impl Fn(usize, usize, usize) -> Vec<Layer>,
) -> Vec<Layer> {
    let mut layers = vec![conv(channels, stem, 3, 1, bias), norm(stem), Layer::Relu];
    let mut inputs = stem;
    for (stage, &(planes, blocks)) in stages.iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let outputs = expansion * planes;
            let body = body(inputs, planes, stride);
            let shortcut = shortcut(inputs, outputs, stride, bias);
            layers.extend([Layer::Residual { body, shortcut }, Layer::Relu]);
            inputs = outputs;
        }
    }
    layers.extend([Layer::GlobalAverage, Layer::Linear { inputs, outputs: classes }]);
    layers
}

/// A wide ResNet: three stages of `blocks` pre-activation blocks, `factor` times as wide as those of a ResNet.
fn wide(channels: usize, blocks: usize, factor: usize, classes: usize) -> Vec<Layer> {
    let mut layers = vec![conv(channels, 16, 3, 1, true)];
    let mut inputs = 16;
    for (stage, planes) in [16, 32, 64].into_iter().enumerate() {
        let outputs = planes * factor;
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let body = vec![
                norm(inputs),
                Layer::Relu,
                conv(inputs, outputs, 3, 1, true),
                norm(outputs),
                Layer::Relu,
                conv(outputs, outputs, 3, stride, true),
            ];
            let same = inputs == outputs && stride == 1;
            let shortcut = if same { vec![] } else { vec![conv(inputs, outputs, 1, stride, true)] };
            layers.push(Layer::Residual { body, shortcut });
            inputs = outputs;
        }
    }
    layers.extend([norm(inputs), Layer::Relu, Layer::GlobalAverage]);
    layers.push(Layer::Linear { inputs, outputs: classes });
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter_count(name: &str, classes: usize) -> usize {
        let spec: ModelSpec = name.parse().unwrap();
        assert_eq!(spec.to_string(), name);
        spec.network([3, 32, 32], classes).layout().parameter_count()
    }

    #[test]
    fn networks_have_the_published_parameter_counts() {
        assert_eq!(parameter_count("thin-resnet50", 10), 545_930);
        assert_eq!(parameter_count("wrn28-10", 10), 36_489_290);
        assert_eq!(parameter_count("resnet50", 10), 23_520_842);
        // He et al. give 0.27 M. This includes the 1x1 convolutions of the two shortcuts and their normalizations.
        assert_eq!(parameter_count("resnet20", 10), 272_474);
        assert_eq!(parameter_count("softmax", 10), 3 * 32 * 32 * 10 + 10);
        assert_eq!(parameter_count("mlp:64,32", 10), 3072 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10);
    }

    #[test]
    fn tensors_are_contiguous_and_initial_weights_differ_between_workers() {
        let network = ModelSpec::Cnn.network([1, 8, 8], 10);
        let slots = network.layout().parameters;
        let mut end = 0;
        for slot in &slots {
            assert_eq!(slot.offset, end, "{}", slot.name);
            end += slot.size();
        }
        let (first, second) = (network.start(1, 0), network.start(1, 1));
        assert_eq!(first.len(), end);
        assert_ne!(first, second);
        assert_eq!(first, network.start(1, 0));
        let bound = 1.0 / 3.0; // 1 / sqrt(9 inputs)
        assert!(slots[0].of(&first).iter().all(|w| w.abs() <= bound));
        assert!(slots[0].of(&first).iter().any(|w| w.abs() > 0.9 * bound));
        assert_eq!(network.start_statistics().len(), 2 * (16 + 32));
    }

    #[test]
    fn unknown_model_names_are_errors() {
        for bad in ["", "resnet", "mlp", "mlp:", "mlp:0", "mlp:a"] {
            assert!(bad.parse::<ModelSpec>().is_err(), "{bad}");
        }
    }
}
