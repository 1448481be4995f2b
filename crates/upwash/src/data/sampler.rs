//! Which images are in a worker's batch of a round, and what is done to them.

use super::{Augmentation, Dataset, Shares};
use upwash_topology::random::Stream;

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
    shares: Shares,
    batch: usize,
    seed: u64,
}

/// The border of black pixels from which crops are taken.
const PADDING: usize = 4;

impl Sampler {
    /// Batches of `batch` images out of the workers' shares.
    ///
    /// # Panics
    /// If the batch is 0 or a share is empty.
    pub fn new(shares: Shares, batch: usize, seed: u64) -> Self {
        assert!(batch > 0 && shares.images.iter().all(|share| !share.is_empty()));
        Self {
            shares,
            batch,
            seed,
        }
    }

    /// The workers' shares.
    pub fn shares(&self) -> &Shares {
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
            let (pass, from) = (
                position / share.len() as u64,
                position as usize % share.len(),
            );
            let mut order = share.clone();
            Stream::new(self.seed, "order of images", &[worker as u64, pass]).shuffle(&mut order);
            let taken = (self.batch - indices.len()).min(share.len() - from);
            indices.extend_from_slice(&order[from..from + taken]);
            position += taken as u64;
        }
        indices
    }

    /// A worker's batch of a round, augmented.
    pub fn batch(&self, data: &Dataset, worker: usize, round: u64) -> Batch {
        let mut stream = Stream::new(self.seed, "augmentation", &[worker as u64, round]);
        let indices = self.indices(worker, round);
        let mut batch = Batch {
            pixels: Vec::new(),
            labels: Vec::new(),
        };
        for &index in &indices {
            let view = match data.augmentation {
                Augmentation::None => View {
                    down: PADDING,
                    right: PADDING,
                    mirrored: false,
                },
                Augmentation::CropAndFlip => View {
                    down: stream.below(2 * PADDING + 1),
                    right: stream.below(2 * PADDING + 1),
                    mirrored: stream.below(2) == 1,
                },
            };
            data.scaling.append(
                data.train.image(index as usize),
                data.train.shape,
                view,
                &mut batch.pixels,
            );
            batch.labels.push(data.train.labels[index as usize]);
        }
        batch
    }
}

/// A window of the image's own size into the image with its border.
#[derive(Clone, Copy)]
struct View {
    down: usize,
    right: usize,
    mirrored: bool,
}

impl super::Scaling {
    /// Images as they are, scaled.
    pub fn whole(&self, images: &super::Images, indices: impl Iterator<Item = usize>) -> Batch {
        let mut batch = Batch {
            pixels: Vec::new(),
            labels: Vec::new(),
        };
        let view = View {
            down: PADDING,
            right: PADDING,
            mirrored: false,
        };
        for index in indices {
            self.append(images.image(index), images.shape, view, &mut batch.pixels);
            batch.labels.push(images.labels[index]);
        }
        batch
    }

    fn append(&self, image: &[u8], shape: [usize; 3], view: View, out: &mut Vec<f32>) {
        let [channels, height, width] = shape;
        for channel in 0..channels {
            let plane = &image[channel * height * width..][..height * width];
            let (mean, scale) = (self.mean[channel], 1.0 / self.deviation[channel]);
            for y in 0..height {
                for x in 0..width {
                    let x = if view.mirrored { width - 1 - x } else { x };
                    // Positions in the image with its border, moved back by the border.
                    let (y, x) = (
                        (y + view.down).checked_sub(PADDING),
                        (x + view.right).checked_sub(PADDING),
                    );
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
        Sampler::new(
            Shares {
                images: vec![(0..share as u32).collect()],
            },
            batch,
            1,
        )
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
        let scaling = Scaling {
            full: 1.0,
            mean: vec![0.0],
            deviation: vec![1.0],
        };
        let image = [1, 2, 3, 4]; // 2 x 2
        let view = |down, right, mirrored| {
            let mut out = Vec::new();
            scaling.append(
                &image,
                [1, 2, 2],
                View {
                    down,
                    right,
                    mirrored,
                },
                &mut out,
            );
            out
        };
        assert_eq!(view(4, 4, false), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(view(4, 4, true), [2.0, 1.0, 4.0, 3.0]);
        assert_eq!(view(5, 4, false), [3.0, 4.0, 0.0, 0.0]);
        assert_eq!(view(4, 3, false), [0.0, 1.0, 0.0, 3.0]);
        assert_eq!(view(8, 8, false), [0.0; 4]);
        // The border is black before scaling: it is not 0 after it.
        let images = Images {
            shape: [1, 2, 2],
            pixels: image.to_vec(),
            labels: vec![0],
        };
        let scaling = Scaling {
            full: 4.0,
            mean: vec![0.5],
            deviation: vec![0.25],
        };
        assert_eq!(scaling.whole(&images, 0..1).pixels, [-1.0, 0.0, 1.0, 2.0]);
    }
}
