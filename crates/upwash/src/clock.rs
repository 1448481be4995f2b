//! What a run would cost on a cluster or a network: simulated time.
//!
//! Every worker has a clock of its own. A gradient takes so many seconds, a message so many more; a
//! worker goes on when it has what it waits for, so that a slow one holds up its neighbours first and
//! others later. Nothing of this slows the run itself.

use crate::config::{ClockConfig, ConfigError, Duplex, PerLink};
use std::collections::BTreeMap;
use std::sync::Mutex;
use upwash_topology::random::Stream;
use upwash_topology::{Edge, Graph};

/// The cost model.
#[derive(Debug)]
pub struct Clock {
    gradients: Vec<f64>,
    spread: f64,
    straggler_probability: f64,
    straggler_factor: f64,
    /// Bytes a second.
    bandwidth: PerLink,
    /// Seconds.
    latency: PerLink,
    duplex: Duplex,
    seed: u64,
    /// The links of a round in the order in which they are used, for rounds that are alike.
    order: Mutex<(Vec<Edge>, Vec<Edge>)>,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Who sends it.
    pub from: usize,
    /// Who gets it.
    pub to: usize,
    /// How long it is.
    pub bytes: u64,
}

impl Clock {
    /// For so many workers, of whom `centre` computes nothing.
    pub fn new(
        config: &ClockConfig,
        workers: usize,
        centre: Option<usize>,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        config.check(workers)?;
        let preset = config.network.preset();
        let mut gradients = match config.gradient_seconds.as_deref() {
            None => vec![preset.gradient_seconds; workers],
            Some([all]) => vec![*all; workers],
            Some(each) => each.to_vec(),
        };
        for (worker, factor) in &config.slow {
            gradients[*worker] *= factor;
        }
        if let Some(centre) = centre {
            gradients[centre] = 0.0;
        }
        let scaled = |values: &PerLink, factor: f64| match values {
            PerLink::All(value) => PerLink::All(value * factor),
            PerLink::Each(rows) => {
                let row = |row: &Vec<f64>| row.iter().map(|value| value * factor).collect();
                PerLink::Each(rows.iter().map(row).collect())
            }
        };
        let all = |value: Option<f64>, preset: f64| value.unwrap_or(preset);
        let bandwidth = config.megabits.clone();
        let latency = config.latency_ms.clone();
        Ok(Self {
            gradients,
            spread: all(config.gradient_spread, preset.gradient_spread),
            straggler_probability: all(config.straggler_probability, preset.straggler_probability),
            straggler_factor: all(config.straggler_factor, preset.straggler_factor),
            bandwidth: scaled(
                &bandwidth.unwrap_or(PerLink::All(preset.megabits)),
                1e6 / 8.0,
            ),
            latency: scaled(&latency.unwrap_or(PerLink::All(preset.latency_ms)), 1e-3),
            duplex: config.duplex,
            seed,
            order: Mutex::default(),
        })
    }

    /// What a worker's gradient number `draw` takes: the mean times a log-normal factor of mean 1, and
    /// now and then a straggler's factor.
    pub fn gradient(&self, worker: usize, draw: u64) -> f64 {
        let mean = self.gradients[worker];
        if self.spread == 0.0 && self.straggler_probability == 0.0 {
            return mean;
        }
        let mut stream = Stream::new(self.seed, "gradient seconds", &[worker as u64, draw]);
        let (sigma, normal) = (self.spread, stream.normal());
        let spread = (sigma * normal - sigma * sigma / 2.0).exp();
        let straggles = stream.uniform() < self.straggler_probability;
        let factor = if straggles {
            self.straggler_factor
        } else {
            1.0
        };
        mean * spread * factor
    }

    /// Seconds on the wire, without the latency.
    fn wire(&self, transfer: &Transfer) -> f64 {
        transfer.bytes as f64 / self.bandwidth.at(transfer.from, transfer.to)
    }

    /// What a message takes from its sender to its receiver where nothing else is on the way.
    pub fn message(&self, transfer: &Transfer) -> f64 {
        self.latency.at(transfer.from, transfer.to) + self.wire(transfer)
    }

    /// Moves everyone's clock from when it is ready to send to when it has everything. Transfers
    /// come by receiver.
    pub fn exchange(&self, clocks: &mut [f64], transfers: &[Transfer]) {
        match self.duplex {
            Duplex::Full => self.exchange_all_at_once(clocks, transfers),
            Duplex::OneAtATime => self.exchange_in_turn(clocks, transfers),
        }
    }

    /// A worker's messages leave one after the other and arrive one after the other, both at once.
    fn exchange_all_at_once(&self, clocks: &mut [f64], transfers: &[Transfer]) {
        let ready = clocks.to_vec();
        let (mut sent, mut got) = (ready.clone(), ready.clone());
        for transfer in transfers {
            let wire = self.wire(transfer);
            sent[transfer.from] += wire;
            // It arrives behind what arrived before it, and not before it left.
            let left = sent[transfer.from] - wire;
            let begins = got[transfer.to].max(left);
            got[transfer.to] = begins + wire;
            let arrived = begins + wire + self.latency.at(transfer.from, transfer.to);
            clocks[transfer.to] = clocks[transfer.to].max(arrived);
        }
        for (clock, sent) in clocks.iter_mut().zip(sent) {
            *clock = clock.max(sent);
        }
    }

    /// A worker uses one link at a time, for both directions at once: MATCHA's delay model.
    fn exchange_in_turn(&self, clocks: &mut [f64], transfers: &[Transfer]) {
        let mut links: BTreeMap<Edge, f64> = BTreeMap::new();
        for transfer in transfers {
            let (a, b) = (
                transfer.from.min(transfer.to),
                transfer.from.max(transfer.to),
            );
            let seconds = links.entry((a, b)).or_default();
            *seconds = seconds.max(self.message(transfer));
        }
        for (a, b) in self.in_matchings(clocks.len(), links.keys().copied().collect()) {
            let ends = clocks[a].max(clocks[b]) + links[&(a, b)];
            (clocks[a], clocks[b]) = (ends, ends);
        }
    }

    /// The links, matching by matching.
    fn in_matchings(&self, nodes: usize, links: Vec<Edge>) -> Vec<Edge> {
        let mut order = self.order.lock().unwrap_or_else(|error| error.into_inner());
        if order.0 != links {
            let graph = Graph::new(nodes, links.iter().copied());
            let ordered = graph.map_or_else(|_| links.clone(), |graph| graph.matchings().concat());
            *order = (links, ordered);
        }
        order.1.clone()
    }

    /// An all-reduce in a ring: everyone waits for the last, and then for 2 (n - 1) pieces of 1/n.
    pub fn all_reduce(&self, clocks: &mut [f64], bytes: u64, ring: &[usize]) {
        let parts = ring.len() as f64;
        if ring.len() < 2 {
            return;
        }
        let slowest = ring
            .iter()
            .zip(ring.iter().cycle().skip(1))
            .map(|(&from, &to)| {
                let wire = bytes as f64 / parts / self.bandwidth.at(from, to);
                self.latency.at(from, to) + wire
            })
            .fold(0.0, f64::max);
        let begins = ring
            .iter()
            .map(|&worker| clocks[worker])
            .fold(0.0, f64::max);
        let ends = begins + 2.0 * (parts - 1.0) * slowest;
        clocks.iter_mut().for_each(|clock| *clock = ends);
    }
}

impl PerLink {
    fn at(&self, from: usize, to: usize) -> f64 {
        match self {
            Self::All(value) => *value,
            Self::Each(rows) => rows[from][to],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(text: &str, workers: usize) -> Clock {
        let config: ClockConfig = toml::from_str(text).unwrap();
        Clock::new(&config, workers, None, 1).unwrap()
    }

    fn transfers(links: &[(usize, usize)]) -> Vec<Transfer> {
        let both = links.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
        both.map(|(from, to)| Transfer {
            from,
            to,
            bytes: 1_000_000,
        })
        .collect()
    }

    /// 8 Mbit/s is a second for a megabyte.
    const SLOW: &str = "megabits = 8.0\nlatency_ms = 100.0\n";

    #[test]
    fn a_path_takes_a_link_at_a_time_or_both_at_once() {
        // 0 - 1 - 2: the middle one has two links.
        let links = transfers(&[(0, 1), (1, 2)]);
        let mut clocks = vec![0.0; 3];
        clock(&format!("{SLOW}duplex = \"one-at-a-time\"\n"), 3).exchange(&mut clocks, &links);
        // In matchings: (0, 1) then (1, 2), or the other way round; the middle is in both.
        assert!((clocks[1] - 2.2).abs() < 1e-9, "{clocks:?}");
        let mut ends = [clocks[0], clocks[2]];
        ends.sort_by(f64::total_cmp);
        assert!(
            (ends[0] - 1.1).abs() < 1e-9 && (ends[1] - 2.2).abs() < 1e-9,
            "{ends:?}"
        );
        let mut clocks = vec![0.0; 3];
        clock(SLOW, 3).exchange(&mut clocks, &links);
        assert!((clocks[1] - 2.1).abs() < 1e-9, "{clocks:?}"); // two in, two out, at once
        assert!(clocks[0] >= 1.1 && clocks[2] <= 2.1 + 1e-9, "{clocks:?}");
    }

    #[test]
    fn a_slow_worker_holds_up_its_neighbours_only() {
        let links = transfers(&[(0, 1), (2, 3)]);
        let mut clocks = vec![10.0, 0.0, 0.0, 0.0];
        clock(SLOW, 4).exchange(&mut clocks, &links);
        assert!(
            (clocks[1] - 11.1).abs() < 1e-9 && (clocks[3] - 1.1).abs() < 1e-9,
            "{clocks:?}"
        );
    }

    #[test]
    fn a_ring_moves_twice_the_vector_in_pieces() {
        let mut clocks = vec![0.0, 3.0, 0.0, 0.0];
        clock(SLOW, 4).all_reduce(&mut clocks, 1_000_000, &[0, 1, 2, 3]);
        assert!(
            (clocks[0] - (3.0 + 6.0 * (0.25 + 0.1))).abs() < 1e-9,
            "{clocks:?}"
        );
        assert!(clocks.iter().all(|clock| *clock == clocks[0]));
    }

    #[test]
    fn gradients_take_what_they_are_said_to() {
        let fixed = clock(
            "network = \"datacenter\"\ngradient_seconds = [0.5]\nslow = [[1, 10.0]]\n",
            2,
        );
        let fixed_spread = [fixed.gradient(0, 7), fixed.gradient(1, 7)];
        assert_eq!(fixed_spread, [0.5, 5.0]);
        let text = "gradient_seconds = [2.0]\ngradient_spread = 0.5\n";
        let spread = clock(text, 1);
        let mean: f64 = (0..20_000).map(|k| spread.gradient(0, k)).sum::<f64>() / 20_000.0;
        assert!((mean - 2.0).abs() < 0.03, "{mean}");
        let text = "network = \"datacenter\"\ngradient_seconds = [1.0]\nstraggler_probability = 0.1\nstraggler_factor = 11.0\n";
        let straggling = clock(text, 1);
        let mean: f64 = (0..20_000).map(|k| straggling.gradient(0, k)).sum::<f64>() / 20_000.0;
        assert!((mean - 2.0).abs() < 0.1, "{mean}");
    }
}
