//! The program `upwash`: parses the command line, calls the library, prints what it says.

// A closed stderr is no reason to panic: `tell!` says the same.
#![warn(clippy::print_stderr)]

mod algorithms;
mod compare;
mod data;
mod demo;
mod keys;
mod launch;
mod peer;
mod report;
mod reproduce;
mod topology;
mod train;
mod transports;
mod watch;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use upwash_cli::{engines, files, output, parallel, progress, runs};

/// Train neural networks on many workers without a server.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train eight workers four ways on handwritten digits, and compare (under a minute)
    Demo,
    /// Train as a configuration says
    Train(train::Args),
    /// Train as several configurations say, and compare
    Compare(compare::Args),
    /// Run the AL-DSGD paper's experiments, and show its numbers beside ours: calls upwash-reproduce
    #[command(disable_help_flag = true)]
    Reproduce(reproduce::Args),
    /// Draw runs as a page to open in a browser, one file that needs nothing else
    Report(report::ReportArgs),
    /// Show a run in a browser while it goes on, with buttons to pause, keep and stop it
    Watch(watch::Args),
    /// Print a run's table and how its losses went
    Show(report::ShowArgs),
    /// Write runs' numbers for other programs
    Export(report::ExportArgs),
    /// Train as one worker among peers on other machines, which may come and go
    Peer(peer::Args),
    /// Run all peers of a configuration on this machine, keys included
    Launch(launch::Args),
    /// Show who of a configuration's peers is in, at which round, and what it has sent
    Status(peer::StatusArgs),
    /// Keys by which peers know each other: make and show them
    #[command(subcommand)]
    Keys(keys::Command),
    /// List the algorithms with their papers, properties and options
    Algorithms(algorithms::Args),
    /// Data sets: list and get them
    #[command(subcommand)]
    Data(data::Command),
    /// Graphs of workers: list, analyze, draw and optimize them
    #[command(subcommand)]
    Topology(topology::Command),
}

/// Exit codes are in one table, in docs/architecture.md.
fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = output::Output(std::io::stdout().lock());
    let result = match cli.command {
        Command::Demo => demo::run(&mut out).map(|()| ExitCode::SUCCESS),
        Command::Train(args) => train::run(&args, &mut out),
        Command::Compare(args) => compare::run(&args, &mut out),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Report(args) => report::report(&args, &mut out).map(|()| ExitCode::SUCCESS),
        Command::Watch(args) => watch::run(&args, &mut out).map(|()| ExitCode::SUCCESS),
        Command::Show(args) => report::print(&args, &mut out).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => report::export(&args, &mut out).map(|()| ExitCode::SUCCESS),
        Command::Peer(args) => peer::run(&args, &mut out),
        Command::Launch(args) => launch::run(&args, &mut out),
        Command::Status(args) => peer::status(&args, &mut out),
        Command::Keys(command) => keys::run(&command, &mut out).map(|()| ExitCode::SUCCESS),
        Command::Algorithms(args) => algorithms::run(&args, &mut out).map(|()| ExitCode::SUCCESS),
        Command::Data(command) => data::run(&command, &mut out).map(|()| ExitCode::SUCCESS),
        Command::Topology(command) => topology::run(command, &mut out).map(|()| ExitCode::SUCCESS),
    };
    output::finish(result, out)
}
