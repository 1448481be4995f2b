//! Data sets in the user's own files: `images:FOLDER` and `arrays:FILE`.

use super::{Dataset, Images, arrays, image_folder};
use std::path::{Path, PathBuf};

/// A data set in the user's own files, as `data.name` names it.
///
/// ```
/// use upwash::data::OwnData;
/// let photos = OwnData::parse("images:photos").expect("it has a prefix of own data");
/// assert_eq!(photos.located_in("/data".as_ref()).to_string(), "images:/data/photos");
/// assert_eq!(OwnData::parse("digits"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnData {
    /// A folder with a folder of images for each class.
    Images(PathBuf),
    /// A file of arrays: `.npz` or `.safetensors`.
    Arrays(PathBuf),
}

/// The reason why own data cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnDataError {
    /// A file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The content is not what is needed.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what is needed.
        what: String,
    },
}

/// The largest data set, in bytes.
const MAX_BYTES: u128 = 100_000_000_000;
/// The largest number of classes: labels are bytes.
pub(super) const MAX_CLASSES: usize = 256;

impl OwnData {
    /// The own data that `name` names; `None` for other names.
    pub fn parse(name: &str) -> Option<Self> {
        let (kind, path) = name.split_once(':').filter(|(_, path)| !path.is_empty())?;
        match kind {
            "images" => Some(Self::Images(path.into())),
            "arrays" => Some(Self::Arrays(path.into())),
            _ => None,
        }
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Images(path) | Self::Arrays(path) => path,
        }
    }

    fn with_path(&self, path: PathBuf) -> Self {
        match self {
            Self::Images(_) => Self::Images(path),
            Self::Arrays(_) => Self::Arrays(path),
        }
    }

    /// The same, with a path relative to `folder` made absolute.
    #[must_use]
    pub fn located_in(&self, folder: &Path) -> Self {
        let path = folder.join(self.path());
        self.with_path(std::path::absolute(&path).unwrap_or(path))
    }

    /// The same, with the path reduced to its last name.
    #[must_use]
    pub fn without_folder(&self) -> Self {
        self.with_path(self.path().file_name().unwrap_or_default().into())
    }

    /// Loads the data set. Images of a folder are scaled and cropped to squares of side `image_size`, if given.
    pub fn load(&self, image_size: Option<usize>) -> Result<Dataset, OwnDataError> {
        let (exists, kind) = match self {
            Self::Images(folder) => (folder.is_dir(), "folder"),
            Self::Arrays(file) => (file.is_file(), "file"),
        };
        if !exists {
            let what = format!("there is no such {kind}; relative paths in a configuration begin at its folder");
            return Err(self.error(what));
        }
        let mut data = match self {
            Self::Images(folder) => image_folder::load(folder, image_size)?,
            Self::Arrays(_) if image_size.is_some() => {
                let what = "data.image_size is for `images:FOLDER`: arrays have the size that they have".into();
                return Err(self.error(what));
            }
            Self::Arrays(file) => arrays::load(file)?,
        };
        data.name = self.without_folder().to_string();
        if data.classes < 2 {
            return Err(self.error(format!("it has {} class, but at least two are needed", data.classes)));
        }
        data.notices.extend(missing_classes(&data));
        Ok(data)
    }

    fn error(&self, what: String) -> OwnDataError {
        OwnDataError::Content { path: self.path().to_owned(), what }
    }
}

impl std::fmt::Display for OwnData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Images(path) => write!(f, "images:{}", path.display()),
            Self::Arrays(path) => write!(f, "arrays:{}", path.display()),
        }
    }
}

/// Says which classes have no training images.
fn missing_classes(data: &Dataset) -> Option<String> {
    let mut counts = vec![0usize; data.classes];
    data.train.labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
    let missing: Vec<String> = (0..data.classes).filter(|&class| counts[class] == 0).map(|c| c.to_string()).collect();
    let list = missing.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
    (!missing.is_empty()).then(|| {
        format!(
            "data `{}`: no training image has the label {list}{}; labels count from 0",
            data.name,
            if missing.len() > 10 { ", ..." } else { "" }
        )
    })
}

/// Splits images into a training set and a test set: every fifth image of each class is for testing.
pub(super) fn hold_out(all: &Images) -> [Images; 2] {
    let empty = || Images { shape: all.shape, pixels: vec![], labels: vec![] };
    let (mut train, mut test) = (empty(), empty());
    let mut seen = [0usize; MAX_CLASSES];
    for (index, &label) in all.labels.iter().enumerate() {
        let count = &mut seen[usize::from(label)];
        *count += 1;
        let split = if count.is_multiple_of(5) { &mut test } else { &mut train };
        split.pixels.extend_from_slice(all.image(index));
        split.labels.push(label);
    }
    [train, test]
}

/// Refuses data that is larger than the limit, or than the memory of this machine.
pub(super) fn check_size(path: &Path, images: usize, shape: [usize; 3]) -> Result<(), OwnDataError> {
    let bytes = shape.iter().fold(images as u128, |product, &side| product.saturating_mul(side as u128));
    let needed = match u64::try_from(bytes) {
        Ok(bytes) if u128::from(bytes) <= MAX_BYTES => match crate::memory::shortage(bytes) {
            None => return Ok(()),
            Some(shortage) => shortage,
        },
        _ => format!("{} GB", bytes / 1_000_000_000),
    };
    let [channels, height, width] = shape;
    let what = format!(
        "{images} images of shape {channels}x{height}x{width} need {needed}; with `images:FOLDER`, data.image_size \
         makes them smaller"
    );
    Err(OwnDataError::Content { path: path.to_owned(), what })
}
