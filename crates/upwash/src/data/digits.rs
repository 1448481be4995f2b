//! The built-in data set of 8x8 digits.

use super::own::hold_out;
use super::{Augmentation, Dataset, Images, Scaling};

static RECORDS: &[u8] = include_bytes!("../../data/digits.bin");
const PIXELS: usize = 64;

/// 1,797 handwritten digits of 8x8 pixels (UCI, CC BY 4.0; see `data/README.md`). Every fifth image of each class is in
/// the test set, the others are in the training set.
///
/// ```
/// let digits = upwash::data::digits();
/// assert_eq!((digits.train.len(), digits.test.len()), (1442, 355));
/// assert_eq!(digits.train.shape, [1, 8, 8]);
/// ```
pub fn digits() -> Dataset {
    let mut all = Images { shape: [1, 8, 8], pixels: Vec::new(), labels: Vec::new() };
    for record in RECORDS.chunks_exact(PIXELS + 1) {
        all.pixels.extend_from_slice(&record[..PIXELS]);
        all.labels.push(record[PIXELS]);
    }
    let [train, test] = hold_out(&all);
    Dataset {
        name: "digits".into(),
        classes: 10,
        train,
        test,
        // Measured over all pixels: mean 0.3053, standard deviation 0.3760.
        scaling: Scaling { full: 16.0, mean: vec![0.3053], deviation: vec![0.376] },
        augmentation: Augmentation::None,
        class_names: vec![],
        notices: vec![],
    }
}
