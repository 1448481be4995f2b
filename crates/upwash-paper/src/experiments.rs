//! The paper's experiments: their names and configurations.

use crate::scale::{Dataset, Scale, Task};
use serde::Deserialize;
use std::fmt::Write;
use std::str::FromStr;
use upwash::algorithm::Variant;

/// The variants of AL-DSGD, in the order of the table columns.
pub(crate) const VARIANTS: [Variant; 3] = [Variant::Released, Variant::Written, Variant::Sound];

/// AL-DSGD's coefficients: the extra weights of the two leaders, and the strengths of the pull toward them.
const COEFFICIENTS: [&str; 4] = ["w_best", "w_degree", "lambda_best", "lambda_degree"];

/// An algorithm of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Algorithm {
    Dpsgd,
    AlDsgdOverDpsgd,
    Matcha,
    AlDsgdOverMatcha,
}

/// A modification of AL-DSGD or its base algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Modification {
    None,
    /// One of the four coefficients is kept; the others are 0.
    Only(&'static str),
    /// Metropolis weights.
    Metropolis,
}

/// An experiment without its variant, scale and seed. Its name is
/// `[cifar100-]ALGORITHM-LINKSxCOPIES[-only-PART|-metropolis]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct PaperExperiment {
    pub(crate) algorithm: Algorithm,
    /// Number of links of the graph as the paper counts them: 13, 11, 9, 7 or 5.
    pub(crate) links: u8,
    /// Number of copies of the graph that take turns.
    pub(crate) copies: u8,
    pub(crate) modification: Modification,
    pub(crate) task: Task,
}

impl Algorithm {
    const ALL: [Self; 4] = [Self::Dpsgd, Self::AlDsgdOverDpsgd, Self::Matcha, Self::AlDsgdOverMatcha];

    pub(crate) fn display_name(self) -> &'static str {
        match self {
            Self::Dpsgd => "D-PSGD",
            Self::AlDsgdOverDpsgd => "AL-DSGD over D-PSGD",
            Self::Matcha => "MATCHA",
            Self::AlDsgdOverMatcha => "AL-DSGD over MATCHA",
        }
    }

    pub(crate) fn has_leaders(self) -> bool {
        matches!(self, Self::AlDsgdOverDpsgd | Self::AlDsgdOverMatcha)
    }

    fn base(self) -> &'static str {
        match self {
            Self::Dpsgd | Self::AlDsgdOverDpsgd => "dpsgd",
            Self::Matcha | Self::AlDsgdOverMatcha => "matcha",
        }
    }

    fn name(self) -> String {
        let leaders = if self.has_leaders() { "al-dsgd-" } else { "" };
        format!("{leaders}{}", self.base())
    }
}

impl FromStr for PaperExperiment {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let parts = || {
            let (task, name) = match name.strip_prefix("cifar100-") {
                Some(name) => (Task::Cifar100, name),
                None => (Task::Cifar10, name),
            };
            let after = |algorithm: Algorithm| {
                let rest = name.strip_prefix(&*algorithm.name())?;
                Some((algorithm, rest.strip_prefix('-')?))
            };
            let (algorithm, rest) = Algorithm::ALL.into_iter().find_map(after)?;
            let (graph, modification) = rest.split_once('-').unwrap_or((rest, ""));
            let (links, copies) = graph.split_once('x')?;
            let modification = match modification {
                "" => Modification::None,
                "metropolis" => Modification::Metropolis,
                only => {
                    let part = only.strip_prefix("only-")?.replace('-', "_");
                    Modification::Only(COEFFICIENTS.into_iter().find(|known| *known == part)?)
                }
            };
            Some(Self { algorithm, links: links.parse().ok()?, copies: copies.parse().ok()?, modification, task })
        };
        parts().ok_or_else(|| format!("{name} is not the name of an experiment"))
    }
}

impl TryFrom<String> for PaperExperiment {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl PaperExperiment {
    /// The variant whose run is used for this one. Some variants are identical.
    pub(crate) fn resolved(&self, variant: Variant) -> Variant {
        match (self.algorithm, variant) {
            // D-PSGD in the paper's text uses the whole graph, as the sound variant does. With copies, it uses the
            // paper's relabelings.
            (Algorithm::Dpsgd, Variant::Written) if self.copies == 1 => Variant::Sound,
            // MATCHA is the same in the released code and in the text.
            (Algorithm::Matcha, _) if self.copies == 1 => Variant::Sound,
            _ => variant,
        }
    }

    /// The name of the directory with its runs.
    pub(crate) fn name(&self, variant: Variant) -> String {
        self.name_with(self.resolved(variant))
    }

    fn name_with(&self, variant: Variant) -> String {
        let (algorithm, variant) = (self.algorithm.name(), variant.name());
        let modification = match self.modification {
            Modification::None => String::new(),
            Modification::Only(part) => format!("-only-{}", part.replace('_', "-")),
            Modification::Metropolis => "-metropolis".into(),
        };
        let Self { links, copies, .. } = self;
        format!("{algorithm}-{variant}-{links}x{copies}{modification}")
    }

    /// The name of its configuration file.
    pub(crate) fn config_name(&self, variant: Variant) -> String {
        self.alias(self.resolved(variant))
    }

    /// The name of its configuration if no other variant's run were used for it.
    pub(crate) fn alias(&self, variant: Variant) -> String {
        let data = match self.task {
            Task::Cifar10 => "",
            Task::Cifar100 => "cifar100-",
        };
        format!("{data}{}", self.name_with(variant))
    }

    /// The display name without the number of links.
    pub(crate) fn display_name(&self) -> String {
        format!("{}{}", self.algorithm.display_name(), self.details())
    }

    /// The details apart from the algorithm and the number of links.
    pub(crate) fn details(&self) -> String {
        let mut text = String::new();
        if self.copies > 1 {
            let _ = write!(text, ", {} graphs", self.copies);
        }
        match self.modification {
            Modification::None => {}
            Modification::Only(part) => {
                let _ = write!(text, ", {part} alone");
            }
            Modification::Metropolis => text += ", Metropolis weights",
        }
        if self.task == Task::Cifar100 {
            text += ", CIFAR-100";
        }
        text
    }

    /// The configuration as TOML.
    pub(crate) fn config(&self, variant: Variant, scale: &Scale, seed: u64) -> String {
        let variant = self.resolved(variant);
        let (data, dataset) = scale.named_dataset(self.task);
        let Dataset { model, train_examples, learning_rate, .. } = dataset;
        let examples = match scale.quick {
            true => format!("train_examples = {train_examples}\n"),
            false => String::new(),
        };
        let (graph, algorithm) = (self.graph_section(variant), self.algorithm_section(variant));
        let Scale { epochs, batch, .. } = scale;
        let local_train_loss = match scale.local_train_loss {
            true => "local_train_loss = true\n",
            false => "",
        };
        let (half, later) = (*epochs as f64 / 2.0, *epochs as f64 * 0.75);
        format!(
            "seed = {seed}\nmodel = \"{model}\"\n\n[data]\nname = \"{data}\"\npartition = \"iid\"\n{examples}\n\
             [graph]\n{graph}\n[algorithm]\n{algorithm}\n\
             [training]\nepochs = {epochs}\nbatch_size = {batch}\nlearning_rate = {learning_rate}\ndecay = \"steps\"\n\
             decay_at = [{half:?}, {later:?}]\ndecay_factor = 0.1\nmomentum = 0.0\nweight_decay = 5e-4\n\
             test_every = 5\n{local_train_loss}checkpoint_every = 2450\n"
        )
    }

    fn graph_section(&self, variant: Variant) -> String {
        let mut text = match self.links {
            13 => "topology = \"paper:L1\"\n".to_owned(),
            links => format!("topology = \"paper:L1@{links}\"\n"),
        };
        if self.copies > 1 {
            let _ = writeln!(text, "copies = {}", self.copies);
            // For algorithms with a `released` variant, that variant implies these keys.
            match (variant, self.algorithm) {
                (Variant::Released, Algorithm::Matcha) => {
                    text += "relabelings = \"paper\"\norder = \"released\"\n";
                }
                (Variant::Written, _) => text += "relabelings = \"paper\"\n",
                _ => {}
            }
        }
        if self.modification == Modification::Metropolis {
            text += "weights = \"metropolis\"\n";
        }
        text
    }

    fn algorithm_section(&self, variant: Variant) -> String {
        let base = self.algorithm.base();
        let mut text = match self.algorithm.has_leaders() {
            true => format!("name = \"al-dsgd\"\nbase = \"{base}\"\n"),
            false => format!("name = \"{base}\"\n"),
        };
        let has_variant = match self.algorithm {
            Algorithm::AlDsgdOverDpsgd | Algorithm::AlDsgdOverMatcha => variant != Variant::Sound,
            Algorithm::Dpsgd => variant == Variant::Released,
            Algorithm::Matcha => false,
        };
        if has_variant {
            let _ = writeln!(text, "variant = \"{}\"", variant.name());
        }
        if let Modification::Only(kept) = self.modification {
            for part in COEFFICIENTS.iter().filter(|part| **part != kept) {
                let _ = writeln!(text, "{part} = 0.0");
            }
        }
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::catalog;
    use std::collections::BTreeMap;
    use upwash::config::Config;

    #[test]
    fn different_configurations_have_different_names() {
        let mut found = BTreeMap::new();
        for experiment in catalog::all().iter().flat_map(|artifact| artifact.experiments()) {
            for variant in VARIANTS {
                let scale = Scale::new(false, None, None);
                let key = (scale.directory(experiment.task), experiment.name(variant));
                let config = experiment.config(variant, &scale, 1);
                Config::parse(&config, &[]).unwrap_or_else(|error| panic!("{key:?}: {error}"));
                let known = found.entry(key.clone()).or_insert(config.clone());
                assert_eq!(*known, config, "{key:?}");
            }
        }
        let mut configs: Vec<&String> = found.values().collect();
        configs.sort();
        configs.dedup();
        assert_eq!(configs.len(), found.len(), "two names for one run");
    }

    #[test]
    fn names_are_parsed() {
        let experiment: PaperExperiment = "cifar100-al-dsgd-matcha-5x2-only-lambda-best".parse().unwrap();
        let expected = PaperExperiment {
            algorithm: Algorithm::AlDsgdOverMatcha,
            links: 5,
            copies: 2,
            modification: Modification::Only("lambda_best"),
            task: Task::Cifar100,
        };
        assert_eq!(experiment, expected);
        for wrong in ["dpsgd", "sgd-13x1", "dpsgd-13", "dpsgd-13x1-only-best"] {
            wrong.parse::<PaperExperiment>().unwrap_err();
        }
    }
}
