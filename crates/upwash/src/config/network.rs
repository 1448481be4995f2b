//! `[network]`: how processes find each other, and how vectors travel.

use super::ConfigError;
use serde::{Deserialize, Serialize};

/// `[network]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// Numbers on the wire: f32, or bf16 for half the bytes. What algorithms compress is as they say.
    pub precision: WirePrecision,
    /// Every worker's address and key, in the order of their numbers; for `upwash peer`.
    pub peers: Vec<PeerConfig>,
    /// After so many seconds without anything to say, a peer says that it is still there.
    pub heartbeat_seconds: f64,
    /// Who is not heard of for so many seconds is lost.
    pub failure_timeout_seconds: f64,
    /// A message that is not there so many seconds after it was expected does not come.
    pub message_timeout_seconds: f64,
    /// At the start, so many seconds are waited for all neighbors.
    pub startup_timeout_seconds: f64,
}

/// Where a worker is, and how it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// `host:port`.
    pub address: String,
    /// The fingerprint of its key, as `upwash keys show` prints it.
    pub key: String,
}

/// Numbers on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WirePrecision {
    /// Four bytes each: the same results as in one process.
    #[default]
    F32,
    /// Two bytes each, rounded.
    Bf16,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            precision: WirePrecision::F32,
            peers: vec![],
            heartbeat_seconds: 0.5,
            failure_timeout_seconds: 5.0,
            message_timeout_seconds: 60.0,
            startup_timeout_seconds: 30.0,
        }
    }
}

impl NetworkConfig {
    /// Whether nothing was said about it.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: f64, must: &str| {
            Err(ConfigError::Value { key: format!("network.{key}"), value: value.to_string(), must: must.into() })
        };
        let times = [
            ("heartbeat_seconds", self.heartbeat_seconds),
            ("failure_timeout_seconds", self.failure_timeout_seconds),
            ("message_timeout_seconds", self.message_timeout_seconds),
            ("startup_timeout_seconds", self.startup_timeout_seconds),
        ];
        for (key, seconds) in times {
            if !(0.01..=86_400.0).contains(&seconds) {
                return wrong(key, seconds, "from 0.01 to 86400");
            }
        }
        if self.failure_timeout_seconds < 3.0 * self.heartbeat_seconds {
            let must = "at least three heartbeats (network.heartbeat_seconds): one may be late";
            return wrong("failure_timeout_seconds", self.failure_timeout_seconds, must);
        }
        if self.message_timeout_seconds < self.failure_timeout_seconds {
            let must = "at least network.failure_timeout_seconds: who is gone is noticed by that";
            return wrong("message_timeout_seconds", self.message_timeout_seconds, must);
        }
        Ok(())
    }
}
