//! Where data comes from, and data that several experiments share.

use super::ExperimentError;
use crate::config::DataConfig;
use crate::data::{Dataset, Source, StoreError, Synthetic, digits};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Data that was read last, for the next experiment that asks for the same.
#[derive(Clone, Debug, Default)]
pub struct DatasetCache {
    last: Option<(Asked, Arc<Dataset>)>,
}

/// A folder, a name, and how many images to train and to test on.
type Asked = (PathBuf, String, [Option<usize>; 2]);

/// Where files are.
#[derive(Clone, Debug, Default)]
pub struct DataPaths {
    /// Those that the configuration names: the configuration's own folder.
    pub files: PathBuf,
    /// Data sets, each in a folder of its name.
    pub data: PathBuf,
}

impl DataPaths {
    /// Files from the current folder, and data sets from where `upwash data get` puts them:
    /// `$UPWASH_DATA`, else the user's data folder. Where there is neither, only data that needs no
    /// files can be had.
    pub fn standard() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let below =
            |variable: Option<std::ffi::OsString>, path: &str| variable.map(|folder| PathBuf::from(folder).join(path));
        let data = variable("UPWASH_DATA")
            .map(PathBuf::from)
            .or_else(|| below(variable("XDG_DATA_HOME"), "upwash"))
            .or_else(|| below(variable("HOME"), ".local/share/upwash"))
            .unwrap_or_default();
        let files = PathBuf::new();
        Self { files, data }
    }
}

impl DatasetCache {
    /// The data that is asked for: what is here, if it is that.
    pub(super) fn data(&mut self, asked: &DataConfig, folder: &Path) -> Result<Arc<Dataset>, ExperimentError> {
        // How it is shared out is not the data's affair.
        let key = (folder.to_owned(), asked.name.clone(), [asked.train_examples, asked.test_examples]);
        if let Some((known, data)) = &self.last
            && *known == key
        {
            return Ok(Arc::clone(data));
        }
        let data = shortened(Arc::new(load(&asked.name, folder)?), asked);
        self.last = Some((key, Arc::clone(&data)));
        Ok(data)
    }
}

/// As much of a data set as is asked for.
pub(super) fn shortened(mut data: Arc<Dataset>, asked: &DataConfig) -> Arc<Dataset> {
    let [train, test] = [asked.train_examples, asked.test_examples].map(|n| n.unwrap_or(usize::MAX));
    if train < data.train.len() || test < data.test.len() {
        let data = Arc::make_mut(&mut data);
        data.train.truncate(train);
        data.test.truncate(test);
    }
    data
}

/// A data set by its name.
fn load(name: &str, folder: &Path) -> Result<Dataset, ExperimentError> {
    match name.split_once(':').unwrap_or((name, "")) {
        ("digits", "") => Ok(digits()),
        ("synthetic", options) => Ok(Synthetic::parse(options)?.build()),
        _ if folder.as_os_str().is_empty() => {
            Source::named(name)?;
            Err(StoreError::NoFolder.into())
        }
        _ => Ok(Source::named(name)?.load(folder)?),
    }
}
