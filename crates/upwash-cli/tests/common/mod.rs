//! Helpers shared by the tests of the program.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use upwash_testkit::program::Program;

pub use upwash_testkit::program::wait_with_timeout;

const UPWASH: Program = Program::new(env!("CARGO_BIN_EXE_upwash"));

/// `upwash ARGUMENTS` in a folder, not started yet.
pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    UPWASH.command(folder, arguments)
}

/// Runs `upwash ARGUMENTS` in a folder to its end.
pub fn upwash(folder: &Path, arguments: &[&str]) -> Output {
    UPWASH.output(folder, arguments)
}

/// Runs the program, which must succeed, and returns its stdout.
pub fn said(folder: &Path, arguments: &[&str]) -> String {
    UPWASH.said(folder, arguments)
}

/// Runs the program, which must fail with exit code 2, and returns its stderr.
pub fn error(folder: &Path, arguments: &[&str]) -> String {
    UPWASH.error(folder, arguments)
}

/// Starts the program, interrupts it once `ready` is true, and returns its output.
pub fn interrupted(folder: &Path, arguments: &[&str], ready: impl Fn() -> bool) -> Output {
    UPWASH.interrupted(folder, arguments, ready)
}

/// `mpirun -np RANKS upwash train ARGUMENTS --transport mpi`, not started yet.
pub fn mpirun(folder: &Path, ranks: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command
        .current_dir(folder)
        .args(["--allow-run-as-root", "--oversubscribe", "-np"])
        .arg(ranks.to_string())
        .arg(env!("CARGO_BIN_EXE_upwash"))
        .arg("train")
        .args(arguments)
        .args(["--transport", "mpi"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command to its end, with a timeout.
pub fn finish(mut command: Command) -> Output {
    wait_with_timeout(command.spawn().expect("mpirun: install openmpi-bin"))
}

/// A text without its line breaks, which depend on the width of the output.
pub fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub fn summary(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The summary without the wall-clock time.
pub fn outcome(folder: &Path) -> Value {
    let mut summary = summary(folder);
    assert!(summary["wall_seconds"].as_f64().unwrap() > 0.0);
    summary.as_object_mut().unwrap().remove("wall_seconds");
    summary
}

/// Losses by (round, worker), from the events of all processes.
pub fn losses(folder: &Path) -> Vec<Vec<f64>> {
    let mut found: Vec<Vec<f64>> = Vec::new();
    let mut folders = vec![folder.to_owned()];
    let inside = std::fs::read_dir(folder).unwrap();
    folders.extend(inside.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()));
    for folder in folders {
        let Ok(text) = std::fs::read_to_string(folder.join("events.jsonl")) else {
            continue;
        };
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            if event["event"] != "round" {
                continue;
            }
            let round = event["round"].as_u64().unwrap() as usize;
            let all = event["losses"].as_array().unwrap();
            if found.len() <= round {
                found.resize(round + 1, vec![f64::NAN; all.len()]);
            }
            for (worker, loss) in all.iter().enumerate() {
                if let Some(loss) = loss.as_f64() {
                    found[round][worker] = loss;
                }
            }
        }
    }
    found
}
