//! `[clock]`: what a run would cost elsewhere.

use super::ConfigError;
use serde::{Deserialize, Serialize};

/// `[clock]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClockConfig {
    /// datacenter, lan, wan or edge: the values of what is not given.
    pub network: NetworkName,
    /// Seconds for a gradient: a number for all workers, or a list with one for each.
    pub gradient_seconds: Option<PerWorker>,
    /// Sigma of the log-normal factor by which it varies.
    pub gradient_spread: Option<f64>,
    /// How likely a gradient takes `straggler_factor` times as long.
    pub straggler_probability: Option<f64>,
    /// How much longer then.
    pub straggler_factor: Option<f64>,
    /// Workers that always take longer: (worker, factor).
    pub slow: Vec<(usize, f64)>,
    /// Whether the workers in `slow` are slowed for real too (they sleep), on the CPU.
    pub slow_for_real: bool,
    /// Bandwidth of a link: a number, or a matrix by sender and receiver.
    pub megabits: Option<PerLink>,
    /// Latency of a link: a number, or a matrix.
    pub latency_ms: Option<PerLink>,
    /// full, or one-at-a-time: a worker uses one link at a time, as in MATCHA's delay model.
    pub duplex: Duplex,
}

/// Networks by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkName {
    /// 25 Gbit/s, 0.02 ms; 10 ms a gradient.
    Datacenter,
    /// 1 Gbit/s, 0.2 ms; 20 ms a gradient, give or take 5 %.
    #[default]
    Lan,
    /// 100 Mbit/s, 40 ms; 20 ms a gradient, give or take 10 %.
    Wan,
    /// 10 Mbit/s, 60 ms; 500 ms a gradient, give or take 50 %, one in twenty ten times as long.
    Edge,
}

/// How a worker's links share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duplex {
    /// It sends to all and receives from all at once, at its bandwidth each way.
    #[default]
    Full,
    /// One link at a time.
    OneAtATime,
}

/// A number for every worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "clock.gradient_seconds: write a number, or a list with one for each worker")]
pub enum PerWorker {
    /// The same.
    All(f64),
    /// One for each.
    Each(Vec<f64>),
}

/// A number for every link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "clock.megabits and clock.latency_ms: write a number, or a list of lists by sender and receiver"
)]
pub enum PerLink {
    /// The same.
    All(f64),
    /// By sender and receiver.
    Each(Vec<Vec<f64>>),
}

/// What a network's name stands for.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Bandwidth of a link.
    pub megabits: f64,
    /// Latency of a link.
    pub latency_ms: f64,
    /// Seconds for a gradient.
    pub gradient_seconds: f64,
    /// Sigma of its log-normal factor.
    pub gradient_spread: f64,
    /// How likely it takes much longer.
    pub straggler_probability: f64,
    /// How much longer then.
    pub straggler_factor: f64,
}

impl NetworkName {
    /// Its values.
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
    /// Values that are out of range for so many workers.
    pub(crate) fn check(&self, workers: usize) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: String, must: String| {
            let key = format!("clock.{key}");
            Err(ConfigError::Value { key, value, must })
        };
        let from_zero = |value: &f64| *value >= 0.0 && value.is_finite();
        // What is longer than a year, or spreads over twenty orders of magnitude, is a mistake.
        if let Some(seconds) = &self.gradient_seconds {
            let seconds = match seconds {
                PerWorker::All(all) => &vec![*all; workers],
                PerWorker::Each(each) => each,
            };
            if let Some(bad) = seconds.iter().find(|value| !(**value >= 0.0 && **value < 3e7)) {
                let must = "at least 0 and less than a year";
                return wrong("gradient_seconds", bad.to_string(), must.into());
            }
            if seconds.len() != workers {
                let must = format!("one number, or one for each of {workers} workers");
                return wrong("gradient_seconds", format!("{} numbers", seconds.len()), must);
            }
        }
        for (key, value, most, must) in [
            ("gradient_spread", self.gradient_spread, 5.0, "at most 5"),
            ("straggler_probability", self.straggler_probability, 1.0, "at most 1"),
            ("straggler_factor", self.straggler_factor, 1e6, "at most a million"),
        ] {
            match value {
                Some(bad) if !from_zero(&bad) => {
                    return wrong(key, bad.to_string(), "at least 0".into());
                }
                Some(bad) if bad > most => return wrong(key, bad.to_string(), must.into()),
                _ => {}
            }
        }
        for (worker, factor) in &self.slow {
            if *worker >= workers || !(*factor > 0.0 && *factor <= 1e6) {
                let must = format!("(worker, factor), a worker below {workers} and a factor above 0");
                return wrong("slow", format!("[{worker}, {factor}]"), must);
            }
        }
        check_links("megabits", &self.megabits, workers, "above 0", |x| x > 0.0)?;
        check_links("latency_ms", &self.latency_ms, workers, "at least 0", |x| x >= 0.0)
    }
}

/// A number for all links, or one for each that is between two workers.
fn check_links(
    key: &str,
    values: &Option<PerLink>,
    workers: usize,
    must: &str,
    is_good: impl Fn(f64) -> bool,
) -> Result<(), ConfigError> {
    let wrong =
        |value: String, must: &str| Err(ConfigError::Value { key: format!("clock.{key}"), value, must: must.into() });
    let is_bad = |value: f64| !(is_good(value) && value.is_finite());
    match values {
        Some(PerLink::All(value)) if is_bad(*value) => wrong(value.to_string(), must),
        None | Some(PerLink::All(_)) => Ok(()),
        Some(PerLink::Each(rows)) => {
            if rows.len() != workers || rows.iter().any(|row| row.len() != workers) {
                let must = format!("a number, or {workers} rows of {workers} numbers");
                return wrong(format!("{} rows", rows.len()), &must);
            }
            let entries = rows.iter().enumerate().flat_map(|(from, row)| {
                // What a worker has with itself does not matter.
                let others = row.iter().enumerate().filter(move |(to, _)| *to != from);
                others.map(|(_, value)| *value)
            });
            match entries.into_iter().find(|value| is_bad(*value)) {
                Some(value) => wrong(value.to_string(), must),
                None => Ok(()),
            }
        }
    }
}
