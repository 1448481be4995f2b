//! `upwash init`: writes a configuration to start from.

use crate::files;
use anyhow::{Result, ensure};
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file to write; - is stdout
    #[arg(default_value = "upwash.toml")]
    file: PathBuf,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let text = upwash::schema::template();
    if args.file.as_os_str() == "-" {
        return Ok(out.write_all(text.as_bytes())?);
    }
    let file = args.file.display();
    ensure!(!args.file.exists(), "{file} exists: name another file, or remove it");
    files::write(&args.file, text.as_bytes())?;
    Ok(writeln!(out, "{file} has every key with its default; edit it, then: upwash train {file}")?)
}
