//! Configurations as commands read them: from a file or standard input, with `--set` and `--unset`.

use crate::files;
use crate::output::causes;
use anyhow::{Context, Result, anyhow};
use std::path::Path;
use upwash::config::{Config, Overrides};
use upwash::experiment::{DataPaths, DatasetCache, Experiment};

/// `--set` and `--unset`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OverrideArgs {
    /// Replace a value of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Remove a key of the configuration, so that its default applies
    #[arg(long, value_name = "KEY")]
    unset: Vec<String>,
}

impl OverrideArgs {
    /// The overrides that the arguments ask for.
    pub fn overrides(&self) -> Overrides {
        Overrides { set: self.set.clone(), unset: self.unset.clone() }
    }
}

/// Reads a configuration, applies the overrides and prepares the experiment.
pub fn read(path: &Path, overrides: &Overrides) -> Result<Experiment> {
    read_next(path, overrides, &mut DatasetCache::default())
}

/// As [`read`], for one of several configurations that share data sets.
pub fn read_next(path: &Path, overrides: &Overrides, cache: &mut DatasetCache) -> Result<Experiment> {
    let config = parse(path, overrides)?;
    let paths = DataPaths { files: path.parent().unwrap_or(Path::new("")).to_owned(), ..DataPaths::standard() };
    let experiment = Experiment::prepare_next(config, &paths, cache);
    experiment.with_context(|| files::name(path))
}

/// Reads a configuration and applies the overrides, without loading the data and graphs that it names.
pub fn parse(path: &Path, overrides: &Overrides) -> Result<Config> {
    let is_missing = !files::is_stdin(path) && !path.exists();
    let text = files::read(path).map_err(|error| match is_missing {
        true => anyhow!("{}; `upwash init` writes a configuration to start from", causes(&error)),
        false => error,
    })?;
    let config = Config::parse_with(&text, overrides);
    config.with_context(|| files::name(path))
}
