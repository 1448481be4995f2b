//! How the configuration of a run differs from the one that its directory holds.

use crate::config::DecayName;
use crate::experiment::{ALGORITHM_CHECKSUM, DATA_CHECKSUM, Experiment};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// A key with its value in the run directory and its value now; `None` where it is missing.
type Difference = (String, Option<String>, Option<String>);

/// The difference between two [identities](Experiment::identity).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// There is none.
    None,
    /// Only settings differ that do not change what is computed.
    Recording,
    /// The number of epochs is larger now.
    Epochs {
        /// The number of epochs of the run so far.
        from: u64,
        /// The number of epochs now.
        to: u64,
    },
    /// It is another run. The text names the keys that differ.
    Other(String),
}

const EPOCHS: &str = "training.epochs";

/// Settings that decide what is measured and kept, and not what is computed.
const RECORDING: [&str; 3] = ["training.checkpoint_every", "training.keep_best", "training.test_every"];

impl Change {
    /// Compares the identity of the run in a directory with that of an experiment.
    pub(super) fn between(existing: &str, experiment: &Experiment) -> Self {
        let identity = experiment.identity();
        if existing == identity {
            return Self::None;
        }
        let differences = match [existing, &identity].map(str::parse::<Table>) {
            [Ok(before), Ok(now)] => differences(&before, &now),
            _ => return Self::Other("its config.toml cannot be read".into()),
        };
        let computed: Vec<Difference> =
            differences.into_iter().filter(|(key, ..)| !RECORDING.contains(&key.as_str())).collect();
        let has_same = |prefix: &str| checksum(existing, prefix) == checksum(&identity, prefix);
        let has_same_data = has_same(DATA_CHECKSUM);
        if has_same_data && !has_same(ALGORITHM_CHECKSUM) && computed.iter().all(|(key, ..)| key == EPOCHS) {
            return Self::Other("the algorithm has other code or other parameters now".into());
        }
        match &computed[..] {
            [] if has_same_data => Self::Recording,
            [] => Self::Other("the graph, the model file or the data set has other content now".into()),
            [(key, Some(before), Some(now))] if key == EPOCHS && has_same_data => {
                let [from, to] = [before, now].map(|epochs| epochs.parse().unwrap_or(0));
                match to > from {
                    true => Self::Epochs { from, to },
                    false => Self::Other(format!("{EPOCHS} = {to}, but the run has {from}: it cannot become shorter")),
                }
            }
            _ => Self::Other(describe(&computed)),
        }
    }
}

/// What a user should know about a run that gets more epochs.
pub(super) fn extension(experiment: &Experiment, from: u64, to: u64) -> String {
    let rate = match experiment.config.training.decay {
        DecayName::Cosine => {
            "; the learning rate now follows the cosine of the longer run, so that it differs from a run of that length"
        }
        _ => "",
    };
    format!("the run is extended from {from} to {to} epochs{rate}")
}

/// The line of an identity that begins with `prefix`.
fn checksum<'a>(identity: &'a str, prefix: &str) -> Option<&'a str> {
    identity.lines().find(|line| line.starts_with(prefix))
}

/// All keys whose values differ, by their paths.
fn differences(before: &Table, now: &Table) -> Vec<Difference> {
    let [mut old, mut new] = [BTreeMap::new(), BTreeMap::new()];
    flatten(before, "", &mut old);
    flatten(now, "", &mut new);
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let values = |key: &String| (key.clone(), old.get(key).cloned(), new.get(key).cloned());
    keys.into_iter().map(values).filter(|(_, before, now)| before != now).collect()
}

fn flatten(table: &Table, prefix: &str, into: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        match value {
            Value::Table(inner) => flatten(inner, &format!("{prefix}{key}."), into),
            value => drop(into.insert(format!("{prefix}{key}"), value.to_string())),
        }
    }
}

/// "training.batch_size = 32 (there 16)", for the first few keys.
fn describe(differences: &[Difference]) -> String {
    const SHOWN: usize = 5;
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".into());
    let one = |(key, before, now): &Difference| format!("{key} = {} (there {})", value(now), value(before));
    let shown: Vec<String> = differences.iter().take(SHOWN).map(one).collect();
    let more = match differences.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::experiment::DataPaths;

    fn experiment(set: &[&str]) -> Experiment {
        let set: Vec<String> = set.iter().map(|set| set.to_string()).collect();
        Experiment::prepare(Config::parse("", &set).unwrap(), &DataPaths::default()).unwrap()
    }

    #[test]
    fn changes_are_named_by_their_keys() {
        let before = experiment(&[]).identity();
        let change = |set: &[&str]| Change::between(&before, &experiment(set));
        assert_eq!(change(&[]), Change::None);
        assert_eq!(change(&["training.epochs=30"]), Change::Epochs { from: 20, to: 30 });
        assert_eq!(change(&["training.epochs=30", "training.keep_best=true"]), Change::Epochs { from: 20, to: 30 });
        assert_eq!(change(&["training.test_every=5", "training.checkpoint_every=7"]), Change::Recording);
        let other = |set: &[&str]| match change(set) {
            Change::Other(what) => what,
            change => panic!("{change:?}"),
        };
        assert!(other(&["training.epochs=10"]).contains("training.epochs = 10, but the run has 20"));
        assert_eq!(other(&["seed=9"]), "seed = 9 (there 1)");
        assert_eq!(
            other(&["seed=9", "training.epochs=30", "model=cnn"]),
            "model = \"cnn\" (there \"mlp:64\"), seed = 9 (there 1), training.epochs = 30 (there 20)"
        );
        let matcha = other(&["algorithm.base=matcha"]);
        assert!(matcha.contains("algorithm.budget = 0.5 (there not set)"), "{matcha}");
        assert!(other(&["data.train_examples=800", "training.epochs=30"]).contains("data.train_examples = 800"));
    }
}
