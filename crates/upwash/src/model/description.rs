//! Networks that people describe, layer by layer, in a file or in a program. What a layer gets as its input follows from
//! the layers before it.

use super::{Layer, Network};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A layer of a described network. In a TOML file a layer is a table with a `type`, for example
/// `{ type = "conv", outputs = 16, size = 3 }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LayerSpec {
    /// A linear layer. It flattens images.
    Linear {
        /// The number of outputs. In the last layer it is the number of classes, and may be left out.
        outputs: Option<usize>,
    },
    /// A convolution with a square kernel.
    Conv {
        /// The number of output channels.
        outputs: usize,
        /// The side of the kernel.
        size: usize,
        /// The stride [default: 1].
        #[serde(default = "one")]
        stride: usize,
        /// The width of the zero padding [default: half the side of the kernel, rounded down].
        padding: Option<usize>,
        /// Whether there is a bias for each output channel [default: true].
        #[serde(default = "yes")]
        bias: bool,
    },
    /// Batch normalization.
    BatchNorm,
    /// Layer normalization over the channels of each pixel, or over a flat vector.
    LayerNorm,
    /// max(x, 0).
    Relu,
    /// GELU, in its approximation by a hyperbolic tangent.
    Gelu,
    /// x times the logistic function of x.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// Max pooling over squares that do not overlap.
    MaxPool {
        /// The side of the square.
        size: usize,
    },
    /// The mean of each channel.
    GlobalAverage,
    /// Images as flat vectors.
    Flatten,
    /// The sum of the body and the shortcut.
    Residual {
        /// The layers of the body.
        body: Vec<LayerSpec>,
        /// The layers of the shortcut [default: none, which leaves the input as it is].
        #[serde(default)]
        shortcut: Vec<LayerSpec>,
    },
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

impl From<&Layer> for LayerSpec {
    fn from(layer: &Layer) -> Self {
        let all = |layers: &[Layer]| layers.iter().map(Self::from).collect();
        match *layer {
            Layer::Linear { outputs, .. } => Self::Linear { outputs: Some(outputs) },
            Layer::Conv { outputs, size, stride, padding, bias, .. } => {
                Self::Conv { outputs, size, stride, padding: Some(padding), bias }
            }
            Layer::BatchNorm { .. } => Self::BatchNorm,
            Layer::LayerNorm { .. } => Self::LayerNorm,
            Layer::Relu => Self::Relu,
            Layer::Gelu => Self::Gelu,
            Layer::Silu => Self::Silu,
            Layer::Tanh => Self::Tanh,
            Layer::MaxPool { size } => Self::MaxPool { size },
            Layer::GlobalAverage => Self::GlobalAverage,
            Layer::Residual { ref body, ref shortcut } => Self::Residual { body: all(body), shortcut: all(shortcut) },
            _ => Self::Flatten,
        }
    }
}

impl LayerSpec {
    /// A convolution with stride 1 that keeps the size of images if `size` is odd.
    pub fn conv(outputs: usize, size: usize) -> Self {
        Self::Conv { outputs, size, stride: 1, padding: None, bias: true }
    }

    /// A linear layer with as many outputs as there are classes.
    pub fn logits() -> Self {
        Self::Linear { outputs: None }
    }
}

/// A network cannot be built from its description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct DescriptionError {
    /// The file or the layer.
    pub place: String,
    /// What is wrong with it, and what to do.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkFile {
    layers: Vec<LayerSpec>,
}

/// Reads the layers of a TOML file.
pub(super) fn read(path: &Path) -> Result<Vec<LayerSpec>, DescriptionError> {
    let error = |problem: String| DescriptionError { place: path.display().to_string(), problem };
    let bytes = std::fs::read(path).map_err(|cause| error(unreadable(&cause)))?;
    let text = String::from_utf8(bytes).map_err(|_| error("this is not a text file".into()))?;
    let file: NetworkFile = toml::from_str(&text).map_err(|cause| {
        let text = cause.to_string().replace("unknown variant", "unknown type").replace("missing field", "missing key");
        error(text.trim_end().to_owned())
    })?;
    Ok(file.layers)
}

fn unreadable(cause: &std::io::Error) -> String {
    format!(
        "cannot read the file: {cause}; name a TOML file with the layers of the network, relative to the configuration"
    )
}

impl Network {
    /// Builds a network for images of this shape and this number of classes from its layers. The error names the layer.
    ///
    /// ```
    /// use upwash::model::{LayerSpec, Network};
    /// let layers = [LayerSpec::conv(8, 3), LayerSpec::Relu, LayerSpec::MaxPool { size: 2 }, LayerSpec::logits()];
    /// let network = Network::described([1, 8, 8], 10, &layers)?;
    /// assert_eq!(network.layout().parameter_count(), 8 * 9 + 8 + 10 * 8 * 16 + 10);
    /// let error = Network::described([1, 8, 8], 10, &[LayerSpec::conv(8, 3)]).unwrap_err();
    /// assert!(error.to_string().starts_with("the last layer: "));
    /// # Ok::<(), upwash::model::DescriptionError>(())
    /// ```
    pub fn described(input: [usize; 3], classes: usize, layers: &[LayerSpec]) -> Result<Self, DescriptionError> {
        let mut builder = Builder { shape: Shape::Image(input), classes };
        let built = builder.layers(layers, "layers")?;
        let problem = match builder.shape {
            Shape::Flat(outputs) if outputs == classes => return Ok(Self { input, classes, layers: built }),
            Shape::Flat(outputs) => format!("has {outputs} outputs, but the data have {classes} classes"),
            Shape::Image(_) => "must be linear, with one output per class: add { type = \"linear\" }".into(),
        };
        Err(DescriptionError { place: "the last layer".into(), problem })
    }
}

/// The shape of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Channels, height and width.
    Image([usize; 3]),
    Flat(usize),
}

/// Follows the shape through the layers.
struct Builder {
    shape: Shape,
    classes: usize,
}

impl Builder {
    fn layers(&mut self, layers: &[LayerSpec], path: &str) -> Result<Vec<Layer>, DescriptionError> {
        let mut built = Vec::with_capacity(layers.len());
        for (index, layer) in layers.iter().enumerate() {
            let place = format!("{path}[{index}]");
            built.push(self.layer(layer, &place)?);
        }
        Ok(built)
    }

    /// The channels of an image, or the features of a flat vector.
    fn channels(&self) -> usize {
        match self.shape {
            Shape::Image([channels, ..]) => channels,
            Shape::Flat(features) => features,
        }
    }

    fn layer(&mut self, layer: &LayerSpec, place: &str) -> Result<Layer, DescriptionError> {
        let error = |problem: String| DescriptionError { place: place.into(), problem };
        let channels = self.channels();
        Ok(match layer {
            LayerSpec::Linear { outputs } => {
                let inputs = self.flatten();
                let outputs = outputs.unwrap_or(self.classes);
                require(outputs > 0, || error("outputs must be at least 1".into()))?;
                self.shape = Shape::Flat(outputs);
                Layer::Linear { inputs, outputs }
            }
            &LayerSpec::Conv { outputs, size, stride, padding, bias } => {
                let [inputs, height, width] = self.image().map_err(error)?;
                require(outputs > 0 && size > 0 && stride > 0, || {
                    error("outputs, size and stride must be at least 1".into())
                })?;
                let padding = padding.unwrap_or(size / 2);
                let side = |side: usize| (side + 2 * padding).checked_sub(size).map(|rest| rest / stride + 1);
                let (Some(rows), Some(columns)) = (side(height), side(width)) else {
                    return Err(error(format!(
                        "a kernel of {size}x{size} does not fit into images of {height}x{width} with padding {padding}"
                    )));
                };
                self.shape = Shape::Image([outputs, rows, columns]);
                Layer::Conv { inputs, outputs, size, stride, padding, bias }
            }
            LayerSpec::BatchNorm => {
                self.image().map_err(error)?;
                Layer::BatchNorm { channels }
            }
            LayerSpec::LayerNorm => Layer::LayerNorm { channels },
            LayerSpec::Relu => Layer::Relu,
            LayerSpec::Gelu => Layer::Gelu,
            LayerSpec::Silu => Layer::Silu,
            LayerSpec::Tanh => Layer::Tanh,
            &LayerSpec::MaxPool { size } => {
                let [channels, height, width] = self.image().map_err(error)?;
                require(size > 0 && size <= height.min(width), || {
                    error(format!("squares of {size}x{size} do not fit into images of {height}x{width}"))
                })?;
                self.shape = Shape::Image([channels, height / size, width / size]);
                Layer::MaxPool { size }
            }
            LayerSpec::GlobalAverage => {
                let [channels, ..] = self.image().map_err(error)?;
                self.shape = Shape::Flat(channels);
                Layer::GlobalAverage
            }
            LayerSpec::Flatten => {
                self.flatten();
                Layer::Flatten
            }
            LayerSpec::Residual { body, shortcut } => self.residual(body, shortcut, place)?,
        })
    }

    fn residual(&mut self, body: &[LayerSpec], shortcut: &[LayerSpec], place: &str) -> Result<Layer, DescriptionError> {
        let error = |problem: String| DescriptionError { place: place.into(), problem };
        let before = self.shape;
        self.image().map_err(error)?;
        let body = self.layers(body, &format!("{place}.body"))?;
        let after = std::mem::replace(&mut self.shape, before);
        let shortcut = self.layers(shortcut, &format!("{place}.shortcut"))?;
        if self.shape != after {
            let problem = format!(
                "the body ends in {} and the shortcut in {}: they must have the same shape",
                describe(after),
                describe(self.shape)
            );
            return Err(error(problem));
        }
        self.image().map_err(error)?;
        Ok(Layer::Residual { body, shortcut })
    }

    /// The shape of an image, or why there is none.
    fn image(&self) -> Result<[usize; 3], String> {
        match self.shape {
            Shape::Image(shape) => Ok(shape),
            Shape::Flat(_) => Err("needs images, but an earlier layer has flattened them".into()),
        }
    }

    fn flatten(&mut self) -> usize {
        let features = match self.shape {
            Shape::Image(shape) => shape.iter().product(),
            Shape::Flat(features) => features,
        };
        self.shape = Shape::Flat(features);
        features
    }
}

fn require(holds: bool, error: impl FnOnce() -> DescriptionError) -> Result<(), DescriptionError> {
    if holds { Ok(()) } else { Err(error()) }
}

fn describe(shape: Shape) -> String {
    match shape {
        Shape::Image([channels, height, width]) => format!("{channels} channels of {height}x{width}"),
        Shape::Flat(features) => format!("{features} features"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSpec;

    fn parsed(text: &str) -> Result<Network, String> {
        let file: NetworkFile = toml::from_str(text).map_err(|error| error.to_string())?;
        Network::described([3, 8, 8], 10, &file.layers).map_err(|error| error.to_string())
    }

    #[test]
    fn description_of_the_built_in_cnn_is_the_built_in_cnn() {
        let text = "layers = [
            { type = 'conv', outputs = 16, size = 3, bias = false }, { type = 'batch-norm' }, { type = 'relu' },
            { type = 'conv', outputs = 32, size = 3, bias = false }, { type = 'batch-norm' }, { type = 'relu' },
            { type = 'max-pool', size = 2 }, { type = 'flatten' }, { type = 'linear' },
        ]";
        assert_eq!(parsed(text).unwrap(), ModelSpec::Cnn.network([3, 8, 8], 10));
    }

    #[test]
    fn errors_name_the_layer() {
        for (layers, expected) in [
            ("{ type = 'linear' }, { type = 'conv', outputs = 2, size = 3 }", "layers[1]: needs images"),
            ("{ type = 'conv', outputs = 2, size = 9, padding = 0 }", "layers[0]: a kernel of 9x9 does not fit"),
            ("{ type = 'conv', outputs = 0, size = 3 }", "layers[0]: outputs, size and stride must be"),
            ("{ type = 'max-pool', size = 9 }", "layers[0]: squares of 9x9 do not fit"),
            ("{ type = 'linear', outputs = 7 }", "the last layer: has 7 outputs, but the data have 10 classes"),
            ("{ type = 'relu' }", "the last layer: must be linear"),
            ("{ type = 'linear', units = 7 }", "unknown field `units`"),
            ("{ type = 'dense' }", "unknown variant `dense`"),
            (
                "{ type = 'residual', body = [{ type = 'conv', outputs = 4, size = 3 }] }",
                "layers[0]: the body ends in 4 channels of 8x8 and the shortcut in 3 channels of 8x8",
            ),
            (
                "{ type = 'residual', body = [{ type = 'relu' }, { type = 'max-pool', size = 0 }] }",
                "layers[0].body[1]: squares of 0x0",
            ),
        ] {
            let error = parsed(&format!("layers = [{layers}]")).unwrap_err();
            assert!(error.contains(expected), "{layers}: {error}");
        }
    }
}
