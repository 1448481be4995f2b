//! `upwash config`: configurations without a run.

use crate::configs::{self, OverrideArgs};
use crate::output::{self, causes, tell};
use crate::runs::REFUSED;
use anyhow::Result;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use upwash::algorithm::Registry;
use upwash::config::Overrides;

/// Show and check configurations, and print their JSON schema.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Print a configuration with every default written out
    #[command(after_help = "Example:
  upwash config show al-dsgd.toml --set graph.copies=1 > whole.toml")]
    Show {
        /// The configuration, TOML; - is standard input
        config: PathBuf,
        #[command(flatten)]
        overrides: OverrideArgs,
    },
    /// Check configurations as a run would: keys, values, graph, data, algorithm
    #[command(after_help = "Example:
  upwash config check configs/*.toml")]
    Check {
        /// The configurations, TOML
        #[arg(required = true)]
        configs: Vec<PathBuf>,
        #[command(flatten)]
        overrides: OverrideArgs,
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
        Command::Show { config, overrides } => {
            let mut config = configs::parse(config, &overrides.overrides())?;
            for warning in Registry::standard().drop_inherited(&mut config.algorithm, &config.graph) {
                tell!("{}", output::warning(&warning));
            }
            config.training.fill_in_optimizer();
            write!(out, "{}", config.to_toml())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Check { configs, overrides } => check(configs, &overrides.overrides(), out),
        Command::Schema => Ok(writeln!(out, "{:#}", upwash::schema::configuration()).map(|()| ExitCode::SUCCESS)?),
        Command::Reference => Ok(write!(out, "{}", upwash::schema::reference()).map(|()| ExitCode::SUCCESS)?),
    }
}

/// Checks all of them, so that one call names every mistake.
fn check(configs: &[PathBuf], overrides: &Overrides, out: &mut impl Write) -> Result<ExitCode> {
    let mut refused = false;
    for path in configs {
        match configs::read(path, overrides) {
            Ok(experiment) => {
                let (algorithm, graph) = (experiment.algorithm_name(), experiment.graph_name());
                writeln!(out, "{}: ok: {algorithm} on {graph}", path.display())?;
                for warning in &experiment.warnings {
                    tell!("{}", output::warning(&format!("{}: {warning}", path.display())));
                }
            }
            Err(error) => {
                refused = true;
                tell!("error: {}", causes(&error));
            }
        }
    }
    Ok(if refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}
