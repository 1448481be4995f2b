//! The options of an algorithm: its keys in the table `[algorithm]` of the configuration.

use super::{Algorithm, Method, Registry};
use crate::config::{ConfigError, GraphConfig};
use crate::names::hint;
use toml::Value;

/// The options in the configuration, as an algorithm's [`Definition`](super::Definition) reads them. A key that the
/// definition does not read is an error.
pub struct Options<'a> {
    given: &'a toml::Table,
    /// The configuration of the graph.
    pub graph: &'a GraphConfig,
    registry: &'a Registry,
    read: Vec<OptionInfo>,
}

/// An option that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionInfo {
    /// Its key in `[algorithm]`.
    pub key: &'static str,
    /// What it means.
    pub about: &'static str,
    /// Its default value.
    pub default: Value,
    /// The configured value, or the default.
    pub value: Value,
}

impl<'a> Options<'a> {
    /// The options in the table `given`.
    pub(super) fn new(given: &'a toml::Table, graph: &'a GraphConfig, registry: &'a Registry) -> Self {
        let read = vec![];
        Self { given, graph, registry, read }
    }

    /// The options that were read, in order.
    pub(super) fn into_read(self) -> Vec<OptionInfo> {
        self.read
    }

    /// The keys that were not read.
    pub(super) fn unread(&self) -> impl Iterator<Item = &'a String> {
        let known = |key: &str| self.read.iter().any(|option| option.key == key);
        self.given.keys().filter(move |key| !known(key))
    }

    /// Whether the configuration has a key, whether or not it is read.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    /// Reads a number in a range, for example `options.number("budget", 0.5, 0.0..=1.0, "the part ...")`.
    pub fn number(
        &mut self,
        key: &'static str,
        default: f64,
        range: std::ops::RangeInclusive<f64>,
        about: &'static str,
    ) -> Result<f64, ConfigError> {
        let value = self.value(key, default.into(), about);
        let number = value.as_float().or(value.as_integer().map(|n| n as f64));
        match number {
            Some(number) if range.contains(&number) => Ok(number),
            _ => Err(wrong(key, &value, format!("must be a number {}", bounds(&range)))),
        }
    }

    /// Reads an integer of at least 1.
    pub fn count(&mut self, key: &'static str, default: u64, about: &'static str) -> Result<u64, ConfigError> {
        let value = self.value(key, (default as i64).into(), about);
        match value.as_integer() {
            Some(count) if count >= 1 => Ok(count as u64),
            _ => Err(wrong(key, &value, "must be a whole number of at least 1".into())),
        }
    }

    /// Reads a boolean.
    pub fn flag(&mut self, key: &'static str, default: bool, about: &'static str) -> Result<bool, ConfigError> {
        let value = self.value(key, default.into(), about);
        let wrong = || wrong(key, &value, "must be true or false".into());
        value.as_bool().ok_or_else(wrong)
    }

    /// Reads one of several names. The first is the default.
    pub fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
        about: &'static str,
    ) -> Result<T, ConfigError> {
        let value = self.value(key, choices[0].0.into(), about);
        let found = choices.iter().find(|(name, _)| value.as_str() == Some(name));
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let names = choices.iter().map(|(name, _)| *name);
            wrong(key, &value, one_of(value.as_str(), names))
        })
    }

    /// Builds the synchronous algorithm that this one wraps, named by the option `base`. If this algorithm is itself
    /// the base of another, the option belongs to the other and this one wraps the default.
    pub fn base(&mut self, default: &'static str) -> Result<Box<dyn Algorithm>, ConfigError> {
        let is_taken = self.read.iter().any(|option| option.key == "base");
        let value = match is_taken {
            true => default.into(),
            false => self.value("base", default.into(), "the algorithm that this one wraps"),
        };
        let (registry, name) = (self.registry, value.as_str().unwrap_or(""));
        let base = registry.find(name).ok_or_else(|| {
            let names = registry.iter().map(|definition| definition.name);
            wrong("base", &value, one_of(value.as_str(), names))
        })?;
        match (base.build)(self)? {
            Method::Synchronous(base) => Ok(base),
            Method::Asynchronous(_) => Err(wrong("base", &value, "a synchronous algorithm".into())),
        }
    }

    /// The value of a key, which counts as read from now on.
    fn value(&mut self, key: &'static str, default: Value, about: &'static str) -> Value {
        let value = self.given.get(key).unwrap_or(&default).clone();
        // A number may be written without a decimal point.
        let value = match (&default, value) {
            (Value::Float(_), Value::Integer(whole)) => Value::Float(whole as f64),
            (_, value) => value,
        };
        if !self.read.iter().any(|option| option.key == key) {
            self.read.push(OptionInfo { key, about, default, value: value.clone() });
        }
        value
    }

    /// An error for the value of an option that conflicts with other options.
    pub fn refuse(&self, key: &'static str, must: impl Into<String>) -> ConfigError {
        let read = self.read.iter().find(|option| option.key == key);
        let value = read.map(|option| option.value.clone()).or(self.given.get(key).cloned());
        let value = value.unwrap_or(Value::String("none".into()));
        wrong(key, &value, must.into())
    }
}

/// "must be one of ...", with a suggestion if one of the names is similar.
pub(super) fn one_of<'n>(given: Option<&str>, names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.collect();
    format!("must be one of {}{}", names.join(", "), hint(given.unwrap_or(""), names.iter().copied()))
}

/// A range of numbers in words. Where 0 is excluded, the range begins at a tiny number.
fn bounds(range: &std::ops::RangeInclusive<f64>) -> String {
    let (start, end) = (*range.start(), *range.end());
    let above_zero = start > 0.0 && start < 1e-6;
    match (above_zero, end == f64::MAX) {
        (true, true) => "above 0".into(),
        (true, false) => format!("above 0, at most {end}"),
        (false, true) => format!("of at least {start}"),
        (false, false) => format!("from {start} to {end}"),
    }
}

fn wrong(key: &str, value: &Value, must: String) -> ConfigError {
    ConfigError::Value { key: format!("algorithm.{key}"), value: value.to_string(), must }
}
