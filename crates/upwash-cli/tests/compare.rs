//! `upwash compare` on the command line.

#![allow(clippy::unwrap_used)]

mod common;

use common::{error, interrupted, outcome, said, upwash};
use std::path::Path;

#[test]
fn configurations_are_compared_and_not_run_twice() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, config: &str| {
        std::fs::write(folder.path().join(name), config).unwrap();
    };
    write("plain.toml", "[algorithm]\nname = \"dpsgd\"\n");
    write("led.toml", "[graph]\ncopies = 3\n");
    write("lost.toml", "[training]\nlearning_rate = 1e30\n");
    let long = "a-name-wider-than-its-column.toml";
    write(long, "[graph]\ntopology = \"ring:4\"\n");
    let compare = ["compare", "plain.toml", "led.toml", "lost.toml", long, "--out", "c", "--set", "training.epochs=2"];
    let compared = || {
        let output = upwash(folder.path(), &compare);
        assert_eq!(output.status.code(), Some(3), "one diverges");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = compared();
    assert!(table.contains("plain: D-PSGD on paper:L1\n"), "{table}");
    assert!(table.contains("led: AL-DSGD (sound) over D-PSGD on paper:L1, 3 copies\n"), "{table}");
    assert!(table.contains("; diverged in round"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let events = |run: &str| {
        let path = folder.path().join("c").join(run).join("events.jsonl");
        std::fs::metadata(path).unwrap().modified().unwrap()
    };
    let before = ["plain", "led", "lost"].map(events);
    assert_eq!(compared(), table, "the same, times included");
    assert_eq!(["plain", "led", "lost"].map(events), before);
    // A run without a checkpoint is run again and gives the same result.
    let led = folder.path().join("c/led");
    let known = outcome(&led);
    std::fs::remove_file(led.join("summary.json")).unwrap();
    compared();
    assert_eq!(outcome(&led), known);

    // More epochs extend the runs, but for the one that diverged.
    let longer = ["compare", "plain.toml", "lost.toml", "--out", "c", "--epochs", "3"];
    let output = upwash(folder.path(), &longer);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    let straight = ["compare", "plain.toml", "--out", "straight", "--epochs", "3"];
    said(folder.path(), &straight);
    let [extended, straight] = ["c/plain", "straight/plain"].map(|run| outcome(&folder.path().join(run)));
    assert_eq!(extended, straight);
    assert_eq!(events("lost"), before[2]);

    let other = error(folder.path(), &["compare", "plain.toml", "--out", "c", "--set", "seed=5"]);
    assert!(other.contains("holds another run"), "{other}");
    std::fs::create_dir(folder.path().join("d")).unwrap();
    write("d/plain.toml", "");
    let twice = error(folder.path(), &["compare", "plain.toml", "d/plain.toml"]);
    assert!(twice.contains("two configurations are called plain"), "{twice}");
}

#[test]
fn parallel_runs_equal_sequential_runs() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, config: &str| {
        std::fs::write(folder.path().join(name), config).unwrap();
    };
    write("plain.toml", "[algorithm]\nname = \"dpsgd\"\n");
    write("choco.toml", "seed = 2\n[algorithm]\nname = \"choco\"\n");
    write("lost.toml", "[training]\nlearning_rate = 1e30\n");
    let compare = |out: &str, more: &[&str]| {
        let mut args = vec!["compare", "plain.toml", "choco.toml", "lost.toml", "--out", out];
        args.extend(["--set", "training.epochs=2"]);
        args.extend(more);
        let output = upwash(folder.path(), &args);
        assert_eq!(output.status.code(), Some(3), "one diverges");
        String::from_utf8(output.stdout).unwrap()
    };
    compare("apart", &[]);
    let table = compare("together", &["--parallel-runs", "--reach", "80"]);
    for run in ["plain", "choco", "lost"] {
        let [apart, together] = ["apart", "together"].map(|out| folder.path().join(out).join(run));
        assert_eq!(outcome(&together), outcome(&apart), "{run}");
        let read = |run: &Path| std::fs::read(run.join("model.safetensors")).ok();
        assert_eq!(read(&together), read(&apart), "{run}");
    }
    assert!(table.contains("to a mean accuracy of 80 %"), "{table}");
    assert!(table.contains("lost               never"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    // Configurations that cannot share an engine are refused before anything is written.
    write("other.toml", "model = \"softmax\"\n");
    let args = ["compare", "plain.toml", "other.toml", "--out", "no", "--parallel-runs"];
    let refused = error(folder.path(), &args);
    assert!(refused.contains("--parallel-runs: the model must be the same"), "{refused}");
    assert!(!folder.path().join("no").exists());
}

/// Of runs that share an engine, all need their memory at the same time.
#[cfg(target_os = "linux")]
#[test]
fn parallel_runs_that_need_too_much_memory_together_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("one.toml"), "").unwrap();
    let needed = |model: &str| {
        let text = said(here, &["train", "one.toml", "--dry-run", "--set", model]);
        let line = text.lines().find_map(|line| line.strip_prefix("needs ")).unwrap();
        line.strip_suffix(" GiB of memory").unwrap().parse::<f64>().unwrap()
    };
    // A single run takes two thirds of the memory that is available, or as much as any run may.
    let available = upwash::memory::available().unwrap() as f64 / (1u64 << 30) as f64;
    let size = (available * 2.0 / 3.0).min(500.0);
    let model = format!("model=mlp:{:.0}", 1e7 * size / needed("model=mlp:10000000"));
    assert!(needed(&model) < available);
    let runs = (available / size) as usize + 1;
    let (all, workers) = (runs.to_string(), format!("{} workers of ", 8 * runs));
    for command in [
        &["compare", "one.toml", "--parallel-runs"][..],
        &["sweep", "one.toml", "--grid", "graph.copies=1", "--parallel-runs", &all],
    ] {
        let refused = error(here, &[command, &["--seeds", &all, "--set", &model, "--out", "no"]].concat());
        assert!(refused.contains(&workers) && refused.contains(" GiB of memory, but only "), "{refused}");
        assert!(!here.join("no").exists());
    }
}

/// Parallel runs that were interrupted and resumed equal uninterrupted ones.
#[cfg(unix)]
#[test]
fn parallel_runs_can_be_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..=3 {
        let config = format!("seed = {seed}\n[training]\nepochs = 60\ntest_every = 20\n");
        std::fs::write(folder.path().join(format!("s{seed}.toml")), config).unwrap();
    }
    let compare = |out: &'static str| ["compare", "s1.toml", "s2.toml", "s3.toml", "--out", out];
    said(folder.path(), &compare("apart"));
    let together: Vec<&str> = compare("c").into_iter().chain(["--parallel-runs"]).collect();
    let has_begun = || {
        let events = std::fs::read_to_string(folder.path().join("c/s3/events.jsonl"));
        events.is_ok_and(|text| text.contains("epoch"))
    };
    let stopped = interrupted(folder.path(), &together, has_begun);
    assert_eq!(stopped.status.code(), Some(130));
    let text = String::from_utf8_lossy(&stopped.stderr);
    assert!(text.contains("interrupted in s1: run the same command again to continue"), "{text}");
    said(folder.path(), &together);
    for run in ["s1", "s2", "s3"] {
        let [apart, together] = ["apart", "c"].map(|out| folder.path().join(out).join(run));
        assert_eq!(outcome(&together), outcome(&apart), "{run}");
        let model = |run: &Path| std::fs::read(run.join("model.safetensors")).unwrap();
        assert!(model(&together) == model(&apart), "{run}");
    }
}
