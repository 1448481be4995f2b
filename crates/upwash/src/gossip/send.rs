//! What leaves for other processes in an exchange.

use super::GossipError;
use super::exchange::{ExchangeJob, Gossip};
use crate::algorithm::{Outgoing, Vector, WorkerStats};
use crate::engine::Engine;
use crate::transport::{Buffer, Encoding, Message, Transport};
use std::collections::BTreeSet;

impl Gossip<'_> {
    /// Sends what the workers here have for their neighbors in other processes, and says what is expected of those.
    pub(crate) fn send(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &[WorkerStats],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), GossipError> {
        let hears: Vec<Vec<usize>> = (0..stats.len())
            .map(|worker| match transport.is_link_up(worker) {
                true => self.senders(worker, job),
                false => vec![],
            })
            .collect();
        self.post(job, stats, &hears, engine, transport)
    }

    /// Sends to those who hear the workers here, and says from whom those here hear.
    pub(super) fn post(
        &mut self,
        job: &ExchangeJob<'_>,
        stats: &[WorkerStats],
        hears: &[Vec<usize>],
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<(), GossipError> {
        let mut sent = Vec::new();
        for worker in self.placement.own() {
            let places = self.places(worker, hears);
            if !places.is_empty() {
                let stats = stats[worker];
                sent.extend(self.messages(worker, stats, places, job, engine, transport)?);
            }
        }
        for (message, places) in &sent {
            let here = places.iter().map(|&place| (message.from, place));
            self.introduced.extend(here);
        }
        let senders = hears[self.placement.own()].iter().flatten().copied();
        let expected = senders.filter(|&sender| !self.is_here(sender) && transport.is_link_up(sender));
        let expected: BTreeSet<usize> = expected.collect();
        let expected: Vec<usize> = expected.into_iter().collect();
        Ok(transport.begin_exchange(sent, &expected)?)
    }

    /// A worker's messages: a public copy goes whole to those who have not had it yet.
    fn messages(
        &self,
        worker: usize,
        stats: WorkerStats,
        places: Vec<usize>,
        job: &ExchangeJob<'_>,
        engine: &mut dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Vec<(Message, Vec<usize>)>, GossipError> {
        let outgoing = self.outgoing(worker, stats, job);
        let is_public = outgoing.iter().any(|vector| vector.public_copy.is_some());
        let knows = |place: &usize| !is_public || self.introduced.contains(&(worker, *place));
        let (known, new): (Vec<usize>, Vec<usize>) = places.into_iter().partition(knows);
        let mut sent = Vec::new();
        for (fresh, places) in [(false, known), (true, new)] {
            if places.is_empty() {
                continue;
            }
            let numbers = self.encoded(worker, &outgoing, fresh, job, engine, transport)?;
            let message = Message {
                from: worker,
                round: job.options.round,
                exchange: job.number(),
                stats,
                whole: !self.broken.contains(&worker),
                fresh,
                values: numbers,
            };
            sent.push((message, places));
        }
        Ok(sent)
    }

    /// The content of a message: vectors one after the other, and running statistics where they go along.
    fn encoded(
        &self,
        worker: usize,
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
        let mut numbers = transport.allocate(length);
        let mut rest = &mut numbers[..];
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
        Ok(numbers)
    }

    pub(super) fn encoding_of(&self, vector: &Outgoing, fresh: bool) -> Encoding {
        match vector.public_copy {
            Some((_, compression)) if !fresh => Encoding::Compressed(compression),
            Some(_) => Encoding::F32,
            None => self.encoding,
        }
    }
}
