//! `upwash launch`: all peers of a run on one machine.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{error, interrupted, outcome, said, summary, upwash};
use std::path::Path;
use std::process::{Command, Stdio};

const RING: &str = "model = \"softmax\"\n[graph]\ntopology = \"file:graph.txt\"\n[training]\nepochs = 2\n";

/// A folder with a graph, a configuration on it, and one on another graph.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("graph.txt", "0 1\n1 2\n2 3\n3 0\n");
    write("ring.toml", RING);
    write("pair.toml", "model = \"softmax\"\n[graph]\ntopology = \"complete:2\"\n[training]\nepochs = 2\n");
    folder
}

fn events(run: &Path) -> String {
    std::fs::read_to_string(run.join("events.jsonl")).unwrap_or_default()
}

#[test]
fn folder_holds_only_one_run() {
    let folder = folder();
    let here = folder.path();
    let table = said(here, &["launch", "ring.toml", "--out", "one"]);
    assert!(table.contains("    mean  "), "{table}");
    let before = std::fs::read(here.join("one/peers.toml")).unwrap();
    for other in [
        &["launch", "ring.toml", "--set", "seed=9", "--out", "one"][..],
        &["launch", "pair.toml", "--out", "one"],
        &["train", "ring.toml", "--out", "one"],
    ] {
        let said = error(here, other);
        assert!(said.contains("one holds a") && said.contains("--out"), "{said}");
    }
    assert_eq!(std::fs::read(here.join("one/peers.toml")).unwrap(), before);
    // A run that has ended is shown, not run again.
    let again = said(here, &["launch", "ring.toml", "--out", "one"]);
    assert!(again.starts_with("the run in one has already ended"), "{again}");
    assert!(again.ends_with(table.split_once("\n\n").unwrap().1), "{again}");
    let resumed = error(here, &["train", "ring.toml", "--out", "one", "--resume"]);
    assert!(resumed.contains("resume it with `upwash launch` and the same --out"), "{resumed}");
    assert!(!here.join("one/events.jsonl").exists());
    said(here, &["train", "ring.toml", "--out", "whole"]);
    let said = error(here, &["launch", "ring.toml", "--out", "whole"]);
    assert!(said.contains("whole holds a run already"), "{said}");
}

/// Results that a failed peer left earlier are not shown.
#[test]
fn failed_peer_is_reported() {
    let folder = folder();
    let here = folder.path();
    said(here, &["launch", "pair.toml", "--out", "run"]);
    for name in ["events.jsonl", "summary.json"] {
        std::fs::remove_file(here.join("run/peer-1").join(name)).unwrap();
    }
    std::fs::create_dir(here.join("run/peer-1/events.jsonl")).unwrap();
    let output = upwash(here, &["launch", "pair.toml", "--out", "run"]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("1    failed: see run/peer-1.log"), "{table}");
}

#[test]
fn server_is_reported_separately() {
    let folder = folder();
    let here = folder.path();
    let set = ["--set", "graph.topology=star:4", "--set", "algorithm.name=downpour"];
    let launch = ["launch", "pair.toml", "--out", "run"];
    let arguments: Vec<&str> = launch.into_iter().chain(set).collect();
    let table = said(here, &arguments);
    let server = table.lines().find(|line| line.ends_with("the server")).unwrap();
    let model = summary(&here.join("run/peer-0"));
    let accuracy = 100.0 * model["averaged_model_accuracy"].as_f64().unwrap();
    assert!(server.contains(&format!("{accuracy:.2} %")), "{table}");
    let log = std::fs::read_to_string(here.join("run/peer-0.log")).unwrap();
    assert!(log.contains("the server") && !log.contains("NaN"), "{log}");
    // The bytes of the server count, and it has epochs like every worker.
    let sent = |worker: usize| {
        let summary = summary(&here.join(format!("run/peer-{worker}")));
        summary["bytes_sent"].as_u64().unwrap()
    };
    let csv = said(here, &["export", "run", "--csv", "-"]);
    let shown: Vec<u64> = csv.lines().skip(1).map(|line| line.split(',').nth(6).unwrap().parse().unwrap()).collect();
    let (last, all) = (*shown.last().unwrap(), (0..4).map(sent).sum::<u64>());
    // The server sends its last replies after the end of the last epoch.
    assert!(last <= all && last > sent(0) * 3 / 2, "{last} of {all}");
    let epochs = events(&here.join("run/peer-0")).matches("\"event\":\"epoch\"").count();
    assert_eq!(epochs, 2);
}

/// A server that is interrupted with the workers resumes with them.
#[test]
fn interrupted_server_resumes() {
    let folder = folder();
    let here = folder.path();
    let launch: Vec<&str> = [
        "launch",
        "pair.toml",
        "--out",
        "run",
        "--set",
        "graph.topology=star:3",
        "--set",
        "algorithm.name=downpour",
        "--set",
        "training.epochs=100",
    ]
    .into();
    let worker = here.join("run/peer-1");
    let stopped = interrupted(here, &launch, || events(&worker).contains("\"event\":\"epoch\""));
    assert_eq!(stopped.status.code(), Some(130));
    for peer in ["peer-0", "peer-1", "peer-2"] {
        let summary = summary(&here.join("run").join(peer));
        assert_eq!(summary["status"], "interrupted", "{peer}");
    }
    let table = said(here, &launch);
    assert!(table.contains("the server") && table.contains("    mean  "), "{table}");
    let rounds = |peer: &str| summary(&here.join("run").join(peer))["rounds"].clone();
    assert_eq!(rounds("peer-0"), rounds("peer-1"));
    let text = events(&here.join("run/peer-0"));
    let mut starts = text.lines().filter(|line| line.contains("\"event\":\"started\""));
    let last: serde_json::Value = serde_json::from_str(starts.next_back().unwrap()).unwrap();
    assert!(last["round"].as_u64().unwrap() > 0, "the server started from round 0");
}

#[test]
fn divergence_is_reported() {
    let folder = folder();
    let here = folder.path();
    let launch = ["launch", "pair.toml", "--set", "training.learning_rate=1e9", "--out", "run"];
    let output = upwash(here, &launch);
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{table}");
    assert!(table.contains("diverged in round"), "{table}");
}

/// Closed output pipes do not end a run, and no peer process is left behind.
#[test]
fn closed_pipes_do_not_stop_a_run() {
    let folder = folder();
    let here = folder.path();
    for (name, arguments) in [("whole", ["train", "ring.toml"]), ("peers", ["launch", "ring.toml"])] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_upwash"))
            .args(arguments)
            .args(["--out", name])
            .current_dir(here)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert!(child.wait().unwrap().success(), "{name}");
    }
    assert_eq!(outcome(&here.join("whole"))["status"], "finished");
    assert_eq!(outcome(&here.join("peers/peer-3"))["status"], "finished");
}

/// A peer reports missing neighbors, and can be stopped while it waits for them.
#[test]
fn missing_peers_are_reported() {
    let folder = folder();
    let here = folder.path();
    said(here, &["launch", "pair.toml", "--out", "run"]);
    let text = std::fs::read_to_string(here.join("run/peers.toml")).unwrap();
    let alone = |name: &str, seconds: &str| {
        let with = |line: &str| match line.starts_with("startup_timeout_seconds") {
            true => format!("startup_timeout_seconds = {seconds}\n"),
            false => format!("{line}\n"),
        };
        std::fs::write(here.join(name), text.lines().map(with).collect::<String>()).unwrap();
    };
    alone("soon.toml", "0.2");
    alone("late.toml", "3600.0");
    let peer = |config: &'static str, out: &'static str, id: &'static str, key: &'static str| {
        ["peer", config, "--id", id, "--key", key, "--out", out]
    };
    for (out, id, key, why) in [
        ("a", "0", "run/peer-0.key", "worker 1 is missing (Connection refused"),
        ("b", "1", "run/peer-1.key", "worker 0 is missing (it has not connected)"),
    ] {
        let output = upwash(here, &peer("soon.toml", out, id, key));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.contains(why), "{error}");
        assert!(events(&here.join(out)).contains("\"change\":\"missing\""));
    }
    let waits = || here.join("c/events.jsonl").exists();
    let stopped = interrupted(here, &peer("late.toml", "c", "0", "run/peer-0.key"), waits);
    assert_eq!(stopped.status.code(), Some(130));
    assert_eq!(summary(&here.join("c"))["rounds"], 0);
}

/// The location of a graph file does not matter, and a run keeps a copy of it.
#[test]
fn graph_file_may_be_in_any_folder() {
    let folder = folder();
    let here = folder.path();
    said(here, &["train", "ring.toml", "--out", "one"]);
    std::fs::create_dir(here.join("else")).unwrap();
    for name in ["ring.toml", "graph.txt"] {
        std::fs::rename(here.join(name), here.join("else").join(name)).unwrap();
    }
    said(here, &["train", "else/ring.toml", "--out", "two"]);
    said(here, &["train", "one/config.toml", "--out", "three"]);
    let config = |run: &str| std::fs::read_to_string(here.join(run).join("config.toml")).unwrap();
    assert_eq!(config("one"), config("two"));
    assert_eq!(config("one"), config("three"));
}
