//! Changes to the text of a configuration: `--set KEY=VALUE` and `--unset KEY`.

use super::{Config, ConfigError, explain};
use toml::{Table, Value};

/// Changes to a configuration. Keys are removed first, then values are set, in order.
///
/// ```
/// use upwash::config::{Config, Overrides};
/// let text = "[algorithm]\nname = \"matcha\"\nbudget = 0.5\n";
/// let changes = Overrides { set: vec!["algorithm.name=dpsgd".into()], unset: vec!["algorithm.budget".into()] };
/// assert_eq!(Config::parse_with(text, &changes)?.algorithm.name, "dpsgd");
/// # Ok::<(), upwash::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overrides {
    /// Assignments `key=value`, where the key may be a dotted path.
    pub set: Vec<String>,
    /// Keys that are removed, so that their defaults apply.
    pub unset: Vec<String>,
}

impl Overrides {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.unset.is_empty()
    }

    /// These changes, and then others.
    #[must_use]
    pub fn followed_by(mut self, others: &Self) -> Self {
        // A key that is removed may be set again.
        for key in &others.unset {
            self.set.retain(|assignment| assignment.split_once('=').is_none_or(|(path, _)| path.trim() != key));
        }
        self.set.extend_from_slice(&others.set);
        let new = others.unset.iter().filter(|key| !self.unset.contains(key)).cloned().collect::<Vec<_>>();
        self.unset.extend(new);
        self
    }

    /// Applies the changes to a configuration. If an assignment replaces the algorithm, returns the options
    /// that the text still gives: they [may belong](super::AlgorithmConfig::inherited) to the replaced one.
    pub(super) fn apply(&self, table: &mut Table) -> Result<Vec<String>, ConfigError> {
        for key in &self.unset {
            remove(table, key)?;
        }
        let before = algorithm(table);
        for assignment in &self.set {
            check(assignment)?;
            insert(table, assignment)?;
        }
        if ["name", "base"].iter().all(|key| algorithm(table).get(*key) == before.get(*key)) {
            return Ok(vec![]);
        }
        let is_assigned = |key: &str| {
            let keys = self.set.iter().filter_map(|assignment| assignment.split_once('='));
            keys.into_iter().any(|(path, _)| path.trim() == format!("algorithm.{key}"))
        };
        let inherited = before.into_iter().map(|(key, _)| key);
        Ok(inherited.filter(|key| key != "name" && !is_assigned(key)).collect())
    }
}

fn algorithm(table: &Table) -> Table {
    table.get("algorithm").and_then(Value::as_table).cloned().unwrap_or_default()
}

/// Parses an assignment by itself, so that an error names the assignment that caused it.
fn check(assignment: &str) -> Result<(), ConfigError> {
    let mut single = Table::new();
    insert(&mut single, assignment)?;
    match single.try_into::<Config>() {
        Ok(_) => Ok(()),
        Err(error) => {
            let what = explain::without_position(&error);
            Err(ConfigError::Toml(format!("--set {assignment}: {what}")))
        }
    }
}

/// Applies `key=value` to a table. A value that is not TOML becomes a string.
fn insert(table: &mut Table, assignment: &str) -> Result<(), ConfigError> {
    let invalid = || ConfigError::Set(assignment.into());
    let (key, value) = assignment.split_once('=').ok_or_else(invalid)?;
    if assignment.contains('\n') {
        return Err(ConfigError::SetLines(assignment.lines().next().unwrap_or_default().into()));
    }
    let value = parse(value.trim()).ok_or_else(|| {
        let what = format!("the largest whole number is {}", i64::MAX);
        ConfigError::Toml(format!("--set {assignment}: {what}"))
    })?;
    let mut path: Vec<&str> = key.trim().split('.').collect();
    let last = path.pop().filter(|last| !last.is_empty()).ok_or_else(invalid)?;
    let mut current = table;
    for part in path {
        let next = current.entry(part).or_insert_with(|| Table::new().into());
        current = next.as_table_mut().ok_or_else(invalid)?;
    }
    current.insert(last.into(), value);
    Ok(())
}

/// `None` for a whole number that TOML cannot hold.
fn parse(text: &str) -> Option<Value> {
    let parsed = format!("value = {text}").parse::<Table>().ok();
    match parsed.and_then(|mut table| table.remove("value")) {
        None if text.parse::<i128>().is_ok() => None,
        None => Some(Value::String(text.into())),
        value => value,
    }
}

/// Removes a key. To remove one that is not there is a mistake, probably in its spelling.
fn remove(table: &mut Table, key: &str) -> Result<(), ConfigError> {
    let missing = || {
        let hint = explain::suggestion(key);
        // A key that exists has its default already.
        let hint = if hint.contains(&format!("`{key}`")) { ", so that its default applies".into() } else { hint };
        ConfigError::Unset { key: key.into(), hint }
    };
    let (path, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut current = table;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        current = current.get_mut(part).and_then(Value::as_table_mut).ok_or_else(missing)?;
    }
    current.remove(last).map(drop).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str, set: &[&str], unset: &[&str]) -> String {
        let [set, unset] = [set, unset].map(|list| list.iter().map(|entry| entry.to_string()).collect());
        Config::parse_with(text, &Overrides { set, unset }).unwrap_err().to_string()
    }

    #[test]
    fn keys_are_removed_before_values_are_set() {
        let text = "seed = 3\n[training]\nepochs = 7\nbatch_size = 4\n";
        let unset = vec!["training.epochs".into(), "seed".into(), "training.batch_size".into()];
        let config = Config::parse_with(text, &Overrides { set: vec!["training.epochs=5".into()], unset }).unwrap();
        assert_eq!((config.seed, config.training.epochs, config.training.batch_size), (1, 5, 16));
        assert!(error(text, &[], &["training.epoch"]).contains("--unset training.epoch: the configuration does not"));
        assert!(error(text, &[], &["training.lr"]).contains("did you mean `training.learning_rate`?"));
        for absent in ["", ".", "seed.x", "a.b.c"] {
            assert!(error(text, &[], &[absent]).contains("--unset"), "{absent}");
        }
    }

    #[test]
    fn one_assignment_sets_one_value() {
        assert!(error("", &["seed=1\nmodel=\"cnn\""], &[]).contains("one line"));
        let error = error("", &["seed=18446744073709551615"], &[]);
        assert!(error.contains("largest whole number is 9223372036854775807"), "{error}");
    }

    #[test]
    fn options_of_a_replaced_algorithm_are_inherited() {
        let text = "[algorithm]\nname = \"al-dsgd\"\nbase = \"matcha\"\nbudget = 0.5\nw_best = 0.2\n";
        let inherited = |set: &str| Config::parse(text, &[set.into()]).unwrap().algorithm.inherited;
        assert_eq!(inherited("algorithm.base=dpsgd"), ["budget", "w_best"]);
        assert_eq!(inherited("algorithm.base=matcha"), [""; 0]);
        assert_eq!(inherited("seed=2"), [""; 0]);
        let sets = ["algorithm.base=dpsgd", "algorithm.budget=0.3"].map(String::from);
        assert_eq!(Config::parse(text, &sets).unwrap().algorithm.inherited, ["w_best"]);
    }
}
