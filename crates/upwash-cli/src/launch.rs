//! `upwash launch`: runs all peers of a run on one machine, with generated keys and addresses.

mod keys;
mod processes;
mod progress;

use crate::configs;
use crate::files;
use crate::resume;
use crate::runs::{DIVERGED, INTERRUPTED, ISOLATED, end_cleanly_when_interrupted, interrupted};
use crate::training_args::TrainingArgs;
use anyhow::{Context, Result, bail, ensure};
use keys::Keys;
use processes::{Launch, Outcome, Processes};
use progress::Progress;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use upwash::experiment::Experiment;
use upwash::run::{Status, Summary, directory};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration; addresses and keys are added to it
    config: PathBuf,
    /// Number of peers; must equal the number of workers of the graph
    #[arg(short = 'n', value_name = "N")]
    count: Option<usize>,
    #[command(flatten)]
    training: TrainingArgs,
    /// The folder for results; an unfinished run in it is continued
    #[arg(long, value_name = "DIR", default_value = "runs/launch")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let overrides = args.training.overrides()?;
    // A launch that is continued need not repeat its overrides.
    let experiment = configs::read(&args.config, &resume::kept(&args.out)?.followed_by(&overrides))?;
    let workers = experiment.workers();
    ensure!(
        args.count.is_none_or(|count| count == workers),
        "-n {}: the graph `{}` has {workers} workers",
        args.count.unwrap_or(0),
        experiment.config.graph.topology
    );
    upwash_peers::check_algorithm(&experiment)?;
    // All peers share the memory of this machine.
    experiment.engine_spec().check_memory_of_processes()?;
    let folder = args.out.display();
    directory::refuse_inside_run(&args.out)?;
    files::make_folder(&args.out)?;
    check_folder(&args.out, &experiment)?;
    // Held until return: of two launches into one folder, the second is refused before it changes anything.
    let lock = lock_folder(&args.out)?;
    refuse_orphans(&args.out, workers)?;
    // When a run is continued, some peers may have finished already.
    let has_ended = |worker: usize| directory::has_ended(&peer_folder(&args.out, worker), &experiment);
    let has_ended: Vec<bool> = (0..workers).map(has_ended).collect();
    if has_ended.iter().all(|ended| *ended) {
        writeln!(out, "the run in {folder} has already ended")?;
        let earlier = (0..workers).map(|_| Outcome::Earlier).collect::<Vec<_>>();
        return table(args, &earlier, out);
    }
    resume::remember(&overrides, &args.out)?;
    let keys = Keys::create(&args.out, workers)?;
    let mut with_peers = experiment.config.clone();
    with_peers.network.peers = keys.peers(workers)?;
    let config = args.out.join("peers.toml");
    files::write(&config, with_peers.to_toml().as_bytes())?;
    end_cleanly_when_interrupted()?;
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let launch = Launch { program, out: &args.out, config, keys: &keys };
    let processes = Processes::start(&launch, &has_ended)?;
    record_processes(&lock, &processes);
    writeln!(
        out,
        "{workers} peers: {} on {}\nto see their state: upwash status {} --key {}",
        experiment.algorithm_name(),
        experiment.graph_name(),
        launch.config.display(),
        keys.file(0).display()
    )?;
    out.flush()?;
    let outcomes = processes.wait(Progress::new(&args.out))?;
    table(args, &outcomes, out)
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
        let other = match worker < experiment.workers() {
            true => directory::other_run(&folder, experiment),
            false => Some(format!("it has a worker {worker}")),
        };
        if let Some(what) = other {
            bail!(
                "{folder_name} holds another run, which differs (see {}): {what}: choose another folder with --out",
                folder.join("config.toml").display()
            );
        }
    }
    Ok(())
}

/// The file that a launch locks, with the identifiers of its processes.
const LOCK_FILE: &str = "launch.lock";

fn lock_folder(out: &Path) -> Result<File> {
    let path = out.join(LOCK_FILE);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = upwash::files::open_regular_with(&mut options, &path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(directory::lock(file, out)?)
}

/// Writes the identifiers of the processes, for the error of a later launch.
fn record_processes(mut lock: &File, processes: &Processes<'_>) {
    let text: String = processes.ids().iter().map(|id| format!("{id}\n")).collect();
    // Only that error would miss them.
    let _ = lock.set_len(0).and_then(|()| lock.write_all(text.as_bytes()));
}

/// Refuses to start peers beside those of an earlier launch, or beside peers that the user started.
fn refuse_orphans(out: &Path, workers: usize) -> Result<()> {
    let running = (0..workers).filter(|worker| directory::is_running(&peer_folder(out, *worker)));
    let running: Vec<String> = running.map(|worker| worker.to_string()).collect();
    if running.is_empty() {
        return Ok(());
    }
    let ids = upwash::files::read_text(&out.join(LOCK_FILE)).unwrap_or_default();
    let ids: Vec<&str> = ids.split_whitespace().filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())).collect();
    let processes = match ids.is_empty() {
        true => String::new(),
        false => format!(" (the earlier launch started the processes {})", ids.join(", ")),
    };
    bail!(
        "peers {} are still running in {}{processes}: if their launch was killed, they stop after their current round; \
         wait until they have ended, or end them",
        running.join(", "),
        out.display()
    )
}

fn peer_folder(out: &Path, worker: usize) -> PathBuf {
    out.join(format!("peer-{worker}"))
}

fn log_file(out: &Path, worker: usize) -> PathBuf {
    out.join(format!("peer-{worker}.log"))
}

/// Prints the results of all peers and returns the exit code.
fn table(args: &Args, outcomes: &[Outcome], out: &mut impl Write) -> Result<ExitCode> {
    writeln!(out, "\n  worker    rounds  test accuracy   sent MB")?;
    let (mut accuracies, mut training, mut finished) = (Vec::new(), 0, 0);
    let (mut diverged, mut isolated) = (false, false);
    let mut stopped = interrupted();
    for (worker, outcome) in outcomes.iter().enumerate() {
        let log = log_file(&args.out, worker);
        let code = match outcome {
            Outcome::Earlier | Outcome::Restarted => Some(0),
            Outcome::Exited(status) => status.code(),
        };
        let with_summary = [0, DIVERGED, ISOLATED, INTERRUPTED].map(|code| Some(i32::from(code)));
        let read = || Summary::read(&peer_folder(&args.out, worker));
        let Some(Ok(Some(summary))) = with_summary.contains(&code).then(read) else {
            training += 1;
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
        let is_server = summary.server == Some(worker.into());
        let accuracy = match is_server {
            true => summary.averaged_model_accuracy,
            false => summary.mean_accuracy,
        };
        let accuracy = (!accuracy.is_nan()).then_some(accuracy);
        if !is_server {
            training += 1;
            accuracies.extend(accuracy);
        }
        let accuracy = accuracy.map_or("not tested".into(), |accuracy| format!("{:.2} %", 100.0 * accuracy));
        let note = match summary.status {
            Status::Diverged { round, .. } => {
                diverged = true;
                format!("  diverged in round {round}")
            }
            Status::Isolated { round } => {
                isolated = true;
                format!("  isolated before round {round}")
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
    write_mean(&accuracies, training, out)?;
    writeln!(out, "\nresults are in {}", args.out.display())?;
    Ok(match (stopped, diverged) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (_, true) => ExitCode::from(DIVERGED),
        _ if isolated => ExitCode::from(ISOLATED),
        _ => ExitCode::from(u8::from(finished < outcomes.len())),
    })
}

/// Prints the mean accuracy, and of how many workers it is if it is not the mean of all.
fn write_mean(accuracies: &[f64], training: usize, out: &mut impl Write) -> Result<()> {
    if accuracies.is_empty() {
        return Ok(());
    }
    let mean = 100.0 * accuracies.iter().sum::<f64>() / accuracies.len() as f64;
    let part = match accuracies.len() == training {
        true => String::new(),
        false => format!("          of {} tested workers out of {training}", accuracies.len()),
    };
    Ok(writeln!(out, "    mean{:>10}{:>13.2} %{part}", "", mean)?)
}
