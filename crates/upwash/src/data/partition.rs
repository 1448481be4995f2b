//! Sharing out the training images among the workers.

use super::Images;
use upwash_topology::random::Stream;

/// How the training images are shared out. Spelled `balanced`, `iid`, `dirichlet:0.3`, `shards:2`.
///
/// ```
/// use upwash::data::Partition;
/// assert_eq!("dirichlet:0.3".parse(), Ok(Partition::Dirichlet(0.3)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Partition {
    /// Every worker gets the same number of images of each class, as in the paper. What does not
    /// divide is left out.
    #[default]
    Balanced,
    /// Images in a random order, cut into equal parts (within one image).
    Iid,
    /// Of each class, worker i gets a share drawn from a Dirichlet distribution: the smaller its
    /// parameter, the more the workers' data differ.
    Dirichlet(f64),
    /// Images sorted by class, cut into so many shards a worker, which are dealt out at random.
    Shards(usize),
}

/// Why images cannot be shared out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Not a spelling of a partition.
    #[error("partition `{0}` is unknown: write balanced, iid, dirichlet:ALPHA or shards:N")]
    Unknown(String),
    /// A number that is out of range.
    #[error("partition `{0}`: the number must be above 0")]
    Range(String),
    /// Some worker would get nothing.
    #[error("{workers} workers cannot share {images} images by `{partition}`: {why}")]
    TooFew {
        /// The spelling.
        partition: Partition,
        /// How many workers.
        workers: usize,
        /// How many images.
        images: usize,
        /// What would help.
        why: &'static str,
    },
}

/// Which images each worker has.
///
/// ```
/// use upwash::data::{Partition, digits};
/// let data = digits();
/// let shares = Partition::Balanced.share_out(&data.train, data.classes, 8, 0)?;
/// let counts = shares.class_counts(&data.train, data.classes);
/// assert!(counts.iter().all(|worker| worker == &counts[0]));
/// # Ok::<(), upwash::data::PartitionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// For each worker, the numbers of its images.
    pub images: Vec<Vec<u32>>,
}

impl Shards {
    /// How many images of each class each worker has.
    pub fn class_counts(&self, images: &Images, classes: usize) -> Vec<Vec<usize>> {
        let count = |share: &Vec<u32>| {
            let mut counts = vec![0; classes];
            share.iter().for_each(|&i| counts[usize::from(images.labels[i as usize])] += 1);
            counts
        };
        self.images.iter().map(count).collect()
    }

    /// The size of the largest share.
    pub fn largest(&self) -> usize {
        self.images.iter().map(Vec::len).max().unwrap_or(0)
    }
}

impl Partition {
    /// Shards out `images` among `workers`; the same seed, the same shares. Where chance leaves a
    /// worker without any, it is drawn again.
    pub fn share_out(
        self,
        images: &Images,
        classes: usize,
        workers: usize,
        seed: u64,
    ) -> Result<Shards, PartitionError> {
        let draws = if let Self::Dirichlet(_) = self { 100 } else { 1 };
        let draw = |number: u64| {
            let again: &[u64] = if number == 0 { &[] } else { &[number] };
            let mut stream = Stream::new(seed, "partition", again);
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
        let mut shares = vec![Vec::new(); workers];
        match self {
            Self::Balanced => {
                for class in &mut by_class {
                    stream.shuffle(class);
                    let each = class.len() / workers;
                    if each == 0 {
                        return Err(too_few("some class has fewer images than there are workers; try iid"));
                    }
                    for (share, part) in shares.iter_mut().zip(class.chunks_exact(each)) {
                        share.extend_from_slice(part);
                    }
                }
            }
            Self::Iid => {
                let mut all: Vec<u32> = (0..images.len() as u32).collect();
                stream.shuffle(&mut all);
                deal(&mut shares, &all);
            }
            Self::Dirichlet(alpha) => {
                for class in &mut by_class {
                    stream.shuffle(class);
                    deal_unequally(&mut shares, class, alpha, stream);
                }
            }
            Self::Shards(each) => {
                let sorted: Vec<u32> = by_class.concat();
                let count = workers.saturating_mul(each);
                if count > sorted.len() {
                    return Err(too_few("there are more shards than images"));
                }
                let mut shards: Vec<usize> = (0..count).collect();
                stream.shuffle(&mut shards);
                for (place, shard) in shards.into_iter().enumerate() {
                    let part = shard * sorted.len() / count..(shard + 1) * sorted.len() / count;
                    shares[place / each].extend_from_slice(&sorted[part]);
                }
            }
        }
        if shares.iter().any(Vec::is_empty) {
            return Err(too_few("some worker would get none; take fewer workers or a larger number"));
        }
        Ok(Shards { images: shares })
    }
}

/// Shares out a class in parts that a Dirichlet distribution draws.
fn deal_unequally(shares: &mut [Vec<u32>], class: &[u32], alpha: f64, stream: &mut Stream) {
    let workers = shares.len();
    // With a small alpha most variates are too small for a number: their logarithms are not, and the largest is made 1.
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
        shares[worker].extend_from_slice(&class[from..to]);
        from = to;
    }
}

fn deal(shares: &mut [Vec<u32>], images: &[u32]) {
    let (count, workers) = (images.len(), shares.len());
    for (worker, share) in shares.iter_mut().enumerate() {
        share.extend_from_slice(&images[worker * count / workers..(worker + 1) * count / workers]);
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

    fn shares(spelling: &str, workers: usize) -> (Shards, Vec<Vec<usize>>) {
        let data = digits();
        let partition: Partition = spelling.parse().unwrap();
        let shares = partition.share_out(&data.train, 10, workers, 3).unwrap();
        let counts = shares.class_counts(&data.train, 10);
        let mut all: Vec<u32> = shares.images.concat();
        let given = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), given, "{spelling}: an image was given twice");
        (shares, counts)
    }

    #[test]
    fn every_partition_shares_out_what_it_says() {
        let (_, counts) = shares("balanced", 8);
        assert!(counts.iter().all(|worker| worker == &counts[0]));
        let (iid, _) = shares("iid", 7);
        assert!(iid.images.iter().all(|share| share.len().abs_diff(1442 / 7) <= 1));
        assert_eq!(iid.images.concat().len(), 1442);
        let (all, even) = shares("dirichlet:1000", 8);
        assert_eq!(all.images.concat().len(), 1442);
        assert!(even.iter().flatten().all(|&count| (12..=24).contains(&count)), "{even:?}");
        let (_, skewed) = shares("dirichlet:0.1", 8);
        assert!(skewed.iter().flatten().filter(|&&count| count == 0).count() > 20, "{skewed:?}");
        let (_, sharded) = shares("shards:2", 10);
        for worker in sharded {
            // A shard is a tenth of a class's length at least, and two touch four classes at most.
            assert!(worker.iter().filter(|&&count| count > 0).count() <= 4, "{worker:?}");
        }
    }

    #[test]
    fn too_many_workers_and_bad_spellings_are_errors() {
        let data = digits();
        let share = |partition: Partition, workers| partition.share_out(&data.train, 10, workers, 0);
        assert!(share(Partition::Balanced, 1000).is_err());
        assert!(share(Partition::Iid, 1443).is_err());
        assert!(share(Partition::Iid, 1000).is_ok());
        for bad in ["even", "dirichlet:0", "dirichlet:-1", "dirichlet:x", "shards:0", "shards", ""] {
            assert!(bad.parse::<Partition>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_small_alpha_favours_nobody_and_leaves_nobody_without() {
        let data = digits();
        let mut first_larger = 0;
        for seed in 0..40 {
            let partition = Partition::Dirichlet(0.0005);
            let shares = partition.share_out(&data.train, 10, 2, seed).unwrap();
            first_larger += usize::from(shares.images[0].len() > shares.images[1].len());
        }
        assert!((10..=30).contains(&first_larger), "{first_larger} of 40");
    }
}
