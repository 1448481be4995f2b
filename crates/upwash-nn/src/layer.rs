//! The layers of a network, as data.

/// A layer. Images are stored as channels, height, width.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layer {
    /// y = W x + b on flat vectors; W is stored in row-major order, outputs x inputs.
    Linear {
        /// The number of input features.
        inputs: usize,
        /// The number of output features.
        outputs: usize,
    },
    /// A convolution with a square kernel; its weight is stored as outputs x inputs x size x size.
    Conv {
        /// The number of input channels.
        inputs: usize,
        /// The number of output channels.
        outputs: usize,
        /// The side of the kernel.
        size: usize,
        /// The stride.
        stride: usize,
        /// The width of the zero padding.
        padding: usize,
        /// Whether there is a bias for each output channel.
        bias: bool,
    },
    /// Batch normalization: normalizes each channel over the batch, then scales and shifts it. Has running statistics.
    BatchNorm {
        /// The number of channels.
        channels: usize,
    },
    /// Layer normalization: normalizes the channels of each pixel, or a flat vector, then scales and shifts them.
    LayerNorm {
        /// The number of channels.
        channels: usize,
    },
    /// ReLU: max(x, 0).
    Relu,
    /// GELU, in its approximation by a hyperbolic tangent.
    Gelu,
    /// SiLU: x times the logistic function of x.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// Max pooling over squares that do not overlap.
    MaxPool {
        /// The side of the square, which is also the stride.
        size: usize,
    },
    /// Global average pooling: the mean of each channel.
    GlobalAverage,
    /// Flattens an image to a vector.
    Flatten,
    /// A residual block: the sum of the body and the shortcut. An empty shortcut is the identity.
    Residual {
        /// The layers of the body.
        body: Vec<Layer>,
        /// The layers of the shortcut.
        shortcut: Vec<Layer>,
    },
}

impl Layer {
    /// The epsilon that normalization adds to variances, as in PyTorch.
    pub const NORM_EPSILON: f64 = 1e-5;
    /// The momentum of running statistics: the weight of the statistics of a new batch, as in PyTorch.
    pub const NORM_MOMENTUM: f64 = 0.1;
}
