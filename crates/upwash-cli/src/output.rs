//! Output to stdout and stderr that tolerates closed pipes.

use anyhow::Result;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// A writer that ignores a closed pipe, as in `upwash topology list | head -1`. A run continues without its output,
/// since its results are in its folder.
pub struct Output<W>(pub W);

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(bytes.len()),
            written => written,
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            flushed => flushed,
        }
    }
}

/// Whether progress and notes are left out: `--quiet`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves progress and notes out from now on.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether only results, warnings and errors are printed.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a line to stderr. Unlike `eprintln!`, it does not panic if stderr is closed.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::output::write_line(format_args!($($text)*))
    };
}
pub use tell;

/// Prints a line to stderr unless `--quiet` is given.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => {
        if !$crate::output::is_quiet() {
            $crate::output::write_line(format_args!($($text)*))
        }
    };
}
pub use note;

/// Writes a line to stderr and ignores errors; the implementation of `tell!`.
pub fn write_line(line: std::fmt::Arguments) {
    // In a single write, because other processes may write to the same stderr.
    let line = format!("{line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Flushes the output, prints the error if there is one, and returns the exit code of the program.
pub fn finish(result: Result<ExitCode>, mut out: impl Write) -> ExitCode {
    match result.and_then(|code| Ok((out.flush()?, code))) {
        Ok(((), code)) => code,
        Err(error) => {
            tell!("error: {error:#}");
            crate::runs::error_code(&error)
        }
    }
}
