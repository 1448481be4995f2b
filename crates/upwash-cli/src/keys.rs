//! `upwash keys`: creates and shows the keys of peers.

use anyhow::{Result, anyhow, bail, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};
use upwash_peers::Key;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a key in a new file that only its owner can read, and print its fingerprint
    #[command(after_help = "Example:
  upwash keys new worker-0.key")]
    New {
        /// The key file
        #[arg(default_value = "upwash.key")]
        file: PathBuf,
    },
    /// Print the fingerprint of a key, which the configuration lists
    #[command(after_help = "Example:
  upwash keys show worker-0.key")]
    Show {
        /// The key file
        #[arg(default_value = "upwash.key")]
        file: PathBuf,
    },
}

/// Reads a key. If there is none, the error says how to make one.
pub(crate) fn load(file: &Path) -> Result<Key> {
    Key::load(file).map_err(|error| match file.exists() {
        true => error.into(),
        false => anyhow!("there is no key {0}: make one with `upwash keys new {0}`", file.display()),
    })
}

pub(crate) fn run(command: &Command, out: &mut impl Write) -> Result<()> {
    let key = match command {
        Command::New { file } => {
            ensure!(!file.exists(), "{} exists: name another file, so that no key is lost", file.display());
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
            if let Some(folder) = folder {
                bail!("there is no folder {} for the key: create it, or choose another one", folder.display());
            }
            let key = Key::generate();
            key.save(file)?;
            key
        }
        Command::Show { file } => load(file)?,
    };
    Ok(writeln!(out, "{}", key.fingerprint())?)
}
