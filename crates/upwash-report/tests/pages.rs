//! The HTML page in a real browser.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use upwash::run::Event;
use upwash_report::{OverSeeds, Run, page};
use upwash_testkit::browser::Browser;
use upwash_topology::GraphSpec;

const WORKERS: usize = 8;

/// Creates the folder of a run with made-up losses.
fn folder(parent: &Path, name: &str) -> PathBuf {
    folder_of(parent, name, "paper:L1", WORKERS, 10)
}

fn folder_of(parent: &Path, name: &str, graph: &str, workers: usize, epochs: u32) -> PathBuf {
    scaled_folder(parent, name, (graph, workers, epochs), 1.0)
}

/// A run whose losses are multiplied by a factor.
fn scaled_folder(parent: &Path, name: &str, (graph, workers, epochs): (&str, usize, u32), factor: f64) -> PathBuf {
    let folder = parent.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut lines = vec![format!(
        r#"{{"event":"started","version":1,"round":0,"algorithm":"D-PSGD","graph":"{graph}","workers":{workers},"parameters":10,"rounds":100,"rounds_per_epoch":10,"batch_size":8,"time":1794000000,"upwash":"0.1.0"}}"#
    )];
    let built = graph.parse::<GraphSpec>().unwrap().build().unwrap();
    let event = Event::Graph { matchings: built.matchings().to_vec(), relabelings: vec![] };
    lines.push(serde_json::to_string(&event).unwrap());
    for epoch in 1..=epochs {
        let number = |worker: usize| factor * (1.0 + worker as f64 / workers as f64) / f64::from(epoch);
        let losses: Vec<f64> = (0..workers).map(number).collect();
        let accuracies: Vec<f64> = losses.iter().map(|loss| 1.0 - loss / 2.0).collect();
        lines.push(format!(
            r#"{{"event":"epoch","epoch":{epoch},"train_losses":{losses:?},"test_accuracies":{accuracies:?},"consensus_distance":0.1,"bytes_sent":{epoch}000,"messages_sent":1,"simulated_seconds":{epoch}}}"#
        ));
    }
    std::fs::write(folder.join("events.jsonl"), lines.join("\n") + "\n").unwrap();
    std::fs::write(folder.join("config.toml"), format!("seed = 7\n[graph]\ntopology = \"{graph}\"\n")).unwrap();
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
    // Two graphs, two loss and two accuracy charts, and eight charts that compare the runs.
    assert_eq!(browser.evaluate("document.querySelectorAll('.chart svg, .graph svg').length"), 14);
    // A line for each worker, and the mean.
    let lines = browser.evaluate(&line_count("loss-0"));
    assert_eq!(lines, WORKERS + 1);
    let legend = "[...document.querySelector('#loss-0').parentElement.querySelectorAll('button.line')].find((e) => e.title === 'worker 3')";
    browser.click(legend);
    browser.wait_for(&format!("{} === {WORKERS}", line_count("loss-0")));
    browser.click(legend);
    browser.wait_for(&format!("{} === {}", line_count("loss-0"), WORKERS + 1));
    // The graph has twelve links. A tag in a run's name stays text.
    assert_eq!(browser.evaluate("document.querySelectorAll('#graph-0 [data-link]').length"), 12);
    assert_eq!(browser.evaluate("document.querySelectorAll('#workers th')[2].textContent"), "<script>alert(1)<x>");
    // Every chart can be saved as SVG.
    assert_eq!(browser.evaluate("document.querySelectorAll('.panel .save').length"), 14);
    let picture =
        browser.evaluate("decodeURIComponent(upwash.charts.find((one) => one.element.id === 'loss-0').picture())");
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
fn many_runs_are_compared_and_some_have_charts() {
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let name = |index: usize| format!("run-{index}");
    // Together the lines have more points than a function takes arguments.
    let run = |index: usize| folder_of(directory.path(), &name(index), "ring:32", 32, 400);
    let folders: Vec<PathBuf> = (1..=20).map(run).collect();
    open(&mut browser, directory.path(), &folders);
    assert_eq!(browser.evaluate("document.querySelectorAll('#summary tbody tr').length"), 20);
    assert_eq!(browser.evaluate(&line_count("mean-loss")), 20);
    assert_eq!(browser.evaluate("document.querySelectorAll('[id^=accuracy-1]').length"), 7);
    let text = browser.evaluate("document.body.innerText");
    assert!(text.as_str().unwrap().contains("Of 20 runs, the first 16 are shown."));
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

/// Opens a page of these runs.
fn open(browser: &mut Browser, directory: &Path, folders: &[PathBuf]) {
    open_page(browser, directory, &Run::read_all(folders).unwrap());
}

fn open_page(browser: &mut Browser, directory: &Path, runs: &[Run]) {
    let file = directory.join("report.html");
    std::fs::write(&file, page(runs)).unwrap();
    browser.open(&format!("file://{}", file.display()));
}

fn resize(browser: &mut Browser, width: u32, height: u32) {
    let size = serde_json::json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
    browser.call("Emulation.setDeviceMetricsOverride", size);
}

/// A script that lists elements that stick out of the window or of their panel, or that scroll sideways.
const CUT_OFF: &str = "(() => {
    const out = [];
    document.querySelectorAll('td, th, .line, .save, .range, h3, .caption').forEach((element) => {
        const box = element.getBoundingClientRect();
        const around = (element.closest('.panel') || document.documentElement).getBoundingClientRect();
        if (box.width && (box.left < around.left - 0.5 || box.right > around.right + 0.5)) out.push(element.textContent);
    });
    // Titles do not run into buttons.
    document.querySelectorAll('.panel h3').forEach((title) => {
        const range = document.createRange();
        range.selectNodeContents(title);
        const text = [...range.getClientRects()];
        title.parentElement.querySelectorAll('.save, .range').forEach((button) => {
            const box = button.getBoundingClientRect();
            if (text.some((one) => one.right > box.left && one.bottom > box.top && one.top < box.bottom && one.left < box.right)) out.push(`${title.textContent} touches ${button.textContent}`);
        });
    });
    document.querySelectorAll('.scroll').forEach((element) => {
        if (element.scrollWidth > element.clientWidth) out.push('scrolls');
    });
    return out;
})()";

#[test]
fn nothing_is_cut_off_with_one_to_eight_runs() {
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let name = |index: usize| format!("al-dsgd-over-matcha-with-a-very-long-name-{index}/seed-{index}");
    let folders: Vec<PathBuf> =
        (1..=8).map(|index| folder_of(directory.path(), &name(index), "paper:L1", WORKERS, 30)).collect();
    for count in [1, 2, 4, 8] {
        for (width, scheme) in [(1440, "light"), (390, "light"), (1440, "dark"), (390, "dark")] {
            let media = serde_json::json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            browser.call("Emulation.setEmulatedMedia", media);
            resize(&mut browser, width, 900);
            let mut runs = Run::read_all(&folders[..count]).unwrap();
            let part = (0.9, 0.1);
            let over_seeds = OverSeeds { seeds: 100, mean: part, worst: part, averaged: part };
            runs.iter_mut().for_each(|run| run.over_seeds = (count == 4).then_some(over_seeds));
            open_page(&mut browser, directory.path(), &runs);
            browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
            let cut = browser.evaluate(CUT_OFF);
            assert_eq!(cut, serde_json::json!([]), "{count} runs at {width} pixels");
            let wide = browser.evaluate("document.documentElement.scrollWidth");
            assert_eq!(wide, width, "{count} runs");
        }
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn first_screen_has_the_results_and_the_first_charts() {
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let folders: Vec<PathBuf> = (1..=8).map(|index| folder(directory.path(), &format!("run-{index}"))).collect();
    // Many notices are folded.
    let warning =
        |text: usize| format!("{{\"event\":\"warning\",\"message\":\"a rather long warning about setting {text}\"}}\n");
    let events = folders[0].join("events.jsonl");
    let text = std::fs::read_to_string(&events).unwrap() + &(0..8).map(warning).collect::<String>();
    std::fs::write(&events, text).unwrap();
    for count in [8, 1, 2, 4] {
        open(&mut browser, directory.path(), &folders[..count]);
        // The charts of the loss and of the worst worker end above the lower edge.
        let last = if count == 1 { "accuracy-0" } else { "worst-accuracy" };
        let bottom = browser.evaluate(&format!("document.querySelector('#{last}').getBoundingClientRect().bottom"));
        assert!(bottom.as_f64().unwrap() <= 900.0, "{count} runs: {bottom}");
        let rows = browser.evaluate("document.querySelectorAll('#summary tbody tr').length");
        assert_eq!(rows, count);
    }
    let row =
        browser.evaluate("[...document.querySelectorAll('#summary tbody tr')[0].cells].map((one) => one.innerText)");
    let row: Vec<String> = serde_json::from_value(row).unwrap();
    // Losses of epoch 10 are 0.1 to 0.1875, so accuracies are 0.95 to 0.90625.
    assert_eq!(row[1..4], ["92.81 %", "90.63 %", "–"]);
    assert_eq!(row[4..7], ["0.01 MB", "10 s", "7"]);
    assert!(row[7].starts_with("2026-11-0") && row[8] == "0.1.0", "{row:?}");
    // The workers are folded.
    assert_eq!(browser.evaluate("document.querySelector('#workers').closest('details').open"), false);
}

#[test]
fn runs_share_their_axes_and_late_epochs_fill_them() {
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let graph = ("paper:L1", WORKERS, 40);
    let folders =
        [("one", 1.0), ("other", 0.25)].map(|(name, factor)| scaled_folder(directory.path(), name, graph, factor));
    open(&mut browser, directory.path(), &folders);
    let extent = |id: &str| {
        format!(
            "upwash.charts.find((one) => one.element.id === '{id}').instance.getModel().getComponent('yAxis').axis.scale.getExtent()"
        )
    };
    for chart in ["loss", "accuracy"] {
        let [one, other] = [0, 1].map(|run| browser.evaluate(&extent(&format!("{chart}-{run}"))));
        assert_eq!(one, other, "{chart}");
    }
    // In the first epoch the worst worker of one run has 6 %; after a third of the epochs all have more than 92 %.
    let lowest = browser.evaluate(&format!("{}[0]", extent("accuracy-0"))).as_f64().unwrap();
    assert!((0.85..0.93).contains(&lowest), "{lowest}");
    browser.click("document.querySelector('#accuracy-1').parentElement.querySelector('.range')");
    let lowest = browser.evaluate(&format!("{}[0]", extent("accuracy-0"))).as_f64().unwrap();
    assert!(lowest <= 0.07, "{lowest}");
    // Labels have no needless zeros.
    let labels =
        browser.evaluate("[...document.querySelectorAll('#accuracy-0 svg text')].map((one) => one.textContent)");
    assert!(labels.to_string().contains("\"80 %\""), "{labels}");
    // A longer run has a longer axis, which the other one shares.
    let longer = folder_of(directory.path(), "longer", "paper:L1", WORKERS, 60);
    open(&mut browser, directory.path(), &[folders[0].clone(), longer]);
    let epochs = extent("loss-0").replace("yAxis", "xAxis");
    assert_eq!(browser.evaluate(&format!("{epochs}.join()")), "1,60");
}

#[test]
fn short_logarithmic_axes_have_ticks() {
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let narrow = scaled_folder(directory.path(), "narrow", ("complete:2", 2, 1), 0.34);
    let events = narrow.join("events.jsonl");
    let text = std::fs::read_to_string(&events).unwrap();
    assert!(text.contains("\"train_losses\":[0.34, 0.51]"), "{text}");
    std::fs::write(&events, text.replace("[0.34, 0.51]", "[0.34, 0.35]")).unwrap();
    open(&mut browser, directory.path(), &[narrow]);
    let labels = browser.evaluate("[...document.querySelectorAll('#loss-0 svg text')].map((one) => one.textContent)");
    for tick in ["0.3", "0.35", "0.4"] {
        assert!(labels.as_array().unwrap().iter().any(|label| label == tick), "{tick}: {labels}");
    }
}

#[test]
fn keyboard_reaches_legends_and_zoom() {
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let folders = ["one", "other"].map(|name| folder(directory.path(), name));
    open(&mut browser, directory.path(), &folders);
    let press = |browser: &mut Browser, key: &str, text: &str| {
        for kind in ["keyDown", "keyUp"] {
            let event =
                serde_json::json!({ "type": kind, "key": key, "text": if kind == "keyDown" { text } else { "" } });
            browser.call("Input.dispatchKeyEvent", event);
        }
    };
    // A run is hidden in all charts that compare runs.
    browser.evaluate("document.querySelector('#summary button.line').focus()");
    press(&mut browser, "Enter", "\r");
    browser.wait_for(&format!("{} === 1 && {} === 1", line_count("mean-loss"), line_count("consensus")));
    let pressed =
        "[...document.querySelectorAll('button.line[data-run=\"0\"]')].every((one) => one.ariaPressed === 'false')";
    assert_eq!(browser.evaluate(pressed), true);
    let zoom = "(() => { const { start, end } = upwash.charts.find((one) => one.element.id === 'loss-0').instance.getOption().dataZoom[0]; return `${start} ${end}`; })()";
    let is_bar_shown = "upwash.charts.find((one) => one.element.id === 'loss-0').instance.getOption().dataZoom[1].show";
    assert_eq!(browser.evaluate(is_bar_shown), false);
    browser.evaluate("document.querySelector('#loss-0').focus()");
    assert_eq!(browser.evaluate(is_bar_shown), true);
    press(&mut browser, "+", "+");
    assert_eq!(browser.evaluate(zoom), "25 75");
    press(&mut browser, "ArrowRight", "");
    assert_eq!(browser.evaluate(zoom), "37.5 87.5");
    press(&mut browser, "0", "0");
    assert_eq!(browser.evaluate(zoom), "0 100");
}
