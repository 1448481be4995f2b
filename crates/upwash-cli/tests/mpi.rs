//! Runs of several ranks under mpirun.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{finish, losses, mpirun, summary, wait_with_timeout};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn train(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upwash"));
    command.current_dir(folder).arg("train").args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn folder(config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c.toml"), config).unwrap();
    folder
}

#[test]
fn stopped_run_resumes_with_another_number_of_ranks() {
    let folder = folder("[training]\nepochs = 500\n");
    let here = folder.path();
    train(here, &["c.toml", "--out", "one"]);
    let mut stopped = mpirun(here, 4, &["c.toml", "--out", "some"]).spawn().unwrap();
    wait_for_epoch(&here.join("some/rank-3"), 3);
    let id = stopped.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    stopped.wait().unwrap();
    assert_eq!(summary(&here.join("some"))["status"], "interrupted");
    let output = finish(mpirun(here, 3, &["c.toml", "--out", "some", "--resume"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (one, all) = (summary(&here.join("one")), summary(&here.join("some")));
    assert_eq!(all["per_worker"], one["per_worker"]);
    assert_eq!(losses(&here.join("some")).last(), losses(&here.join("one")).last());
}

/// Ranks of another number extend a finished run from a model, and only the first keeps its best model.
#[test]
fn extended_run_equals_one_of_that_length() {
    let folder = folder("[training]\nepochs = 2\nkeep_best = true\n");
    let here = folder.path();
    train(here, &["c.toml", "--out", "first"]);
    train(here, &["c.toml", "--from", "first", "--epochs", "4", "--out", "one"]);
    for (ranks, arguments) in
        [(4, &["c.toml", "--from", "first", "--out", "some"][..]), (3, &["--resume", "--epochs", "4", "--out", "some"])]
    {
        let output = finish(mpirun(here, ranks, arguments));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let (one, all) = (summary(&here.join("one")), summary(&here.join("some")));
    assert_eq!((&all["per_worker"], &all["best"]), (&one["per_worker"], &one["best"]));
    assert!(here.join("some/best.safetensors").is_file() && !here.join("some/rank-1/best.safetensors").exists());
}

fn wait_for_epoch(rank: &Path, epoch: u64) {
    let (events, epoch) = (rank.join("events.jsonl"), format!("\"epoch\":{epoch},"));
    let began = Instant::now();
    while !std::fs::read_to_string(&events).is_ok_and(|text| text.contains(&epoch)) {
        assert!(began.elapsed() < Duration::from_secs(60), "no {epoch} in the events");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A stop request to one rank also stops all ranks of asynchronous algorithms, and the run can be resumed.
#[test]
fn stopping_one_rank_stops_all() {
    for (algorithm, graph) in [("ad-psgd", "ring:3"), ("downpour", "star:3")] {
        let folder = folder(&format!(
            "[graph]\ntopology = \"{graph}\"\n[algorithm]\nname = \"{algorithm}\"\n[training]\nepochs = 60\n"
        ));
        let here = folder.path();
        let running = mpirun(here, 3, &["c.toml", "--out", "run"]).spawn().unwrap();
        wait_for_epoch(&here.join("run/rank-1"), 2);
        std::fs::write(here.join("run/rank-1/control-stop"), "").unwrap();
        let output = wait_with_timeout(running);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(summary(&here.join("run"))["status"], "interrupted", "{text}");
        let output = finish(mpirun(here, 3, &["c.toml", "--out", "run", "--resume"]));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        assert_eq!(summary(&here.join("run"))["status"], "finished");
        let starts = std::fs::read_to_string(here.join("run/rank-0/events.jsonl")).unwrap();
        assert_eq!(starts.matches("\"event\":\"started\"").count(), 2);
    }
}

#[test]
fn failing_rank_aborts_the_job_with_its_error() {
    let folder = folder("[training]\nepochs = 1\n");
    let here = folder.path();
    let error = |ranks, arguments: &[&str]| {
        let output = finish(mpirun(here, ranks, arguments));
        assert!(!output.status.success());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = error(9, &["c.toml"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("9 ranks but only 8 workers: start at most 8 ranks"), "{text}");
    let (code, text) = error(2, &["c.toml", "--set", "training.learning_rate=1e9"]);
    assert_eq!(code, Some(3), "{text}");
    let summary = summary(&here.join("runs/train"));
    assert_eq!(summary["status"], "diverged");
    // One rank cannot write, because there is a file in place of its folder.
    std::fs::create_dir(here.join("full")).unwrap();
    std::fs::write(here.join("full/rank-2"), "").unwrap();
    let (code, text) = error(4, &["c.toml", "--out", "full"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("rank 2: cannot create full/rank-2"), "{text}");
}

#[test]
fn asynchronous_algorithms_run_with_one_worker_per_rank() {
    for (config, ranks) in [
        ("[algorithm]\nname = \"ad-psgd\"\n", 8),
        ("[graph]\ntopology = \"star:5\"\n[algorithm]\nname = \"downpour\"\n", 5),
    ] {
        let folder = folder(config);
        let here = folder.path();
        let output = finish(mpirun(here, ranks, &["c.toml", "--out", "all"]));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        let summary = summary(&here.join("all"));
        assert_eq!(summary["status"], "finished");
        assert!(summary["mean_accuracy"].as_f64().unwrap() > 0.9, "{summary}");
        assert!(summary["averaged_model_accuracy"].as_f64().unwrap() > 0.9, "{summary}");
    }
    let folder = folder("[algorithm]\nname = \"ad-psgd\"\n");
    let output = finish(mpirun(folder.path(), 3, &["c.toml"]));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("start one process per worker, or a single process"), "{text}");
}
