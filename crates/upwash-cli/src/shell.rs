//! What shells and manuals want to know about the program itself: its version, completions, manual pages.

use anyhow::{Context, Result};
use clap::CommandFactory;
use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The version with the commit and the optional parts that it was built with.
pub(crate) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let parts = [("libtorch", cfg!(feature = "torch")), ("mpi", cfg!(feature = "mpi"))];
        let built: Vec<&str> = parts.iter().filter(|part| part.1).map(|part| part.0).collect();
        let features = if built.is_empty() { "none".into() } else { built.join(", ") };
        format!("{}\ncommit: {}\nfeatures: {features}", env!("CARGO_PKG_VERSION"), upwash_cli::COMMIT)
    });
    &TEXT
}

#[derive(clap::Args)]
pub(crate) struct CompletionArgs {
    /// The shell to complete for
    shell: clap_complete::Shell,
}

pub(crate) fn completions(args: &CompletionArgs, out: &mut impl Write) -> Result<()> {
    // In one piece: the generator panics where writing fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "upwash", &mut script);
    Ok(out.write_all(&script)?)
}

#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// The folder, which is made if it is missing
    folder: PathBuf,
}

pub(crate) fn man(args: &ManArgs, out: &mut impl Write) -> Result<()> {
    let folder = &args.folder;
    crate::files::make_folder(folder)?;
    clap_mangen::generate_to(crate::Cli::command(), folder)
        .with_context(|| format!("cannot write manual pages into {}", folder.display()))?;
    Ok(writeln!(out, "manual pages are in {}: `man -l {}/upwash.1`", folder.display(), folder.display())?)
}
