//! `upwash config`: configurations without a run.

use crate::output::tell;
use crate::runs::{REFUSED, parse_config, read_config};
use anyhow::Result;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show and check configurations, and print their JSON schema.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Print a configuration with every default written out
    #[command(after_help = "Example:
  upwash config show al-dsgd.toml --set graph.copies=1 > whole.toml")]
    Show {
        /// The configuration, TOML
        config: PathBuf,
        /// Replace a value of the configuration
        #[arg(long = "set", value_name = "KEY=VALUE")]
        replacements: Vec<String>,
    },
    /// Check configurations as a run would: keys, values, graph, data, algorithm
    #[command(after_help = "Example:
  upwash config check configs/*.toml")]
    Check {
        /// The configurations, TOML
        #[arg(required = true)]
        configs: Vec<PathBuf>,
        /// Replace a value of every configuration
        #[arg(long = "set", value_name = "KEY=VALUE")]
        replacements: Vec<String>,
    },
    /// Print the JSON schema of configurations, for editors that complete and check TOML
    #[command(after_help = "Example:
  upwash config schema > upwash.schema.json    # then begin a configuration with `#:schema ./upwash.schema.json`")]
    Schema,
    /// Print every key with its default and meaning, in Markdown
    #[command(after_help = "Example:
  upwash config reference | less")]
    Reference,
}

pub(crate) fn run(command: &Command, out: &mut impl Write) -> Result<ExitCode> {
    match command {
        Command::Show { config, replacements } => {
            write!(out, "{}", parse_config(config, replacements)?.to_toml())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Check { configs, replacements } => check(configs, replacements, out),
        Command::Schema => Ok(writeln!(out, "{:#}", upwash::schema::configuration()).map(|()| ExitCode::SUCCESS)?),
        Command::Reference => Ok(write!(out, "{}", upwash::schema::reference()).map(|()| ExitCode::SUCCESS)?),
    }
}

/// Checks all of them, so that one call names every mistake.
fn check(configs: &[PathBuf], replacements: &[String], out: &mut impl Write) -> Result<ExitCode> {
    let mut refused = false;
    for path in configs {
        match read_config(path, replacements) {
            Ok(experiment) => {
                let (algorithm, graph) = (experiment.algorithm_name(), experiment.graph_name());
                writeln!(out, "{}: ok: {algorithm} on {graph}", path.display())?;
                for warning in &experiment.warnings {
                    tell!("warning: {}: {warning}", path.display());
                }
            }
            Err(error) => {
                refused = true;
                tell!("error: {error:#}");
            }
        }
    }
    Ok(if refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}
