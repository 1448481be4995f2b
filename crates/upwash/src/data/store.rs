//! Data sets that are stored in files: their files, checksums and formats.
//!
//! The files of a data set have the names and the content of the official distribution, uncompressed. They are in a
//! folder with the name of the data set, where `upwash data get` puts them.

use super::{Augmentation, Dataset, Images, Scaling};
use crate::names::hint;
use std::path::{Path, PathBuf};

/// A data set that is stored in files.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The name of the data set in configurations.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// The files of the data set.
    pub files: &'static [SourceFile],
    format: Format,
    classes: usize,
    mean: &'static [f32],
    deviation: &'static [f32],
}

/// A file of a data set.
#[derive(Clone, Copy, Debug)]
pub struct SourceFile {
    /// The file name.
    pub name: &'static str,
    /// The length in bytes.
    pub bytes: u64,
    /// The MD5 checksum, if it is known.
    pub md5: Option<&'static str>,
    test: bool,
    /// For a file without a checksum, whose records may be in any order.
    labels: Option<Labels>,
}

/// The labels of a file of records.
#[derive(Clone, Copy, Debug)]
struct Labels {
    /// The length of a record, and the place of the label in it.
    record: usize,
    place: usize,
    classes: usize,
    /// How many records each class has.
    each: usize,
}

const CIFAR100_TRAIN: Labels = Labels { record: 3074, place: 1, classes: 100, each: 500 };
const CIFAR100_TEST: Labels = Labels { each: 100, ..CIFAR100_TRAIN };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// The IDX format of MNIST: one file of images and one of labels.
    Idx,
    /// The binary format of CIFAR: each image follows `label_bytes` labels, of which the last one is used.
    Cifar { label_bytes: usize },
}

const fn file(name: &'static str, bytes: u64, md5: &'static str, test: bool) -> SourceFile {
    SourceFile { name, bytes, md5: Some(md5), test, labels: None }
}

#[rustfmt::skip]
const SOURCES: [Source; 4] = [
    Source {
        name: "mnist", about: "70,000 handwritten digits, 28x28", format: Format::Idx, classes: 10,
        mean: &[0.1307], deviation: &[0.3081],
        files: &[
            file("train-images-idx3-ubyte", 47_040_016, "6bbc9ace898e44ae57da46a324031adb", false),
            file("train-labels-idx1-ubyte", 60_008, "a25bea736e30d166cdddb491f175f624", false),
            file("t10k-images-idx3-ubyte", 7_840_016, "2646ac647ad5339dbf082846283269ea", true),
            file("t10k-labels-idx1-ubyte", 10_008, "27ae3e4e09519cfbb04c329615203637", true),
        ],
    },
    Source {
        name: "fashion-mnist", about: "70,000 articles of clothing, 28x28", format: Format::Idx, classes: 10,
        mean: &[0.2860], deviation: &[0.3530],
        files: &[
            file("train-images-idx3-ubyte", 47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a", false),
            file("train-labels-idx1-ubyte", 60_008, "9018921c3c673c538a1fc5bad174d6f9", false),
            file("t10k-images-idx3-ubyte", 7_840_016, "8181f5470baa50b63fa0f6fddb340f0a", true),
            file("t10k-labels-idx1-ubyte", 10_008, "15d484375f8d13e6eb1aabb0c3f46965", true),
        ],
    },
    Source {
        name: "cifar10", about: "60,000 photographs in 10 classes, 32x32, cropped and flipped", classes: 10,
        format: Format::Cifar { label_bytes: 1 },
        mean: &[0.4914, 0.4822, 0.4465], deviation: &[0.2023, 0.1994, 0.2010],
        files: &[
            file("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25", false),
            file("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692", false),
            file("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421", false),
            file("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb", false),
            file("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d", false),
            file("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d", true),
        ],
    },
    Source {
        name: "cifar100", about: "60,000 photographs in 100 classes, 32x32, cropped and flipped", classes: 100,
        format: Format::Cifar { label_bytes: 2 },
        mean: &[0.5071, 0.4867, 0.4408], deviation: &[0.2675, 0.2565, 0.2761],
        files: &[
            SourceFile { name: "train.bin", bytes: 153_700_000, md5: None, test: false, labels: Some(CIFAR100_TRAIN) },
            SourceFile { name: "test.bin", bytes: 30_740_000, md5: None, test: true, labels: Some(CIFAR100_TEST) },
        ],
    },
];

/// The reason why a data set cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The folder for data sets is unknown.
    #[error("there is no folder for data sets: set UPWASH_DATA to one, or set HOME")]
    NoFolder,
    /// No data set has this name.
    #[error(
        "data `{name}` is unknown: write digits, synthetic, mnist, fashion-mnist, cifar10 or cifar100, or images:FOLDER or \
             arrays:FILE for data of your own{hint}"
    )]
    Unknown {
        /// The name.
        name: String,
        /// A suggestion, or nothing.
        hint: String,
    },
    /// The files are missing.
    #[error(
        "{name} is not in {}: get it with `upwash data get {name}`, or from files that you have with `upwash data get \
         {name} --from DIR`",
        folder.display()
    )]
    Missing {
        /// The name of the data set.
        name: &'static str,
        /// The folder that was searched.
        folder: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file does not have the expected content.
    #[error(
        "{} is damaged ({what}): get it again with `upwash data get`, which verifies existing files",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl Source {
    /// All data sets that are stored in files.
    pub fn all() -> &'static [Source] {
        &SOURCES
    }

    /// The data set with this name.
    pub fn named(name: &str) -> Result<&'static Source, StoreError> {
        let found = SOURCES.iter().find(|source| source.name == name);
        found.ok_or_else(|| StoreError::Unknown { name: name.into(), hint: suggestion(name) })
    }

    /// Loads the data set from its folder within `store`.
    pub fn load(&self, store: &Path) -> Result<Dataset, StoreError> {
        let folder = store.join(self.name);
        if self.files.iter().any(|file| !folder.join(file.name).is_file()) {
            return Err(StoreError::Missing { name: self.name, folder });
        }
        let side = if self.format == Format::Idx { 28 } else { 32 };
        let load_split = |test: bool| -> Result<Images, StoreError> {
            let mut images = Images { shape: [self.mean.len(), side, side], pixels: vec![], labels: vec![] };
            for file in self.files.iter().filter(|file| file.test == test) {
                let path = folder.join(file.name);
                let bytes = std::fs::read(&path).map_err(|source| StoreError::Io { path: path.clone(), source })?;
                // Loading checks only the length; `upwash data get` checks the checksum.
                let read = if bytes.len() as u64 == file.bytes {
                    self.format.append(&bytes, &mut images)
                } else {
                    Err(format!("{} bytes, not {}", bytes.len(), file.bytes))
                };
                let check_labels = |()| match images.labels.iter().max() {
                    Some(&label) if usize::from(label) >= self.classes => {
                        Err(format!("label {label} is out of range for {} classes", self.classes))
                    }
                    _ => Ok(()),
                };
                read.and_then(check_labels).map_err(|what| StoreError::Damaged { path, what })?;
            }
            if images.pixels.len() != images.len() * images.size() {
                let (path, what) = (folder.clone(), "the numbers of images and labels differ".into());
                return Err(StoreError::Damaged { path, what });
            }
            Ok(images)
        };
        let is_cifar = self.format != Format::Idx;
        Ok(Dataset {
            name: self.name.into(),
            classes: self.classes,
            train: load_split(false)?,
            test: load_split(true)?,
            scaling: Scaling { full: 255.0, mean: self.mean.to_vec(), deviation: self.deviation.to_vec() },
            augmentation: if is_cifar { Augmentation::CropAndFlip } else { Augmentation::None },
            class_names: vec![],
            notices: vec![],
        })
    }
}

/// "; did you mean ...?" for a name that resembles that of a data set, or nothing.
fn suggestion(name: &str) -> String {
    let name = name.split(':').next().unwrap_or(name);
    hint(name, ["digits", "synthetic"].into_iter().chain(SOURCES.iter().map(|source| source.name)))
}

impl SourceFile {
    /// Checks that `content` is the content of this file. The error says what differs.
    pub fn check(&self, content: &[u8]) -> Result<(), String> {
        if content.len() as u64 != self.bytes {
            return Err(format!("{} bytes, not {}", content.len(), self.bytes));
        }
        let found = format!("{:x}", md5::compute(content));
        match self.md5 {
            Some(known) if known != found => Err(format!("its MD5 is {found}, not {known}")),
            _ => self.labels.map_or(Ok(()), |labels| labels.check(content)),
        }
    }
}

impl Labels {
    /// Checks that every class has as many records as it should.
    fn check(&self, content: &[u8]) -> Result<(), String> {
        let mut counts = [0; 256];
        content.chunks_exact(self.record).for_each(|record| counts[usize::from(record[self.place])] += 1);
        let expected = |class: usize| if class < self.classes { self.each } else { 0 };
        match (0..counts.len()).find(|&class| counts[class] != expected(class)) {
            Some(class) => Err(format!("{} images have the label {class}, not {}", counts[class], expected(class))),
            None => Ok(()),
        }
    }
}

impl Format {
    /// Appends the images or labels of a file.
    fn append(self, bytes: &[u8], images: &mut Images) -> Result<(), String> {
        let size = images.size();
        match self {
            Self::Idx => {
                let (&magic, rest) = bytes.split_first_chunk::<4>().ok_or("the file is truncated")?;
                let [0, 0, 8, dimensions @ (1 | 3)] = magic else {
                    return Err("it is not an IDX file of bytes".into());
                };
                let content = rest.get(4 * usize::from(dimensions)..).ok_or("the file is truncated")?;
                if dimensions == 1 {
                    images.labels.extend_from_slice(content);
                } else if content.len().is_multiple_of(size) {
                    images.pixels.extend_from_slice(content);
                } else {
                    return Err("its last image is truncated".into());
                }
            }
            Self::Cifar { label_bytes } => {
                let record = label_bytes + size;
                if !bytes.len().is_multiple_of(record) {
                    return Err("its last record is truncated".into());
                }
                for record in bytes.chunks_exact(record) {
                    images.labels.push(record[label_bytes - 1]);
                    images.pixels.extend_from_slice(&record[label_bytes..]);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(shape: [usize; 3]) -> Images {
        Images { shape, pixels: vec![], labels: vec![] }
    }

    #[test]
    fn cifar_records_may_have_one_label_or_two() {
        for (label_bytes, labels) in [(1, vec![7]), (2, vec![3, 99])] {
            let mut bytes = Vec::new();
            for image in 0..3u8 {
                bytes.extend(&labels);
                bytes.extend(std::iter::repeat_n(image, 3072));
            }
            let mut read = images([3, 32, 32]);
            let format = Format::Cifar { label_bytes };
            format.append(&bytes, &mut read).unwrap();
            assert_eq!(read.labels, [*labels.last().unwrap(); 3]); // the fine label comes last
            assert_eq!((read.image(2)[0], read.len()), (2, 3));
            assert!(format.append(&bytes[..4000], &mut read).is_err());
        }
    }

    #[test]
    fn idx_files_are_read() {
        let mut read = images([1, 2, 2]);
        let pixels =
            [&[0, 0, 8, 3], &[0, 0, 0, 2][..], &[0, 0, 0, 2], &[0, 0, 0, 2], &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
        let labels = [&[0, 0, 8, 1], &[0, 0, 0, 2][..], &[4, 9]].concat();
        Format::Idx.append(&pixels, &mut read).unwrap();
        Format::Idx.append(&labels, &mut read).unwrap();
        assert_eq!((read.image(1), &read.labels[..]), (&[5, 6, 7, 8][..], &[4, 9][..]));
        assert!(Format::Idx.append(&pixels[..18], &mut read).is_err());
        assert!(Format::Idx.append(&[1, 2, 3], &mut read).is_err());
        assert!(Format::Idx.append(&[0, 0, 13, 3, 0, 0], &mut read).is_err());
    }

    #[test]
    fn errors_about_missing_and_damaged_files_name_the_remedy() {
        let store = tempfile::tempdir().unwrap();
        let mnist = Source::named("mnist").unwrap();
        let error = mnist.load(store.path()).unwrap_err().to_string();
        assert!(error.contains("upwash data get mnist"), "{error}");
        std::fs::create_dir(store.path().join("mnist")).unwrap();
        for file in mnist.files {
            std::fs::write(store.path().join("mnist").join(file.name), b"short").unwrap();
        }
        let error = mnist.load(store.path()).unwrap_err().to_string();
        assert!(error.contains("5 bytes, not 47040016"), "{error}");
        assert!(Source::named("mnits").unwrap_err().to_string().contains("fashion-mnist"));
        let wrong = mnist.files[1].check(&vec![0; 60_008]).unwrap_err();
        assert!(wrong.contains("its MD5 is"), "{wrong}");
    }
}
