//! Attacks on a peer by strangers and by listed peers that misbehave: the peer refuses them and goes on training.
#![allow(clippy::unwrap_used)]

use crate::frame::{FRAME_HEADER, FrameHeader, Hello, Kind, Limits, VERSION, View};
use crate::keys::{Fingerprint, Key};
use crate::{Peers, PeersConfig, Timings, tls};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use upwash::Model;
use upwash::WorkerId;
use upwash::algorithm::WorkerStats;
use upwash::config::Config;
use upwash::engine::{CpuEngine, NativeModel};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Observer, Progress, Status, run_with};
use upwash::transport::{Membership, MembershipEvent, Message, MessageExchange, RoundStart};

const RUN: u64 = 77;
const WIDTH: usize = 50_000;
/// Bytes of the longest model, and of those that the honest peers send to whoever asks for one: more than the buffers of a
/// connection hold.
const MODEL: usize = 8 << 20;
/// What one key may make a peer hold, in bytes, as docs/peers.md states it: nine messages that it has sent and eight that
/// it does not read, for each of four connections; over each of those a model, until it has been closed for a second; and a
/// model that is being received. Eight megabytes are for buffers and the attacker.
const HELD: usize = 4 * (17 * 4 * WIDTH + MODEL) + MODEL + (8 << 20);

/// Two honest peers, 0 and 1, that exchange messages continuously, and send models to those that ask for them. The test
/// attacks peer 0 with the key of worker 2.
struct Testbed {
    address: String,
    keys: Vec<Key>,
    listed: Vec<(String, Fingerprint)>,
    rounds: Arc<AtomicU64>,
    /// Models that peer 0 has sent.
    models: Arc<AtomicU64>,
    /// The memory before the first attack.
    memory: usize,
    events: Arc<Mutex<Vec<MembershipEvent>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

pub(crate) fn message(from: usize, round: u64, width: usize) -> Message {
    Message {
        from: from.into(),
        round,
        exchange: 1,
        stats: WorkerStats { loss: Some(1.0), degree: 1, scalar: 1.0 },
        whole: true,
        fresh: false,
        restart: None,
        values: vec![1.0; width].into(),
    }
}

fn timings() -> Timings {
    Timings {
        heartbeat: Duration::from_millis(50),
        failure_timeout: Duration::from_millis(600),
        message_timeout: Duration::from_secs(20),
        startup_timeout: Duration::from_millis(500),
        isolation_timeout: Duration::from_secs(20),
        handshake: Duration::from_secs(1),
    }
}

fn config(own: usize, keys: &[Key], listed: &[(String, Fingerprint)]) -> PeersConfig {
    PeersConfig {
        own,
        key: keys[own].clone(),
        peers: listed.to_vec(),
        listen: None,
        neighbors: (0..3).filter(|&other| other != own).collect(),
        run: RUN,
        rounds: 1 << 41,
        has_rounds: true,
        has_end: true,
        limits: Limits { message: WIDTH, model: MODEL },
        timings: timings(),
    }
}

/// Generates keys, and finds a free port for each.
fn listed(count: usize) -> (Vec<Key>, Vec<(String, Fingerprint)>) {
    let keys: Vec<Key> = (0..count).map(|_| Key::generate()).collect();
    let ports: Vec<_> = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let address = |port: &std::net::TcpListener| port.local_addr().unwrap().to_string();
    let listed = ports.iter().zip(&keys);
    let listed = listed.map(|(port, key)| (address(port), key.fingerprint()));
    let listed = listed.collect();
    (keys, listed)
}

/// Two honest peers without an attacker, for messages of `width` values.
pub(crate) fn two_peers(width: usize) -> [PeersConfig; 2] {
    let (keys, listed) = listed(2);
    [0, 1].map(|own| PeersConfig {
        neighbors: vec![1 - own],
        limits: Limits { message: width, model: 4 * width },
        timings: Timings::default(),
        ..config(own, &keys, &listed)
    })
}

impl Testbed {
    fn new() -> Self {
        let (keys, listed) = listed(3);
        let [rounds, models] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let events: Arc<Mutex<Vec<MembershipEvent>>> = Arc::default();
        let threads = (0..2)
            .map(|own| {
                let mut transport = Peers::new(config(own, &keys, &listed)).unwrap();
                let (rounds, models) = (rounds.clone(), models.clone());
                let (stop, events) = (stop.clone(), events.clone());
                std::thread::spawn(move || {
                    let mut round = 0;
                    while !stop.load(Ordering::SeqCst) {
                        let start = transport.may_begin(round, false).unwrap();
                        if start == RoundStart::Wait {
                            continue;
                        }
                        assert_eq!(start, RoundStart::Go, "an attacker made a peer jump");
                        if own == 0 {
                            events.lock().unwrap().extend(transport.membership_events());
                        }
                        if transport.state_requested() {
                            transport.send_state(round, vec![("models".into(), vec![1.0; MODEL / 4 - 100])]);
                            models.fetch_add(u64::from(own == 0), Ordering::SeqCst);
                        }
                        let own_message = message(own, round, WIDTH);
                        transport.begin_exchange(vec![(own_message, vec![1 - own])], &[WorkerId(1 - own)]).unwrap();
                        let found = transport.finish_exchange(1).unwrap();
                        if own == 0 && !found.is_empty() {
                            rounds.fetch_add(1, Ordering::SeqCst);
                        }
                        round += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                })
            })
            .collect();
        let address = listed[0].0.clone();
        let mut testbed = Self { address, keys, listed, rounds, models, memory: 0, events, stop, threads };
        testbed.assert_progress();
        testbed.memory = memory_in_use();
        testbed
    }

    /// Checks that the attacks so far have not taken more memory than the documentation states.
    fn assert_memory(&self) {
        let grown = memory_in_use().saturating_sub(self.memory);
        assert!(grown < HELD, "memory grew by {} MB, and {} MB are allowed", grown >> 20, HELD >> 20);
    }

    /// Waits until the honest peers have exchanged some more messages.
    fn assert_progress(&self) {
        self.assert_rounds(20);
    }

    fn assert_rounds(&self, count: u64) {
        let (before, began) = (self.rounds.load(Ordering::SeqCst), Instant::now());
        while self.rounds.load(Ordering::SeqCst) < before + count {
            assert!(began.elapsed() < Duration::from_secs(20), "the honest peers stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until peer 0 reports a refusal, or the loss of worker 2, whose reason contains `expected`.
    fn assert_refused(&self, expected: &str) {
        let (began, mut reasons) = (Instant::now(), Vec::new());
        loop {
            let events = std::mem::take(&mut *self.events.lock().unwrap());
            reasons.extend(events.iter().filter_map(|event| match event {
                MembershipEvent::Refused { what } => Some(what.clone()),
                MembershipEvent::Lost { worker: WorkerId(2), why } => Some(why.clone()),
                _ => None,
            }));
            if reasons.iter().any(|reason| reason.contains(expected)) {
                return;
            }
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "expected a refusal with `{expected}`, found {reasons:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A TLS connection to peer 0 with this key. Nothing has been sent over it yet.
    fn connect(&self, key: &Key) -> TlsClient {
        connect(&self.listed, key)
    }

    /// An authenticated connection to peer 0 as worker 2.
    fn connect_as_worker_2(&self) -> TlsClient {
        connect_as(&self.listed, &self.keys, 2)
    }
}

type TlsClient = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

/// A TLS connection to peer 0 with this key. Nothing has been sent over it yet.
fn connect(listed: &[(String, Fingerprint)], key: &Key) -> TlsClient {
    let config = tls::client(key, listed[0].1).unwrap();
    let name = "upwash".try_into().unwrap();
    let connection = rustls::ClientConnection::new(config, name).unwrap();
    // It may not have started to listen yet.
    let began = Instant::now();
    let stream = loop {
        match TcpStream::connect(&listed[0].0) {
            Ok(stream) => break stream,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    rustls::StreamOwned::new(connection, stream)
}

/// An authenticated connection to peer 0 as this worker.
fn connect_as(listed: &[(String, Fingerprint)], keys: &[Key], worker: usize) -> TlsClient {
    let mut stream = connect(listed, &keys[worker]);
    stream.write_all(&frame(Kind::Hello, &hello(worker as u32))).unwrap();
    let mut answer = [0; FRAME_HEADER + 14];
    stream.read_exact(&mut answer).unwrap();
    stream
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let result = thread.join();
            assert!(result.is_ok() || std::thread::panicking());
        }
    }
}

fn hello(worker: u32) -> Vec<u8> {
    let version = VERSION;
    Hello { version, worker, run: RUN }.to_bytes()
}

fn frame(kind: Kind, content: &[u8]) -> Vec<u8> {
    let mut bytes = FrameHeader::of(kind, &[content]).to_bytes().to_vec();
    bytes.extend(content);
    bytes
}

fn message_frame(message: &Message) -> Vec<u8> {
    let mut content = message.header().to_vec();
    content.extend(message.values.iter().flat_map(|x| x.to_le_bytes()));
    frame(Kind::Message, &content)
}

/// Resident memory of this process, in bytes.
fn memory_in_use() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// Runs a test in a process of its own, so that the memory of other tests does not count.
fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os("UPWASH_ALONE").is_some() {
        return test();
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let name = format!("adversarial::{name}");
    let output = command.args(["--exact", &name, "--nocapture"]).env("UPWASH_ALONE", "1").output().unwrap();
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
}

#[test]
fn misbehaving_peers_are_refused_and_training_goes_on() {
    alone("misbehaving_peers_are_refused_and_training_goes_on", misbehave);
}

fn misbehave() {
    let testbed = Testbed::new();

    // A client that does not use TLS.
    let mut stream = TcpStream::connect(&testbed.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: there\r\n\r\n").unwrap();
    testbed.assert_refused("connection from 127.0.0.1");
    testbed.assert_progress();

    // A client that sends one byte and stalls.
    let mut slow = TcpStream::connect(&testbed.address).unwrap();
    slow.write_all(&[22]).unwrap();
    testbed.assert_refused("it did not authenticate within 1 seconds");

    // A key that is not listed. The handshake may seem to succeed, but the peer must send nothing.
    let mut stream = testbed.connect(&Key::generate());
    let _ = stream.write_all(&frame(Kind::Hello, &hello(2)));
    assert!(stream.read_exact(&mut [0; 1]).is_err(), "the peer answered a key that is not listed");
    testbed.assert_refused("connection from 127.0.0.1");

    // A listed key that claims to be another worker, in its hello and in a message.
    let mut stream = testbed.connect(&testbed.keys[2]);
    stream.write_all(&frame(Kind::Hello, &hello(1))).unwrap();
    testbed.assert_refused("a peer with the key of worker 2 claims to be worker 1");
    let mut stream = testbed.connect_as_worker_2();
    stream.write_all(&message_frame(&message(1, 0, 10))).unwrap();
    testbed.assert_refused("it sent a message as worker 1");
    testbed.assert_progress();

    // Another run, and another version of the protocol.
    for (hello, reason) in [
        ([VERSION as u8, 0, 2, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9], "different configuration"),
        ([9, 0, 2, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0], "uses protocol version 9"),
    ] {
        let mut stream = testbed.connect(&testbed.keys[2]);
        stream.write_all(&frame(Kind::Hello, &hello)).unwrap();
        testbed.assert_refused(reason);
    }

    // A round beyond the last one, which would end the run of the peer, and a model that was not requested.
    let mut stream = testbed.connect_as_worker_2();
    stream.write_all(&frame(Kind::Offer, &(1u64 << 62).to_le_bytes())).unwrap();
    testbed.assert_refused("it claims to be in round 4611686018427387904");
    let mut stream = testbed.connect_as_worker_2();
    let model = crate::model_to_bytes(0, &vec![("models".into(), vec![0.0; 10])]);
    stream.write_all(&frame(Kind::Model, &model)).unwrap();
    testbed.assert_refused("it sent a model that was not requested");

    // Malformed frames, and headers that announce enormous frames.
    let mut stream = testbed.connect_as_worker_2();
    stream.write_all(&[0xab; 64]).unwrap();
    testbed.assert_refused("malformed frame");
    for kind in [Kind::Message, Kind::Model, Kind::Heartbeat] {
        let mut stream = testbed.connect_as_worker_2();
        let huge = FrameHeader { kind, length: 1 << 63, checksum: 0 };
        stream.write_all(&huge.to_bytes()).unwrap();
        testbed.assert_refused("frame of 9223372036854775808 bytes");
    }
    // A header of the longest message allowed, without the message.
    let mut stream = testbed.connect_as_worker_2();
    let long = FrameHeader { kind: Kind::Message, length: (64 + 4 * WIDTH) as u64, checksum: 0 };
    stream.write_all(&long.to_bytes()).unwrap();
    testbed.assert_refused("nothing was received for 0.6 seconds");
    // A message that was altered on its way.
    let mut stream = testbed.connect_as_worker_2();
    let mut bytes = message_frame(&message(2, 0, 10));
    *bytes.last_mut().unwrap() ^= 1;
    stream.write_all(&bytes).unwrap();
    testbed.assert_refused("frame checksum mismatch");
    // The same message sent twice.
    let mut stream = testbed.connect_as_worker_2();
    let far = message_frame(&message(2, 1 << 40, 10));
    stream.write_all(&far).unwrap();
    stream.write_all(&far).unwrap();
    testbed.assert_refused("unexpected message of round");
    testbed.assert_progress();
    testbed.assert_memory();
}

/// The frame number `k` of a flood of this kind, and what the peer says when it closes the connection. Messages that it
/// expects later are not refused: it stops to read.
fn flood(kind: Kind, k: u64) -> (Vec<u8>, Option<&'static str>) {
    let unexpected = Some("frame on an established connection");
    let (content, refused) = match kind {
        Kind::Hello => (hello(2), unexpected),
        Kind::StatusRequest => (vec![], unexpected),
        Kind::Status => (vec![b' '; 1 << 20], unexpected),
        Kind::Offer => (k.to_le_bytes().to_vec(), Some("control frames in a second")),
        Kind::Heartbeat => {
            let members = (0..8000).map(|member| (member, 0)).collect();
            (View { members, ..View::default() }.to_bytes(), Some("control frames in a second"))
        }
        Kind::ModelRequest | Kind::Goodbye => (vec![], Some("control frames in a second")),
        Kind::Model => {
            let state = vec![("models".into(), vec![0.0; MODEL / 4 - 100])];
            (crate::model_to_bytes(0, &state), Some("it sent a model that was not requested"))
        }
        Kind::Message => return (message_frame(&message(2, (1 << 40) + k, WIDTH)), None),
    };
    (frame(kind, &content), refused)
}

const KINDS: [Kind; 9] = [
    Kind::Hello,
    Kind::Offer,
    Kind::Heartbeat,
    Kind::Message,
    Kind::ModelRequest,
    Kind::Model,
    Kind::StatusRequest,
    Kind::Status,
    Kind::Goodbye,
];

/// Floods of each kind of frame, by a peer that reads nothing. None of them gets through to the end.
#[test]
fn floods_are_refused_and_take_little_memory() {
    alone("floods_are_refused_and_take_little_memory", send_floods);
}

fn send_floods() {
    let testbed = Testbed::new();
    let send = |what: &str, refused: Option<&str>, frame_of: &dyn Fn(u64) -> Vec<u8>| {
        let mut stream = testbed.connect_as_worker_2();
        stream.sock.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut sent = 0;
        while sent < 1 << 30 {
            // Small frames in large pieces.
            let mut piece = frame_of(sent as u64);
            let count = ((1 << 16) / piece.len()).max(1);
            piece = (0..count).flat_map(|k| frame_of((sent + k) as u64)).collect();
            if stream.write_all(&piece).is_err() {
                break;
            }
            sent += piece.len();
            testbed.assert_memory();
        }
        assert!(sent < 1 << 30, "{what}: the peer accepted a gigabyte");
        refused.inspect(|reason| testbed.assert_refused(reason));
        testbed.assert_memory();
        testbed.assert_rounds(5);
    };
    for kind in KINDS {
        send(&format!("{kind:?}"), flood(kind, 0).1, &|k| flood(kind, k).0);
    }
    let announcement = |k| Message { exchange: u32::MAX, ..message(2, k, 0) };
    send("announcements", Some("too many announcements"), &|k| message_frame(&announcement(k)));
    send("old messages", Some("unexpected message of round 0"), &|_| message_frame(&message(2, 0, WIDTH)));
    // Many idle connections.
    let idle: Vec<TcpStream> = (0..200).filter_map(|_| TcpStream::connect(&testbed.address).ok()).collect();
    testbed.assert_progress();
    drop(idle);
    testbed.assert_memory();
    testbed.assert_progress();
}

/// F7. A peer asks for a model in every round over several connections, and never reads.
#[test]
fn models_that_are_not_read_take_little_memory() {
    alone("models_that_are_not_read_take_little_memory", leave_models_unread);
}

fn leave_models_unread() {
    let testbed = Testbed::new();
    let request = frame(Kind::ModelRequest, &[]);
    let mut open = VecDeque::new();
    for k in 0..300 {
        if k % 15 == 0 {
            open.push_back(testbed.connect_as_worker_2());
            // More than it may have at a time, some of them closed by the peer and not by this side.
            open.drain(..open.len().saturating_sub(8));
        }
        for stream in &mut open {
            let _ = stream.write_all(&request);
        }
        testbed.assert_rounds(1);
        testbed.assert_memory();
    }
    testbed.assert_refused("worker 2 has 4 open connections");
    let models = testbed.models.load(Ordering::SeqCst);
    assert!(models >= 8, "only {models} models were sent");
    testbed.assert_progress();
    testbed.assert_memory();
}

/// Halves of the longest frames of each kind, over several connections of one key at a time.
#[test]
fn half_sent_frames_take_little_memory() {
    alone("half_sent_frames_take_little_memory", send_halves);
}

fn send_halves() {
    let testbed = Testbed::new();
    let mut open = VecDeque::new();
    for (k, kind) in KINDS.into_iter().cycle().take(5 * KINDS.len()).enumerate() {
        let (whole, _) = flood(kind, k as u64);
        let mut stream = testbed.connect_as_worker_2();
        let _ = stream.write_all(&whole[..(whole.len() / 2).max(FRAME_HEADER - 1)]);
        open.push_back(stream);
        open.drain(..open.len().saturating_sub(8));
        testbed.assert_rounds(1);
        testbed.assert_memory();
    }
    testbed.assert_refused("it sent a model that was not requested");
    testbed.assert_progress();
    testbed.assert_memory();
}

/// F7. Requests of a worker that is ahead of the others, so that a Downpour server holds its replies back.
#[test]
fn a_server_holds_back_one_reply_for_each_worker() {
    alone("a_server_holds_back_one_reply_for_each_worker", flood_server);
}

fn flood_server() {
    let text = "model = \"mlp:1024\"\n[graph]\ntopology = \"star:3\"\n[algorithm]\nname = \"downpour\"\nstaleness = 1\n\
                [data]\ntrain_examples = 320\n[training]\nepochs = 100000\n";
    let experiment = Experiment::prepare(Config::parse(text, &[]).unwrap(), &DataPaths::default()).unwrap();
    let width = NativeModel::new(experiment.network.clone()).layout().parameter_count();
    let (keys, listed) = listed(3);
    // Nobody sends heartbeats here.
    let failure_timeout = Duration::from_secs(60);
    let server = PeersConfig {
        has_rounds: false,
        rounds: experiment.rounds(),
        limits: Limits { message: width, model: 0 },
        timings: Timings { failure_timeout, ..timings() },
        ..config(0, &keys, &listed)
    };
    let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut observer = Watch { stop: stop.clone(), refused: refused.clone() };
    let running = std::thread::spawn(move || {
        let mut transport = Peers::new(server).unwrap();
        let network = Arc::new(NativeModel::new(experiment.network.clone()));
        let mut engine = CpuEngine::new(network, &experiment.engine_spec().only(&[WorkerId(0)]));
        let start = Progress::start(3);
        run_with(&experiment, &mut engine, &mut transport, start, &mut observer).unwrap().summary.status
    });
    let mut sequence = 0;
    let mut request = |from: usize, step: u32| {
        sequence += 1;
        message_frame(&Message { exchange: step << 2, ..message(from, sequence, width) })
    };
    // Worker 1 has computed one gradient, and no more.
    let mut first = connect_as(&listed, &keys, 1);
    first.write_all(&request(1, 0)).unwrap();
    let (before, mut sent) = (memory_in_use(), 0);
    for _ in 0..5 {
        let mut second = connect_as(&listed, &keys, 2);
        second.sock.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        for step in 0..400 {
            sent += usize::from(second.write_all(&request(2, step)).is_ok());
            let grown = memory_in_use().saturating_sub(before);
            let held = 4 * 17 * 4 * width + (8 << 20);
            assert!(grown < held, "memory grew by {} MB, and {} MB are allowed", grown >> 20, held >> 20);
        }
    }
    let began = Instant::now();
    while refused.load(Ordering::SeqCst) < 5 {
        assert!(began.elapsed() < Duration::from_secs(20), "requests were not refused");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(sent < 5 * 400, "all requests were accepted");
    stop.store(true, Ordering::SeqCst);
    drop(first);
    assert!(matches!(running.join().unwrap(), Status::Interrupted { .. }));
}

/// Stops a run when the test is over, and counts second requests.
struct Watch {
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
}

impl Observer for Watch {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Peer { change: MembershipEvent::Refused { what }, .. } = event
            && what.contains("a second request before the reply to the first")
        {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        ControlFlow::Continue
    }

    fn while_waiting(&mut self) -> ControlFlow {
        if self.stop.load(Ordering::SeqCst) { ControlFlow::Stop } else { ControlFlow::Continue }
    }
}
