//! The program `upwash`: parses the command line, calls the library, prints what it says.

// A closed stderr is no reason to panic: `tell!` says the same.
#![warn(clippy::print_stderr)]

mod algorithms;
mod batch;
mod compare;
mod config;
mod data;
mod demo;
mod evaluate;
mod init;
mod keys;
mod launch;
mod peer;
mod report;
mod reproduce;
mod resume;
mod seeds;
mod shell;
mod sweep;
mod topology;
mod train;
mod training_args;
mod transports;
mod usage;
mod watch;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;
use upwash_cli::{configs, engines, files, output, parallel, progress, runs};

/// Train neural networks on many workers without a parameter server.
#[derive(Parser)]
#[command(name = "upwash", version, long_version = shell::long_version(), max_term_width = 100,
          after_help = "Examples:
  upwash demo                                         # a few seconds, no download
  upwash init mine.toml                               # a configuration with every key explained
  upwash train mine.toml --out runs/mine
  upwash report runs/mine
  upwash train --help                                 # every command has examples")]
struct Cli {
    /// Print results, warnings and errors only: no progress and no notes
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Print more about every epoch: the range of losses and accuracies, consensus distance, simulated time
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what decentralized training is about, on built-in data, in a few seconds
    #[command(after_help = "Examples:
  upwash demo
  upwash demo --seeds 10 --out runs/demo-of-ten")]
    Demo(demo::Args),
    /// Write a configuration with every key, its meaning and its default, to start from
    #[command(after_help = "Examples:
  upwash init                                         # writes upwash.toml
  upwash init - | less")]
    Init(init::Args),
    /// Train as a configuration says
    #[command(after_help = "Examples:
  upwash train al-dsgd.toml --out runs/first
  upwash train al-dsgd.toml --set training.epochs=5 --set seed=2 --out runs/second
  upwash train --resume --out runs/first              # after Ctrl-C or a crash, with all its settings
  upwash train --resume --out runs/first --epochs 40  # go on where a shorter run ended
  upwash train al-dsgd.toml --from runs/first/model.safetensors --out runs/finetuned
  sed s/mlp:64/cnn/ al-dsgd.toml | upwash train - --out runs/cnn
  upwash train al-dsgd.toml --watch                   # and open the address that it prints
  upwash train resnet.toml --device cuda:0 --dry-run  # how much GPU memory would it need?")]
    Train(train::Args),
    /// Train as several configurations say, and compare the results in one table
    #[command(after_help = "Examples:
  upwash compare dpsgd.toml al-dsgd.toml --out runs/both
  upwash compare dpsgd.toml al-dsgd.toml --out runs/both --seeds 5
  upwash compare *.toml --device cuda:0 --parallel-runs")]
    Compare(compare::Args),
    /// Train with all combinations of some values, and print a table
    #[command(after_help = "Examples:
  upwash sweep al-dsgd.toml --grid training.learning_rate=0.05,0.1,0.2 --grid graph.copies=1,3 --seeds 3
  upwash sweep al-dsgd.toml --grid training.learning_rate=0.05,0.1 --parallel-runs 4 --out runs/rates")]
    Sweep(sweep::Args),
    /// Classify data with a trained model: accuracy, loss, confusion matrix
    #[command(after_help = "Examples:
  upwash evaluate runs/first
  upwash evaluate runs/first/model.safetensors --data images:photos --split all")]
    Evaluate(evaluate::Args),
    /// Run the AL-DSGD paper's experiments, and show its numbers beside ours (calls upwash-reproduce)
    #[command(disable_help_flag = true)]
    Reproduce(reproduce::Args),
    /// Write a page about runs: one HTML file that needs nothing else
    #[command(after_help = "Examples:
  upwash report runs/first -o first.html
  upwash report runs/both/* -o both.html
  upwash report runs/both/* --png figures             # charts as PNG and SVG")]
    Report(report::ReportArgs),
    /// Show a run in a browser while it is going, with buttons to pause, checkpoint and stop it
    #[command(after_help = "Examples:
  upwash watch runs/first                             # on this machine
  upwash watch runs/first --listen 0.0.0.0:8230       # for other machines: prints an address with a token")]
    Watch(watch::Args),
    /// Print a run's results and its losses over time, or list the runs in a folder
    #[command(after_help = "Examples:
  upwash show runs/first
  upwash show runs                                    # lists the runs in it")]
    Show(report::ShowArgs),
    /// Write runs as CSV, or for TensorBoard
    #[command(after_help = "Examples:
  upwash export runs/first --csv first.csv
  upwash export runs/both/* --tensorboard tb")]
    Export(report::ExportArgs),
    /// Train as one worker among peers on other machines, which may come and go
    #[command(after_help = "Examples:
  upwash keys new worker-0.key                        # once on each machine
  upwash peer peers.toml --id 0 --key worker-0.key")]
    Peer(peer::Args),
    /// Run all peers of a configuration on this machine, with keys and addresses made for them
    #[command(after_help = "Example:
  upwash launch -n 8 al-dsgd.toml --out runs/peers")]
    Launch(launch::Args),
    /// Show which of a configuration's peers are up, at which round, and what they have sent
    #[command(after_help = "Example:
  upwash status peers.toml --key worker-0.key")]
    Status(peer::StatusArgs),
    /// Make and show the keys that identify peers
    #[command(after_help = "Examples:
  upwash keys new worker-0.key
  upwash keys show worker-0.key")]
    #[command(subcommand)]
    Keys(keys::Command),
    /// List the algorithms with their papers, properties and options
    #[command(after_help = "Examples:
  upwash algorithms
  upwash algorithms choco")]
    Algorithms(algorithms::Args),
    /// List and get data sets
    #[command(after_help = "Examples:
  upwash data list
  upwash data get cifar10")]
    #[command(subcommand)]
    Data(data::Command),
    /// List, analyze, draw and optimize graphs of workers
    #[command(after_help = "Examples:
  upwash topology list
  upwash topology analyze ring:16")]
    #[command(subcommand)]
    Topology(topology::Command),
    /// Show and check configurations, and print their JSON schema
    #[command(after_help = "Examples:
  upwash config show al-dsgd.toml
  upwash config check configs/*.toml")]
    #[command(subcommand)]
    Config(config::Command),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:
  upwash completions bash > /etc/bash_completion.d/upwash
  upwash completions zsh > ~/.zfunc/_upwash
  upwash completions fish > ~/.config/fish/completions/upwash.fish")]
    Completions(shell::CompletionArgs),
    /// Write the manual pages of all commands into a folder
    #[command(after_help = "Example:
  upwash man ~/.local/share/man/man1")]
    Man(shell::ManArgs),
}

/// Takes `-1` for the value of the option before it and not for an option, so that the error names the option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let allowed = |argument: clap::Arg| match argument.get_action().takes_values() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    };
    command.mut_args(allowed).mut_subcommands(with_negative_numbers)
}

/// Exit codes are in one table, in docs/architecture.md.
fn main() -> ExitCode {
    let command = with_negative_numbers(Cli::command());
    let cli = match command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return usage::print(&error),
    };
    output::set_verbosity(cli.quiet, cli.verbose);
    let mut out = output::Output(std::io::stdout().lock());
    let done = |()| ExitCode::SUCCESS;
    let result = match cli.command {
        Command::Demo(args) => demo::run(&args, &mut out),
        Command::Init(args) => init::run(&args, &mut out).map(done),
        Command::Train(args) => train::run(&args, &mut out),
        Command::Compare(args) => compare::run(&args, &mut out),
        Command::Sweep(args) => sweep::run(&args, &mut out),
        Command::Evaluate(args) => evaluate::run(&args, &mut out).map(done),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Report(args) => report::report(&args, &mut out).map(done),
        Command::Watch(args) => watch::run(&args, &mut out).map(done),
        Command::Show(args) => report::print(&args, &mut out).map(done),
        Command::Export(args) => report::export(&args, &mut out).map(done),
        Command::Peer(args) => peer::run(&args, &mut out),
        Command::Launch(args) => launch::run(&args, &mut out),
        Command::Status(args) => peer::status(&args, &mut out),
        Command::Keys(command) => keys::run(&command, &mut out).map(done),
        Command::Algorithms(args) => algorithms::run(&args, &mut out).map(done),
        Command::Data(command) => data::run(&command, &mut out).map(done),
        Command::Topology(command) => topology::run(command, &mut out).map(done),
        Command::Config(command) => config::run(&command, &mut out),
        Command::Completions(args) => shell::completions(&args, &mut out).map(done),
        Command::Man(args) => shell::man(&args, &mut out).map(done),
    };
    output::finish(result, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands below this one without examples that begin with their names.
    fn without_example(command: &clap::Command, name: &str) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let has_one = help.starts_with("Example") && help.contains(&format!("\n  {name}"));
        let own = (!has_one).then(|| name.to_owned());
        let inner = |command: &clap::Command| without_example(command, &format!("{name} {}", command.get_name()));
        own.into_iter().chain(command.get_subcommands().flat_map(inner)).collect()
    }

    #[test]
    fn every_command_has_examples() {
        // The help of `reproduce` is that of `upwash-reproduce`.
        assert_eq!(without_example(&Cli::command(), "upwash"), ["upwash reproduce"]);
    }
}
