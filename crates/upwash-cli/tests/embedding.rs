//! Runs of a program that embeds the library are runs like any other.
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
fn a_run_of_an_embedding_program_is_shown_under_its_own_names() {
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
    // Only the program that brings the model can train it.
    let refused = error(here, &["train", "own/config.toml", "--out", "again"]);
    assert!(refused.contains("is supplied by another program"), "{refused}");
    assert!(!here.join("again").exists());
}

/// What the program has begun with built-in parts, a program that embeds the library goes on with, and the reverse.
#[test]
fn runs_of_built_in_parts_go_on_in_either_program() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text = "model = \"mlp:8\"\n[training]\nepochs = 3\ncheckpoint_every = 7\n";
    std::fs::write(here.join("c.toml"), text).unwrap();
    said(here, &["train", "c.toml", "--out", "whole"]);
    let trainer = Trainer::from_file(here.join("c.toml")).unwrap();
    let stop = trainer.stop_handle();
    let stopped = trainer
        .engine(upwash_burn::engine)
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
