//! Access control, and the messages that browsers receive.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use upwash::run::ControlRequest;
use upwash_watch::{Listener, MAX_VIEWERS, Server, Token, WatchError};

const TOKEN: &str = "0123456789abcdef";
const EVENTS: &str = concat!(
    r#"{"event":"started","version":1,"round":0,"algorithm":"D-PSGD","graph":"ring:3","workers":3,"parameters":10,"rounds":4,"rounds_per_epoch":2,"batch_size":8}"#,
    "\n",
    r#"{"event":"graph","matchings":[[[0,1]],[[1,2]],[[0,2]]],"relabelings":[[0,1,2],[2,0,1]]}"#,
    "\n",
    r#"{"event":"round","round":0,"losses":[1.0,2.0,3.0],"links":[[0,1]],"leaders":[[0,1],null,[2,2]],"bytes_sent":1,"messages_sent":1,"simulated_seconds":0.5}"#,
    "\n"
);

/// Writes the events of a run.
fn run(folder: &Path) {
    std::fs::write(folder.join("events.jsonl"), EVENTS).unwrap();
}

fn serve(folder: &Path, token: Option<&str>) -> Server {
    let token: Option<Token> = token.map(|token| token.parse().unwrap());
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), token).unwrap();
    listener.serve(folder).unwrap()
}

/// HOST:PORT of a server.
fn host(server: &Server) -> String {
    let url = server.url();
    let rest = url.strip_prefix("http://").unwrap();
    rest.split('/').next().unwrap().to_owned()
}

fn send(server: &Server, line: &str, headers: &str) -> TcpStream {
    let host = host(server);
    let mut stream = TcpStream::connect(&host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let named = match headers.contains("Host:") {
        true => String::new(),
        false => format!("Host: {host}\r\n"),
    };
    let close = "Connection: close\r\nContent-Length: 0\r\n";
    write!(stream, "{line} HTTP/1.1\r\n{named}{headers}{close}\r\n").unwrap();
    stream
}

/// Sends a request. Returns the status code and the whole response.
fn request(server: &Server, line: &str, headers: &str) -> (u16, String) {
    let mut response = String::new();
    let mut stream = send(server, line, headers);
    stream.read_to_string(&mut response).unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    (status, response)
}

const CONTROL: &str = "X-Upwash: control\r\n";

#[test]
fn every_request_without_the_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let server = serve(folder.path(), Some(TOKEN));
    assert!(server.url().ends_with(&format!("/?token={TOKEN}")));
    let wrong = "0123456789abcdee";
    for path in ["/", "/events", "/elsewhere"] {
        for query in ["", "?token=", &format!("?token={wrong}"), "?nekot=0123456789abcdef"] {
            let (status, _) = request(&server, &format!("GET {path}{query}"), "");
            assert_eq!(status, 401, "{path}{query}");
        }
    }
    assert_eq!(request(&server, "POST /control/stop", CONTROL).0, 401);
    assert!(!ControlRequest::is_waiting(folder.path()));
    let (status, page) = request(&server, &format!("GET /?token={TOKEN}"), "");
    assert_eq!(status, 200);
    assert!(page.contains("no-store") && page.contains("no-referrer"), "{}", &page[..400]);
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n{CONTROL}");
    assert_eq!(request(&server, "POST /control/stop", &bearer).0, 202);
    assert_eq!(ControlRequest::take(folder.path()), Some(ControlRequest::Stop));
}

#[test]
fn pages_of_other_sites_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let server = serve(folder.path(), None);
    // Foreign names that resolve to this machine.
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""] {
        let (status, _) = request(&server, "GET /", &format!("Host: {host}\r\n"));
        assert_eq!(status, 403, "{host}");
    }
    for host in ["localhost", "localhost:99", "127.0.0.1:99", "[::1]:99"] {
        let (status, _) = request(&server, "GET /", &format!("Host: {host}\r\n"));
        assert_eq!(status, 200, "{host}");
    }
    let cross_site = "Sec-Fetch-Site: cross-site\r\n";
    assert_eq!(request(&server, "GET /", cross_site).0, 200);
    assert_eq!(request(&server, "GET /events", cross_site).0, 403);
    // A form on another site cannot set the header.
    assert_eq!(request(&server, "POST /control/stop", "").0, 403);
    assert_eq!(request(&server, "GET /control/stop", CONTROL).0, 405);
    assert_eq!(request(&server, "POST /control/explode", CONTROL).0, 404);
    assert!(!ControlRequest::is_waiting(folder.path()));
}

#[test]
fn viewers_receive_the_whole_run_once_and_then_increments() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let server = serve(folder.path(), None);
    let mut lines = BufReader::new(send(&server, "GET /events", "")).lines();
    let mut next = || -> (String, String) {
        let mut name = None;
        for line in &mut lines {
            let line = line.unwrap();
            if let Some(found) = line.strip_prefix("event: ") {
                name = Some(found.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                return (name.unwrap(), data.to_owned());
            }
        }
        panic!("no more messages");
    };
    let (name, data) = next();
    assert_eq!(name, "view");
    assert!(data.contains(r#""relabelings":[[0,1,2],[2,0,1]]"#), "{data}");
    assert!(data.contains(r#""links":[[0,1]],"leaders":[[0,1],null,[2,2]]"#), "{data}");
    // An incomplete line is not read.
    let mut events = std::fs::File::options().append(true).open(folder.path().join("events.jsonl")).unwrap();
    events.write_all(br#"{"event":"round","round":1,"losses":[0.5,"#).unwrap();
    // Another change, so that the next message shows that the log was read.
    ControlRequest::Pause.leave(folder.path()).unwrap();
    let (_, data) = next();
    assert!(data.contains(r#""rounds_run":1"#) && data.contains(r#""waiting":true"#), "{data}");
    let rest = concat!(r#"1.5,2.5],"bytes_sent":2,"messages_sent":2,"simulated_seconds":1.0}"#, "\n");
    events.write_all(rest.as_bytes()).unwrap();
    let (mut name, mut data) = next();
    while !data.contains(r#""rounds_run":2"#) {
        (name, data) = next();
    }
    assert_eq!(name, "more");
    assert!(data.contains(r#"{"round":1,"losses":[0.5,1.5,2.5]"#), "{data}");
    // The links are unchanged, since the event does not list any.
    assert!(data.contains(r#""links":[[0,1]]"#), "{data}");
    // Viewers receive the end of the run even if the server shuts down at once.
    events.write_all(b"{\"event\":\"ended\",\"status\":\"finished\"}\n").unwrap();
    let shutdown = std::thread::spawn(move || drop(server));
    while !data.contains(r#""ending":{"status":"finished"}"#) {
        (_, data) = next();
    }
    shutdown.join().unwrap();
}

#[test]
fn run_resumed_from_a_checkpoint_is_read_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let mut follower = upwash_report::Follower::open(folder.path()).unwrap();
    assert!(follower.read().unwrap());
    assert!(!follower.read().unwrap());
    assert_eq!((follower.run().rounds_run, follower.restarts()), (1, 0));
    // The last round is removed and others follow, so that the file is longer than before.
    let kept: String = EVENTS.split_inclusive('\n').take(2).collect();
    let round = |number: u64| {
        format!(
            r#"{{"event":"round","round":{number},"losses":[9.0,9.0,9.0],"bytes_sent":1,"messages_sent":1,"simulated_seconds":0.5}}"#
        ) + "\n"
    };
    let longer = kept + &round(0) + &round(1) + &round(2);
    std::fs::write(folder.path().join("events.jsonl"), longer).unwrap();
    assert!(follower.read().unwrap());
    assert_eq!((follower.run().rounds_run, follower.restarts()), (3, 1));
    assert_eq!(follower.run().now.losses, [Some(9.0); 3]);
    assert_eq!(follower.run().now.links, None);
}

#[test]
fn addresses_in_use_or_open_to_the_network_are_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Listener::bind(address, None).err().unwrap();
    assert!(matches!(error, WatchError::InUse(_)), "{error}");
    let open = Listener::bind("0.0.0.0:0".parse().unwrap(), None).err().unwrap();
    assert!(matches!(open, WatchError::NeedsToken(_)), "{open}");
    let folder = tempfile::tempdir().unwrap();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
    assert!(matches!(listener.serve(folder.path()), Err(WatchError::Run(_))));
}

#[test]
fn impossible_control_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for rank in ["rank-0", "rank-1"] {
        std::fs::create_dir(folder.path().join(rank)).unwrap();
        run(&folder.path().join(rank));
    }
    let server = serve(folder.path(), None);
    let (status, response) = request(&server, "POST /control/pause", CONTROL);
    assert_eq!(status, 409);
    assert!(response.contains("can only be stopped"), "{response}");
    assert_eq!(request(&server, "POST /control/stop", CONTROL).0, 202);
    for rank in ["rank-0", "rank-1"] {
        assert_eq!(ControlRequest::take(&folder.path().join(rank)), Some(ControlRequest::Stop));
    }
    drop(server);
    let over = tempfile::tempdir().unwrap();
    let ended = EVENTS.to_owned() + "{\"event\":\"ended\",\"status\":\"finished\"}\n";
    std::fs::write(over.path().join("events.jsonl"), ended).unwrap();
    let server = serve(over.path(), None);
    assert_eq!(request(&server, "POST /control/stop", CONTROL).0, 409);
    assert!(!ControlRequest::is_waiting(over.path()));
}

/// The start of a request that never ends.
fn half_request(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(host(server)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nX-Slow: ").unwrap();
    stream
}

/// Whether the server has closed a connection. Waits until it does.
fn is_closed(mut stream: TcpStream) -> bool {
    // A connection with unread bytes is reset.
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn half_sent_requests_do_not_keep_others_out() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let server = serve(folder.path(), Some(TOKEN));
    let mut viewer = send(&server, &format!("GET /events?token={TOKEN}"), "");
    let mut some = [0; 16];
    viewer.read_exact(&mut some).unwrap();
    let half: Vec<TcpStream> = (0..300).map(|_| half_request(&server)).collect();
    assert_eq!(request(&server, &format!("GET /?token={TOKEN}"), "").0, 200);
    // The oldest were evicted to make room, and the others run out of time. The viewer stays.
    assert!(half.into_iter().all(is_closed));
    ControlRequest::Pause.leave(folder.path()).unwrap();
    let mut lines = BufReader::new(viewer).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(r#""waiting":true"#)));
}

#[test]
fn viewers_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let server = serve(folder.path(), None);
    let viewers: Vec<TcpStream> = (0..MAX_VIEWERS)
        .map(|_| {
            let mut viewer = send(&server, "GET /events", "");
            let mut start = [0; 15];
            viewer.read_exact(&mut start).unwrap();
            assert_eq!(&start, b"HTTP/1.1 200 OK");
            viewer
        })
        .collect();
    let (status, response) = request(&server, "GET /events", "");
    assert_eq!(status, 503);
    assert!(response.contains("Too many browsers"), "{response}");
    // The page itself can still be opened, and a place is free again when its viewer leaves.
    assert_eq!(request(&server, "GET /", "").0, 200);
    drop(viewers);
    let mut found = 503;
    while found == 503 {
        let mut start = [0; 12];
        send(&server, "GET /events", "").read_exact(&mut start).unwrap();
        found = std::str::from_utf8(&start[9..]).unwrap().parse().unwrap();
    }
    assert_eq!(found, 200);
}
