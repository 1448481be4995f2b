//! `upwash report`, `show` and `export` on the command line.
#![allow(clippy::unwrap_used)]

mod common;

use common::{said, upwash};

#[test]
fn run_can_be_shown_reported_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), "[training]\nepochs = 2\n").unwrap();
    said(here, &["train", "c.toml", "--out", "run"]);
    let before = std::fs::read_dir(here.join("run")).unwrap().count();
    let shown = said(here, &["show", "run"]);
    assert!(shown.contains("worker  train loss  test accuracy"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    said(here, &["report", "run", "-o", "r.html"]);
    let page = std::fs::read_to_string(here.join("r.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("AL-DSGD"));
    said(here, &["export", "run", "--csv", "r.csv", "--tensorboard", "tb"]);
    let table = std::fs::read_to_string(here.join("r.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 2 * 8);
    assert!(here.join("tb/run/worker-7/events.out.tfevents.0.upwash").exists());
    assert!(here.join("tb/run/all/events.out.tfevents.0.upwash").exists());
    // The run's folder is unchanged.
    assert_eq!(std::fs::read_dir(here.join("run")).unwrap().count(), before);
}

#[test]
fn folder_of_runs_is_listed_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), "[training]\nepochs = 1\n").unwrap();
    for seed in [1, 2, 10] {
        let (out, seed) = (format!("runs/some/seed-{seed}"), format!("seed={seed}"));
        said(here, &["train", "c.toml", "--out", &out, "--set", &seed]);
    }
    std::fs::create_dir(here.join("runs/new")).unwrap();
    std::fs::write(here.join("runs/new/events.jsonl"), "").unwrap();
    let listed = said(here, &["show", "runs"]);
    assert!(listed.lines().all(|line| line.chars().count() <= 80), "{listed}");
    let names: Vec<&str> = listed.lines().skip(3).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["new", "some/seed-1", "some/seed-2", "some/seed-10"]);
    assert!(listed.contains("new                             not started"), "{listed}");
    let summary = common::summary(&here.join("runs/some/seed-2"));
    let percent = |key: &str| format!("{:.2}", 100.0 * summary[key].as_f64().unwrap());
    let line = listed.lines().find(|line| line.contains("seed-2")).unwrap();
    let cells: Vec<&str> = line.split_whitespace().skip(1).collect();
    let [mean, worst] = ["mean_accuracy", "worst_accuracy"].map(percent);
    assert_eq!(cells, ["finished", "1/1", &mean, &worst, &percent("averaged_model_accuracy")]);
    // A run in the folder is shown, and a page of the folder has all its runs.
    assert!(said(here, &["show", "runs/some/seed-2"]).contains("worker  train loss"));
    said(here, &["report", "runs/some", "-o", "r.html"]);
    let page = std::fs::read_to_string(here.join("r.html")).unwrap();
    assert!(["seed-1", "seed-2", "seed-10"].iter().all(|name| page.contains(&format!("\"name\":\"{name}\""))));
}

/// TensorBoard's event files: the values of a tag, by their place in the bytes of each record.
#[test]
fn means_are_exported_for_tensorboard() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), "[training]\nepochs = 2\n").unwrap();
    said(here, &["train", "c.toml", "--out", "run"]);
    said(here, &["export", "run", "--tensorboard", "tb"]);
    let values = |worker: &str, tag: &str| -> Vec<f32> {
        let bytes = std::fs::read(here.join("tb/run").join(worker).join("events.out.tfevents.0.upwash")).unwrap();
        let ends = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(tag.as_bytes())).map(|at| at + tag.len());
        // The field after the tag: key 0x15, then a float.
        ends.map(|at| f32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap())).collect()
    };
    for tag in ["train/loss", "test/accuracy"] {
        let workers: Vec<Vec<f32>> = (0..8).map(|worker| values(&format!("worker-{worker}"), tag)).collect();
        let means = values("all", tag);
        assert_eq!((means.len(), workers[0].len()), (2, 2), "{tag}");
        for (epoch, found) in means.iter().enumerate() {
            let mean = workers.iter().map(|values| values[epoch]).sum::<f32>() / 8.0;
            assert!((mean - found).abs() < 1e-5, "{tag}: {mean}, {found}");
        }
    }
    let accuracy = common::summary(&here.join("run"))["worst_accuracy"].as_f64().unwrap();
    assert!((f64::from(values("all", "all/worst_accuracy")[1]) - accuracy).abs() < 1e-6);
}

#[test]
fn errors_name_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, word) in [
        (&["report", "."][..], "is not a run"),
        (&["show", "nowhere"], "there is no folder nowhere"),
        (&["export", "."], "--csv FILE or --tensorboard DIR"),
    ] {
        let output = upwash(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
}

/// Recomputes the links and leaders of each round from its losses, and compares them with the events.
#[test]
fn events_record_the_links_and_leaders_of_each_round() {
    use serde_json::Value;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let config = "[graph]\ntopology = \"paper:L1\"\ncopies = 2\n[algorithm]\nbase = \"matcha\"\n\
                  [training]\nepochs = 3\nbatch_size = 16\n";
    std::fs::write(here.join("c.toml"), config).unwrap();
    said(here, &["train", "c.toml", "--out", "run"]);
    let text = std::fs::read_to_string(here.join("run/events.jsonl")).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pairs = |value: &Value| -> Vec<(usize, usize)> { serde_json::from_value(value.clone()).unwrap() };
    let (graph, mut links) = (&events[1], vec![]);
    let mut leaders: Vec<Option<(usize, usize)>> = vec![];
    assert_eq!(graph["event"], "graph");
    let matchings = graph["matchings"].as_array().unwrap();
    let all: Vec<(usize, usize)> = matchings.iter().flat_map(pairs).collect();
    assert_eq!(all.len(), 12);
    let places: Vec<Vec<usize>> = serde_json::from_value(graph["relabelings"].clone()).unwrap();
    assert_eq!(places.len(), 2);
    let mut led_by_another = 0;
    for event in events.iter().filter(|event| event["event"] == "round") {
        if !event["links"].is_null() {
            links = pairs(&event["links"]);
        }
        if !event["leaders"].is_null() {
            leaders = serde_json::from_value(event["leaders"].clone()).unwrap();
        }
        let losses: Vec<f64> = serde_json::from_value(event["losses"].clone()).unwrap();
        let copy = &places[event["round"].as_u64().unwrap() as usize % 2];
        for &(a, b) in &links {
            let (a, b) = (copy[a].min(copy[b]), copy[a].max(copy[b]));
            assert!(all.contains(&(a, b)), "{a} {b} is not a link of the graph");
        }
        let neighbors = |worker: usize| {
            let other = move |&(a, b): &(usize, usize)| match worker {
                _ if a == worker => Some(b),
                _ if b == worker => Some(a),
                _ => None,
            };
            links.iter().filter_map(other)
        };
        for (worker, pair) in leaders.iter().enumerate() {
            let mut closed: Vec<usize> = neighbors(worker).chain([worker]).collect();
            closed.sort_unstable();
            let &Some((best, connected)) = pair else {
                assert_eq!(closed, [worker], "a worker with neighbors has no leaders");
                continue;
            };
            let lowest = closed.iter().min_by(|a, b| losses[**a].total_cmp(&losses[**b]));
            let degree = |worker: usize| neighbors(worker).count();
            let most = closed.iter().map(|&other| degree(other)).max().unwrap();
            let first = closed.iter().find(|&&other| degree(other) == most);
            assert_eq!((Some(&best), Some(&connected)), (lowest, first), "worker {worker}");
            led_by_another += usize::from(best != worker);
        }
    }
    assert!(led_by_another > 20, "{led_by_another}");
}
