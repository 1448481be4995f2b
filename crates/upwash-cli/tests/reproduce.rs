//! `upwash reproduce` calls another program.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program in a folder of its own: beside the built one, the other may lie already.
fn alone(folder: &Path) -> PathBuf {
    let program = folder.join("upwash");
    let built = env!("CARGO_BIN_EXE_upwash");
    std::fs::hard_link(built, &program).or_else(|_| std::fs::copy(built, &program).map(|_| ())).unwrap();
    program
}

fn reproduce(program: &Path, path: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.env("PATH", path).arg("reproduce").args(arguments);
    command.output().unwrap()
}

/// Says what it was asked for, and ends with 3.
fn write_script(folder: &Path, says: &str) {
    let script = folder.join("upwash-reproduce");
    let text = format!("#!/bin/sh\necho {says} \"$@\"\nexit 3\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn it_is_found_beside_this_program_or_on_the_path() {
    let (own, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = alone(own.path());
    let output = reproduce(&program, path.path(), &["table2"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("cargo build --release -p upwash-paper"), "{error}");
    for (folder, says) in [(&path, "path"), (&own, "beside")] {
        write_script(folder.path(), says);
        let arguments = ["table2", "--quick", "--help", "-x", "a b"];
        let output = reproduce(&program, path.path(), &arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, format!("{says} table2 --quick --help -x a b\n"));
        assert_eq!(output.status.code(), Some(3));
        // Its own help, too.
        let output = reproduce(&program, path.path(), &["--help"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, format!("{says} --help\n"));
    }
}
