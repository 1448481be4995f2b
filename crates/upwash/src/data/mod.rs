//! Data sets of labeled images, their partition among workers, and the sampling of batches.

mod array;
mod arrays;
mod digits;
mod image_folder;
mod npz;
mod own;
mod partition;
mod picture;
mod sampler;
mod store;
mod synthetic;

pub use digits::digits;
pub use own::{OwnData, OwnDataError};
pub use partition::{Partition, PartitionError, Shards};
pub use sampler::{Batch, ESTIMATION_IMAGES, Pick, Sampler};
pub use store::{Source, SourceFile, StoreError};
pub use synthetic::{Synthetic, SyntheticError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Labeled images with one byte per pixel, stored channel by channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// The pixels of all images, one image after the other.
    pub pixels: Vec<u8>,
    /// The class of each image.
    pub labels: Vec<u8>,
}

impl Images {
    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The pixels of one image.
    pub fn image(&self, index: usize) -> &[u8] {
        let size = self.size();
        &self.pixels[index * size..][..size]
    }

    /// Keeps only the first `count` images.
    pub fn truncate(&mut self, count: usize) {
        self.pixels.truncate(count.saturating_mul(self.size()));
        self.labels.truncate(count);
    }

    /// The number of pixels in an image, counting each channel.
    pub fn size(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Training and test images, and how they are preprocessed.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// The name of the data set in configurations.
    pub name: String,
    /// The number of classes.
    pub classes: usize,
    /// The training images.
    pub train: Images,
    /// The test images.
    pub test: Images,
    /// How pixel bytes are converted to floating-point numbers.
    pub scaling: Scaling,
    /// How training images are augmented.
    pub augmentation: Augmentation,
    /// The names of the classes, in the order of their labels, if they have names.
    pub class_names: Vec<String>,
    /// What the user should know about the data, for example files that were left out.
    pub notices: Vec<String>,
}

impl Dataset {
    /// Creates a custom data set. The number of classes is the largest label plus one. Pixels are scaled by the mean
    /// and the standard deviation of the training set. There is no augmentation.
    ///
    /// ```
    /// use upwash::{Dataset, Images};
    /// let images = |labels: &[u8]| Images {
    ///     shape: [1, 1, 2],
    ///     pixels: labels.iter().flat_map(|label| [0, 100 * label]).collect(),
    ///     labels: labels.to_vec(),
    /// };
    /// let data = Dataset::new("two", images(&[0, 1, 1, 2]), images(&[2, 0]));
    /// assert_eq!((data.classes, data.check()), (3, Ok(())));
    /// ```
    pub fn new(name: &str, train: Images, test: Images) -> Self {
        let labels = train.labels.iter().chain(&test.labels);
        let classes = labels.max().map_or(0, |largest| usize::from(*largest) + 1);
        let scaling = Scaling::of(&train, 255.0);
        Self {
            name: name.into(),
            classes,
            train,
            test,
            scaling,
            augmentation: Augmentation::None,
            class_names: vec![],
            notices: vec![],
        }
    }

    /// The data of an external training loop: nothing is known about it.
    pub(crate) fn unknown(name: &str) -> Self {
        let none = Images { shape: [0; 3], pixels: vec![], labels: vec![] };
        Self::new(name, none.clone(), none)
    }

    /// Checks that the data set is consistent. The error says what is wrong and what is needed.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let [channels, height, width] = self.train.shape;
        let splits = [("train", &self.train), ("test", &self.test)];
        for (split, images) in splits {
            let (pixels, labels) = (images.pixels.len(), images.labels.len());
            if Some(pixels) != labels.checked_mul(images.size()) {
                return Err(format!(
                    "data set `{name}`, {split}: {pixels} pixels and {labels} labels do not match: each label needs \
                     one image of shape {channels}x{height}x{width}"
                ));
            }
            let largest = images.labels.iter().copied().max().unwrap_or(0);
            if usize::from(largest) >= self.classes {
                return Err(format!(
                    "data set `{name}`, {split}: label {largest} is out of range for {} classes (labels start at 0)",
                    self.classes
                ));
            }
        }
        if self.train.is_empty() || self.test.is_empty() || self.train.shape != self.test.shape {
            return Err(format!("data set `{name}`: it needs both training and test images, of the same shape"));
        }
        let scaling = &self.scaling;
        if scaling.mean.len() != channels || scaling.deviation.len() != channels {
            return Err(format!(
                "data set `{name}`: scaling needs a mean and a standard deviation for each of {channels} channels"
            ));
        }
        Ok(())
    }
}

/// The normalization of pixels: a pixel p of channel c becomes (p / full - mean of c) / (deviation of c).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// The byte value that maps to 1.
    pub full: f32,
    /// The mean of each channel.
    pub mean: Vec<f32>,
    /// The standard deviation of each channel.
    pub deviation: Vec<f32>,
}

impl Scaling {
    /// The scaling that gives every channel of `images` mean 0 and standard deviation 1. `full` is the largest value.
    fn of(images: &Images, full: f32) -> Self {
        let [channels, height, width] = images.shape;
        let size = height * width;
        let moments = |channel: usize| {
            let planes = images.pixels.chunks(size.max(1)).skip(channel);
            let pixels = planes.step_by(channels.max(1)).flatten();
            let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
            for &pixel in pixels {
                let x = f64::from(pixel) / f64::from(full);
                (count, sum, squares) = (count + 1.0, sum + x, squares + x * x);
            }
            let mean = sum / f64::max(count, 1.0);
            let variance = squares / f64::max(count, 1.0) - mean * mean;
            // The lower bound keeps a constant channel from being scaled up without limit.
            (mean as f32, variance.max(1e-4).sqrt() as f32)
        };
        let (mean, deviation) = (0..channels).map(moments).unzip();
        Self { full, mean, deviation }
    }
}

/// The random augmentation of training images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Augmentation {
    /// No augmentation.
    None,
    /// A random crop of the original size after padding with a black border of 4 pixels, and a horizontal flip with
    /// probability 1/2. The padding is applied before the pixels are scaled.
    CropAndFlip,
}
