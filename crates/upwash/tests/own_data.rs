//! Data of the user's own, in files that NumPy, Pillow and safetensors wrote: `tests/data/make.py`.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use upwash::config::Config;
use upwash::data::{Augmentation, OwnData};
use upwash::experiment::{DataPaths, Experiment};
use upwash::{Dataset, Trainer};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn arrays(name: &str) -> Result<Dataset, String> {
    OwnData::Arrays(file(name)).load(None).map_err(|error| error.to_string())
}

#[test]
fn arrays_of_numpy_and_safetensors_are_read() {
    let split = arrays("split.npz").unwrap();
    assert_eq!((split.train.shape, split.train.len(), split.test.len(), split.classes), ([3, 4, 5], 30, 10, 4));
    assert_eq!(split.name, "arrays:split.npz");
    // Printed by NumPy: rgb[0, 1, 2], rgb[31, 3, 4] and rgb[:30].sum().
    let pixel = |images: &upwash::Images, index: usize, y: usize, x: usize| -> Vec<u8> {
        (0..3).map(|channel| images.image(index)[20 * channel + 5 * y + x]).collect()
    };
    assert_eq!(pixel(&split.train, 0, 1, 2), [246, 77, 165]);
    assert_eq!(pixel(&split.test, 1, 3, 4), [107, 140, 42]);
    assert_eq!(split.train.pixels.iter().map(|&pixel| u64::from(pixel)).sum::<u64>(), 227_597);
    assert_eq!(split.train.labels[..6], [0, 1, 2, 3, 0, 1]);
    // The same images, with the channels first.
    let planar = arrays("planar.safetensors").unwrap();
    assert_eq!((&planar.train, &planar.test), (&split.train, &split.test));
    assert_eq!(planar.scaling, split.scaling);
}

#[test]
fn arrays_of_other_types_and_orders_are_the_same_images() {
    // Every fifth image of each class is for testing: those at 16 to 19 and at 36 to 39.
    let whole = arrays("whole.npz").unwrap();
    assert_eq!((whole.train.shape, whole.train.len(), whole.test.len()), ([1, 4, 3], 32, 8));
    assert_eq!(whole.train.image(7), [46, 60, 230, 192, 164, 156, 127, 214, 154, 194, 195, 137]);
    assert_eq!(whole.train.image(16), arrays("floats.npz").unwrap().train.image(20));
    let fortran = arrays("fortran.npz").unwrap();
    assert_eq!((fortran.train, fortran.test), (whole.train, whole.test));
}

#[test]
fn arrays_that_cannot_be_used_are_refused() {
    for (name, words) in [
        ("far.npz", "pixels are stored as bytes, so write whole numbers from 0 to 255, or numbers from 0 to 1"),
        ("objects.npz", "x has elements of the type `O`: write bytes, integers or 32-bit floats"),
        ("hot.npz", "y has the shape [40, 4]: write one class number for each example"),
        ("make.py", "its name must end with .npz or .safetensors"),
        ("nowhere.npz", "there is no such file; relative paths in a configuration begin at its folder"),
    ] {
        let error = arrays(name).unwrap_err();
        assert!(error.contains(words) && error.contains(name), "{name}: {error}");
    }
    // A damaged file gives an error wherever it is cut or changed, and never a panic.
    let folder = tempfile::tempdir().unwrap();
    for name in ["split.npz", "whole.npz", "planar.safetensors"] {
        let bytes = std::fs::read(file(name)).unwrap();
        let path = folder.path().join(name);
        for end in (0..bytes.len()).step_by(37) {
            std::fs::write(&path, &bytes[..end]).unwrap();
            assert!(OwnData::Arrays(path.clone()).load(None).is_err(), "{name} of {end} bytes");
        }
        for place in (0..bytes.len()).step_by(11) {
            let mut changed = bytes.clone();
            changed[place] ^= 0x55;
            std::fs::write(&path, &changed).unwrap();
            let _ = OwnData::Arrays(path.clone()).load(None);
        }
    }
}

fn pictures(size: Option<usize>) -> Result<Dataset, String> {
    OwnData::Images(file("pictures")).load(size).map_err(|error| error.to_string())
}

/// The pixels are those of Pillow, scaled and cropped as torchvision does. Decoders of JPEG may round differently.
#[test]
fn pictures_are_scaled_as_in_torchvision() {
    let (found, expected) = (pictures(Some(12)).unwrap(), arrays("pictures.npz").unwrap());
    assert_eq!(found.class_names, ["cat", "dog"]);
    for (found, expected, jpegs) in [(&found.train, &expected.train, 1..4), (&found.test, &expected.test, 0..0)] {
        assert_eq!((found.shape, &found.labels), ([3, 12, 12], &expected.labels));
        for index in 0..found.len() {
            let pairs = found.image(index).iter().zip(expected.image(index));
            let differences: Vec<u8> = pairs.map(|(a, b)| a.abs_diff(*b)).collect();
            let largest = differences.iter().max().copied().unwrap();
            let mean = differences.iter().map(|&one| f64::from(one)).sum::<f64>() / differences.len() as f64;
            let (most, mean_limit) = if jpegs.contains(&index) { (8, 1.0) } else { (1, 0.1) };
            assert!(largest <= most && mean <= mean_limit, "image {index}: {largest}, {mean}");
        }
    }
}

#[test]
fn folders_that_cannot_be_used_are_refused() {
    let error = pictures(None).unwrap_err();
    assert!(error.contains("a-noise.png: it has 29x40 pixels, but "), "{error}");
    assert!(error.contains("has 31x23: set data.image_size = N"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let refused = |words: &str| {
        let error = OwnData::Images(here.to_owned()).load(Some(8)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused("it has no folders");
    std::fs::create_dir(here.join("one")).unwrap();
    refused("it has one folder, `one`, but at least two classes are needed");
    std::fs::create_dir(here.join("two")).unwrap();
    refused("it has no images: write PNG (.png) or JPEG (.jpg, .jpeg) files");
    for class in ["one", "two"] {
        for index in 0..5 {
            let picture = file("pictures/train/cat/a-rgb.png");
            std::fs::copy(picture, here.join(class).join(format!("{index}.png"))).unwrap();
        }
    }
    let data = OwnData::Images(here.to_owned()).load(Some(8)).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (8, 2));
    assert_eq!(data.notices, Vec::<String>::new());
    std::fs::write(here.join("two/notes.txt"), "").unwrap();
    let data = OwnData::Images(here.to_owned()).load(Some(8)).unwrap();
    assert!(data.notices[0].contains("1 file is neither PNG nor JPEG"), "{:?}", data.notices);
    std::fs::write(here.join("two/5.png"), "no picture").unwrap();
    refused("5.png: it is neither a PNG nor a JPEG file");
    for name in ["a-rgb.png", "b-photo.jpg", "c-progressive.JPEG"] {
        let bytes = std::fs::read(file("pictures/train/cat").join(name)).unwrap();
        for end in [10, bytes.len() / 4, bytes.len() / 2] {
            std::fs::write(here.join("two/5.png"), &bytes[..end]).unwrap();
            let _ = OwnData::Images(here.to_owned()).load(Some(8));
        }
    }
}

/// The partitions, the checks and the configuration treat own data as they treat the other data sets.
#[test]
fn own_data_is_trained_on() {
    let config = |name: &str, more: &str| {
        let text = format!(
            "model = \"softmax\"\n[data]\nname = \"{name}\"\n{more}\n[graph]\ntopology = \"ring:4\"\n[training]\nepochs = 2\n\
             batch_size = 4\n"
        );
        Config::parse(&text, &[]).unwrap()
    };
    let paths = DataPaths { files: file(""), data: PathBuf::new() };
    let experiment = Experiment::prepare(config("arrays:split.npz", "partition = \"shards:1\""), &paths).unwrap();
    assert_eq!(experiment.data.classes, 4);
    assert_eq!(experiment.data.augmentation, Augmentation::None);
    let augmented = config("arrays:split.npz", "augmentation = \"crop-and-flip\"\npartition = \"iid\"");
    let augmented = Experiment::prepare(augmented, &paths).unwrap();
    assert_eq!(augmented.data.augmentation, Augmentation::CropAndFlip);
    // The folder is not part of a run's identity: the data may be elsewhere on another machine.
    assert!(experiment.identity().contains("name = \"arrays:split.npz\"\n"), "{}", experiment.identity());
    let absolute = format!("images:{}", file("pictures").display());
    let mut summary = Trainer::new(config(&absolute, "image_size = 8\npartition = \"iid\"")).run().unwrap();
    assert!(summary.mean_accuracy >= 0.0);
    summary = Trainer::from_file(file("own.toml")).unwrap().run().unwrap();
    assert_eq!(summary.workers, 4);
    let refused = Experiment::prepare(config("digits", "image_size = 8"), &paths).unwrap_err().to_string();
    assert!(refused.contains("data.image_size is for `images:FOLDER`"), "{refused}");
    let refused = Experiment::prepare(config("images:", ""), &paths).unwrap_err().to_string();
    assert!(refused.contains("data `images:` is unknown"), "{refused}");
    let refused = Experiment::prepare(config("arrays:split.npz", "image_size = 8"), &paths).unwrap_err().to_string();
    assert!(refused.contains("arrays have the size that they have"), "{refused}");
}
