//! How fast messages go, beside plain rustls on the same machine:
//! `cargo test --release -p upwash-peers throughput -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]

use crate::adversarial::{message, two};
use crate::keys::Key;
use crate::{Peers, tls};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use upwash::transport::{Membership, MessageExchange, RoundStart};

/// Buffer of a message.
const WIDTH: usize = 5_000_000;
const TIMES: usize = 20;

/// Two threads exchange messages; seconds.
fn messages() -> f64 {
    let workers = two(WIDTH).map(|config| {
        let mut transport = Peers::new(config).unwrap();
        std::thread::spawn(move || {
            let own = transport.placement().this();
            let mut began = Instant::now();
            let numbers = vec![1.0; WIDTH];
            for round in 0..=TIMES as u64 {
                while transport.may_begin(round, false).unwrap() == RoundStart::Wait {}
                let mut mine = message(own, round, 0);
                mine.values = transport.allocate(WIDTH);
                mine.values.copy_from_slice(&numbers);
                transport.begin_exchange(vec![(mine, vec![1 - own])], &[1 - own]).unwrap();
                assert_eq!(transport.finish_exchange(1).unwrap().len(), 1);
                if round == 0 {
                    began = Instant::now();
                }
            }
            let seconds = began.elapsed().as_secs_f64();
            // The other may still want the last message.
            std::thread::sleep(Duration::from_secs(1));
            seconds
        })
    });
    let seconds = workers.map(|worker| worker.join().unwrap());
    seconds[0].max(seconds[1])
}

/// The same bytes by rustls alone, a connection for each way; seconds.
fn plain() -> f64 {
    let ways = [(); 2].map(|()| {
        let (here, there) = (Key::generate(), Key::generate());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = tls::server(&here, vec![there.fingerprint()]).unwrap();
        let client = tls::client(&there, here.fingerprint()).unwrap();
        let reader = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let connection = ServerConnection::new(server).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            let mut buffer = vec![0; 4 * WIDTH];
            stream.read_exact(&mut buffer[..1]).unwrap();
            let began = Instant::now();
            for _ in 0..TIMES {
                stream.read_exact(&mut buffer).unwrap();
            }
            began.elapsed().as_secs_f64()
        });
        let writer = std::thread::spawn(move || {
            let name = ServerName::try_from("peer").unwrap();
            let connection = ClientConnection::new(client, name).unwrap();
            let stream = TcpStream::connect(address).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            let buffer = vec![1; 4 * WIDTH];
            stream.write_all(&buffer[..1]).unwrap();
            for _ in 0..TIMES {
                stream.write_all(&buffer).unwrap();
            }
            stream.flush().unwrap();
            stream
        });
        (reader, writer)
    });
    let seconds = ways.map(|(reader, writer)| {
        let seconds = reader.join().unwrap();
        drop(writer.join().unwrap());
        seconds
    });
    seconds[0].max(seconds[1])
}

#[test]
#[ignore = "a benchmark"]
fn throughput() {
    let moved = (2 * 4 * WIDTH * TIMES) as f64 / 1e9;
    for _ in 0..3 {
        let (plain, messages) = (moved / plain(), moved / messages());
        println!("rustls alone {plain:.2} GB/s, peers {messages:.2} GB/s: {:.0} %", 100.0 * messages / plain);
    }
}
