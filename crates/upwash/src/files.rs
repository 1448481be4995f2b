//! Atomic writes: a file is either complete or absent.

use std::io::{Result, Write};
use std::path::Path;

/// Writes `content` to a temporary file beside `path`, and renames that once it is complete and on disk. If `path`
/// exists and is not a regular file (a device, a pipe), writes to it directly. Follows symbolic links.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// upwash::files::write(&folder.path().join("table.txt"), b"1 2 3")?;
/// assert_eq!(std::fs::read(folder.path().join("table.txt"))?, b"1 2 3");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    write_by(path, |file| file.write_all(content))
}

/// Like [`write()`], for content that is too large to assemble in memory: `content` writes it in pieces of any size.
pub fn write_by(path: &Path, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if path.exists() && !path.is_file() {
        return content(&mut std::fs::File::options().write(true).open(path)?);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = temporary_file_builder().tempfile_in(folder)?;
    let mut buffer = std::io::BufWriter::with_capacity(1 << 20, &mut file);
    content(&mut buffer)?;
    buffer.flush()?;
    drop(buffer);
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The rename is durable only when the folder is synced, on systems that support that.
    if let Ok(folder) = std::fs::File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Removes files that were being written into a folder when their process was killed. No other process may write there.
pub fn remove_unfinished(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(UNFINISHED_PREFIX)) && entry.path().is_file() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The prefix of the names of unfinished files.
const UNFINISHED_PREFIX: &str = ".unfinished-";

fn temporary_file_builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED_PREFIX);
    // By default, only their owner can read temporary files. Results follow the umask.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder
}
