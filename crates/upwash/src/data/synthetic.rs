//! Made-up data, for tests of scale.

use super::{Augmentation, Dataset, Images, Scaling};
use upwash_topology::random::Stream;

/// Images of one channel that are noise around a random pattern for each class.
///
/// ```
/// let data = upwash::data::synthetic(10, [1, 8, 8], 1000, 200, 0);
/// assert_eq!(data.train.len(), 1000);
/// assert_eq!(data, upwash::data::synthetic(10, [1, 8, 8], 1000, 200, 0));
/// ```
pub fn synthetic(
    classes: usize,
    shape: [usize; 3],
    train: usize,
    test: usize,
    seed: u64,
) -> Dataset {
    let size: usize = shape.iter().product();
    let mut stream = Stream::new(seed, "synthetic patterns", &[]);
    let patterns: Vec<f64> = (0..classes * size).map(|_| stream.uniform()).collect();
    let images = |count: usize, part: u64| {
        let mut stream = Stream::new(seed, "synthetic images", &[part]);
        let mut images = Images {
            shape,
            pixels: Vec::with_capacity(count * size),
            labels: vec![],
        };
        for index in 0..count {
            let class = index % classes;
            images.labels.push(class as u8);
            let pattern = &patterns[class * size..][..size];
            let noisy = pattern
                .iter()
                .map(|x| (127.0 * x + 128.0 * stream.uniform()) as u8);
            images.pixels.extend(noisy);
        }
        images
    };
    Dataset {
        name: "synthetic".into(),
        classes,
        train: images(train, 0),
        test: images(test, 1),
        scaling: Scaling {
            full: 255.0,
            mean: vec![0.5; shape[0]],
            deviation: vec![0.2; shape[0]],
        },
        augmentation: Augmentation::None,
    }
}
