//! Runs the example.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use upwash::run::{Status, Summary};

#[test]
fn own_module_trains_and_appears_in_the_config() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    // Cargo builds tests into `deps`, and examples into its sibling folder `examples`.
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    let output = Command::new(path.join("examples/own_module")).arg(&run).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("model = \"custom:Net\""), "{config}");
    let summary = Summary::read(&run).unwrap().unwrap();
    assert_eq!(summary.status, Status::Finished);
    assert!(summary.mean_accuracy > 0.85, "{}", summary.mean_accuracy);
}
