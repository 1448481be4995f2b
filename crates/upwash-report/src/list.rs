//! Folders of runs: which runs are in them, and a table of their results.

use crate::follow::holds_run;
use crate::{ReadError, Run};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use upwash::run::Status;

/// How deep runs are looked for, for example `runs/demo/al-dsgd/seed-1` in `runs`.
const MAX_DEPTH: usize = 5;
/// The width of the names of runs. Longer names have a line of their own.
const NAME_WIDTH: usize = 30;

/// The runs in a folder, or the folder itself if it is a run. In the order of their names.
pub fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    search(folder, MAX_DEPTH, &mut found);
    found
}

fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if holds_run(folder) {
        found.push(folder.to_owned());
        return;
    }
    if depth == 0 {
        return;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort_by_key(|path| numbers_by_value(&path.to_string_lossy()));
    folders.iter().for_each(|folder| search(folder, depth - 1, found));
}

/// A key by which `seed-2` comes before `seed-10`.
fn numbers_by_value(name: &str) -> Vec<(String, u64)> {
    let mut parts: Vec<(String, u64)> = vec![(String::new(), 0)];
    let mut after_digit = false;
    for character in name.chars() {
        let digit = character.to_digit(10);
        if after_digit && digit.is_none() {
            parts.push((String::new(), 0));
        }
        if let Some((text, number)) = parts.last_mut() {
            match digit {
                Some(digit) => *number = number.saturating_mul(10).saturating_add(digit.into()),
                None => text.push(character),
            }
        }
        after_digit = digit.is_some();
    }
    parts
}

/// A line for each run of a folder: its state, epochs and test accuracies. A run that cannot be read has its error.
pub fn list(folder: &Path, runs: &[PathBuf]) -> String {
    let mut text = format!("{} runs in {}\n\n", runs.len(), folder.display());
    let head = ["state", "epochs", "mean %", "worst %", "averaged %"];
    let _ =
        writeln!(text, "{:<NAME_WIDTH$}{:>12}{:>11}{:>8}{:>8}{:>11}", "", head[0], head[1], head[2], head[3], head[4]);
    for path in runs {
        let name = path.strip_prefix(folder).unwrap_or(path).display().to_string();
        let name = upwash::files::printable(&name);
        match Run::read(path) {
            Ok(run) => write_row(&mut text, &name, &run),
            Err(ReadError::Empty(_)) => write_text(&mut text, &name, "not started"),
            Err(error) => write_text(&mut text, &name, &error.to_string()),
        }
    }
    text
}

fn write_name(text: &mut String, name: &str) {
    if name.chars().count() < NAME_WIDTH {
        let _ = write!(text, "{name:<NAME_WIDTH$}");
    } else {
        let _ = write!(text, "{name}\n{:NAME_WIDTH$}", "");
    }
}

fn write_text(text: &mut String, name: &str, what: &str) {
    write_name(text, name);
    let _ = writeln!(text, "  {what}");
}

fn write_row(text: &mut String, name: &str, run: &Run) {
    let state = match &run.ending {
        Some(Status::Finished) => "finished",
        Some(Status::Diverged { .. }) => "diverged",
        Some(Status::Interrupted { .. }) => "stopped",
        Some(Status::Isolated { .. }) => "isolated",
        None if run.is_running => "running",
        None => "cut off",
    };
    let every = run.rounds_per_epoch.max(1);
    let epochs = format!("{}/{}", run.rounds_run / every, run.rounds / every);
    let accuracies: Vec<f64> = run.last_accuracies().into_iter().map(|(_, accuracy)| accuracy).collect();
    let percent = |part: Option<f64>| part.map_or("-".to_owned(), |part| format!("{:.2}", 100.0 * part));
    let mean = (!accuracies.is_empty()).then(|| crate::statistics::mean(&accuracies));
    let worst = accuracies.into_iter().reduce(f64::min);
    write_name(text, name);
    let _ = writeln!(
        text,
        "{state:>12}{epochs:>11}{:>8}{:>8}{:>11}",
        percent(mean),
        percent(worst),
        percent(run.averaged_accuracy)
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_in_names_are_compared_by_value() {
        let mut names = ["seed-10", "seed-2", "a=0.5,b=10", "a=0.5,b=9", "seed"];
        names.sort_by_key(|name| super::numbers_by_value(name));
        assert_eq!(names, ["a=0.5,b=9", "a=0.5,b=10", "seed", "seed-2", "seed-10"]);
    }
}
