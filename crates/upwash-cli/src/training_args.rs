//! What commands that train change in a configuration.

use crate::configs::OverrideArgs;
use crate::resume;
use anyhow::{Result, ensure};
use std::path::PathBuf;
use upwash::config::Overrides;

/// `--set` and `--unset`, and options that are short for some of them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TrainingArgs {
    #[command(flatten)]
    overrides: OverrideArgs,
    /// The number of epochs; a run that is continued, also a finished one, gets more of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    epochs: Option<u64>,
    /// Start all workers from this model: a run directory, or a file such as its model.safetensors
    #[arg(long, value_name = "MODEL")]
    from: Option<PathBuf>,
    /// Keep the best averaged model of all evaluations, too, as best.safetensors; with peers, the best of each peer
    #[arg(long)]
    keep_best: bool,
}

impl TrainingArgs {
    /// Whether `--from` is given.
    pub(crate) fn starts_from_model(&self) -> bool {
        self.from.is_some()
    }

    /// The overrides that the arguments ask for.
    pub(crate) fn overrides(&self) -> Result<Overrides> {
        let mut overrides = self.overrides.overrides();
        overrides.set.extend(self.epochs.map(|epochs| format!("training.epochs={epochs}")));
        if let Some(model) = &self.from {
            ensure!(
                model.exists(),
                "--from {}: there is no such file or folder; name a run that has ended, or the model.safetensors that it \
                 wrote",
                model.display()
            );
            overrides.set.push(resume::from(model)?);
        }
        if self.keep_best {
            overrides.set.push("training.keep_best=true".into());
        }
        Ok(overrides)
    }
}
