//! The program reads and resumes runs of programs that embed the library.
#![allow(clippy::unwrap_used)]

mod common;

use common::{error, said};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use upwash::{Algorithm, Assignment, Config, LocalView, Plan, Trainer, Vector};
use upwash_testkit::Quadratic;

/// Every worker takes half of the model of the neighbor with the lowest loss.
#[derive(Debug)]
struct FollowTheBest;

impl Algorithm for FollowTheBest {
    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let best = view.received.iter().min_by(|a, b| a.1.by_loss(&b.1));
        let mut model = Assignment::mixed(Vector::Model, vec![(view.worker, 0.5)]);
        model.add(best.map_or(view.worker, |best| best.0), 0.5);
        model.into()
    }
}

#[test]
fn custom_parts_are_shown_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text = "[training]\nepochs = 2\nlearning_rate = 0.1\n";
    let own = || Trainer::new(Config::parse(text, &[]).unwrap()).model(Quadratic::new(64));
    own().algorithm(FollowTheBest).output(here.join("own")).run().unwrap();
    own().output(here.join("built-in")).run().unwrap();
    let shown = said(here, &["show", "own"]);
    assert!(shown.contains("own: FollowTheBest on paper:L1"), "{shown}");
    said(here, &["report", "own", "built-in", "-o", "r.html"]);
    let page = std::fs::read_to_string(here.join("r.html")).unwrap();
    assert!(page.contains("FollowTheBest") && page.contains("custom:Quadratic"));
    let table = said(here, &["export", "own", "--csv", "-"]);
    assert_eq!(table.lines().count(), 1 + 2 * 8);
    let update = watched(here, "own");
    assert!(update.contains("FollowTheBest") && update.contains("\"workers\":8"), "{update}");
    // Only the program that defines the model can train it.
    let refused = error(here, &["train", "own/config.toml", "--out", "again"]);
    assert!(refused.contains("is supplied by another program"), "{refused}");
    assert!(!here.join("again").exists());
}

/// The first update that the live page of a run receives.
fn watched(folder: &Path, run: &str) -> String {
    let arguments = ["watch", run, "--listen", "127.0.0.1:0", "--no-token"];
    let mut server = common::command(folder, &arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let url = lines.find_map(|line| line.strip_prefix("watch it at http://").map(str::to_owned)).unwrap();
    let host = url.trim_end_matches('/');
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let update = lines.find(|line| line.starts_with("data:"));
    server.kill().unwrap();
    server.wait().unwrap();
    update.expect("the page receives the run")
}

/// `compare` takes a finished run of an embedding program as its own.
#[test]
fn program_compares_runs_of_embedding_programs() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("embedded.toml"), "model = \"mlp:8\"\n[training]\nepochs = 1\n").unwrap();
    std::fs::write(here.join("other.toml"), "model = \"softmax\"\n[training]\nepochs = 1\n").unwrap();
    let trainer = Trainer::from_file(here.join("embedded.toml")).unwrap();
    trainer.output(here.join("c/embedded")).run().unwrap();
    let events = || std::fs::metadata(here.join("c/embedded/events.jsonl")).unwrap().modified().unwrap();
    let before = events();
    let table = said(here, &["compare", "embedded.toml", "other.toml", "--out", "c"]);
    let mean = 100.0 * common::summary(&here.join("c/embedded"))["mean_accuracy"].as_f64().unwrap();
    let row = table.lines().find(|line| line.starts_with("embedded ")).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some(format!("{mean:.2}").as_str()), "{table}");
    assert_eq!(events(), before, "the run is not repeated");
}

/// With built-in parts, the program can resume a run that an embedding program started.
#[test]
fn program_resumes_runs_of_embedding_programs() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text = "model = \"mlp:8\"\n[training]\nepochs = 3\ncheckpoint_every = 7\n";
    std::fs::write(here.join("c.toml"), text).unwrap();
    said(here, &["train", "c.toml", "--out", "whole"]);
    let trainer = Trainer::from_file(here.join("c.toml")).unwrap();
    let stop = trainer.stop_handle();
    let stopped = trainer
        .output(here.join("begun"))
        .observe(move |event| {
            if let upwash::Event::Round { round: 9, .. } = event {
                stop.stop();
            }
        })
        .run();
    assert_eq!(stopped.unwrap().rounds, 10);
    said(here, &["train", "c.toml", "--out", "begun", "--resume"]);
    let summary = |run: &str| {
        let mut summary = common::summary(&here.join(run));
        summary["wall_seconds"] = 0.into();
        summary
    };
    assert_eq!(summary("begun"), summary("whole"));
}
