//! Files that are either whole or not there.

use std::io::{Result, Write};
use std::path::Path;

/// Writes `content` beside `path` first, and renames it when it is complete and on the disk. What is
/// there already and is no plain file (a device, a pipe) is written to as it is; a link is followed.
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

/// The same for what is too large to be put together first: `content` writes it, in pieces of any
/// size.
pub fn write_by(path: &Path, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if path.exists() && !path.is_file() {
        return content(&mut std::fs::File::options().write(true).open(path)?);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = temporary().tempfile_in(folder)?;
    let mut buffer = std::io::BufWriter::with_capacity(1 << 20, &mut file);
    content(&mut buffer)?;
    buffer.flush()?;
    drop(buffer);
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The rename is safe only when the folder is, where the system can say so.
    if let Ok(folder) = std::fs::File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Removes what was being written into a folder when its process was killed. Nobody else may be writing there.
pub fn remove_unfinished(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(BEGUN)) && entry.path().is_file() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// How the names of files begin that are not complete.
const BEGUN: &str = ".unfinished-";

fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(BEGUN);
    // Temporary files are their owner's alone by default; a result is for whom the umask allows.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder
}
