//! What a run and its checkpoints belong to: the configuration, the graph and the data.

use super::{Experiment, INITIAL_MODEL_FILE};
use crate::config::{Config, GraphConfig, NetworkConfig, TrainingConfig};

/// The lines with checksums.
pub(crate) const DATA_CHECKSUM: &str = "# checksum of the graph and the data: ";
pub(crate) const ALGORITHM_CHECKSUM: &str = "# checksum of the algorithm: ";

impl Experiment {
    /// The identity of a run and of its checkpoints: the configuration, a checksum of the graph and the data, and one of
    /// the algorithm if the program that supplies it gives one. It leaves out how processes reach each other and the folders of files.
    pub fn identity(&self) -> String {
        let config = Config {
            graph: GraphConfig { topology: self.config.graph.topology.without_folder(), ..self.config.graph.clone() },
            model: self.config.model.without_folder(),
            data: self.config.data.without_folder(),
            network: NetworkConfig { precision: self.config.network.precision, ..Default::default() },
            training: TrainingConfig {
                initial_model: self.initial_model.as_ref().map(|_| INITIAL_MODEL_FILE.into()),
                ..self.config.training.clone()
            },
            ..self.config.clone()
        };
        let (config, checksum) = (config.to_toml(), self.fingerprint());
        let algorithm = match self.method.synchronous().map_or(0, |algorithm| algorithm.fingerprint()) {
            0 => String::new(),
            checksum => format!("{ALGORITHM_CHECKSUM}{checksum:08x}\n"),
        };
        format!("{config}\n{DATA_CHECKSUM}{checksum:08x}\n{algorithm}")
    }

    /// A hash of the [`identity`](Self::identity). It is equal in all processes of a run.
    pub fn run_number(&self) -> u64 {
        let identity = self.identity();
        let halves = [crc32fast::hash(identity.as_bytes()), self.fingerprint()];
        u64::from(halves[0]) << 32 | u64::from(halves[1])
    }

    /// A checksum of the graph, its schedule and the data. A run can only be resumed with the same checksum, whatever
    /// the names of the graph and the data set.
    pub fn fingerprint(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        for (a, b) in self.graph.edges() {
            hash.update(&(*a as u64).to_le_bytes());
            hash.update(&(*b as u64).to_le_bytes());
        }
        // Schedules over the same graph can differ in the links of a round.
        for round in (0..16).map(|index| self.schedule.round(index)) {
            for (a, b) in round.links() {
                hash.update(&(*a as u64).to_le_bytes());
                hash.update(&(*b as u64).to_le_bytes());
            }
        }
        if let Some(training_loop) = &self.training_loop {
            hash.update(&training_loop.fingerprint.to_le_bytes());
        }
        if self.config.model.file().is_some() {
            hash.update(format!("{:?}", self.network.layers).as_bytes());
        }
        if let Some(model) = &self.initial_model {
            hash.update(model.bytes());
        }
        for images in [&self.data.train, &self.data.test] {
            hash.update(&images.labels);
            hash.update(&images.pixels);
        }
        hash.finalize()
    }
}
