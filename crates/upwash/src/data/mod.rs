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

/// What is done to training images at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Augmentation {
    /// Nothing.
    None,
    /// A crop of the image's own size out of one with a black border of 4 pixels, before pixels are
    /// scaled; and a mirror image half of the time.
    CropAndFlip,
}
