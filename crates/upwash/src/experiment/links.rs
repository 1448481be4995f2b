//! Which links are up when, and what an algorithm makes of them.

use super::ExperimentError;
use crate::algorithm::{self, Exchange, ExchangeContext, LocalView, Method, Preflight, WorkerStats};
use crate::config::{Config, CopyOrder, Execution, GraphConfig, Links, Relabelings, Statistics};
use std::collections::BTreeSet;
use upwash_topology::{Graph, Matcha, Order, Rotation, Schedule, Weights, paper_relabelings};

fn conflict<T>(what: impl Into<String>) -> Result<T, ExperimentError> {
    Err(ExperimentError::Conflict(what.into()))
}

/// Who is the server, where one is needed; and what an asynchronous algorithm cannot have.
pub(super) fn server(config: &Config, method: &Method, graph: &Graph) -> Result<Option<usize>, ExperimentError> {
    if method.synchronous().is_none() {
        if config.training.statistics == Statistics::Averaged {
            return conflict("training.statistics: without rounds there is none to average in; set it to `local`");
        }
        let changes = config.graph.copies > 1 || config.graph.links != Some(Links::Whole);
        let weighs = config.graph.weights != Weights::Optimal;
        if changes || weighs || config.graph.directed_edges.is_some() {
            return conflict(
                "graph.links, graph.copies, graph.directed_edges and graph.weights: without rounds the graph stays as it \
                 is, and who meets is equal; leave them out",
            );
        }
    } else if config.training.asynchronous == Execution::Threads {
        return conflict(format!(
            "training.asynchronous = \"threads\": {} goes in rounds; leave it out, or take one of \
             ad-psgd, gosgd, async-easgd, downpour",
            method.display_name()
        ));
    }
    if !method.has_server() {
        return Ok(None);
    }
    let others = graph.nodes() - 1;
    let hub = graph.degrees().iter().position(|&degree| degree == others);
    match hub.filter(|_| others > 0) {
        Some(hub) => Ok(Some(hub)),
        None => conflict(format!(
            "algorithm.name = \"{}\" needs a server, a worker that is linked with all others, and \
             graph.topology = \"{}\" has none: take star:{} for a server and {}",
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

/// Whom each worker must hear in every round to keep its copies of others' models up to date.
pub(super) fn audience(method: &Method, schedule: &Schedule) -> Option<Vec<Vec<usize>>> {
    let round = schedule.round(0);
    let view = LocalView {
        worker: 0,
        context: ExchangeContext::new(&round, 0.0),
        own: WorkerStats { loss: None, degree: 0, scalar: 1.0 },
        received: &[],
    };
    let messages = method.synchronous()?.messages(&view);
    messages.iter().any(|message| message.public_copy.is_some()).then(|| {
        let mut senders = vec![Vec::new(); schedule.nodes()];
        for (sender, receiver) in schedule.possible_links() {
            senders[receiver].push(sender);
        }
        senders
    })
}

/// Rounds in which everything that an algorithm does now and then has happened.
const MANY_ROUNDS: u64 = 1000;

/// With whom a worker ever exchanges anything.
pub(super) fn contacts(method: &Method, schedule: &Schedule, graph: &Graph, worker: usize) -> Vec<usize> {
    let by_links = |exchange: &Exchange| matches!(exchange, Exchange::Neighbors | Exchange::Early | Exchange::Nothing);
    let Some(algorithm) = method.synchronous() else {
        return graph.neighbors(worker).to_vec();
    };
    if !(0..MANY_ROUNDS).all(|round| algorithm.exchanges(round).iter().all(by_links)) {
        return (0..schedule.nodes()).filter(|&other| other != worker).collect();
    }
    let mut found = BTreeSet::new();
    for (sender, receiver) in schedule.possible_links() {
        if sender == worker {
            found.insert(receiver);
        } else if receiver == worker {
            found.insert(sender);
        }
    }
    found.into_iter().collect()
}

/// What a user should know before the start.
pub(super) fn check(method: &Method, graph: &Graph, schedule: &Schedule) -> Result<Vec<String>, ExperimentError> {
    let pieces_warning = |pieces: usize, so: String| {
        let warning = format!("the links that are used leave the workers in {pieces} pieces, {so}");
        (pieces > 1).then_some(warning)
    };
    let alone = "which learn for themselves".to_string();
    let Some(algorithm) = method.synchronous() else {
        let warning = pieces_warning(graph.pieces().len(), alone);
        return Ok(warning.into_iter().collect());
    };
    let (weak, links) = (weak(schedule), schedule.possible_links());
    let both_ways = links.iter().map(|&(a, b)| (a.min(b), a.max(b)));
    let both_ways: BTreeSet<_> = both_ways.collect();
    let union = Graph::new(schedule.nodes(), both_ways);
    let pieces = union.map_or(1, |union| union.pieces().len());
    let preflight = Preflight { graph, schedule, weak: &weak, links: &links };
    algorithm.check(&preflight).map_err(ExperimentError::Conflict)?;
    let mut warnings = algorithm.warnings(&preflight);
    if algorithm.links() != algorithm::Links::None {
        let averages = |round: &u64| algorithm.exchanges(*round).contains(&Exchange::Mean);
        let so = match (0..MANY_ROUNDS).find(averages) {
            Some(round) => format!("which meet in averages of all only, first after round {round}"),
            None => alone,
        };
        warnings.extend(pieces_warning(pieces, so));
    }
    Ok(warnings)
}

/// Where everyone stands in each of the graph's copies, where there are several that are used.
pub(super) fn places(
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
                return conflict("graph.relabelings: the paper's are for 8 workers and at most 3 copies");
            }
            paper_relabelings()[..settings.copies].to_vec()
        }
    })
}

/// Which links are up when, over one graph or its copies.
pub(super) fn schedule(
    config: &Config,
    method: &Method,
    graph: &Graph,
    places: &[Vec<usize>],
    epoch: u64,
) -> Result<Schedule, ExperimentError> {
    let settings = &config.graph;
    if let Some(schedule) = without_a_graph(settings, method, graph)? {
        return Ok(schedule);
    }
    let base = over_graph(config, method, graph)?;
    if places.is_empty() {
        return Ok(base);
    }
    if settings.first_copy > 0 && settings.order != Some(CopyOrder::InTurn) {
        return conflict("graph.first_copy: there is a first copy with graph.order = \"in-turn\" only");
    }
    let order = match settings.order.unwrap_or(CopyOrder::InTurn) {
        CopyOrder::InTurn => Order::InTurn { start: settings.first_copy },
        CopyOrder::Random => Order::Random { seed: config.seed },
        CopyOrder::Released => Order::Released { rounds_per_epoch: epoch },
    };
    Ok(base.rotating(places, order)?)
}

fn has_whole_links(settings: &GraphConfig) -> bool {
    matches!(settings.links, None | Some(Links::Whole))
}

/// The schedule of directed links, or of an algorithm that does not go by links.
fn without_a_graph(
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
                "graph.directed_edges: over links that go one way, {name} has no average: use algorithm.name = \
                 \"sgp\", or leave them out"
            ));
        }
        if is_special {
            return conflict(
                "graph.directed_edges: they are all up in every round, and what goes over them is equal: leave graph.links, \
                 graph.copies and graph.weights out",
            );
        }
        let schedule = Schedule::directed(graph.nodes(), directed_edges);
        return schedule.map(Some).map_err(ExperimentError::DirectedEdges);
    }
    if has_weights && supports_directed {
        return conflict(format!("graph.weights: {name} divides what it has among those it sends to; leave them out"));
    }
    if method.links() != algorithm::Links::None {
        return Ok(None);
    }
    if is_special {
        return conflict(format!(
            "graph.links, graph.copies and graph.weights: {name} does not go by links; leave them out"
        ));
    }
    let nobody = Graph::new(graph.nodes(), []).map_err(ExperimentError::DirectedEdges)?;
    Ok(Some(Schedule::fixed(&nobody, &Weights::Metropolis)?))
}

/// The links of one graph.
fn over_graph(config: &Config, method: &Method, graph: &Graph) -> Result<Schedule, ExperimentError> {
    let (settings, seed) = (&config.graph, config.seed);
    let is_whole = has_whole_links(settings);
    if let algorithm::Links::Matcha { budget } = method.links() {
        if !is_whole {
            return conflict("graph.links: MATCHA chooses the links itself; leave it at `whole`");
        }
        let (matcha, weights) = (Matcha::solve(graph, budget)?, settings.weights.clone());
        return Ok(Schedule::matcha_with(&matcha, weights, seed)?);
    }
    if !is_whole && settings.weights != Weights::Optimal {
        return conflict(
            "graph.weights: with links that come in turn the weights are given (a half each, or \
             the released code's); leave it out, or graph.links at `whole`",
        );
    }
    Ok(match settings.links.unwrap_or(Links::Whole) {
        Links::Whole => Schedule::fixed(graph, &settings.weights)?,
        Links::Released => Schedule::released_flags(graph)?,
        Links::Alternating => Schedule::alternating(graph),
        Links::RandomMatching => Schedule::random_matching(graph, seed),
        Links::OnePeerExponential => Schedule::one_peer_exponential(graph.nodes()),
        Links::Exponential => Schedule::exponential(graph.nodes()),
    })
}

/// Who weighs its own model 0 or less in some round, from a good look at the first ones.
fn weak(schedule: &Schedule) -> Vec<usize> {
    const ROUNDS: u64 = 200;
    const ENTRIES: usize = 4_000_000;
    let (mut weak, mut seen) = (BTreeSet::new(), 0);
    for round in (0..ROUNDS).map(|index| schedule.round(index)) {
        weak.extend(round.mixing().without_positive_diagonal());
        let degrees = (0..schedule.nodes()).map(|worker| 1 + round.degree(worker));
        seen += degrees.sum::<usize>();
        if seen > ENTRIES {
            break;
        }
    }
    weak.into_iter().collect()
}
