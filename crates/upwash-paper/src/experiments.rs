//! The paper's experiments: what each is called, and its configuration.

use crate::scale::{Dataset, Scale, Task};
use serde::Deserialize;
use std::fmt::Write;
use std::str::FromStr;
use upwash::algorithm::Variant;

/// The rules that go by the paper's name, in the order of its tables' columns.
pub(crate) const VARIANTS: [Variant; 3] = [Variant::Released, Variant::Written, Variant::Sound];

/// AL-DSGD's coefficients: extra weights of the two leaders, and forces towards them.
const COEFFICIENTS: [&str; 4] = ["w_best", "w_degree", "lambda_best", "lambda_degree"];

/// An algorithm of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Algorithm {
    Dpsgd,
    AlDsgdOverDpsgd,
    Matcha,
    AlDsgdOverMatcha,
}

/// How AL-DSGD, or its base, is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Modification {
    None,
    /// One of the four coefficients stays; the others are 0.
    Only(&'static str),
    /// Metropolis weights.
    Metropolis,
}

/// An experiment but for its variant, its length and its seed, spelled `[cifar100-]ALGORITHM-LINKSxCOPIES[-only-PART|-metropolis]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct PaperExperiment {
    pub(crate) algorithm: Algorithm,
    /// Links of the graph as the paper counts them: 13, 11, 9, 7 or 5.
    pub(crate) links: u8,
    /// Copies of the graph that take turns.
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
        parts().ok_or_else(|| format!("{name} is no experiment's name"))
    }
}

impl TryFrom<String> for PaperExperiment {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl PaperExperiment {
    /// The variant whose run stands for this one: some are the same.
    pub(crate) fn resolved(&self, variant: Variant) -> Variant {
        match (self.algorithm, variant) {
            // The text's D-PSGD uses its whole graph, as it should; in copies it has the paper's.
            (Algorithm::Dpsgd, Variant::Written) if self.copies == 1 => Variant::Sound,
            // MATCHA was released as it was written.
            (Algorithm::Matcha, _) if self.copies == 1 => Variant::Sound,
            _ => variant,
        }
    }

    /// What the directory of its runs is called.
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

    /// What its configuration is called.
    pub(crate) fn config_name(&self, variant: Variant) -> String {
        self.alias(self.resolved(variant))
    }

    /// What its configuration would be called if no other's run stood for it.
    pub(crate) fn alias(&self, variant: Variant) -> String {
        let data = match self.task {
            Task::Cifar10 => "",
            Task::Cifar100 => "cifar100-",
        };
        format!("{data}{}", self.name_with(variant))
    }

    /// What it is but for the graph's links.
    pub(crate) fn display_name(&self) -> String {
        format!("{}{}", self.algorithm.display_name(), self.details())
    }

    /// What there is to say beside the algorithm and the graph's links.
    pub(crate) fn details(&self) -> String {
        let mut words = String::new();
        if self.copies > 1 {
            let _ = write!(words, ", {} graphs", self.copies);
        }
        match self.modification {
            Modification::None => {}
            Modification::Only(part) => {
                let _ = write!(words, ", {part} alone");
            }
            Modification::Metropolis => words += ", Metropolis weights",
        }
        if self.task == Task::Cifar100 {
            words += ", CIFAR-100";
        }
        words
    }

    /// Its configuration.
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
        let (half, later) = (*epochs as f64 / 2.0, *epochs as f64 * 0.75);
        format!(
            "seed = {seed}\nmodel = \"{model}\"\n\n[data]\nname = \"{data}\"\npartition = \"iid\"\n{examples}\n\
             [graph]\n{graph}\n[algorithm]\n{algorithm}\n\
             [training]\nepochs = {epochs}\nbatch_size = {batch}\nlearning_rate = {learning_rate}\ndecay = \"steps\"\n\
             decay_at = [{half:?}, {later:?}]\ndecay_factor = 0.1\nmomentum = 0.0\nweight_decay = 5e-4\n\
             test_every = 5\ncheckpoint_every = 2450\n"
        )
    }

    fn graph_section(&self, variant: Variant) -> String {
        let mut text = match self.links {
            13 => "topology = \"paper:L1\"\n".to_owned(),
            links => format!("topology = \"paper:L1@{links}\"\n"),
        };
        if self.copies > 1 {
            let _ = writeln!(text, "copies = {}", self.copies);
            // `released` brings them along where an algorithm has such a variant.
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
    fn names_tell_apart_what_differs() {
        let mut found = BTreeMap::new();
        for experiment in catalog::all().iter().flat_map(|artifact| artifact.experiments()) {
            for variant in VARIANTS {
                let scale = Scale::new(false, None, None);
                let place = (scale.directory(experiment.task), experiment.name(variant));
                let config = experiment.config(variant, &scale, 1);
                Config::parse(&config, &[]).unwrap_or_else(|error| panic!("{place:?}: {error}"));
                let known = found.entry(place.clone()).or_insert(config.clone());
                assert_eq!(*known, config, "{place:?}");
            }
        }
        let mut configs: Vec<&String> = found.values().collect();
        configs.sort();
        configs.dedup();
        assert_eq!(configs.len(), found.len(), "two names for one run");
    }

    #[test]
    fn names_are_read() {
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
