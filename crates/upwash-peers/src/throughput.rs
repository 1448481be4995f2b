//! Throughput of messages between two peers, compared with plain rustls on the same machine:
//! `cargo test --release -p upwash-peers throughput -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]

use crate::adversarial::{message, two_peers};
use crate::keys::Key;
use crate::{Peers, tls};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use upwash::WorkerId;
use upwash::transport::{Membership, MessageExchange, RoundStart};

/// Values per message.
const WIDTH: usize = 5_000_000;
const REPETITIONS: usize = 20;

/// Seconds in which two peers, one thread each, exchange all messages.
fn time_peers() -> f64 {
    let workers = two_peers(WIDTH).map(|config| {
        let mut transport = Peers::new(config).unwrap();
        std::thread::spawn(move || {
            let own = transport.placement().this();
            let mut began = Instant::now();
            let values = vec![1.0; WIDTH];
            for round in 0..=REPETITIONS as u64 {
                while transport.may_begin(round, false).unwrap() == RoundStart::Wait {}
                let mut own_message = message(own, round, 0);
                own_message.values = transport.allocate(WIDTH);
                own_message.values.copy_from_slice(&values);
                transport.begin_exchange(vec![(own_message, vec![1 - own])], &[WorkerId(1 - own)]).unwrap();
                assert_eq!(transport.finish_exchange(1).unwrap().len(), 1);
                if round == 0 {
                    began = Instant::now();
                }
            }
            let seconds = began.elapsed().as_secs_f64();
            // The other peer may still be waiting for the last message.
            std::thread::sleep(Duration::from_secs(1));
            seconds
        })
    });
    let seconds = workers.map(|worker| worker.join().unwrap());
    seconds[0].max(seconds[1])
}

/// Seconds in which plain rustls moves the same bytes, with one connection per direction.
fn time_rustls() -> f64 {
    let directions = [(); 2].map(|()| {
        let (server_key, client_key) = (Key::generate(), Key::generate());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = tls::server(&server_key, vec![client_key.fingerprint()]).unwrap();
        let client = tls::client(&client_key, server_key.fingerprint()).unwrap();
        let reader = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let connection = ServerConnection::new(server).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            let mut buffer = vec![0; 4 * WIDTH];
            stream.read_exact(&mut buffer[..1]).unwrap();
            let began = Instant::now();
            for _ in 0..REPETITIONS {
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
            for _ in 0..REPETITIONS {
                stream.write_all(&buffer).unwrap();
            }
            stream.flush().unwrap();
            stream
        });
        (reader, writer)
    });
    let seconds = directions.map(|(reader, writer)| {
        let seconds = reader.join().unwrap();
        drop(writer.join().unwrap());
        seconds
    });
    seconds[0].max(seconds[1])
}

#[test]
#[ignore = "benchmark"]
fn throughput() {
    let gigabytes = (2 * 4 * WIDTH * REPETITIONS) as f64 / 1e9;
    for _ in 0..3 {
        let (rustls, peers) = (gigabytes / time_rustls(), gigabytes / time_peers());
        println!("rustls alone {rustls:.2} GB/s, peers {peers:.2} GB/s: {:.0} %", 100.0 * peers / rustls);
    }
}
