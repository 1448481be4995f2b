//! `upwash reproduce` runs `upwash-reproduce`.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Copies the program into a folder without `upwash-reproduce`, which may exist next to the built program.
fn copy_program(folder: &Path) -> PathBuf {
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

/// Writes an `upwash-reproduce` that prints `prefix` and its arguments and exits with code 3.
fn write_script(folder: &Path, prefix: &str) {
    let script = folder.join("upwash-reproduce");
    let text = format!("#!/bin/sh\necho {prefix} \"$@\"\nexit 3\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn program_is_found_next_to_upwash_or_on_the_path() {
    let (own, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = copy_program(own.path());
    let output = reproduce(&program, path.path(), &["table2"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("cargo build --release -p upwash-paper"), "{error}");
    for (folder, prefix) in [(&path, "path"), (&own, "beside")] {
        write_script(folder.path(), prefix);
        let arguments = ["table2", "--quick", "--help", "-x", "a b"];
        let output = reproduce(&program, path.path(), &arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, format!("{prefix} table2 --quick --help -x a b\n"));
        assert_eq!(output.status.code(), Some(3));
        // Its help, too.
        let output = reproduce(&program, path.path(), &["--help"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, format!("{prefix} --help\n"));
    }
}
