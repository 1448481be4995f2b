//! `upwash reproduce`, and that what the documents say is what the results are.
#![allow(clippy::unwrap_used)]

mod common;

use common::{interrupted, said, upwash};
use std::path::{Path, PathBuf};
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let inside = std::fs::read_dir(path).unwrap();
    let paths = inside.map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_small_table_is_run_once_and_shown_again() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let quick = [
        "reproduce",
        "table2",
        "--quick",
        "--epochs",
        "4",
        "--seeds",
        "2",
        "--lean",
    ];
    let text = said(here, &quick);
    for expected in [
        "### D-PSGD, D = 13",
        "### AL-DSGD over D-PSGD, D = 13, 3 graphs",
        "| worker ",
        "| mean ",
        "of 2 seeds",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("D = 13, CIFAR-100"), "{text}");
    let runs = here.join("runs/paper/digits-4-epochs");
    assert_eq!(
        std::fs::read_to_string(runs.join("table2.md")).unwrap(),
        text[..text.len() - 1]
    );
    let all = [
        "al-dsgd-dpsgd-released-13x3",
        "al-dsgd-dpsgd-sound-13x3",
        "dpsgd-released-13x1",
        "dpsgd-sound-13x1",
    ];
    let found: Vec<String> = folders(&runs).iter().map(|path| name(path)).collect();
    assert_eq!(found, all);
    let files = || -> Vec<(String, Vec<u8>)> {
        let run = runs.join("dpsgd-sound-13x1/seed-2");
        let mut files: Vec<_> = std::fs::read_dir(run)
            .unwrap()
            .map(|file| file.unwrap().path())
            .map(|path| (name(&path), std::fs::read(&path).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = files();
    let names: Vec<&str> = before.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["config.toml", "events.jsonl", "run.json", "summary.json"]
    );
    let events = std::fs::read_to_string(runs.join("dpsgd-sound-13x1/seed-2/events.jsonl"));
    assert!(!events.unwrap().contains("\"event\":\"round\""));
    // What is done is not run again; what is shown is the same.
    assert_eq!(said(here, &quick), text);
    assert_eq!(files(), before);
    let shown = said(
        here,
        &[
            "reproduce",
            "table2",
            "--quick",
            "--epochs",
            "4",
            "--show",
            "--workers",
            "0,4",
        ],
    );
    assert!(
        shown.contains("\n| 4 ") && !shown.contains("\n| 3 "),
        "{shown}"
    );
    // On one engine at the same time they come to the same.
    let together: Vec<&str> = quick
        .into_iter()
        .chain(["--together", "3", "--out", "other"])
        .collect();
    let results = |text: &str| -> Vec<String> {
        let rows = text
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| seeds"));
        let cells = rows.flat_map(|row| row.split('|').map(|cell| cell.trim().to_owned()));
        cells.collect()
    };
    let shown = said(here, &together);
    assert_eq!(results(&shown), results(&text));
    assert!(shown.contains("s each, 2 to 3 at a time)"), "{shown}");
    // A run can be asked for by itself.
    let run = [
        "reproduce",
        "dpsgd-released-13x1",
        "--quick",
        "--epochs",
        "4",
        "--show",
    ];
    let shown = said(here, &run);
    let row = |text: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with("| mean"));
        line.unwrap()
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    assert_eq!(row(&shown)[2], row(&text)[2]);
    assert!(!shown.contains("sound"), "{shown}");
    let run = [
        "reproduce",
        "dpsgd-sound-13x1",
        "--quick",
        "--epochs",
        "4",
        "--show",
    ];
    let shown = said(here, &run);
    assert!(shown.contains("D = 13, sound"), "{shown}");
}

/// The released baseline leaves workers 0 and 4 on their own, and that is what the paper shows of them; with the whole
/// graph they are as good as the others.
#[test]
fn workers_0_and_4_are_worse_in_the_released_baseline_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = said(
        folder.path(),
        &["reproduce", "table1", "--quick", "--seeds", "1"],
    );
    let (_, ends) = text.split_once("end worse than all others").unwrap();
    assert!(ends.contains("released: so in 1 of 1 seeds"), "{text}");
    assert!(ends.contains("sound: so in 0 of 1 seeds"), "{text}");
}

/// Who computed it is known, also of a run that others have gone on with; what is lean in the end is what was asked for last.
#[cfg(unix)]
#[test]
fn an_interrupted_table_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let table = [
        "reproduce",
        "table5",
        "--quick",
        "--seeds",
        "1",
        "--epochs",
        "80",
        "--variant",
        "sound",
    ];
    let first = here.join("runs/paper/digits-80-epochs/matcha-sound-5x1/seed-1");
    let has_begun = || {
        let events = std::fs::read_to_string(first.join("events.jsonl"));
        events.is_ok_and(|text| text.contains("epoch"))
    };
    let together: Vec<&str> = table.into_iter().chain(["--together", "5"]).collect();
    let stopped = interrupted(here, &together, has_begun);
    assert_eq!(stopped.status.code(), Some(130));
    let json = || -> serde_json::Value {
        let text = std::fs::read_to_string(first.join("run.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(
        (&json()["together"], &json()["before"]),
        (&5.into(), &serde_json::Value::Null)
    );
    let five = json();
    // MATCHA was released as it was written.
    let run = [
        "reproduce",
        "matcha-released-5x1",
        "--quick",
        "--seeds",
        "1",
        "--epochs",
        "80",
    ];
    let output = upwash(here, &run);
    assert!(output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    for expected in [
        "matcha-released-5x1 is the same run as matcha-sound-5x1",
        "matcha-sound-5x1, seed 1, goes on after round ",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("| seeds ") && !text.contains("s each"),
        "{text}"
    );
    assert_eq!(
        (&json()["together"], &json()["before"]),
        (&1.into(), &serde_json::json!([five]))
    );
    assert!(first.join("model.safetensors").is_file());
    let lean: Vec<&str> = run.into_iter().chain(["--lean"]).collect();
    said(here, &lean);
    assert!(!first.join("model.safetensors").exists());
}

/// A figure of several graphs is drawn over epochs, and over the graphs.
#[test]
fn figures_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let figure = [
        "reproduce",
        "figure9",
        "--quick",
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--variant",
        "sound",
    ];
    said(here, &figure);
    let drawn = |name: &str| {
        let path = here.join("runs/paper/digits-1-epochs").join(name);
        std::fs::read_to_string(path.with_extension("svg")).unwrap()
    };
    let epochs = drawn("figure9-sound");
    assert!(epochs.contains("D-PSGD, D = 5 (1 seed)"), "{epochs}");
    let links = drawn("figure9-sound-links");
    for name in [
        "D-PSGD, mean",
        "AL-DSGD over D-PSGD, 3 graphs, worst worker",
        "links of the graph (D)",
    ] {
        assert!(links.contains(name), "{name}: {links}");
    }
}

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["reproduce"][..], "say which: table1,"),
        (&["reproduce", "table11"], "table11 is none of table1,"),
        (&["reproduce", "table2", "--seeds", "0"], "0 is not in"),
        (&["reproduce", "table2", "--workers", "8"], "are 0 to 7"),
        (&["reproduce", "table2", "--loss", "nan"], "above 0"),
        (&["reproduce", "table2", "--batch", "6251"], "6250 images"),
        (&["reproduce", "table2", "--show"], "is not there"),
        (&["reproduce", "--list", "--batch", "6251"], "6250 images"),
        (
            &["reproduce", "cifar100-dpsgd-sound-13x1", "--quick"],
            "--quick is on the digits alone",
        ),
        (
            &["reproduce", "table2", "--variant", "good"],
            "possible values",
        ),
    ] {
        let output = upwash(folder.path(), arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn what_can_be_made_is_listed_with_what_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let text = said(
        folder.path(),
        &["reproduce", "--list", "--quick", "--variant", "all"],
    );
    for label in [
        "Tab:1:",
        "Tab:2:",
        "Tab:7 (Table 3 in print):",
        "Tab:8 (Table 9 in print):",
        "Tab:9 (Table 8 in print):",
        "Tab:10:",
        "Fig: 9:",
        "Fig: 18 (Figure 14 in print):",
        "Fig: 10:",
    ] {
        assert!(text.contains(label), "{label}: {text}");
    }
    assert!(text.contains("batch 8, 60 epochs of 7 rounds"), "{text}");
    let text = said(
        folder.path(),
        &["reproduce", "table10", "--list", "--quick"],
    );
    assert!(
        text.contains("Tab:10:") && !text.contains("Tab:1:"),
        "{text}"
    );
}

#[test]
fn the_configurations_are_those_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    said(folder.path(), &["reproduce", "--configs", "."]);
    let read = |path: &Path| -> Vec<(String, String)> {
        let files = std::fs::read_dir(path)
            .unwrap()
            .map(|file| file.unwrap().path());
        let mut all: Vec<_> = files
            .map(|path| (name(&path), std::fs::read_to_string(&path).unwrap()))
            .collect();
        all.sort();
        all
    };
    let kept = read(&project().join("configs/paper"));
    assert!(
        kept == read(folder.path()),
        "configs/paper is out of date: run `upwash reproduce --configs configs/paper`"
    );
}

/// Stands for data that need not be here.
const DATA: &str = "\"synthetic:train=1024,test=8,shape=3x32x32\"";

/// Every stored run is the one that its folder is called after, is over, and says where it comes from.
#[test]
fn results_are_what_their_names_say() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs = 0;
    for scale in folders(&project().join("results")) {
        let words: Vec<String> = name(&scale).split('-').map(str::to_owned).collect();
        let quick = words[0] == "digits";
        let prefix = match &*words[0] {
            "cifar100" => "cifar100-",
            data => {
                assert!(quick || data == "cifar10", "{words:?}");
                ""
            }
        };
        assert_eq!(words[2], "epochs");
        let configs = folder.path().join(name(&scale));
        let place = configs.to_str().unwrap();
        let mut arguments = vec!["reproduce", "--configs", place, "--epochs", &words[1]];
        if let Some(batch) = words.get(4) {
            arguments.extend(["--batch", batch]);
        }
        if quick {
            arguments.push("--quick");
        }
        said(folder.path(), &arguments);
        for experiment in folders(&scale) {
            let file = format!("{prefix}{}.toml", name(&experiment));
            let text = std::fs::read_to_string(configs.join(file));
            let text =
                text.unwrap_or_else(|_| panic!("{}: no such experiment", experiment.display()));
            for run in folders(&experiment) {
                let seed = name(&run).replace("seed-", "seed=");
                let mut changes = vec![seed];
                if !quick {
                    changes.push(format!("data.name={DATA}"));
                }
                let config = Config::parse(&text, &changes).unwrap();
                let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
                let data = format!("\"{}\"", words[0]);
                let config = experiment.config.to_toml().replace(DATA, &data);
                let stored = std::fs::read_to_string(run.join("config.toml")).unwrap();
                let stored = stored.split("\n# checksum").next().unwrap();
                assert_eq!(stored, config, "{}", run.display());
                let json = |file: &str| -> serde_json::Value {
                    let text = std::fs::read_to_string(run.join(file)).unwrap();
                    serde_json::from_str(&text).unwrap()
                };
                let status = json("summary.json")["status"].clone();
                assert!(
                    status == "finished" || status == "diverged",
                    "{}",
                    run.display()
                );
                let commit = json("run.json")["commit"].as_str().unwrap().to_owned();
                assert_eq!(commit.len(), 40, "{}: {commit}", run.display());
                runs += 1;
            }
        }
    }
    assert!(runs > 30, "{runs}");
}

/// Every table in the document is what `upwash reproduce` makes of the stored runs. Between two such lines:
/// `<!-- reproduce ARGUMENTS -->` and `<!-- end -->`.
#[test]
fn the_document_says_what_the_results_are() {
    let text = std::fs::read_to_string(project().join("docs/reproduction.md")).unwrap();
    let mut tables = 0;
    for part in text.split("<!-- reproduce ").skip(1) {
        let (arguments, rest) = part.split_once(" -->\n").unwrap();
        let (there, _) = rest.split_once("<!-- end -->").unwrap();
        let mut all = vec!["reproduce"];
        all.extend(arguments.split(' '));
        all.extend(["--show", "--out", "results"]);
        // Headings are one step further down there.
        let deeper = |line: &str| match line.starts_with("##") {
            true => format!("#{line}\n"),
            false => format!("{line}\n"),
        };
        let made: String = said(&project(), &all).lines().map(deeper).collect();
        let lines = |text: &str| -> Vec<String> {
            let kept = text.lines().filter(|line| !line.is_empty());
            kept.map(str::to_owned).collect()
        };
        // The first difference: all of a long table would not be read.
        let (there, made) = (lines(there), lines(&made));
        for (there, made) in there.iter().zip(&made) {
            assert_eq!(there, made, "run scripts/fill-in-tables.sh");
        }
        assert_eq!(there.len(), made.len(), "run scripts/fill-in-tables.sh");
        tables += 1;
    }
    assert!(tables > 0);
}

/// Numbers with a point, without their signs, and their digits behind it.
fn numbers(text: &str) -> Vec<(f64, usize)> {
    let words = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    words
        .filter_map(|word| {
            let word = word.trim_matches('.');
            let (_, behind) = word.split_once('.')?;
            Some((word.parse().ok()?, behind.len()))
        })
        .collect()
}

/// Tables of single runs, `<!-- seeds FOLDER -->` to `<!-- end -->`, have what the runs came to.
fn single_runs(text: &str) -> Vec<&str> {
    let tables = text.split("<!-- seeds ").skip(1);
    tables
        .map(|part| part.split_once("<!-- end -->").unwrap().0)
        .collect()
}

#[test]
fn single_runs_are_what_their_summaries_say() {
    let text = std::fs::read_to_string(project().join("docs/reproduction.md")).unwrap();
    let mut rows = 0;
    for table in single_runs(&text) {
        let (folder, table) = table.split_once(" -->").unwrap();
        for line in table.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split(['|', '`']).map(str::trim).collect();
            let run = project().join("results").join(folder).join(cells[2]);
            let summary = std::fs::read_to_string(run.join("summary.json")).unwrap();
            let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
            let accuracy = 100.0 * summary["mean_accuracy"].as_f64().unwrap();
            assert_eq!(format!("{accuracy:.2}"), cells[4], "{}", cells[2]);
            rows += 1;
        }
    }
    assert!(rows > 0);
}

/// Every number with a point in what the document makes of its tables is, rounded, in one of them.
#[test]
fn the_reading_has_its_numbers_from_the_tables() {
    let text = std::fs::read_to_string(project().join("docs/reproduction.md")).unwrap();
    let tables = text.split("<!-- reproduce ").skip(1);
    let tables = tables.map(|part| part.split_once("<!-- end -->").unwrap().0);
    let tables = tables.chain(single_runs(&text));
    let known: Vec<(f64, usize)> = tables.flat_map(numbers).collect();
    let (_, reading) = text.split_once("\n## What of the paper holds\n").unwrap();
    let reading = reading.split("\n## ").next().unwrap();
    let said = numbers(reading);
    assert!(said.len() > 5, "{said:?}");
    for (number, digits) in said {
        let half = 0.5 / 10_f64.powi(digits as i32) + 1e-9;
        let is =
            |(known, behind): &(f64, usize)| *behind >= digits && (known - number).abs() <= half;
        assert!(known.iter().any(is), "{number} is in no table");
    }
}

/// Everyone's training losses in an epoch of a stored run.
fn losses(run: &Path, epoch: u64) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let events = text
        .lines()
        .map(|line| -> serde_json::Value { serde_json::from_str(line).unwrap() });
    let mut found = events.filter(|event| event["event"] == "epoch" && event["epoch"] == epoch);
    let losses = found.next().unwrap()["train_losses"].clone();
    serde_json::from_value(losses).unwrap()
}

/// The paper prints losses of 0.50 for D-PSGD and 0.38 for MATCHA in epoch 100, in the mean over workers, and says that
/// batches were 128; its script has 16.
#[test]
fn the_printed_losses_are_not_those_of_batch_128() {
    let results = project().join("results");
    let mut runs = 0;
    for experiment in folders(&results.join("cifar10-200-epochs")) {
        for run in folders(&experiment) {
            let found = losses(&run, 100);
            let mean = found.iter().sum::<f64>() / found.len() as f64;
            assert!(mean < 0.36, "{}: {mean}", run.display());
            runs += 1;
        }
    }
    assert!(runs >= 21, "{runs}");
    let run = "cifar10-200-epochs-batch-16/al-dsgd-dpsgd-released-13x3/seed-1";
    let found = losses(&results.join(run), 100);
    assert!(
        found.iter().all(|loss| (0.42..0.59).contains(loss)),
        "{found:?}"
    );
}

/// Every test that the findings name is there.
#[test]
fn findings_have_their_tests() {
    let text = std::fs::read_to_string(project().join("docs/findings.md")).unwrap();
    let named = text.split('`').skip(1).step_by(2);
    let mut found = 0;
    let named = named.filter(|name| name.starts_with("crates/"));
    for (file, item) in named.filter_map(|name| name.split_once("::")) {
        let source = std::fs::read_to_string(project().join(file)).unwrap();
        let there = [format!("fn {item}("), format!("enum {item} ")];
        assert!(
            there.iter().any(|item| source.contains(item)),
            "{file}::{item}"
        );
        found += 1;
    }
    assert!(found >= 12, "{found}");
}
