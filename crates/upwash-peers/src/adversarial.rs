//! What strangers, and peers that misbehave, can do to a peer: nothing but be refused.
#![allow(clippy::unwrap_used)]

use crate::frame::{FRAME_HEADER, FrameHeader, Hello, Kind, Limits, VERSION};
use crate::keys::{Fingerprint, Key};
use crate::{Peers, PeersConfig, Timings, tls};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use upwash::algorithm::WorkerStats;
use upwash::transport::{Membership, MembershipEvent, Message, MessageExchange, RoundStart};

const RUN: u64 = 77;
const WIDTH: usize = 50_000;

/// Two honest peers, 0 and 1, that exchange messages all the time; 2 is ours.
struct Scene {
    address: String,
    keys: Vec<Key>,
    listed: Vec<(String, Fingerprint)>,
    rounds: Arc<AtomicU64>,
    news: Arc<Mutex<Vec<MembershipEvent>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

pub(crate) fn message(from: usize, round: u64, width: usize) -> Message {
    Message {
        from,
        round,
        exchange: 1,
        stats: WorkerStats { loss: Some(1.0), degree: 1, scalar: 1.0 },
        whole: true,
        fresh: false,
        values: vec![1.0; width].into(),
    }
}

fn timings() -> Timings {
    Timings {
        heartbeat: Duration::from_millis(50),
        failure_timeout: Duration::from_millis(600),
        message_timeout: Duration::from_secs(20),
        startup_timeout: Duration::from_millis(500),
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
        limits: Limits { message: WIDTH, model: 4 * WIDTH },
        timings: timings(),
    }
}

/// Keys, and a free port for each.
fn listed(count: usize) -> (Vec<Key>, Vec<(String, Fingerprint)>) {
    let keys: Vec<Key> = (0..count).map(|_| Key::generate()).collect();
    let ports: Vec<_> = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let address = |port: &std::net::TcpListener| port.local_addr().unwrap().to_string();
    let listed = ports.iter().zip(&keys);
    let listed = listed.map(|(port, key)| (address(port), key.fingerprint()));
    let listed = listed.collect();
    (keys, listed)
}

/// Two honest peers alone, for messages of such a width.
pub(crate) fn two(width: usize) -> [PeersConfig; 2] {
    let (keys, listed) = listed(2);
    [0, 1].map(|own| PeersConfig {
        neighbors: vec![1 - own],
        limits: Limits { message: width, model: 4 * width },
        timings: Timings::default(),
        ..config(own, &keys, &listed)
    })
}

impl Scene {
    fn new() -> Self {
        let (keys, listed) = listed(3);
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let news: Arc<Mutex<Vec<MembershipEvent>>> = Arc::default();
        let threads = (0..2)
            .map(|own| {
                let mut transport = Peers::new(config(own, &keys, &listed)).unwrap();
                let (rounds, stop, news) = (rounds.clone(), stop.clone(), news.clone());
                std::thread::spawn(move || {
                    let mut round = 0;
                    while !stop.load(Ordering::SeqCst) {
                        let begin = transport.may_begin(round, false).unwrap();
                        if begin == RoundStart::Wait {
                            continue;
                        }
                        assert_eq!(begin, RoundStart::Go, "an attacker cannot make us jump");
                        if own == 0 {
                            news.lock().unwrap().extend(transport.membership_events());
                        }
                        let mine = message(own, round, WIDTH);
                        transport.begin_exchange(vec![(mine, vec![1 - own])], &[1 - own]).unwrap();
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
        let scene = Self { address: listed[0].0.clone(), keys, listed, rounds, news, stop, threads };
        scene.goes_on();
        scene
    }

    /// The honest ones exchange some more messages.
    fn goes_on(&self) {
        let (before, began) = (self.rounds.load(Ordering::SeqCst), Instant::now());
        while self.rounds.load(Ordering::SeqCst) < before + 20 {
            assert!(began.elapsed() < Duration::from_secs(20), "they stopped");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until something of the kind was refused.
    fn refused(&self, what: &str) {
        let began = Instant::now();
        loop {
            let news = std::mem::take(&mut *self.news.lock().unwrap());
            let said: Vec<String> = news
                .iter()
                .filter_map(|news| match news {
                    MembershipEvent::Refused { what } => Some(what.clone()),
                    MembershipEvent::Lost { worker: 2, why } => Some(why.clone()),
                    _ => None,
                })
                .collect();
            if said.iter().any(|said| said.contains(what)) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "`{what}` was not refused, but {said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A connection with some key, over which anything can be written.
    fn connect(&self, key: &Key) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
        let config = tls::client(key, self.listed[0].1).unwrap();
        let name = "upwash".try_into().unwrap();
        let connection = rustls::ClientConnection::new(config, name).unwrap();
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        rustls::StreamOwned::new(connection, stream)
    }

    /// The same, after a hello as worker 2 that was answered.
    fn connect_as_two(&self) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
        let mut stream = self.connect(&self.keys[2]);
        stream.write_all(&frame(Kind::Hello, &hello(2))).unwrap();
        let mut answer = [0; FRAME_HEADER + 14];
        stream.read_exact(&mut answer).unwrap();
        stream
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
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

fn memory_in_use() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

#[test]
fn whoever_misbehaves_is_refused_and_training_goes_on() {
    let scene = Scene::new();
    let before = memory_in_use();

    // Not TLS at all.
    let mut stream = TcpStream::connect(&scene.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: there\r\n\r\n").unwrap();
    scene.refused("a connection from 127.0.0.1");
    scene.goes_on();

    // One byte a second.
    let mut slow = TcpStream::connect(&scene.address).unwrap();
    slow.write_all(&[22]).unwrap();
    scene.refused("it did not say who it is within 1 seconds");

    // A key that nobody knows. The handshake may seem to succeed: what counts is that nothing is said.
    let mut stream = scene.connect(&Key::generate());
    let _ = stream.write_all(&frame(Kind::Hello, &hello(2)));
    assert!(stream.read_exact(&mut [0; 1]).is_err(), "a stranger was answered");
    scene.refused("a connection from 127.0.0.1");

    // A known key that speaks as another, in its hello and in a message.
    let mut stream = scene.connect(&scene.keys[2]);
    stream.write_all(&frame(Kind::Hello, &hello(1))).unwrap();
    scene.refused("the key of worker 2 spoke as worker 1");
    let mut stream = scene.connect_as_two();
    stream.write_all(&message_frame(&message(1, 0, 10))).unwrap();
    scene.refused("it spoke as worker 1");
    scene.goes_on();

    // Another run, another version.
    for (wrong, said) in [
        ([1, 0, 2, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9], "another configuration"),
        ([9, 0, 2, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0], "speaks version 9"),
    ] {
        let mut stream = scene.connect(&scene.keys[2]);
        stream.write_all(&frame(Kind::Hello, &wrong)).unwrap();
        scene.refused(said);
    }

    // A round that there is not, which would end our run; and a model that nobody asked for.
    let mut stream = scene.connect_as_two();
    stream.write_all(&frame(Kind::Offer, &(1u64 << 62).to_le_bytes())).unwrap();
    scene.refused("it is in round 4611686018427387904");
    let mut stream = scene.connect_as_two();
    let model = crate::model_to_bytes(0, &vec![("models".into(), vec![0.0; 10])]);
    stream.write_all(&frame(Kind::Model, &model)).unwrap();
    scene.refused("a model that nobody asked for");

    // Garbage, and frames that say that they are enormous.
    let mut stream = scene.connect_as_two();
    stream.write_all(&[0xab; 64]).unwrap();
    scene.refused("garbage instead of a frame");
    for kind in [Kind::Message, Kind::Model, Kind::Beat] {
        let mut stream = scene.connect_as_two();
        let huge = FrameHeader { kind, length: 1 << 63, checksum: 0 };
        stream.write_all(&huge.to_bytes()).unwrap();
        scene.refused("a frame of 9223372036854775808 bytes");
    }
    // A message that says it is as long as is allowed, and then does not come.
    let mut stream = scene.connect_as_two();
    let long = FrameHeader { kind: Kind::Message, length: (64 + 4 * WIDTH) as u64, checksum: 0 };
    stream.write_all(&long.to_bytes()).unwrap();
    scene.refused("nothing was heard for 0.6 seconds");
    // Changed on its way.
    let mut stream = scene.connect_as_two();
    let mut bytes = message_frame(&message(2, 0, 10));
    *bytes.last_mut().unwrap() ^= 1;
    stream.write_all(&bytes).unwrap();
    scene.refused("checksum is wrong");
    // The same message twice.
    let mut stream = scene.connect_as_two();
    let far = message_frame(&message(2, 1 << 40, 10));
    stream.write_all(&far).unwrap();
    stream.write_all(&far).unwrap();
    scene.refused("unexpected message of round");
    scene.goes_on();

    // A million tiny frames: it is cut off long before.
    let mut stream = scene.connect_as_two();
    let beat = frame(Kind::Beat, &0u64.to_le_bytes());
    let many = beat.repeat(1000);
    let sent = (0..1000).take_while(|_| stream.write_all(&many).is_ok()).count();
    assert!(sent < 1000, "a million frames were taken");
    scene.refused("small frames in a second");
    // Messages of rounds that are far away are kept, but only a few.
    let mut stream = scene.connect_as_two();
    stream.sock.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let kept = (0..2000u64)
        .take_while(|k| stream.write_all(&message_frame(&message(2, (1 << 40) + k, WIDTH))).is_ok())
        .count();
    assert!(kept < 2000, "400 MB of messages were taken");
    drop(stream);
    // Many who say nothing.
    let idle: Vec<TcpStream> = (0..200).filter_map(|_| TcpStream::connect(&scene.address).ok()).collect();
    scene.goes_on();
    drop(idle);
    let grown = memory_in_use().saturating_sub(before);
    assert!(grown < 32 << 20, "memory has grown by {} MB", grown >> 20);
    scene.goes_on();
}
