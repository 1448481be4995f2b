//! Files that are either whole or not there.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;

/// Writes `content` beside `path` first and renames it when it is complete. What is there already
/// and is no plain file (a device, a pipe) is written to as it is; a link is followed.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if path.exists() && !path.is_file() {
        return std::fs::write(path, content).with_context(cannot);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = temporary().tempfile_in(folder).with_context(cannot)?;
    file.write_all(content).with_context(cannot)?;
    file.as_file().sync_all().with_context(cannot)?;
    file.persist(path).with_context(cannot)?;
    Ok(())
}

/// Temporary files are their owner's alone by default; a result is for whom the umask allows.
#[cfg(unix)]
fn temporary() -> tempfile::Builder<'static, 'static> {
    use std::os::unix::fs::PermissionsExt;
    let mut builder = tempfile::Builder::new();
    builder.permissions(std::fs::Permissions::from_mode(0o666));
    builder
}

#[cfg(not(unix))]
fn temporary() -> tempfile::Builder<'static, 'static> {
    tempfile::Builder::new()
}
