//! Files that are either whole or not there.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;

/// Writes `content` beside `path` first and renames it when it is complete.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let cannot = || format!("cannot write {}", path.display());
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(cannot)?;
    file.write_all(content).with_context(cannot)?;
    file.as_file().sync_all().with_context(cannot)?;
    allow_reading(file.as_file()).with_context(cannot)?;
    file.persist(path).with_context(cannot)?;
    Ok(())
}

/// Temporary files are their owner's alone; a result is for all to read.
#[cfg(unix)]
fn allow_reading(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn allow_reading(_: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}
