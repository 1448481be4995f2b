//! `upwash report`, `show` and `export` as their user types them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn upwash(folder: &Path, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_upwash"));
    program
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn said(folder: &Path, arguments: &[&str]) -> String {
    let output = upwash(folder, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_run_can_be_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), "[training]\nepochs = 2\n").unwrap();
    said(here, &["train", "c.toml", "--out", "run"]);
    let before = std::fs::read_dir(here.join("run")).unwrap().count();
    let shown = said(here, &["show", "run"]);
    assert!(
        shown.contains("worker  train loss  test accuracy"),
        "{shown}"
    );
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    said(here, &["report", "run", "-o", "r.html"]);
    let page = std::fs::read_to_string(here.join("r.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("AL-DSGD"));
    said(
        here,
        &["export", "run", "--csv", "r.csv", "--tensorboard", "tb"],
    );
    let table = std::fs::read_to_string(here.join("r.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 2 * 8);
    assert!(
        here.join("tb/run/worker-7/events.out.tfevents.0.upwash")
            .exists()
    );
    assert!(
        here.join("tb/run/all/events.out.tfevents.0.upwash")
            .exists()
    );
    // Nothing was added to the run.
    assert_eq!(std::fs::read_dir(here.join("run")).unwrap().count(), before);
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, word) in [
        (&["report", "."][..], "is no run"),
        (&["show", "nowhere"], "is no run"),
        (&["export", "."], "--csv FILE or --tensorboard DIR"),
    ] {
        let output = upwash(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
}
