//! What shells, editors and manuals get from the program.

#![allow(clippy::unwrap_used)]

mod common;

use common::{error, said, upwash};

#[test]
fn completions_and_manual_pages_know_every_command() {
    let folder = tempfile::tempdir().unwrap();
    for (shell, sign) in [("bash", "complete -F"), ("zsh", "#compdef upwash"), ("fish", "complete -c upwash")] {
        let script = said(folder.path(), &["completions", shell]);
        assert!(script.contains(sign) && script.contains("topology"), "{shell}");
    }
    let text = said(folder.path(), &["man", "pages/man1"]);
    assert!(text.contains("pages/man1"), "{text}");
    for page in ["upwash.1", "upwash-train.1", "upwash-topology-analyze.1", "upwash-config-check.1"] {
        let page = std::fs::read_to_string(folder.path().join("pages/man1").join(page)).unwrap();
        assert!(page.contains(".SH NAME"), "{page}");
    }
}

#[test]
fn versions_tell_the_commit_and_the_features() {
    let folder = tempfile::tempdir().unwrap();
    let text = said(folder.path(), &["--version"]);
    assert!(text.starts_with("upwash 0.") && text.contains("commit: ") && text.contains("features: "), "{text}");
    assert_eq!(said(folder.path(), &["-V"]).lines().count(), 1);
}

#[test]
fn configurations_are_shown_whole_and_checked_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("good.toml", "seed = 7\n");
    write("bad.toml", "[training]\nepoch = 3\n");
    write("worse.toml", "[graph]\ntopology = \"ring:2\"\n[algorithm]\nname = \"al-dsdg\"\n");
    let shown = said(folder.path(), &["config", "show", "good.toml", "--set", "training.epochs=3"]);
    assert!(shown.contains("seed = 7") && shown.contains("epochs = 3") && shown.contains("momentum = 0.9"), "{shown}");
    write("shown.toml", &shown);
    assert_eq!(said(folder.path(), &["config", "show", "shown.toml"]), shown);
    assert!(said(folder.path(), &["config", "check", "good.toml"]).contains("good.toml: ok: AL-DSGD"));
    let errors = error(folder.path(), &["config", "check", "bad.toml", "good.toml", "worse.toml"]);
    assert!(errors.contains("did you mean `epochs`") && errors.contains("worse.toml"), "{errors}");
}

#[test]
fn quiet_leaves_results_and_options_of_other_engines_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.toml"), "[training]\nepochs = 1\n").unwrap();
    let output = upwash(folder.path(), &["--quiet", "train", "run.toml", "--out", "r"]);
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("    mean  "));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    for option in [&["--eager"][..], &["--precision", "f32"], &["--streams", "2"]] {
        let words: Vec<&str> = ["train", "run.toml", "--device", "cpu"].iter().chain(option).copied().collect();
        let text = error(folder.path(), &words);
        assert!(text.contains(option[0]) && text.contains("option of the GPU engine"), "{text}");
    }
}
