//! Where the program looks for libtorch, if it is built with it; and which commit it is built from, where that can be
//! known: results are kept with it.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = std::env::var("DEP_UPWASH_TORCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}");
    }
    let commit = git("describe --always --dirty --abbrev=40 --exclude=*");
    let commit = commit.unwrap_or_else(|| "unknown".into());
    println!("cargo:rustc-env=UPWASH_COMMIT={commit}");
    // Sources may be edited after a commit.
    println!("cargo:rerun-if-changed=..");
    if let Some(path) = git("rev-parse --git-path logs/HEAD") {
        println!("cargo:rerun-if-changed={path}");
    }
}

fn git(arguments: &str) -> Option<String> {
    let output = Command::new("git").args(arguments.split(' ')).output();
    let output = output.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
