//! From a configuration to what a run needs: data, schedule, algorithm.

use crate::algorithm::{AlDsgd, Algorithm, Dpsgd, Pull, Variant};
use crate::config::{
    AlgorithmConfig, AlgorithmName, Base, Config, ConfigError, CopyOrder, Links, Relabellings,
};
use crate::data::{
    Dataset, PartitionError, Sampler, Source, StoreError, Synthetic, SyntheticError, digits,
};
use crate::fleet::{Fleet, Model};
use crate::model::Network;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use upwash_topology::{
    Graph, Matcha, MatchaError, Order, Rotation, RotationError, Schedule, ScheduleError, SpecError,
    Weights, paper_relabellings,
};

/// All that is fixed before the first round.
///
/// ```
/// use upwash::{config::Config, experiment::{Experiment, Folders}};
/// let experiment = Experiment::prepare(Config::default(), &Folders::default())?;
/// assert_eq!(experiment.workers(), 8);
/// # Ok::<(), upwash::experiment::ExperimentError>(())
/// ```
#[derive(Debug)]
pub struct Experiment {
    /// What was asked for.
    pub config: Config,
    /// What is trained on.
    pub data: Arc<Dataset>,
    /// The graph as it is before any rotation.
    pub graph: Graph,
    /// Which links are up when.
    pub schedule: Schedule,
    /// What is done over them.
    pub algorithm: Box<dyn Algorithm>,
    /// Who trains on what when.
    pub sampler: Sampler,
    /// The network.
    pub network: Network,
    /// What a user should know before the start.
    pub warnings: Vec<String>,
}

/// Where files are.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// Those that the configuration names: the configuration's own folder.
    pub files: PathBuf,
    /// Data sets, each in a folder of its name.
    pub data: PathBuf,
}

impl Folders {
    /// Files from the current folder, and data sets from where `upwash data get` puts them:
    /// `$UPWASH_DATA`, else the user's data folder. Where there is neither, only data that needs no
    /// files can be had.
    pub fn standard() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let below = |variable: Option<std::ffi::OsString>, path: &str| {
            variable.map(|folder| PathBuf::from(folder).join(path))
        };
        let data = variable("UPWASH_DATA")
            .map(PathBuf::from)
            .or_else(|| below(variable("XDG_DATA_HOME"), "upwash"))
            .or_else(|| below(variable("HOME"), ".local/share/upwash"))
            .unwrap_or_default();
        let files = PathBuf::new();
        Self { files, data }
    }
}

/// Why there is no experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// A value is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The graph cannot be built.
    #[error(transparent)]
    Graph(#[from] SpecError),
    /// There is no MATCHA for it.
    #[error(transparent)]
    Matcha(#[from] MatchaError),
    /// There is no such rotation.
    #[error(transparent)]
    Rotation(#[from] RotationError),
    /// There is no such schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The images cannot be shared out.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// Data that is not there.
    #[error(transparent)]
    Data(#[from] StoreError),
    /// Made-up data that cannot be made.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// Two settings that exclude each other.
    #[error("{0}")]
    Conflict(String),
}

impl Experiment {
    /// Prepares what `config` asks for.
    pub fn prepare(config: Config, folders: &Folders) -> Result<Self, ExperimentError> {
        config.check()?;
        let mut config = config.resolved();
        config.graph.topology = config.graph.topology.located_in(&folders.files);
        let graph = config.graph.topology.build()?;
        if let Some(workers) = config.workers.filter(|&workers| workers != graph.nodes()) {
            return Err(ExperimentError::Conflict(format!(
                "workers = {workers}, but the graph `{}` has {}: change one of them, or leave \
                 `workers` out",
                config.graph.topology,
                graph.nodes()
            )));
        }
        let mut data = load(&config.data.name, &folders.data)?;
        data.train
            .truncate(config.data.train_images.unwrap_or(usize::MAX));
        data.test
            .truncate(config.data.test_images.unwrap_or(usize::MAX));
        let shares = config.data.partition.share_out(
            &data.train,
            data.classes,
            graph.nodes(),
            config.seed,
        )?;
        let sampler = Sampler::new(shares, config.training.batch, config.seed);
        let schedule = schedule(&config, &graph, sampler.rounds_per_epoch())?;
        let network = config.model.network(data.train.shape, data.classes);
        check_size(&config, &network, graph.nodes())?;
        Ok(Self {
            algorithm: config.algorithm.build(),
            warnings: warnings(&config, &schedule),
            data: Arc::new(data),
            graph,
            schedule,
            sampler,
            network,
            config,
        })
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.graph.nodes()
    }

    /// How many rounds there are in all.
    pub fn rounds(&self) -> u64 {
        self.config
            .training
            .epochs
            .saturating_mul(self.sampler.rounds_per_epoch())
    }

    /// All workers on this machine's CPU, with gradients by `model`.
    pub fn fleet(&self, model: Arc<dyn Model>) -> Fleet {
        let training = &self.config.training;
        let (data, sampler) = (Arc::clone(&self.data), self.sampler.clone());
        Fleet::new(
            model,
            data,
            sampler,
            training.sgd(),
            training.start,
            self.config.seed,
        )
    }

    /// The algorithm in words, as `AL-DSGD (sound) over MATCHA (budget 0.5)`.
    pub fn algorithm_name(&self) -> String {
        let AlgorithmConfig {
            name,
            base,
            variant,
            budget,
            ..
        } = self.config.algorithm;
        let overlap = if self.config.algorithm.overlap {
            ", overlap"
        } else {
            ""
        };
        let matcha = format!("MATCHA (budget {budget})");
        let variant = format!("{variant:?}").to_lowercase();
        let name: String = match (name, base) {
            (AlgorithmName::Dpsgd, _) if self.config.graph.links == Some(Links::Released) => {
                "D-PSGD (released)".into()
            }
            (AlgorithmName::Dpsgd, _) => "D-PSGD".into(),
            (AlgorithmName::Matcha, _) => matcha,
            (AlgorithmName::AlDsgd, Base::Dpsgd) => format!("AL-DSGD ({variant}) over D-PSGD"),
            (AlgorithmName::AlDsgd, Base::Matcha) => format!("AL-DSGD ({variant}) over {matcha}"),
        };
        name + overlap
    }

    /// The graph in words: its spelling, and what is special about its use, as `ring:8, 3 copies,
    /// metropolis weights`.
    pub fn graph_name(&self) -> String {
        let graph = &self.config.graph;
        let mut words = vec![graph.topology.to_string()];
        match graph.links {
            None | Some(Links::Whole) => {}
            Some(links) => words.push(format!("links {}", spelled(&links))),
        }
        if graph.copies > 1 {
            words.push(format!("{} copies", graph.copies));
        }
        if graph.weights != Weights::Optimal {
            words.push(format!("{} weights", graph.weights));
        }
        if self.config.algorithm.lazy == Some(true) && !self.config.algorithm.overlap {
            words.push("lazy".into());
        }
        words.join(", ")
    }

    /// A number that changes with the graph or the data, whatever they are called: a run that is
    /// resumed must have the same.
    pub fn fingerprint(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        for (a, b) in self.graph.edges() {
            hash.update(&(*a as u64).to_le_bytes());
            hash.update(&(*b as u64).to_le_bytes());
        }
        // The same links can be up in other rounds.
        for round in (0..16).map(|index| self.schedule.round(index)) {
            for (a, b) in round.links() {
                hash.update(&(*a as u64).to_le_bytes());
                hash.update(&(*b as u64).to_le_bytes());
            }
        }
        for images in [&self.data.train, &self.data.test] {
            hash.update(&images.labels);
            hash.update(&images.pixels);
        }
        hash.finalize()
    }
}

/// As a configuration spells it.
fn spelled(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.trim_matches('"').into()
}

/// Networks that cannot be, or that no memory holds.
fn check_size(config: &Config, network: &Network, workers: usize) -> Result<(), ExperimentError> {
    let conflict = |what: String| Err(ExperimentError::Conflict(what));
    let Some(parameters) = network.checked_size() else {
        return conflict(format!(
            "model = \"{}\": a layer has no inputs, so small are the images: take another model",
            config.model
        ));
    };
    // Models, updates and velocities.
    let bytes = parameters
        .saturating_mul(3 * 4)
        .saturating_mul(workers as u128);
    if bytes > 1 << 40 {
        return conflict(format!(
            "model = \"{}\": {workers} workers of {parameters} parameters need {} GB: take a \
             smaller model, or fewer workers",
            config.model,
            bytes / 1_000_000_000
        ));
    }
    Ok(())
}

impl AlgorithmConfig {
    /// The strength of the pulls: the variant's, but for what is given.
    pub fn pull(&self) -> Pull {
        let default = Pull::default_of(self.variant);
        Pull {
            w_best: self.w_best.unwrap_or(default.w_best),
            w_degree: self.w_degree.unwrap_or(default.w_degree),
            lambda_best: self.lambda_best.unwrap_or(default.lambda_best),
            lambda_degree: self.lambda_degree.unwrap_or(default.lambda_degree),
        }
    }

    fn build(&self) -> Box<dyn Algorithm> {
        let base = Box::new(Dpsgd {
            overlap: self.overlap,
            lazy: self.lazy == Some(true),
        });
        match self.name {
            AlgorithmName::Dpsgd | AlgorithmName::Matcha => base,
            AlgorithmName::AlDsgd => Box::new(AlDsgd {
                base,
                variant: self.variant,
                pull: self.pull(),
                scope: self.leaders,
            }),
        }
    }

    /// Whether MATCHA decides which links are up.
    pub(crate) fn draws_matchings(&self) -> bool {
        self.name == AlgorithmName::Matcha
            || self.name == AlgorithmName::AlDsgd && self.base == Base::Matcha
    }
}

/// A data set by its name.
fn load(name: &str, folder: &Path) -> Result<Dataset, ExperimentError> {
    match name.split_once(':').unwrap_or((name, "")) {
        ("digits", "") => Ok(digits()),
        ("synthetic", options) => Ok(Synthetic::parse(options)?.build()),
        _ if folder.as_os_str().is_empty() => {
            Source::named(name)?;
            Err(StoreError::NoFolder.into())
        }
        _ => Ok(Source::named(name)?.load(folder)?),
    }
}

/// Which links are up when, over one graph or its copies.
fn schedule(config: &Config, graph: &Graph, epoch: u64) -> Result<Schedule, ExperimentError> {
    let (settings, seed) = (&config.graph, config.seed);
    let over = |graph: &Graph| -> Result<Schedule, ExperimentError> {
        if config.algorithm.draws_matchings() {
            if settings.links.is_some_and(|links| links != Links::Whole) {
                let conflict = "graph.links: MATCHA chooses the links itself; leave it at `whole`";
                return Err(ExperimentError::Conflict(conflict.into()));
            }
            let matcha = Matcha::solve(graph, config.algorithm.budget)?;
            return Ok(Schedule::matcha_with(
                &matcha,
                settings.weights.clone(),
                seed,
            )?);
        }
        let whole = settings.links.unwrap_or(Links::Whole) == Links::Whole;
        if !whole && settings.weights != Weights::Optimal {
            let conflict = "graph.weights: with links that come in turn the weights are given (a half \
                            each, or the released code's); leave it out, or graph.links at `whole`";
            return Err(ExperimentError::Conflict(conflict.into()));
        }
        Ok(match settings.links.unwrap_or(Links::Whole) {
            Links::Whole => Schedule::fixed(graph, &settings.weights)?,
            Links::Released => Schedule::released_flags(graph)?,
            Links::Alternating => Schedule::alternating(graph),
            Links::RandomMatching => Schedule::random_matching(graph, seed),
            Links::OnePeerExponential => Schedule::one_peer_exponential(graph.nodes()),
        })
    };
    let base = over(graph)?;
    if settings.copies == 1 {
        return Ok(base);
    }
    let relabellings = match settings.relabellings.unwrap_or(Relabellings::Balanced) {
        Relabellings::Balanced => Rotation::balance(graph, settings.copies)?
            .relabellings()
            .to_vec(),
        Relabellings::Paper => {
            if graph.nodes() != 8 || settings.copies > 3 {
                let conflict =
                    "graph.relabellings: the paper's are for 8 workers and at most 3 copies";
                return Err(ExperimentError::Conflict(conflict.into()));
            }
            paper_relabellings()[..settings.copies].to_vec()
        }
    };
    if settings.first_copy > 0 && settings.order != Some(CopyOrder::InTurn) {
        let conflict =
            "graph.first_copy: there is a first copy with graph.order = \"in-turn\" only";
        return Err(ExperimentError::Conflict(conflict.into()));
    }
    let order = match settings.order.unwrap_or(CopyOrder::InTurn) {
        CopyOrder::InTurn => Order::InTurn {
            start: settings.first_copy,
        },
        CopyOrder::Random => Order::Random { seed },
        CopyOrder::Released => Order::Released {
            rounds_per_epoch: epoch,
        },
    };
    Ok(base.rotating(&relabellings, order)?)
}

fn warnings(config: &Config, schedule: &Schedule) -> Vec<String> {
    let mut warnings = Vec::new();
    let written = config.algorithm.name == AlgorithmName::AlDsgd
        && config.algorithm.variant == Variant::Written;
    let Seen { weak, pieces } = Seen::of(schedule);
    if written && !weak.is_empty() {
        warnings.push(format!(
            "workers {weak:?} weigh their own model 0 or less, and the written rule scales steps by \
             that weight: they will not descend. Set graph.weights = \"metropolis\"."
        ));
    }
    if config.algorithm.overlap
        && config.algorithm.lazy == Some(false)
        && config.graph.weights != Weights::Metropolis
    {
        warnings.push(
            "overlap with weights that are not lazy diverges easily (W has eigenvalues near -1). \
             Leave algorithm.lazy out, or set graph.weights = \"metropolis\"."
                .into(),
        );
    }
    if pieces > 1 {
        warnings.push(format!(
            "the links that are used leave the workers in {pieces} pieces, which learn for themselves"
        ));
    }
    warnings
}

/// What the rounds of a schedule have in common, from a good look at the first ones.
struct Seen {
    /// Who weighs its own model 0 or less in some round.
    weak: Vec<usize>,
    /// In how many pieces all links together leave the workers.
    pieces: usize,
}

impl Seen {
    fn of(schedule: &Schedule) -> Self {
        const ROUNDS: u64 = 200;
        const ENTRIES: usize = 4_000_000;
        let (mut weak, mut links, mut seen) = (BTreeSet::new(), BTreeSet::new(), 0);
        for round in (0..ROUNDS).map(|index| schedule.round(index)) {
            weak.extend(round.mixing().without_positive_diagonal());
            for worker in 0..schedule.nodes() {
                let senders = round.senders(worker);
                links.extend(senders.map(|sender| (sender.min(worker), sender.max(worker))));
                seen += 1 + round.degree(worker);
            }
            if seen > ENTRIES {
                break;
            }
        }
        let union = Graph::new(schedule.nodes(), links);
        let pieces = union.map_or(1, |union| union.pieces().len());
        let weak = weak.into_iter().collect();
        Self { weak, pieces }
    }
}
