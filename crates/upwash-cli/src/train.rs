//! `upwash train`

use crate::engines::EngineArgs;
use crate::progress::ProgressDisplay;
use crate::runs::{end_cleanly_when_interrupted, exit_code, read_config, stop_handle, use_threads};
use crate::transports::{Job, TransportName};
use crate::watch::{self, DEFAULT_ADDRESS};
use anyhow::Result;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use upwash::experiment::Experiment;
use upwash::run::{RunDirectory, RunLocation, run_in};
use upwash::transport::Transport;
use upwash_report::{shard_table, summary_table};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, TOML; every key has a default
    config: PathBuf,
    /// Replace a value of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    replacements: Vec<String>,
    /// The folder for results, which must not contain a run
    #[arg(long, value_name = "DIR", default_value = "runs/train")]
    out: PathBuf,
    /// Resume the run in that folder from its newest checkpoint
    #[arg(long)]
    resume: bool,
    /// Number of threads; the result does not depend on it [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Do not train: check everything, and print the length of the run and the memory that it needs
    #[arg(long)]
    dry_run: bool,
    /// How workers in several processes communicate: mpi, under mpirun or srun (built with `--features mpi`)
    #[arg(long, value_enum, default_value_t = TransportName::Process)]
    transport: TransportName,
    /// Show the run in a browser while it is going, at 127.0.0.1:8230 or at --watch=ADDRESS
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true,
          default_missing_value = DEFAULT_ADDRESS, value_parser = watch::address)]
    watch: Option<SocketAddr>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let job = Job::join(args.transport)?;
    let result = job.or_end_all(run_in_job(&job, args, out));
    job.leave();
    result
}

fn run_in_job(job: &Job, args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    use_threads(args.threads.map(usize::from).or(job.threads()))?;
    let experiment = read_config(&args.config, &args.replacements)?;
    if args.dry_run {
        return match job.speaks() {
            true => dry_run(args, &experiment, out),
            false => Ok(ExitCode::SUCCESS),
        };
    }
    let mut transport = job.transport(&experiment)?;
    // The transport outlives an error, so that it can close its connections cleanly.
    job.or_end_all(train(job, args, &experiment, &mut *transport, out))
}

fn train(
    job: &Job,
    args: &Args,
    experiment: &Experiment,
    transport: &mut dyn Transport,
    out: &mut impl Write,
) -> Result<ExitCode> {
    let placement = transport.placement().clone();
    let own: Vec<usize> = placement.own().collect();
    let location = RunLocation { placement, is_shared: true };
    let mut engine = args.engine.build(&experiment.engine_spec().only(&own))?;
    let watched = args.watch.filter(|_| job.speaks());
    let place = watched.map(watch::take).transpose()?;
    // From here on the run leaves files behind.
    end_cleanly_when_interrupted()?;
    let mut results = if args.resume {
        RunDirectory::resume(&args.out, experiment, &location)?
    } else {
        RunDirectory::create(&args.out, experiment, &location)?
    };
    // The server runs until the end of this function, so that viewers see how the run ended.
    let _watched = match place {
        Some(place) => Some(watch::show(place, &args.out, &mut std::io::stderr())?),
        None => None,
    };
    if job.speaks() {
        writeln!(out, "{}", shard_table(experiment))?;
        // mpirun holds the output of processes back until lines are complete.
        out.flush()?;
    }
    let mut display = match job.speaks() {
        true => ProgressDisplay::new(true),
        false => ProgressDisplay::none(),
    };
    let summary = run_in(&mut results, experiment, &mut *engine, transport, stop_handle(), &mut display)?;
    if job.speaks() {
        write!(out, "{}", summary_table(&summary))?;
        writeln!(out, "\nresults are in {}", args.out.display())?;
        // Before the other ranks continue: the first one that fails may end the job.
        out.flush()?;
    }
    Ok(exit_code(&summary.status))
}

/// Prints the length and the memory of a run without running it.
fn dry_run(args: &Args, experiment: &Experiment, out: &mut impl Write) -> Result<ExitCode> {
    let parameters = experiment.network.layout().parameter_count();
    writeln!(
        out,
        "{} on {}: {} workers of {parameters} parameters, {} rounds ({} an epoch)",
        experiment.algorithm_name(),
        experiment.graph_name(),
        experiment.workers(),
        experiment.rounds(),
        experiment.sampler.rounds_per_epoch()
    )?;
    for warning in &experiment.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    let parts = args.engine.memory(&experiment.engine_spec())?;
    let all: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    let memory = match args.engine.is_gpu()? {
        true => "the GPU's memory",
        false => "memory",
    };
    writeln!(out, "\nneeds {} of {memory}", size(all))?;
    for (what, bytes) in parts {
        writeln!(out, "  {:>10}  {what}", size(bytes))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a number of bytes.
fn size(bytes: u64) -> String {
    match bytes as f64 / (1u64 << 20) as f64 {
        mebibytes if mebibytes < 1000.0 => format!("{mebibytes:.1} MiB"),
        mebibytes => format!("{:.2} GiB", mebibytes / 1024.0),
    }
}
