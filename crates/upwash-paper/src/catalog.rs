//! The catalog of tables and figures, those of the paper and additional ones, from `data/catalog.toml`.

use crate::artifacts::{Artifact, Column};
use crate::claims::{Claim, ClaimKind, Measure};
use crate::experiments::{Modification, PaperExperiment};
use crate::paper_values::PaperValues;
use crate::scale::Task;
use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use std::sync::LazyLock;
use upwash::algorithm::Variant;

/// All artifacts, in the order of the paper.
pub(crate) fn all() -> &'static [Artifact] {
    static ALL: LazyLock<Vec<Artifact>> = LazyLock::new(|| {
        let text = include_str!("../data/catalog.toml");
        read(text).expect("catalog.toml is tested")
    });
    &ALL
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalog {
    sentences: Sentences,
    artifacts: Vec<ArtifactEntry>,
}

/// Default sentences for claims that do not specify one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sentences {
    higher: String,
    robust: String,
    slowest: String,
    worst: String,
    every_respect: Vec<(Measure, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArtifactEntry {
    name: String,
    label: String,
    caption: String,
    columns: Vec<String>,
    #[serde(default)]
    printed_in: Vec<String>,
    #[serde(default = "yes")]
    by_worker: bool,
    #[serde(default)]
    losses: bool,
    variant: Option<Variant>,
    #[serde(default)]
    claims: Vec<ClaimEntry>,
}

fn yes() -> bool {
    true
}

/// A claim in the catalog. The header of the file explains the kinds.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum ClaimEntry {
    Higher { one: String, other: String, sentence: Option<String> },
    EveryRespect { one: String, other: String },
    Across { one: String, other: String, sentence: String },
    Robust { one: String, other: String },
    Slowest { one: String, worker: usize },
    Worst { one: String, workers: Vec<usize> },
}

fn read(text: &str) -> Result<Vec<Artifact>> {
    let catalog: Catalog = toml::from_str(text)?;
    let artifact = |entry: ArtifactEntry| {
        let name = entry.name.clone();
        entry.read(&catalog.sentences).context(name)
    };
    catalog.artifacts.into_iter().map(artifact).collect()
}

impl ArtifactEntry {
    fn read(self, sentences: &Sentences) -> Result<Artifact> {
        let (mut columns, mut claims) = (Vec::new(), Vec::new());
        for pattern in &self.columns {
            for experiment in experiments(pattern)? {
                let printed = PaperValues::in_tables(&self.printed_in, &experiment);
                columns.push(Column::new(experiment, printed));
            }
        }
        for entry in &self.claims {
            claims.extend(entry.read(sentences)?);
        }
        Ok(Artifact {
            name: self.name,
            label: self.label,
            caption: self.caption,
            columns,
            by_worker: self.by_worker,
            losses: self.losses,
            claims,
            variant: self.variant,
        })
    }
}

impl ClaimEntry {
    fn read(&self, sentences: &Sentences) -> Result<Vec<Claim>> {
        Ok(match self {
            Self::Higher { one, other, sentence } => {
                let sentence = sentence.as_ref().unwrap_or(&sentences.higher);
                let claim = |pair| better(Measure::MeanAccuracy, sentence, pair);
                pairs(one, other)?.into_iter().map(claim).collect()
            }
            Self::EveryRespect { one, other } => {
                let pairs = pairs(one, other)?.into_iter();
                let claims = pairs.flat_map(|pair| {
                    let respects = sentences.every_respect.iter();
                    respects.map(move |(measure, sentence)| better(*measure, sentence, pair))
                });
                claims.collect()
            }
            Self::Across { one, other, sentence } => {
                vec![Claim { sentence: sentence.clone(), kind: ClaimKind::Across { pairs: pairs(one, other)? } }]
            }
            Self::Robust { one, other } => {
                let (one, other) = (exactly(one)?, exactly(other)?);
                vec![Claim {
                    sentence: filled(&sentences.robust, &one[0], &other[0]),
                    kind: ClaimKind::Robust { one, other },
                }]
            }
            Self::Slowest { one, worker } => {
                let [experiment] = exactly(one)?;
                vec![Claim {
                    sentence: filled(&sentences.slowest, &experiment, &experiment),
                    kind: ClaimKind::Slowest { experiment, worker: *worker },
                }]
            }
            Self::Worst { one, workers } => {
                let [experiment] = exactly(one)?;
                vec![Claim {
                    sentence: filled(&sentences.worst, &experiment, &experiment),
                    kind: ClaimKind::Worst { experiment, workers: workers.clone() },
                }]
            }
        })
    }
}

fn better(measure: Measure, sentence: &str, [one, other]: [PaperExperiment; 2]) -> Claim {
    Claim { sentence: filled(sentence, &one, &other), kind: ClaimKind::Better { measure, one, other } }
}

/// Fills in the placeholders of a sentence about two experiments.
fn filled(sentence: &str, one: &PaperExperiment, other: &PaperExperiment) -> String {
    let part = match one.modification {
        Modification::Only(part) => part,
        Modification::None | Modification::Metropolis => "",
    };
    let data = match one.task {
        Task::Cifar10 => "",
        Task::Cifar100 => " on CIFAR-100",
    };
    sentence
        .replace("{one}", one.algorithm.display_name())
        .replace("{other}", other.algorithm.display_name())
        .replace("{links}", &one.links.to_string())
        .replace("{part}", part)
        .replace("{data}", data)
}

/// Pairs the experiments of two patterns. A single second experiment is paired with every first one.
fn pairs(one: &str, other: &str) -> Result<Vec<[PaperExperiment; 2]>> {
    let (ones, mut others) = (experiments(one)?, experiments(other)?);
    if let [single] = others[..] {
        others = vec![single; ones.len()];
    }
    ensure!(ones.len() == others.len(), "{one} and {other} have different numbers of experiments");
    let pairs = ones.into_iter().zip(others);
    Ok(pairs.map(|(one, other)| [one, other]).collect())
}

/// The experiments of a pattern, which must be exactly N.
fn exactly<const N: usize>(pattern: &str) -> Result<[PaperExperiment; N]> {
    let found = experiments(pattern)?.try_into();
    found.map_err(|_| anyhow!("{pattern}: expected {N} experiments"))
}

/// All experiments that a pattern such as `dpsgd-{13,11}x1` names.
fn experiments(pattern: &str) -> Result<Vec<PaperExperiment>> {
    let names = expanded(pattern).with_context(|| format!("{pattern}: unclosed brace"))?;
    let read = |name: String| name.parse().map_err(|error: String| anyhow!(error));
    names.into_iter().map(read).collect()
}

/// Expands the braces of a pattern; `None` if one is not closed.
fn expanded(pattern: &str) -> Option<Vec<String>> {
    let Some((start, rest)) = pattern.split_once('{') else {
        return Some(vec![pattern.to_owned()]);
    };
    let (choices, rest) = rest.split_once('}')?;
    let ends = expanded(rest)?;
    let with = |choice| ends.iter().map(move |end| format!("{start}{choice}{end}"));
    Some(choices.split(',').flat_map(with).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn catalog_is_complete() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|artifact| &*artifact.name).collect();
        assert_eq!((all.len(), names.len()), (17, 17));
        for artifact in all {
            assert!(!artifact.columns.is_empty(), "{}", artifact.name);
            for claim in &artifact.claims {
                assert!(!claim.sentence.contains(['{', '}']), "{}", claim.sentence);
            }
        }
        let columns = |name: &str| {
            let found = all.iter().find(|artifact| artifact.name == name);
            let titles = found.unwrap().columns.iter();
            titles.map(|column| (column.title.as_str(), column.printed.is_some())).collect::<Vec<_>>()
        };
        assert_eq!(columns("written")[1], ("AL-DSGD over D-PSGD, D = 13, 3 graphs, Metropolis weights", false));
        let grid = columns("grid");
        assert_eq!(grid.len(), 60);
        assert_eq!(grid[4], ("D-PSGD, D = 11, 2 graphs", false));
        assert_eq!(grid.iter().filter(|(_, printed)| *printed).count(), 30);
        let claims: usize = all.iter().map(|artifact| artifact.claims.len()).sum();
        assert_eq!(claims, 101);
    }

    #[test]
    fn patterns_are_expanded_from_the_left() {
        assert_eq!(expanded("a{1,2}b{,-c}").unwrap(), ["a1b", "a1b-c", "a2b", "a2b-c"]);
        assert_eq!(expanded("a{1,2"), None);
        assert!(pairs("dpsgd-{13,11}x1", "matcha-{13,11,9}x1").is_err());
        assert_eq!(pairs("dpsgd-{13,11}x1", "matcha-13x1").unwrap()[1][1].links, 13);
    }

    /// Every number of the paper belongs to a table that is reproduced.
    #[test]
    fn all_numbers_of_the_paper_are_shown() {
        for values in PaperValues::all() {
            let shown = all().iter().filter(|artifact| artifact.name == values.table);
            let mut columns = shown.flat_map(|artifact| &artifact.columns);
            assert!(
                columns.any(|column| { column.printed.is_some_and(|printed| std::ptr::eq(printed, values)) }),
                "{}: {:?}",
                values.table,
                values.experiment
            );
        }
    }
}
