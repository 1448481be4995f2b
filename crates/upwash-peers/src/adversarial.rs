//! Attacks on a peer by strangers and by listed peers that misbehave: the peer refuses them and goes on training.
#![allow(clippy::unwrap_used)]

use crate::frame::{FRAME_HEADER, FrameHeader, Hello, Kind, Limits, VERSION, View};
use crate::keys::{Fingerprint, Key};
use crate::{Peers, PeersConfig, Timings, tls};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use upwash::WorkerId;
use upwash::algorithm::WorkerStats;
use upwash::transport::{Membership, MembershipEvent, Message, MessageExchange, RoundStart};

const RUN: u64 = 77;
const WIDTH: usize = 50_000;

/// Two honest peers, 0 and 1, that exchange messages continuously. The test attacks peer 0 with the key of worker 2.
struct Testbed {
    address: String,
    keys: Vec<Key>,
    listed: Vec<(String, Fingerprint)>,
    rounds: Arc<AtomicU64>,
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
        limits: Limits { message: WIDTH, model: 4 * WIDTH },
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
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let events: Arc<Mutex<Vec<MembershipEvent>>> = Arc::default();
        let threads = (0..2)
            .map(|own| {
                let mut transport = Peers::new(config(own, &keys, &listed)).unwrap();
                let (rounds, stop, events) = (rounds.clone(), stop.clone(), events.clone());
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
        let testbed = Self { address: listed[0].0.clone(), keys, listed, rounds, events, stop, threads };
        testbed.assert_progress();
        testbed
    }

    /// Waits until the honest peers have exchanged some more messages.
    fn assert_progress(&self) {
        let (before, began) = (self.rounds.load(Ordering::SeqCst), Instant::now());
        while self.rounds.load(Ordering::SeqCst) < before + 20 {
            assert!(began.elapsed() < Duration::from_secs(20), "the honest peers stopped");
            std::thread::sleep(Duration::from_millis(5));
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
    fn connect(&self, key: &Key) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
        let config = tls::client(key, self.listed[0].1).unwrap();
        let name = "upwash".try_into().unwrap();
        let connection = rustls::ClientConnection::new(config, name).unwrap();
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        rustls::StreamOwned::new(connection, stream)
    }

    /// An authenticated connection to peer 0 as worker 2.
    fn connect_as_worker_2(&self) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
        let mut stream = self.connect(&self.keys[2]);
        stream.write_all(&frame(Kind::Hello, &hello(2))).unwrap();
        let mut answer = [0; FRAME_HEADER + 14];
        stream.read_exact(&mut answer).unwrap();
        stream
    }
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

#[test]
fn misbehaving_peers_are_refused_and_training_goes_on() {
    let testbed = Testbed::new();
    let before = memory_in_use();

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
    let grown = memory_in_use().saturating_sub(before);
    assert!(grown < 32 << 20, "memory grew by {} MB", grown >> 20);
}

#[test]
fn floods_are_refused_and_take_little_memory() {
    let testbed = Testbed::new();
    let before = memory_in_use();
    // A million small frames. The peer closes the connection long before the end.
    let mut stream = testbed.connect_as_worker_2();
    let heartbeat = frame(Kind::Heartbeat, &View::default().to_bytes());
    let many = heartbeat.repeat(1000);
    let sent = (0..1000).take_while(|_| stream.write_all(&many).is_ok()).count();
    assert!(sent < 1000, "the peer accepted a million frames");
    testbed.assert_refused("control frames in a second");
    // Messages of distant rounds. The peer queues only a few.
    let mut stream = testbed.connect_as_worker_2();
    stream.sock.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let accepted = (0..2000u64)
        .take_while(|k| stream.write_all(&message_frame(&message(2, (1 << 40) + k, WIDTH))).is_ok())
        .count();
    assert!(accepted < 2000, "the peer accepted 400 MB of messages");
    drop(stream);
    // Many idle connections.
    let idle: Vec<TcpStream> = (0..200).filter_map(|_| TcpStream::connect(&testbed.address).ok()).collect();
    testbed.assert_progress();
    drop(idle);
    let grown = memory_in_use().saturating_sub(before);
    assert!(grown < 32 << 20, "memory grew by {} MB", grown >> 20);
    testbed.assert_progress();
}
