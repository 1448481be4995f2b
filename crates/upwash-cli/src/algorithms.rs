//! `upwash algorithms`: lists the algorithms with their papers, properties and options.

use crate::output::wrapped;
use anyhow::{Result, bail};
use std::io::Write;
use upwash::WorkerId;
use upwash::algorithm::{
    Algorithm, Asynchronous, Definition, Exchange, ExchangeContext, Links, LocalView, Method, PairExchange, Registry,
    WorkerStats,
};
use upwash::config::GraphConfig;
use upwash_topology::Schedule;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The algorithms to list [default: all]
    names: Vec<String>,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let registry = Registry::standard();
    if let Some(unknown) = args.names.iter().find(|name| registry.find(name).is_none()) {
        bail!("unknown algorithm `{unknown}`: it {}", registry.one_of(unknown));
    }
    let selected =
        |definition: &&Definition| args.names.is_empty() || args.names.iter().any(|name| name == definition.name);
    for definition in registry.iter().filter(selected) {
        let graph = GraphConfig::default();
        let (method, options) = registry.build(definition.name, &Default::default(), &graph)?;
        writeln!(out, "{}", definition.name)?;
        for line in [definition.about, definition.paper, &properties(&method)] {
            writeln!(out, "{}", wrapped(&format!("    {line}"), 6))?;
        }
        for option in options {
            let set = format!("{} = {}", option.key, option.default);
            writeln!(out, "{}", wrapped(&format!("      {set:<26}  {}", option.about), 34))?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "Options go into the [algorithm] section of a configuration, next to\n\
         name = \"...\". The options of a base algorithm go into the same section as\n\
         those of its decorator. Defaults are those for the default graph."
    )?;
    Ok(())
}

fn properties(method: &Method) -> String {
    match method {
        Method::Synchronous(algorithm) => synchronous(&**algorithm),
        Method::Asynchronous(algorithm) => asynchronous(&**algorithm),
    }
}

/// The properties of a synchronous algorithm, in words.
fn synchronous(algorithm: &dyn Algorithm) -> String {
    let round = Schedule::one_peer_exponential(4).round(0);
    let view = LocalView {
        worker: WorkerId(0),
        context: ExchangeContext::new(&round, 0.1),
        own: WorkerStats { loss: None, degree: 1, scalar: 1.0 },
        received: &[],
    };
    let messages = algorithm.messages(&view);
    let compressed = messages.iter().any(|message| message.public_copy.is_some());
    let (message, vectors) = (count(messages.len(), "message"), algorithm.state_vectors().len());
    let mut kinds: Vec<Exchange> = (0..1000).flat_map(|k| algorithm.exchanges(k)).collect();
    kinds.dedup();
    let has = |wanted: &[Exchange]| kinds.iter().any(|kind| wanted.contains(kind));
    let neighbors = has(&[Exchange::Neighbors, Exchange::Early]);
    let server = has(&[Exchange::Server, Exchange::ToServer]);
    join_true(&[
        (true, "synchronous"),
        (algorithm.has_server(), "with a server"),
        (neighbors, &format!("{message} to {}", receivers(algorithm.links()))),
        (server, &format!("{message} to the server and back")),
        (has(&[Exchange::Chosen]), "models of leaders to their followers"),
        (has(&[Exchange::Mean]), "all-reduce"),
        (algorithm.supports_directed(), "directed links"),
        (compressed, "compressed"),
        (vectors > 0, &count(vectors, "state vector")),
        (algorithm.supports_leaders(), "supports leaders"),
    ])
}

/// Whom a worker sends to in an exchange over links.
fn receivers(links: Links) -> String {
    match links {
        Links::RandomPairs => "a random neighbor".into(),
        Links::RandomOut { fanout } => format!("{fanout} random workers"),
        _ => "each neighbor".into(),
    }
}

/// The properties of an asynchronous algorithm, in words.
fn asynchronous(algorithm: &dyn Asynchronous) -> String {
    let exchange = match algorithm.pair_exchange() {
        PairExchange::Swap => "2 messages, both ways at once, per pairwise exchange",
        PairExchange::PushAndPull => "2 messages, request and reply, per pairwise exchange",
        PairExchange::Push => "1 message, one way, per pairwise exchange",
    };
    join_true(&[
        (true, "asynchronous"),
        (algorithm.has_server(), "with a server"),
        (true, exchange),
        (algorithm.staleness().is_some(), "bounded staleness"),
    ])
}

fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Joins the texts whose condition is true.
fn join_true(entries: &[(bool, &str)]) -> String {
    let texts = entries.iter().filter(|(condition, _)| *condition);
    texts.map(|(_, text)| *text).collect::<Vec<_>>().join(", ")
}
