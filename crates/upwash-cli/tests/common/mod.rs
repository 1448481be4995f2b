//! What tests of the program have in common.
#![allow(dead_code, clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `upwash ARGUMENTS` in a folder, to its end, with a store of data of its own: tests leave no trace in the user's.
pub fn upwash(folder: &Path, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_upwash"));
    program
        .env("UPWASH_DATA", folder.join("data"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// What it prints, where all goes well.
pub fn said(folder: &Path, arguments: &[&str]) -> String {
    let output = upwash(folder, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it says of a mistake.
pub fn error(folder: &Path, arguments: &[&str]) -> String {
    let output = upwash(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Begins `upwash ARGUMENTS`, interrupts it once it has `ready`, and gives what it says at its end.
pub fn interrupted(folder: &Path, arguments: &[&str], ready: impl Fn() -> bool) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_upwash"));
    let child = program
        .env("UPWASH_DATA", folder.join("data"))
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ready() {
        assert!(Instant::now() < deadline, "{arguments:?} did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut kill = Command::new("kill");
    kill.args(["-INT", &child.id().to_string()]);
    assert!(kill.status().unwrap().success());
    ended(child)
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

/// Runs it to its end, but not for ever.
pub fn finish(mut command: Command) -> Output {
    ended(command.spawn().expect("mpirun: install openmpi-bin"))
}

/// Waits for its end, but not for ever.
pub fn ended(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

pub fn summary(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The summary without the time it took.
pub fn outcome(folder: &Path) -> Value {
    let mut summary = summary(folder);
    assert!(summary["wall_seconds"].as_f64().unwrap() > 0.0);
    summary.as_object_mut().unwrap().remove("wall_seconds");
    summary
}

/// Losses by (round, worker) of all processes' events.
pub fn losses(folder: &Path) -> Vec<Vec<f64>> {
    let mut found: Vec<Vec<f64>> = Vec::new();
    let mut folders = vec![folder.to_owned()];
    let inside = std::fs::read_dir(folder).unwrap();
    folders.extend(
        inside
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir()),
    );
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
