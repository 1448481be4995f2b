//! The files of a run directory, except events and checkpoints.

use super::{CONFIG_FILE, DirectoryError, Result};
use crate::data::OwnData;
use crate::experiment::{Experiment, INITIAL_MODEL_FILE};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file in the directory of a run on own data that says where the data is. The configuration has only its last name, so
/// that a run can go on where the data has another place.
const DATA_FILE: &str = "data.toml";

/// Writes the configuration and, beside it, the files that it names, so that the run can be repeated from here.
pub(super) fn write_config(directory: &Path, config: &str, experiment: &Experiment) -> Result<()> {
    let path = directory.join(CONFIG_FILE);
    crate::files::replace(&path, config.as_bytes()).map_err(DirectoryError::io("write", &path))?;
    let config = &experiment.config;
    if OwnData::parse(&config.data.name).is_some() {
        let text = format!("# where the data was\ndata.name = {}\n", toml::Value::from(config.data.name.as_str()));
        let path = directory.join(DATA_FILE);
        crate::files::replace(&path, text.as_bytes()).map_err(DirectoryError::io("write", &path))?;
    }
    for file in config.graph.topology.file().into_iter().chain(config.model.file()) {
        let content = std::fs::read(file).map_err(DirectoryError::io("read", file))?;
        copy(&content, file, &directory.join(file.file_name().unwrap_or_default()))?;
    }
    match (&experiment.initial_model, &config.training.initial_model) {
        (Some(model), Some(file)) => copy(model.bytes(), file, &directory.join(INITIAL_MODEL_FILE)),
        _ => Ok(()),
    }
}

/// The name of the own data that the run in a directory was trained on, with its whole path. `None` for other data.
pub fn own_data(directory: &Path) -> Option<String> {
    let text = crate::files::read_text(&directory.join(DATA_FILE)).ok()?;
    let table = text.parse::<toml::Table>().ok()?;
    Some(table.get("data")?.get("name")?.as_str()?.to_owned())
}

/// Writes the content of a file that the configuration names into the directory.
fn copy(content: &[u8], file: &Path, to: &Path) -> Result<()> {
    match std::fs::read(to) {
        Ok(existing) if existing == content => Ok(()),
        Ok(_) => Err(DirectoryError::OtherFile { copy: to.to_owned(), file: file.to_owned() }),
        Err(_) => crate::files::replace(to, content).map_err(DirectoryError::io("write", to)),
    }
}

/// Removes a file if it exists.
pub(super) fn remove(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(DirectoryError::io("remove", file)(error)),
        _ => Ok(()),
    }
}

/// Renames a damaged file, so that it does not count as a checkpoint. Returns its new path.
pub(super) fn set_aside(file: &Path) -> Result<PathBuf> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let names = (1..).map(|number| match number {
        1 => format!("damaged-{name}"),
        _ => format!("damaged-{number}-{name}"),
    });
    let free = |path: &PathBuf| path.symlink_metadata().is_err();
    let path = names.map(|name| file.with_file_name(name)).find(free).unwrap_or_default();
    std::fs::rename(file, &path).map_err(DirectoryError::io("rename", file))?;
    Ok(path)
}
