//! Recorded losses of every algorithm, over every transport.
#![allow(clippy::unwrap_used)]

mod common;

use common::{losses, said};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use upwash_testkit::golden::{Bits, Trace, Traces, check, check_distributed, four_worker_cases};

fn recorded(crate_name: &str, file: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    crates.join(crate_name).join("tests/golden").join(file)
}

/// Trains every configuration `c.toml` into `out` and returns the losses.
fn traces(cases: &BTreeMap<String, String>, train: impl Fn(&Path)) -> Traces {
    let trace = |(name, config): (&String, &String)| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("c.toml"), config).unwrap();
        train(folder.path());
        let rounds = losses(&folder.path().join("out"));
        (name.clone(), Trace::new(&rounds, rounds.len() / 3))
    };
    cases.iter().map(trace).collect()
}

/// The configurations that need all workers.
const NEED_ALL: [&str; 3] = ["easgd", "lsgd", "parameter-server"];

#[test]
fn golden_losses_of_four_peers() {
    let (cases, file) = (four_worker_cases(), recorded("upwash-cli", "four-workers.json"));
    let one = traces(&cases, |here| {
        said(here, &["train", "c.toml", "--out", "out"]);
    });
    check(&file, "native", Bits::WithTheSameInstructions, &one);
    // Peers refuse algorithms that do not survive the loss of a worker.
    let mut surviving = cases;
    surviving.retain(|name, _| !NEED_ALL.contains(&&**name));
    let peers = traces(&surviving, |here| {
        said(here, &["launch", "-n", "4", "c.toml", "--out", "out"]);
    });
    check_distributed(&file, &peers);
}

#[cfg(feature = "mpi")]
#[test]
fn golden_losses_of_three_ranks() {
    use upwash_testkit::golden::{ASYNCHRONOUS, cases};
    let mut cases = cases(1);
    cases.retain(|name, _| !ASYNCHRONOUS.contains(&&**name));
    let ranks = traces(&cases, |here| {
        let output = common::finish(common::mpirun(here, 3, &["c.toml", "--out", "out"]));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
    });
    check_distributed(&recorded("upwash", "digits-seed-1.json"), &ranks);
}
