//! Generated data, for tests at scale.

use super::{Augmentation, Dataset, Images, Scaling};
use upwash_topology::random::Stream;

/// Images with one random pattern per class, plus noise. Written as `synthetic`, or with any of the options in
/// `synthetic:classes=10,shape=1x8x8,train=10000,test=1000,seed=0`.
///
/// ```
/// use upwash::data::Synthetic;
/// let data = Synthetic::parse("train=500,shape=3x4x4")?.build();
/// assert_eq!((data.train.len(), data.train.size()), (500, 48));
/// assert_eq!(data, Synthetic { train: 500, shape: [3, 4, 4], ..Default::default() }.build());
/// # Ok::<(), upwash::data::SyntheticError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    /// The number of classes.
    pub classes: usize,
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// The number of training images.
    pub train: usize,
    /// The number of test images.
    pub test: usize,
    /// The seed of the patterns and the noise.
    pub seed: u64,
}

/// The options of a synthetic data set are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "synthetic:{0}: write any of classes=10 (2 to 256), shape=1x8x8, train=10000, test=1000, seed=0, \
     separated by commas, and at most 100 GB in all"
)]
pub struct SyntheticError(String);

impl Default for Synthetic {
    fn default() -> Self {
        Self { classes: 10, shape: [1, 8, 8], train: 10_000, test: 1_000, seed: 0 }
    }
}

impl Synthetic {
    /// Parses the options after `synthetic:`.
    pub fn parse(options: &str) -> Result<Self, SyntheticError> {
        let invalid = || SyntheticError(options.into());
        let number = |text: &str| text.parse::<usize>().map_err(|_| invalid());
        let mut set = Self::default();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=').ok_or_else(invalid)? {
                ("classes", text) => set.classes = number(text)?,
                ("train", text) => set.train = number(text)?,
                ("test", text) => set.test = number(text)?,
                ("seed", text) => set.seed = text.parse().map_err(|_| invalid())?,
                ("shape", text) => {
                    let sides = text.split('x').map(number).collect::<Result<Vec<_>, _>>()?;
                    set.shape = sides.try_into().map_err(|_| invalid())?;
                }
                _ => return Err(invalid()),
            }
        }
        let is_empty = set.shape.contains(&0) || set.train == 0 || set.test == 0;
        // At most 100 GB.
        let size = set.shape.iter().map(|&side| side as u128).fold(1, u128::saturating_mul);
        let bytes = size.saturating_mul((set.train as u128).saturating_add(set.test as u128));
        let is_too_large = bytes > 100_000_000_000;
        if is_empty || is_too_large || !(2..=256).contains(&set.classes) {
            return Err(invalid());
        }
        Ok(set)
    }

    /// The memory that the data set takes, in bytes, while it is generated.
    pub fn bytes(&self) -> u64 {
        let size = self.shape.iter().map(|&side| side as u64).fold(1, u64::saturating_mul);
        let patterns = size.saturating_mul(8 * self.classes as u64);
        let images = (self.train as u64).saturating_add(self.test as u64);
        images.saturating_mul(size + 1).saturating_add(patterns)
    }

    /// Generates the data set.
    pub fn build(&self) -> Dataset {
        let size: usize = self.shape.iter().product();
        let mut stream = Stream::new(self.seed, "synthetic patterns", &[]);
        let patterns: Vec<f64> = (0..self.classes * size).map(|_| stream.uniform()).collect();
        let images = |count: usize, split: u64| {
            let mut stream = Stream::new(self.seed, "synthetic images", &[split]);
            let mut images = Images { shape: self.shape, pixels: Vec::with_capacity(count * size), labels: vec![] };
            for index in 0..count {
                let class = index % self.classes;
                images.labels.push(class as u8);
                let pattern = &patterns[class * size..][..size];
                let noisy = |x: &f64| (127.0 * x + 128.0 * stream.uniform()) as u8;
                images.pixels.extend(pattern.iter().map(noisy));
            }
            images
        };
        Dataset {
            name: "synthetic".into(),
            classes: self.classes,
            train: images(self.train, 0),
            test: images(self.test, 1),
            scaling: Scaling { full: 255.0, mean: vec![0.5; self.shape[0]], deviation: vec![0.2; self.shape[0]] },
            augmentation: Augmentation::None,
            class_names: vec![],
            notices: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_valid_options() {
        let large = "shape=9999999999x9999999999x9999999";
        for bad in ["clases=3", "train=0", "shape=8x8", "classes=257", "train", large] {
            let error = Synthetic::parse(bad).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("shape=1x8x8"), "{error}");
        }
        assert_eq!(Synthetic::parse(""), Ok(Synthetic::default()));
    }
}
