//! `upwash keys`: creates and shows the keys of peers.

use anyhow::Result;
use std::io::Write;
use std::path::PathBuf;
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

pub(crate) fn run(command: &Command, out: &mut impl Write) -> Result<()> {
    let key = match command {
        Command::New { file } => {
            let key = Key::generate();
            key.save(file)?;
            key
        }
        Command::Show { file } => Key::load(file)?,
    };
    Ok(writeln!(out, "{}", key.fingerprint())?)
}
