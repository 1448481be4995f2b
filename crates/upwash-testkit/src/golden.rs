//! Golden runs: recorded losses of every algorithm. A change of the code that should not affect results must reproduce
//! them. `UPWASH_RECORD=1 cargo test golden` records them anew.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use upwash::config::Config;
use upwash::engine::{Instructions, Model};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Progress, run};

/// Recorded runs, by name.
pub type Traces = BTreeMap<String, Trace>;

/// The losses of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// A checksum of the bits of all losses, in the order of rounds.
    pub checksum: String,
    /// Every worker's loss in the last round of each epoch. `None` for a server.
    pub losses: Vec<Vec<Option<f64>>>,
}

/// A file of golden runs.
#[derive(Debug, Serialize, Deserialize)]
struct Recording {
    /// The engine that computed the runs.
    engine: String,
    /// The vector instructions that computed the runs.
    instructions: String,
    runs: Traces,
}

/// Where a run must match its recording bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// On every machine.
    Everywhere,
    /// With the vector instructions that recorded it. With others, losses must agree within 1e-5.
    WithTheSameInstructions,
}

impl Trace {
    /// The trace of the losses of all rounds.
    pub fn new(rounds: &[Vec<f64>], rounds_per_epoch: usize) -> Self {
        let mut hash = crc32fast::Hasher::new();
        let number = |loss: &f64| loss.is_finite().then_some(*loss);
        for loss in rounds.iter().flatten() {
            hash.update(&number(loss).unwrap_or(-1.0).to_bits().to_le_bytes());
        }
        let ends = rounds.chunks_exact(rounds_per_epoch);
        let ends = ends.filter_map(|epoch| Some(epoch.last()?.iter().map(number).collect()));
        Self { checksum: format!("{:08x}", hash.finalize()), losses: ends.collect() }
    }

    /// Runs a configuration in one process with the gradients of `model` and traces the losses.
    pub fn of(config: &str, model: impl FnOnce(&Experiment) -> std::sync::Arc<dyn Model>) -> Self {
        let config = Config::parse(config, &[]).expect("valid configuration");
        let experiment = Experiment::prepare(config, &DataPaths::default()).expect("valid experiment");
        let mut engine = experiment.cpu_engine(model(&experiment));
        let mut rounds = Vec::new();
        let mut record = |event: &Event| {
            if let Event::Round { losses, .. } = event {
                rounds.push(losses.clone());
            }
            ControlFlow::Continue
        };
        let start = Progress::start(experiment.workers());
        run(&experiment, &mut engine, start, &mut record).expect("successful run");
        Self::new(&rounds, experiment.sampler.rounds_per_epoch() as usize)
    }

    /// The largest relative difference between the losses of two runs. Infinite if their numbers of losses differ.
    pub fn distance(&self, other: &Self) -> f64 {
        let shape = |trace: &Self| -> Vec<usize> { trace.losses.iter().map(Vec::len).collect() };
        if shape(self) != shape(other) {
            return f64::INFINITY;
        }
        let pairs = self.losses.iter().flatten().zip(other.losses.iter().flatten());
        let distance = |pair: (&Option<f64>, &Option<f64>)| match pair {
            (Some(a), Some(b)) => (a - b).abs() / b.abs().max(1e-9),
            (None, None) => 0.0,
            _ => f64::INFINITY,
        };
        pairs.map(distance).fold(0.0, f64::max)
    }
}

impl Trace {
    fn expect(&self, name: &str, known: &Self, exact: bool) {
        let distance = self.distance(known);
        let same = match exact {
            true => self.checksum == known.checksum,
            false => distance < 1e-5,
        };
        assert!(same, "{name}: losses differ from the recorded ones by {distance:.1e}");
    }
}

/// Compares runs of several processes with the recorded runs of one process. They must match bit for bit with
/// the same vector instructions, except for the [averaging](AVERAGING) algorithms.
///
/// # Panics
/// If a run differs. The message names it and the difference.
pub fn check_distributed(file: &Path, found: &Traces) {
    let text = std::fs::read_to_string(file).expect("readable file of recorded runs");
    let known: Recording = serde_json::from_str(&text).expect("readable file of recorded runs");
    for (name, trace) in found {
        let exact = known.instructions == instructions() && !AVERAGING.contains(&&**name);
        trace.expect(name, &known.runs[name], exact);
    }
}

/// Compares runs with the recorded ones, or records them if `UPWASH_RECORD` is set.
///
/// # Panics
/// If a run differs. The message names it and the difference.
pub fn check(file: &Path, engine: &str, bits: Bits, found: &Traces) {
    if std::env::var_os("UPWASH_RECORD").is_some() {
        let recording = Recording { engine: engine.into(), instructions: instructions(), runs: found.clone() };
        let text = serde_json::to_string_pretty(&recording).expect("runs serialize to JSON");
        let text = compact_arrays(&text) + "\n";
        std::fs::write(file, text).expect("writable file");
        return;
    }
    let text = std::fs::read_to_string(file).expect("readable file of recorded runs");
    let known: Recording = serde_json::from_str(&text).expect("readable file of recorded runs");
    assert_eq!(known.engine, engine, "the runs were recorded with another engine");
    let exact = bits == Bits::Everywhere || known.instructions == instructions();
    println!(
        "{}: recorded with {engine} and {}; expecting {}",
        file.display(),
        known.instructions,
        match exact {
            true => "the same bits",
            false => "losses within 1e-5",
        }
    );
    let names = |runs: &Traces| runs.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(&known.runs), "the set of runs differs from the recorded one");
    for (name, trace) in found {
        trace.expect(name, &known.runs[name], exact);
    }
}

/// Puts each innermost array on one line.
fn compact_arrays(text: &str) -> String {
    let mut compact = String::new();
    let mut depth = 0usize;
    for line in text.lines() {
        let (start, content) = (compact.is_empty(), line.trim());
        let inner = depth >= 2;
        depth += content.matches('[').count();
        depth -= content.matches(']').count();
        match inner {
            true => compact.push_str(content),
            false if start => compact.push_str(line),
            false => {
                compact.push('\n');
                compact.push_str(line);
            }
        }
    }
    compact
}

/// The architecture and the vector instructions that gradients are computed with. The same ones give the same bits on
/// processors of different makers.
fn instructions() -> String {
    format!("{} {}", std::env::consts::ARCH, Instructions::detect())
}

/// Graphs: that of the paper with and without Metropolis weights, and a star with a server.
const L1: &str = "[graph]\nweights = \"metropolis\"\n";
const L1_PLAIN: &str = "[graph]\n";
const STAR: &str = "[graph]\ntopology = \"star:9\"\n";

/// Configurations of every algorithm and every variant of AL-DSGD: (name, graph, algorithm).
const CASES: [(&str, &str, &str); 42] = [
    ("dpsgd", L1, "name = \"dpsgd\""),
    ("dpsgd-overlap", L1, "name = \"dpsgd\"\noverlap = true"),
    ("matcha", L1_PLAIN, "name = \"matcha\""),
    ("matcha-overlap", L1_PLAIN, "name = \"matcha\"\noverlap = true"),
    ("gossip-pga", L1, "name = \"gossip-pga\"\nperiod = 4"),
    ("choco-top-k", L1, "name = \"choco\""),
    ("choco-random-k", L1, "name = \"choco\"\ncompressor = \"random-k\""),
    ("choco-sign", L1, "name = \"choco\"\ncompressor = \"sign\""),
    ("choco-eight-bit", L1, "name = \"choco\"\ncompressor = \"eight-bit\""),
    ("d2", L1, "name = \"d2\""),
    ("gradient-tracking", L1, "name = \"gradient-tracking\""),
    ("sgp", L1_PLAIN, "name = \"sgp\""),
    ("sgp-exponential", "[graph]\nlinks = \"exponential\"\n", "name = \"sgp\""),
    ("qg-momentum", L1, "name = \"qg-momentum\""),
    ("all-reduce", L1_PLAIN, "name = \"all-reduce\""),
    ("local-sgd", L1_PLAIN, "name = \"local-sgd\"\nperiod = 4"),
    ("slowmo", L1_PLAIN, "name = \"slowmo\"\nslow_period = 5"),
    ("slowmo-dpsgd", L1, "name = \"slowmo\"\nbase = \"dpsgd\"\nslow_period = 5"),
    ("slowmo-d2", L1, "name = \"slowmo\"\nbase = \"d2\"\nslow_period = 5"),
    ("diloco", L1_PLAIN, "name = \"diloco\"\nperiod = 5"),
    ("noloco", L1_PLAIN, "name = \"noloco\"\nperiod = 3"),
    ("decentlam", L1, "name = \"decentlam\""),
    ("epidemic", L1_PLAIN, "name = \"epidemic\""),
    ("parameter-server", STAR, "name = \"parameter-server\""),
    ("easgd", STAR, "name = \"easgd\"\nperiod = 2"),
    ("lsgd", L1_PLAIN, "name = \"lsgd\"\nperiod = 2"),
    ("al-dsgd-sound", L1, "variant = \"sound\""),
    ("al-dsgd-written", L1, "variant = \"written\""),
    ("al-dsgd-released", L1_PLAIN, "variant = \"released\""),
    ("al-dsgd-sound-matcha", L1_PLAIN, "variant = \"sound\"\nbase = \"matcha\""),
    ("al-dsgd-written-matcha", L1_PLAIN, "variant = \"written\"\nbase = \"matcha\""),
    ("al-dsgd-released-matcha", L1_PLAIN, "variant = \"released\"\nbase = \"matcha\""),
    ("al-dsgd-overlap", L1, "overlap = true"),
    ("al-dsgd-neighbors-only", L1, "leaders = \"neighbors-only\""),
    ("al-dsgd-gossip-pga", L1, "base = \"gossip-pga\"\nperiod = 4"),
    ("al-dsgd-choco", L1, "base = \"choco\""),
    ("al-dsgd-qg-momentum", L1, "base = \"qg-momentum\""),
    (
        "al-dsgd-copies",
        "[graph]\nweights = \"metropolis\"\ncopies = 3\nrelabelings = \"paper\"\n",
        "variant = \"sound\"",
    ),
    ("ad-psgd", L1_PLAIN, "name = \"ad-psgd\""),
    ("gosgd", L1_PLAIN, "name = \"gosgd\""),
    ("async-easgd", STAR, "name = \"async-easgd\""),
    ("downpour", STAR, "name = \"downpour\"\nstaleness = 3"),
];

/// All configurations with this seed, by name. Three epochs with rate cuts, and a deterministic clock for asynchronous
/// workers.
pub fn cases(seed: u64) -> BTreeMap<String, String> {
    configurations(seed, |graph| graph.into())
}

/// The synchronous configurations on four workers, one of which is the server if the algorithm needs one.
pub fn four_worker_cases() -> BTreeMap<String, String> {
    let mut cases = configurations(1, |graph| match graph == STAR {
        true => "[graph]\ntopology = \"star:4\"\n".into(),
        false => graph.replacen("[graph]\n", "[graph]\ntopology = \"ring:4\"\n", 1),
    });
    for name in ASYNCHRONOUS {
        cases.remove(name);
    }
    // The paper's copies are for eight workers.
    cases.remove("al-dsgd-copies");
    cases
}

/// The asynchronous algorithms.
pub const ASYNCHRONOUS: [&str; 4] = ["ad-psgd", "gosgd", "async-easgd", "downpour"];

/// The configurations with a sum over all workers, whose order may differ between transports.
pub const AVERAGING: [&str; 8] =
    ["all-reduce", "al-dsgd-gossip-pga", "diloco", "gossip-pga", "local-sgd", "slowmo", "slowmo-d2", "slowmo-dpsgd"];

fn configurations(seed: u64, graph_of: impl Fn(&str) -> String) -> BTreeMap<String, String> {
    let case = |(name, graph, algorithm): &(&str, &str, &str)| {
        let graph = graph_of(graph);
        let text = format!(
            "seed = {seed}\nmodel = \"softmax\"\n{graph}[algorithm]\n{algorithm}\n\
             [training]\nepochs = 3\nbatch_size = 16\nlearning_rate = 0.05\ndecay = \"steps\"\ndecay_at = [1.5, 2.25]\n\
             [clock]\nnetwork = \"datacenter\"\nslow = [[1, 1.7], [3, 1.3]]\n"
        );
        (name.to_string(), text)
    };
    CASES.iter().map(case).collect()
}
