//! `upwash algorithms`: what there is, where it comes from, and what can be set.

use anyhow::{Result, bail};
use std::io::Write;
use upwash::algorithm::{
    Algorithm, Asynchronous, Definition, Exchange, ExchangeContext, LocalView, Method,
    PairExchange, Registry, WorkerStats,
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
        bail!(
            "there is no algorithm `{unknown}`: there are {}",
            names.join(", ")
        );
    }
    let asked = |definition: &&Definition| {
        args.names.is_empty() || args.names.iter().any(|name| name == definition.name)
    };
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
    let mut words = vec!["synchronous".to_string()];
    if algorithm.has_server() {
        words.push("with a server".into());
    }
    let round = Schedule::one_peer_exponential(4).round(0);
    let view = LocalView {
        worker: 0,
        context: ExchangeContext::new(&round, 0.1),
        own: WorkerStats {
            loss: None,
            degree: 1,
            number: 1.0,
        },
        received: &[],
    };
    let messages = algorithm.messages(&view);
    let count = match messages.len() {
        1 => "1 message".to_string(),
        several => format!("{several} messages"),
    };
    let mut kinds: Vec<Exchange> = (0..1000).flat_map(|k| algorithm.exchanges(k)).collect();
    kinds.dedup();
    let has = |wanted: &[Exchange]| kinds.iter().any(|kind| wanted.contains(kind));
    if has(&[Exchange::Neighbors, Exchange::Early]) {
        words.push(format!("{count} to each neighbor"));
    }
    if has(&[Exchange::Server, Exchange::ToCentre]) {
        words.push(format!("{count} to the server and back"));
    }
    if has(&[Exchange::Chosen]) {
        words.push("leaders' models to those they lead".into());
    }
    if has(&[Exchange::Mean]) {
        words.push("all-reduce".into());
    }
    if algorithm.supports_directed() {
        words.push("directed links".into());
    }
    if messages.iter().any(|message| message.public_copy.is_some()) {
        words.push("compressed".into());
    }
    match algorithm.state_vectors().len() {
        0 => {}
        1 => words.push("1 extra vector".into()),
        several => words.push(format!("{several} extra vectors")),
    }
    if algorithm.supports_leaders() {
        words.push("can be led".into());
    }
    words.join(", ")
}

fn asynchronous(algorithm: &dyn Asynchronous) -> String {
    let mut words = vec!["asynchronous".to_string()];
    if algorithm.has_server() {
        words.push("with a server".into());
    }
    words.push(match algorithm.pair_exchange() {
        PairExchange::Swap => "2 messages, both ways at once, when two meet".into(),
        PairExchange::PushAndPull => "2 messages, there and back, when two meet".into(),
        PairExchange::Push => "1 message, one way, when two meet".into(),
    });
    if algorithm.staleness().is_some() {
        words.push("bounded staleness".into());
    }
    words.join(", ")
}
