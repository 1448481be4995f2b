//! Failures of peers: processes on loopback, connected through relays that can be cut. One file, because all tests share
//! the relays.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WORKERS: usize = 8;
/// Short timeouts, so that failures are detected quickly.
const NETWORK: &str = "heartbeat_seconds = 0.1\nfailure_timeout_seconds = 1.0\nmessage_timeout_seconds = 10.0\n\
                       startup_timeout_seconds = 20.0\n";

/// Forwards bytes between two peers until it is cut.
struct Relay {
    address: SocketAddr,
    cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(AtomicBool::new(false));
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (is_cut, streams) = (Arc::clone(&cut), Arc::clone(&open));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else {
                    continue;
                };
                streams.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || forward(from, to));
                }
            }
        });
        Self { address, cut, open }
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn restore(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    to.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Eight peers. Each connects to the others through its own relays.
struct Cluster {
    folder: tempfile::TempDir,
    relays: Vec<Vec<Option<Relay>>>,
    children: Vec<Option<Child>>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Cluster {
    fn new(config: &str, network: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        let mut keys = Vec::new();
        let mut addresses = Vec::new();
        // Ports below the ephemeral range, so that the system does not assign one to an outgoing connection first.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let start = std::process::id().wrapping_mul(97);
        let ports = std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed));
        let reserved: Vec<TcpListener> = ports
            .map(|next| 10_000 + start.wrapping_add(next) % 22_000)
            .filter_map(|port| TcpListener::bind(("127.0.0.1", port as u16)).ok())
            .take(WORKERS)
            .collect();
        for (worker, listener) in reserved.iter().enumerate() {
            let file = here.join(format!("{worker}.key"));
            let output = common::said(here, &["keys", "new", file.to_str().unwrap()]);
            keys.push(output.trim().to_owned());
            addresses.push(listener.local_addr().unwrap());
        }
        let mut relays = Vec::new();
        for from in 0..WORKERS {
            // Of two peers, the one with the lower number connects.
            let relay = |to: usize| (to > from).then(|| Relay::new(addresses[to]));
            let own: Vec<Option<Relay>> = (0..WORKERS).map(relay).collect();
            let mut text = format!("{config}\n[network]\n{network}\n");
            for (to, relay) in own.iter().enumerate() {
                let address = relay.as_ref().map_or(addresses[to], |relay| relay.address);
                text += &format!("[[network.peers]]\naddress = \"{address}\"\nkey = \"{}\"\n", keys[to]);
            }
            std::fs::write(here.join(format!("{from}.toml")), text).unwrap();
            relays.push(own);
        }
        drop(reserved);
        // A child process of another test may hold the sockets for a moment longer.
        let deadline = Instant::now() + Duration::from_secs(10);
        for address in addresses {
            while TcpStream::connect(address).is_ok() {
                assert!(Instant::now() < deadline, "{address} is not free");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let children = (0..WORKERS).map(|_| None).collect();
        Self { folder, relays, children }
    }

    fn start(&mut self, worker: usize) {
        let here = self.folder.path();
        let log = std::fs::File::options().create(true).append(true).open(here.join(format!("{worker}.log"))).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_upwash"))
            .current_dir(here)
            .args(["peer", &format!("{worker}.toml"), "--id", &worker.to_string()])
            .args(["--key", &format!("{worker}.key"), "--out", &format!("out-{worker}")])
            .args(["--threads", "1"])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn();
        self.children[worker] = Some(child.unwrap());
    }

    fn start_all(&mut self) {
        (0..WORKERS).for_each(|worker| self.start(worker));
    }

    fn kill(&mut self, worker: usize) {
        let mut child = self.children[worker].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn signal(&self, worker: usize, signal: &str) {
        let id = self.children[worker].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Interrupts a worker and waits for its exit.
    fn interrupt(&mut self, worker: usize) {
        self.signal(worker, "-INT");
        assert_eq!(self.exit_code(worker), Some(130), "{}", self.log(worker));
    }

    /// Waits for the exit code of a worker, with a timeout.
    fn exit_code(&mut self, worker: usize) -> Option<i32> {
        let mut child = self.children[worker].take().unwrap();
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > Duration::from_secs(60) {
                let _ = child.kill();
                panic!("worker {worker} hangs:\n{}", self.log(worker));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait().unwrap().code()
    }

    fn out(&self, worker: usize) -> PathBuf {
        self.folder.path().join(format!("out-{worker}"))
    }

    fn events(&self, worker: usize) -> Vec<Value> {
        let text = std::fs::read_to_string(self.out(worker).join("events.jsonl"));
        let text = text.unwrap_or_default();
        // The last line may be incomplete.
        let lines = text.lines();
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The last epoch that a worker completed.
    fn epoch(&self, worker: usize) -> u64 {
        let events = self.events(worker);
        let epochs = events.iter().rev().filter_map(|event| event["epoch"].as_u64());
        epochs.max().unwrap_or(0)
    }

    fn wait_for_epoch(&self, worker: usize, epoch: u64) {
        let began = Instant::now();
        while self.epoch(worker) < epoch {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "worker {worker} does not get to epoch {epoch}:\n{}",
                self.log(worker)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log(&self, worker: usize) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{worker}.log"))).unwrap_or_default()
    }

    /// Waits for all workers to succeed, with a timeout.
    fn finish(&mut self) {
        let began = Instant::now();
        for worker in 0..WORKERS {
            let Some(mut child) = self.children[worker].take() else {
                continue;
            };
            while child.try_wait().unwrap().is_none() {
                if began.elapsed() > Duration::from_secs(120) {
                    let _ = child.kill();
                    panic!("worker {worker} hangs:\n{}", self.log(worker));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let status = child.wait().unwrap();
            assert!(status.success(), "worker {worker}: {status}\n{}", self.log(worker));
        }
    }

    fn accuracy(&self, worker: usize) -> f64 {
        let text = std::fs::read_to_string(self.out(worker).join("summary.json")).unwrap();
        let summary: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(summary["status"], "finished", "worker {worker}");
        summary["mean_accuracy"].as_f64().unwrap()
    }

    /// Whether a worker has recorded this membership change of another.
    fn has_change(&self, worker: usize, change: &str, of: usize) -> bool {
        let events = self.events(worker);
        let mut changes = events.iter().filter(|event| event["change"] == change);
        changes.any(|event| event["worker"] == of)
    }
}

/// The mean accuracy of the same run without failures.
fn undisturbed(config: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c.toml"), config).unwrap();
    common::said(folder.path(), &["train", "c.toml", "--out", "one"]);
    let text = std::fs::read_to_string(folder.path().join("one/summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    summary["mean_accuracy"].as_f64().unwrap()
}

/// Every worker must be about as accurate as without failures.
fn check_accuracies(cluster: &Cluster, config: &str) {
    let known = undisturbed(config);
    for worker in 0..WORKERS {
        let found = cluster.accuracy(worker);
        assert!(found > known - 0.02, "worker {worker}: {found} instead of {known}");
    }
}

/// A run that is far from converged at the end, so that rounds that were not run show.
const LONG: &str = "[training]\nepochs = 400\nlearning_rate = 0.0004\nmomentum = 0.0\ndecay = \"cosine\"\n\
                    checkpoint_every = 50\n";

#[test]
fn twenty_kills_do_not_harm_accuracy() {
    let config = &LONG.replace("400", "800");
    let mut cluster = Cluster::new(config, NETWORK);
    cluster.start_all();
    let mut random = 12345u64;
    for kill in 0..20 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let worker = (random >> 33) as usize % WORKERS;
        let other = (worker + 1) % WORKERS;
        let epoch = cluster.epoch(other);
        cluster.wait_for_epoch(other, epoch + 1 + (random >> 50) % 3);
        cluster.kill(worker);
        if kill % 2 == 1 {
            std::fs::remove_dir_all(cluster.out(worker)).unwrap();
        }
        cluster.start(worker);
    }
    assert!(cluster.epoch(0) < 800, "the run ended too early");
    cluster.finish();
    check_accuracies(&cluster, config);
}

#[test]
fn peers_continue_without_lost_and_stalled_workers() {
    let mut cluster = Cluster::new(LONG, NETWORK);
    cluster.start_all();
    cluster.wait_for_epoch(0, 5);
    // Worker 3 stalls and comes back; worker 5 is killed for good.
    cluster.signal(3, "-STOP");
    cluster.kill(5);
    let began = Instant::now();
    while !cluster.has_change(1, "lost", 3) || !cluster.has_change(1, "lost", 5) {
        assert!(began.elapsed() < Duration::from_secs(30), "{}", cluster.log(1));
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = upwash_status(&cluster);
    assert!(status.contains("3  not reachable: no answer"), "{status}");
    assert!(status.contains("5  not reachable"), "{status}");
    cluster.signal(3, "-CONT");
    cluster.finish();
    let known = undisturbed(LONG);
    for worker in (0..WORKERS).filter(|&worker| worker != 5) {
        let found = cluster.accuracy(worker);
        assert!(found > known - 0.02, "worker {worker}: {found} instead of {known}");
    }
    assert!(cluster.has_change(1, "joined", 3));
}

fn upwash_status(cluster: &Cluster) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upwash"));
    command.current_dir(cluster.folder.path()).args(["status", "0.toml", "--key", "0.key"]);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn cut_links_and_network_partitions_recover() {
    let mut cluster = Cluster::new(LONG, NETWORK);
    cluster.start_all();
    cluster.wait_for_epoch(0, 5);
    let cut = |a: usize, b: usize| cluster.relays[a.min(b)][a.max(b)].as_ref().unwrap();
    cut(1, 3).cut();
    cluster.wait_for_epoch(0, 10);
    let halves = |part: &dyn Fn(&Relay)| {
        for a in 0..4 {
            (4..8).for_each(|b| part(cut(a, b)));
        }
    };
    halves(&Relay::cut);
    let epoch = cluster.epoch(0).max(cluster.epoch(7));
    // Both halves continue to train.
    cluster.wait_for_epoch(0, epoch + 10);
    cluster.wait_for_epoch(7, epoch + 10);
    halves(&Relay::restore);
    cut(1, 3).restore();
    cluster.finish();
    check_accuracies(&cluster, LONG);
    assert!(cluster.has_change(0, "lost", 7) && cluster.has_change(3, "lost", 1));
    let joined = |worker: usize, of: usize| {
        let events = cluster.events(worker);
        let joined = events.iter().filter(|e| e["change"] == "joined" && e["worker"] == of);
        joined.count()
    };
    assert!(joined(0, 7) >= 2 && joined(3, 1) >= 2, "the peers did not reconnect");
}

#[test]
fn all_peers_resume_from_their_checkpoints() {
    let mut cluster = Cluster::new(LONG, NETWORK);
    cluster.start_all();
    for worker in 0..WORKERS {
        cluster.wait_for_epoch(worker, 20);
        cluster.kill(worker);
    }
    cluster.start_all();
    cluster.finish();
    check_accuracies(&cluster, LONG);
    for worker in 0..WORKERS {
        let started = cluster.events(worker);
        let started = started.iter().filter(|event| event["event"] == "started");
        let last = started.filter_map(|event| event["round"].as_u64()).max();
        assert!(last.unwrap() >= 50, "worker {worker} started from round 0");
    }
}

/// An asynchronous algorithm continues when one worker is killed and another one stalls.
#[test]
fn asynchronous_workers_do_not_wait_for_others() {
    let config = &format!("[algorithm]\nname = \"ad-psgd\"\n{LONG}");
    let mut cluster = Cluster::new(config, NETWORK);
    cluster.start_all();
    cluster.wait_for_epoch(0, 5);
    cluster.kill(3);
    cluster.signal(6, "-STOP");
    cluster.wait_for_epoch(1, cluster.epoch(1) + 20);
    cluster.signal(6, "-CONT");
    cluster.finish();
    let known = undisturbed(config);
    for worker in (0..WORKERS).filter(|&worker| worker != 3) {
        let found = cluster.accuracy(worker);
        assert!(found > known - 0.02, "worker {worker}: {found} instead of {known}");
    }
}

/// A server accepts a worker that was stopped and returns, and continues without one that does not.
#[test]
fn server_accepts_returning_workers() {
    let config = &format!("[graph]\ntopology = \"star:8\"\n[algorithm]\nname = \"async-easgd\"\nperiod = 7\n{LONG}");
    let mut cluster = Cluster::new(config, NETWORK);
    cluster.start_all();
    cluster.wait_for_epoch(1, 5);
    cluster.kill(3);
    cluster.interrupt(2);
    cluster.wait_for_epoch(1, cluster.epoch(1) + 5);
    cluster.start(2);
    cluster.finish();
    // The gradients of worker 3 are missing.
    let known = undisturbed(config) - 0.02;
    for worker in [1, 2, 4, 5, 6, 7] {
        let found = cluster.accuracy(worker);
        assert!(found > known - 0.02, "worker {worker}: {found} instead of {known}");
    }
    let summary = common::summary(&cluster.out(0));
    assert_eq!(summary["status"], "finished");
    let found = summary["averaged_model_accuracy"].as_f64().unwrap();
    assert!(found > known - 0.02, "the server: {found} instead of {known}");
    assert_eq!(cluster.epoch(0), 400, "the server has the epochs of the workers");
    let started = cluster.events(2);
    let started = started.iter().filter(|event| event["event"] == "started");
    assert!(started.filter_map(|event| event["round"].as_u64()).max().unwrap() > 0);
}

/// A server to which no worker connects ends as interrupted, not as finished.
#[test]
fn server_without_workers_does_not_finish() {
    let config = "[graph]\ntopology = \"star:8\"\n[algorithm]\nname = \"downpour\"\n[training]\nepochs = 3\n";
    let hasty = "heartbeat_seconds = 0.1\nfailure_timeout_seconds = 0.4\nmessage_timeout_seconds = 0.5\nstartup_timeout_seconds = 0.1\n";
    let mut cluster = Cluster::new(config, hasty);
    cluster.start(0);
    assert_eq!(cluster.exit_code(0), Some(130));
    assert_eq!(common::summary(&cluster.out(0))["status"], "interrupted");
    for worker in 0..WORKERS {
        let path = cluster.folder.path().join(format!("{worker}.toml"));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(hasty, NETWORK)).unwrap();
    }
    cluster.start_all();
    cluster.finish();
    assert_eq!(common::summary(&cluster.out(0))["status"], "finished");
}

/// An interrupted peer exits while the others continue.
#[test]
fn single_peer_can_be_stopped() {
    let config = "[algorithm]\nname = \"ad-psgd\"\n[training]\nepochs = 100\n";
    let mut cluster = Cluster::new(config, NETWORK);
    cluster.start_all();
    cluster.wait_for_epoch(0, 5);
    cluster.interrupt(5);
    cluster.finish();
    assert_eq!(common::summary(&cluster.out(5))["status"], "interrupted");
}

#[test]
fn bf16_halves_the_bytes_sent() {
    let sent = |network: &str| {
        let mut cluster = Cluster::new(LONG, &format!("{NETWORK}{network}"));
        cluster.start_all();
        cluster.finish();
        check_accuracies(&cluster, LONG);
        let text = std::fs::read_to_string(cluster.out(1).join("summary.json")).unwrap();
        let summary: Value = serde_json::from_str(&text).unwrap();
        summary["bytes_sent"].as_f64().unwrap()
    };
    let (whole, half) = (sent(""), sent("precision = \"bf16\"\n"));
    assert!((0.45..0.55).contains(&(half / whole)), "{half} of {whole}");
}

/// Algorithms that do not survive the loss of a worker are refused at the start.
#[test]
fn algorithms_that_need_all_workers_are_refused() {
    for name in ["parameter-server", "easgd", "lsgd"] {
        let config = format!("[graph]\ntopology = \"star:8\"\n[algorithm]\nname = \"{name}\"\n");
        let mut cluster = Cluster::new(&config, NETWORK);
        cluster.start(1);
        assert_eq!(cluster.exit_code(1), Some(2), "{name}");
        let said = cluster.log(1);
        let remedy = "cannot go on when a worker is lost, as peers may be: choose an algorithm that can, such as dpsgd";
        assert!(said.contains(remedy), "{name}: {said}");
    }
}

/// A second process with the key of a worker is refused while the first one runs.
#[test]
fn a_second_process_of_a_worker_is_refused() {
    let mut cluster = Cluster::new("", NETWORK);
    let key = std::fs::File::open(cluster.folder.path().join("1.key")).unwrap();
    key.lock().unwrap();
    cluster.start(1);
    assert_eq!(cluster.exit_code(1), Some(2));
    let said = cluster.log(1);
    assert!(said.contains("another process runs worker 1 with the key 1.key: stop it first"), "{said}");
}

#[test]
fn errors_name_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("c.toml"), "").unwrap();
    let error = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upwash"));
        let output = command.current_dir(here).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    common::said(here, &["keys", "new"]);
    let said = error(&["keys", "new"]);
    assert!(said.contains("upwash.key exists: name another file"), "{said}");
    let said = error(&["peer", "c.toml", "--id", "0"]);
    assert!(said.contains("network.peers lists 0 workers"), "{said}");
    assert!(said.contains("upwash launch -n 8"), "{said}");
    let said = error(&["launch", "-n", "5", "c.toml"]);
    assert!(said.contains("-n 5: the graph `paper:L1` has 8 workers"), "{said}");
    let show = common::said(here, &["keys", "show"]);
    assert!(show.starts_with("sha256:"), "{show}");
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(here.join("upwash.key"), open).unwrap();
    let said = error(&["keys", "show"]);
    assert!(said.contains("other users can read it (mode 644): run `chmod 600` on it"), "{said}");
    let said = error(&["train", "c.toml", "--set", "network.failure_timeout_seconds=1"]);
    assert!(said.contains("at least three heartbeats"), "{said}");
    let text = "[[network.peers]]\naddress = \"127.0.0.1:1\"\nkey = \"abc\"\n";
    std::fs::write(here.join("k.toml"), text).unwrap();
    let said = error(&["peer", "k.toml", "--id", "0"]);
    assert!(said.contains("worker 0: `abc` is not a fingerprint"), "{said}");
}
