//! Who computed a run: `run.json` in its directory.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;
use upwash_cli::{COMMIT, files};

/// A commit, an engine and how many ran at the same time; and those before, where a run went on elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Provenance {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    before: Vec<Provenance>,
    commit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<String>,
    #[serde(rename = "together", skip_serializing_if = "Option::is_none")]
    parallel_runs: Option<u64>,
    version: String,
}

impl Provenance {
    const FILE: &str = "run.json";

    /// This program's.
    pub(crate) fn new(engine: String, parallel_runs: usize) -> Self {
        Self {
            before: vec![],
            commit: COMMIT.into(),
            engine: Some(engine),
            parallel_runs: Some(parallel_runs as u64),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// What is known; nothing where that was not kept.
    pub(crate) fn read(directory: &Path) -> Self {
        let text = std::fs::read_to_string(directory.join(Self::FILE)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Writes it down, and those before, where the run goes on.
    pub(crate) fn write(mut self, directory: &Path, goes_on: bool) -> Result<()> {
        if goes_on {
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

    /// All that computed it, the first one first.
    pub(crate) fn engines(&self) -> Vec<String> {
        let parts = self.before.iter().chain([self]);
        parts.filter_map(|part| part.engine.clone()).collect()
    }

    /// How many ran at the same time, with it.
    pub(crate) fn parallel_runs(&self) -> u64 {
        self.parallel_runs.unwrap_or(1).max(1)
    }

    /// Whether that was the same from its start to its end.
    pub(crate) fn is_even(&self) -> bool {
        let mut before = self.before.iter();
        before.all(|part| part.parallel_runs() == self.parallel_runs())
    }
}
