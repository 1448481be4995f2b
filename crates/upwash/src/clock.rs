//! The cost model: the time that a run would take on a cluster or a network, in simulated seconds.
//!
//! Every worker has its own clock. Gradients and messages take time. In a round, a worker continues when it has
//! received what it waits for and its own messages have left (they contain the model that its next step changes). So a
//! slow worker delays its neighbors first, and others later. None of this slows down the run itself. Almost half of this file
//! is tests against times computed by hand.

use crate::algorithm::PairExchange;
use crate::config::{ClockConfig, ConfigError, Duplex, PerLink, PerWorker};
use crate::ids::WorkerId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
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
    /// Bytes per second.
    bandwidth: PerLink,
    /// Seconds.
    latency: PerLink,
    duplex: Duplex,
    seed: u64,
    /// The links of the last round and the matching of each, reused while rounds have the same links.
    cached: Mutex<(Vec<Edge>, BTreeMap<Edge, usize>)>,
}

/// Seconds, with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Time(pub(crate) f64);

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A message in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The sender.
    pub from: WorkerId,
    /// The receiver.
    pub to: WorkerId,
    /// The size of the message.
    pub bytes: u64,
}

impl Transfer {
    /// The link that it uses.
    fn link(&self) -> Edge {
        (self.from.min(self.to).0, self.from.max(self.to).0)
    }
}

impl Clock {
    /// Creates the cost model for this number of workers, of which `server` computes nothing.
    pub fn new(config: &ClockConfig, workers: usize, server: Option<WorkerId>, seed: u64) -> Result<Self, ConfigError> {
        config.check(workers)?;
        let preset = config.network.preset();
        let mut gradients = match &config.gradient_seconds {
            None => vec![preset.gradient_seconds; workers],
            Some(PerWorker::All(all)) => vec![*all; workers],
            Some(PerWorker::Each(each)) => each.clone(),
        };
        for (worker, factor) in &config.slow {
            gradients[*worker] *= factor;
        }
        if let Some(server) = server {
            gradients[server] = 0.0;
        }
        let scaled = |values: &PerLink, factor: f64| match values {
            PerLink::All(value) => PerLink::All(value * factor),
            PerLink::Each(rows) => {
                let row = |row: &Vec<f64>| row.iter().map(|value| value * factor).collect();
                PerLink::Each(rows.iter().map(row).collect())
            }
        };
        let or_preset = |value: Option<f64>, preset: f64| value.unwrap_or(preset);
        let bandwidth = config.megabits.clone();
        let latency = config.latency_ms.clone();
        Ok(Self {
            gradients,
            spread: or_preset(config.gradient_spread, preset.gradient_spread),
            straggler_probability: or_preset(config.straggler_probability, preset.straggler_probability),
            straggler_factor: or_preset(config.straggler_factor, preset.straggler_factor),
            bandwidth: scaled(&bandwidth.unwrap_or(PerLink::All(preset.megabits)), 1e6 / 8.0),
            latency: scaled(&latency.unwrap_or(PerLink::All(preset.latency_ms)), 1e-3),
            duplex: config.duplex,
            seed,
            cached: Mutex::default(),
        })
    }

    /// The time that a worker's gradient number `draw` takes: the mean times a log-normal factor of mean 1, and for a
    /// straggler times its factor.
    pub fn gradient(&self, worker: WorkerId, draw: u64) -> f64 {
        let mean = self.gradients[worker];
        if self.spread == 0.0 && self.straggler_probability == 0.0 {
            return mean;
        }
        let mut stream = Stream::new(self.seed, "gradient seconds", &[worker.0 as u64, draw]);
        let (sigma, normal) = (self.spread, stream.normal());
        let spread = (sigma * normal - sigma * sigma / 2.0).exp();
        let straggles = stream.uniform() < self.straggler_probability;
        let factor = if straggles { self.straggler_factor } else { 1.0 };
        mean * spread * factor
    }

    /// Seconds on the wire, without latency.
    fn wire(&self, transfer: &Transfer) -> f64 {
        transfer.bytes as f64 / self.bandwidth.at(transfer.from, transfer.to)
    }

    /// The time that a message takes from sender to receiver if nothing else is in transit.
    pub fn message(&self, transfer: &Transfer) -> f64 {
        self.latency.at(transfer.from, transfer.to) + self.wire(transfer)
    }

    /// Advances each worker's clock from when it is ready to send to when it has received everything. Transfers are
    /// grouped by receiver.
    pub fn exchange(&self, clocks: &mut [f64], transfers: &[Transfer]) {
        match self.duplex {
            Duplex::Full => {
                // With full duplex, workers may still use one link at a time if that is faster.
                let mut sequential = clocks.to_vec();
                self.exchange_sequentially(&mut sequential, transfers);
                self.exchange_concurrently(clocks, transfers);
                let last = |clocks: &[f64]| clocks.iter().copied().fold(0.0, f64::max);
                if last(&sequential) < last(clocks) {
                    clocks.copy_from_slice(&sequential);
                }
            }
            Duplex::OneAtATime => self.exchange_sequentially(clocks, transfers),
        }
    }

    /// A worker sends its messages one after the other and receives messages one after the other, both at the same
    /// time. The worker that is ready first sends first, to receivers that are free, in the order of the links'
    /// matchings.
    fn exchange_concurrently(&self, clocks: &mut [f64], transfers: &[Transfer]) {
        let matching_indices = self.matching_indices(clocks.len(), transfers);
        let mut remaining: Vec<Vec<(usize, Transfer)>> = vec![Vec::new(); clocks.len()];
        for transfer in transfers {
            let link = transfer.link();
            remaining[transfer.from].push((matching_indices[&link], *transfer));
        }
        let (mut out, mut into) = (clocks.to_vec(), vec![0.0f64; clocks.len()]);
        let senders = WorkerId::all(clocks.len()).filter(|&i| !remaining[i].is_empty());
        let mut queue: BinaryHeap<Reverse<(Time, WorkerId)>> = senders.map(|i| Reverse((Time(out[i]), i))).collect();
        while let Some(Reverse((_, from))) = queue.pop() {
            let begins = |to: WorkerId| Time(out[from].max(into[to]));
            let best = remaining[from].iter().enumerate();
            let best = best.min_by_key(|(_, (index, transfer))| (begins(transfer.to), *index));
            let Some((index, _)) = best else { continue };
            let (_, transfer) = remaining[from].remove(index);
            let ends = begins(transfer.to).0 + self.wire(&transfer);
            (out[from], into[transfer.to]) = (ends, ends);
            let arrived = ends + self.latency.at(from, transfer.to);
            clocks[transfer.to] = clocks[transfer.to].max(arrived);
            clocks[from] = clocks[from].max(ends);
            if !remaining[from].is_empty() {
                queue.push(Reverse((Time(ends), from)));
            }
        }
    }

    /// A worker uses one link at a time, in both directions at once: MATCHA's delay model.
    fn exchange_sequentially(&self, clocks: &mut [f64], transfers: &[Transfer]) {
        let mut links: BTreeMap<Edge, f64> = BTreeMap::new();
        for transfer in transfers {
            let seconds = links.entry(transfer.link()).or_default();
            *seconds = seconds.max(self.message(transfer));
        }
        let matching_indices = self.matching_indices(clocks.len(), transfers);
        let mut sequential: Vec<(usize, Edge)> = links.keys().map(|link| (matching_indices[link], *link)).collect();
        sequential.sort_unstable();
        for (_, (a, b)) in sequential {
            let ends = clocks[a].max(clocks[b]) + links[&(a, b)];
            (clocks[a], clocks[b]) = (ends, ends);
        }
    }

    /// The matching of each link. Links in the same matching can be used at the same time.
    fn matching_indices(&self, nodes: usize, transfers: &[Transfer]) -> BTreeMap<Edge, usize> {
        let links: BTreeSet<Edge> = transfers.iter().map(Transfer::link).collect();
        let links: Vec<Edge> = links.into_iter().collect();
        let mut cached = self.cached.lock().unwrap_or_else(|error| error.into_inner());
        if cached.0 != links {
            let graph = Graph::new(nodes, links.iter().copied());
            let matchings = graph.map_or_else(|_| vec![], |graph| graph.matchings().to_vec());
            let index = |(index, links): (usize, Vec<Edge>)| links.into_iter().map(move |link| (link, index));
            let matching_indices = matchings.into_iter().enumerate().flat_map(index).collect();
            *cached = (links, matching_indices);
        }
        cached.1.clone()
    }

    /// All workers learn all losses: they wait for the last worker, and for a short message.
    pub fn barrier(&self, clocks: &mut [f64]) {
        let workers = WorkerId::all(clocks.len());
        let latencies = workers.clone().flat_map(|from| {
            let others = workers.clone().filter(move |&to| to != from);
            others.map(move |to| self.latency.at(from, to))
        });
        let last = clocks.iter().copied().fold(0.0, f64::max);
        let end = last + latencies.fold(0.0, f64::max);
        clocks.fill(end);
    }

    /// The time at which a worker whose gradient is complete at `time` can continue after an exchange with its partner.
    /// `ports` holds the times until which each of the two is busy sending and receiving, and is updated. Bytes keep a
    /// port busy; latency does not.
    pub fn pair_exchange(
        &self,
        ports: &mut [[f64; 2]; 2],
        time: f64,
        exchange: PairExchange,
        forward: &Transfer,
    ) -> f64 {
        let back = Transfer { from: forward.to, to: forward.from, ..*forward };
        let latency = |t: &Transfer| self.latency.at(t.from, t.to);
        // With one link at a time, the same port serves both directions.
        let into = usize::from(self.duplex == Duplex::Full);
        let mut send = |time: f64, t: &Transfer| {
            let (from, to) = if t == forward { (0, 1) } else { (1, 0) };
            let begins = time.max(ports[from][0]).max(ports[to][into]);
            let ends = begins + self.wire(t);
            (ports[from][0], ports[to][into]) = (ends, ends);
            (begins, ends)
        };
        match exchange {
            // The sender does not wait for its message.
            PairExchange::Push => {
                send(time, forward);
                time
            }
            PairExchange::PushAndPull => {
                let (_, pushed) = send(time, forward);
                let (_, pulled) = send(pushed + latency(forward), &back);
                pulled + latency(&back)
            }
            PairExchange::Swap if self.duplex == Duplex::Full => {
                let (begins, sent) = send(time, forward);
                let (_, received) = send(begins, &back);
                (sent + latency(forward)).max(received + latency(&back))
            }
            // The link is used in both directions at once.
            PairExchange::Swap => {
                let (begins, sent) = send(time, forward);
                let received = begins + self.wire(&back);
                let busy = sent.max(received);
                (ports[0][0], ports[1][0]) = (busy, busy);
                (sent + latency(forward)).max(received + latency(&back))
            }
        }
    }

    /// A ring all-reduce: all workers wait for the last, and then for 2 (n - 1) pieces of size 1/n.
    pub fn all_reduce(&self, clocks: &mut [f64], bytes: u64, ring: &[WorkerId]) {
        let pieces = ring.len() as f64;
        if ring.len() < 2 {
            return;
        }
        let slowest = ring
            .iter()
            .zip(ring.iter().cycle().skip(1))
            .map(|(&from, &to)| {
                let wire = bytes as f64 / pieces / self.bandwidth.at(from, to);
                self.latency.at(from, to) + wire
            })
            .fold(0.0, f64::max);
        let begins = ring.iter().map(|&worker| clocks[worker]).fold(0.0, f64::max);
        let ends = begins + 2.0 * (pieces - 1.0) * slowest;
        clocks.iter_mut().for_each(|clock| *clock = ends);
    }
}

impl PerLink {
    fn at(&self, from: WorkerId, to: WorkerId) -> f64 {
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

    fn transfer(from: usize, to: usize, bytes: u64) -> Transfer {
        Transfer { from: WorkerId(from), to: WorkerId(to), bytes }
    }

    fn transfers(links: &[(usize, usize)]) -> Vec<Transfer> {
        let both = links.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
        both.map(|(from, to)| transfer(from, to, 1_000_000)).collect()
    }

    /// At 8 Mbit/s, a megabyte takes one second.
    const SLOW: &str = "megabits = 8.0\nlatency_ms = 100.0\n";

    #[test]
    fn path_exchange_times_match_both_duplex_modes() {
        // 0 - 1 - 2: the worker in the middle has two links.
        let links = transfers(&[(0, 1), (1, 2)]);
        let mut clocks = vec![0.0; 3];
        clock(&format!("{SLOW}duplex = \"one-at-a-time\"\n"), 3).exchange(&mut clocks, &links);
        // By matchings: (0, 1) then (1, 2), or the other way around. The worker in the middle is in both.
        assert!((clocks[1] - 2.2).abs() < 1e-9, "{clocks:?}");
        let mut ends = [clocks[0], clocks[2]];
        ends.sort_by(f64::total_cmp);
        assert!((ends[0] - 1.1).abs() < 1e-9 && (ends[1] - 2.2).abs() < 1e-9, "{ends:?}");
        let mut clocks = vec![0.0; 3];
        clock(SLOW, 3).exchange(&mut clocks, &links);
        assert!((clocks[1] - 2.1).abs() < 1e-9, "{clocks:?}"); // two messages in and two out, at the same time
        assert!(clocks[0] >= 1.1 && clocks[2] <= 2.1 + 1e-9, "{clocks:?}");
    }

    /// Worked by hand: each worker of a ring sends two messages and receives two, each of one second. Full duplex never
    /// takes longer than one link at a time.
    #[test]
    fn full_duplex_is_never_slower_than_one_link_at_a_time() {
        use upwash_topology::GraphSpec;
        let time = |graph: &str, duplex: &str, start: &dyn Fn(usize) -> f64| {
            let graph = graph.parse::<GraphSpec>().unwrap().build().unwrap();
            let text = format!("megabits = 8.0\nlatency_ms = 0.0\nduplex = \"{duplex}\"\n");
            let mut clocks: Vec<f64> = (0..graph.nodes()).map(start).collect();
            let clock = clock(&text, graph.nodes());
            clock.exchange(&mut clocks, &transfers(graph.edges()));
            clocks.into_iter().fold(0.0, f64::max)
        };
        assert!((time("ring:8", "full", &|_| 0.0) - 2.0).abs() < 1e-9);
        assert!((time("star:9", "full", &|_| 0.0) - 8.0).abs() < 1e-9);
        // The server receives from the others while it waits for the last.
        let late = |worker| if worker == 1 { 20.0 } else { 0.0 };
        assert!(time("star:9", "full", &late) < 22.0 + 1e-9);
        for graph in ["ring:8", "paper:L1", "complete:16", "star:9", "torus:4x4", "path:5"] {
            for seed in 0..5 {
                let start = |worker| {
                    if seed == 0 { 0.0 } else { (worker * seed % 7) as f64 / 3.0 }
                };
                let (full, one) = (time(graph, "full", &start), time(graph, "one-at-a-time", &start));
                assert!(full <= one + 1e-9, "{graph}, {seed}: {full} and {one}");
            }
        }
    }

    #[test]
    fn pair_exchanges_take_the_time_of_their_transfers() {
        let forward = transfer(1, 0, 1_000_000);
        // To the server (0) in one second, back from it in four.
        let text = "megabits = [[1.0, 2.0], [8.0, 1.0]]\nlatency_ms = 100.0\n";
        let slow = clock(text, 2);
        let end = |exchange| slow.pair_exchange(&mut [[0.0; 2]; 2], 10.0, exchange, &forward);
        assert!((end(PairExchange::Push) - 10.0).abs() < 1e-9);
        assert!((end(PairExchange::PushAndPull) - 15.2).abs() < 1e-9);
        assert!((end(PairExchange::Swap) - 14.1).abs() < 1e-9);
        // Two simultaneous pushes to one server: bytes wait for bytes, not for latency.
        let (three, mut server) = (clock(SLOW, 3), [0.0; 2]);
        let mut push = |from| {
            let forward = transfer(from, 0, forward.bytes);
            let mut ports = [[0.0; 2], server];
            let ends = three.pair_exchange(&mut ports, 0.0, PairExchange::PushAndPull, &forward);
            server = ports[1];
            ends
        };
        assert!((push(1) - 2.2).abs() < 1e-9); // arrives at 1.1, and returns from then on
        assert!((push(2) - 3.2).abs() < 1e-9); // arrives at 2.1, when the way back is free
    }

    /// A worker that only sends continues when its bytes have left. Only the receiver waits for the latency.
    #[test]
    fn worker_waits_until_its_own_messages_have_left() {
        let one_way = &transfers(&[(0, 1)])[..1];
        let mut clocks = vec![0.0; 3];
        clock(SLOW, 3).exchange(&mut clocks, one_way);
        assert_eq!(clocks, [1.0, 1.1, 0.0]);
    }

    #[test]
    fn slow_worker_delays_only_its_neighbors() {
        let links = transfers(&[(0, 1), (2, 3)]);
        let mut clocks = vec![10.0, 0.0, 0.0, 0.0];
        clock(SLOW, 4).exchange(&mut clocks, &links);
        assert!((clocks[1] - 11.1).abs() < 1e-9 && (clocks[3] - 1.1).abs() < 1e-9, "{clocks:?}");
    }

    #[test]
    fn ring_all_reduce_moves_twice_the_vector_in_pieces() {
        let mut clocks = vec![0.0, 3.0, 0.0, 0.0];
        clock(SLOW, 4).all_reduce(&mut clocks, 1_000_000, &[0, 1, 2, 3].map(WorkerId));
        assert!((clocks[0] - (3.0 + 6.0 * (0.25 + 0.1))).abs() < 1e-9, "{clocks:?}");
        assert!(clocks.iter().all(|clock| *clock == clocks[0]));
    }

    #[test]
    fn gradients_take_the_configured_time() {
        let fixed = clock("network = \"datacenter\"\ngradient_seconds = 0.5\nslow = [[1, 10.0]]\n", 2);
        let fixed_spread = [fixed.gradient(WorkerId(0), 7), fixed.gradient(WorkerId(1), 7)];
        assert_eq!(fixed_spread, [0.5, 5.0]);
        let text = "gradient_seconds = [2.0]\ngradient_spread = 0.5\n";
        let spread = clock(text, 1);
        let mean: f64 = (0..20_000).map(|k| spread.gradient(WorkerId(0), k)).sum::<f64>() / 20_000.0;
        assert!((mean - 2.0).abs() < 0.03, "{mean}");
        let text =
            "network = \"datacenter\"\ngradient_seconds = 1.0\nstraggler_probability = 0.1\nstraggler_factor = 11.0\n";
        let straggling = clock(text, 1);
        let mean: f64 = (0..20_000).map(|k| straggling.gradient(WorkerId(0), k)).sum::<f64>() / 20_000.0;
        assert!((mean - 2.0).abs() < 0.1, "{mean}");
    }
}
