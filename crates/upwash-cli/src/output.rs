//! What is printed, where its reader may have seen enough.

use anyhow::Result;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Stdout that may be closed, as by `upwash topology list | head -1`: that is no reason to end a run, whose results are in
/// its folder.
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

/// A line on stderr, if it is open: where `eprintln!` panics, nothing is lost.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::output::write_line(format_args!($($text)*))
    };
}
pub use tell;

pub fn write_line(line: std::fmt::Arguments) {
    // In one piece: other processes may write there too.
    let line = format!("{line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The end of a program, or what is said of why it could not do what was asked for.
pub fn finish(result: Result<ExitCode>, mut out: impl Write) -> ExitCode {
    match result.and_then(|code| Ok((out.flush()?, code))) {
        Ok(((), code)) => code,
        Err(error) => {
            tell!("error: {error:#}");
            crate::runs::error_code(&error)
        }
    }
}
