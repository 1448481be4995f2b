//! Errors in the use of the command line, in the words of its user.

use clap::error::ErrorKind;
use std::io::Write;
use std::process::ExitCode;

/// What parsers of numbers say, and what the user should do.
const NUMBERS: [(&str, &str); 4] = [
    ("invalid digit found in string", "write a whole number"),
    ("number would be zero for non-zero type", "write a whole number of at least 1"),
    ("invalid float literal", "write a number"),
    ("number too large to fit in target type", "write a smaller number"),
];

/// Prints what is wrong, or the help that was asked for.
pub(crate) fn print(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let mut text = match std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    if text.contains("invalid value '-") {
        text = text.replace("invalid digit found in string", "write a whole number that is not negative");
    }
    for (internal, remedy) in NUMBERS {
        text = text.replace(internal, remedy);
    }
    if error.kind() == ErrorKind::ValueValidation {
        text = ranges(&text);
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::from(crate::runs::REFUSED)
}

/// Replaces "0 is not in 1..=1024" by "write a whole number from 1 to 1024".
fn ranges(text: &str) -> String {
    let Some((before, range)) = text.split_once(" is not in ") else {
        return text.to_owned();
    };
    let (range, after) = range.split_once('\n').unwrap_or((range, ""));
    let (Some((before, _)), Some((least, most))) = (before.rsplit_once(": "), range.split_once("..=")) else {
        return text.to_owned();
    };
    format!("{before}: write a whole number from {least} to {most}\n{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_out() {
        let text = "error: invalid value '0' for '--threads <N>': 0 is not in 1..=1024\n\nFor more\n";
        let expected =
            "error: invalid value '0' for '--threads <N>': write a whole number from 1 to 1024\n\nFor more\n";
        assert_eq!(ranges(text), expected);
        assert_eq!(ranges("error: other\n"), "error: other\n");
    }
}
