//! `upwash launch`: all peers of a run on one machine, keys included.

use crate::files;
use crate::runs::{DIVERGED, INTERRUPTED, end_cleanly_when_interrupted, interrupted, read_config};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use upwash::config::PeerConfig;
use upwash::experiment::Experiment;
use upwash::run::{Status, Summary, directory};
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
    files::make_folder(&args.out)?;
    check_folder(&args.out, &experiment)?;
    // For as long as it is open: of two at once, one is refused before it changes anything.
    let lock = files::create(&args.out.join("launch.lock"))?;
    let _lock = directory::lock(lock, &args.out)?;
    // Of a run that goes on, some may have come to their end.
    let over = |worker: usize| directory::is_over(&peer_folder(&args.out, worker));
    if (0..workers).all(over) {
        writeln!(out, "the run in {place} is over")?;
        return table(args, &vec![None; workers], out);
    }
    let config = args.out.join("peers.toml");
    let mut described = experiment.config.clone();
    described.network.peers = peers(&args.out, workers)?;
    files::write(&config, described.to_toml().as_bytes())?;
    end_cleanly_when_interrupted()?;
    let program = std::env::current_exe().context("this program cannot be found")?;
    let mut children = Children(Vec::new());
    for worker in 0..workers {
        children.0.push(match over(worker) {
            true => None,
            false => Some(start(&program, &args.out, &config, worker)?),
        });
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
    let ends = children.wait()?;
    table(args, &ends, out)
}

/// A folder in which this run goes on, or none has begun: what is there of another is not mixed with it.
fn check_folder(out: &Path, experiment: &Experiment) -> Result<()> {
    let place = out.display();
    let other = ["events.jsonl", "config.toml"].map(|name| out.join(name));
    ensure!(
        !other.iter().any(|path| path.exists()),
        "{place} holds a run already, that was not launched: choose another folder with --out"
    );
    for (worker, folder) in directory::peer_directories(out) {
        ensure!(
            worker < experiment.workers() && !directory::holds_another_run(&folder, experiment),
            "{place} holds another run (see {}): choose another folder with --out",
            folder.join("config.toml").display()
        );
    }
    Ok(())
}

fn peer_folder(out: &Path, worker: usize) -> PathBuf {
    out.join(format!("peer-{worker}"))
}

fn key_file(out: &Path, worker: usize) -> PathBuf {
    out.join(format!("peer-{worker}.key"))
}

/// A key for each, and an address on this machine that nobody else uses now.
fn peers(out: &Path, workers: usize) -> Result<Vec<PeerConfig>> {
    // All at once, so that no two are the same; and none that the system gives to whoever calls out,
    // which it could do before a peer listens there.
    let first = std::process::id().wrapping_mul(97) % 22_000;
    let ports = (0..22_000).map(|next| 10_000 + (first + next) % 22_000);
    let free: Vec<_> =
        ports.filter_map(|port| std::net::TcpListener::bind(("127.0.0.1", port as u16)).ok()).take(workers).collect();
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
        Ok(PeerConfig { address: listener.local_addr()?.to_string(), key: key.fingerprint().to_string() })
    };
    free.iter().enumerate().map(peer).collect()
}

fn start(program: &Path, out: &Path, config: &Path, worker: usize) -> Result<Child> {
    let folder = peer_folder(out, worker);
    let log = files::create(&out.join(format!("peer-{worker}.log")))?;
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

/// Those who were started here, by worker.
struct Children(Vec<Option<Child>>);

impl Children {
    /// Waits until all have ended, and says how; who stops this stops them (a terminal tells them itself).
    fn wait(&mut self) -> Result<Vec<Option<ExitStatus>>> {
        let mut told = false;
        loop {
            let children = self.0.iter_mut().flatten();
            let ends: std::io::Result<Vec<_>> = children.map(Child::try_wait).collect();
            if ends?.iter().all(Option::is_some) {
                break;
            }
            if interrupted() && !std::mem::replace(&mut told, true) {
                self.ask_to_end();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let children = self.0.iter_mut();
        let ends = children.map(|child| child.as_mut().map(Child::wait).transpose());
        Ok(ends.collect::<std::io::Result<_>>()?)
    }

    /// Those who are there yet. They leave a checkpoint.
    fn ask_to_end(&mut self) {
        let children = self.0.iter_mut().flatten();
        let there = children.filter_map(|child| match child.try_wait() {
            Ok(None) => Some(child.id().to_string()),
            _ => None,
        });
        // All at once: a terminal may have told them just before, and twice is in a hurry.
        let there: Vec<String> = there.collect();
        if !there.is_empty() {
            let _ = Command::new("kill").args(there).status();
        }
    }
}

impl Drop for Children {
    /// Where something went wrong here, nobody goes on unseen.
    fn drop(&mut self) {
        self.ask_to_end();
        let deadline = Instant::now() + Duration::from_secs(10);
        for child in self.0.iter_mut().flatten() {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What each of them came to: how it ended here, or that it had ended before.
fn table(args: &Args, ends: &[Option<ExitStatus>], out: &mut impl Write) -> Result<ExitCode> {
    writeln!(out, "\n  worker    rounds  test accuracy   sent MB")?;
    let (mut accuracies, mut finished, mut diverged) = (Vec::new(), 0, false);
    let mut stopped = interrupted();
    for (worker, end) in ends.iter().enumerate() {
        let log = args.out.join(format!("peer-{worker}.log"));
        let code = end.map_or(Some(0), |end| end.code());
        let told = [0, DIVERGED, INTERRUPTED].map(|code| Some(i32::from(code)));
        let read = || Summary::read(&peer_folder(&args.out, worker));
        let Some(Ok(Some(summary))) = told.contains(&code).then(read) else {
            let how = match code {
                Some(_) => "failed",
                None => "did not end by itself",
            };
            writeln!(out, "  {worker:>6}    {how}: see {}", log.display())?;
            continue;
        };
        finished += usize::from(summary.status == Status::Finished);
        stopped |= matches!(summary.status, Status::Interrupted { .. });
        // A server's model is what the run leaves, and no part of the mean.
        let serves = summary.server == Some(worker);
        let accuracy = match serves {
            true => summary.averaged_model_accuracy,
            false => summary.mean_accuracy,
        };
        let accuracy = (!accuracy.is_nan()).then_some(accuracy);
        if !serves {
            accuracies.extend(accuracy);
        }
        let accuracy = accuracy.map_or("not tested".into(), |part| format!("{:.2} %", 100.0 * part));
        let note = match summary.status {
            Status::Diverged { round, .. } => {
                diverged = true;
                format!("  diverged in round {round}")
            }
            _ if serves => "  the server".into(),
            _ => String::new(),
        };
        writeln!(
            out,
            "  {worker:>6}{:>10}{accuracy:>15}{:>10.1}{note}",
            summary.rounds,
            summary.sent.bytes_sent as f64 / 1e6
        )?;
    }
    if !accuracies.is_empty() {
        let mean = 100.0 * accuracies.iter().sum::<f64>() / accuracies.len() as f64;
        writeln!(out, "     AVG{:>10}{:>13.2} %", "", mean)?;
    }
    writeln!(out, "\nresults are in {}", args.out.display())?;
    Ok(match (stopped, diverged) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (_, true) => ExitCode::from(DIVERGED),
        _ => ExitCode::from(u8::from(finished < ends.len())),
    })
}
