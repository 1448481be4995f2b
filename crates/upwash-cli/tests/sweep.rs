//! `upwash sweep`, and `upwash compare --seeds`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{error, flat, interrupted, outcome, said, summary, upwash};
use std::path::Path;

const CONFIG: &str = "model = \"mlp:8\"\n[graph]\ntopology = \"ring:4\"\n[training]\nepochs = 1\n";

/// The mean and half of the 95 % interval of three numbers, by t = 4.3027 for two degrees of freedom.
fn interval(values: &[f64]) -> (f64, f64) {
    assert_eq!(values.len(), 3);
    let mean = values.iter().sum::<f64>() / 3.0;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 2.0;
    (mean, 4.3027 * (variance / 3.0).sqrt())
}

/// Whether a text has these numbers side by side, but for the rounding of the last digit.
fn has_numbers(text: &str, expected: &[f64]) -> bool {
    let words = text.split(|c: char| c.is_whitespace() || c == '(' || c == ')');
    let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
    let is_near = |found: &[f64]| found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.011);
    numbers.windows(expected.len()).any(is_near)
}

fn percents(folders: &[std::path::PathBuf], key: &str) -> Vec<f64> {
    folders.iter().map(|folder| 100.0 * summary(folder)[key].as_f64().unwrap()).collect()
}

#[test]
fn sweep_runs_all_combinations_and_writes_a_table_and_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), CONFIG).unwrap();
    let sweep = [
        "sweep",
        "c.toml",
        "--grid",
        "training.learning_rate=0.05,0.2",
        "--grid",
        "graph.copies=1,2",
        "--seeds",
        "3",
        "--out",
        "s",
    ];
    let text = said(here, &sweep);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for rate in ["0.05", "0.2"] {
        for copies in ["1", "2"] {
            let name = format!("learning_rate={rate},copies={copies}");
            let runs: Vec<_> = (1..=3).map(|seed| here.join("s").join(&name).join(format!("seed-{seed}"))).collect();
            let (mean, half) = interval(&percents(&runs, "mean_accuracy"));
            let row = text.split(&name).nth(1).unwrap();
            assert!(has_numbers(row, &[mean, half]), "{name}, {mean} ± {half}: {text}");
            let config = std::fs::read_to_string(runs[1].join("config.toml")).unwrap();
            assert!(config.contains("seed = 2\n") && config.contains(&format!("learning_rate = {rate}\n")), "{config}");
            assert!(config.contains(&format!("copies = {copies}\n")), "{config}");
        }
    }
    assert!(text.contains("highest mean: "), "{text}");
    let table = std::fs::read_to_string(here.join("s/sweep.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 12);
    assert!(table.starts_with("\"training.learning_rate\",\"graph.copies\",seed,status,mean_accuracy"), "{table}");
    let page = std::fs::read_to_string(here.join("s/report.html")).unwrap();
    assert!(page.contains(r#""over_seeds":{"seeds":3"#));
    // What is done is not run again. A run without its summary is.
    let run = here.join("s/learning_rate=0.2,copies=1/seed-2");
    let (known, other) = (outcome(&run), here.join("s/learning_rate=0.2,copies=2/seed-2/events.jsonl"));
    let before = std::fs::metadata(&other).unwrap().modified().unwrap();
    std::fs::remove_file(run.join("summary.json")).unwrap();
    assert_eq!(said(here, &sweep), text);
    assert_eq!((outcome(&run), std::fs::metadata(&other).unwrap().modified().unwrap()), (known, before));
    // Several at a time give the same results, also where not all can share an engine.
    let together = ["--parallel-runs", "5", "--grid", "model=[\"mlp:8\", \"softmax\"]"];
    let mut args: Vec<&str> = sweep[..4].to_vec();
    args.extend(together);
    args.extend(["--out", "p"]);
    let notes = String::from_utf8(upwash(here, &args).stderr).unwrap();
    let reason = "note: not all runs share an engine as --parallel-runs 5 asks: the model must be the same";
    assert_eq!(flat(&notes).matches(reason).count(), 1, "{notes}");
    args.truncate(args.len() - 6);
    args.extend(["--grid", "model=[\"mlp:8\", \"softmax\"]", "--out", "q"]);
    args.retain(|arg| *arg != "--parallel-runs" && *arg != "5");
    said(here, &args);
    for name in ["learning_rate=0.05,model=mlp:8", "learning_rate=0.2,model=softmax"] {
        let [apart, together] = ["q", "p"].map(|out| here.join(out).join(name));
        assert_eq!(outcome(&apart), outcome(&together), "{name}");
    }
}

#[test]
fn sweeps_that_cannot_be_meant_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), CONFIG).unwrap();
    for (args, words) in [
        (&["--grid", "training.learning_rate"][..], "write a key and its values"),
        (&["--grid", "seed=1,2", "--seeds", "2"], "--grid seed and --seeds exclude each other"),
        (&["--grid", "graph.copies=1,1"], "a value is given twice"),
        (&["--grid", "graph.copies=1,,2"], "a value is empty"),
        (&["--grid", "graph.copies=1", "--grid", "graph.copies=2"], "is given twice"),
        (&["--grid", "graph.copies=1,2", "--set", "graph.copies=3"], "is set both by --grid and by another option"),
        (&["--grid", "training.rate=1,2"], "training.rate=1"),
        (&["--grid", "training.epochs=1,-2"], "training.epochs=-2"),
        (&["--grid", "model=[\"mlp:8\""], "--grid model"),
        (&["--grid", "seed=1,2,3,4,5,6,7,8,9,10,11", "--grid", "graph.copies=1,2", "--seeds", "1000"], "exclude"),
        (&["--grid", "graph.copies=1,2,3,4,5,6,7,8,9,10,11", "--seeds", "1000"], "at most 10000"),
    ] {
        let mut all = vec!["sweep", "c.toml", "--out", "s"];
        all.extend(args);
        let found = error(here, &all);
        assert!(found.contains(words), "{args:?}: {found}");
        assert!(!here.join("s").exists(), "{args:?}");
    }
}

/// Workers on threads exchange in real time.
#[test]
fn real_seconds_are_not_called_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let threads = CONFIG.to_owned() + "asynchronous = \"threads\"\n[algorithm]\nname = \"ad-psgd\"\n";
    std::fs::write(here.join("real.toml"), threads).unwrap();
    std::fs::write(here.join("simulated.toml"), CONFIG).unwrap();
    let text = said(here, &["sweep", "real.toml", "--grid", "seed=1,2", "--out", "s"]);
    assert!(text.contains("MB      s\n") && !text.contains("sim s"), "{text}");
    let table = std::fs::read_to_string(here.join("s/sweep.csv")).unwrap();
    assert!(table.lines().nth(1).unwrap().split(',').nth(8) == Some("true"), "{table}");
    let compare = ["compare", "real.toml", "simulated.toml", "--out"];
    let text = said(here, &[&compare[..], &["c"]].concat());
    assert!(text.contains("  sim s") && text.contains("; real seconds\n"), "{text}");
    let text = said(here, &[&compare[..], &["d", "--seeds", "2"]].concat());
    assert!(text.contains("  sim s\n") && text.contains("real: real seconds\n"), "{text}");
    said(here, &["export", "c/real", "c/simulated", "--csv", "all.csv", "--tensorboard", "tb"]);
    let table = std::fs::read_to_string(here.join("all.csv")).unwrap();
    for (run, is_real) in [("real", "true"), ("simulated", "false")] {
        let rows = table.lines().filter(|line| line.starts_with(&format!("\"{run}\"")));
        assert!(rows.clone().count() > 0 && rows.clone().all(|row| row.ends_with(is_real)), "{table}");
        let bytes = std::fs::read(here.join(format!("tb/{run}/all/events.out.tfevents.0.upwash"))).unwrap();
        let tag = b"all/simulated_seconds";
        assert_eq!(bytes.windows(tag.len()).any(|part| part == tag), run == "simulated");
    }
}

/// More epochs extend the runs of a sweep, with the same bits as runs of that length.
#[test]
fn sweep_is_extended() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), CONFIG).unwrap();
    let sweep = |out: &str, epochs: &str| {
        said(here, &["sweep", "c.toml", "--grid", "graph.copies=1,2", "--epochs", epochs, "--out", out])
    };
    sweep("s", "1");
    let extended = sweep("s", "3");
    sweep("whole", "3");
    assert!(extended.contains("highest mean: "), "{extended}");
    for name in ["copies=1", "copies=2"] {
        let [extended, whole] = ["s", "whole"].map(|out| here.join(out).join(name));
        assert_eq!(outcome(&extended), outcome(&whole), "{name}");
        let model = |run: &Path| std::fs::read(run.join("model.safetensors")).unwrap();
        assert!(model(&extended) == model(&whole), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn interrupted_sweep_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), CONFIG.replace("epochs = 1", "epochs = 60")).unwrap();
    let sweep = |out: &'static str| {
        ["sweep", "c.toml", "--grid", "seed=1,2,3", "--set", "training.test_every=20", "--out", out]
    };
    said(here, &sweep("whole"));
    let has_begun =
        || std::fs::read_to_string(here.join("s/seed=2/events.jsonl")).is_ok_and(|text| text.contains("epoch"));
    let stopped = interrupted(here, &sweep("s"), has_begun);
    assert_eq!(stopped.status.code(), Some(130), "{}", String::from_utf8_lossy(&stopped.stderr));
    said(here, &sweep("s"));
    for seed in 1..=3 {
        let [whole, again] = ["whole", "s"].map(|out| here.join(out).join(format!("seed={seed}")));
        assert_eq!(outcome(&whole), outcome(&again), "{seed}");
    }
}

#[test]
fn comparison_over_seeds_has_intervals_and_paired_differences() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("plain.toml"), format!("{CONFIG}[algorithm]\nname = \"dpsgd\"\n")).unwrap();
    std::fs::write(here.join("led.toml"), CONFIG).unwrap();
    let text = said(here, &["compare", "plain.toml", "led.toml", "--seeds", "3", "--out", "c"]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let runs =
        |name: &str| -> Vec<_> { (1..=3).map(|seed| here.join("c").join(name).join(format!("seed-{seed}"))).collect() };
    let (plain, led) = (runs("plain"), runs("led"));
    for key in ["mean_accuracy", "worst_accuracy", "averaged_model_accuracy"] {
        let (mean, half) = interval(&percents(&plain, key));
        assert!(has_numbers(&text, &[mean, half]), "{key}, {mean} ± {half}: {text}");
    }
    let pairs = percents(&led, "worst_accuracy").into_iter().zip(percents(&plain, "worst_accuracy"));
    let differences: Vec<f64> = pairs.map(|(led, plain)| led - plain).collect();
    let (mean, half) = interval(&differences);
    assert!(has_numbers(&text, &[mean, mean - half, mean + half]), "{mean} ± {half}: {text}");
    std::fs::write(here.join("other.toml"), format!("seed = 5\n{CONFIG}")).unwrap();
    let refused = error(here, &["compare", "plain.toml", "other.toml", "--seeds", "3", "--out", "d"]);
    assert!(refused.contains("plain begins with seed 1 and other with seed 5: add --set seed=1"), "{refused}");
    assert!(!Path::new("d").exists());
    let output = upwash(here, &["compare", "plain.toml", "--seeds", "1"]);
    assert_eq!(output.status.code(), Some(2));
}
