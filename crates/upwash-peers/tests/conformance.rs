//! Peers on loopback pass the conformance suites of transports and of nodes that are driven from outside.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use upwash::transport::Transport;
use upwash_peers::{Key, Limits, Peers, PeersConfig, Timings};
use upwash_testkit::{external_suite, golden, transport_suite};

const WORKERS: usize = 4;

/// Four peers that know each other.
fn peers(run: u64, rounds: u64) -> Vec<PeersConfig> {
    let keys: Vec<Key> = (0..WORKERS).map(|_| Key::generate()).collect();
    // All at once, so that no two get the same.
    let ports: Vec<TcpListener> = (0..WORKERS).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let address = |port: &TcpListener| port.local_addr().unwrap().to_string();
    let listed = ports.iter().zip(&keys);
    let listed: Vec<_> = listed.map(|(port, key)| (address(port), key.fingerprint())).collect();
    let config = |own: usize| PeersConfig {
        own,
        key: keys[own].clone(),
        peers: listed.clone(),
        listen: None,
        neighbors: (0..WORKERS).filter(|&other| other != own).collect(),
        run,
        rounds,
        limits: Limits { message: 200_000, model: 1 << 20 },
        timings: Timings { startup_timeout: Duration::from_secs(20), ..Timings::default() },
    };
    (0..WORKERS).map(config).collect()
}

/// Where threads wait for each other, but not for ever: one of them may have panicked.
#[derive(Default)]
struct Rendezvous(AtomicUsize);

impl Rendezvous {
    fn wait(&self) {
        let turn = self.0.fetch_add(1, Ordering::SeqCst) / WORKERS + 1;
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.0.load(Ordering::SeqCst) < turn * WORKERS {
            assert!(Instant::now() < deadline, "another peer has not come so far");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Does the same in every process, which here is a thread; they end together.
fn everywhere(work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS)
            .map(|own| {
                scope.spawn({
                    let work = &work;
                    move || work(own)
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn peers_are_a_transport() {
    let configs = peers(1, 100);
    let done = Rendezvous::default();
    everywhere(|own| {
        let mut transport = Peers::new(configs[own].clone()).unwrap();
        transport_suite::check_process(&mut transport);
        // Others may still want what was sent last.
        done.wait();
    });
}

#[test]
fn a_loop_of_ones_own_runs_between_peers() {
    let cases = golden::four_worker_cases();
    let all: Vec<Vec<PeersConfig>> = (0..cases.len()).map(|run| peers(run as u64, 10_000)).collect();
    let done = Rendezvous::default();
    everywhere(|own| {
        let mut runs = all.iter();
        let refused = external_suite::check(cases.clone(), |_, drive| {
            let config = runs.next().unwrap()[own].clone();
            let mut transport: Box<dyn Transport> = Box::new(Peers::new(config).unwrap());
            drive(&mut *transport);
            done.wait();
        });
        assert_eq!(refused, ["al-dsgd-qg-momentum", "qg-momentum"]);
    });
}
