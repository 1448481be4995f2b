//! The HTML page in a real browser.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use upwash::run::Event;
use upwash_report::{Run, page};
use upwash_testkit::browser::Browser;
use upwash_topology::GraphSpec;

const WORKERS: usize = 8;

/// Creates the folder of a run with made-up losses.
fn folder(parent: &std::path::Path, name: &str) -> PathBuf {
    folder_of(parent, name, "paper:L1", WORKERS, 10)
}

fn folder_of(parent: &std::path::Path, name: &str, graph: &str, workers: usize, epochs: u32) -> PathBuf {
    let folder = parent.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut lines = vec![format!(
        r#"{{"event":"started","version":1,"round":0,"algorithm":"D-PSGD","graph":"{graph}","workers":{workers},"parameters":10,"rounds":100,"rounds_per_epoch":10,"batch_size":8}}"#
    )];
    let built = graph.parse::<GraphSpec>().unwrap().build().unwrap();
    let event = Event::Graph { matchings: built.matchings().to_vec(), relabelings: vec![] };
    lines.push(serde_json::to_string(&event).unwrap());
    for epoch in 1..=epochs {
        let number = |worker: usize| (1.0 + worker as f64 / workers as f64) / f64::from(epoch);
        let losses: Vec<f64> = (0..workers).map(number).collect();
        let accuracies: Vec<f64> = losses.iter().map(|loss| 1.0 - loss / 2.0).collect();
        lines.push(format!(
            r#"{{"event":"epoch","epoch":{epoch},"train_losses":{losses:?},"test_accuracies":{accuracies:?},"consensus_distance":0.1,"bytes_sent":{epoch}000,"messages_sent":1,"simulated_seconds":{epoch}}}"#
        ));
    }
    std::fs::write(folder.join("events.jsonl"), lines.join("\n") + "\n").unwrap();
    std::fs::write(folder.join("config.toml"), format!("[graph]\ntopology = \"{graph}\"\n")).unwrap();
    folder
}

/// A script that counts the lines drawn in a chart: paths without fill and with beveled joins.
fn line_count(chart: &str) -> String {
    format!("document.querySelectorAll('#{chart} svg path[fill=\"none\"][stroke-linejoin=\"bevel\"]').length")
}

#[test]
fn report_opens_from_disk_and_reacts_to_the_mouse() {
    let Some(mut browser) = Browser::start(1440, 1000) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let folders = ["first", "<script>alert(1)<x>"].map(|name| folder(directory.path(), name));
    let runs = Run::read_all(&folders).unwrap();
    let file = directory.path().join("report.html");
    std::fs::write(&file, page(&runs)).unwrap();
    browser.open(&format!("file://{}", file.display()));
    // Two graphs, two loss and two accuracy charts, and six charts that compare the runs.
    assert_eq!(browser.evaluate("document.querySelectorAll('.chart svg, .graph svg').length"), 12);
    // A line for each worker, and the mean.
    let lines = browser.evaluate(&line_count("loss-0"));
    assert_eq!(lines, WORKERS + 1);
    let legend = "[...document.querySelectorAll('#loss-0 svg text')].find((e) => e.textContent === 'worker 3')";
    browser.click(legend);
    browser.wait_for(&format!("{} === {WORKERS}", line_count("loss-0")));
    browser.click(legend);
    browser.wait_for(&format!("{} === {}", line_count("loss-0"), WORKERS + 1));
    // The graph has twelve links. A tag in a run's name stays text.
    assert_eq!(browser.evaluate("document.querySelectorAll('#graph-0 [data-link]').length"), 12);
    assert_eq!(browser.evaluate("document.querySelectorAll('#table th')[2].textContent"), "<script>alert(1)<x>");
    // Every chart can be saved as SVG.
    assert_eq!(browser.evaluate("document.querySelectorAll('.panel .save').length"), 12);
    let picture = browser.evaluate("decodeURIComponent(upwash.charts[2].picture())");
    let picture = picture.as_str().unwrap();
    assert!(picture.starts_with("data:image/svg+xml") && picture.contains("worker 3"));
    // A tooltip shows the values under the pointer.
    browser.click("document.querySelector('#accuracy-rounds svg')");
    browser.wait_for(
        "[...document.querySelectorAll('#accuracy-rounds > div')].some((e) => e.textContent.includes('first'))",
    );
    // The page fits the width of a phone.
    let size = serde_json::json!({ "width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": false });
    browser.call("Emulation.setDeviceMetricsOverride", size);
    browser.wait_for("document.documentElement.scrollWidth <= 390");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn thousand_workers_are_drawn() {
    let Some(mut browser) = Browser::start(1440, 1000) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let folder = folder_of(directory.path(), "many", "torus:25x40", 1000, 1000);
    let run = Run::read(&folder).unwrap();
    let page = page(&[run]);
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
    let file = directory.path().join("report.html");
    std::fs::write(&file, page).unwrap();
    browser.open(&format!("file://{}", file.display()));
    let lines = browser.evaluate(&line_count("loss-0")).as_u64().unwrap();
    assert!((12..=17).contains(&lines), "{lines}");
    // For information: the time to load and draw the page.
    let milliseconds = browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd");
    println!("loaded and drawn in {milliseconds} ms");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
