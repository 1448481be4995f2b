//! Splits the training images among the workers.

use super::Images;
use crate::names::hint;
use upwash_topology::random::Stream;

/// How the training images are split among the workers. Written as `balanced`, `iid`, `dirichlet:0.3` or `shards:2`.
///
/// ```
/// use upwash::data::Partition;
/// assert_eq!("dirichlet:0.3".parse(), Ok(Partition::Dirichlet(0.3)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Partition {
    /// Every worker gets the same number of images of each class, as in the paper. The remainder of each class is not
    /// used.
    #[default]
    Balanced,
    /// The shuffled images are split into shards whose sizes differ by at most one image.
    Iid,
    /// The fractions of each class that the workers get are drawn from a Dirichlet distribution. The smaller its
    /// parameter, the more the data of the workers differ.
    Dirichlet(f64),
    /// The images, sorted by class, are cut into this many shards per worker, which are assigned at random.
    Shards(usize),
}

/// The reason why images cannot be split among the workers.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The text does not name a partition.
    #[error(
        "partition `{0}` is unknown: write balanced, iid, dirichlet:ALPHA or shards:N{hint}",
        hint = hint(kind(.0), ["balanced", "iid", "dirichlet", "shards"])
    )]
    Unknown(String),
    /// The parameter is out of range.
    #[error("partition `{0}`: the number must be above 0")]
    Range(String),
    /// A worker would get no images.
    #[error("cannot split {images} images among {workers} workers by `{partition}`: {why}")]
    TooFew {
        /// The partition.
        partition: Partition,
        /// The number of workers.
        workers: usize,
        /// The number of images.
        images: usize,
        /// The cause and the remedy.
        why: &'static str,
    },
}

/// The images of each worker.
///
/// ```
/// use upwash::data::{Partition, digits};
/// let data = digits();
/// let shards = Partition::Balanced.split(&data.train, data.classes, 8, 0)?;
/// let counts = shards.class_counts(&data.train, data.classes);
/// assert!(counts.iter().all(|worker| worker == &counts[0]));
/// # Ok::<(), upwash::data::PartitionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// For each worker, the indices of its images.
    pub images: Vec<Vec<u32>>,
}

impl Shards {
    /// For each worker, the number of its images of each class.
    pub fn class_counts(&self, images: &Images, classes: usize) -> Vec<Vec<usize>> {
        let count = |shard: &Vec<u32>| {
            let mut counts = vec![0; classes];
            shard.iter().for_each(|&i| counts[usize::from(images.labels[i as usize])] += 1);
            counts
        };
        self.images.iter().map(count).collect()
    }

    /// The size of the largest shard.
    pub fn largest(&self) -> usize {
        self.images.iter().map(Vec::len).max().unwrap_or(0)
    }
}

impl Partition {
    /// Splits `images` among `workers`. The result depends only on the arguments. A Dirichlet draw that leaves a worker
    /// without images is repeated, up to 100 draws in all.
    pub fn split(self, images: &Images, classes: usize, workers: usize, seed: u64) -> Result<Shards, PartitionError> {
        let draws = if let Self::Dirichlet(_) = self { 100 } else { 1 };
        let draw = |attempt: u64| {
            let indices: &[u64] = if attempt == 0 { &[] } else { &[attempt] };
            let mut stream = Stream::new(seed, "partition", indices);
            self.draw(images, classes, workers, &mut stream)
        };
        let first = draw(0);
        if first.is_ok() {
            return first;
        }
        (1..draws).map(draw).find(Result::is_ok).unwrap_or(first)
    }

    fn draw(
        self,
        images: &Images,
        classes: usize,
        workers: usize,
        stream: &mut Stream,
    ) -> Result<Shards, PartitionError> {
        let too_few = |why| PartitionError::TooFew { partition: self, workers, images: images.len(), why };
        let mut by_class = vec![Vec::new(); classes];
        for (index, &label) in images.labels.iter().enumerate() {
            by_class[usize::from(label)].push(index as u32);
        }
        let mut images_of = vec![Vec::new(); workers];
        match self {
            Self::Balanced => {
                for class in &mut by_class {
                    stream.shuffle(class);
                    let each = class.len() / workers;
                    if each == 0 {
                        return Err(too_few(match workers <= images.len() {
                            true => "a class has fewer images than there are workers; use `iid`, or fewer workers",
                            false => "there are more workers than images; use fewer workers",
                        }));
                    }
                    for (own, part) in images_of.iter_mut().zip(class.chunks_exact(each)) {
                        own.extend_from_slice(part);
                    }
                }
            }
            Self::Iid => {
                let mut all: Vec<u32> = (0..images.len() as u32).collect();
                stream.shuffle(&mut all);
                split_evenly(&mut images_of, &all);
            }
            Self::Dirichlet(alpha) => {
                for class in &mut by_class {
                    stream.shuffle(class);
                    split_by_dirichlet(&mut images_of, class, alpha, stream);
                }
            }
            Self::Shards(each) => {
                let sorted: Vec<u32> = by_class.concat();
                let count = workers.saturating_mul(each);
                if count > sorted.len() {
                    return Err(too_few("there are more shards than images; use fewer shards, or fewer workers"));
                }
                let mut shards: Vec<usize> = (0..count).collect();
                stream.shuffle(&mut shards);
                for (position, shard) in shards.into_iter().enumerate() {
                    let part = shard * sorted.len() / count..(shard + 1) * sorted.len() / count;
                    images_of[position / each].extend_from_slice(&sorted[part]);
                }
            }
        }
        if images_of.iter().any(Vec::is_empty) {
            let why = "a worker would get no images; use fewer workers, or a larger ALPHA with `dirichlet`";
            return Err(too_few(why));
        }
        Ok(Shards { images: images_of })
    }
}

/// Splits the images of a class in proportions drawn from a Dirichlet distribution.
fn split_by_dirichlet(images_of: &mut [Vec<u32>], class: &[u32], alpha: f64, stream: &mut Stream) {
    let workers = images_of.len();
    // With a small alpha most gamma variates underflow. Their logarithms do not; the largest weight is scaled to 1.
    let logs: Vec<f64> = (0..workers).map(|_| stream.log_gamma(alpha)).collect();
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logs.iter().map(|log| (log - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let (mut sum, mut from) = (0.0, 0);
    for (worker, weight) in weights.iter().enumerate() {
        sum += weight;
        let to = match worker + 1 == workers {
            true => class.len(),
            false => (class.len() as f64 * sum / total) as usize,
        };
        images_of[worker].extend_from_slice(&class[from..to]);
        from = to;
    }
}

/// Splits images into contiguous ranges whose sizes differ by at most one.
fn split_evenly(images_of: &mut [Vec<u32>], images: &[u32]) {
    let (count, workers) = (images.len(), images_of.len());
    for (worker, own) in images_of.iter_mut().enumerate() {
        own.extend_from_slice(&images[worker * count / workers..(worker + 1) * count / workers]);
    }
}

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Balanced => write!(f, "balanced"),
            Self::Iid => write!(f, "iid"),
            Self::Dirichlet(alpha) => write!(f, "dirichlet:{alpha}"),
            Self::Shards(each) => write!(f, "shards:{each}"),
        }
    }
}

/// The part of a name before its option.
fn kind(text: &str) -> &str {
    text.split(':').next().unwrap_or(text)
}

impl std::str::FromStr for Partition {
    type Err = PartitionError;

    fn from_str(text: &str) -> Result<Self, PartitionError> {
        let unknown = || PartitionError::Unknown(text.into());
        let partition = match text.split_once(':') {
            None if text == "balanced" => Self::Balanced,
            None if text == "iid" => Self::Iid,
            Some(("dirichlet", alpha)) => Self::Dirichlet(alpha.parse().map_err(|_| unknown())?),
            Some(("shards", each)) => Self::Shards(each.parse().map_err(|_| unknown())?),
            _ => return Err(unknown()),
        };
        match partition {
            Self::Dirichlet(alpha) if !(alpha > 0.0 && alpha.is_finite()) => Err(PartitionError::Range(text.into())),
            Self::Shards(0) => Err(PartitionError::Range(text.into())),
            partition => Ok(partition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::digits;

    fn split(text: &str, workers: usize) -> (Shards, Vec<Vec<usize>>) {
        let data = digits();
        let partition: Partition = text.parse().unwrap();
        let shards = partition.split(&data.train, 10, workers, 3).unwrap();
        let counts = shards.class_counts(&data.train, 10);
        let mut all: Vec<u32> = shards.images.concat();
        let assigned = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), assigned, "{text}: an image was assigned twice");
        (shards, counts)
    }

    #[test]
    fn every_partition_splits_as_documented() {
        let (_, counts) = split("balanced", 8);
        assert!(counts.iter().all(|worker| worker == &counts[0]));
        let (iid, _) = split("iid", 7);
        assert!(iid.images.iter().all(|shard| shard.len().abs_diff(1442 / 7) <= 1));
        assert_eq!(iid.images.concat().len(), 1442);
        let (all, even) = split("dirichlet:1000", 8);
        assert_eq!(all.images.concat().len(), 1442);
        assert!(even.iter().flatten().all(|&count| (12..=24).contains(&count)), "{even:?}");
        let (_, skewed) = split("dirichlet:0.1", 8);
        assert!(skewed.iter().flatten().filter(|&&count| count == 0).count() > 20, "{skewed:?}");
        let (_, sharded) = split("shards:2", 10);
        for worker in sharded {
            // A shard is shorter than a class: it has images of at most two classes, and two shards of at most four.
            assert!(worker.iter().filter(|&&count| count > 0).count() <= 4, "{worker:?}");
        }
    }

    #[test]
    fn too_many_workers_and_invalid_names_are_errors() {
        let data = digits();
        let split = |partition: Partition, workers| partition.split(&data.train, 10, workers, 0);
        assert!(split(Partition::Balanced, 1000).is_err());
        assert!(split(Partition::Iid, 1443).is_err());
        assert!(split(Partition::Iid, 1000).is_ok());
        for bad in ["even", "dirichlet:0", "dirichlet:-1", "dirichlet:x", "shards:0", "shards", ""] {
            assert!(bad.parse::<Partition>().is_err(), "{bad}");
        }
    }

    #[test]
    fn small_alpha_favors_no_worker_and_gives_every_worker_images() {
        let data = digits();
        let mut first_larger = 0;
        for seed in 0..40 {
            let partition = Partition::Dirichlet(0.0005);
            let shards = partition.split(&data.train, 10, 2, seed).unwrap();
            first_larger += usize::from(shards.images[0].len() > shards.images[1].len());
        }
        assert!((10..=30).contains(&first_larger), "{first_larger} of 40");
    }
}
