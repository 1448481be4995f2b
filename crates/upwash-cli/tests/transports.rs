//! One run, whatever moves its models: in one process, over MPI, between peers.
#![allow(clippy::unwrap_used)]

mod common;

use common::{losses, said, summary};
use std::path::Path;

/// Configurations, and whether their sums have one order everywhere.
const RUNS: [(&str, bool); 6] = [
    ("[graph]\ncopies = 3\n", true),
    ("[algorithm]\nbase = \"matcha\"\noverlap = true\n", true),
    ("[algorithm]\nbase = \"choco\"\n", true),
    ("[algorithm]\nname = \"sgp\"\n", true),
    ("[algorithm]\nname = \"lsgd\"\n", true),
    ("[algorithm]\nname = \"all-reduce\"\n", false),
];

/// Trains every configuration another way (into the folder `out`): the losses of one process, in every round
/// and of every worker, and the same models in the end.
fn has_the_same_losses(another_way: impl Fn(&Path)) {
    for (config, exact) in RUNS {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        let text = format!("{config}[training]\nepochs = 2\n");
        std::fs::write(here.join("c.toml"), text).unwrap();
        said(here, &["train", "c.toml", "--out", "one"]);
        another_way(here);
        let (known, found) = (losses(&here.join("one")), losses(&here.join("out")));
        assert_eq!(found.len(), known.len(), "{config}");
        for (a, b) in found.iter().flatten().zip(known.iter().flatten()) {
            let near = (a - b).abs() <= 1e-5 * b.abs();
            assert!(a == b || !exact && near, "{config}: {a} {b}");
        }
        let one = summary(&here.join("one"));
        let whole = here.join("out/summary.json").exists();
        for (worker, node) in one["per_worker"].as_array().unwrap().iter().enumerate() {
            let out = match whole {
                true => here.join("out"),
                false => here.join(format!("out/peer-{worker}")),
            };
            let theirs = summary(&out);
            assert_eq!(theirs["status"], "finished");
            let theirs = &theirs["per_worker"][worker]["test_accuracy"];
            assert_eq!(*theirs, node["test_accuracy"], "{config}");
        }
    }
}

#[test]
fn in_one_process_with_other_threads() {
    has_the_same_losses(|here| {
        said(here, &["train", "c.toml", "--out", "out", "--threads", "3"]);
    });
}

#[cfg(feature = "mpi")]
#[test]
fn between_ranks() {
    for ranks in [3, 8] {
        has_the_same_losses(|here| {
            let output = common::finish(common::mpirun(here, ranks, &["c.toml", "--out", "out"]));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{ranks} ranks: {text}");
        });
    }
}

#[test]
fn between_peers() {
    has_the_same_losses(|here| {
        said(here, &["launch", "-n", "8", "c.toml", "--out", "out"]);
    });
}
