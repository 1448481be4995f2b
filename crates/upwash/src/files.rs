//! Atomic writes, so that a file is either complete or absent, and reads that neither follow links nor wait for pipes.
//!
//! A run directory may have been written by somebody else. There, files are read with [`open_regular`] and written with
//! [`replace`], so that a link in it cannot lead to files elsewhere.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::path::Path;

/// The most bytes of a file that holds a configuration, a summary or a line of events.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Creates a directory and its parents. If a file is in the way, the error names it, with a remedy.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("notes.txt"), "")?;
/// let error = upwash::files::create_directory(&folder.path().join("notes.txt/run")).unwrap_err();
/// assert!(error.to_string().ends_with("notes.txt is a file: choose another directory"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn create_directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|error| match path.ancestors().find(|ancestor| ancestor.exists()) {
        Some(file) if !file.is_dir() => {
            let what = format!("{} is a file: choose another directory", file.display());
            Error::new(error.kind(), what)
        }
        _ => error,
    })
}

/// The error of writing to `path`, with a remedy if there cannot be such a file.
fn explained(path: &Path, error: Error) -> Error {
    let what = match folder_of(path) {
        _ if path.is_dir() => "this is a folder: name a file in it".into(),
        folder if !folder.exists() => {
            format!("there is no folder {}: create it, or choose another one", folder.display())
        }
        _ => return error,
    };
    Error::new(error.kind(), what)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes `content` to a temporary file beside `path`, and renames that once it is complete and on disk. If `path`
/// exists and is not a regular file (a device, a pipe), writes to it directly. Follows symbolic links; [`replace`] does
/// not.
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
        let file = File::options().write(true).open(path);
        return content(&mut file.map_err(|error| explained(path, error))?);
    }
    replace_by(path, content)
}

/// Like [`write()`], but replaces whatever is at `path`: a symbolic link there is replaced and not followed.
///
/// ```
/// # #[cfg(unix)] {
/// let folder = tempfile::tempdir()?;
/// let [target, link] = ["target", "link"].map(|name| folder.path().join(name));
/// std::fs::write(&target, "old")?;
/// std::os::unix::fs::symlink(&target, &link)?;
/// upwash::files::replace(&link, b"new")?;
/// assert_eq!((std::fs::read(&target)?, std::fs::read(&link)?), (b"old".into(), b"new".into()));
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    replace_by(path, |file| file.write_all(content))
}

/// Like [`replace()`], for content that is too large to assemble in memory.
pub fn replace_by(path: &Path, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let folder = folder_of(path);
    // Results follow the umask. Unlike `tempfile_in`, this keeps the system's error code.
    let create = |path: &Path| File::options().write(true).create_new(true).open(path);
    let file = tempfile::Builder::new().prefix(UNFINISHED_PREFIX).make_in(folder, create);
    let mut file = file.map_err(|error| explained(path, error))?;
    let mut buffer = std::io::BufWriter::with_capacity(1 << 20, file.as_file_mut());
    content(&mut buffer)?;
    buffer.flush()?;
    drop(buffer);
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The rename is durable only when the folder is synced, on systems that support that.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Opens an existing regular file. A symbolic link is not followed. A pipe or a device is refused without waiting for
/// it.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// assert!(upwash::files::open_regular(folder.path()).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn open_regular(path: &Path) -> Result<File> {
    open_regular_with(OpenOptions::new().read(true), path)
}

/// Like [`open_regular`], with options of the caller, who may create the file.
pub fn open_regular_with(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let is_link = || path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    let link = || Error::new(ErrorKind::InvalidInput, "is a symbolic link, which is not followed");
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    }
    #[cfg(not(unix))]
    if is_link() {
        return Err(link());
    }
    let file = options.open(path).map_err(|error| if is_link() { link() } else { error })?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::new(ErrorKind::InvalidInput, "is not a regular file")),
    }
}

/// Reads a regular file of at most `limit` bytes. Like [`open_regular`], does not follow a symbolic link.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(Error::new(ErrorKind::InvalidData, format!("is longer than {limit} bytes"))),
        false => Ok(bytes),
    }
}

/// Reads a regular file of text: a configuration or a summary.
pub fn read_text(path: &Path) -> Result<String> {
    let text = String::from_utf8(read_regular(path, MAX_TEXT_BYTES)?);
    text.map_err(|_| Error::new(ErrorKind::InvalidData, "is not UTF-8 text"))
}

/// Text from a file, without control characters other than tabs: a terminal would interpret them.
///
/// ```
/// assert_eq!(upwash::files::printable("D-PSGD\u{1b}[2J"), "D-PSGD\u{fffd}[2J");
/// assert_eq!(upwash::files::printable("run\u{202e}gnp.exe"), "run\u{fffd}gnp.exe");
/// ```
pub fn printable(text: &str) -> String {
    // These reverse the order of the text that follows, so that a name can pose as another one.
    let is_override = |character| matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_harmful = |character: char| (character.is_control() && character != '\t') || is_override(character);
    text.chars().map(|character| if is_harmful(character) { char::REPLACEMENT_CHARACTER } else { character }).collect()
}

/// Whether an error may pass by itself: the disk or a quota is full, or too many files are open.
pub fn is_transient(error: &Error) -> bool {
    let is_exhausted = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    #[cfg(unix)]
    let is_exhausted = is_exhausted || {
        use rustix::io::Errno;
        let code = error.raw_os_error();
        [Errno::MFILE, Errno::NFILE].iter().any(|errno| code == Some(errno.raw_os_error()))
    };
    is_exhausted
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
