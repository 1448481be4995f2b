//! Which images are in a worker's batch of a round, and what is done to them.

use super::{Augmentation, Dataset, Shards};
use std::sync::Arc;
use upwash_topology::random::Stream;

/// Images on which an averaged model's statistics are estimated, or a few more to fill the last batch.
pub const ESTIMATION_IMAGES: usize = 2048;

/// Images as numbers, ready for a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Scaled pixels, image by image, channel by channel.
    pub pixels: Vec<f32>,
    /// The class of each.
    pub labels: Vec<u8>,
}

/// Batches that depend on (seed, worker, round) only.
///
/// A worker goes through its images in a random order, then in another one, and so on; batches are
/// cut from that sequence, so that all are of the same size. An epoch is as many rounds as the
/// largest share needs.
///
/// ```
/// use upwash::data::{Partition, Sampler, digits};
/// let data = digits();
/// let shares = Partition::Balanced.share_out(&data.train, 10, 8, 0)?;
/// let sampler = Sampler::new(shares, 32, 0);
/// assert_eq!(sampler.rounds_per_epoch(), 6);
/// assert_eq!(sampler.indices(3, 100), sampler.indices(3, 100));
/// # Ok::<(), upwash::data::PartitionError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    shares: Shards,
    batch: usize,
    draws: Vec<Draws>,
}

/// What a worker's random choices depend on.
#[derive(Clone, Debug)]
struct Draws {
    /// Its experiment's seed.
    seed: u64,
    /// Its number there.
    number: u64,
    /// What all workers of its experiment have, wherever they are.
    everyone: Arc<Shards>,
}

impl Sampler {
    /// Batches of `batch` images out of the workers' shares.
    ///
    /// A worker whose share is empty has no batches: it must not be asked for one.
    ///
    /// # Panics
    /// If the batch is 0.
    pub fn new(shares: Shards, batch: usize, seed: u64) -> Self {
        assert!(batch > 0, "batches of no images");
        let everyone = Arc::new(shares.clone());
        let draws = |number| Draws { seed, number, everyone: Arc::clone(&everyone) };
        let draws = (0..shares.images.len() as u64).map(draws).collect();
        Self { shares, batch, draws }
    }

    /// Some of the workers; each draws as it did.
    #[must_use]
    pub fn only(&self, workers: &[usize]) -> Self {
        let images = workers.iter().map(|&worker| self.shares.images[worker].clone());
        Self {
            shares: Shards { images: images.collect() },
            batch: self.batch,
            draws: workers.iter().map(|&worker| self.draws[worker].clone()).collect(),
        }
    }

    /// The workers of both, one after the other; each draws as it did.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.shares.images.extend(other.shares.images.iter().cloned());
        both.draws.extend(other.draws.iter().cloned());
        both
    }

    /// The workers' shares.
    pub fn shares(&self) -> &Shards {
        &self.shares
    }

    /// Images in a batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// How many rounds show the largest share once.
    pub fn rounds_per_epoch(&self) -> u64 {
        self.shares.largest().div_ceil(self.batch) as u64
    }

    /// The numbers of the images in a worker's batch.
    pub fn indices(&self, worker: usize, round: u64) -> Vec<u32> {
        let share = &self.shares.images[worker];
        let mut indices = Vec::with_capacity(self.batch);
        let mut position = round * self.batch as u64;
        while indices.len() < self.batch {
            let (pass, from) = (position / share.len() as u64, position as usize % share.len());
            let mut order = share.clone();
            let Draws { seed, number, .. } = self.draws[worker];
            Stream::new(seed, "order of images", &[number, pass]).shuffle(&mut order);
            let taken = (self.batch - indices.len()).min(share.len() - from);
            indices.extend_from_slice(&order[from..from + taken]);
            position += taken as u64;
        }
        indices
    }

    /// Which images are in a worker's batch of a round, and which window of each is taken.
    pub fn picks(&self, augmentation: Augmentation, worker: usize, round: u64) -> impl Iterator<Item = Pick> + use<> {
        let Draws { seed, number, .. } = self.draws[worker];
        let mut stream = Stream::new(seed, "augmentation", &[number, round]);
        let pick = move |image| random_window(augmentation, image, &mut stream);
        self.indices(worker, round).into_iter().map(pick)
    }

    /// How many [mixed](Self::mixed_picks) batches make at least [`ESTIMATION_IMAGES`]: what the statistics of
    /// a model that is no worker's are estimated on, whatever the batch.
    pub fn estimation_batches(&self) -> usize {
        ESTIMATION_IMAGES.div_ceil(self.batch)
    }

    /// A batch of images out of the shares of all workers of this one's experiment, to measure on what no
    /// single worker has.
    pub fn mixed_picks(&self, worker: usize, augmentation: Augmentation, number: u64) -> Vec<Pick> {
        let Draws { seed, everyone, .. } = &self.draws[worker];
        let shares = &everyone.images;
        let mut stream = Stream::new(*seed, "mixed batches", &[number]);
        let sizes = shares.iter().map(Vec::len);
        let ends: Vec<usize> = sizes
            .scan(0, |end, size| {
                *end += size;
                Some(*end)
            })
            .collect();
        let all = ends.last().copied().unwrap_or(0);
        let mut pick = || {
            let place = stream.below(all);
            let worker = ends.partition_point(|&end| end <= place);
            let share = &shares[worker];
            let image = share[place + share.len() - ends[worker]];
            random_window(augmentation, image, &mut stream)
        };
        (0..self.batch).map(|_| pick()).collect()
    }

    /// A worker's batch of a round, augmented.
    pub fn batch(&self, data: &Dataset, worker: usize, round: u64) -> Batch {
        let picks = self.picks(data.augmentation, worker, round);
        data.scaling.batch(&data.train, picks)
    }
}

fn random_window(augmentation: Augmentation, image: u32, stream: &mut Stream) -> Pick {
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

/// A window of the image's own size into the image with a black border around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The image's number.
    pub image: u32,
    /// Rows above the window.
    pub down: usize,
    /// Columns to its left.
    pub right: usize,
    /// Whether left and right are exchanged.
    pub mirrored: bool,
}

impl Pick {
    /// The width of the border.
    pub const BORDER: usize = 4;

    /// The image as it is.
    pub fn whole(image: u32) -> Self {
        Self { image, down: Self::BORDER, right: Self::BORDER, mirrored: false }
    }
}

impl super::Scaling {
    /// Windows into images, scaled.
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
                    // Positions in the image with its border, moved back by the border.
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

    fn sampler(share: usize, batch: usize) -> Sampler {
        Sampler::new(Shards { images: vec![(0..share as u32).collect()] }, batch, 1)
    }

    #[test]
    fn a_pass_shows_every_image_once() {
        let sampler = sampler(10, 4);
        let shown: Vec<u32> = (0..5).flat_map(|round| sampler.indices(0, round)).collect();
        for pass in shown.chunks(10) {
            let mut sorted = pass.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<u32>>());
        }
        assert_ne!(shown[..10], shown[10..]);
        assert_eq!(sampler.rounds_per_epoch(), 3);
    }

    #[test]
    fn a_batch_may_be_larger_than_a_share() {
        assert_eq!(sampler(3, 8).indices(0, 5).len(), 8);
    }

    #[test]
    fn crops_and_mirrors_move_pixels_and_border_black_ones() {
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
        // The border is black before scaling: it is not 0 after it.
        let images = Images { shape: [1, 2, 2], pixels: image.to_vec(), labels: vec![0] };
        let scaling = Scaling { full: 4.0, mean: vec![0.5], deviation: vec![0.25] };
        let batch = scaling.batch(&images, [Pick::whole(0)].into_iter());
        assert_eq!(batch.pixels, [-1.0, 0.0, 1.0, 2.0]);
    }

    /// As many images for a batch of 16 as for one of 128: few are too rough.
    #[test]
    fn statistics_are_estimated_on_as_many_images_whatever_the_batch() {
        for (batch, batches) in [(16, 128), (128, 16), (100, 21), (4096, 1)] {
            let images = vec![vec![0, 1]];
            let sampler = Sampler::new(Shards { images }, batch, 1);
            assert_eq!(sampler.estimation_batches(), batches);
        }
    }

    #[test]
    fn mixed_batches_have_images_of_all_workers() {
        let images = (0..40).map(|worker| vec![2 * worker, 2 * worker + 1]).collect();
        let sampler = Sampler::new(Shards { images }, 32, 1);
        let mut seen: Vec<u32> = (0..20)
            .flat_map(|number| sampler.mixed_picks(0, Augmentation::CropAndFlip, number))
            .inspect(|pick| assert!(pick.down <= 8 && pick.right <= 8))
            .map(|pick| pick.image)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..80).collect::<Vec<u32>>());
    }

    #[test]
    fn crops_and_flips_take_every_window_and_depend_on_worker_and_round_only() {
        let sampler = sampler(50, 50);
        let picks = |round| sampler.picks(Augmentation::CropAndFlip, 0, round).collect::<Vec<_>>();
        assert_eq!(picks(3), picks(3));
        let all: Vec<Pick> = (0..40).flat_map(picks).collect();
        for place in 0..=8 {
            assert!(all.iter().any(|pick| pick.down == place));
            assert!(all.iter().any(|pick| pick.right == place));
        }
        let mirrored = all.iter().filter(|pick| pick.mirrored).count();
        assert!((900..1100).contains(&mirrored), "{mirrored} of 2000");
    }
}
