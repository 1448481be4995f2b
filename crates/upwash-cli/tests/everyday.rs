//! What users do every day: follow a run, change a configuration for one run, stop, resume and extend it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{error, flat, outcome, said, upwash};
use std::path::Path;
use std::process::{Command, Stdio};

const QUICK: &str = "model = \"mlp:16\"\n[training]\nepochs = 2\n";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.toml"), QUICK).unwrap();
    let matcha = format!("[algorithm]\nbase = \"matcha\"\nbudget = 0.5\n{QUICK}").replace("model = \"mlp:16\"\n", "");
    std::fs::write(folder.path().join("matcha.toml"), matcha).unwrap();
    folder
}

/// What a run that must succeed prints to stderr.
fn notes(folder: &Path, arguments: &[&str]) -> String {
    let output = upwash(folder, arguments);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {notes}");
    notes
}

/// Tests have no terminal, like batch jobs.
#[test]
fn progress_reaches_logs() {
    let folder = folder();
    let here = folder.path();
    let log = notes(here, &["train", "run.toml", "--out", "a"]);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 3, "{log}");
    assert!(lines[0].starts_with("engine: native, cpu, f32, "), "{log}");
    assert!(lines[2].starts_with("epoch 2/2: loss ") && lines[1].contains("test accuracy "), "{log}");
    assert_eq!(notes(here, &["train", "run.toml", "--out", "b", "--quiet"]), "");
    let more = notes(here, &["train", "run.toml", "--out", "c", "--verbose"]);
    assert!(more.contains("consensus distance") && more.lines().all(|line| line.len() <= 80), "{more}");
    let compared = notes(here, &["compare", "run.toml", "matcha.toml", "--out", "d"]);
    assert!(compared.contains("run 2 of 2: matcha\n") && compared.contains("epoch 2/2"), "{compared}");
    assert_eq!(compared.matches("engine: native").count(), 1, "{compared}");
    let chosen = notes(here, &["train", "run.toml", "--engine", "native", "--out", "e"]);
    assert!(!chosen.contains("engine: "), "{chosen}");
    // Without a device, libtorch says which one it takes.
    if cfg!(feature = "torch") {
        let torch = notes(here, &["train", "run.toml", "--engine", "torch", "--out", "f"]);
        assert!(torch.starts_with("engine: torch, c"), "{torch}");
    }
}

#[test]
fn output_fits_80_columns() {
    let folder = folder();
    let here = folder.path();
    let batch = "training.batch_size=500";
    for arguments in [
        &["data", "list"][..],
        &["algorithms"],
        &["topology", "list"],
        &["topology", "analyze", "paper:L1"],
        &["topology", "optimize", "paper:L1", "--budget", "0.5"],
        &["train", "matcha.toml", "--dry-run", "--set", batch, "--set", "graph.copies=3"],
        &["train", "run.toml", "--epochs", "1", "--set", batch, "--out", "a"],
        &["train", "matcha.toml", "--epochs", "1", "--set", "algorithm.base=dpsgd", "--out", "b"],
        &["config", "check", "run.toml", "--set", batch],
        &["show", "a"],
        &["evaluate", "a"],
    ] {
        let output = upwash(here, arguments);
        assert!(output.status.success(), "{arguments:?}");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let place = here.display().to_string();
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80 && !line.contains(&place)).collect();
        assert!(wide.is_empty(), "{arguments:?}: {wide:?}");
    }
}

#[test]
fn options_of_a_replaced_algorithm_are_left_out_with_a_warning() {
    let folder = folder();
    let here = folder.path();
    let warned = flat(&notes(here, &["train", "matcha.toml", "--set", "algorithm.base=dpsgd", "--out", "a"]));
    assert!(warned.contains("warning: algorithm.budget = 0.5 is not used"), "{warned}");
    assert!(!std::fs::read_to_string(here.join("a/config.toml")).unwrap().contains("budget"));
    let show = ["config", "show", "matcha.toml", "--set", "algorithm.name=dpsgd"];
    let shown = said(here, &show);
    assert!(!shown.contains("budget") && !shown.contains("base"), "{shown}");
    let unset = ["train", "matcha.toml", "--set", "algorithm.base=dpsgd", "--unset", "algorithm.budget", "--out", "b"];
    assert!(!notes(here, &unset).contains("budget"));
    // An option that is given with the new algorithm must be its own.
    let given = ["train", "run.toml", "--set", "algorithm.base=dpsgd", "--set", "algorithm.budget=0.5"];
    let given = error(here, &given);
    assert!(given.contains("but of matcha: remove it, or run with --unset algorithm.budget"), "{given}");
    let typo = ["train", "matcha.toml", "--set", "algorithm.name=matcha", "--set", "algorithm.bugdet=0.5"];
    assert!(error(here, &typo).contains("did you mean `budget`?"));
}

#[test]
fn settings_that_cannot_be_meant_are_warned_about() {
    let folder = folder();
    let dry = |set: &[&str]| {
        let mut arguments = vec!["train", "run.toml", "--dry-run"];
        set.iter().for_each(|set| arguments.extend(["--set", set]));
        said(folder.path(), &arguments)
    };
    assert!(!dry(&[]).contains("warning"));
    for (set, warning) in [
        (&["training.batch_size=500"][..], "training.batch_size = 500, but worker 0 has only 177 examples"),
        (&["data.train_examples=5000"], "data.train_examples = 5000, but digits has only 1442 training images"),
        (&["data.test_examples=5000"], "but digits has only 355 test images"),
        (&["training.warmup_epochs=3"], "the learning rate never reaches 0.05"),
        (&["training.decay=steps", "training.decay_at=[1.5, 1.0]"], "is not in increasing order"),
        (&["training.decay=steps", "training.decay_at=[1.0, 2.0]"], "before the step at 2"),
        (&["graph.weights=alpha=7"], "averaging alone diverges on this graph; leave it out"),
    ] {
        let said = flat(&dry(set));
        assert!(said.contains("warning: ") && said.contains(warning), "{set:?}: {said}");
    }
}

/// Runs the program with a configuration on standard input.
fn pipe(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upwash"));
    command.args(arguments).current_dir(folder).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), QUICK.as_bytes()).unwrap();
    assert!(common::wait_with_timeout(child).status.success());
}

#[test]
fn configuration_may_come_from_stdin() {
    let folder = folder();
    pipe(folder.path(), &["train", "-", "--out", "piped"]);
    // A sweep reads it once for each run.
    pipe(folder.path(), &["sweep", "-", "--grid", "seed=1,2", "--out", "swept"]);
    for seed in ["seed=1", "seed=2"] {
        assert_eq!(outcome(&folder.path().join("swept").join(seed))["rounds"], 24, "{seed}");
    }
    said(folder.path(), &["train", "run.toml", "--out", "file"]);
    assert_eq!(outcome(&folder.path().join("piped")), outcome(&folder.path().join("file")));
    let nothing = error(folder.path(), &["config", "check", "-"]);
    assert!(nothing.contains("cannot read standard input: it is empty"), "{nothing}");
}

#[test]
fn init_writes_a_configuration_that_trains() {
    let folder = folder();
    let here = folder.path();
    assert!(said(here, &["init"]).contains("upwash train upwash.toml"));
    let again = error(here, &["init"]);
    assert!(again.contains("upwash.toml exists: name another file"), "{again}");
    assert_eq!(said(here, &["init", "-"]), std::fs::read_to_string(here.join("upwash.toml")).unwrap());
    said(here, &["init", "mine.toml"]);
    said(here, &["train", "mine.toml", "--epochs", "1", "--out", "r"]);
    let shown = said(here, &["config", "show", "mine.toml"]);
    std::fs::write(here.join("empty.toml"), "").unwrap();
    assert_eq!(shown, said(here, &["config", "show", "empty.toml"]));
}

/// Overrides are remembered, whether the configuration is named again or not.
#[test]
fn resumed_and_extended_runs_remember_their_overrides() {
    let folder = folder();
    let here = folder.path();
    let set = ["--set", "seed=4", "--set", "algorithm.base=dpsgd", "--unset", "algorithm.budget"];
    let train = |more: &[&str]| notes(here, &[&["train", "matcha.toml"], &set[..], more].concat());
    train(&["--epochs", "4", "--out", "whole"]);
    for (name, again) in [("named", &["train", "matcha.toml"][..]), ("unnamed", &["train"])] {
        train(&["--out", name]);
        let extend = |epochs| [again, &["--resume", "--out", name, "--epochs", epochs]].concat();
        let warned = notes(here, &extend("3"));
        assert!(warned.contains("the run is extended from 2 to 3 epochs"), "{warned}");
        notes(here, &extend("4"));
        assert_eq!(outcome(&here.join(name)), outcome(&here.join("whole")), "{name}");
        let model = |name: &str| std::fs::read(here.join(name).join("model.safetensors")).unwrap();
        assert!(model(name) == model("whole"), "{name}");
        let ended = said(here, &[again, &["--resume", "--out", name]].concat());
        assert!(ended.starts_with("the run in "), "the epochs are remembered: {ended}");
        let shorter = error(here, &extend("2"));
        assert!(shorter.contains("training.epochs = 2, but the run has 4: it cannot become shorter"), "{shorter}");
    }
    // An option that this run was not started with is another run, and named as such.
    let other = error(here, &["train", "--resume", "--out", "named", "--set", "seed=5", "--epochs", "9"]);
    assert!(other.contains("seed = 5 (there 4)"), "{other}");
}

#[test]
fn finished_run_is_shown_by_resume() {
    let folder = folder();
    let here = folder.path();
    let table = said(here, &["train", "run.toml", "--out", "r"]);
    for again in [&["train", "run.toml", "--out", "r", "--resume"][..], &["train", "--out", "r", "--resume"]] {
        let shown = said(here, again);
        assert!(shown.starts_with("the run in r has already ended"), "{shown}");
        assert!(
            shown.ends_with(table.split_once("left out, so that").unwrap().1.split_once("\n\n").unwrap().1),
            "{shown}"
        );
    }
    assert!(notes(here, &["train", "--out", "r", "--resume"]).contains("--resume --out r --epochs N"));
    let diverge = ["train", "run.toml", "--set", "training.learning_rate=1e9", "--out", "d"];
    assert_eq!(upwash(here, &diverge).status.code(), Some(3));
    let again = upwash(here, &["train", "--out", "d", "--resume"]);
    assert_eq!(again.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&again.stdout).contains("has already ended"));
    // What is measured and kept may change; a run that is over has nothing more to measure.
    said(here, &["train", "--resume", "--out", "r", "--set", "training.checkpoint_every=9"]);
}

/// A failed resume leaves nothing behind, so that a first run can still use the folder.
#[test]
fn failed_resume_leaves_nothing_behind() {
    let folder = folder();
    let here = folder.path();
    std::fs::create_dir(here.join("empty")).unwrap();
    for resume in [&["train", "run.toml", "--resume", "--out", "empty"][..], &["train", "--resume", "--out", "empty"]] {
        error(here, resume);
        assert_eq!(std::fs::read_dir(here.join("empty")).unwrap().count(), 0);
    }
    said(here, &["train", "run.toml", "--out", "empty"]);
    let changed = error(here, &["train", "run.toml", "--resume", "--out", "empty", "--set", "training.momentum=0.5"]);
    assert!(changed.contains("training.momentum = 0.5 (there 0.9)"), "{changed}");
    assert!(said(here, &["train", "--resume", "--out", "empty"]).contains("already ended"));
}

#[test]
fn training_starts_from_a_model_and_keeps_the_best() {
    let folder = folder();
    let here = folder.path();
    said(here, &["train", "run.toml", "--out", "first"]);
    std::fs::create_dir(here.join("elsewhere")).unwrap();
    std::fs::rename(here.join("run.toml"), here.join("elsewhere/run.toml")).unwrap();
    // The model is relative to the current folder, and a run directory stands for its model.
    for (from, out) in [("first", "second"), ("first/model.safetensors", "third")] {
        let text = said(here, &["train", "elsewhere/run.toml", "--from", from, "--out", out, "--keep-best"]);
        let best = format!("in {out}/best.safetensors");
        assert!(text.contains("best averaged model: ") && text.contains(&best), "{text}");
        assert!(here.join(out).join("best.safetensors").is_file());
    }
    assert_eq!(outcome(&here.join("second")), outcome(&here.join("third")));
    let accuracy = |run: &str| outcome(&here.join(run))["mean_accuracy"].as_f64().unwrap();
    assert!(accuracy("second") > accuracy("first"), "{} {}", accuracy("second"), accuracy("first"));
    // The original may be gone when the run goes on.
    std::fs::remove_dir_all(here.join("first")).unwrap();
    for again in [&["train", "elsewhere/run.toml"][..], &["train"]] {
        said(here, &[again, &["--resume", "--out", "second"]].concat());
    }
    said(here, &["train", "elsewhere/run.toml", "--resume", "--out", "third", "--epochs", "3"]);
    let other = error(here, &["train", "elsewhere/run.toml", "--from", "second", "--set", "model=cnn", "--out", "x"]);
    assert!(other.contains("does not fit the network") && other.contains("second/model.safetensors"), "{other}");
    assert!(!here.join("x").exists());
}

/// What needs more memory than there is gets refused with the numbers, before anything is allocated.
#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_is_an_error() {
    let folder = folder();
    let large = ["--set", "model=mlp:100000000", "--set", "training.batch_size=1000000"];
    let data = ["--set", "data.name=synthetic:train=90000000,shape=1x32x32,test=1"];
    // No machine has the memory for the model. A data set has at most 100 GB, which some machines have.
    let has_room = upwash::memory::available().unwrap() > 90_000_000 << 10;
    for set in [&large[..], &data].into_iter().take(if has_room { 1 } else { 2 }) {
        let said = error(folder.path(), &[&["train", "run.toml", "--out", "r"], set].concat());
        assert!(said.contains("GiB of memory, but only ") && said.contains("are available: use"), "{said}");
        assert!(!folder.path().join("r").exists());
    }
    let dry = said(folder.path(), &[&["train", "run.toml", "--dry-run"], &large[..]].concat());
    assert!(dry.contains("GiB of memory"), "{dry}");
}

/// A full disk, simulated by a limit on the length of files: it is named once, with the file that the user knows.
#[test]
fn full_disk_is_named_once() {
    let folder = folder();
    let script = "trap '' XFSZ; ulimit -f 60; exec \"$0\" train run.toml --quiet --set model=mlp:64 --out r";
    let output =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_upwash")]).current_dir(folder.path()).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("checkpoint r/checkpoint-000000024.upwash: File too large"), "{said}");
    assert!(said.matches("File too large").count() == 1 && !said.contains(".unfinished"), "{said}");
}

/// MATCHA's budget counts matchings. How many links, and so bytes, that means is said beside it.
#[test]
fn links_of_a_budget_are_named() {
    let folder = folder();
    let dry = flat(&said(folder.path(), &["train", "matcha.toml", "--dry-run"]));
    let line = dry.split_once(" of the 12 links of the graph are up in an average round");
    let (before, after) = line.unwrap_or_else(|| panic!("{dry}"));
    let links: f64 = before.rsplit(' ').next().unwrap().parse().unwrap();
    // 24 rounds scatter around the expected 7.73 links.
    assert!((6.0..9.5).contains(&links), "{links}");
    assert!(after.starts_with(&format!(", for {:.0} % of the bytes", 100.0 * links / 12.0)), "{after}");
    assert!(!said(folder.path(), &["train", "run.toml", "--dry-run"]).contains("average round"));
    let optimized = said(folder.path(), &["topology", "optimize", "paper:L1", "--budget", "0.5"]);
    assert!(optimized.contains("7.73 of 12 links are up in an average round, for 64 % of"), "{optimized}");
}

#[test]
fn nothing_is_ignored_silently() {
    let folder = folder();
    let here = folder.path();
    said(here, &["train", "run.toml", "--out", "r"]);
    for (arguments, reason) in [
        (&["report", "r", "-o", "b.html", "--png", "d"][..], "cannot be used with"),
        (&["topology", "draw", "ring:8", "-o", "x.png"], "x.png: drawings are SVG; call the file x.svg"),
        (&["topology", "draw", "complete:2000", "-o", "x.svg"], "1999000 links are too many to draw"),
        (&["train", "run.toml", "--set", "seed=1\nmodel=\"cnn\"", "--out", "s"], "one --set for each value"),
        (&["train", "run.toml", "--eager", "--out", "s"], "--eager is an option of the GPU engine"),
        (&["train", "run.toml", "--precision", "f32", "--out", "s"], "--precision is an option of the GPU engine"),
        (&["data", "get", "mnist", "--from", "nowhere"], "--from nowhere: this is not a folder"),
    ] {
        let said = error(here, arguments);
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
    for absent in ["b.html", "d", "x.png", "x.svg", "s", "data/mnist"] {
        assert!(!here.join(absent).exists(), "{absent}");
    }
}
