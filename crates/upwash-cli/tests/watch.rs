//! `upwash watch` and `train --watch` in a real browser.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use upwash_testkit::browser::Browser;

/// A child process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Waits for the exit code.
    fn exit_code(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the program does not exit");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Starts the program and returns it with the URL that it prints.
fn start(folder: &Path, arguments: &[&str]) -> (Running, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_upwash"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("UPWASH_TOKEN")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let train = arguments[0] == "train";
    let url = |stream: &mut dyn std::io::Read| {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let find = |line: String| line.strip_prefix("watch it at ").map(str::to_owned);
        lines.filter_map(find).next()
    };
    let url = match train {
        true => url(child.stderr.as_mut().unwrap()),
        false => url(child.stdout.as_mut().unwrap()),
    };
    (Running(child), url.expect("the program prints its URL"))
}

/// A run that is longer than any test.
const LONG: &str =
    "[graph]\ncopies = 3\n[training]\nepochs = 1000000\nbatch_size = 32\ntest_every = 10\ncheckpoint_every = 0\n";

/// The page fits the width of a phone.
fn check_on_a_phone(browser: &mut Browser) {
    let size =
        |width: u32| serde_json::json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false });
    browser.call("Emulation.setDeviceMetricsOverride", size(390));
    browser.wait_for("innerWidth === 390 && document.documentElement.scrollWidth <= 390");
    let outside = "[...document.querySelectorAll('button, td, th, #state, h1, h2, h3')].filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width && (box.left < -0.5 || box.right > 390.5);
    }).map((one) => one.textContent)";
    assert_eq!(browser.evaluate(outside), serde_json::json!([]));
    browser.call("Emulation.setDeviceMetricsOverride", size(1440));
}

#[test]
fn run_is_watched_paused_checkpointed_and_stopped() {
    let Some(mut browser) = Browser::start(1440, 1000) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), LONG).unwrap();
    let arguments = ["train", "c.toml", "--out", "run", "--watch=127.0.0.1:0", "--no-token"];
    let (mut training, url) = start(here, &arguments);
    browser.open(&url);
    // The page receives events while the run is in progress.
    let rounds = "upwash.runs[0].rounds_run";
    let seen = browser.evaluate(rounds).as_u64().unwrap();
    browser.wait_for(&format!("{rounds} > {seen}"));
    browser.wait_for("document.getElementById('state').textContent.includes(' left')");
    browser.wait_for("upwash.runs[0].batches.length > 20");
    browser.wait_for(
        "document.querySelectorAll('#batches-0 svg path[fill=\"none\"][stroke-linejoin=\"bevel\"]').length === 9",
    );
    // The graph shows the active links and the leaders.
    browser.wait_for("document.querySelectorAll('#graph-0 .leader').length > 0");
    browser.wait_for("document.querySelectorAll('#graph-0 .up').length === upwash.runs[0].now.links.length");
    // Each leader has the number of its followers at its node, and the header has the accuracies.
    browser.wait_for(
        "(() => { const all = [...document.querySelectorAll('#graph-0 .followers text')].map((one) => Number(one.textContent)); \
         return all.length > 0 && all.reduce((a, b) => a + b) === document.querySelectorAll('#graph-0 .leader').length; })()",
    );
    let state = |word: &str| format!("document.getElementById('state').textContent.includes('{word}')");
    browser.wait_for(&state("worst worker"));
    check_on_a_phone(&mut browser);
    browser.click("document.getElementById('pause')");
    browser.wait_for(&state("paused"));
    let paused = browser.evaluate(rounds);
    browser.click("document.getElementById('checkpoint')");
    browser.wait_for("document.getElementById('feedback').textContent.startsWith('Checkpoint written')");
    assert_eq!(browser.evaluate(rounds), paused);
    let checkpoints = || {
        let files = std::fs::read_dir(here.join("run")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".upwash")).count()
    };
    assert_eq!(checkpoints(), 1);
    browser.click("document.getElementById('pause')");
    browser.wait_for(&format!("{rounds} > {paused}"));
    browser.click("document.getElementById('stop')");
    browser.wait_for(&state("stopped before round"));
    assert_eq!(training.exit_code(), Some(130));
    assert_eq!(checkpoints(), 2);
    assert_eq!(browser.complaints, Vec::<String>::new());
    // The stop request applies only once: the run can be resumed, and the page follows it.
    let stopped = browser.evaluate(rounds);
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let again = format!("--watch={address}");
    let (mut resumed, _) = start(here, &["train", "c.toml", "--out", "run", &again, "--no-token", "--resume"]);
    browser.wait_for(&format!("{rounds} > {stopped}"));
    browser.wait_for("!document.getElementById('stop').disabled");
    browser.click("document.getElementById('stop')");
    browser.wait_for(&state("stopped before round"));
    assert_eq!(resumed.exit_code(), Some(130));
}

#[test]
fn watching_neither_changes_nor_locks_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), "[training]\nepochs = 2\n").unwrap();
    let upwash = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_upwash"));
        program.args(arguments).current_dir(here).output().unwrap()
    };
    assert!(upwash(&["train", "c.toml", "--out", "run"]).status.success());
    let content = || -> Vec<(String, Vec<u8>)> {
        let files = std::fs::read_dir(here.join("run")).unwrap();
        let mut all: Vec<_> = files
            .map(|file| file.unwrap().path())
            .map(|path| (path.display().to_string(), std::fs::read(path).unwrap()))
            .collect();
        all.sort();
        all
    };
    let before = content();
    let (_watching, page) = start(here, &["watch", "run", "--listen", "0.0.0.0:0"]);
    assert!(page.contains("/?token="), "{page}");
    let (_, address) = page.split_once("http://").unwrap();
    let (name, port) = address.split_once(':').unwrap();
    assert!(std::fs::read_to_string("/proc/sys/kernel/hostname").is_ok_and(|host| host.trim() == name), "{page}");
    // Other users of this machine can reach a loopback address.
    let (_local, url) = start(here, &["watch", "run", "--listen", "127.0.0.1:0"]);
    assert!(url.contains("/?token="), "{url}");
    let (_open, url) = start(here, &["watch", "run", "--listen", "127.0.0.1:0", "--no-token"]);
    assert!(!url.contains("token"), "{url}");
    let lock = std::fs::File::open(here.join("run/events.jsonl")).unwrap();
    lock.try_lock().expect("watching locks the run");
    if let Some(mut browser) = Browser::start(1440, 1000) {
        browser.open(&format!("http://127.0.0.1:{port}"));
        let state = "document.getElementById('state').textContent";
        browser.wait_for(&format!("{state}.includes('finished')"));
        assert_eq!(browser.evaluate("document.getElementById('stop').disabled"), true);
        check_on_a_phone(&mut browser);
        assert_eq!(browser.complaints, Vec::<String>::new());
    }
    assert_eq!(content(), before);
}

#[test]
fn errors_name_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), "").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let watch = format!("--watch={address}");
    let cases: [(&[&str], &str, &str); 6] = [
        (&["watch", "."], "", "is not a run"),
        (&["watch", "nowhere"], "", "there is no folder nowhere"),
        (&["train", "c.toml", "--out", "run", &watch], "", "is in use"),
        (&["watch", ".", "--listen", "here"], "", "write ADDRESS:PORT"),
        (&["watch", ".", "--listen", "0.0.0.0:0", "--no-token"], "", "requires a token"),
        (&["train", "c.toml", "--out", "run", "--watch=127.0.0.1:0"], "short", "16 to 128 letters"),
    ];
    for (arguments, token, expected) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_upwash"))
            .args(arguments)
            .env("UPWASH_TOKEN", token)
            .current_dir(here)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    // No run was started.
    assert!(!here.join("run").exists());
}

/// The connections of strangers do not take the file descriptors that a checkpoint needs.
#[cfg(unix)]
#[test]
fn half_sent_requests_do_not_end_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), LONG).unwrap();
    let child = Command::new("sh")
        .args(["-c", "ulimit -n 300; exec \"$0\" train c.toml --out run --watch=127.0.0.1:0"])
        .arg(env!("CARGO_BIN_EXE_upwash"))
        .current_dir(here)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut training = Running(child);
    let mut lines = BufReader::new(training.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let url = lines.find_map(|line| line.strip_prefix("watch it at http://").map(str::to_owned)).unwrap();
    let address = url.split('/').next().unwrap().to_owned();
    let half: Vec<_> = (0..400)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(&address).unwrap();
            std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nX-Slow: ").unwrap();
            stream
        })
        .collect();
    let run = here.join("run");
    upwash::run::ControlRequest::Checkpoint.leave(&run).unwrap();
    while upwash::run::ControlRequest::is_waiting(&run) {
        std::thread::sleep(Duration::from_millis(10));
    }
    upwash::run::ControlRequest::Stop.leave(&run).unwrap();
    assert_eq!(training.exit_code(), Some(130), "{:?}", lines.collect::<Vec<_>>());
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    assert!(events.contains("\"request\":\"checkpoint\"") && !events.contains("no checkpoint"), "{events}");
    drop(half);
}

/// Takes the screenshot for the README; see scripts/screenshots.sh.
#[test]
#[ignore = "takes a screenshot for the README"]
fn readme_screenshot() {
    let out = std::env::var("PICTURE").unwrap();
    let mut browser = Browser::start(1440, 1180).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let config = LONG.replace("copies = 3", "copies = 3\n[algorithm]\nbase = \"matcha\"");
    std::fs::write(here.join("c.toml"), config.replace("1000000", "1000")).unwrap();
    let arguments = ["train", "c.toml", "--out", "digits", "--watch=127.0.0.1:0"];
    let (_training, url) = start(here, &arguments);
    browser.open(&url);
    browser.wait_for("upwash.runs[0].rounds_run > 1500");
    std::fs::write(out, browser.screenshot()).unwrap();
}
