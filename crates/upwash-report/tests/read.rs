//! Folders as runs leave them, and as they should not be.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use upwash::run::Status;
use upwash_report::{ReadError, Run, csv, figures, page, show};

const STARTED: &str = r#"{"event":"started","round":0,"algorithm":"D-PSGD","graph":"ring:3","workers":3,"parameters":10,"rounds":4,"rounds_per_epoch":2,"batch":8}"#;

fn epoch(number: u64, losses: [Option<f64>; 3], tested: bool, bytes: u64) -> String {
    let numbers = |all: [Option<f64>; 3]| serde_json::to_string(&all).unwrap();
    let accuracies = match tested {
        true => numbers(losses.map(|loss| loss.map(|loss| 1.0 - loss))),
        false => "null".into(),
    };
    format!(
        r#"{{"event":"epoch","epoch":{number},"train_losses":{},"test_accuracies":{accuracies},"consensus_distance":null,"bytes_sent":{bytes},"messages_sent":1,"simulated_seconds":0.5}}"#,
        numbers(losses)
    )
}

fn write(folder: &Path, lines: &[String], end: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("events.jsonl"), lines.join("\n") + end).unwrap();
    let config = "[graph]\ntopology = \"ring:3\"\ncopies = 2\n";
    fs::write(folder.join("config.toml"), config).unwrap();
}

fn events() -> Vec<String> {
    let ended = r#"{"event":"ended","status":"finished"}"#;
    let losses = |loss: f64| [Some(loss), Some(loss / 2.0), Some(loss / 4.0)];
    vec![
        STARTED.into(),
        epoch(1, losses(0.8), false, 100),
        epoch(2, losses(0.4), true, 200),
        ended.into(),
    ]
}

#[test]
fn a_run_is_read_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &events(), "\n");
    let run = Run::read(folder.path()).unwrap();
    assert_eq!((run.workers, run.rounds_run, run.epochs.len()), (3, 4, 2));
    assert_eq!(run.ending, Some(Status::Finished));
    assert_eq!(run.graph.as_ref().unwrap().places.len(), 2);
    let links: usize = run
        .graph
        .as_ref()
        .unwrap()
        .matchings
        .iter()
        .map(Vec::len)
        .sum();
    assert_eq!(links, 3);
    let accuracies: Vec<f64> = run.last_accuracies().iter().map(|entry| entry.1).collect();
    assert_eq!(accuracies, [0.6, 0.8, 0.9]);
    let text = show(&run);
    assert!(text.contains("mean 76.67 %, worst 60.00 %"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let table = csv(&[run]);
    assert_eq!(table.lines().count(), 1 + 2 * 3);
    assert!(table.contains(",2,1,0.2,0.8,,200,0.5"), "{table}");
}

#[test]
fn a_line_that_is_cut_and_events_of_later_versions_are_left_out_with_a_notice() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = events();
    lines.pop();
    lines.insert(1, r#"{"event":"teleported","to":"elsewhere"}"#.into());
    lines.insert(2, r#"{"event":"epoch","epoch":"none"}"#.into());
    lines.push(r#"{"event":"epoch","epoch":3,"train_lo"#.into());
    write(folder.path(), &lines, "");
    let run = Run::read(folder.path()).unwrap();
    assert_eq!((run.epochs.len(), &run.ending), (2, &None));
    let notices = run.notices.join("\n");
    assert!(notices.contains("the last line is cut"), "{notices}");
    assert!(
        notices.contains("1 events of a kind that this version"),
        "{notices}"
    );
    assert!(notices.contains("line 3"), "{notices}");
    assert!(show(&run).contains("going on, or cut off"));
}

#[test]
fn processes_of_one_run_are_one_run() {
    let folder = tempfile::tempdir().unwrap();
    for worker in 0..3 {
        let mut losses = [None; 3];
        losses[worker] = Some(0.1 * (worker + 1) as f64);
        let lines = [STARTED.to_string(), epoch(1, losses, true, 100)];
        write(&folder.path().join(format!("peer-{worker}")), &lines, "\n");
    }
    let run = Run::read(folder.path()).unwrap();
    assert_eq!(run.epochs.len(), 1);
    assert!(run.epochs[0].losses.iter().all(Option::is_some));
    assert_eq!(run.last_accuracies().len(), 3);
    // Each counts its own.
    assert_eq!(run.epochs[0].bytes, 300);
}

#[test]
fn what_is_no_run_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let error = Run::read(folder.path()).unwrap_err();
    assert!(matches!(error, ReadError::NoRun(_)), "{error}");
    assert!(Run::read(&folder.path().join("nowhere")).is_err());
    fs::write(folder.path().join("events.jsonl"), "").unwrap();
    let error = Run::read(folder.path()).unwrap_err();
    assert!(matches!(error, ReadError::Empty(_)), "{error}");
}

#[test]
fn runs_of_the_same_name_are_told_apart_and_names_are_only_text() {
    let folder = tempfile::tempdir().unwrap();
    let folders: Vec<PathBuf> = ["a</script><script>alert(1)</script>", "b"]
        .map(|name| {
            folder
                .path()
                .join(name.replace('/', "\u{2215}"))
                .join("seed-1")
        })
        .into();
    folders
        .iter()
        .for_each(|folder| write(folder, &events(), "\n"));
    let runs = Run::read_all(&folders).unwrap();
    assert_eq!(runs[1].name, "b/seed-1");
    let page = page(&runs);
    assert!(!page.contains("<script>alert"), "a name became a tag");
    assert_eq!(page.matches("<script").count(), 3, "{}", page.len());
    assert!(!page.contains("{{"), "a place was not filled in");
}

#[test]
fn figures_have_a_line_for_each_worker() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &events(), "\n");
    let figures = figures(&[Run::read(folder.path()).unwrap()]);
    let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    // There is no consensus distance in these events: nothing to draw.
    let expected = [
        "graph",
        "graph-copy-2",
        "loss",
        "accuracy",
        "worst-loss",
        "worst-accuracy",
        "accuracy-rounds",
        "accuracy-bytes",
        "accuracy-time",
    ];
    assert_eq!(names, expected);
    // Three workers with their edges, three links.
    let graph = figures[0].svg().unwrap();
    assert_eq!(graph.matches("<circle").count(), 6, "{graph}");
    assert_eq!(graph.matches("<polyline").count(), 3, "{graph}");
    assert!(
        graph.contains("60.00 % (dark) to 90.00 % (bright)"),
        "{graph}"
    );
    let svg = figures[2].svg().unwrap();
    let named = |name: &str| svg.contains(name);
    assert!(named("worker 0") && named("worker 2") && named("mean") && named("training loss"));
    // Three workers and the mean, each with its sign in the legend; axes and grid are lines of two points.
    let lines = svg.matches("<polyline").count();
    assert!(lines >= 2 * 4, "{lines}");
    let png = figures[0].png().unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(png[16..24], [0, 0, 7, 128, 0, 0, 4, 236]); // 1920 x 1260
}
