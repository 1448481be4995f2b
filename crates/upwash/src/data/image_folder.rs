//! `images:FOLDER`: a folder of PNG and JPEG images for each class.
//!
//! If the folder has folders `train` and `test` (or `val`), these contain the folders of the classes. Otherwise every
//! fifth image of each class is for testing. Scaling and cropping are those of torchvision: the shorter side becomes
//! `image_size`, by bilinear interpolation with antialiasing, and the center is cropped.

use super::own::{MAX_CLASSES, OwnDataError, check_size, hold_out};
use super::picture::Picture;
use super::{Dataset, Images};
use rayon::prelude::*;
use std::path::{Path, PathBuf};

/// The names of the folder of test images beside `train`.
const TEST_FOLDERS: [&str; 4] = ["test", "val", "valid", "validation"];
const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// The image files of a split by class, and what was left out.
#[derive(Default)]
struct Listing {
    files: Vec<(PathBuf, u8)>,
    skipped: Vec<PathBuf>,
}

/// Loads a folder.
pub(super) fn load(folder: &Path, image_size: Option<usize>) -> Result<Dataset, OwnDataError> {
    let train = folder.join("train");
    let test = TEST_FOLDERS.iter().map(|name| folder.join(name)).find(|path| path.is_dir());
    let splits = match test {
        Some(test) if train.is_dir() => vec![train, test],
        _ => vec![folder.to_owned()],
    };
    let classes = class_names(&splits[0])?;
    let listings = splits.iter().map(|split| Listing::of(split, &classes)).collect::<Result<Vec<_>, _>>()?;
    let mut pictures = Vec::new();
    let count = listings.iter().map(|listing| listing.files.len()).sum();
    for listing in &listings {
        pictures.push(read(folder, &listing.files, count, image_size)?);
    }
    let is_gray = pictures.iter().flatten().all(|picture| picture.channels == 1);
    let mut sets = Vec::new();
    for (listing, pictures) in listings.iter().zip(pictures) {
        sets.push(join(listing, pictures, is_gray)?);
    }
    let [train, test] = match <[Images; 2]>::try_from(sets) {
        Ok(both) => both,
        Err(one) => hold_out(&one[0]),
    };
    let mut data = Dataset::new("images", train, test);
    data.classes = classes.len();
    data.class_names = classes;
    let skipped: Vec<&PathBuf> = listings.iter().flat_map(|listing| &listing.skipped).collect();
    if let Some(first) = skipped.first() {
        let (count, first) = (skipped.len(), first.display());
        let what = if count == 1 { "1 file is" } else { &format!("{count} files are") };
        data.notices.push(format!("data: {what} neither PNG nor JPEG and left out, for example {first}"));
    }
    if sets_differ(&data) {
        return Err(error(folder, "the training and test images differ in size: set data.image_size = N".into()));
    }
    if data.test.is_empty() {
        let what = "no class has five images, of which one would be for testing: add images, or folders train and test";
        return Err(error(folder, what.into()));
    }
    Ok(data)
}

fn sets_differ(data: &Dataset) -> bool {
    data.train.shape != data.test.shape
}

fn error(path: &Path, what: String) -> OwnDataError {
    OwnDataError::Content { path: path.to_owned(), what }
}

/// The entries of a folder in the order of their names, without hidden ones.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, OwnDataError> {
    let failed = |source| OwnDataError::Io { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The folders in `split`, each of which is a class.
fn class_names(split: &Path) -> Result<Vec<String>, OwnDataError> {
    let classes: Vec<String> = entries(split)?.iter().filter(|path| path.is_dir()).map(|path| name_of(path)).collect();
    match classes.len() {
        0 => Err(error(split, "it has no folders: put the images of each class into a folder of their own".into())),
        2..=MAX_CLASSES => Ok(classes),
        1 => Err(error(split, format!("it has one folder, `{}`, but at least two classes are needed", classes[0]))),
        many => Err(error(split, format!("it has {many} folders, but at most {MAX_CLASSES} classes are supported"))),
    }
}

impl Listing {
    /// The files of a split. Its classes are among `classes`.
    fn of(split: &Path, classes: &[String]) -> Result<Self, OwnDataError> {
        let mut listing = Self::default();
        for class in entries(split)? {
            if !class.is_dir() {
                listing.skipped.push(class);
                continue;
            }
            let name = name_of(&class);
            let Some(label) = classes.iter().position(|known| *known == name) else {
                return Err(error(&class, "no folder of training images has this name".into()));
            };
            let before = listing.files.len();
            for file in entries(&class)? {
                let ending = file.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
                match ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) && file.is_file() {
                    true => listing.files.push((file, label as u8)),
                    false => listing.skipped.push(file),
                }
            }
            if listing.files.len() == before {
                return Err(error(&class, "it has no images: write PNG (.png) or JPEG (.jpg, .jpeg) files".into()));
            }
        }
        Ok(listing)
    }
}

/// Reads the files, on all cores. Without `image_size`, all must have the size of the first one.
fn read(
    folder: &Path,
    files: &[(PathBuf, u8)],
    count: usize,
    image_size: Option<usize>,
) -> Result<Vec<Picture>, OwnDataError> {
    let prepare = |path: &Path| -> Result<Picture, OwnDataError> {
        let bytes = std::fs::read(path).map_err(|source| OwnDataError::Io { path: path.to_owned(), source })?;
        let picture = Picture::decode(&bytes).map_err(|what| error(path, what))?;
        Ok(match image_size {
            Some(size) => picture.fitted(size),
            None => picture,
        })
    };
    let Some((first, _)) = files.first() else {
        return Ok(vec![]);
    };
    let [_, height, width] = prepare(first)?.shape();
    check_size(folder, count, [3, height, width])?;
    let read = |(path, _): &(PathBuf, u8)| {
        let picture = prepare(path)?;
        let [_, own_height, own_width] = picture.shape();
        if [own_height, own_width] != [height, width] {
            let first = first.display();
            return Err(error(
                path,
                format!(
                    "it has {own_width}x{own_height} pixels, but {first} has {width}x{height}: set data.image_size = N to \
                     scale and crop all images to NxN"
                ),
            ));
        }
        Ok(picture)
    };
    // The first error in the order of the files, whichever thread saw one first.
    let all: Vec<Result<Picture, OwnDataError>> = files.par_iter().map(read).collect();
    all.into_iter().collect()
}

/// The pictures as one set. If some have colors, all get three channels.
fn join(listing: &Listing, pictures: Vec<Picture>, is_gray: bool) -> Result<Images, OwnDataError> {
    let [_, height, width] = pictures.first().map_or([1, 0, 0], Picture::shape);
    let shape = [if is_gray { 1 } else { 3 }, height, width];
    let labels = listing.files.iter().map(|(_, label)| *label).collect();
    let mut pixels = Vec::with_capacity(pictures.len() * shape.iter().product::<usize>());
    for picture in pictures {
        picture.append_channels(shape[0], &mut pixels);
    }
    Ok(Images { shape, pixels, labels })
}
