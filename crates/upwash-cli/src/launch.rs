//! `upwash launch`: runs all peers of a run on one machine, with generated keys and addresses.

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
    /// Number of peers; must equal the number of workers of the graph
    #[arg(short = 'n', value_name = "N")]
    count: Option<usize>,
    /// Replace a value of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    replacements: Vec<String>,
    /// The folder for results; an unfinished run in it is continued
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
    let folder = args.out.display();
    files::make_folder(&args.out)?;
    check_folder(&args.out, &experiment)?;
    // Held until return: of two launches into one folder, the second is refused before it changes anything.
    let lock = files::create(&args.out.join("launch.lock"))?;
    let _lock = directory::lock(lock, &args.out)?;
    // When a run is continued, some peers may have finished already.
    let has_ended = |worker: usize| directory::is_over(&peer_folder(&args.out, worker));
    if (0..workers).all(has_ended) {
        writeln!(out, "the run in {folder} has already ended")?;
        return table(args, &vec![None; workers], out);
    }
    let config = args.out.join("peers.toml");
    let mut with_peers = experiment.config.clone();
    with_peers.network.peers = peers(&args.out, workers)?;
    files::write(&config, with_peers.to_toml().as_bytes())?;
    end_cleanly_when_interrupted()?;
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let mut children = Children(Vec::new());
    for worker in 0..workers {
        children.0.push(match has_ended(worker) {
            true => None,
            false => Some(start(&program, &args.out, &config, worker)?),
        });
    }
    writeln!(
        out,
        "{workers} peers: {} on {}\nto see their state: upwash status {} --key {}",
        experiment.algorithm_name(),
        experiment.graph_name(),
        config.display(),
        key_file(&args.out, 0).display()
    )?;
    out.flush()?;
    let statuses = children.wait()?;
    table(args, &statuses, out)
}

/// Checks that the folder is new or holds this run, so that two runs are never mixed.
fn check_folder(out: &Path, experiment: &Experiment) -> Result<()> {
    let folder_name = out.display();
    let other = ["events.jsonl", "config.toml"].map(|name| out.join(name));
    ensure!(
        !other.iter().any(|path| path.exists()),
        "{folder_name} holds a run already that `upwash launch` did not start: choose another folder with --out"
    );
    for (worker, folder) in directory::peer_directories(out) {
        ensure!(
            worker < experiment.workers() && !directory::holds_another_run(&folder, experiment),
            "{folder_name} holds another run (see {}): choose another folder with --out",
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

/// A key and a free local address for each worker. Existing keys are reused.
fn peers(out: &Path, workers: usize) -> Result<Vec<PeerConfig>> {
    // All listeners are open at once, so that the ports differ. The ports lie below the ephemeral range, from which the
    // system could assign one to an outgoing connection before the peer listens.
    let first = std::process::id().wrapping_mul(97) % 22_000;
    let ports = (0..22_000).map(|next| 10_000 + (first + next) % 22_000);
    let free: Vec<_> =
        ports.filter_map(|port| std::net::TcpListener::bind(("127.0.0.1", port as u16)).ok()).take(workers).collect();
    ensure!(free.len() == workers, "fewer than {workers} free ports from 10000 to 31999 on this machine");
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

/// The peer processes by worker; `None` for workers that had already finished.
struct Children(Vec<Option<Child>>);

impl Children {
    /// Waits for all processes and returns their exit statuses. An interrupt of this process is passed on to them,
    /// since only a terminal signals the whole process group.
    fn wait(&mut self) -> Result<Vec<Option<ExitStatus>>> {
        let mut signaled = false;
        loop {
            let children = self.0.iter_mut().flatten();
            let statuses: std::io::Result<Vec<_>> = children.map(Child::try_wait).collect();
            if statuses?.iter().all(Option::is_some) {
                break;
            }
            if interrupted() && !std::mem::replace(&mut signaled, true) {
                self.terminate();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let children = self.0.iter_mut();
        let statuses = children.map(|child| child.as_mut().map(Child::wait).transpose());
        Ok(statuses.collect::<std::io::Result<_>>()?)
    }

    /// Sends SIGTERM to the processes that are still running. They write a checkpoint before they exit.
    fn terminate(&mut self) {
        let children = self.0.iter_mut().flatten();
        let running = children.filter_map(|child| match child.try_wait() {
            Ok(None) => Some(child.id().to_string()),
            _ => None,
        });
        // One `kill` for all, without delay: the terminal may just have signaled them, and two signals within half a
        // second count as one.
        let running: Vec<String> = running.collect();
        if !running.is_empty() {
            let _ = Command::new("kill").args(running).status();
        }
    }
}

impl Drop for Children {
    /// Ends the remaining processes after an error in this one.
    fn drop(&mut self) {
        self.terminate();
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

/// Prints the results of all peers and returns the exit code. `statuses` has `None` for peers that had already
/// finished.
fn table(args: &Args, statuses: &[Option<ExitStatus>], out: &mut impl Write) -> Result<ExitCode> {
    writeln!(out, "\n  worker    rounds  test accuracy   sent MB")?;
    let (mut accuracies, mut finished, mut diverged) = (Vec::new(), 0, false);
    let mut stopped = interrupted();
    for (worker, status) in statuses.iter().enumerate() {
        let log = args.out.join(format!("peer-{worker}.log"));
        let code = status.map_or(Some(0), |status| status.code());
        let with_summary = [0, DIVERGED, INTERRUPTED].map(|code| Some(i32::from(code)));
        let read = || Summary::read(&peer_folder(&args.out, worker));
        let Some(Ok(Some(summary))) = with_summary.contains(&code).then(read) else {
            let outcome = match code {
                Some(_) => "failed",
                None => "was killed",
            };
            writeln!(out, "  {worker:>6}    {outcome}: see {}", log.display())?;
            continue;
        };
        finished += usize::from(summary.status == Status::Finished);
        stopped |= matches!(summary.status, Status::Interrupted { .. });
        // The result of the server is its own model, which does not count in the mean.
        let is_server = summary.server == Some(worker);
        let accuracy = match is_server {
            true => summary.averaged_model_accuracy,
            false => summary.mean_accuracy,
        };
        let accuracy = (!accuracy.is_nan()).then_some(accuracy);
        if !is_server {
            accuracies.extend(accuracy);
        }
        let accuracy = accuracy.map_or("not tested".into(), |accuracy| format!("{:.2} %", 100.0 * accuracy));
        let note = match summary.status {
            Status::Diverged { round, .. } => {
                diverged = true;
                format!("  diverged in round {round}")
            }
            _ if is_server => "  the server".into(),
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
        writeln!(out, "    mean{:>10}{:>13.2} %", "", mean)?;
    }
    writeln!(out, "\nresults are in {}", args.out.display())?;
    Ok(match (stopped, diverged) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (_, true) => ExitCode::from(DIVERGED),
        _ => ExitCode::from(u8::from(finished < statuses.len())),
    })
}
