//! `upwash launch`: all peers of a run on one machine.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{command, error, interrupted, outcome, said, summary, upwash, wait_with_timeout};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use upwash::run::directory;

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
    let evaluated = error(here, &["evaluate", "one"]);
    assert!(evaluated.contains("name one of their folders, for example one/peer-0"), "{evaluated}");
    let inside = error(here, &["train", "ring.toml", "--out", "one/peer-0/more"]);
    assert!(inside.contains("one/peer-0/more is inside the run in"), "{inside}");
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
    // Its checkpoints are those of one worker; nobody is told to remove them.
    let part = error(here, &["train", "--resume", "--out", "one/peer-0", "--epochs", "3"]);
    assert!(part.contains("one peer's part of a run") && part.contains("upwash launch"), "{part}");
    said(here, &["train", "ring.toml", "--out", "whole"]);
    let said = error(here, &["launch", "ring.toml", "--out", "whole"]);
    assert!(said.contains("whole holds a run already"), "{said}");
}

/// A run of peers takes the options of `upwash train`: it starts from a model, keeps the best ones, and gets more epochs.
#[test]
fn launch_changes_configurations_as_train_does() {
    let folder = folder();
    let here = folder.path();
    said(here, &["train", "pair.toml", "--out", "first"]);
    let launch =
        ["launch", "pair.toml", "--out", "run", "--from", "first", "--keep-best", "--unset", "training.epochs"];
    let table = said(here, &[&launch[..], &["--epochs", "1"]].concat());
    assert!(table.contains("    mean  "), "{table}");
    let peer = here.join("run/peer-0");
    assert!(peer.join("best.safetensors").exists());
    let started_from = std::fs::read(peer.join("initial-model.safetensors")).unwrap();
    assert_eq!(started_from, std::fs::read(here.join("first/model.safetensors")).unwrap());
    let rounds = |peer: &Path| summary(peer)["rounds"].as_u64().unwrap();
    let first = rounds(&peer);
    // A launch that is continued need not repeat its overrides.
    said(here, &["launch", "pair.toml", "--out", "run", "--epochs", "3"]);
    assert_eq!(rounds(&peer), 3 * first);
    assert_eq!(rounds(&here.join("run/peer-1")), 3 * first);
    let refused = error(here, &[&launch[..], &["--epochs", "2"]].concat());
    assert!(refused.contains("run holds another run") && refused.contains("--out"), "{refused}");
    assert!(refused.contains("training.epochs"), "{refused}");
    // All peers share the memory of this machine.
    let large = ["--out", "large", "--set", "model=mlp:100000000", "--set", "training.batch_size=1000000"];
    let refused = error(here, &[&["launch", "pair.toml"], &large[..]].concat());
    assert!(refused.contains("of memory, but only") && !here.join("large").exists(), "{refused}");
    // Each of them loads the data set, of 64 MiB here.
    let data = "data.name=synthetic:train=1000000,shape=1x8x8,test=48576";
    let needed = |command: &str| -> f64 {
        let refused = error(here, &[&[command, "pair.toml", "--set", data], &large[..]].concat());
        refused.split(" need ").nth(1).unwrap().split(" GiB").next().unwrap().parse().unwrap()
    };
    let difference = needed("launch") - needed("compare");
    assert!((difference - 2.0 / 16.0).abs() < 0.011, "{difference}");
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
    assert!(table.contains(" %          of 1 tested workers out of 2\n"), "{table}");
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

/// A launch in progress, which is ended by the end of the test.
struct Running(Child);

impl Running {
    /// Starts a launch that takes long, and waits until its peers have completed a round.
    fn start(here: &Path) -> Self {
        let long = ["launch", "ring.toml", "--out", "run", "--set", "training.epochs=100000"];
        let mut started = command(here, &long);
        let child = started.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        for worker in 0..4 {
            let folder = here.join(format!("run/peer-{worker}"));
            wait_until(|| events(&folder).contains("\"event\":\"round\""));
        }
        Self(child)
    }

    /// The process of each peer.
    fn peers(here: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(here.join("run/launch.lock")).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute");
}

fn signal(name: &str, process: &str) {
    assert!(Command::new("kill").args([name, process]).status().unwrap().success());
}

#[test]
fn killed_peer_is_reported_at_once_and_can_be_restarted() {
    let folder = folder();
    let here = folder.path();
    let mut launch = Running::start(here);
    let mut lines = BufReader::new(launch.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    // It talks while it runs.
    let epoch = lines.find(|line| line.starts_with("epoch ")).unwrap();
    assert!(epoch.contains(" of 100000: train loss "), "{epoch}");
    // Private keys are not among the results.
    let inside = Command::new("grep").args(["-rl", "PRIVATE KEY", "run"]).current_dir(here).output().unwrap();
    assert_eq!(String::from_utf8(inside.stdout).unwrap(), "");
    signal("-9", &Running::peers(here)[2]);
    let killed = lines.find(|line| line.starts_with("peer 2")).unwrap();
    assert_eq!(killed, "peer 2 was killed by signal 9; restart it with:");
    let restart = lines.next().unwrap();
    let mut restarted = Command::new("sh");
    restarted.arg("-c").arg(format!("exec {restart}")).current_dir(here);
    let restarted = restarted.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    lines.find(|line| line == "peer 2 is running again").unwrap();
    signal("-INT", &launch.0.id().to_string());
    // The restarted peer is not a child of the launch, and ends with it all the same.
    let ended = wait_with_timeout(restarted);
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(lines.any(|line| line.starts_with("peer 0 has stopped, with a checkpoint")));
    let mut table = String::new();
    std::io::Read::read_to_string(&mut launch.0.stdout.take().unwrap(), &mut table).unwrap();
    assert_eq!(launch.0.wait().unwrap().code(), Some(130));
    assert!(!table.contains("failed") && !table.contains("was killed"), "{table}");
    // The keys are gone, and the next launch makes new ones.
    assert_eq!(std::fs::read_dir(here.join("state/upwash/launch")).unwrap().count(), 0);
}

/// A command that restarts a single peer is printed only as long as the launch, and so its keys, go on.
#[test]
fn the_last_peer_is_restarted_by_another_launch() {
    let folder = folder();
    let here = folder.path();
    let mut launch = Running::start(here);
    let mut lines = BufReader::new(launch.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    for (worker, process) in Running::peers(here).iter().enumerate() {
        signal("-9", process);
        let killed = lines.find(|line| line.starts_with(&format!("peer {worker} "))).unwrap();
        let remedy = if worker < 3 { "restart it with:" } else { "to continue the run, launch it again" };
        assert_eq!(killed, format!("peer {worker} was killed by signal 9; {remedy}"));
    }
    assert_eq!(launch.0.wait().unwrap().code(), Some(1));
}

#[test]
fn peers_do_not_outlive_a_killed_launch() {
    let folder = folder();
    let here = folder.path();
    let mut launch = Running::start(here);
    let peers = Running::peers(here);
    // One peer cannot end yet.
    signal("-STOP", &peers[1]);
    launch.0.kill().unwrap();
    launch.0.wait().unwrap();
    let again = error(here, &["launch", "ring.toml", "--out", "run", "--set", "training.epochs=100000"]);
    signal("-CONT", &peers[1]);
    assert!(again.contains("still running in run") && again.contains(&peers[1]), "{again}");
    for worker in 0..4 {
        let folder = here.join(format!("run/peer-{worker}"));
        wait_until(|| folder.join("summary.json").exists() && !directory::is_running(&folder));
        assert_eq!(summary(&folder)["status"], "interrupted");
    }
}

/// A peer reports missing neighbors, and can be stopped while it waits for them.
#[test]
fn missing_peers_are_reported() {
    let folder = folder();
    let here = folder.path();
    said(here, &["launch", "pair.toml", "--out", "run"]);
    let text = std::fs::read_to_string(here.join("run/peers.toml")).unwrap();
    // The keys of the launch are gone with it.
    let new_key = |file: &str| said(here, &["keys", "new", file]).trim().to_owned();
    let mut keys = [new_key("0.key"), new_key("1.key")].into_iter();
    let with_keys = |line: &str| match line.starts_with("key = ") {
        true => format!("key = \"{}\"", keys.next().unwrap()),
        false => line.to_owned(),
    };
    let text: Vec<String> = text.lines().map(with_keys).collect();
    let alone = |name: &str, seconds: &str| {
        let with = |line: &String| match line.split(' ').next() {
            Some(key @ ("startup_timeout_seconds" | "isolation_seconds")) => format!("{key} = {seconds}\n"),
            _ => format!("{line}\n"),
        };
        std::fs::write(here.join(name), text.iter().map(with).collect::<String>()).unwrap();
    };
    alone("soon.toml", "0.2");
    alone("late.toml", "3600.0");
    let peer = |config: &'static str, out: &'static str, id: &'static str, key: &'static str| {
        ["peer", config, "--id", id, "--key", key, "--out", out]
    };
    for (out, id, key, why) in [
        ("a", "0", "0.key", "worker 1 is missing (Connection refused"),
        ("b", "1", "1.key", "worker 0 is missing (it has not connected)"),
    ] {
        let output = upwash(here, &peer("soon.toml", out, id, key));
        let error = String::from_utf8_lossy(&output.stderr);
        // A peer without a link to any other does not train alone.
        assert!(output.status.code() == Some(4) && error.contains(why), "{error}");
        let events = events(&here.join(out));
        assert!(events.contains("\"change\":\"missing\"") && events.contains("\"change\":\"waiting\""), "{events}");
        let summary = summary(&here.join(out));
        assert_eq!((&summary["status"], &summary["rounds_run"]), (&"isolated".into(), &0.into()));
    }
    let waits = || here.join("c/events.jsonl").exists();
    let stopped = interrupted(here, &peer("late.toml", "c", "0", "0.key"), waits);
    assert_eq!(stopped.status.code(), Some(130));
    assert_eq!(summary(&here.join("c"))["rounds"], 0);
    // While a process waits with a key, no other one takes its connections.
    let mut first = command(here, &peer("late.toml", "d", "0", "0.key")).spawn().unwrap();
    while !here.join("d/events.jsonl").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = error(here, &peer("late.toml", "e", "0", "0.key"));
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(second.contains("another process runs worker 0 with the key 0.key"), "{second}");
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
