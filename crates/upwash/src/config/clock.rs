//! `[clock]`: the cost model, which simulates the compute and network time of a run.

use super::ConfigError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[clock]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClockConfig {
    /// The preset that supplies the values that are not given: `datacenter`, `lan`, `wan` or `edge`.
    pub network: NetworkName,
    /// Seconds per gradient: one number for all workers, or a list with one number per worker.
    pub gradient_seconds: Option<PerWorker>,
    /// Sigma of the log-normal factor that multiplies `gradient_seconds`.
    pub gradient_spread: Option<f64>,
    /// The probability that a gradient takes `straggler_factor` times as long.
    pub straggler_probability: Option<f64>,
    /// The slowdown of a straggling gradient.
    pub straggler_factor: Option<f64>,
    /// Workers that are always slower: (worker, factor).
    pub slow: Vec<(usize, f64)>,
    /// Whether the workers in `slow` also sleep, so that they are slow in wall-clock time. CPU only.
    pub slow_for_real: bool,
    /// The bandwidth of a link in Mbit/s: one number, or a matrix indexed by sender and receiver.
    pub megabits: Option<PerLink>,
    /// The latency of a link in milliseconds: one number, or a matrix indexed by sender and receiver.
    pub latency_ms: Option<PerLink>,
    /// `full`, or `one-at-a-time`: a worker uses one link at a time, as in the delay model of MATCHA.
    pub duplex: Duplex,
}

/// The named network presets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkName {
    /// 25 Gbit/s, 0.02 ms latency; 10 ms per gradient.
    Datacenter,
    /// 1 Gbit/s, 0.2 ms latency; 20 ms per gradient, with a spread of 5 %.
    #[default]
    Lan,
    /// 100 Mbit/s, 40 ms latency; 20 ms per gradient, with a spread of 10 %.
    Wan,
    /// 10 Mbit/s, 60 ms latency; 500 ms per gradient, with a spread of 50 %; one gradient in twenty takes ten times
    /// as long.
    Edge,
}

/// How a worker uses its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Duplex {
    /// It sends to all neighbors and receives from all of them at the same time; each direction has its bandwidth.
    #[default]
    Full,
    /// It uses one link at a time.
    OneAtATime,
}

/// One value for all workers, or one per worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "clock.gradient_seconds: expected a number, or a list with one number per worker")]
pub enum PerWorker {
    /// The same value for all workers.
    All(f64),
    /// One value per worker.
    Each(Vec<f64>),
}

/// One value for all links, or one per link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "clock.megabits and clock.latency_ms: expected a number, or a list of lists by sender and receiver"
)]
pub enum PerLink {
    /// The same value for all links.
    All(f64),
    /// A matrix indexed by sender and receiver.
    Each(Vec<Vec<f64>>),
}

/// The values of a network preset.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The bandwidth of a link in Mbit/s.
    pub megabits: f64,
    /// The latency of a link in milliseconds.
    pub latency_ms: f64,
    /// Seconds per gradient.
    pub gradient_seconds: f64,
    /// Sigma of the log-normal factor that multiplies `gradient_seconds`.
    pub gradient_spread: f64,
    /// The probability that a gradient takes `straggler_factor` times as long.
    pub straggler_probability: f64,
    /// The slowdown of a straggling gradient.
    pub straggler_factor: f64,
}

impl NetworkName {
    /// The values of this preset.
    pub fn preset(self) -> Preset {
        let preset = |megabits, latency_ms, gradient_seconds, gradient_spread| Preset {
            megabits,
            latency_ms,
            gradient_seconds,
            gradient_spread,
            straggler_probability: 0.0,
            straggler_factor: 10.0,
        };
        match self {
            Self::Datacenter => preset(25_000.0, 0.02, 0.01, 0.0),
            Self::Lan => preset(1_000.0, 0.2, 0.02, 0.05),
            Self::Wan => preset(100.0, 40.0, 0.02, 0.1),
            Self::Edge => Preset { straggler_probability: 0.05, ..preset(10.0, 60.0, 0.5, 0.5) },
        }
    }
}

impl ClockConfig {
    /// Checks all values for a run of `workers` workers.
    pub(crate) fn check(&self, workers: usize) -> Result<(), ConfigError> {
        let invalid = |key: &str, value: String, must: String| {
            let key = format!("clock.{key}");
            Err(ConfigError::Value { key, value, must })
        };
        let from_zero = |value: &f64| *value >= 0.0 && value.is_finite();
        // A gradient longer than a year, or a spread over twenty orders of magnitude, is a mistake.
        if let Some(seconds) = &self.gradient_seconds {
            let seconds = match seconds {
                PerWorker::All(all) => &vec![*all; workers],
                PerWorker::Each(each) => each,
            };
            if let Some(bad) = seconds.iter().find(|value| !(**value >= 0.0 && **value < 3e7)) {
                let must = "must be at least 0 and less than a year";
                return invalid("gradient_seconds", bad.to_string(), must.into());
            }
            if seconds.len() != workers {
                let must = format!("must be one number, or one for each of {workers} workers");
                return invalid("gradient_seconds", format!("{} numbers", seconds.len()), must);
            }
        }
        for (key, value, most, must) in [
            ("gradient_spread", self.gradient_spread, 5.0, "must be at most 5"),
            ("straggler_probability", self.straggler_probability, 1.0, "must be at most 1"),
            ("straggler_factor", self.straggler_factor, 1e6, "must be at most 1,000,000"),
        ] {
            match value {
                Some(bad) if !from_zero(&bad) => {
                    return invalid(key, bad.to_string(), "must be at least 0".into());
                }
                Some(bad) if bad > most => return invalid(key, bad.to_string(), must.into()),
                _ => {}
            }
        }
        for (worker, factor) in &self.slow {
            if *worker >= workers || !(*factor > 0.0 && *factor <= 1e6) {
                let must = format!(
                    "must be [worker, factor], with a worker below {workers} and a factor above 0 and at most 1,000,000"
                );
                return invalid("slow", format!("[{worker}, {factor}]"), must);
            }
        }
        check_links("megabits", &self.megabits, workers, "must be above 0", |x| x > 0.0)?;
        check_links("latency_ms", &self.latency_ms, workers, "must be at least 0", |x| x >= 0.0)
    }
}

/// Checks one value for all links, or the off-diagonal entries of a matrix.
fn check_links(
    key: &str,
    values: &Option<PerLink>,
    workers: usize,
    must: &str,
    is_valid: impl Fn(f64) -> bool,
) -> Result<(), ConfigError> {
    let invalid =
        |value: String, must: &str| Err(ConfigError::Value { key: format!("clock.{key}"), value, must: must.into() });
    let is_bad = |value: f64| !(is_valid(value) && value.is_finite());
    match values {
        Some(PerLink::All(value)) if is_bad(*value) => invalid(value.to_string(), must),
        None | Some(PerLink::All(_)) => Ok(()),
        Some(PerLink::Each(rows)) => {
            if rows.len() != workers || rows.iter().any(|row| row.len() != workers) {
                let must = format!("must be a number, or {workers} rows of {workers} numbers");
                let found = if rows.len() == 1 { "1 row".into() } else { format!("{} rows", rows.len()) };
                return invalid(found, &must);
            }
            let entries = rows.iter().enumerate().flat_map(|(from, row)| {
                // The diagonal is not used.
                let others = row.iter().enumerate().filter(move |(to, _)| *to != from);
                others.map(|(_, value)| *value)
            });
            match entries.into_iter().find(|value| is_bad(*value)) {
                Some(value) => invalid(value.to_string(), must),
                None => Ok(()),
            }
        }
    }
}
