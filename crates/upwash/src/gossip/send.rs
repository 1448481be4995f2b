//! The messages that a process sends to others in an exchange.

use super::GossipError;
use super::exchange::{ExchangeJob, Gossip};
use crate::algorithm::{Outgoing, Vector, WorkerStats};
use crate::engine::Engine;
use crate::ids::WorkerId;
use crate::transport::{Buffer, Encoding, Message, Transport};
use std::collections::BTreeSet;

impl Gossip<'_> {
    /// Sends the messages of local workers to their neighbors in other processes, and announces the expected ones.
    pub(crate) fn send(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &[WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), GossipError> {
        let senders: Vec<Vec<WorkerId>> = WorkerId::all(stats.len())
            .map(|worker| match transport.is_link_up(worker) {
                true => self.senders(worker, job),
                false => vec![],
            })
            .collect();
        self.post(job, stats, &senders, engine, transport)
    }

    /// Sends the messages of local workers, given the senders of each worker, and announces the expected messages.
    pub(super) fn post(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &[WorkerStats],
        senders: &[Vec<WorkerId>],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), GossipError> {
        let mut sent = Vec::new();
        for worker in self.placement.own() {
            let processes = self.receiving_processes(worker, senders);
            if !processes.is_empty() {
                let stats = stats[worker];
                sent.extend(self.messages(worker, stats, processes, job, engine, transport)?);
            }
        }
        for (message, processes) in &sent {
            let sent_to = processes.iter().map(|&process| (message.from, process));
            self.full_copies_sent.extend(sent_to);
        }
        let local = senders[self.placement.own_range()].iter().flatten().copied();
        let expected = local.filter(|&sender| !self.is_local(sender) && transport.is_link_up(sender));
        let expected: BTreeSet<WorkerId> = expected.collect();
        let expected: Vec<WorkerId> = expected.into_iter().collect();
        Ok(transport.begin_exchange(sent, &expected)?)
    }

    /// A worker's messages. Processes that do not have the worker's public copy yet receive it in full.
    fn messages(
        &self,
        worker: WorkerId,
        stats: WorkerStats,
        processes: Vec<usize>,
        job: &ExchangeJob<'_>,
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Vec<(Message, Vec<usize>)>, GossipError> {
        let outgoing = self.outgoing(worker, stats, job);
        let is_public = outgoing.iter().any(|vector| vector.public_copy.is_some());
        let has_copy = |process: &usize| !is_public || self.full_copies_sent.contains(&(worker, *process));
        let (known, new): (Vec<usize>, Vec<usize>) = processes.into_iter().partition(has_copy);
        let mut sent = Vec::new();
        for (fresh, processes) in [(false, known), (true, new)] {
            if processes.is_empty() {
                continue;
            }
            let values = self.encoded(worker, &outgoing, fresh, job, engine, transport)?;
            let message = Message {
                from: worker,
                round: job.options.round,
                exchange: job.exchange_number(),
                stats,
                whole: !self.degraded.contains(&worker),
                fresh,
                restart: self.restart,
                values,
            };
            sent.push((message, processes));
        }
        Ok(sent)
    }

    /// The content of a message: vectors one after the other, and running statistics if they are sent along.
    fn encoded(
        &self,
        worker: WorkerId,
        outgoing: &[Outgoing],
        fresh: bool,
        job: &ExchangeJob<'_>,
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Buffer, GossipError> {
        let row = self.placement.row_of(worker).unwrap_or_default();
        let width = engine.layout().parameter_count();
        let encodings = outgoing.iter().map(|vector| self.encoding_of(vector, fresh));
        let encodings: Vec<Encoding> = encodings.collect();
        let units = encodings.iter().map(|encoding| encoding.units(width));
        let length = units.sum::<usize>() + job.statistic_count(engine);
        let mut values = transport.allocate(length);
        let mut rest = &mut values[..];
        for (vector, encoding) in outgoing.iter().zip(encodings) {
            let (into, after) = rest.split_at_mut(encoding.units(width));
            rest = after;
            if vector.public_copy.is_none() && encoding == Encoding::F32 {
                engine.write_outgoing(row, vector, job.options, into)?;
                continue;
            }
            let mut content = engine.outgoing(row, vector, job.options)?;
            if let (Some((copy, _)), true) = (vector.public_copy, fresh) {
                let copy = Outgoing::of([(Vector::State(copy), 1.0)]);
                let copy = engine.outgoing(row, &copy, job.options)?;
                content.iter_mut().zip(copy).for_each(|(d, c)| *d += c);
            }
            let units = encoding.encode(content, &job.options.draw(row));
            into.copy_from_slice(&units);
        }
        if job.statistics {
            rest.copy_from_slice(&engine.statistics(row)?);
        }
        Ok(values)
    }

    pub(super) fn encoding_of(&self, vector: &Outgoing, fresh: bool) -> Encoding {
        match vector.public_copy {
            Some((_, compression)) if !fresh => Encoding::Compressed(compression),
            Some(_) => Encoding::F32,
            None => self.encoding,
        }
    }
}
