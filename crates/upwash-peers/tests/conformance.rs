//! Runs the conformance suites of transports and of external training loops on peers that communicate over loopback.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use upwash::transport::Transport;
use upwash_peers::{Key, Limits, Peers, PeersConfig, Timings};
use upwash_testkit::{external_suite, golden, transport_suite};

const WORKERS: usize = 4;

/// Configurations of four peers in a complete graph.
fn peers(run: u64, rounds: u64) -> Vec<PeersConfig> {
    let keys: Vec<Key> = (0..WORKERS).map(|_| Key::generate()).collect();
    // Binds all ports before releasing any, so that they differ.
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
        has_rounds: true,
        has_end: true,
        limits: Limits { message: 200_000, model: 1 << 20 },
        timings: Timings { startup_timeout: Duration::from_secs(20), ..Timings::default() },
    };
    (0..WORKERS).map(config).collect()
}

/// Reusable barrier with a timeout, because another thread may have panicked.
#[derive(Default)]
struct TimedBarrier(AtomicUsize);

impl TimedBarrier {
    fn wait(&self) {
        let generation = self.0.fetch_add(1, Ordering::SeqCst) / WORKERS + 1;
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.0.load(Ordering::SeqCst) < generation * WORKERS {
            assert!(Instant::now() < deadline, "another peer did not reach the barrier");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs `work` for every worker, each in a separate thread, and waits for all of them.
fn for_each_worker(work: impl Fn(usize) + Sync) {
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
fn peers_pass_the_transport_suite() {
    let configs = peers(1, 100);
    let done = TimedBarrier::default();
    for_each_worker(|own| {
        let mut transport = Peers::new(configs[own].clone()).unwrap();
        transport_suite::check_process(&mut transport);
        // Other peers may still be waiting for the last messages.
        done.wait();
    });
}

#[test]
fn peers_pass_the_external_loop_suite() {
    let cases = golden::four_worker_cases();
    let all: Vec<Vec<PeersConfig>> = (0..cases.len()).map(|run| peers(run as u64, 10_000)).collect();
    let done = TimedBarrier::default();
    for_each_worker(|own| {
        let mut runs = all.iter();
        let refused = external_suite::check(cases.clone(), |_, drive| {
            let config = runs.next().unwrap()[own].clone();
            let mut transport: Box<dyn Transport> = Box::new(Peers::new(config).unwrap());
            drive(&mut *transport);
            done.wait();
        });
        assert_eq!(refused, ["al-dsgd-qg-momentum", "decentlam", "qg-momentum"]);
    });
}
