//! The runs of the paper's experiments: what each is called, and its configuration.

use std::fmt::Write;
use upwash::algorithm::Variant;

/// The rules that go by the paper's name, in the order of its tables' columns.
pub(super) const VARIANTS: [Variant; 3] = [Variant::Released, Variant::Written, Variant::Sound];

/// An algorithm of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Algorithm {
    Dpsgd,
    AlDsgdOverDpsgd,
    Matcha,
    AlDsgdOverMatcha,
}

/// What is kept of AL-DSGD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    All,
    /// One of the four pulls; the others are 0.
    Only(&'static str),
    /// All, with Metropolis weights.
    Metropolis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Cifar10,
    Cifar100,
}

/// An experiment but for its variant, its length and its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cell {
    pub(super) algorithm: Algorithm,
    /// Links of the graph as the paper counts them: 13, 11, 9, 7 or 5.
    pub(super) links: u8,
    /// Copies of the graph that take turns.
    pub(super) copies: u8,
    pub(super) kept: Kept,
    pub(super) task: Task,
}

/// How long, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) quick: bool,
    pub(super) epochs: u64,
    pub(super) batch: usize,
}

impl Scale {
    pub(super) fn new(quick: bool, epochs: Option<u64>, batch: Option<usize>) -> Self {
        let (usual_epochs, usual_batch) = if quick { (60, 8) } else { (200, 128) };
        Self {
            quick,
            epochs: epochs.unwrap_or(usual_epochs),
            batch: batch.unwrap_or(usual_batch),
        }
    }

    /// What a run is, in words.
    pub(super) fn display_name(&self, task: Task) -> String {
        let what = match (self.quick, task) {
            (true, _) => format!("{QUICK_IMAGES} of the digits to train on, a small network"),
            (_, Task::Cifar10) => "CIFAR-10, the paper's ResNet-50".into(),
            (_, Task::Cifar100) => "CIFAR-100, WRN-28-10".into(),
        };
        let Self { epochs, batch, .. } = self;
        format!("{what}, {WORKERS} workers, batch {batch}, {epochs} epochs")
    }

    /// How many a worker has to train on.
    pub(super) fn images_each(&self) -> usize {
        let images = if self.quick { QUICK_IMAGES } else { 50_000 };
        images / WORKERS
    }

    /// Whether the paper's numbers are of this scale: in its text or in its code.
    pub(super) fn is_the_paper_s(&self) -> bool {
        !self.quick && self.epochs == 200 && matches!(self.batch, 128 | 16)
    }

    /// The folder of all runs of a task at this scale.
    pub(super) fn folder(&self, task: Task) -> String {
        let (data, usual_batch) = match (self.quick, task) {
            (true, _) => ("digits", 8),
            (_, Task::Cifar10) => ("cifar10", 128),
            (_, Task::Cifar100) => ("cifar100", 128),
        };
        let mut name = format!("{data}-{}-epochs", self.epochs);
        if self.batch != usual_batch {
            let _ = write!(name, "-batch-{}", self.batch);
        }
        name
    }
}

impl Algorithm {
    pub(super) fn display_name(self) -> &'static str {
        match self {
            Self::Dpsgd => "D-PSGD",
            Self::AlDsgdOverDpsgd => "AL-DSGD over D-PSGD",
            Self::Matcha => "MATCHA",
            Self::AlDsgdOverMatcha => "AL-DSGD over MATCHA",
        }
    }

    pub(super) fn is_led(self) -> bool {
        matches!(self, Self::AlDsgdOverDpsgd | Self::AlDsgdOverMatcha)
    }

    fn base(self) -> &'static str {
        match self {
            Self::Dpsgd | Self::AlDsgdOverDpsgd => "dpsgd",
            Self::Matcha | Self::AlDsgdOverMatcha => "matcha",
        }
    }
}

impl Cell {
    /// On CIFAR-10, with all of its parts.
    pub(super) const fn new(algorithm: Algorithm, links: u8, copies: u8) -> Self {
        Self {
            algorithm,
            links,
            copies,
            kept: Kept::All,
            task: Task::Cifar10,
        }
    }

    pub(super) const fn keeping(self, kept: Kept) -> Self {
        Self { kept, ..self }
    }

    pub(super) const fn on(self, task: Task) -> Self {
        Self { task, ..self }
    }

    /// The variant whose run stands for this one: some are the same.
    pub(super) fn resolved(&self, variant: Variant) -> Variant {
        match (self.algorithm, variant) {
            // The text's D-PSGD uses its whole graph, as it should; in copies it has the paper's.
            (Algorithm::Dpsgd, Variant::Written) if self.copies == 1 => Variant::Sound,
            // MATCHA was released as it was written.
            (Algorithm::Matcha, _) if self.copies == 1 => Variant::Sound,
            _ => variant,
        }
    }

    /// What its run is called: as a file and as a folder.
    pub(super) fn name(&self, variant: Variant) -> String {
        self.name_with(self.resolved(variant))
    }

    fn name_with(&self, variant: Variant) -> String {
        let led = if self.algorithm.is_led() {
            "al-dsgd-"
        } else {
            ""
        };
        let kept = match self.kept {
            Kept::All => String::new(),
            Kept::Only(part) => format!("-only-{}", part.replace('_', "-")),
            Kept::Metropolis => "-metropolis".into(),
        };
        format!(
            "{led}{}-{}-{}x{}{kept}",
            self.algorithm.base(),
            variant.name(),
            self.links,
            self.copies
        )
    }

    /// What it is but for the graph's links.
    pub(super) fn display_name(&self) -> String {
        format!("{}{}", self.algorithm.display_name(), self.more_words())
    }

    /// What there is to say beside the algorithm and the graph's links.
    pub(super) fn more_words(&self) -> String {
        let mut words = String::new();
        if self.copies > 1 {
            let _ = write!(words, ", {} graphs", self.copies);
        }
        match self.kept {
            Kept::All => {}
            Kept::Only(part) => {
                let _ = write!(words, ", {part} alone");
            }
            Kept::Metropolis => words += ", Metropolis weights",
        }
        if self.task == Task::Cifar100 {
            words += ", CIFAR-100";
        }
        words
    }

    /// What its configuration is called.
    pub(super) fn config_name(&self, variant: Variant) -> String {
        self.alias(self.resolved(variant))
    }

    /// What its configuration would be called if no other's run stood for it.
    pub(super) fn alias(&self, variant: Variant) -> String {
        let data = match self.task {
            Task::Cifar10 => "",
            Task::Cifar100 => "cifar100-",
        };
        format!("{data}{}", self.name_with(variant))
    }

    /// Its configuration.
    pub(super) fn config(&self, variant: Variant, scale: &Scale, seed: u64) -> String {
        let variant = self.resolved(variant);
        let released = variant == Variant::Released;
        let mut text = format!("seed = {seed}\n");
        let (data, model) = match (scale.quick, self.task) {
            (true, _) => ("digits", "cnn"),
            (_, Task::Cifar10) => ("cifar10", "thin-resnet50"),
            (_, Task::Cifar100) => ("cifar100", "wrn28-10"),
        };
        let _ = write!(
            text,
            "model = \"{model}\"\n\n[data]\nname = \"{data}\"\npartition = \"iid\"\n"
        );
        if scale.quick {
            // So few that it matters from whom one learns.
            let _ = writeln!(text, "train_examples = {QUICK_IMAGES}");
        }
        let reduced = match self.links {
            13 => String::new(),
            links => format!("@{links}"),
        };
        let _ = write!(text, "\n[graph]\ntopology = \"paper:L1{reduced}\"\n");
        if self.copies > 1 {
            let _ = writeln!(text, "copies = {}", self.copies);
            // `released` brings them along where an algorithm has such a variant.
            if released && self.algorithm == Algorithm::Matcha {
                text.push_str("relabelings = \"paper\"\norder = \"released\"\n");
            }
            if variant == Variant::Written {
                text.push_str("relabelings = \"paper\"\n");
            }
        }
        if self.kept == Kept::Metropolis {
            text.push_str("weights = \"metropolis\"\n");
        }
        text.push_str("\n[algorithm]\n");
        if self.algorithm.is_led() {
            let base = self.algorithm.base();
            let _ = write!(text, "name = \"al-dsgd\"\nbase = \"{base}\"\n");
            if variant != Variant::Sound {
                let _ = writeln!(text, "variant = \"{}\"", variant.name());
            }
        } else {
            let _ = writeln!(text, "name = \"{}\"", self.algorithm.base());
            if released && self.algorithm == Algorithm::Dpsgd {
                text.push_str("variant = \"released\"\n");
            }
        }
        for part in PULLS {
            let stays = match self.kept {
                Kept::All | Kept::Metropolis => true,
                Kept::Only(kept) => kept == part,
            };
            if !stays {
                let _ = writeln!(text, "{part} = 0.0");
            }
        }
        let Scale { epochs, batch, .. } = scale;
        let (half, later) = (*epochs as f64 / 2.0, *epochs as f64 * 0.75);
        let rate = if scale.quick { 0.1 } else { 0.4 };
        let _ = write!(
            text,
            "\n[training]\nepochs = {epochs}\nbatch_size = {batch}\nlearning_rate = {rate}\ndecay = \"steps\"\n\
             decay_at = [{half:?}, {later:?}]\ndecay_factor = 0.1\nmomentum = 0.0\nweight_decay = 5e-4\n\
             test_every = 5\ncheckpoint_every = 2450\n"
        );
        text
    }
}

/// AL-DSGD's four: extra weights of the two leaders, and forces towards them.
pub(super) const PULLS: [&str; 4] = ["w_best", "w_degree", "lambda_best", "lambda_degree"];

/// Images to train on at the quick scale.
pub(super) const QUICK_IMAGES: usize = 400;

/// On the paper's graphs.
pub(super) const WORKERS: usize = 8;

/// What the paper reduces its graph to.
pub(super) const LINKS: [u8; 5] = [13, 11, 9, 7, 5];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use upwash::config::Config;

    #[test]
    fn names_tell_apart_what_differs() {
        let mut found = std::collections::BTreeMap::new();
        for exhibit in super::super::catalogue::all() {
            for cell in exhibit.cells() {
                for variant in VARIANTS {
                    let scale = Scale::new(false, None, None);
                    let place = (scale.folder(cell.task), cell.name(variant));
                    let config = cell.config(variant, &scale, 1);
                    Config::parse(&config, &[])
                        .unwrap_or_else(|error| panic!("{place:?}: {error}"));
                    let known = found.entry(place.clone()).or_insert(config.clone());
                    assert_eq!(*known, config, "{place:?}");
                }
            }
        }
        let mut configs: Vec<&String> = found.values().collect();
        configs.sort();
        configs.dedup();
        assert_eq!(configs.len(), found.len(), "two names for one run");
    }
}
