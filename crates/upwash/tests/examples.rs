//! Runs the examples and checks the runs that they write.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;
use upwash::run::{Status, Summary};

fn example(name: &str) -> Command {
    // Cargo builds tests into `deps`, and examples into its sibling folder `examples`.
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    Command::new(path.join("examples").join(name))
}

#[test]
fn user_defined_parts_train_and_appear_in_the_config() {
    for (name, key, least) in [
        ("own_network", "model = \"custom:small-resnet\"", 0.85),
        ("own_algorithm", "name = \"custom:FollowTheBest(0.5)\"", 0.9),
        ("own_dataset", "name = \"custom:stripes\"", 0.9),
        ("own_optimizer", "optimizer = \"custom:adagrad\"", 0.85),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let output = example(name).arg(&run).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
        assert!(config.contains(key), "{name}: {config}");
        let summary = Summary::read(&run).unwrap().unwrap();
        assert_eq!(summary.status, Status::Finished, "{name}");
        assert!(summary.mean_accuracy > least, "{name}: {}", summary.mean_accuracy);
        assert!(run.join("model.safetensors").exists(), "{name}");
        let lines = std::fs::read_to_string(format!("../../examples/{name}.rs")).unwrap();
        assert!(lines.lines().count() <= 40, "{name} has more than 40 lines");
    }
}

#[test]
fn user_defined_loop_drives_a_node() {
    let output = example("own_loop").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("12 rounds"), "{text}");
}
