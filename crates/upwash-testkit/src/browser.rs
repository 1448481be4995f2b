//! Chromium, driven over the DevTools protocol.
#![allow(clippy::unwrap_used)]

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

/// A browser with one page.
pub struct Browser {
    _process: Running,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    next: u64,
    /// Disallowed network requests, errors and console messages.
    pub complaints: Vec<String>,
    /// The URL prefixes that the page may request.
    allowed: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser. Returns `None` if none is installed and UPWASH_BROWSER does not name one.
    pub fn start(width: u32, height: u32) -> Option<Self> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let given = std::env::var("UPWASH_BROWSER").ok();
        let has = |name: &&str| Command::new(name).arg("--version").output().is_ok();
        let Some(name) = given.or_else(|| names.iter().find(|name| has(name)).map(|name| name.to_string())) else {
            eprintln!("no browser found: install chromium to test pages");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let process = Command::new(&name)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"])
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let process = Running(process);
        let began = Instant::now();
        let port = loop {
            assert!(began.elapsed() < Duration::from_secs(30), "{name} did not start within 30 seconds");
            let text = std::fs::read_to_string(profile.path().join("DevToolsActivePort"));
            if let Some(port) = text.ok().and_then(|text| text.lines().next()?.parse::<u16>().ok()) {
                break port;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let address = loop {
            assert!(began.elapsed() < Duration::from_secs(30), "{name} opened no page within 30 seconds");
            let targets: Vec<Value> = serde_json::from_str(&get(port, "/json/list")).unwrap_or_default();
            if let Some(page) = targets.iter().find(|target| target["type"] == "page") {
                break page["webSocketDebuggerUrl"].as_str().unwrap().to_string();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let (socket, _) = tungstenite::connect(address).unwrap();
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        }
        let mut browser = Self {
            _process: process,
            socket,
            next: 0,
            complaints: vec![],
            allowed: ["file:", "data:", "blob:", "about:"].map(String::from).into(),
            _profile: profile,
        };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the DevTools protocol.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let call = json!({ "id": id, "method": method, "params": params }).to_string();
        self.socket.send(Message::text(call)).unwrap();
        loop {
            let message = self.socket.read().unwrap_or_else(|error| panic!("{method}: {error}"));
            let Message::Text(text) = message else {
                continue;
            };
            let value: Value = serde_json::from_str(&text).unwrap();
            if value["id"] == id {
                assert!(value["error"].is_null(), "{method}: {}", value["error"]);
                return value["result"].clone();
            }
            self.record(&value);
        }
    }

    fn record(&mut self, event: &Value) {
        let params = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled") => params.to_string(),
            Some("Network.requestWillBeSent") => {
                let url = params["request"]["url"].as_str().unwrap_or("");
                match self.allowed.iter().any(|prefix| url.starts_with(prefix)) {
                    true => return,
                    false => format!("a request to {url}"),
                }
            }
            _ => return,
        };
        self.complaints.push(complaint);
    }

    /// Opens a page and waits until it is completely drawn.
    pub fn open(&mut self, url: &str) {
        if let Some((server, _)) = url.strip_prefix("http://").and_then(|url| url.split_once('/')) {
            self.allowed.push(format!("http://{server}/"));
        }
        self.call("Page.navigate", json!({ "url": url }));
        self.wait_for("performance.getEntriesByName('drawn').length > 0");
    }

    /// Takes a screenshot, as PNG.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let screenshot = self.call("Page.captureScreenshot", json!({}));
        let encoded = screenshot["data"].as_str().unwrap();
        BASE64_STANDARD.decode(encoded).unwrap()
    }

    /// Evaluates a JavaScript expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn wait_for(&mut self, expression: &str) {
        let began = Instant::now();
        while self.evaluate(expression) != true {
            assert!(began.elapsed() < Duration::from_secs(20), "not true within 20 seconds: {expression}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Clicks the center of the element that a JavaScript expression returns.
    pub fn click(&mut self, element: &str) {
        let center = self.evaluate(&format!(
            "(() => {{ const e = {element}; e.scrollIntoView({{ block: 'center' }}); const r = e.getBoundingClientRect(); \
             return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let params = json!({ "type": kind, "x": center[0], "y": center[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", params);
        }
    }
}

/// A child process that is killed when the test ends, even if it panics.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(port: u16, path: &str) -> String {
    let mut response = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = stream.read_to_string(&mut response);
    }
    response.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_string())
}
