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
use upwash::run::{RunDirectory, RunLocation, Status, Summary, run_in};
use upwash::transport::Transport;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, TOML; every key has a default
    config: PathBuf,
    /// Replace a value of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    replacements: Vec<String>,
    /// The folder for results, which must not hold a run already
    #[arg(long, value_name = "DIR", default_value = "runs/train")]
    out: PathBuf,
    /// Go on with the run in that folder from its newest checkpoint
    #[arg(long)]
    resume: bool,
    /// Use so many threads; the result does not depend on it [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Do not train: check everything, and say how long a run is and how much memory it will need
    #[arg(long)]
    dry_run: bool,
    /// How workers in several processes talk: mpi, under mpirun or srun (built with `--features mpi`)
    #[arg(long, value_enum, default_value_t = TransportName::Process)]
    transport: TransportName,
    /// Show the run in a browser while it goes on, at 127.0.0.1:8230 or at --watch=ADDRESS
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
    // The transport is still there when something went wrong: its end is to say goodbye in peace.
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
    // From now on something is left behind.
    end_cleanly_when_interrupted()?;
    let mut results = if args.resume {
        RunDirectory::resume(&args.out, experiment, &location)?
    } else {
        RunDirectory::create(&args.out, experiment, &location)?
    };
    // As long as it is there, the run can be watched; then those who do are told how it ended.
    let _watched = match place {
        Some(place) => Some(watch::show(place, &args.out, &mut std::io::stderr())?),
        None => None,
    };
    if job.speaks() {
        shares(out, experiment)?;
        // Output of several processes is held back until it is complete.
        out.flush()?;
    }
    let mut display = match job.speaks() {
        true => ProgressDisplay::new(true),
        false => ProgressDisplay::none(),
    };
    let summary = run_in(&mut results, experiment, &mut *engine, transport, stop_handle(), &mut display)?;
    if job.speaks() {
        table(out, &summary)?;
        writeln!(out, "\nresults are in {}", args.out.display())?;
        // Before the others are let go: the first that ends badly may end all.
        out.flush()?;
    }
    Ok(exit_code(&summary.status))
}

/// What a run would be.
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
    writeln!(out, "\n{} of {memory}", size(all))?;
    for (what, bytes) in parts {
        writeln!(out, "  {:>10}  {what}", size(bytes))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Bytes, for people.
fn size(bytes: u64) -> String {
    match bytes as f64 / (1u64 << 20) as f64 {
        mebibytes if mebibytes < 1000.0 => format!("{mebibytes:.1} MiB"),
        mebibytes => format!("{:.2} GiB", mebibytes / 1024.0),
    }
}

/// Who trains on how many images of which class.
fn shares(out: &mut impl Write, experiment: &Experiment) -> Result<()> {
    const MOST: usize = 16;
    let (data, shares) = (&experiment.data, experiment.sampler.shards());
    let (partition, images) = (experiment.config.data.partition, data.train.len());
    writeln!(out, "{}: {images} images, shared out by `{partition}`\n", data.name)?;
    let counts = shares.class_counts(&data.train, data.classes);
    let (each_class, classes) = (data.classes <= 10, 0..data.classes);
    match each_class {
        true => {
            let classes: String = classes.map(|class| format!("{class:>6}")).collect();
            writeln!(out, "  worker{classes}   all")?;
        }
        false => writeln!(out, "  worker  images  classes  largest class")?,
    }
    for (worker, counts) in counts.iter().enumerate().take(MOST) {
        let images: usize = counts.iter().sum();
        if each_class {
            let cells: String = counts.iter().map(|count| format!("{count:>6}")).collect();
            writeln!(out, "  {worker:>6}{cells}{images:>6}")?;
            continue;
        }
        let classes = counts.iter().filter(|&&count| count > 0).count();
        let largest = counts.iter().max().copied().unwrap_or(0);
        writeln!(out, "  {worker:>6}{images:>8}{classes:>9}{largest:>15}")?;
    }
    if counts.len() > MOST {
        writeln!(out, "  ... and {} more", counts.len() - MOST)?;
    }
    let unused = images - shares.images.iter().map(Vec::len).sum::<usize>();
    if unused > 0 {
        writeln!(out, "  {unused} images are left out, so that all have the same")?;
    }
    Ok(writeln!(out)?)
}

/// The paper's form: a row for each worker, then their mean and the averaged model.
pub(crate) fn table(out: &mut impl Write, summary: &Summary) -> Result<()> {
    writeln!(out, "{} on {}, {} rounds", summary.algorithm, summary.graph, summary.rounds)?;
    match summary.status {
        Status::Finished => {}
        Status::Diverged { worker, round } => {
            writeln!(
                out,
                "diverged: the loss of worker {worker} is lost in round {round}; the models as they were \
                 are in diverged.upwash"
            )?;
        }
        Status::Interrupted { round } => {
            writeln!(out, "interrupted before round {round}; --resume goes on from there")?;
        }
    }
    let asked = summary.per_worker.iter().any(|worker| worker.local_train_loss.is_some());
    let share = if asked { "  share loss" } else { "" };
    writeln!(out, "\n  node  train loss{share}  test accuracy")?;
    let column = |loss: Option<f64>| loss.map_or(String::new(), |loss| format!("  {loss:>10.4}"));
    let mut line = |name: &str, train_loss: f64, local_loss: Option<f64>, accuracy: f64| {
        let (share, percent) = (column(local_loss), percent(accuracy));
        writeln!(out, "  {name:>4}  {train_loss:>10.4}{share}  {percent:>14}")
    };
    let training = || summary.training_workers();
    for worker in training() {
        let id = worker.id.to_string();
        let losses = (worker.train_loss, worker.local_train_loss);
        line(&id, losses.0, losses.1, worker.test_accuracy)?;
    }
    let mean = |sum: f64| sum / training().count().max(1) as f64;
    let train_loss = mean(training().map(|worker| worker.train_loss).sum());
    let local_loss: Option<f64> = training().map(|worker| worker.local_train_loss).sum();
    line("AVG", train_loss, local_loss.map(mean), summary.mean_accuracy)?;
    let averaged = percent(summary.averaged_model_accuracy);
    let model = match summary.server {
        Some(_) => "the server's model",
        None => "averaged model",
    };
    writeln!(
        out,
        "\n  {model} {averaged}, consensus distance {:.4}, sent {:.1} MB",
        summary.consensus_distance,
        summary.sent.bytes_sent as f64 / 1e6
    )?;
    writeln!(
        out,
        "  {} messages, {:.1} simulated seconds",
        summary.sent.messages_sent, summary.sent.simulated_seconds
    )?;
    Ok(())
}

/// A part of a whole, where it was measured.
fn percent(part: f64) -> String {
    match part.is_nan() {
        true => "not tested".into(),
        false => format!("{:.2} %", 100.0 * part),
    }
}
