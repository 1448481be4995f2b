//! `upwash topology`: lists, analyzes, draws and optimizes communication graphs.

mod analyze;
mod draw;
mod table;

use anyhow::Result;
use std::io::Write;
use upwash_topology::{Analysis, GraphKind, GraphSpec};

/// Communication graphs.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List all kinds of graphs, with an example of each
    #[command(after_help = "Example:
  upwash topology list | less")]
    List,
    /// Show how fast the workers on a graph reach consensus
    #[command(after_help = "Examples:
  upwash topology analyze ring:16
  upwash topology analyze paper:L1 --budget 0.5 --rotate 3 --leaders 0.1,0.1")]
    Analyze(analyze::Args),
    /// Draw a graph as SVG, with a color for each matching
    #[command(after_help = "Examples:
  upwash topology draw torus:4x4 -o torus.svg
  upwash topology draw paper:L1 --rotate 3 -o rotation.svg")]
    Draw(draw::Args),
    /// Compute the activation probabilities of the matchings for a budget (MATCHA)
    #[command(after_help = "Example:
  upwash topology optimize paper:L1 --budget 0.5")]
    Optimize(analyze::OptimizeArgs),
}

pub(crate) fn run(command: Command, out: &mut impl Write) -> Result<()> {
    match command {
        Command::List => list(out),
        Command::Analyze(args) => analyze::analyze(&args, out),
        Command::Draw(args) => draw::run(&args, out),
        Command::Optimize(args) => analyze::optimize(&args, out),
    }
}

fn list(out: &mut impl Write) -> Result<()> {
    for kind in GraphKind::all() {
        let (syntax, about, example) = (kind.syntax, kind.about, kind.example);
        writeln!(out, "{syntax}\n    {about}\n    try {example}")?;
    }
    Ok(())
}

/// Prints an analysis as one line of JSON. The graph comes first.
fn json(out: &mut impl Write, graph: &GraphSpec, analysis: &Analysis) -> Result<()> {
    #[derive(serde::Serialize)]
    struct Object<'a> {
        graph: &'a GraphSpec,
        #[serde(flatten)]
        analysis: &'a Analysis,
    }
    let text = serde_json::to_string(&Object { graph, analysis })?;
    Ok(writeln!(out, "{text}")?)
}

/// Parses a budget. The library checks its range.
fn budget(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "write a number above 0 and at most 1, for example 0.5".into())
}
