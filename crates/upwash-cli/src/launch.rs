//! `upwash launch`: all peers of a run on one machine, keys included.

use crate::runs::{end_cleanly_when_interrupted, interrupted, read_config};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use upwash::config::PeerConfig;
use upwash_peers::Key;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration; addresses and keys are added to it
    config: PathBuf,
    /// How many peers: as many as the graph has workers
    #[arg(short = 'n', value_name = "N")]
    count: Option<usize>,
    /// Replace a value of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    replacements: Vec<String>,
    /// The folder for results; a run that is in it goes on
    #[arg(long, value_name = "DIR", default_value = "runs/launch")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let experiment = read_config(&args.config, &args.replacements)?;
    let workers = experiment.workers();
    ensure!(
        args.count.is_none_or(|count| count == workers),
        "-n {}: the graph `{}` has {workers} workers",
        args.count.unwrap_or(0),
        experiment.config.graph.topology
    );
    let place = args.out.display();
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make {place}"))?;
    let config = args.out.join("peers.toml");
    let mut described = experiment.config.clone();
    described.network.peers = peers(&args.out, workers)?;
    crate::files::write(&config, described.to_toml().as_bytes())?;
    end_cleanly_when_interrupted()?;
    let program = std::env::current_exe().context("this program cannot be found")?;
    let mut children = Vec::new();
    for worker in 0..workers {
        children.push(start(&program, &args.out, &config, worker)?);
    }
    writeln!(
        out,
        "{workers} peers: {} on {}\nhow they are: upwash status {} --key {}",
        experiment.algorithm_name(),
        experiment.graph_name(),
        config.display(),
        key_file(&args.out, 0).display()
    )?;
    out.flush()?;
    wait(&mut children)?;
    table(args, workers, out)
}

fn key_file(out: &Path, worker: usize) -> PathBuf {
    out.join(format!("peer-{worker}.key"))
}

/// A key for each, and an address on this machine that nobody else uses now.
fn peers(out: &Path, workers: usize) -> Result<Vec<PeerConfig>> {
    // All at once, so that no two are the same; and none that the system gives to whoever calls out,
    // which it could do before a peer listens there.
    let first = 10_000 + std::process::id() % 20_000;
    let ports = (0..22_000).map(|next| 10_000 + (first + next) % 22_000);
    let free: Vec<_> = ports
        .filter_map(|port| std::net::TcpListener::bind(("127.0.0.1", port as u16)).ok())
        .take(workers)
        .collect();
    ensure!(free.len() == workers, "no free ports on this machine");
    let peer = |(worker, listener): (usize, &std::net::TcpListener)| {
        let file = key_file(out, worker);
        let key = match file.exists() {
            true => Key::load(&file)?,
            false => {
                let key = Key::generate();
                key.save(&file)?;
                key
            }
        };
        Ok(PeerConfig {
            address: listener.local_addr()?.to_string(),
            key: key.fingerprint().to_string(),
        })
    };
    free.iter().enumerate().map(peer).collect()
}

fn start(program: &Path, out: &Path, config: &Path, worker: usize) -> Result<Child> {
    let folder = out.join(format!("peer-{worker}"));
    let log = out.join(format!("peer-{worker}.log"));
    let log =
        std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    Command::new(program)
        .arg("peer")
        .arg(config)
        .args(["--id", &worker.to_string(), "--threads", "1", "--key"])
        .arg(key_file(out, worker))
        .arg("--out")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// Until all have ended; who stops this stops them (a terminal tells them itself).
fn wait(children: &mut [Child]) -> Result<()> {
    let mut told = false;
    loop {
        let mut running = 0;
        for child in children.iter_mut() {
            running += usize::from(child.try_wait()?.is_none());
        }
        if running == 0 {
            return Ok(());
        }
        if interrupted() && !std::mem::replace(&mut told, true) {
            for child in children.iter_mut() {
                if child.try_wait()?.is_none() {
                    // Only those that were started here.
                    let _ = Command::new("kill").arg(child.id().to_string()).status();
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What each of them came to.
fn table(args: &Args, workers: usize, out: &mut impl Write) -> Result<ExitCode> {
    writeln!(out, "\n  worker    rounds  test accuracy   sent MB")?;
    let (mut accuracies, mut ended, mut stopped) = (Vec::new(), 0, interrupted());
    for worker in 0..workers {
        let path = args.out.join(format!("peer-{worker}/summary.json"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let summary: Value = serde_json::from_str(&text).unwrap_or_default();
        if summary.is_null() {
            let log = args.out.join(format!("peer-{worker}.log"));
            writeln!(
                out,
                "  {worker:>6}    did not end by itself: see {}",
                log.display()
            )?;
            continue;
        }
        ended += usize::from(summary["status"] == "finished");
        stopped |= summary["status"] == "interrupted";
        let accuracy = summary["mean_accuracy"].as_f64();
        accuracies.extend(accuracy);
        let accuracy =
            accuracy.map_or("not tested".into(), |part| format!("{:.2} %", 100.0 * part));
        writeln!(
            out,
            "  {worker:>6}{:>10}{accuracy:>15}{:>10.1}",
            summary["rounds"].as_u64().unwrap_or(0),
            summary["bytes_sent"].as_f64().unwrap_or(0.0) / 1e6
        )?;
    }
    if !accuracies.is_empty() {
        let mean = 100.0 * accuracies.iter().sum::<f64>() / accuracies.len() as f64;
        writeln!(out, "     AVG{:>10}{:>13.2} %", "", mean)?;
    }
    writeln!(out, "\nresults are in {}", args.out.display())?;
    Ok(match (stopped, ended == workers) {
        (true, _) => ExitCode::from(130),
        (_, true) => ExitCode::SUCCESS,
        (_, false) => ExitCode::from(1),
    })
}
