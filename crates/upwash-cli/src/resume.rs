//! `upwash train --resume`: the configuration of a run that goes on, with the overrides that it was started with.

use crate::{configs, files};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use upwash::config::Overrides;
use upwash::data::OwnData;
use upwash::experiment::{Experiment, INITIAL_MODEL_FILE};
use upwash::run::directory::{CONFIG_FILE, own_data};

/// The file in a run directory that keeps `--set` and `--unset`.
const OVERRIDES_FILE: &str = "overrides.toml";

/// Keeps overrides in the directory of a run, after those that are there.
pub(crate) fn remember(overrides: &Overrides, directory: &Path) -> Result<()> {
    if overrides.is_empty() {
        return Ok(());
    }
    let all = kept(directory)?.followed_by(overrides);
    let text = toml::to_string(&all).context("overrides cannot be written as TOML")?;
    files::write(&directory.join(OVERRIDES_FILE), text.as_bytes())
}

/// Prepares the experiment of the run in `directory`: from its own configuration, or from `config`, which must still
/// describe the same run.
pub(crate) fn prepare(config: Option<&Path>, directory: &Path, overrides: &Overrides) -> Result<Experiment> {
    let own = directory.join(CONFIG_FILE);
    let is_own = |path: &Path| files::is_stdin(path) || same_file(path, &own);
    match config.filter(|path| !is_own(path)) {
        Some(path) => configs::read(path, &remembered(directory)?.followed_by(overrides)),
        None => {
            let folder = directory.display();
            ensure!(
                own.is_file(),
                "{folder} holds no run to resume: run without --resume, or name the run's directory with --out"
            );
            let exists = |name: &String| OwnData::parse(name).is_some_and(|own| own.path().exists());
            let (known, moved): (Vec<String>, Vec<String>) = own_data(directory).into_iter().partition(exists);
            let set = known.into_iter().map(|name| format!("data.name={}", toml::Value::from(name))).collect();
            let located = Overrides { set, ..Overrides::default() };
            let experiment = configs::read(&own, &located.followed_by(overrides));
            match moved.first() {
                Some(name) => experiment.with_context(|| {
                    format!("the data of this run was {name}: if it has moved, add --set data.name=...")
                }),
                None => experiment,
            }
        }
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    let [one, other] = [one, other].map(|path| path.canonicalize().ok());
    one.is_some() && one == other
}

/// The overrides in the directory of a run; none if it has none.
pub(crate) fn kept(directory: &Path) -> Result<Overrides> {
    let path = directory.join(OVERRIDES_FILE);
    match path.exists() {
        true => toml::from_str(&files::read(&path)?).with_context(|| path.display().to_string()),
        false => Ok(Overrides::default()),
    }
}

/// What makes the configuration of a run out of the one that it was started from.
fn remembered(directory: &Path) -> Result<Overrides> {
    let mut overrides = kept(directory)?;
    // The model to start from is in the directory, whatever has become of the original.
    let model = directory.join(INITIAL_MODEL_FILE);
    if model.is_file() {
        overrides.set.push(from(&model)?);
    }
    Ok(overrides)
}

/// The assignment of `--from MODEL`, which is relative to the current folder and not to that of the configuration.
pub(crate) fn from(model: &Path) -> Result<String> {
    let path = std::path::absolute(model).with_context(|| model.display().to_string())?;
    let path = path.to_str().with_context(|| format!("{}: this name is not UTF-8", path.display()))?;
    Ok(format!("training.initial_model={}", toml::Value::from(path)))
}
