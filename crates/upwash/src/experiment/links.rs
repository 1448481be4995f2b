//! Builds the schedule of links, and checks that the algorithm can run on it.

use super::ExperimentError;
use crate::algorithm::{self, Exchange, ExchangeContext, LocalView, Method, Preflight, WorkerStats};
use crate::config::{Config, CopyOrder, Execution, GraphConfig, Links, Relabelings, Statistics};
use crate::ids::WorkerId;
use std::collections::BTreeSet;
use upwash_topology::{Graph, Matcha, Order, Rotation, Schedule, Weights, paper_relabelings};

fn conflict<T>(what: impl Into<String>) -> Result<T, ExperimentError> {
    Err(ExperimentError::Conflict(what.into()))
}

/// Finds the server, if the algorithm needs one. Rejects settings that do not apply to an asynchronous algorithm, or to
/// a synchronous one.
pub(super) fn server(config: &Config, method: &Method, graph: &Graph) -> Result<Option<WorkerId>, ExperimentError> {
    if method.synchronous().is_none() {
        if config.training.statistics == Statistics::Averaged {
            return conflict(format!(
                "training.statistics = \"averaged\": {} has no rounds in which to average; set it to \"local\"",
                method.display_name()
            ));
        }
        if config.training.keep_best && config.training.asynchronous == Execution::Threads {
            return conflict(format!(
                "training.keep_best: the workers of {} never stop for an average on threads; remove it, or \
                 training.asynchronous",
                method.display_name()
            ));
        }
        let has_changing_links = config.graph.copies > 1 || config.graph.links != Some(Links::Whole);
        let has_weights = config.graph.weights != Weights::Optimal;
        if has_changing_links || has_weights || config.graph.directed_edges.is_some() {
            return conflict(format!(
                "graph.links, graph.copies, graph.directed_edges and graph.weights: {} works without rounds, on a \
                 fixed graph and without mixing weights; leave them out",
                method.display_name()
            ));
        }
    } else if config.training.asynchronous == Execution::Threads {
        return conflict(format!(
            "training.asynchronous = \"threads\": {} is synchronous; leave it out, or use an asynchronous algorithm: \
             ad-psgd, gosgd, async-easgd or downpour",
            method.display_name()
        ));
    }
    if !method.has_server() {
        return Ok(None);
    }
    let others = graph.nodes() - 1;
    let hub = graph.degrees().iter().position(|&degree| degree == others);
    match hub.filter(|_| others > 0) {
        Some(hub) => Ok(Some(hub.into())),
        None => conflict(format!(
            "algorithm.name = \"{}\" needs a server, a node that is linked to all others, and \
             graph.topology = \"{}\" has none: use star:{} for a server and {}",
            config.algorithm.name,
            config.graph.topology,
            others.max(1) + 1,
            match others {
                0 | 1 => "one worker".into(),
                _ => format!("{others} workers"),
            }
        )),
    }
}

/// For each worker, the senders whose messages it must receive in every round, because it keeps copies of their models
/// that must stay up to date. `None` if the algorithm keeps no such copies.
pub(super) fn required_senders(method: &Method, schedule: &Schedule) -> Option<Vec<Vec<WorkerId>>> {
    let round = schedule.round(0);
    let view = LocalView {
        worker: WorkerId(0),
        context: ExchangeContext::new(&round, 0.0),
        own: WorkerStats { loss: None, degree: 0, scalar: 1.0 },
        received: &[],
    };
    let messages = method.synchronous()?.messages(&view);
    messages.iter().any(|message| message.public_copy.is_some()).then(|| {
        let mut senders = vec![Vec::new(); schedule.nodes()];
        for (sender, receiver) in schedule.possible_links() {
            senders[receiver].push(sender.into());
        }
        senders
    })
}

/// Which kinds of exchanges an algorithm has is decided by at most this many rounds: external training loops may have
/// no known end.
const CHECKED_ROUNDS: u64 = 1 << 20;

/// The workers with which `worker` ever exchanges a message in this number of rounds.
pub(super) fn contacts(
    method: &Method,
    schedule: &Schedule,
    graph: &Graph,
    rounds: u64,
    worker: WorkerId,
) -> Vec<WorkerId> {
    let is_over_links =
        |exchange: &Exchange| matches!(exchange, Exchange::Neighbors | Exchange::Early | Exchange::Nothing);
    let Some(algorithm) = method.synchronous() else {
        return graph.neighbors(worker.0).iter().copied().map(WorkerId).collect();
    };
    if !(0..rounds.min(CHECKED_ROUNDS)).all(|round| algorithm.exchanges(round).iter().all(is_over_links)) {
        return WorkerId::all(schedule.nodes()).filter(|&other| other != worker).collect();
    }
    let mut contacts = BTreeSet::new();
    for (sender, receiver) in schedule.possible_links() {
        let (sender, receiver) = (WorkerId(sender), WorkerId(receiver));
        if sender == worker {
            contacts.insert(receiver);
        } else if receiver == worker {
            contacts.insert(sender);
        }
    }
    contacts.into_iter().collect()
}

/// Checks the algorithm against the graph and the schedule, and returns warnings for the user.
pub(super) fn check(
    method: &Method,
    graph: &Graph,
    schedule: &Schedule,
    rounds: u64,
) -> Result<Vec<String>, ExperimentError> {
    let groups_warning = |groups: usize, consequence: String| {
        let warning = format!("the links in use split the workers into {groups} disconnected groups, {consequence}");
        (groups > 1).then_some(warning)
    };
    let independent = "which train independently".to_string();
    let Some(algorithm) = method.synchronous() else {
        let warning = groups_warning(graph.components().len(), independent);
        return Ok(warning.into_iter().collect());
    };
    let (weak, links) = (without_positive_self_weight(schedule), schedule.possible_links());
    let undirected = links.iter().map(|&(a, b)| (a.min(b), a.max(b)));
    let undirected: BTreeSet<_> = undirected.collect();
    let union = Graph::new(schedule.nodes(), undirected);
    let groups = union.map_or(1, |union| union.components().len());
    let preflight = Preflight { graph, schedule, nonpositive_self_weight: &weak, links: &links };
    algorithm.check(&preflight).map_err(ExperimentError::Conflict)?;
    let mut warnings = algorithm.warnings(&preflight);
    if algorithm.links() != algorithm::Links::None {
        let averages = |round: &u64| algorithm.exchanges(*round).contains(&Exchange::Mean);
        let consequence = match (0..rounds.min(CHECKED_ROUNDS)).filter(|_| groups > 1).find(averages) {
            Some(round) => format!("which only global averages connect, for the first time after round {round}"),
            None => independent,
        };
        warnings.extend(groups_warning(groups, consequence));
    }
    Ok(warnings)
}

/// The relabeling of each copy of the graph: the node at which each worker is. Empty if there is no rotation.
pub(super) fn relabelings(
    settings: &GraphConfig,
    method: &Method,
    graph: &Graph,
) -> Result<Vec<Vec<usize>>, ExperimentError> {
    if settings.copies == 1 || settings.directed_edges.is_some() || method.links() == algorithm::Links::None {
        return Ok(vec![]);
    }
    Ok(match settings.relabelings.unwrap_or(Relabelings::Balanced) {
        Relabelings::Balanced => Rotation::balance(graph, settings.copies)?.relabelings().to_vec(),
        Relabelings::Paper => {
            if graph.nodes() != 8 || settings.copies > 3 {
                return conflict(
                    "graph.relabelings = \"paper\": the paper has relabelings for 8 workers and at most 3 copies; use \
                     \"balanced\"",
                );
            }
            paper_relabelings()[..settings.copies].to_vec()
        }
    })
}

/// The schedule of links, over one graph or its relabeled copies.
pub(super) fn schedule(
    config: &Config,
    method: &Method,
    graph: &Graph,
    relabelings: &[Vec<usize>],
    rounds_per_epoch: u64,
) -> Result<Schedule, ExperimentError> {
    let settings = &config.graph;
    if let Some(schedule) = independent_of_topology(settings, method, graph)? {
        return Ok(schedule);
    }
    let base = over_topology(config, method, graph)?;
    if relabelings.is_empty() {
        return Ok(base);
    }
    if settings.first_copy > 0 && settings.order != Some(CopyOrder::InTurn) {
        return conflict("graph.first_copy: only graph.order = \"in-turn\" has a first copy; leave it out");
    }
    let order = match settings.order.unwrap_or(CopyOrder::InTurn) {
        CopyOrder::InTurn => Order::InTurn { start: settings.first_copy },
        CopyOrder::Random => Order::Random { seed: config.seed },
        CopyOrder::Released => Order::Released { rounds_per_epoch },
    };
    Ok(base.rotating(relabelings, order)?)
}

fn has_whole_links(settings: &GraphConfig) -> bool {
    matches!(settings.links, None | Some(Links::Whole))
}

/// The schedule of explicit directed links, or of an algorithm that does not use links. `None` if the schedule depends
/// on the links of the topology.
fn independent_of_topology(
    settings: &GraphConfig,
    method: &Method,
    graph: &Graph,
) -> Result<Option<Schedule>, ExperimentError> {
    let name = method.display_name();
    let has_weights = settings.weights != Weights::Optimal;
    let is_special = !has_whole_links(settings) || has_weights || settings.copies > 1;
    let algorithm = method.synchronous();
    let supports_directed = algorithm.is_some_and(|algorithm| algorithm.supports_directed());
    if let Some(directed_edges) = &settings.directed_edges {
        if !supports_directed {
            return conflict(format!(
                "graph.directed_edges: {name} does not converge to the average over directed links; use \
                 algorithm.name = \"sgp\", or leave them out"
            ));
        }
        if is_special {
            return conflict(
                "graph.directed_edges: all of them are up in every round, with equal weights; leave out graph.links, \
                 graph.copies and graph.weights",
            );
        }
        let schedule = Schedule::directed(graph.nodes(), directed_edges);
        return schedule.map(Some).map_err(ExperimentError::DirectedEdges);
    }
    if has_weights && supports_directed {
        return conflict(format!("graph.weights: {name} divides its mass equally among its receivers; leave them out"));
    }
    if method.links() != algorithm::Links::None {
        return Ok(None);
    }
    if is_special {
        return conflict(format!(
            "graph.links, graph.copies and graph.weights: {name} does not use the links of the graph; leave them out"
        ));
    }
    let empty = Graph::new(graph.nodes(), []).map_err(ExperimentError::DirectedEdges)?;
    Ok(Some(Schedule::fixed(&empty, &Weights::Metropolis)?))
}

/// Every worker of Epidemic Learning may meet every other one.
const MAX_RANDOM_OUT: usize = 4096;

/// The schedule over the links of one graph.
fn over_topology(config: &Config, method: &Method, graph: &Graph) -> Result<Schedule, ExperimentError> {
    let (settings, seed) = (&config.graph, config.seed);
    let is_whole = has_whole_links(settings);
    if let algorithm::Links::Matcha { budget } = method.links() {
        if !is_whole {
            return conflict("graph.links: MATCHA chooses the links itself; leave it out");
        }
        let (matcha, weights) = (Matcha::solve(graph, budget)?, settings.weights.clone());
        return Ok(Schedule::matcha_with(&matcha, weights, seed)?);
    }
    if matches!(method.links(), algorithm::Links::RandomPairs | algorithm::Links::RandomOut { .. }) {
        let name = method.display_name();
        if !is_whole || settings.weights != Weights::Optimal {
            return conflict(format!(
                "graph.links and graph.weights: {name} draws its links itself and averages with equal weights; leave \
                 them out"
            ));
        }
        let others = graph.nodes() - 1;
        return match method.links() {
            algorithm::Links::RandomOut { .. } if settings.copies > 1 => {
                conflict(format!("graph.copies: {name} does not use the links of the graph; leave it out"))
            }
            algorithm::Links::RandomOut { .. } if !(1..MAX_RANDOM_OUT).contains(&others) => {
                conflict(format!("{name} needs between 2 and {MAX_RANDOM_OUT} workers, not {}", graph.nodes()))
            }
            algorithm::Links::RandomOut { fanout } if fanout > others as u64 => {
                conflict(format!("algorithm.fanout = {fanout}: write at most {others}, the number of other workers"))
            }
            algorithm::Links::RandomOut { fanout } => Ok(Schedule::random_out(graph.nodes(), fanout as usize, seed)),
            _ => Ok(Schedule::random_matching(graph, seed)),
        };
    }
    if !is_whole && settings.weights != Weights::Optimal {
        return conflict(
            "graph.weights: only graph.links = \"whole\" has configurable weights; the other settings have fixed ones, \
             such as one half per link or those of the released code; leave it out, or set graph.links to \"whole\"",
        );
    }
    Ok(match settings.links.unwrap_or(Links::Whole) {
        Links::Whole => Schedule::fixed(graph, &settings.weights)?,
        Links::Released => Schedule::released_flags(graph)?,
        Links::Alternating => Schedule::alternating(graph),
        Links::RandomMatching => Schedule::random_matching(graph, seed),
        Links::OnePeerExponential => Schedule::one_peer_exponential(graph.nodes()),
        Links::Exponential => Schedule::exponential(graph.nodes()),
        Links::OnePeerHypercube => match Schedule::hypercube(graph.nodes()) {
            Ok(schedule) => schedule,
            Err(error) => return conflict(format!("graph.links = \"one-peer-hypercube\": {error}")),
        },
        Links::Base2 => Schedule::base(graph.nodes(), 1),
        Links::Base3 => Schedule::base(graph.nodes(), 2),
        Links::Base4 => Schedule::base(graph.nodes(), 3),
        Links::Base5 => Schedule::base(graph.nodes(), 4),
    })
}

/// The workers whose own model has weight 0 or less in some round. Looks at the first 200 rounds, or at fewer if the
/// mixing matrices are large.
fn without_positive_self_weight(schedule: &Schedule) -> Vec<usize> {
    const ROUNDS: u64 = 200;
    const MAX_ENTRIES: usize = 4_000_000;
    let (mut workers, mut entries) = (BTreeSet::new(), 0);
    for round in (0..ROUNDS).map(|index| schedule.round(index)) {
        workers.extend(round.mixing().without_positive_diagonal());
        let degrees = (0..schedule.nodes()).map(|worker| 1 + round.degree(worker));
        entries += degrees.sum::<usize>();
        if entries > MAX_ENTRIES {
            break;
        }
    }
    workers.into_iter().collect()
}
