//! The program reads and resumes runs of programs that embed the library.
#![allow(clippy::unwrap_used)]

mod common;

use common::{error, said};
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
    // Only the program that defines the model can train it.
    let refused = error(here, &["train", "own/config.toml", "--out", "again"]);
    assert!(refused.contains("is supplied by another program"), "{refused}");
    assert!(!here.join("again").exists());
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
