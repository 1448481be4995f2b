//! One liar among the workers ([`upwash_testkit::liar`]): its neighbors clip what it sends.
#![allow(clippy::unwrap_used)]

use upwash::experiment::{DataPaths, Experiment};
use upwash::{Config, Trainer};
use upwash_testkit::liar::{CLIP, NAMES, config, honest_accuracy, registry};

/// The mean test accuracy of the honest workers, in percent.
fn accuracy(graph: &str, base: &str, lie: &str, more: &str, seed: u64) -> f64 {
    let trainer = Trainer::new(config(graph, base, lie, more, seed)).registry(registry());
    honest_accuracy(&trainer.run().unwrap())
}

/// One seed of the table below.
#[test]
fn one_liar_costs_little() {
    let reference = accuracy("complete:8", "dpsgd", "none", "", 1);
    assert!(reference > 50.0 && reference < 90.0, "the task is saturated, or nothing is learned: {reference}");
    for lie in ["-1", "mirrored"] {
        let clipped = accuracy("complete:8", "dpsgd", lie, CLIP, 1);
        assert!(clipped > reference - 3.0, "{lie}: {clipped} instead of {reference}");
    }
    let honest = accuracy("complete:8", "dpsgd", "none", CLIP, 1);
    assert!(honest > reference - 0.5, "clipping costs {}", reference - honest);
    let leaders = "robust = \"clip\"\nleaders = \"verified\"";
    for lie in ["1e6", "claim"] {
        let clipped = accuracy("complete:8", "al-dsgd", lie, leaders, 1);
        assert!(clipped > reference - 3.0, "AL-DSGD, {lie}: {clipped} instead of {reference}");
    }
    // The lie is not harmless.
    let plain = accuracy("complete:8", "dpsgd", "-1", "", 1);
    assert!(plain < reference - 20.0, "{plain} without clipping, {reference} without a liar");
}

/// The error of a configuration, or its warnings.
fn prepared(text: &str) -> Result<Vec<String>, String> {
    let config = Config::parse(text, &[]).map_err(|error| error.to_string())?;
    let experiment = Experiment::prepare(config, &DataPaths::default()).map_err(|error| error.to_string())?;
    Ok(experiment.warnings)
}

#[test]
fn clipping_is_refused_where_it_breaks_the_algorithm() {
    for name in ["d2", "gradient-tracking", "sgp", "choco", "all-reduce", "gossip-pga"] {
        let error = prepared(&format!("[algorithm]\nname = \"{name}\"\nrobust = \"clip\"\n")).unwrap_err();
        assert!(error.contains("algorithm.robust") && error.contains("not supported by"), "{name}: {error}");
    }
    let over_choco = "[algorithm]\nname = \"al-dsgd\"\nbase = \"choco\"\nrobust = \"clip\"\n";
    assert!(prepared(over_choco).unwrap_err().contains("not supported by"));
}

#[test]
fn workers_with_few_neighbors_are_named() {
    let warnings = |graph: &str, more: &str| {
        let text = format!("[graph]\ntopology = \"{graph}\"\n[algorithm]\nname = \"dpsgd\"\n{more}");
        prepared(&text).unwrap().into_iter().filter(|warning| warning.contains("robust")).collect::<Vec<_>>()
    };
    assert!(warnings("complete:8", CLIP).is_empty() && warnings("torus:4x4", CLIP).is_empty());
    let weak = warnings("star:5", CLIP);
    assert!(weak.len() == 1 && weak[0].contains("workers [1, 2, 3, 4] have fewer"), "{weak:?}");
    assert!(warnings("star:5", "").is_empty());
}

/// All lies, graphs and seeds: `cargo test --release -p upwash --test liars -- --ignored --nocapture`. docs/algorithms.md has
/// the table that this prints.
#[test]
#[ignore = "takes minutes"]
fn table_of_lies() {
    for (graph, base, clip) in [
        ("complete:8", "dpsgd", CLIP),
        ("torus:4x4", "dpsgd", CLIP),
        ("complete:8", "al-dsgd", "robust = \"clip\"\nleaders = \"verified\""),
        ("torus:4x4", "al-dsgd", "robust = \"clip\"\nleaders = \"verified\""),
    ] {
        let means = |lie: &str, more: &str| -> Vec<f64> {
            (1..=5).map(|seed| accuracy(graph, base, lie, more, seed)).collect()
        };
        let reference = means("none", "");
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        println!("{base} on {graph}: without a liar {:.2}", mean(&reference));
        for lie in ["none"].into_iter().chain(NAMES) {
            let clipped = means(lie, clip);
            let worst = clipped.iter().zip(&reference).map(|(a, b)| a - b).fold(f64::INFINITY, f64::min);
            let plain = accuracy(graph, base, lie, "", 1);
            let allowed = if lie == "none" { 0.5 } else { 3.0 };
            assert!(
                mean(&clipped) > mean(&reference) - allowed,
                "{base} on {graph}, {lie}: {clipped:?}, {reference:?}"
            );
            println!(
                "  {lie:>8}: clipped {:6.2} ({:+.2}, worst seed {worst:+.2}), not clipped (seed 1) {plain:6.2}",
                mean(&clipped),
                mean(&clipped) - mean(&reference)
            );
        }
    }
}
