//! Results on the disk, with errors that name the file.

use anyhow::{Context, Result, anyhow};
use std::path::Path;
use upwash_report::Figure;

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
