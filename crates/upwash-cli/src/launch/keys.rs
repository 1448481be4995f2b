//! The keys and addresses that `upwash launch` makes for its peers.
//!
//! Private keys stay out of the folder of results, which people copy and share. They live in the user's state folder
//! while a run is launched, and are removed when all of its peers have ended.

use crate::files;
use anyhow::{Context, Result, ensure};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use upwash::config::PeerConfig;
use upwash_peers::Key;

/// The folder with the keys of one launch.
pub(super) struct Keys {
    folder: PathBuf,
}

impl Keys {
    /// Creates the folder with a key for each worker, for a run in `out`. Reuses the keys of a launch that was killed.
    pub(super) fn create(out: &Path, workers: usize) -> Result<Self> {
        let folder = key_folder(out)?;
        make_private(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let keys = Self { folder };
        for worker in 0..workers {
            let file = keys.file(worker);
            if !file.exists() {
                Key::generate().save(&file)?;
            }
        }
        Ok(keys)
    }

    /// The key of a worker.
    pub(super) fn file(&self, worker: usize) -> PathBuf {
        self.folder.join(format!("peer-{worker}.key"))
    }

    /// A free local address for each worker, with the fingerprint of its key.
    pub(super) fn peers(&self, workers: usize) -> Result<Vec<PeerConfig>> {
        // All listeners are open at once, so that the ports differ. The ports lie below the ephemeral range, from which
        // the system could assign one to an outgoing connection before the peer listens.
        let first = std::process::id().wrapping_mul(97) % 22_000;
        let ports = (0..22_000).map(|next| 10_000 + (first + next) % 22_000);
        let free: Vec<TcpListener> =
            ports.filter_map(|port| TcpListener::bind(("127.0.0.1", port as u16)).ok()).take(workers).collect();
        ensure!(free.len() == workers, "fewer than {workers} free ports from 10000 to 31999 on this machine");
        let peer = |(worker, listener): (usize, &TcpListener)| {
            let key = Key::load(&self.file(worker))?;
            Ok(PeerConfig { address: listener.local_addr()?.to_string(), key: key.fingerprint().to_string() })
        };
        free.iter().enumerate().map(peer).collect()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The folder of the keys for a run in `out`, which exists.
fn key_folder(out: &Path) -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .or_else(|| variable("LOCALAPPDATA"));
    let state = state.context("there is no folder for keys: set HOME or XDG_STATE_HOME")?;
    let out = out.canonicalize().with_context(|| format!("cannot read {}", out.display()))?;
    let mut hasher = DefaultHasher::new();
    out.hash(&mut hasher);
    Ok(state.join("upwash/launch").join(format!("{:016x}", hasher.finish())))
}

/// Creates a folder that only its owner can enter.
fn make_private(folder: &Path) -> Result<()> {
    if let Some(parent) = folder.parent() {
        files::make_folder(parent)?;
    }
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        created => Ok(created?),
    }
}
