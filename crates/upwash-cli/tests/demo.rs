//! `upwash demo` as its user types it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{outcome, said};

#[test]
fn every_claim_of_the_demo_holds_in_its_runs() {
    let folder = tempfile::tempdir().unwrap();
    let text = said(folder.path(), &["demo", "--seeds", "2"]);
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:?}");
    let value = |run: &str, seed: u64, key: &str| {
        let summary = outcome(&folder.path().join(format!("runs/demo/{run}/seed-{seed}")));
        summary[key].as_f64().unwrap()
    };
    for seed in [1, 2] {
        let worst = |run| 100.0 * value(run, seed, "worst_accuracy");
        assert!(worst("dpsgd") > worst("published") + 25.0, "seed {seed}");
        assert!(worst("sparse-rotating") > worst("sparse-fixed") + 50.0, "seed {seed}");
        assert!(worst("sparse-al-dsgd") > worst("sparse-fixed") + 50.0, "seed {seed}");
        let seconds = |run| value(run, seed, "simulated_seconds");
        assert!(seconds("slow-rounds") > 5.0 * seconds("slow-asynchronous"), "seed {seed}");
        let bytes = |run| value(run, seed, "bytes_sent");
        assert!(bytes("al-dsgd") < 0.7 * bytes("dpsgd"), "seed {seed}");
    }
    for claim in ["The worst worker gains ", "times as fast (95 % interval", "The workers send 6"] {
        assert!(text.contains(claim), "{claim}: {text}");
    }
    let page = std::fs::read_to_string(folder.path().join("runs/demo/report.html")).unwrap();
    assert!(page.contains("sparse-rotating"));
    // The same folder again: what is done is not run again.
    assert_eq!(said(folder.path(), &["demo", "--seeds", "2", "--out", "runs/demo"]), text);
}
