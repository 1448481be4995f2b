//! Draws the images of each batch and prepares them for a network.

use super::{Augmentation, Dataset, Shards};
use crate::ids::WorkerId;
use std::sync::Arc;
use upwash_topology::random::Stream;

/// The least number of images on which the batch normalization statistics of an averaged model are estimated. The last
/// batch is filled up.
pub const ESTIMATION_IMAGES: usize = 2048;

/// A batch of images, scaled and ready for a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Scaled pixels, image by image, channel by channel.
    pub pixels: Vec<f32>,
    /// The class of each image.
    pub labels: Vec<u8>,
}

/// Draws batches that depend only on (seed, worker, round).
///
/// A worker goes through its images in a new random order in every pass. Batches are cut from this sequence across
/// passes, so that all batches have the same size. An epoch is the number of rounds that cover the largest shard once.
///
/// ```
/// use upwash::data::{Partition, Sampler, digits};
/// let data = digits();
/// let shards = Partition::Balanced.split(&data.train, 10, 8, 0)?;
/// let sampler = Sampler::new(shards, 32, 0);
/// assert_eq!(sampler.rounds_per_epoch(), 6);
/// assert_eq!(sampler.indices(3, 100), sampler.indices(3, 100));
/// # Ok::<(), upwash::data::PartitionError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    shards: Shards,
    batch: usize,
    /// The number of rounds of an epoch, if the shards do not decide it.
    rounds_per_epoch: Option<u64>,
    keys: Vec<SamplingKey>,
}

/// What the random choices of a worker depend on. It stays with the worker when samplers are subset or joined.
#[derive(Clone, Debug)]
struct SamplingKey {
    /// The seed of the worker's experiment.
    seed: u64,
    /// The worker's ID within its experiment.
    id: u64,
    /// The shards of all workers of its experiment, including those in other processes.
    all_shards: Arc<Shards>,
}

impl Sampler {
    /// Draws batches of `batch` images from the shards of the workers.
    ///
    /// A worker with an empty shard has no batches; do not request one.
    ///
    /// # Panics
    /// If `batch` is 0.
    pub fn new(shards: Shards, batch: usize, seed: u64) -> Self {
        assert!(batch > 0, "the batch size must be at least 1");
        let all_shards = Arc::new(shards.clone());
        let key = |id| SamplingKey { seed, id, all_shards: Arc::clone(&all_shards) };
        let keys = (0..shards.images.len() as u64).map(key).collect();
        Self { shards, batch, rounds_per_epoch: None, keys }
    }

    /// A sampler that draws nothing: an external training loop has batches of its own.
    ///
    /// # Panics
    /// If `batch` or `rounds_per_epoch` is 0.
    pub fn without_data(workers: usize, batch: usize, rounds_per_epoch: u64) -> Self {
        assert!(rounds_per_epoch > 0, "an epoch has at least one round");
        let none = Shards { images: vec![vec![]; workers] };
        Self { rounds_per_epoch: Some(rounds_per_epoch), ..Self::new(none, batch, 0) }
    }

    /// A sampler of some of the workers. Each draws the same batches as before.
    #[must_use]
    pub fn only(&self, workers: &[WorkerId]) -> Self {
        let images = workers.iter().map(|&worker| self.shards.images[worker].clone());
        Self {
            shards: Shards { images: images.collect() },
            batch: self.batch,
            rounds_per_epoch: self.rounds_per_epoch,
            keys: workers.iter().map(|&worker| self.keys[worker].clone()).collect(),
        }
    }

    /// A sampler of the workers of `self` followed by those of `other`. Each draws the same batches as before.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.shards.images.extend(other.shards.images.iter().cloned());
        both.keys.extend(other.keys.iter().cloned());
        both
    }

    /// The shards of the workers.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The number of images in a batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// The number of rounds that cover the largest shard once.
    pub fn rounds_per_epoch(&self) -> u64 {
        let of_shards = || self.shards.largest().div_ceil(self.batch) as u64;
        self.rounds_per_epoch.unwrap_or_else(of_shards)
    }

    /// The indices of the images in a worker's batch.
    pub fn indices(&self, worker: usize, round: u64) -> Vec<u32> {
        let shard = &self.shards.images[worker];
        let mut indices = Vec::with_capacity(self.batch);
        let mut position = round * self.batch as u64;
        while indices.len() < self.batch {
            let (pass, from) = (position / shard.len() as u64, position as usize % shard.len());
            let mut order = shard.clone();
            let SamplingKey { seed, id, .. } = self.keys[worker];
            Stream::new(seed, "order of images", &[id, pass]).shuffle(&mut order);
            let taken = (self.batch - indices.len()).min(shard.len() - from);
            indices.extend_from_slice(&order[from..from + taken]);
            position += taken as u64;
        }
        indices
    }

    /// The images in a worker's batch of a round, and the crop of each.
    pub fn picks(&self, augmentation: Augmentation, worker: usize, round: u64) -> impl Iterator<Item = Pick> + use<> {
        let SamplingKey { seed, id, .. } = self.keys[worker];
        let mut stream = Stream::new(seed, "augmentation", &[id, round]);
        let pick = move |image| random_crop(augmentation, image, &mut stream);
        self.indices(worker, round).into_iter().map(pick)
    }

    /// The number of [mixed](Self::mixed_picks) batches that make at least [`ESTIMATION_IMAGES`] images. The statistics
    /// of an averaged model, which no worker has trained, are estimated on them, whatever the batch size.
    pub fn estimation_batches(&self) -> usize {
        ESTIMATION_IMAGES.div_ceil(self.batch)
    }

    /// Draws a batch from the shards of all workers of this worker's experiment. Batches with other indices are other
    /// random draws.
    pub fn mixed_picks(&self, worker: usize, augmentation: Augmentation, index: u64) -> Vec<Pick> {
        let SamplingKey { seed, all_shards, .. } = &self.keys[worker];
        let shards = &all_shards.images;
        let mut stream = Stream::new(*seed, "mixed batches", &[index]);
        let sizes = shards.iter().map(Vec::len);
        let ends: Vec<usize> = sizes
            .scan(0, |end, size| {
                *end += size;
                Some(*end)
            })
            .collect();
        let all = ends.last().copied().unwrap_or(0);
        let mut pick = || {
            let position = stream.below(all);
            let worker = ends.partition_point(|&end| end <= position);
            let shard = &shards[worker];
            let image = shard[position + shard.len() - ends[worker]];
            random_crop(augmentation, image, &mut stream)
        };
        (0..self.batch).map(|_| pick()).collect()
    }

    /// A worker's batch of a round, augmented and scaled.
    pub fn batch(&self, data: &Dataset, worker: usize, round: u64) -> Batch {
        let picks = self.picks(data.augmentation, worker, round);
        data.scaling.batch(&data.train, picks)
    }
}

fn random_crop(augmentation: Augmentation, image: u32, stream: &mut Stream) -> Pick {
    match augmentation {
        Augmentation::None => Pick::whole(image),
        Augmentation::CropAndFlip => Pick {
            image,
            down: stream.below(2 * Pick::BORDER + 1),
            right: stream.below(2 * Pick::BORDER + 1),
            mirrored: stream.below(2) == 1,
        },
    }
}

/// A crop of the original size from an image that is padded with a black border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The index of the image.
    pub image: u32,
    /// The number of rows above the crop.
    pub down: usize,
    /// The number of columns to the left of the crop.
    pub right: usize,
    /// Whether the crop is flipped horizontally.
    pub mirrored: bool,
}

impl Pick {
    /// The width of the border in pixels.
    pub const BORDER: usize = 4;

    /// The whole image, unchanged.
    pub fn whole(image: u32) -> Self {
        Self { image, down: Self::BORDER, right: Self::BORDER, mirrored: false }
    }
}

impl super::Scaling {
    /// Makes a batch of crops and scales its pixels.
    pub fn batch(&self, images: &super::Images, picks: impl Iterator<Item = Pick>) -> Batch {
        let mut batch = Batch { pixels: Vec::new(), labels: Vec::new() };
        for pick in picks {
            let image = images.image(pick.image as usize);
            self.append(image, images.shape, pick, &mut batch.pixels);
            batch.labels.push(images.labels[pick.image as usize]);
        }
        batch
    }

    fn append(&self, image: &[u8], shape: [usize; 3], pick: Pick, out: &mut Vec<f32>) {
        let [channels, height, width] = shape;
        for channel in 0..channels {
            let plane = &image[channel * height * width..][..height * width];
            let (mean, scale) = (self.mean[channel], 1.0 / self.deviation[channel]);
            for y in 0..height {
                for x in 0..width {
                    let x = if pick.mirrored { width - 1 - x } else { x };
                    // Convert from positions in the padded image to positions in the image.
                    let (y, x) =
                        ((y + pick.down).checked_sub(Pick::BORDER), (x + pick.right).checked_sub(Pick::BORDER));
                    let pixel = match (y, x) {
                        (Some(y), Some(x)) if y < height && x < width => plane[y * width + x],
                        _ => 0,
                    };
                    out.push((f32::from(pixel) / self.full - mean) * scale);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Images, Scaling};

    fn sampler(shard: usize, batch: usize) -> Sampler {
        Sampler::new(Shards { images: vec![(0..shard as u32).collect()] }, batch, 1)
    }

    #[test]
    fn each_pass_has_every_image_once() {
        let sampler = sampler(10, 4);
        let seen: Vec<u32> = (0..5).flat_map(|round| sampler.indices(0, round)).collect();
        for pass in seen.chunks(10) {
            let mut sorted = pass.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<u32>>());
        }
        assert_ne!(seen[..10], seen[10..]);
        assert_eq!(sampler.rounds_per_epoch(), 3);
    }

    #[test]
    fn a_batch_may_be_larger_than_a_shard() {
        assert_eq!(sampler(3, 8).indices(0, 5).len(), 8);
    }

    #[test]
    fn crops_and_flips_move_pixels_and_pad_with_black() {
        let scaling = Scaling { full: 1.0, mean: vec![0.0], deviation: vec![1.0] };
        let image = [1, 2, 3, 4]; // 2 x 2
        let view = |down, right, mirrored| {
            let mut out = Vec::new();
            scaling.append(&image, [1, 2, 2], Pick { image: 0, down, right, mirrored }, &mut out);
            out
        };
        assert_eq!(view(4, 4, false), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(view(4, 4, true), [2.0, 1.0, 4.0, 3.0]);
        assert_eq!(view(5, 4, false), [3.0, 4.0, 0.0, 0.0]);
        assert_eq!(view(4, 3, false), [0.0, 1.0, 0.0, 3.0]);
        assert_eq!(view(8, 8, false), [0.0; 4]);
        // Scaling maps black to -mean / deviation, not to 0.
        let images = Images { shape: [1, 2, 2], pixels: image.to_vec(), labels: vec![0] };
        let scaling = Scaling { full: 4.0, mean: vec![0.5], deviation: vec![0.25] };
        let batch = scaling.batch(&images, [Pick::whole(0)].into_iter());
        assert_eq!(batch.pixels, [-1.0, 0.0, 1.0, 2.0]);
    }

    /// A small batch size must not mean few images: the estimate would be too rough.
    #[test]
    fn statistics_are_estimated_on_enough_images_for_every_batch_size() {
        for (batch, batches) in [(16, 128), (128, 16), (100, 21), (4096, 1)] {
            let images = vec![vec![0, 1]];
            let sampler = Sampler::new(Shards { images }, batch, 1);
            assert_eq!(sampler.estimation_batches(), batches);
        }
    }

    #[test]
    fn mixed_batches_draw_from_all_workers() {
        let images = (0..40).map(|worker| vec![2 * worker, 2 * worker + 1]).collect();
        let sampler = Sampler::new(Shards { images }, 32, 1);
        let mut seen: Vec<u32> = (0..20)
            .flat_map(|index| sampler.mixed_picks(0, Augmentation::CropAndFlip, index))
            .inspect(|pick| assert!(pick.down <= 8 && pick.right <= 8))
            .map(|pick| pick.image)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..80).collect::<Vec<u32>>());
    }

    #[test]
    fn augmentation_covers_all_crops_and_is_deterministic_per_round() {
        let sampler = sampler(50, 50);
        let picks = |round| sampler.picks(Augmentation::CropAndFlip, 0, round).collect::<Vec<_>>();
        assert_eq!(picks(3), picks(3));
        let all: Vec<Pick> = (0..40).flat_map(picks).collect();
        for offset in 0..=8 {
            assert!(all.iter().any(|pick| pick.down == offset));
            assert!(all.iter().any(|pick| pick.right == offset));
        }
        let mirrored = all.iter().filter(|pick| pick.mirrored).count();
        assert!((900..1100).contains(&mirrored), "{mirrored} of 2000");
    }
}
