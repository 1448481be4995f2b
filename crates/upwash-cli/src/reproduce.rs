//! `upwash reproduce`: calls `upwash-reproduce`, a program of its own that is not published with this one.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What `upwash-reproduce` is asked for
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = format!("upwash-reproduce{}", std::env::consts::EXE_SUFFIX);
    let own = std::env::current_exe().context("this program cannot be found")?;
    let beside = Some(own.with_file_name(&name)).filter(|program| program.is_file());
    let program = beside.unwrap_or_else(|| name.into());
    match execute(Command::new(&program).args(&args.arguments)) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "upwash-reproduce is neither beside this program nor on the PATH: \
             `cargo build --release -p upwash-paper` builds it"
        ),
        ended => ended.with_context(|| format!("cannot run {}", program.display())),
    }
}

/// In place of this program: interrupts and the exit code are its own.
#[cfg(unix)]
fn execute(command: &mut Command) -> Result<ExitCode, Error> {
    Err(std::os::unix::process::CommandExt::exec(command))
}

#[cfg(not(unix))]
fn execute(command: &mut Command) -> Result<ExitCode, Error> {
    let code = command.status()?.code();
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}
