//! `upwash topology analyze` and `upwash topology optimize`.

use super::{budget, json, table};
use crate::output::note;
use anyhow::Result;
use std::io::Write;
use upwash_topology::{Analysis, AnalysisOptions, GraphSpec, LeaderWeights};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The graph, for example `ring:8` or `paper:L1`; `upwash topology list` shows all
    graph: GraphSpec,
    /// Also analyze MATCHA with this budget: the expected fraction of matchings that are active in a round (above 0, at
    /// most 1)
    #[arg(long, value_name = "B", value_parser = budget, allow_negative_numbers = true)]
    budget: Option<f64>,
    /// Also analyze a rotation of the workers through this many relabeled copies of the graph
    #[arg(long, value_name = "N")]
    rotate: Option<usize>,
    /// Also analyze AL-DSGD with these weights of the best and the best-connected neighbor
    #[arg(long, value_name = "W_BEST,W_DEGREE", allow_hyphen_values = true)]
    leaders: Option<LeaderWeights>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn analyze(args: &Args, out: &mut impl Write) -> Result<()> {
    let graph = args.graph.build()?;
    announce(graph.nodes());
    let options = AnalysisOptions { budget: args.budget, rotate: args.rotate, leaders: args.leaders };
    let analysis = Analysis::of(&graph, options)?;
    if args.json {
        return json(out, &args.graph, &analysis);
    }
    table::analysis(out, &args.graph, &graph, &analysis)
}

/// Says that the eigenvalues of a large graph take a while.
fn announce(nodes: usize) {
    if nodes > 1000 {
        note!("the eigenvalues of {nodes} x {nodes} matrices take a while, about a minute for 3000 workers ...");
    }
}

#[derive(clap::Args)]
pub(crate) struct OptimizeArgs {
    /// The graph, for example `ring:8` or `paper:L1`; `upwash topology list` shows all
    graph: GraphSpec,
    /// The budget: the expected fraction of matchings that are active in a round (above 0, at most 1)
    #[arg(long, value_name = "B", value_parser = budget, allow_negative_numbers = true)]
    budget: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn optimize(args: &OptimizeArgs, out: &mut impl Write) -> Result<()> {
    let options = AnalysisOptions { budget: Some(args.budget), ..Default::default() };
    let graph = args.graph.build()?;
    announce(graph.nodes());
    let analysis = Analysis::of(&graph, options)?;
    if args.json {
        return json(out, &args.graph, &analysis);
    }
    table::optimum(out, &args.graph, &analysis)
}
