//! `upwash train`

use crate::configs;
use crate::engines::EngineArgs;
use crate::files;
use crate::output::{self, note, warning, wrapped};
use crate::progress::ProgressDisplay;
use crate::resume;
use crate::runs::{end_cleanly_when_interrupted, exit_code, stop_handle, use_threads};
use crate::training_args::TrainingArgs;
use crate::transports::{Job, TransportName};
use crate::watch::{self, DEFAULT_ADDRESS};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use upwash::algorithm::Links;
use upwash::experiment::Experiment;
use upwash::memory::display;
use upwash::run::{BestModel, RunDirectory, RunLocation, Status, Summary, directory, run_in};
use upwash::transport::Transport;
use upwash_report::{shard_table, summary_table};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, TOML; every key has a default. - is standard input
    #[arg(required_unless_present = "resume")]
    config: Option<PathBuf>,
    #[command(flatten)]
    training: TrainingArgs,
    /// The folder for results, which must not contain a run
    #[arg(long, value_name = "DIR", default_value = "runs/train")]
    out: PathBuf,
    /// Resume the run in that folder from its newest checkpoint, with its configuration and all that was set
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
    access: watch::Access,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    ensure!(
        args.watch.is_some() || !args.access.no_token,
        "--no-token is for the live page: add --watch, or leave it out"
    );
    let has_input = args.config.as_deref().is_some_and(files::is_stdin);
    ensure!(
        !(args.resume && has_input),
        "--resume reads the configuration of the run: leave out `-`, and give changes with --set"
    );
    ensure!(
        !(args.resume && args.training.starts_from_model()),
        "--resume continues with the models of the run's checkpoint: leave out --from, or start a new run without --resume"
    );
    let job = Job::join(args.transport)?;
    let result = job.or_end_all(run_in_job(&job, args, out));
    job.leave();
    result
}

fn run_in_job(job: &Job, args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    use_threads(args.threads.map(usize::from).or(job.threads()))?;
    let overrides = args.training.overrides()?;
    let experiment = match &args.config {
        Some(config) if !args.resume => configs::read(config, &overrides)?,
        config => resume::prepare(config.as_deref(), &args.out, &overrides)?,
    };
    if args.dry_run {
        return match job.speaks() {
            true => dry_run(args, &experiment, out),
            false => Ok(ExitCode::SUCCESS),
        };
    }
    if args.resume && directory::has_ended(&args.out, &experiment) {
        return show_ended(job, args, out);
    }
    let mut transport = job.transport(&experiment)?;
    // The transport outlives an error, so that it can close its connections cleanly.
    job.or_end_all(train(job, args, &experiment, &mut *transport, out))
}

/// Shows the results of a run that is over, as if it had just ended.
fn show_ended(job: &Job, args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let directory = args.out.display();
    let summary = Summary::read(&args.out)?.with_context(|| format!("{directory} has no summary"))?;
    if job.speaks() {
        writeln!(out, "the run in {directory} has already ended\n")?;
        write_results(&summary, &args.out, out)?;
        if summary.status == Status::Finished {
            note!("to train it for longer: upwash train --resume --out {directory} --epochs N");
        }
    }
    Ok(exit_code(&summary.status))
}

fn write_results(summary: &Summary, directory: &Path, out: &mut impl Write) -> Result<()> {
    write!(out, "{}", summary_table(summary))?;
    if let Some(best) = summary.best {
        let accuracy = 100.0 * best.test_accuracy;
        let file = directory.join(BestModel::FILE);
        writeln!(out, "best averaged model: {accuracy:.2} % after epoch {}, in {}", best.epoch, file.display())?;
    }
    writeln!(out, "\nresults are in {}", directory.display())?;
    Ok(())
}

fn train(
    job: &Job,
    args: &Args,
    experiment: &Experiment,
    transport: &mut dyn Transport,
    out: &mut impl Write,
) -> Result<ExitCode> {
    let placement = transport.placement().clone();
    let own: Vec<_> = placement.own().collect();
    let location = RunLocation { placement, is_shared: true };
    let mut engine = args.engine.build(&experiment.engine_spec().only(&own))?;
    let watched = args.watch.filter(|_| job.speaks());
    let place = watched.map(|address| watch::take(address, &args.access)).transpose()?;
    // From here on the run leaves files behind.
    end_cleanly_when_interrupted()?;
    let mut results = match args.resume {
        true => RunDirectory::resume(&args.out, experiment, &location)?,
        false => RunDirectory::create(&args.out, experiment, &location)?,
    };
    if job.speaks() {
        resume::remember(&args.training.overrides()?, &args.out)?;
        args.engine.note_choice()?;
    }
    // The server runs until the end of this function, so that viewers see how the run ended.
    let _watched = match place {
        Some(place) => Some(watch::show(place, &args.out, &mut std::io::stderr())?),
        None => None,
    };
    if job.speaks() && !output::is_quiet() {
        writeln!(out, "{}", shard_table(experiment))?;
        if let Some(links) = mean_links(experiment) {
            writeln!(out, "{links}\n")?;
        }
        // mpirun holds the output of processes back until lines are complete.
        out.flush()?;
    }
    let mut display = match job.speaks() {
        true => ProgressDisplay::new(true),
        false => ProgressDisplay::none(),
    };
    let summary = run_in(&mut results, experiment, &mut *engine, transport, stop_handle(), &mut display)?;
    if job.speaks() {
        write_results(&summary, &args.out, out)?;
        // Before the other ranks continue: the first one that fails may end the job.
        out.flush()?;
    }
    Ok(exit_code(&summary.status))
}

/// How many links are up in an average round, if not all links of the graph are up in every round.
fn mean_links(experiment: &Experiment) -> Option<String> {
    let settings = &experiment.config.graph;
    let are_of_graph = match experiment.method.links() {
        Links::Configured => {
            use upwash::config::Links::{Alternating, RandomMatching, Released, Whole};
            let links = settings.links.unwrap_or(Whole);
            matches!(links, Whole | Alternating | RandomMatching | Released) && settings.directed_edges.is_none()
        }
        Links::Matcha { .. } => true,
        _ => false,
    };
    let all = experiment.graph.edges().len();
    if !are_of_graph || all == 0 {
        return None;
    }
    let rounds = experiment.rounds().clamp(1, 200);
    let counts = (0..rounds).map(|round| experiment.schedule.round(round).links().len() as f64);
    let mean = counts.sum::<f64>() / rounds as f64;
    (mean != all as f64).then(|| {
        let bytes = 100.0 * mean / all as f64;
        let links = format!(
            "{mean:.2} of the {all} links of the graph are up in an average round, for {bytes:.0} % of the bytes"
        );
        wrapped(&links, 2)
    })
}

/// Prints the length and the memory of a run without running it.
fn dry_run(args: &Args, experiment: &Experiment, out: &mut impl Write) -> Result<ExitCode> {
    let parameters = experiment.network.layout().parameter_count();
    let length = format!(
        "{} on {}: {} workers of {parameters} parameters, {} rounds ({} an epoch)",
        experiment.algorithm_name(),
        experiment.graph_name(),
        experiment.workers(),
        experiment.rounds(),
        experiment.sampler.rounds_per_epoch()
    );
    writeln!(out, "{}", wrapped(&length, 2))?;
    if let Some(links) = mean_links(experiment) {
        writeln!(out, "{links}")?;
    }
    for text in &experiment.warnings {
        writeln!(out, "{}", warning(text))?;
    }
    let parts = args.engine.memory(&experiment.engine_spec())?;
    let all = parts.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let memory = match args.engine.is_gpu()? {
        true => "the GPU's memory",
        false => "memory",
    };
    writeln!(out, "\nneeds {} of {memory}", display(all))?;
    for (what, bytes) in parts {
        writeln!(out, "  {:>10}  {what}", display(bytes))?;
    }
    Ok(ExitCode::SUCCESS)
}
