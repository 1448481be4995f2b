//! File access with errors that name the file.

use anyhow::{Context, Result, anyhow, ensure};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use upwash_report::Figure;

/// Reads a text file; - is standard input.
pub fn read(path: &Path) -> Result<String> {
    let cannot = || format!("cannot read {}", name(path));
    let bytes = match is_stdin(path) {
        true => {
            let bytes = stdin().with_context(cannot)?;
            ensure!(!bytes.is_empty(), "cannot read standard input: it is empty, and a file or a pipe was expected");
            bytes
        }
        false => {
            ensure!(!path.is_dir(), "{} is a folder, and a file was expected: name the file in it", path.display());
            std::fs::read(path).with_context(cannot)?
        }
    };
    String::from_utf8(bytes).ok().with_context(|| format!("{}: this is not a text file", name(path)))
}

/// Standard input, however often it is asked for: a sweep reads its configuration once for each run.
fn stdin() -> std::io::Result<Vec<u8>> {
    static READ: Mutex<Option<Vec<u8>>> = Mutex::new(None);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bytes) = &*read {
        return Ok(bytes.clone());
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    *read = Some(bytes.clone());
    Ok(bytes)
}

/// Whether a path stands for standard input.
pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A path as messages name it.
pub fn name(path: &Path) -> String {
    match is_stdin(path) {
        true => "standard input".into(),
        false => path.display().to_string(),
    }
}

/// Creates a file, or truncates an existing one.
pub fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a folder and its parents.
pub fn make_folder(path: &Path) -> Result<()> {
    upwash::files::create_directory(path).with_context(|| format!("cannot create {}", path.display()))
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
