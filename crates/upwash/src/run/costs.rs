//! The cost of exchanges, as observers see it: links in use, bytes sent, and simulated time.

use super::round::CurrentRound;
use super::session::Session;
use crate::algorithm::{Exchange, ExchangeContext, Outgoing, Vector, WorkerPlan};
use crate::clock::Transfer;
use crate::experiment::Experiment;
use crate::gossip::{ExchangeJob, Inbox};
use crate::ids::WorkerId;
use crate::model::Layout;
use crate::transport::Traffic;
use std::collections::BTreeSet;

/// Records the links of an exchange. If costs are simulated, also adds its traffic and time.
pub(super) fn observe(
    session: &mut Session<'_>,
    round: &CurrentRound<'_>,
    job: &ExchangeJob<'_>,
    inbox: &Inbox,
    plans: &[WorkerPlan],
    layout: &Layout,
) {
    let context = &job.context_in(inbox);
    record_links(session, job.exchange, context, plans);
    if session.simulates_costs {
        let statistics = match job.statistics {
            true => 4 * layout.statistic_count() as u64,
            false => 0,
        };
        let width = layout.parameter_count();
        let bytes = |plan: &WorkerPlan| bytes(&plan.messages, width) + statistics;
        count_traffic(session, job.exchange, context, &round.started, plans, bytes);
    }
}

/// Records the links over which an exchange sends models.
fn record_links(session: &mut Session<'_>, exchange: Exchange, context: &ExchangeContext<'_>, plans: &[WorkerPlan]) {
    match exchange {
        // Any worker could have been a sender, but only leaders are.
        Exchange::Chosen => {
            for plan in plans {
                let leaders = plan.plan.leaders.into_iter().flatten();
                leaders
                    .filter(|leader| *leader != plan.worker)
                    .for_each(|leader| session.record_link(leader, plan.worker));
            }
        }
        // An all-reduce counts as a ring.
        Exchange::Mean => {
            let ring = session.training.clone();
            let pairs = ring.iter().zip(ring.iter().cycle().skip(1));
            pairs.filter(|(one, other)| one != other).for_each(|(one, other)| session.record_link(*one, *other));
        }
        _ => {
            for worker in WorkerId::all(context.workers()) {
                let senders = exchange.senders(worker, context);
                senders.for_each(|sender| session.record_link(sender, worker));
            }
        }
    }
}

/// The size of messages on the wire, in bytes.
pub(super) fn bytes(messages: &[Outgoing], width: usize) -> u64 {
    let bytes = |message: &Outgoing| {
        let compression = message.public_copy.map(|(_, compression)| compression);
        compression.map_or(4 * width as u64, |compression| compression.bytes(width))
    };
    messages.iter().map(bytes).sum()
}

/// Adds the traffic of an exchange, and the time that it takes.
fn count_traffic(
    session: &mut Session<'_>,
    exchange: Exchange,
    context: &ExchangeContext<'_>,
    started: &[f64],
    plans: &[WorkerPlan],
    bytes: impl Fn(&WorkerPlan) -> u64,
) {
    let experiment = session.experiment;
    if exchange == Exchange::Mean {
        return count_all_reduce(session, plans.first().map_or(0, bytes));
    }
    let transfers = transfers(experiment, exchange, context, plans, bytes);
    let (clock, sent) = (&experiment.clock, &mut session.progress.sent);
    let clocks = &mut session.progress.clocks;
    let messages = |transfer: &Transfer| plans[transfer.from].messages.len() as u64;
    sent.messages_sent += transfers.iter().map(messages).sum::<u64>();
    sent.bytes_sent += transfers.iter().map(|transfer| transfer.bytes).sum::<u64>();
    // Messages that do not contain the step can leave while the gradients are computed.
    let mut contents = plans.iter().flat_map(|plan| &plan.messages);
    let has_step = contents.any(|message| message.content.iter().any(|e| e.0 == Vector::Step));
    if exchange == Exchange::Early || exchange == Exchange::Server && !has_step {
        let mut exchanged = started.to_vec();
        clock.exchange(&mut exchanged, &transfers);
        for (clock, exchanged) in clocks.iter_mut().zip(exchanged) {
            *clock = clock.max(exchanged);
        }
    } else {
        if exchange == Exchange::Chosen {
            clock.barrier(clocks);
        }
        clock.exchange(clocks, &transfers);
    }
}

/// Adds the traffic and the time of an all-reduce of that many bytes for each worker.
fn count_all_reduce(session: &mut Session<'_>, bytes: u64) {
    let (clock, ring) = (&session.experiment.clock, &session.training);
    let (sent, clocks) = (&mut session.progress.sent, &mut session.progress.clocks);
    let hops = 2 * (ring.len() as u64).saturating_sub(1);
    sent.bytes_sent += hops * bytes;
    sent.messages_sent += hops * ring.len() as u64;
    clock.all_reduce(clocks, bytes, ring);
    if let (Some(to), Some(&from)) = (session.experiment.server, ring.first()) {
        // The server receives the result.
        sent.bytes_sent += bytes;
        sent.messages_sent += 1;
        clocks[to] = clocks[from] + clock.message(&Transfer { from, to, bytes });
    }
}

/// What the workers send each other in an exchange other than an all-reduce.
fn transfers(
    experiment: &Experiment,
    exchange: Exchange,
    context: &ExchangeContext<'_>,
    plans: &[WorkerPlan],
    bytes: impl Fn(&WorkerPlan) -> u64,
) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    for plan in plans {
        let to = plan.worker;
        let mut add = |from: WorkerId| transfers.push(Transfer { from, to, bytes: bytes(&plans[from]) });
        match (exchange, &experiment.required_senders) {
            (Exchange::Chosen, _) => {
                let used = plan.plan.assignments.iter().flat_map(|assignment| &assignment.messages);
                let others = used.map(|entry| entry.0).filter(|&from| from != to);
                let chosen: BTreeSet<WorkerId> = others.collect();
                chosen.into_iter().for_each(add);
            }
            // Public copies are kept up to date at every worker that will need them.
            (Exchange::Neighbors | Exchange::Early, Some(senders)) => {
                senders[to].iter().copied().for_each(&mut add);
            }
            _ => exchange.senders(to, context).for_each(&mut add),
        }
    }
    transfers
}

/// Sets the cost at the end of a round: to what was really sent so far, or the simulated time to that of the slowest
/// worker.
pub(super) fn end_round(session: &mut Session<'_>, sent: Traffic) {
    if !session.simulates_costs {
        return session.measure_costs(sent);
    }
    let clocks = session.training.iter().map(|&i| session.progress.clocks[i]);
    session.progress.sent.simulated_seconds = clocks.fold(0.0, f64::max);
}
