//! The provenance of a run: the file `run.json` in its directory.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;
use upwash_cli::{COMMIT, files};

/// The commit, the engine and the number of parallel runs that computed a run; and the earlier ones if it was resumed
/// elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Provenance {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    before: Vec<Provenance>,
    commit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_runs: Option<u64>,
    version: String,
}

impl Provenance {
    const FILE: &str = "run.json";

    /// The provenance of runs of this program.
    pub(crate) fn new(engine: String, parallel_runs: usize) -> Self {
        Self {
            before: vec![],
            commit: COMMIT.into(),
            engine: Some(engine),
            parallel_runs: Some(parallel_runs as u64),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// Reads the provenance of a run; empty if it was not recorded.
    pub(crate) fn read(directory: &Path) -> Self {
        let text = std::fs::read_to_string(directory.join(Self::FILE)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Writes the provenance. For a resumed run, the earlier one is kept in `before`.
    pub(crate) fn write(mut self, directory: &Path, is_resumed: bool) -> Result<()> {
        if is_resumed {
            let mut last = Self::read(directory);
            let mut before = std::mem::take(&mut last.before);
            if last != self && last != Self::default() {
                before.push(last);
            }
            self.before = before;
        }
        let text = serde_json::to_string_pretty(&self)? + "\n";
        files::write(&directory.join(Self::FILE), text.as_bytes())
    }

    /// The engines that computed the run, oldest first.
    pub(crate) fn engines(&self) -> Vec<String> {
        let all = self.before.iter().chain([self]);
        all.filter_map(|entry| entry.engine.clone()).collect()
    }

    /// The number of runs at the same time, including this one.
    pub(crate) fn parallel_runs(&self) -> u64 {
        self.parallel_runs.unwrap_or(1).max(1)
    }

    /// Whether the number of parallel runs was the same from start to end.
    pub(crate) fn has_constant_parallel_runs(&self) -> bool {
        let mut before = self.before.iter();
        before.all(|entry| entry.parallel_runs() == self.parallel_runs())
    }
}
