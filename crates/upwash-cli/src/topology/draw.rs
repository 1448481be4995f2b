//! `upwash topology draw`.

use anyhow::{Result, ensure};
use std::io::Write;
use std::path::PathBuf;
use upwash_topology::{Drawing, GraphSpec, Rotation};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The graph, for example `ring:8` or `paper:L1`; `upwash topology list` shows all
    graph: GraphSpec,
    /// The SVG file to write; - is stdout
    #[arg(short, long, value_name = "FILE.svg")]
    output: PathBuf,
    /// Draw the copies of a rotation side by side
    #[arg(long, value_name = "N")]
    rotate: Option<usize>,
}

/// Above this many nodes, a drawing is unreadable and its layout takes minutes.
const MAX_DRAWN: usize = 4096;
/// Above this many links, a drawing is one dark surface and takes megabytes.
const MAX_LINKS: usize = 50_000;

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let graph = args.graph.build()?;
    let nodes = graph.nodes();
    ensure!(nodes <= MAX_DRAWN, "{nodes} workers are too many to draw: at most {MAX_DRAWN}");
    let links = graph.edges().len();
    ensure!(links <= MAX_LINKS, "{links} links are too many to draw: at most {MAX_LINKS}");
    if let Some(ending) = args.output.extension() {
        ensure!(
            ending.eq_ignore_ascii_case("svg"),
            "{}: drawings are SVG; call the file {}",
            args.output.display(),
            args.output.with_extension("svg").display()
        );
    }
    let title = args.graph.to_string();
    let drawing = match args.rotate {
        None => Drawing::new(&graph, &title),
        Some(copies) => {
            let rotation = Rotation::balance(&graph, copies)?;
            Drawing::of_rotation(&graph, &title, rotation.relabelings())?
        }
    };
    let svg = drawing.svg();
    if args.output.as_os_str() == "-" {
        return Ok(out.write_all(svg.as_bytes())?);
    }
    crate::files::write(&args.output, svg.as_bytes())?;
    Ok(writeln!(out, "wrote {}", args.output.display())?)
}
