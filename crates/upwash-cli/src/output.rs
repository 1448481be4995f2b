//! Output to stdout and stderr that tolerates closed pipes.

use anyhow::Result;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use upwash::files::printable;

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
/// Whether lines of progress have every detail: `--verbose`.
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Leaves progress and notes out from now on, or shows every detail.
pub fn set_verbosity(quiet: bool, verbose: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Whether lines of progress have every detail.
pub fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
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
    // A terminal would interpret control characters, which can come from files.
    let line: String = line.to_string().split('\n').map(|line| printable(line) + "\n").collect();
    // In a single write, because other processes may write to the same stderr.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The width of a terminal that nobody has made wider.
pub const WIDTH: usize = 80;

/// Breaks lines at spaces, so that they fit [`WIDTH`] columns if their words do. What is broken off is indented.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            lines.push('\n');
        }
        let mut column = 0;
        for word in line.split_inclusive(' ') {
            let width = word.trim_end().chars().count();
            if column > indent && column + width > WIDTH {
                lines.truncate(lines.trim_end_matches(' ').len());
                lines += &format!("\n{:indent$}", "");
                column = indent;
            }
            lines += word;
            column += word.chars().count();
        }
    }
    lines
}

/// A warning as it is printed.
pub fn warning(message: &str) -> String {
    wrapped(&format!("warning: {message}"), 2)
}

/// An error and its causes on one line. Some errors already include the text of their cause.
pub fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.is_empty() {
            true => text = cause,
            false if text.contains(cause.trim_end()) => {}
            false => text = format!("{}: {cause}", text.trim_end()),
        }
    }
    text
}

/// Flushes the output, prints the error if there is one, and returns the exit code of the program.
pub fn finish(result: Result<ExitCode>, mut out: impl Write) -> ExitCode {
    match result.and_then(|code| Ok((out.flush()?, code))) {
        Ok(((), code)) => code,
        Err(error) => {
            tell!("error: {}", causes(&error));
            crate::runs::error_code(&error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_at_spaces() {
        let text = format!("{0} {0}\n  {0} {0} end", "a".repeat(45));
        let expected = format!("{0}\n    {0}\n  {0}\n    {0} end", "a".repeat(45));
        assert_eq!(wrapped(&text, 4), expected);
        // A word that does not fit is kept whole.
        let path = "/".repeat(90);
        assert_eq!(wrapped(&path, 2), path);
        assert_eq!(wrapped(&format!("results are in {path}"), 2), format!("results are in\n  {path}"));
        let warning = warning(&"some words ".repeat(20));
        assert!(warning.lines().count() > 2 && warning.lines().all(|line| line.chars().count() <= WIDTH), "{warning}");
    }

    #[test]
    fn causes_are_named_once() {
        let missing = || std::io::Error::new(ErrorKind::NotFound, "No such file (os error 2)");
        let once = anyhow::Error::from(missing()).context("cannot read a.toml");
        assert_eq!(causes(&once), "cannot read a.toml: No such file (os error 2)");
        let path = "a.key".into();
        let included = upwash::run::DirectoryError::Io { action: "read", path, source: missing() };
        let twice = anyhow::Error::from(included).context("worker 3");
        assert_eq!(causes(&twice), "worker 3: cannot read a.key: No such file (os error 2)");
    }
}
