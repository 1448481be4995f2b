//! `upwash report`, `show` and `export`. None of these commands modifies a run.

use crate::files;
use crate::output::{tell, wrapped};
use anyhow::{Result, ensure};
use std::io::Write;
use std::path::PathBuf;
use upwash_report::{Run, csv, figures, list, page, runs_in, show, tensorboard};

/// Arguments of `upwash report`.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Folders of runs, finished or not, or folders in which there are runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The HTML page to write, one self-contained file
    #[arg(short, long, default_value = "report.html", value_name = "FILE", conflicts_with = "png")]
    output: PathBuf,
    /// Write the figures as PNG and SVG into this folder instead, for a paper
    #[arg(long, value_name = "DIR")]
    png: Option<PathBuf>,
}

/// Arguments of `upwash show`.
#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// Folders of runs, finished or not, or folders in which there are runs: these are listed
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
}

/// Arguments of `upwash export`.
#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// Folders of runs, finished or not, or folders in which there are runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Write a CSV file with one line per epoch and worker; - is stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write TensorBoard event files into this folder, one TensorBoard run per worker
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
}

/// Reads the runs, also those in folders of runs, and prints their notices.
fn read(folders: &[PathBuf]) -> Result<Vec<Run>> {
    let found = folders.iter().flat_map(|folder| match runs_in(folder) {
        none if none.is_empty() => vec![folder.clone()],
        found => found,
    });
    let runs = Run::read_all(&found.collect::<Vec<_>>())?;
    for notice in runs.iter().flat_map(|run| &run.notices) {
        tell!("note: {notice}");
    }
    Ok(runs)
}

/// Writes the HTML page, or the figures.
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

/// Prints the summary of each run, and a list of the runs in each folder of runs.
pub(crate) fn print(args: &ShowArgs, out: &mut dyn Write) -> Result<()> {
    let is_list = |folder: &&PathBuf| runs_in(folder).first().is_some_and(|first| first != *folder);
    let (lists, runs): (Vec<&PathBuf>, Vec<&PathBuf>) = args.runs.iter().partition(is_list);
    let runs: Vec<PathBuf> = runs.into_iter().cloned().collect();
    let shown = Run::read_all(&runs)?;
    let lists = lists.into_iter().map(|folder| list(folder, &runs_in(folder)));
    for (number, text) in lists.chain(shown.iter().map(show)).enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        write!(out, "{}", wrapped(&text, 2))?;
    }
    Ok(())
}

/// Writes CSV and TensorBoard files.
pub(crate) fn export(args: &ExportArgs, out: &mut dyn Write) -> Result<()> {
    ensure!(
        args.csv.is_some() || args.tensorboard.is_some(),
        "nothing to export: give --csv FILE or --tensorboard DIR"
    );
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
            for (name, content) in tensorboard(run) {
                let subfolder = folder.join(&run.name).join(name);
                files::make_folder(&subfolder)?;
                files::write(&subfolder.join("events.out.tfevents.0.upwash"), &content)?;
            }
        }
        let folder = folder.display();
        // Stdout may already contain the CSV table.
        tell!("{folder}: open it with `tensorboard --logdir {folder}`");
    }
    Ok(())
}
