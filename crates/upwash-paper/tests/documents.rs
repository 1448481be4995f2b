//! That what the documents say is what the results are, and that stored configurations and runs are what their names say.
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
fn the_configurations_are_those_of_the_program() {
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
        let mut arguments = vec!["--configs", place, "--epochs", &words[1]];
        if let Some(batch) = words.get(4) {
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
                assert!(status == "finished" || status == "diverged", "{}", run.display());
                let commit = json("run.json")["commit"].as_str().unwrap().to_owned();
                assert_eq!(commit.len(), 40, "{}: {commit}", run.display());
                runs += 1;
            }
        }
    }
    assert!(runs > 30, "{runs}");
}

/// Every table in the document is what `upwash-reproduce` makes of the stored runs. Between two such lines:
/// `<!-- reproduce ARGUMENTS -->` and `<!-- end -->`.
#[test]
fn the_document_says_what_the_results_are() {
    let text = std::fs::read_to_string(project().join("docs/reproduction.md")).unwrap();
    let mut tables = 0;
    for part in text.split("<!-- reproduce ").skip(1) {
        let (arguments, rest) = part.split_once(" -->\n").unwrap();
        let (there, _) = rest.split_once("<!-- end -->").unwrap();
        let mut all: Vec<&str> = arguments.split(' ').collect();
        all.extend(["--show", "--out", "results"]);
        // Headings are one step further down there.
        let deeper = |line: &str| match line.starts_with("##") {
            true => format!("#{line}\n"),
            false => format!("{line}\n"),
        };
        let made: String = REPRODUCE.said(&project(), &all).lines().map(deeper).collect();
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
    tables.map(|part| part.split_once("<!-- end -->").unwrap().0).collect()
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
        let is = |(known, behind): &(f64, usize)| *behind >= digits && (known - number).abs() <= half;
        assert!(known.iter().any(is), "{number} is in no table");
    }
}

/// Everyone's training losses in an epoch of a stored run.
fn losses(run: &Path, epoch: u64) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let events = text.lines().map(|line| -> serde_json::Value { serde_json::from_str(line).unwrap() });
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
    assert!(found.iter().all(|loss| (0.42..0.59).contains(loss)), "{found:?}");
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
        assert!(there.iter().any(|item| source.contains(item)), "{file}::{item}");
        found += 1;
    }
    assert!(found >= 12, "{found}");
}
