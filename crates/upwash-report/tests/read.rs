//! Reading of run folders, both valid and damaged.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use upwash::run::Status;
use upwash_report::{Follower, ReadError, Run, csv, figures, page, show};

const STARTED: &str = r#"{"event":"started","version":1,"round":0,"algorithm":"D-PSGD","graph":"ring:3","workers":3,"parameters":10,"rounds":4,"rounds_per_epoch":2,"batch_size":8}"#;

const GRAPH: &str = r#"{"event":"graph","matchings":[[[0,1]],[[1,2]],[[0,2]]],"relabelings":[[0,1,2],[1,2,0]]}"#;

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
        GRAPH.into(),
        epoch(1, losses(0.8), false, 100),
        epoch(2, losses(0.4), true, 200),
        ended.into(),
    ]
}

#[test]
fn run_is_read_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &events(), "\n");
    let run = Run::read(folder.path()).unwrap();
    assert_eq!((run.workers, run.rounds_run, run.epochs.len()), (3, 4, 2));
    assert_eq!(run.ending, Some(Status::Finished));
    assert_eq!(run.graph.as_ref().unwrap().relabelings.len(), 2);
    let links: usize = run.graph.as_ref().unwrap().matchings.iter().map(Vec::len).sum();
    assert_eq!(links, 3);
    let accuracies: Vec<f64> = run.last_accuracies().iter().map(|entry| entry.1).collect();
    assert_eq!(accuracies, [0.6, 0.8, 0.9]);
    let text = show(&run);
    assert!(text.contains("mean 76.67 %, worst 60.00 %"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let table = csv(&[run]);
    assert_eq!(table.lines().count(), 1 + 2 * 3);
    assert!(table.contains(",2,1,0.2,0.8,,200,0.5"), "{table}");
}

#[test]
fn incomplete_lines_and_unknown_events_are_left_out_with_a_notice() {
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
    assert!(notices.contains("the last line is incomplete"), "{notices}");
    assert!(notices.contains("1 events of kinds unknown to this version"), "{notices}");
    assert!(notices.contains("line 3"), "{notices}");
    assert!(show(&run).contains("cut off; continue it with --resume"));
    // A run that goes on locks its events.
    let events = fs::File::open(folder.path().join("events.jsonl")).unwrap();
    events.lock().unwrap();
    assert!(show(&Run::read(folder.path()).unwrap()).contains(": running\n"));
}

#[test]
fn logs_of_several_processes_are_merged() {
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
    // Peers cannot be resumed as one run.
    assert!(show(&run).contains("cut off; continue it with the same `upwash launch`"), "{}", show(&run));
    // Each process counts only the bytes it sent.
    assert_eq!(run.epochs[0].bytes, 300);
}

#[test]
fn folder_without_a_run_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = Run::read(folder.path()).unwrap_err();
    assert!(matches!(error, ReadError::NoRun(_)), "{error}");
    assert!(Run::read(&folder.path().join("nowhere")).is_err());
    fs::write(folder.path().join("events.jsonl"), "").unwrap();
    let error = Run::read(folder.path()).unwrap_err();
    assert!(matches!(error, ReadError::Empty(_)), "{error}");
}

#[test]
fn runs_of_the_same_name_are_distinguished_and_names_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let folders: Vec<PathBuf> = ["a</script><script>alert(1)</script>", "b"]
        .map(|name| folder.path().join(name.replace('/', "\u{2215}")).join("seed-1"))
        .into();
    folders.iter().for_each(|folder| write(folder, &events(), "\n"));
    let runs = Run::read_all(&folders).unwrap();
    assert_eq!(runs[1].name, "b/seed-1");
    let page = page(&runs);
    assert!(!page.contains("<script>alert"), "a name became a tag");
    assert_eq!(page.matches("<script").count(), 3, "{}", page.len());
    assert!(!page.contains("{{"), "a placeholder was not replaced");
}

#[test]
fn figures_have_a_line_for_each_worker() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &events(), "\n");
    let figures = figures(&[Run::read(folder.path()).unwrap()]);
    let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    // These events have no consensus distance, so its figure is left out.
    let expected = [
        "graph",
        "graph-copy-2",
        "loss",
        "accuracy",
        "mean-loss",
        "mean-accuracy",
        "worst-accuracy",
        "worst-loss",
        "accuracy-rounds",
        "accuracy-bytes",
        "accuracy-time",
    ];
    assert_eq!(names, expected);
    // Three workers and three links.
    let graph = figures[0].svg().unwrap();
    assert_eq!(graph.matches("<circle").count(), 3, "{graph}");
    assert_eq!(graph.matches("data-link").count(), 3, "{graph}");
    assert!(graph.contains("60.0 % (dark) to 90.0 % (bright)"), "{graph}");
    let svg = figures[2].svg().unwrap();
    let named = |name: &str| svg.contains(name);
    assert!(named("worker 0") && named("worker 2") && named("mean") && named("training loss"));
    // Three workers and the mean, each in the chart and in the legend.
    let lines = svg.matches("<polyline").count();
    assert!(lines >= 2 * 4, "{lines}");
    let png = figures[0].png().unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(png[16..24], [0, 0, 7, 128, 0, 0, 4, 236]); // 1920 x 1260
}

fn ended(status: &str) -> String {
    format!(r#"{{"event":"ended",{status}}}"#)
}

fn summary_of(workers: &str, status: &str, accuracy: f64) -> String {
    format!(
        r#"{{"version":1,"algorithm":"D-PSGD","graph":"ring:3","workers":3,"rounds":4,"per_worker":[{workers}],
        "mean_accuracy":{accuracy},"worst_accuracy":{accuracy},"averaged_model_accuracy":{accuracy},
        "consensus_distance":null,"bytes_sent":1,"messages_sent":1,"simulated_seconds":0.5,{status}}}"#
    )
}

fn summary(folder: &Path, status: &str, accuracy: f64) {
    let node = |id: usize| format!(r#"{{"id":{id},"train_loss":0.1,"test_accuracy":{accuracy}}}"#);
    let workers = [0, 1, 2].map(node).join(",");
    fs::write(folder.join("summary.json"), summary_of(&workers, status, accuracy)).unwrap();
}

const STOPPED: &str = r#""status":"interrupted","round":2"#;
const FINISHED: &str = r#""status":"finished""#;

#[test]
fn results_from_before_a_resume_are_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let known = [Some(0.5); 3];
    let mut lines = vec![
        STARTED.to_string(),
        epoch(1, known, true, 100),
        r#"{"event":"control","round":2,"request":"stop"}"#.into(),
        ended(STOPPED),
    ];
    write(folder.path(), &lines, "\n");
    summary(folder.path(), STOPPED, 0.25);
    let stopped = Run::read(folder.path()).unwrap();
    assert_eq!(stopped.ending, Some(Status::Interrupted { round: 2 }));
    assert_eq!(stopped.last_accuracies()[0], (0, 0.25));
    // The run was resumed and is in progress.
    lines.pop();
    lines.push(STARTED.replace("\"round\":0", "\"round\":2"));
    lines.push(epoch(2, [Some(0.1); 3], true, 200));
    write(folder.path(), &lines, "\n");
    let resumed = Run::read(folder.path()).unwrap();
    assert!(resumed.ending.is_none() && !resumed.now.stopping && resumed.per_worker.is_empty());
    assert_eq!(resumed.last_accuracies()[0], (0, 0.9));
    // The run has ended, first without and then with its new summary.
    lines.push(ended(FINISHED));
    write(folder.path(), &lines, "\n");
    assert!(Run::read(folder.path()).unwrap().per_worker.is_empty());
    summary(folder.path(), FINISHED, 0.75);
    let finished = Run::read(folder.path()).unwrap();
    assert_eq!(finished.averaged_accuracy, Some(0.75));
}

#[test]
fn run_of_peers_ends_when_all_peers_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let only = |worker: usize, loss: f64| {
        let mut losses = [None; 3];
        losses[worker] = Some(loss);
        losses
    };
    let peer = |worker: usize| folder.path().join(format!("peer-{worker}"));
    for worker in 0..3 {
        let mut lines = vec![STARTED.to_string(), epoch(1, only(worker, 0.5), true, 100)];
        match worker {
            0 => lines.push(ended(STOPPED)),
            _ => lines.push(epoch(2, only(worker, 0.25), true, 200)),
        }
        write(&peer(worker), &lines, "\n");
    }
    let mut follower = Follower::open(folder.path()).unwrap();
    follower.read().unwrap();
    assert_eq!((&follower.run().ending, follower.run().processes), (&None, 3));
    let running: Vec<PathBuf> = follower.running_folders().map(Path::to_owned).collect();
    assert_eq!(running, [peer(1), peer(2)]);
    // Each worker has its own last accuracy. The bytes of a peer that has ended still count.
    let accuracies = [(0, 0.5), (1, 0.75), (2, 0.75)];
    assert_eq!(follower.run().last_accuracies(), accuracies);
    let bytes: Vec<u64> = follower.run().epochs.iter().map(|epoch| epoch.bytes).collect();
    assert_eq!(bytes, [300, 500]);
    for worker in 1..3 {
        let mut events = fs::File::options().append(true).open(peer(worker).join("events.jsonl")).unwrap();
        writeln!(events, "{}", ended(FINISHED)).unwrap();
    }
    assert!(follower.read().unwrap());
    assert_eq!(follower.run().ending, Some(Status::Interrupted { round: 2 }));
}

#[test]
fn one_process_can_resume_a_run_of_several_processes() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let losses = [[Some(0.5), None, None], [None, Some(0.5), Some(0.5)]][rank];
        let lines = [STARTED.to_string(), epoch(1, losses, false, 100), ended(STOPPED)];
        write(&folder.path().join(format!("rank-{rank}")), &lines, "\n");
    }
    let ranks = Run::read(folder.path()).unwrap();
    assert_eq!((ranks.epochs[0].bytes, ranks.processes), (200, 2));
    assert!(ranks.epochs[0].losses.iter().all(Option::is_some));
    let lines = [STARTED.replace("\"round\":0", "\"round\":2"), epoch(2, [Some(0.25); 3], true, 400), ended(FINISHED)];
    write(folder.path(), &lines, "\n");
    let run = Run::read(folder.path()).unwrap();
    assert_eq!((run.epochs.len(), run.processes), (2, 1));
    assert_eq!(run.ending, Some(Status::Finished));
    assert_eq!(run.epochs[1].bytes, 400);
}

#[test]
fn invalid_lines_give_one_notice_and_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = events();
    let bad = (0..1000).map(|number| format!(r#"{{"event":"epoch","epoch":"{number}"}}"#));
    lines.splice(1..1, bad);
    // More accuracies than workers, and a summary of a worker that does not exist.
    let long = lines[1001].replace(r#""test_accuracies":null"#, r#""test_accuracies":[0.1,0.2,0.3,0.4]"#);
    lines[1001] = long;
    write(folder.path(), &lines, "\n");
    let text = summary_of(r#"{"id":9,"train_loss":0.1,"test_accuracy":0.5}"#, FINISHED, 0.5);
    fs::write(folder.path().join("summary.json"), text).unwrap();
    let run = Run::read(folder.path()).unwrap();
    assert_eq!(run.notices.len(), 1, "{:?}", run.notices);
    assert!(run.notices[0].contains("1000 unreadable lines"), "{:?}", run.notices);
    assert_eq!(run.last_accuracies().len(), 3);
    assert!(page(&[run]).len() < 2 << 20);
    let many = STARTED.replace("\"workers\":3", "\"workers\":99999999999");
    write(folder.path(), &[many], "\n");
    assert!(matches!(Run::read(folder.path()), Err(ReadError::Damaged(_))));
}

#[test]
fn names_are_distinguished_at_any_depth() {
    let folder = tempfile::tempdir().unwrap();
    let deep = ["one", "two"].map(|top| folder.path().join(top).join("a/b/c/d/e"));
    deep.iter().for_each(|folder| write(folder, &events(), "\n"));
    let names = |folders: &[PathBuf]| -> Vec<String> {
        let runs = Run::read_all(folders).unwrap();
        runs.into_iter().map(|run| run.name).collect()
    };
    assert_eq!(names(&deep), ["one/a/b/c/d/e", "two/a/b/c/d/e"]);
    assert_eq!(names(&[deep[0].clone(), deep[0].clone()]), ["e", "e (2)"]);
}

#[test]
fn evaluations_are_kept_when_epochs_are_thinned() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = vec![STARTED.to_string()];
    lines.extend((1..=4010).map(|number| epoch(number, [Some(0.5); 3], number % 10 == 0, number)));
    write(folder.path(), &lines, "\n");
    let page = page(&[Run::read(folder.path()).unwrap()]);
    let tested = page.matches(r#""accuracies":[0.5,0.5,0.5]"#).count();
    assert!((200..=401).contains(&tested), "{tested}");
    assert!(page.contains(r#""epoch":1.0,"#) && page.contains(r#""epoch":4010.0,"#));
    // A follower with thinned epochs keeps no more than a chart can show.
    let mut follower = Follower::open(folder.path()).unwrap().with_thinned_epochs();
    follower.read().unwrap();
    assert!(follower.run().epochs.len() < 1000, "{}", follower.run().epochs.len());
}

/// A peer that has not finished the epoch of the others shows its last loss, and the seconds are real ones.
#[test]
fn unfinished_epochs_of_peers_are_not_shown_as_nan() {
    let folder = tempfile::tempdir().unwrap();
    let own = |worker: usize, epochs: u64| {
        let losses = |number: u64| {
            let mut losses = [None; 3];
            losses[worker] = Some(0.8 / number as f64);
            losses
        };
        let mut lines = vec![STARTED.to_owned()];
        lines.extend((1..=epochs).map(|number| epoch(number, losses(number), false, 100)));
        write(&folder.path().join(format!("peer-{worker}")), &lines, "\n");
    };
    own(0, 2);
    own(1, 1);
    own(2, 0);
    let text = show(&Run::read(folder.path()).unwrap());
    assert!(!text.contains("NaN"), "{text}");
    for (worker, loss) in [(0, "0.4000"), (1, "0.8000"), (2, "-")] {
        let row = text.lines().find(|line| line.starts_with(&format!("  {worker:>6}"))).unwrap();
        assert_eq!(row.split_whitespace().nth(1), Some(loss), "{text}");
    }
    assert!(text.contains("0.5 seconds") && !text.contains("simulated"), "{text}");
}

#[test]
fn text_from_files_does_not_control_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = events();
    lines[0] = STARTED.replace("D-PSGD", "\\u001b[2JD-PSGD").replace("ring:3", "ring\\u009b31m");
    lines.insert(2, r#"{"event":"warning","message":"beware\u001b]0;title\u0007\nof this"}"#.into());
    lines.insert(3, "{\"event\":\"\u{1b}[31m\"".into());
    write(folder.path(), &lines, "\n");
    let text = show(&Run::read(folder.path()).unwrap());
    let is_harmful = |character: char| character.is_control() && character != '\n';
    assert!(!text.contains(is_harmful), "{text:?}");
    assert!(text.contains("D-PSGD") && text.contains("beware"), "{text}");
}

/// Neither a pipe, nor a link, nor a huge file without lines keeps a reader.
#[cfg(unix)]
#[test]
fn only_regular_logs_of_events_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, link, sparse] = ["pipe", "link", "sparse"].map(|name| folder.path().join(name));
    for run in [&pipe, &link, &sparse] {
        fs::create_dir(run).unwrap();
    }
    let log = |run: &Path| run.join("events.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(log(&pipe)).status().unwrap().success());
    write(&folder.path().join("real"), &events(), "\n");
    std::os::unix::fs::symlink(log(&folder.path().join("real")), log(&link)).unwrap();
    fs::File::create(log(&sparse)).unwrap().set_len(1 << 40).unwrap();
    for (run, cause) in [(pipe, "not a regular file"), (link, "symbolic link"), (sparse, "longer than any event")] {
        let error = Run::read(&run).unwrap_err();
        assert!(error.to_string().contains(cause), "{error}");
    }
    // A link to the folder of a process is not a process of the run.
    let run = folder.path().join("run");
    write(&run.join("peer-0"), &events(), "\n");
    std::os::unix::fs::symlink(folder.path().join("real"), run.join("peer-1")).unwrap();
    assert_eq!(Run::read(&run).unwrap().processes, 1);
}
