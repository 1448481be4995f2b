//! Results on the disk, with errors that name the file.

use anyhow::{Context, Result, anyhow};
use std::fs::File;
use std::path::Path;
use upwash_report::Figure;

/// The text of a file.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A new file, or one that is empty now.
pub fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Makes a folder, and those above it.
pub fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}

/// Writes a file that is whole or not there.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    upwash::files::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// As SVG and as PNG.
pub fn write_figure(figure: &Figure, folder: &Path) -> Result<()> {
    let place = folder.join(&figure.name);
    let failed = |error| anyhow!("{}: {error}", figure.name);
    let svg = figure.svg().map_err(failed)?;
    write(&place.with_extension("svg"), svg.as_bytes())?;
    write(&place.with_extension("png"), &figure.png().map_err(failed)?)
}
