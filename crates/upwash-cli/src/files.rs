//! File access with errors that name the file.

use anyhow::{Context, Result, anyhow};
use std::fs::File;
use std::path::Path;
use upwash_report::Figure;

/// Reads a text file.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Creates a file, or truncates an existing one.
pub fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a folder and its parents.
pub fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

/// Writes a file atomically: after an error, the old content is unchanged.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    upwash::files::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a figure as SVG and as PNG.
pub fn write_figure(figure: &Figure, folder: &Path) -> Result<()> {
    let path = folder.join(&figure.name);
    let failed = |error| anyhow!("{}: {error}", figure.name);
    let svg = figure.svg().map_err(failed)?;
    write(&path.with_extension("svg"), svg.as_bytes())?;
    write(&path.with_extension("png"), &figure.png().map_err(failed)?)
}
