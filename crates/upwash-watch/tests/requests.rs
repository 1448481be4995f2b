//! Who is let in, and what is told.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use upwash::run::ControlRequest;
use upwash_watch::{Place, Server, Token, WatchError};

const TOKEN: &str = "0123456789abcdef";
const EVENTS: &str = concat!(
    r#"{"event":"started","version":1,"round":0,"algorithm":"D-PSGD","graph":"ring:3","workers":3,"parameters":10,"rounds":4,"rounds_per_epoch":2,"batch_size":8}"#,
    "\n",
    r#"{"event":"graph","matchings":[[[0,1]],[[1,2]],[[0,2]]],"relabelings":[[0,1,2],[2,0,1]]}"#,
    "\n",
    r#"{"event":"round","round":0,"losses":[1.0,2.0,3.0],"links":[[0,1]],"leaders":[[0,1],null,[2,2]],"bytes_sent":1,"messages_sent":1,"simulated_seconds":0.5}"#,
    "\n"
);

fn run(folder: &Path) {
    std::fs::write(folder.join("events.jsonl"), EVENTS).unwrap();
}

fn serve(folder: &Path, token: Option<&str>) -> Server {
    let token: Option<Token> = token.map(|token| token.parse().unwrap());
    let place = Place::take("127.0.0.1:0".parse().unwrap(), token).unwrap();
    place.show(folder).unwrap()
}

/// HOST:PORT of a server.
fn host(server: &Server) -> String {
    let url = server.url();
    let rest = url.strip_prefix("http://").unwrap();
    rest.split('/').next().unwrap().to_owned()
}

fn send(server: &Server, request: &str, headers: &str) -> TcpStream {
    let host = host(server);
    let mut stream = TcpStream::connect(&host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let named = match headers.contains("Host:") {
        true => String::new(),
        false => format!("Host: {host}\r\n"),
    };
    let close = "Connection: close\r\nContent-Length: 0\r\n";
    write!(stream, "{request} HTTP/1.1\r\n{named}{headers}{close}\r\n").unwrap();
    stream
}

/// The status and the rest of an answer.
fn ask(server: &Server, request: &str, headers: &str) -> (u16, String) {
    let mut answer = String::new();
    let mut stream = send(server, request, headers);
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

const CONTROL: &str = "X-Upwash: control\r\n";

#[test]
fn without_the_token_every_request_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let server = serve(folder.path(), Some(TOKEN));
    assert!(server.url().ends_with(&format!("/?token={TOKEN}")));
    let wrong = "0123456789abcdee";
    for path in ["/", "/events", "/elsewhere"] {
        for query in ["", "?token=", &format!("?token={wrong}"), "?nekot=0123456789abcdef"] {
            let (status, _) = ask(&server, &format!("GET {path}{query}"), "");
            assert_eq!(status, 401, "{path}{query}");
        }
    }
    assert_eq!(ask(&server, "POST /control/stop", CONTROL).0, 401);
    assert!(!ControlRequest::is_waiting(folder.path()));
    let (status, page) = ask(&server, &format!("GET /?token={TOKEN}"), "");
    assert_eq!(status, 200);
    assert!(page.contains("no-store") && page.contains("no-referrer"), "{}", &page[..400]);
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n{CONTROL}");
    assert_eq!(ask(&server, "POST /control/stop", &bearer).0, 202);
    assert_eq!(ControlRequest::take(folder.path()), Some(ControlRequest::Stop));
}

#[test]
fn other_people_s_pages_cannot_reach_it() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let server = serve(folder.path(), None);
    // A name of theirs that leads here.
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""] {
        let (status, _) = ask(&server, "GET /", &format!("Host: {host}\r\n"));
        assert_eq!(status, 403, "{host}");
    }
    for host in ["localhost", "localhost:99", "127.0.0.1:99", "[::1]:99"] {
        let (status, _) = ask(&server, "GET /", &format!("Host: {host}\r\n"));
        assert_eq!(status, 200, "{host}");
    }
    let theirs = "Sec-Fetch-Site: cross-site\r\n";
    assert_eq!(ask(&server, "GET /", theirs).0, 200);
    assert_eq!(ask(&server, "GET /events", theirs).0, 403);
    // A form of theirs: browsers send such headers only where they are allowed to.
    assert_eq!(ask(&server, "POST /control/stop", "").0, 403);
    assert_eq!(ask(&server, "GET /control/stop", CONTROL).0, 405);
    assert_eq!(ask(&server, "POST /control/explode", CONTROL).0, 404);
    assert!(!ControlRequest::is_waiting(folder.path()));
}

#[test]
fn those_who_watch_are_told_all_once_and_then_what_is_new() {
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
    // A line that is half written is not one.
    let mut events = std::fs::File::options().append(true).open(folder.path().join("events.jsonl")).unwrap();
    events.write_all(br#"{"event":"round","round":1,"losses":[0.5,"#).unwrap();
    // Something else is new: someone has looked.
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
    // Links are as they were: nothing else was said.
    assert!(data.contains(r#""links":[[0,1]]"#), "{data}");
    // The end is told even if the server ends at once.
    events.write_all(b"{\"event\":\"ended\",\"status\":\"finished\"}\n").unwrap();
    let farewell = std::thread::spawn(move || drop(server));
    while !data.contains(r#""ending":{"status":"finished"}"#) {
        (_, data) = next();
    }
    farewell.join().unwrap();
}

#[test]
fn a_run_that_goes_on_from_a_checkpoint_is_shown_anew() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    let mut follower = upwash_report::Follower::open(folder.path()).unwrap();
    assert!(follower.read().unwrap());
    assert!(!follower.read().unwrap());
    assert_eq!((follower.run().rounds_run, follower.restarts()), (1, 0));
    // The round is cut off, and another comes in its place, longer than what was there.
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
fn an_address_that_is_taken_or_open_to_all_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Place::take(address, None).err().unwrap();
    assert!(matches!(error, WatchError::InUse(_)), "{error}");
    let open = Place::take("0.0.0.0:0".parse().unwrap(), None).err().unwrap();
    assert!(matches!(open, WatchError::NeedsToken(_)), "{open}");
    let folder = tempfile::tempdir().unwrap();
    let place = Place::take("127.0.0.1:0".parse().unwrap(), None).unwrap();
    assert!(matches!(place.show(folder.path()), Err(WatchError::Run(_))));
}

#[test]
fn a_run_that_is_over_or_of_several_processes_is_not_asked_for_what_it_cannot() {
    let folder = tempfile::tempdir().unwrap();
    for rank in ["rank-0", "rank-1"] {
        std::fs::create_dir(folder.path().join(rank)).unwrap();
        run(&folder.path().join(rank));
    }
    let server = serve(folder.path(), None);
    let (status, answer) = ask(&server, "POST /control/pause", CONTROL);
    assert_eq!(status, 409);
    assert!(answer.contains("can only be stopped"), "{answer}");
    assert_eq!(ask(&server, "POST /control/stop", CONTROL).0, 202);
    for rank in ["rank-0", "rank-1"] {
        assert_eq!(ControlRequest::take(&folder.path().join(rank)), Some(ControlRequest::Stop));
    }
    drop(server);
    let over = tempfile::tempdir().unwrap();
    let ended = EVENTS.to_owned() + "{\"event\":\"ended\",\"status\":\"finished\"}\n";
    std::fs::write(over.path().join("events.jsonl"), ended).unwrap();
    let server = serve(over.path(), None);
    assert_eq!(ask(&server, "POST /control/stop", CONTROL).0, 409);
    assert!(!ControlRequest::is_waiting(over.path()));
}
