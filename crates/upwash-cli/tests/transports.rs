//! A run gives the same results over every transport: one process, MPI, peers.
#![allow(clippy::unwrap_used)]

mod common;

use common::{losses, said, summary};
use std::path::Path;

/// Configurations, and whether all transports add in the same order, so that losses are equal to the bit.
const RUNS: [(&str, bool); 6] = [
    ("[graph]\ncopies = 3\n", true),
    ("[algorithm]\nbase = \"matcha\"\noverlap = true\n", true),
    ("[algorithm]\nbase = \"choco\"\n", true),
    ("[algorithm]\nname = \"sgp\"\n", true),
    ("[algorithm]\nname = \"lsgd\"\n", true),
    ("[algorithm]\nname = \"all-reduce\"\n", false),
];

/// Trains these configurations in one process and with `train`, which writes to the folder `out`. The losses of every
/// round and worker and the final accuracies must be the same.
fn check_same_results(runs: &[(&str, bool)], train: impl Fn(&Path)) {
    for &(config, exact) in runs {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        let text = format!("{config}[training]\nepochs = 2\n");
        std::fs::write(here.join("c.toml"), text).unwrap();
        said(here, &["train", "c.toml", "--out", "one"]);
        train(here);
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
            let other = summary(&out);
            assert_eq!(other["status"], "finished");
            let other = &other["per_worker"][worker]["test_accuracy"];
            assert_eq!(*other, node["test_accuracy"], "{config}");
        }
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    check_same_results(&RUNS, |here| {
        said(here, &["train", "c.toml", "--out", "out", "--threads", "3"]);
    });
}

#[cfg(feature = "mpi")]
#[test]
fn mpi_ranks_give_the_same_results() {
    for ranks in [3, 8] {
        check_same_results(&RUNS, |here| {
            let output = common::finish(common::mpirun(here, ranks, &["c.toml", "--out", "out"]));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{ranks} ranks: {text}");
        });
    }
}

#[test]
fn peers_give_the_same_results() {
    // Peers refuse LSGD, which does not survive the loss of a worker.
    let runs: Vec<(&str, bool)> = RUNS.into_iter().filter(|run| !run.0.contains("lsgd")).collect();
    check_same_results(&runs, |here| {
        said(here, &["launch", "-n", "8", "c.toml", "--out", "out"]);
    });
}
