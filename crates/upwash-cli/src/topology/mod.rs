//! `upwash topology`: graphs of workers.

mod analyze;
mod draw;
mod table;

use anyhow::Result;
use std::io::Write;
use upwash_topology::{Analysis, GraphKind, GraphSpec};

/// Graphs of workers.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List every graph that can be asked for, with an example
    List,
    /// Show how fast workers on a graph come to agree
    Analyze(analyze::Args),
    /// Draw a graph as SVG, its matchings in colors
    Draw(draw::Args),
    /// Find how often to use each matching for a budget of communication (MATCHA)
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

/// An analysis as one line of JSON, with the graph's spelling in front.
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

/// A budget from the command line; whether it is in range is the library's to say.
fn budget(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "write a number above 0 and at most 1, as 0.5".into())
}
