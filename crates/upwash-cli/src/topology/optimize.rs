//! `upwash topology optimize`

use super::{budget, json, table};
use anyhow::Result;
use std::io::Write;
use upwash_topology::{Analysis, AnalysisOptions, GraphSpec};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The graph, as `ring:8` or `paper:L1`; `upwash topology list` shows all
    graph: GraphSpec,
    /// The part of the links in an average round (above 0, at most 1)
    #[arg(long, value_name = "B", value_parser = budget, allow_negative_numbers = true)]
    budget: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let options = AnalysisOptions {
        budget: Some(args.budget),
        ..Default::default()
    };
    let analysis = Analysis::of(&args.graph.build()?, options)?;
    if args.json {
        return json(out, &args.graph, &analysis);
    }
    table::optimum(out, &args.graph, &analysis)
}
