//! `[network]`: how processes reach each other, and how they encode vectors on the wire.

use super::ConfigError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[network]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// The precision of numbers on the wire: `f32`, or `bf16` for half the bytes. Algorithms that compress messages
    /// use the format of their compressor instead.
    pub precision: WirePrecision,
    /// The address and key of every worker, in the order of the worker IDs. For `upwash peer`.
    pub peers: Vec<PeerConfig>,
    /// The interval between heartbeats, in seconds.
    pub heartbeat_seconds: f64,
    /// A peer that sends nothing for this many seconds counts as lost.
    pub failure_timeout_seconds: f64,
    /// The longest that a peer waits for an expected message, in seconds. Once the duration of rounds is known, it waits
    /// as long as four rounds and eight times their deviation, but at least `failure_timeout_seconds`.
    pub message_timeout_seconds: f64,
    /// How long a peer waits for all of its neighbors at startup, in seconds.
    pub startup_timeout_seconds: f64,
    /// How long a peer waits if it has no link to any other peer, in seconds. Then it writes a checkpoint and stops, with
    /// exit code 4.
    pub isolation_seconds: f64,
}

/// The address and the key of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// `host:port`.
    pub address: String,
    /// The fingerprint of the worker's key, as printed by `upwash keys show`.
    pub key: String,
}

/// The precision of numbers on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WirePrecision {
    /// Four bytes per number. The results equal those of a run in one process.
    #[default]
    F32,
    /// Two bytes per number, rounded.
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
            isolation_seconds: 120.0,
        }
    }
}

impl NetworkConfig {
    /// Whether all values are defaults.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that all timeouts are in range and consistent with each other.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key: &str, value: f64, must: &str| {
            Err(ConfigError::Value { key: format!("network.{key}"), value: value.to_string(), must: must.into() })
        };
        let times = [
            ("heartbeat_seconds", self.heartbeat_seconds),
            ("failure_timeout_seconds", self.failure_timeout_seconds),
            ("message_timeout_seconds", self.message_timeout_seconds),
            ("startup_timeout_seconds", self.startup_timeout_seconds),
            ("isolation_seconds", self.isolation_seconds),
        ];
        for (key, seconds) in times {
            if !(0.01..=86_400.0).contains(&seconds) {
                return invalid(key, seconds, "must be from 0.01 to 86400");
            }
        }
        if self.failure_timeout_seconds < 3.0 * self.heartbeat_seconds {
            let must = "must be at least three heartbeats (3 x network.heartbeat_seconds), because one may be late";
            return invalid("failure_timeout_seconds", self.failure_timeout_seconds, must);
        }
        if self.message_timeout_seconds < self.failure_timeout_seconds {
            let must =
                "must be at least network.failure_timeout_seconds, which is the time it takes to detect a lost peer";
            return invalid("message_timeout_seconds", self.message_timeout_seconds, must);
        }
        Ok(())
    }
}
