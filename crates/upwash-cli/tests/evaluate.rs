//! `upwash evaluate` on the command line.
#![allow(clippy::unwrap_used)]

mod common;

use common::{error, said, summary};
use std::path::Path;

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../upwash/tests/data").join(name);
    path.canonicalize().unwrap().display().to_string()
}

#[test]
fn model_of_a_run_is_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), "[training]\nepochs = 3\n").unwrap();
    said(here, &["train", "c.toml", "--out", "run"]);
    let text = said(here, &["evaluate", "run", "--confusion", "m.csv"]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let accuracy = 100.0 * summary(&here.join("run"))["averaged_model_accuracy"].as_f64().unwrap();
    assert!(text.contains(&format!("accuracy {accuracy:.2} %")), "{text}");
    assert!(text.contains("on 355 test images of digits"), "{text}");
    let matrix = std::fs::read_to_string(here.join("m.csv")).unwrap();
    let rows: Vec<Vec<u64>> = matrix
        .lines()
        .skip(1)
        .map(|line| line.split(',').skip(1).map(|count| count.parse().unwrap()).collect())
        .collect();
    let right: u64 = (0..10).map(|class| rows[class][class]).sum();
    assert!((100.0 * right as f64 / 355.0 - accuracy).abs() < 1e-9, "{matrix}");
    let all = said(here, &["evaluate", "run/model.safetensors", "--data", "digits", "--split", "all"]);
    assert!(all.contains("on 1797 training and test images of digits"), "{all}");
    let pictures = format!("images:{}", data("pictures"));
    let refused = error(here, &["evaluate", "run", "--data", &pictures]);
    assert!(refused.contains("takes images of shape 1x8x8 (channels, height, width), not 3x8x8"), "{refused}");
    for (args, words) in [
        (&["evaluate", "nowhere"][..], "nowhere does not exist"),
        (&["evaluate", "."], "there is no model: a run writes one when it ends"),
        (&["evaluate", "c.toml"], "is not a safetensors file"),
        (&["evaluate", "run", "--data", "digit"], "data `digit` is unknown"),
        (&["evaluate", "run", "--data", "images:nowhere"], "nowhere: there is no such folder"),
    ] {
        let refused = error(here, args);
        assert!(refused.contains(words), "{args:?}: {refused}");
    }
}

#[test]
fn classes_of_own_data_are_matched_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let pictures = data("pictures");
    let config = format!(
        "model = \"softmax\"\ndata = {{ name = \"images:{pictures}\", image_size = 8, partition = \"iid\" }}\n\
         graph.topology = \"ring:2\"\ntraining = {{ epochs = 30, batch_size = 4 }}\n"
    );
    std::fs::write(here.join("c.toml"), config).unwrap();
    said(here, &["train", "c.toml", "--out", "run"]);
    // The run says where its data was, also to a later command.
    said(here, &["train", "--resume", "--out", "run", "--epochs", "31"]);
    let text = said(here, &["evaluate", "run", "--split", "train"]);
    assert!(text.contains("on 9 training images of images:pictures"), "{text}");
    std::fs::copy(here.join("run/model.safetensors"), here.join("model.safetensors")).unwrap();
    let refused = error(here, &["evaluate", "model.safetensors"]);
    assert!(refused.contains("was trained on images:pictures: say where data is, with --data"), "{refused}");
    let name = format!("images:{pictures}");
    let text = said(here, &["evaluate", "run", "--data", &name, "--split", "train"]);
    assert!(text.contains("on 9 training images of images:pictures") && text.contains("1 dog"), "{text}");
    // The same pictures in a folder that has other classes first: `ape` is unknown, and `dog` is still class 1.
    for class in ["dog", "cow"] {
        std::fs::create_dir_all(here.join("new").join(class)).unwrap();
    }
    for file in std::fs::read_dir(format!("{pictures}/train/dog")).unwrap() {
        let file = file.unwrap().path();
        for class in ["dog", "cow"] {
            std::fs::copy(&file, here.join("new").join(class).join(file.file_name().unwrap())).unwrap();
        }
    }
    let refused = error(here, &["evaluate", "run", "--data", "images:new"]);
    assert!(refused.contains("the model has no class `cow`: it has cat, dog"), "{refused}");
    std::fs::rename(here.join("new/cow"), here.join("new/cat")).unwrap();
    let text = said(here, &["evaluate", "run", "--data", "images:new", "--split", "all"]);
    assert!(text.contains("on 10 training and test images of images:new"), "{text}");
    // Every picture is there as a cat and as a dog, so one half is right.
    assert!(text.contains("accuracy 50.00 %"), "{text}");
}
