//! `upwash peer`, which trains one worker among peers, and `upwash status`, which shows the state of the peers.

use crate::configs::{self, OverrideArgs};
use crate::engines::EngineArgs;
use crate::keys;
use crate::output::{note, tell};
use crate::progress::ProgressDisplay;
use crate::runs::{end_cleanly_when_interrupted, exit_code, stop_handle, use_threads};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use upwash::config::Overrides;
use upwash::run::{RunDirectory, RunLocation, Status, Summary, run_in};
use upwash::transport::Membership;
use upwash_peers::{Peers, PeersConfig, listed_peers, lock_key, peers_of};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, the same on all machines; its [network] section lists the address and key of every worker
    config: PathBuf,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// The worker to run on this machine
    #[arg(long, value_name = "N")]
    id: usize,
    /// The private key of this worker
    #[arg(long, value_name = "FILE", default_value = "upwash.key")]
    key: PathBuf,
    /// Listen on this address instead of the listed one, for example 0.0.0.0:7400 behind a forwarded port
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The folder for results; an unfinished run in it is continued, if all --set and --unset are given again [default:
    /// runs/peer-N]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Stop when stdin is closed: then the `upwash launch` that started this peer has ended
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// The configuration of the peers
    config: PathBuf,
    /// The private key of any listed worker
    #[arg(long, value_name = "FILE", default_value = "upwash.key")]
    key: PathBuf,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    use_threads(args.threads.map(usize::from))?;
    let experiment = configs::read(&args.config, &args.overrides.overrides())?;
    let workers = peers_of(&experiment)?.len();
    ensure!(args.id < workers, "--id {}: workers are numbered from 0 to {}", args.id, workers - 1);
    let default = PathBuf::from(format!("runs/peer-{}", args.id));
    let folder = args.out.as_deref().unwrap_or(&default);
    let key = keys::load(&args.key)?;
    // Held until return.
    let _lock = lock_key(&args.key, args.id)?;
    let mut engine = args.engine.build(&experiment.engine_spec().only(&[args.id.into()]))?;
    let mut config = PeersConfig::of(&experiment, args.id, key, &mut *engine)?;
    config.listen.clone_from(&args.listen);
    let mut transport = Peers::new(config)?;
    let location = RunLocation { placement: transport.placement().clone(), is_shared: false };
    // Only now: before this point there is nothing to clean up.
    end_cleanly_when_interrupted()?;
    if args.until_stdin_closes {
        stop_when_stdin_closes();
    }
    let Some(mut results) = RunDirectory::open(folder, &experiment, &location)? else {
        let summary = Summary::read(folder)?.with_context(|| format!("{} has no summary", folder.display()))?;
        note!("the run in {} has already ended", folder.display());
        print_end(args.id, folder, &summary, out)?;
        return Ok(exit_code(&summary.status));
    };
    args.engine.note_choice()?;
    let mut display = ProgressDisplay::new(true);
    let summary = run_in(&mut results, &experiment, &mut *engine, &mut transport, stop_handle(), &mut display)?;
    print_end(args.id, folder, &summary, out)?;
    Ok(exit_code(&summary.status))
}

/// Stops the run when stdin is closed.
fn stop_when_stdin_closes() {
    std::thread::spawn(|| {
        let closed = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        if closed.is_ok() && !stop_handle().is_stopped() {
            tell!("`upwash launch` has ended: stopping");
            stop_handle().stop();
        }
    });
}

/// Prints how the worker's run ended.
fn print_end(worker: usize, folder: &Path, summary: &Summary, out: &mut impl Write) -> Result<()> {
    // The result of a server is its own model, which the summary reports as the averaged model.
    let (role, accuracy) = match summary.server == Some(worker.into()) {
        true => (", the server", 100.0 * summary.averaged_model_accuracy),
        false => ("", 100.0 * summary.mean_accuracy),
    };
    let rounds = rounds(summary);
    match summary.status {
        Status::Finished => writeln!(
            out,
            "worker {worker}{role}: {rounds}, test accuracy {accuracy:.2} %, sent {:.1} MB; results are in {}",
            summary.sent.bytes_sent as f64 / 1e6,
            folder.display()
        )?,
        Status::Diverged { round, .. } => writeln!(out, "worker {worker}: diverged in round {round}")?,
        Status::Interrupted { round } => {
            writeln!(out, "worker {worker}: interrupted before round {round}; run the same command again to continue")?
        }
        Status::Isolated { round } => writeln!(
            out,
            "worker {worker}: isolated before round {round} ({rounds}): no other worker was in reach for \
             network.isolation_seconds; run the same command again to continue, if any other worker still runs"
        )?,
    }
    Ok(())
}

/// The rounds of a run, and how many of them this worker did not run.
fn rounds(summary: &Summary) -> String {
    match &summary.participation {
        None => format!("{} rounds", summary.rounds),
        Some(participation) => participation.to_string(),
    }
}

/// Prints for each peer its round, how far it is behind, its traffic and its connections. The exit code is 1 if a peer
/// does not answer.
pub(crate) fn status(args: &StatusArgs, out: &mut impl Write) -> Result<ExitCode> {
    let config = configs::parse(&args.config, &Overrides::default())?;
    let peers = listed_peers(&config)?;
    ensure!(
        !peers.is_empty(),
        "{} has no network.peers: list the address and key of every worker",
        args.config.display()
    );
    ensure!(
        args.key.exists(),
        "there is no key {}: peers answer to listed keys only, so name the key of any worker with --key",
        args.key.display()
    );
    let key = keys::load(&args.key)?;
    let answers = upwash_peers::status(&key, &peers, Duration::from_secs(5))?;
    let last = answers.iter().flatten().map(|answer| answer.round).max();
    writeln!(out, "  worker  round  behind   sent MB   received MB  connected to")?;
    let mut missing = false;
    for (worker, answer) in answers.iter().enumerate() {
        match answer {
            Ok(answer) => {
                let connected = answer.connected.iter().map(|(other, _)| other.to_string());
                writeln!(
                    out,
                    "  {worker:>6}{:>7}{:>8}{:>10.1}{:>14.1}  {}",
                    answer.round,
                    last.unwrap_or(0) - answer.round,
                    answer.bytes_sent as f64 / 1e6,
                    answer.bytes_received as f64 / 1e6,
                    connected.collect::<Vec<_>>().join(" ")
                )?;
            }
            Err(error) => {
                missing = true;
                writeln!(out, "  {worker:>6}  not reachable: {error}")?;
            }
        }
    }
    Ok(ExitCode::from(u8::from(missing)))
}
