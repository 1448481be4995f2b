//! Results on the disk, with errors that name the file.

use anyhow::{Context, Result};
use std::path::Path;

/// Writes a file that is whole or not there.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    upwash::files::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
