//! `arrays:FILE`: images and labels as arrays, in a file of NumPy (`.npz`) or in a safetensors file.

use super::array::Array;
use super::own::{MAX_CLASSES, OwnDataError, check_size, hold_out};
use super::{Dataset, Images, Scaling, npz};
use std::path::Path;

/// The names of training and test arrays: images, labels, test images, test labels.
const SPLIT: [[&str; 4]; 2] =
    [["x_train", "y_train", "x_test", "y_test"], ["train_images", "train_labels", "test_images", "test_labels"]];
/// The names of arrays that are not split: images, labels.
const WHOLE: [[&str; 2]; 3] = [["x", "y"], ["images", "labels"], ["data", "target"]];

/// Loads a file.
pub(super) fn load(file: &Path) -> Result<Dataset, OwnDataError> {
    let bytes = std::fs::read(file).map_err(|source| OwnDataError::Io { path: file.to_owned(), source })?;
    let content = |what| OwnDataError::Content { path: file.to_owned(), what };
    let arrays = read(file, &bytes).map_err(content)?;
    let chosen = choose(&arrays).map_err(content)?;
    for pair in chosen.chunks(2) {
        check_size(file, pair[0].count(), pair[0].image_shape().map_err(content)?)?;
    }
    // Test images are scaled as the training images are.
    let images: Vec<&Array<'_>> = chosen.iter().step_by(2).copied().collect();
    let scale = Array::pixel_scale(&images).map_err(content)?;
    let mut sets = Vec::new();
    for pair in chosen.chunks(2) {
        sets.push(join(pair[0], pair[1], scale).map_err(content)?);
    }
    let [train, test] = match <[Images; 2]>::try_from(sets) {
        Ok(both) => both,
        Err(one) => hold_out(&one[0]),
    };
    if test.is_empty() {
        return Err(content(
            "no class has five images, of which one would be for testing; add arrays for testing".into(),
        ));
    }
    let full = train.pixels.iter().copied().max().unwrap_or(0).max(1);
    let scaling = Scaling::of(&train, f32::from(full));
    Ok(Dataset { scaling, ..Dataset::new("arrays", train, test) })
}

fn read<'a>(file: &Path, bytes: &'a [u8]) -> Result<Vec<Array<'a>>, String> {
    match file.extension().and_then(|ending| ending.to_str()) {
        Some("npz") => npz::read(bytes),
        Some("safetensors") => read_safetensors(bytes),
        _ => Err("its name must end with .npz or .safetensors".into()),
    }
}

fn read_safetensors(bytes: &[u8]) -> Result<Vec<Array<'_>>, String> {
    let file = safetensors::SafeTensors::deserialize(bytes);
    let file = file.map_err(|error| format!("it is no valid safetensors file: {error}"))?;
    Ok(file.tensors().into_iter().map(|(name, tensor)| Array::of_tensor(name, &tensor)).collect())
}

/// The arrays of images and labels, alternating: training, then test if there are arrays for it.
fn choose<'a, 'b>(arrays: &'b [Array<'a>]) -> Result<Vec<&'b Array<'a>>, String> {
    let find = |name: &str| arrays.iter().find(|array| array.name.eq_ignore_ascii_case(name));
    let all = |names: &[&str]| names.iter().map(|name| find(name)).collect::<Option<Vec<_>>>();
    let split = SPLIT.iter().find_map(|names| all(names));
    split.or_else(|| WHOLE.iter().find_map(|names| all(names))).ok_or_else(|| {
        let found: Vec<&str> = arrays.iter().take(10).map(|array| array.name.as_str()).collect();
        format!(
            "it has the arrays {}; name them x_train, y_train, x_test and y_test, or x and y, of which every fifth \
             example of each class is then for testing",
            if found.is_empty() { "(none)".into() } else { found.join(", ") }
        )
    })
}

/// Images and their labels.
fn join(images: &Array<'_>, labels: &Array<'_>, scale: f64) -> Result<Images, String> {
    let (count, others) = (images.count(), labels.count());
    if count != others {
        return Err(format!("{} has {count} examples, but {} has {others}", images.name, labels.name));
    }
    if labels.shape.iter().skip(1).any(|&side| side != 1) {
        let shape = &labels.shape;
        return Err(format!("{} has the shape {shape:?}: write one class number for each example", labels.name));
    }
    let mut classes = Vec::with_capacity(count);
    for value in labels.values()? {
        if value.fract() != 0.0 || !(0.0..MAX_CLASSES as f64).contains(&value) {
            return Err(format!("{} has the label {value}: labels are whole numbers from 0 to 255", labels.name));
        }
        classes.push(value as u8);
    }
    Ok(Images { shape: images.image_shape()?, pixels: images.pixels(scale)?, labels: classes })
}
