//! Loads data sets, and caches one for consecutive experiments.

use super::ExperimentError;
use crate::config::DataConfig;
use crate::data::{Dataset, OwnData, Partition, Source, StoreError, Synthetic, digits};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The data set that was loaded last. The next experiment reuses it if it needs the same data.
#[derive(Clone, Debug, Default)]
pub struct DatasetCache {
    last: Option<(CacheKey, Arc<Dataset>)>,
}

/// The folder of a data set, and its configuration without the partition, which does not change the data.
type CacheKey = (PathBuf, DataConfig);

/// The folders from which files are read.
#[derive(Clone, Debug, Default)]
pub struct DataPaths {
    /// The folder of the configuration. File names in the configuration are relative to it.
    pub files: PathBuf,
    /// The folder of the data sets, each of which is in a folder with its name.
    pub data: PathBuf,
}

impl DataPaths {
    /// The current folder for files, and for data sets the folder to which `upwash data get` writes: `$UPWASH_DATA`, or
    /// else the user's data folder. Without either, only data sets that need no files are available.
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
    /// The data set that `config` names, from the cache if it is there.
    pub(super) fn data(&mut self, config: &DataConfig, folder: &Path) -> Result<Arc<Dataset>, ExperimentError> {
        let key = (folder.to_owned(), DataConfig { partition: Partition::Balanced, ..config.clone() });
        if let Some((cached, data)) = &self.last
            && *cached == key
        {
            return Ok(Arc::clone(data));
        }
        let data = adjusted(Arc::new(load(config, folder)?), config);
        self.last = Some((key, Arc::clone(&data)));
        Ok(data)
    }
}

/// Truncates a data set to the configured numbers of examples, and sets the configured augmentation.
pub(super) fn adjusted(mut data: Arc<Dataset>, config: &DataConfig) -> Arc<Dataset> {
    let [train, test] = [config.train_examples, config.test_examples].map(|n| n.unwrap_or(usize::MAX));
    if train < data.train.len() || test < data.test.len() {
        let data = Arc::make_mut(&mut data);
        data.train.truncate(train);
        data.test.truncate(test);
    }
    if let Some(augmentation) = config.augmentation
        && augmentation != data.augmentation
    {
        Arc::make_mut(&mut data).augmentation = augmentation;
    }
    data
}

/// Loads the data set that `config` names, from `folder` if it is stored there, without the limits on its size.
pub fn load(config: &DataConfig, folder: &Path) -> Result<Dataset, ExperimentError> {
    let name = &config.name;
    if let Some(own) = OwnData::parse(name) {
        return Ok(own.load(config.image_size)?);
    }
    if config.image_size.is_some() {
        let what = "data.image_size is for `images:FOLDER`: leave it out";
        return Err(ExperimentError::Conflict(what.into()));
    }
    match name.split_once(':').unwrap_or((name.as_str(), "")) {
        ("digits", "") => Ok(digits()),
        ("synthetic", options) => {
            let set = Synthetic::parse(options)?;
            match crate::memory::shortage(set.bytes()) {
                None => Ok(set.build()),
                Some(shortage) => Err(ExperimentError::Conflict(format!(
                    "data.name = \"{name}\" needs {shortage}: use fewer or smaller images"
                ))),
            }
        }
        _ if folder.as_os_str().is_empty() => {
            Source::named(name)?;
            Err(StoreError::NoFolder.into())
        }
        _ => Ok(Source::named(name)?.load(folder)?),
    }
}
