//! `upwash report`, `show` and `export`: runs to look at. None of them changes a run.

use crate::files;
use crate::output::tell;
use anyhow::{Result, ensure};
use std::io::Write;
use std::path::PathBuf;
use upwash_report::{Run, csv, figures, page, show, tensorboard};

/// What `upwash report` is asked for.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Folders of runs, finished or not
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page to write: one file, which needs nothing else
    #[arg(short, long, default_value = "report.html", value_name = "FILE")]
    output: PathBuf,
    /// Write the figures as PNG and SVG into this folder instead, for a paper
    #[arg(long, value_name = "DIR")]
    png: Option<PathBuf>,
}

/// What `upwash show` is asked for.
#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// Folders of runs, finished or not
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
}

/// What `upwash export` is asked for.
#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// Folders of runs, finished or not
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Write every epoch of every worker as a line of this file; - is stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write event files for TensorBoard into this folder, a run for each worker
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
}

/// Reads them, and says what their reader should know.
fn read(folders: &[PathBuf]) -> Result<Vec<Run>> {
    let runs = Run::read_all(folders)?;
    for notice in runs.iter().flat_map(|run| &run.notices) {
        tell!("note: {notice}");
    }
    Ok(runs)
}

/// Writes the page.
pub(crate) fn report(args: &ReportArgs, out: &mut dyn Write) -> Result<()> {
    let runs = read(&args.runs)?;
    if let Some(folder) = &args.png {
        files::make_folder(folder)?;
        for figure in figures(&runs) {
            files::write_figure(&figure, folder)?;
            writeln!(out, "{}.svg and .png", folder.join(&figure.name).display())?;
        }
        return Ok(());
    }
    files::write(&args.output, page(&runs).as_bytes())?;
    writeln!(out, "{}: open it in a browser", args.output.display())?;
    Ok(())
}

/// Prints tables and small charts.
pub(crate) fn print(args: &ShowArgs, out: &mut dyn Write) -> Result<()> {
    for (number, run) in Run::read_all(&args.runs)?.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        write!(out, "{}", show(run))?;
    }
    Ok(())
}

/// Writes numbers for other programs.
pub(crate) fn export(args: &ExportArgs, out: &mut dyn Write) -> Result<()> {
    ensure!(args.csv.is_some() || args.tensorboard.is_some(), "say what to write: --csv FILE or --tensorboard DIR");
    let runs = read(&args.runs)?;
    match &args.csv {
        Some(path) if path.as_os_str() == "-" => out.write_all(csv(&runs).as_bytes())?,
        Some(path) => {
            files::write(path, csv(&runs).as_bytes())?;
            writeln!(out, "{}", path.display())?;
        }
        None => {}
    }
    if let Some(folder) = &args.tensorboard {
        for run in &runs {
            for (part, content) in tensorboard(run) {
                let place = folder.join(&run.name).join(part);
                files::make_folder(&place)?;
                files::write(&place.join("events.out.tfevents.0.upwash"), &content)?;
            }
        }
        let folder = folder.display();
        // Stdout may be a table.
        tell!("{folder}: look at it with `tensorboard --logdir {folder}`");
    }
    Ok(())
}
