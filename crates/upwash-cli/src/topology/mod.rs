//! `upwash topology`: graphs of workers.

mod table;

use anyhow::Result;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use upwash_topology::{
    Analysis, AnalysisOptions, Graph, GraphKind, GraphSpec, LeaderWeights, Rotation,
};

/// Graphs of workers.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List every graph that can be asked for, with an example
    List,
    /// Show how fast workers on a graph come to agree
    Analyze(Analyze),
    /// Draw a graph as SVG, its matchings in colours
    Draw(Draw),
    /// Find how often to use each matching for a budget of communication (MATCHA)
    Optimize(Optimize),
}

#[derive(Args)]
pub(crate) struct Analyze {
    /// The graph, as `ring:8` or `paper:L1`; `upwash topology list` shows all
    graph: GraphSpec,
    /// Also MATCHA, for this part of the links in an average round (above 0, at most 1)
    #[arg(long, value_name = "B", allow_negative_numbers = true)]
    budget: Option<f64>,
    /// Also a rotation of the workers' places through this many copies of the graph
    #[arg(long, value_name = "N")]
    rotate: Option<usize>,
    /// Also AL-DSGD, with these weights of the best and the best-connected neighbour
    #[arg(long, value_name = "W_BEST,W_DEGREE", allow_hyphen_values = true)]
    leaders: Option<LeaderWeights>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Draw {
    /// The graph, as `ring:8` or `paper:L1`; `upwash topology list` shows all
    graph: GraphSpec,
    /// The file to write, or - for the standard output
    #[arg(short, long, value_name = "FILE.svg")]
    output: PathBuf,
    /// Draw a rotation's copies side by side
    #[arg(long, value_name = "N")]
    rotate: Option<usize>,
}

#[derive(Args)]
pub(crate) struct Optimize {
    /// The graph, as `ring:8` or `paper:L1`; `upwash topology list` shows all
    graph: GraphSpec,
    /// The part of the links in an average round (above 0, at most 1)
    #[arg(long, value_name = "B", allow_negative_numbers = true)]
    budget: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Above this many nodes a picture shows nothing and a layout takes minutes.
const MAX_DRAWN: usize = 4096;

pub(crate) fn run(command: Command, out: &mut impl Write) -> Result<()> {
    match command {
        Command::List => list(out),
        Command::Analyze(args) => {
            let graph = args.graph.build()?;
            let options = AnalysisOptions {
                budget: args.budget,
                rotate: args.rotate,
                leaders: args.leaders,
            };
            let analysis = Analysis::of(&graph, options)?;
            if args.json {
                return json(out, &args.graph, &analysis);
            }
            table::analysis(out, &args.graph, &graph, &analysis)
        }
        Command::Draw(args) => draw(&args, out),
        Command::Optimize(args) => {
            let graph = args.graph.build()?;
            let options = AnalysisOptions {
                budget: Some(args.budget),
                ..Default::default()
            };
            let analysis = Analysis::of(&graph, options)?;
            if args.json {
                return json(out, &args.graph, &analysis);
            }
            table::optimum(out, &args.graph, &analysis)
        }
    }
}

fn list(out: &mut impl Write) -> Result<()> {
    for kind in GraphKind::all() {
        let GraphKind {
            spelling,
            about,
            example,
            ..
        } = kind;
        writeln!(out, "{spelling}\n    {about}\n    try {example}")?;
    }
    Ok(())
}

/// The analysis, with the graph's spelling in front.
fn json(out: &mut impl Write, spec: &GraphSpec, analysis: &Analysis) -> Result<()> {
    let mut object = serde_json::Map::new();
    object.insert("graph".into(), spec.to_string().into());
    if let serde_json::Value::Object(fields) = serde_json::to_value(analysis)? {
        object.extend(fields);
    }
    Ok(writeln!(out, "{}", serde_json::Value::Object(object))?)
}

fn draw(args: &Draw, out: &mut impl Write) -> Result<()> {
    let graph: Graph = args.graph.build()?;
    anyhow::ensure!(
        graph.nodes() <= MAX_DRAWN,
        "{} workers are too many to draw: at most {MAX_DRAWN}",
        graph.nodes()
    );
    let title = args.graph.to_string();
    let svg = match args.rotate {
        None => upwash_topology::draw(&graph, &title),
        Some(copies) => {
            let rotation = Rotation::balance(&graph, copies)?;
            upwash_topology::draw_rotation(&graph, &title, rotation.relabellings())?
        }
    };
    if args.output.as_os_str() == "-" {
        return Ok(out.write_all(svg.as_bytes())?);
    }
    crate::files::write(&args.output, svg.as_bytes())?;
    Ok(writeln!(out, "wrote {}", args.output.display())?)
}
