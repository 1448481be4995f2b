//! Helpers shared by the tests of the program.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use upwash_testkit::program::Program;

pub const REPRODUCE: Program = Program::new(env!("CARGO_BIN_EXE_upwash-reproduce"));

/// The folders in a folder, sorted by name.
pub fn folders(path: &Path) -> Vec<PathBuf> {
    let inside = std::fs::read_dir(path).unwrap();
    let paths = inside.map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

pub fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}
