//! The documents agree with the stored results, and stored configurations and runs match their names.
#![allow(clippy::unwrap_used)]

mod common;

use common::{REPRODUCE, folders, name};
use std::path::{Path, PathBuf};
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn stored_configurations_are_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    REPRODUCE.said(folder.path(), &["--configs", "."]);
    let read = |path: &Path| -> Vec<(String, String)> {
        let files = std::fs::read_dir(path).unwrap().map(|file| file.unwrap().path());
        let mut all: Vec<_> = files.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect();
        all.sort();
        all
    };
    let kept = read(&project().join("configs/paper"));
    assert!(
        kept == read(folder.path()),
        "configs/paper is out of date: run `upwash-reproduce --configs configs/paper`"
    );
}

/// Replaces data sets that may not be installed.
const DATA: &str = "\"synthetic:train=1024,test=8,shape=3x32x32\"";

/// Every stored run matches the name of its folder, has ended, and has its provenance recorded.
#[test]
fn stored_runs_match_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs = 0;
    for scale in folders(&project().join("results")) {
        let parts: Vec<String> = name(&scale).split('-').map(str::to_owned).collect();
        let quick = parts[0] == "digits";
        let prefix = match &*parts[0] {
            "cifar100" => "cifar100-",
            data => {
                assert!(quick || data == "cifar10", "{parts:?}");
                ""
            }
        };
        assert_eq!(parts[2], "epochs");
        let configs = folder.path().join(name(&scale));
        let configs_path = configs.to_str().unwrap();
        let mut arguments = vec!["--configs", configs_path, "--epochs", &parts[1]];
        if let Some(batch) = parts.get(4) {
            arguments.extend(["--batch", batch]);
        }
        if quick {
            arguments.push("--quick");
        }
        REPRODUCE.said(folder.path(), &arguments);
        for experiment in folders(&scale) {
            let file = format!("{prefix}{}.toml", name(&experiment));
            let text = std::fs::read_to_string(configs.join(file));
            let text = text.unwrap_or_else(|_| panic!("{}: no such experiment", experiment.display()));
            for run in folders(&experiment) {
                let seed = name(&run).replace("seed-", "seed=");
                let mut changes = vec![seed];
                let stored = std::fs::read_to_string(run.join("config.toml")).unwrap();
                if stored.contains("\nlocal_train_loss = true\n") {
                    changes.push("training.local_train_loss=true".into());
                }
                if !quick {
                    changes.push(format!("data.name={DATA}"));
                }
                let config = Config::parse(&text, &changes).unwrap();
                let experiment = Experiment::prepare(config, &DataPaths::default()).unwrap();
                let data = format!("\"{}\"", parts[0]);
                let config = experiment.config.to_toml().replace(DATA, &data);
                let stored = stored.split("\n# checksum").next().unwrap();
                // An option with this default, which most of the runs are older than.
                let robust = "robust = \"none\"\n";
                let config = if stored.contains(robust) { config } else { config.replace(robust, "") };
                assert_eq!(stored, config, "{}", run.display());
                let json = |file: &str| -> serde_json::Value {
                    let text = std::fs::read_to_string(run.join(file)).unwrap();
                    serde_json::from_str(&text).unwrap()
                };
                let status = json("summary.json")["status"].clone();
                assert!(status == "finished" || status == "diverged", "{}", run.display());
                let commit = json("run.json")["commit"].as_str().unwrap().to_owned();
                assert_eq!(commit.trim_end_matches("-dirty").len(), 40, "{}: {commit}", run.display());
                runs += 1;
            }
        }
    }
    assert!(runs > 30, "{runs}");
}

/// Every table between the lines `<!-- reproduce ARGUMENTS -->` and `<!-- end -->` of the document is what
/// `upwash-reproduce` prints for the stored runs.
#[test]
fn tables_in_the_document_match_the_results() {
    let text = std::fs::read_to_string(project().join("docs/reproduction.md")).unwrap();
    let mut tables = 0;
    for part in text.split("<!-- reproduce ").skip(1) {
        let (arguments, rest) = part.split_once(" -->\n").unwrap();
        let (documented, _) = rest.split_once("<!-- end -->").unwrap();
        let mut all: Vec<&str> = arguments.split(' ').collect();
        all.extend(["--show", "--out", "results"]);
        // Headings in the document are one level deeper.
        let deeper = |line: &str| match line.starts_with("##") {
            true => format!("#{line}\n"),
            false => format!("{line}\n"),
        };
        let made: String = REPRODUCE.said(&project(), &all).lines().map(deeper).collect();
        let lines = |text: &str| -> Vec<String> {
            let kept = text.lines().filter(|line| !line.is_empty());
            kept.map(str::to_owned).collect()
        };
        // Compared line by line, so that the error shows only the first difference.
        let (documented, made) = (lines(documented), lines(&made));
        for (documented, made) in documented.iter().zip(&made) {
            assert_eq!(documented, made, "run scripts/fill-in-tables.sh");
        }
        assert_eq!(documented.len(), made.len(), "run scripts/fill-in-tables.sh");
        tables += 1;
    }
    assert!(tables > 0);
}

/// The decimal numbers in a text without their signs, and their number of decimals.
fn numbers(text: &str) -> Vec<(f64, usize)> {
    let words = text.split(|character: char| !character.is_ascii_digit() && character != '.');
    words
        .filter_map(|word| {
            let word = word.trim_matches('.');
            let (_, decimals) = word.split_once('.')?;
            Some((word.parse().ok()?, decimals.len()))
        })
        .collect()
}

/// The tables of single runs, from `<!-- seeds FOLDER -->` to `<!-- end -->`.
fn single_runs(text: &str) -> Vec<&str> {
    let tables = text.split("<!-- seeds ").skip(1);
    tables.map(|part| part.split_once("<!-- end -->").unwrap().0).collect()
}

#[test]
fn tables_of_single_runs_match_the_summaries() {
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

/// Every decimal number in the document's conclusions is, rounded, in one of its tables.
#[test]
fn conclusions_use_numbers_from_the_tables() {
    let text = std::fs::read_to_string(project().join("docs/reproduction.md")).unwrap();
    let tables = text.split("<!-- reproduce ").skip(1);
    let tables = tables.map(|part| part.split_once("<!-- end -->").unwrap().0);
    let tables = tables.chain(single_runs(&text));
    let known: Vec<(f64, usize)> = tables.flat_map(numbers).collect();
    let (_, conclusions) = text.split_once("\n## What of the paper holds\n").unwrap();
    let conclusions = conclusions.split("\n## ").next().unwrap();
    let used = numbers(conclusions);
    assert!(used.len() > 5, "{used:?}");
    for (number, digits) in used {
        let half = 0.5 / 10_f64.powi(digits as i32) + 1e-9;
        let is_same = |(known, decimals): &(f64, usize)| *decimals >= digits && (known - number).abs() <= half;
        assert!(known.iter().any(is_same), "{number} is not in any table");
    }
}

/// The training losses of all workers in an epoch of a stored run.
fn losses(run: &Path, epoch: u64) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let events = text.lines().map(|line| -> serde_json::Value { serde_json::from_str(line).unwrap() });
    let mut found = events.filter(|event| event["event"] == "epoch" && event["epoch"] == epoch);
    let losses = found.next().unwrap()["train_losses"].clone();
    serde_json::from_value(losses).unwrap()
}

/// The paper prints mean losses over the workers of 0.50 for D-PSGD and 0.38 for MATCHA in epoch 100, and says that the
/// batch size was 128. Its script has 16.
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
    assert!(found.iter().all(|loss| (0.42..0.59).contains(loss)), "{found:?}");
}

/// The mean accuracies of one configuration and seed at three batch sizes, as docs/reproduction.md states them.
#[test]
fn accuracy_falls_with_the_batch_size() {
    let text = std::fs::read_to_string(project().join("docs/reproduction.md")).unwrap();
    let mut last = 100.0;
    for folder in ["cifar10-200-epochs-batch-16", "cifar10-200-epochs-batch-32", "cifar10-200-epochs"] {
        let path = project().join("results").join(folder).join("al-dsgd-dpsgd-released-13x3/seed-1/summary.json");
        let summary: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let percent = 100.0 * summary["mean_accuracy"].as_f64().unwrap();
        assert!(percent < last && text.contains(&format!("{percent:.2} %")), "{folder}: {percent}");
        last = percent;
    }
}

/// Every test that docs/findings.md names exists.
#[test]
fn tests_named_in_findings_exist() {
    let text = std::fs::read_to_string(project().join("docs/findings.md")).unwrap();
    let named = text.split('`').skip(1).step_by(2);
    let mut found = 0;
    let named = named.filter(|name| name.starts_with("crates/"));
    for (file, item) in named.filter_map(|name| name.split_once("::")) {
        let source = std::fs::read_to_string(project().join(file)).unwrap();
        let definitions = [format!("fn {item}("), format!("enum {item} ")];
        assert!(definitions.iter().any(|item| source.contains(item)), "{file}::{item}");
        found += 1;
    }
    assert!(found >= 12, "{found}");
}
