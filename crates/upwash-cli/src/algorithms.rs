//! `upwash algorithms`: what there is, where it comes from, and what can be set.

use anyhow::{Result, bail};
use std::io::Write;
use upwash::algorithm::{
    Algorithm, Asynchronous, Definition, Exchange, ExchangeContext, LocalView, Method, PairExchange, Registry,
    WorkerStats,
};
use upwash::config::GraphConfig;
use upwash_topology::Schedule;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these; all if none is named
    names: Vec<String>,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let registry = Registry::standard();
    if let Some(unknown) = args.names.iter().find(|name| registry.find(name).is_none()) {
        let names: Vec<&str> = registry.iter().map(|definition| definition.name).collect();
        bail!("there is no algorithm `{unknown}`: there are {}", names.join(", "));
    }
    let asked =
        |definition: &&Definition| args.names.is_empty() || args.names.iter().any(|name| name == definition.name);
    for definition in registry.iter().filter(asked) {
        let graph = GraphConfig::default();
        let (method, options) = registry.build(definition.name, &Default::default(), &graph)?;
        writeln!(out, "{}\n    {}", definition.name, definition.about)?;
        writeln!(out, "    {}\n    {}", definition.paper, properties(&method))?;
        for option in options {
            let set = format!("{} = {}", option.key, option.default);
            writeln!(out, "      {set:<26}  {}", option.about)?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "Options go into [algorithm] of a configuration, beside name = \"...\", and those of a\n\
         base beside its decorator's. Defaults are of the default graph."
    )?;
    Ok(())
}

fn properties(method: &Method) -> String {
    match method {
        Method::Synchronous(algorithm) => synchronous(&**algorithm),
        Method::Asynchronous(algorithm) => asynchronous(&**algorithm),
    }
}

fn synchronous(algorithm: &dyn Algorithm) -> String {
    let round = Schedule::one_peer_exponential(4).round(0);
    let view = LocalView {
        worker: 0,
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
    listed(&[
        (true, "synchronous"),
        (algorithm.has_server(), "with a server"),
        (neighbors, &format!("{message} to each neighbor")),
        (server, &format!("{message} to the server and back")),
        (has(&[Exchange::Chosen]), "leaders' models to those they lead"),
        (has(&[Exchange::Mean]), "all-reduce"),
        (algorithm.supports_directed(), "directed links"),
        (compressed, "compressed"),
        (vectors > 0, &count(vectors, "extra vector")),
        (algorithm.supports_leaders(), "can be led"),
    ])
}

fn asynchronous(algorithm: &dyn Asynchronous) -> String {
    let exchange = match algorithm.pair_exchange() {
        PairExchange::Swap => "2 messages, both ways at once, when two meet",
        PairExchange::PushAndPull => "2 messages, there and back, when two meet",
        PairExchange::Push => "1 message, one way, when two meet",
    };
    listed(&[
        (true, "asynchronous"),
        (algorithm.has_server(), "with a server"),
        (true, exchange),
        (algorithm.staleness().is_some(), "bounded staleness"),
    ])
}

fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Those that are so.
fn listed(words: &[(bool, &str)]) -> String {
    let so = words.iter().filter(|(so, _)| *so);
    so.map(|(_, words)| *words).collect::<Vec<_>>().join(", ")
}
