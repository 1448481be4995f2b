//! Data: images with labels, how they are shared out among workers, and which of them are in a batch.

mod digits;
mod partition;
mod sampler;
mod store;
mod synthetic;

pub use digits::digits;
pub use partition::{Partition, PartitionError, Shards};
pub use sampler::{Batch, ESTIMATION_IMAGES, Pick, Sampler};
pub use store::{Source, SourceFile, StoreError};
pub use synthetic::{Synthetic, SyntheticError};

/// Labelled images, a byte a pixel, channel by channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// One image after the other.
    pub pixels: Vec<u8>,
    /// The class of each.
    pub labels: Vec<u8>,
}

impl Images {
    /// How many images there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The pixels of one image.
    pub fn image(&self, index: usize) -> &[u8] {
        let size = self.size();
        &self.pixels[index * size..][..size]
    }

    /// Keeps the first `count` images only.
    pub fn truncate(&mut self, count: usize) {
        self.pixels.truncate(count.saturating_mul(self.size()));
        self.labels.truncate(count);
    }

    /// Pixels in an image.
    pub fn size(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What is trained and tested on.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// As it is called in configuration.
    pub name: String,
    /// How many classes there are.
    pub classes: usize,
    /// For training.
    pub train: Images,
    /// For testing.
    pub test: Images,
    /// How bytes become numbers.
    pub scaling: Scaling,
    /// Whether training images are cropped and flipped at random.
    pub augmentation: Augmentation,
}

impl Dataset {
    /// Data of one's own: as many classes as there are labels, pixels scaled by the mean and deviation of the training
    /// set, and no augmentation.
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
        Self { name: name.into(), classes, scaling: Scaling::of(&train), train, test, augmentation: Augmentation::None }
    }

    /// Says what makes it unusable, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let [channels, height, width] = self.train.shape;
        let parts = [("train", &self.train), ("test", &self.test)];
        for (part, images) in parts {
            let (pixels, labels) = (images.pixels.len(), images.labels.len());
            if Some(pixels) != labels.checked_mul(images.size()) {
                return Err(format!(
                    "data set `{name}`, {part}: {pixels} pixels and {labels} labels of shape {channels}x{height}x{width} do \
                     not fit together"
                ));
            }
            let largest = images.labels.iter().copied().max().unwrap_or(0);
            if usize::from(largest) >= self.classes {
                return Err(format!(
                    "data set `{name}`, {part}: label {largest}, but there are {} classes, counted from 0",
                    self.classes
                ));
            }
        }
        if self.train.is_empty() || self.test.is_empty() || self.train.shape != self.test.shape {
            return Err(format!("data set `{name}`: it needs training and test images of the same shape"));
        }
        let scaling = &self.scaling;
        if scaling.mean.len() != channels || scaling.deviation.len() != channels {
            return Err(format!(
                "data set `{name}`: scaling needs a mean and a deviation for each of {channels} channels"
            ));
        }
        Ok(())
    }
}

/// A pixel p of channel c becomes (p / full - mean of c) / (deviation of c).
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// The byte that stands for 1.
    pub full: f32,
    /// A mean for each channel.
    pub mean: Vec<f32>,
    /// A standard deviation for each channel.
    pub deviation: Vec<f32>,
}

impl Scaling {
    /// What gives every channel of these images mean 0 and deviation 1.
    fn of(images: &Images) -> Self {
        let [channels, height, width] = images.shape;
        let (size, full) = (height * width, 255.0);
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
            // A channel that is always the same is not blown up.
            (mean as f32, variance.max(1e-4).sqrt() as f32)
        };
        let (mean, deviation) = (0..channels).map(moments).unzip();
        Self { full, mean, deviation }
    }
}

/// What is done to training images at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Augmentation {
    /// Nothing.
    None,
    /// A crop of the image's own size out of one with a black border of 4 pixels, before pixels are
    /// scaled; and a mirror image half of the time.
    CropAndFlip,
}
