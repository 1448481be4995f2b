//! `upwash keys`

use anyhow::Result;
use std::io::Write;
use std::path::PathBuf;
use upwash_peers::Key;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Make a key in a new file that only its owner can read, and show its fingerprint
    New {
        /// The file
        #[arg(default_value = "upwash.key")]
        file: PathBuf,
    },
    /// Show the fingerprint of a key: what the configuration lists
    Show {
        /// The file
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
