//! The configuration of a peer, from the experiment that all peers share.

use crate::{Fingerprint, Key, KeyError, Limits, PeersConfig, Timings};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;
use upwash::algorithm::Exchange;
use upwash::config::{Config, NetworkConfig};
use upwash::engine::{Engine, EngineError};
use upwash::experiment::Experiment;

/// The most vectors that any algorithm sends in a message.
const MAX_VECTORS: usize = 4;
/// Which kinds of exchanges an algorithm has is decided by at most this many rounds.
const CHECKED_ROUNDS: u64 = 1 << 20;

/// Why a process cannot be a peer of an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The configuration does not list every worker.
    #[error(
        "network.peers lists {listed} workers, but the graph `{graph}` has {workers}: list an address and a key for \
         each worker, or try `upwash launch -n {workers}` on one machine first"
    )]
    Count {
        /// The number of listed workers.
        listed: usize,
        /// The number of workers of the graph.
        workers: usize,
        /// The graph.
        graph: String,
    },
    /// The listed key of a worker is not a fingerprint.
    #[error("network.peers, worker {worker}: {source}")]
    Key {
        /// The worker.
        worker: usize,
        /// The cause.
        source: KeyError,
    },
    /// No worker has this key.
    #[error(
        "network.peers lists no worker with the key {0}: list it as the key of this worker, or use the key of a listed \
         worker"
    )]
    Unlisted(Fingerprint),
    /// The worker does not exist.
    #[error("worker {worker}: workers are numbered from 0 to {last}")]
    Worker {
        /// The worker.
        worker: usize,
        /// The last worker.
        last: usize,
    },
    /// Another process uses the key.
    #[error(
        "another process runs worker {worker} with the key {}: stop it first, or wait until it ends", path.display()
    )]
    InUse {
        /// The worker.
        worker: usize,
        /// The key file.
        path: PathBuf,
    },
    /// The algorithm does not survive the loss of a worker.
    #[error(
        "{algorithm} cannot go on when a worker is lost, as peers may be: choose an algorithm that can, such as dpsgd, \
         al-dsgd, local-sgd or, with a server, async-easgd; or train in one process or over MPI, with `upwash train`"
    )]
    NeedsAll {
        /// The algorithm.
        algorithm: String,
    },
    /// A timeout is out of range.
    #[error("network: {0} seconds are too long")]
    Seconds(f64),
    /// The key file cannot be read.
    #[error(transparent)]
    KeyFile(#[from] KeyError),
    /// The size of the engine's state is not known.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The address and key fingerprint of every worker that a configuration lists.
pub fn listed_peers(config: &Config) -> Result<Vec<(String, Fingerprint)>, SetupError> {
    let peers = config.network.peers.iter().enumerate();
    let parse = |(worker, peer): (usize, &upwash::config::PeerConfig)| match peer.key.parse() {
        Ok(key) => Ok((peer.address.clone(), key)),
        Err(source) => Err(SetupError::Key { worker, source }),
    };
    peers.map(parse).collect()
}

/// The worker whose listed key this is.
///
/// ```
/// use upwash::{Config, experiment::{DataPaths, Experiment}};
/// use upwash_peers::{Key, own_worker};
/// let keys = [Key::generate(), Key::generate()];
/// let [first, second] = [&keys[0], &keys[1]].map(|key| format!(r#"{{ address = "localhost:0", key = "{}" }}"#, key.fingerprint()));
/// let config = format!("graph.topology = \"complete:2\"\nnetwork.peers = [{first}, {second}]");
/// let experiment = Experiment::prepare(Config::parse(&config, &[])?, &DataPaths::default())?;
/// assert_eq!(own_worker(&experiment, &keys[1])?, 1);
/// assert!(own_worker(&experiment, &Key::generate()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn own_worker(experiment: &Experiment, key: &Key) -> Result<usize, SetupError> {
    let peers = peers_of(experiment)?;
    let found = peers.iter().position(|(_, listed)| *listed == key.fingerprint());
    found.ok_or_else(|| SetupError::Unlisted(key.fingerprint()))
}

/// The address and key fingerprint of every worker of an experiment.
pub fn peers_of(experiment: &Experiment) -> Result<Vec<(String, Fingerprint)>, SetupError> {
    let (workers, peers) = (experiment.workers(), listed_peers(&experiment.config)?);
    match peers.len() == workers {
        true => Ok(peers),
        false => {
            let graph = experiment.config.graph.topology.to_string();
            Err(SetupError::Count { listed: peers.len(), workers, graph })
        }
    }
}

/// Refuses algorithms that do not survive the loss of a worker: those that need a server in each round, or that choose
/// among the workers from what all of them report.
pub fn check_algorithm(experiment: &Experiment) -> Result<(), SetupError> {
    let needs_all = |exchange: &Exchange| {
        matches!(exchange, Exchange::Chosen | Exchange::Server | Exchange::ToServer | Exchange::FromServer)
    };
    let algorithm = experiment.method.synchronous();
    let rounds = 0..experiment.rounds().min(CHECKED_ROUNDS);
    match algorithm
        .is_some_and(|algorithm| rounds.clone().any(|round| algorithm.exchanges(round).iter().any(needs_all)))
    {
        true => Err(SetupError::NeedsAll { algorithm: experiment.algorithm_name() }),
        false => Ok(()),
    }
}

/// Locks the key file of a worker while the returned file is open. Two processes with one key would take each other's
/// connections.
pub fn lock_key(path: &Path, worker: usize) -> Result<File, SetupError> {
    let file = File::open(path).map_err(|source| KeyError::Io { path: path.to_owned(), source })?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(SetupError::InUse { worker, path: path.to_owned() }),
        // Some network file systems do not support locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

impl PeersConfig {
    /// The configuration of the peer of worker `own`, whose engine has only that worker.
    pub fn of(experiment: &Experiment, own: usize, key: Key, engine: &mut dyn Engine) -> Result<Self, SetupError> {
        let (peers, workers) = (peers_of(experiment)?, experiment.workers());
        check_algorithm(experiment)?;
        if own >= workers {
            return Err(SetupError::Worker { worker: own, last: workers - 1 });
        }
        let state: usize = engine.state()?.iter().map(|(name, array)| name.len() + 4 * array.len()).sum();
        let layout = engine.layout();
        let message = MAX_VECTORS * layout.parameter_count() + layout.statistic_count() + 1;
        Ok(Self {
            own,
            key,
            peers,
            listen: None,
            neighbors: experiment.contacts(own.into()).into_iter().map(usize::from).collect(),
            run: experiment.run_number(),
            rounds: experiment.rounds(),
            has_rounds: experiment.method.synchronous().is_some(),
            has_end: experiment.method.synchronous().is_some() && experiment.has_end(),
            limits: Limits { message, model: state + 1024 },
            timings: timings(&experiment.config.network)?,
        })
    }
}

fn timings(network: &NetworkConfig) -> Result<Timings, SetupError> {
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).map_err(|_| SetupError::Seconds(seconds));
    Ok(Timings {
        heartbeat: seconds(network.heartbeat_seconds)?,
        failure_timeout: seconds(network.failure_timeout_seconds)?,
        message_timeout: seconds(network.message_timeout_seconds)?,
        startup_timeout: seconds(network.startup_timeout_seconds)?,
        isolation_timeout: seconds(network.isolation_seconds)?,
        ..Timings::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_second_process_with_one_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [own, other] = ["own.key", "other.key"].map(|name| folder.path().join(name));
        for path in [&own, &other] {
            std::fs::write(path, "key").unwrap();
        }
        let first = lock_key(&own, 3).unwrap();
        let error = lock_key(&own, 3).unwrap_err().to_string();
        let remedy = format!("another process runs worker 3 with the key {}: stop it first, or wait", own.display());
        assert!(error.starts_with(&remedy), "{error}");
        assert!(lock_key(&other, 4).is_ok(), "another key is not locked");
        drop(first);
        assert!(lock_key(&own, 3).is_ok(), "the lock ends with the process");
        assert!(matches!(lock_key(&folder.path().join("no.key"), 3), Err(SetupError::KeyFile(_))));
    }
}
