//! Asynchronous workers between peers on loopback.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use upwash::config::Config;
use upwash::engine::{CpuEngine, NativeModel};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Observer, Progress, RunResult, Status, TakeSnapshot, run_with};
use upwash::transport::MembershipEvent;
use upwash_peers::{Key, Peers, PeersConfig};

const WORKERS: usize = 4;
/// The worker that is stuck, and the round in which that begins.
const STUCK: usize = 2;
const SINCE: u64 = 5;

/// Collects the workers that were lost, and is stuck between two rounds until it is released.
struct Watch {
    lost: Arc<Mutex<Vec<usize>>>,
    release: Option<Receiver<()>>,
}

impl Observer for Watch {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Peer { change: MembershipEvent::Lost { worker, .. }, .. } = event {
            self.lost.lock().unwrap().push(worker.0);
        }
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, round: u64, _: &mut TakeSnapshot<'_>) -> ControlFlow {
        if let Some(release) = self.release.take_if(|_| round >= SINCE) {
            let _ = release.recv();
        }
        ControlFlow::Continue
    }
}

fn experiment(keys: &[Key]) -> Experiment {
    // Binds all ports before releasing any, so that they differ.
    let ports: Vec<TcpListener> = keys.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let mut text = "model = \"softmax\"\n[graph]\ntopology = \"complete:4\"\n[algorithm]\nname = \"ad-psgd\"\n\
                    [data]\ntrain_examples = 320\n[training]\nepochs = 20\nbatch_size = 8\n\
                    [network]\nfailure_timeout_seconds = 5\nmessage_timeout_seconds = 5\n"
        .to_string();
    for (key, port) in keys.iter().zip(ports) {
        let (address, key) = (port.local_addr().unwrap(), key.fingerprint());
        text += &format!("[[network.peers]]\naddress = \"{address}\"\nkey = \"{key}\"\n");
    }
    Experiment::prepare(Config::parse(&text, &[]).unwrap(), &DataPaths::default()).unwrap()
}

fn run(experiment: &Experiment, own: usize, key: &Key, mut watch: Watch) -> RunResult {
    let network = Arc::new(NativeModel::new(experiment.network.clone()));
    let mut engine = CpuEngine::new(network, &experiment.engine_spec().only(&[own.into()]));
    let config = PeersConfig::of(experiment, own, key.clone(), &mut engine).unwrap();
    let mut transport = Peers::new(config).unwrap();
    run_with(experiment, &mut engine, &mut transport, Progress::start(WORKERS), &mut watch).unwrap()
}

/// F6. A worker that answers nobody, while its heartbeats go on, holds up no other: they finish before it continues.
#[test]
fn nobody_waits_for_a_worker_that_is_stuck_but_alive() {
    let keys: Vec<Key> = (0..WORKERS).map(|_| Key::generate()).collect();
    let experiment = experiment(&keys);
    assert!(experiment.rounds() > 100);
    let (release, released) = channel();
    let (ended, ends) = channel();
    let lost: Arc<Mutex<Vec<usize>>> = Arc::default();
    std::thread::scope(|scope| {
        let mut released = Some(released);
        for (own, key) in keys.iter().enumerate() {
            let release = if own == STUCK { released.take() } else { None };
            let watch = Watch { lost: lost.clone(), release };
            let (experiment, ended) = (&experiment, ended.clone());
            scope.spawn(move || {
                let result = run(experiment, own, key, watch);
                let _ = ended.send((own, result.summary.status));
            });
        }
        let wait = || ends.recv_timeout(Duration::from_secs(100));
        let others: Result<Vec<_>, _> = (1..WORKERS).map(|_| wait()).collect();
        let lost_before = std::mem::take(&mut *lost.lock().unwrap());
        // Otherwise the threads would not end if the test fails.
        release.send(()).unwrap();
        let last = wait();
        let all_finished =
            |ends: &Vec<_>| ends.iter().all(|end| matches!(end, (own, Status::Finished) if *own != STUCK));
        assert!(others.as_ref().is_ok_and(all_finished), "{others:?}");
        assert!(!lost_before.contains(&STUCK), "its heartbeats did not go on");
        assert!(matches!(last, Ok((STUCK, Status::Finished))), "{last:?}");
    });
}
