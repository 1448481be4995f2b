//! How much the live page slows training down: a run without it, and the same run with as many viewers as the page
//! admits, each of which reads every update. Compares the processor time of this process, which varies less than the
//! duration on a machine that does other things; the viewers' own part is included.
#![allow(clippy::unwrap_used)]

use rustix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upwash::{Config, Event, Trainer};
use upwash_watch::{Listener, MAX_VIEWERS};

/// How often each of the two runs is timed.
const REPETITIONS: usize = 5;
const EPOCHS: u64 = 2000;

/// Reads updates until the server ends, and counts them.
fn view(address: SocketAddr, updates: &AtomicU64) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut buffer = [0; 1 << 16];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let lines = buffer[..count].split(|byte| *byte == b'\n');
        updates.fetch_add(lines.filter(|line| line.starts_with(b"event:")).count() as u64, Ordering::Relaxed);
    }
}

/// The processor time of this process so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Trains with this many viewers. Returns the processor time and the updates that each viewer received in a second.
fn train(viewers: usize) -> (Duration, f64) {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("model = \"mlp:64\"\n[training]\nepochs = {EPOCHS}\ntest_every = 50\n");
    let updates = Arc::new(AtomicU64::new(0));
    let (mut server, mut threads) = (None, Vec::new());
    let mut start = |event: &Event| {
        if !matches!(event, Event::Round { round: 0, .. }) || viewers == 0 {
            return;
        }
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let serving = listener.serve(folder.path()).unwrap();
        let address = serving.url().trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        server = Some(serving);
        for _ in 0..viewers {
            let updates = updates.clone();
            threads.push(std::thread::spawn(move || view(address, &updates)));
        }
    };
    let (began, used) = (Instant::now(), processor_time());
    let trainer = Trainer::new(Config::parse(&text, &[]).unwrap()).output(folder.path());
    trainer.observe(&mut start).run().unwrap();
    let duration = began.elapsed();
    let received = updates.load(Ordering::Relaxed) as f64;
    drop(server);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    (processor_time() - used, received / viewers.max(1) as f64 / duration.as_secs_f64())
}

fn main() {
    let mut ratios = Vec::new();
    for _ in 0..REPETITIONS {
        let (alone, _) = train(0);
        let (watched, rate) = train(MAX_VIEWERS);
        let ratio = watched.as_secs_f64() / alone.as_secs_f64();
        println!(
            "{:.2} s alone, {:.2} s with {MAX_VIEWERS} viewers at {rate:.1} updates a second each: {:+.1} %",
            alone.as_secs_f64(),
            watched.as_secs_f64(),
            100.0 * (ratio - 1.0)
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median: {:+.1} %", 100.0 * (ratios[REPETITIONS / 2] - 1.0));
}
