//! The messages that a process receives from others in an exchange.

use super::GossipError;
use super::exchange::{ExchangeJob, Gossip};
use super::inbox::Inbox;
use crate::engine::{Engine, RemoteRow};
use crate::transport::{Buffer, Encoding, Message, Transport, TransportError, WireError};

impl Gossip<'_> {
    /// Waits for the messages from other processes to local workers.
    pub(crate) fn receive(
        &mut self,
        job: &ExchangeJob<'_>,
        engine: &dyn Engine,
        transport: &mut dyn Transport,
    ) -> Result<Inbox, GossipError> {
        let mut inbox = Inbox::default();
        let (survives_loss, workers) = (transport.capabilities().survives_loss, self.placement.workers());
        for message in transport.finish_exchange(job.exchange_number())? {
            let (from, stats, whole) = (message.from, message.stats, message.whole);
            self.learn_restart(message.round, message.restart);
            let decoded = self.decode(message, job, engine).and_then(|decoded| {
                let is_finite = |vector: &Buffer| vector.iter().all(|x| x.is_finite());
                let finite = || decoded.0.iter().chain([&decoded.1]).all(is_finite);
                let usable = || stats.has_plausible_scalar(workers) && finite();
                match !survives_loss || usable() {
                    true => Ok(decoded),
                    false => Err(WireError::NotFinite),
                }
            });
            let (messages, statistics) = match decoded {
                Ok(decoded) => decoded,
                Err(what) if survives_loss => {
                    transport.refuse(from, what.to_string());
                    continue;
                }
                Err(what) => return Err(TransportError::Message { from, what }.into()),
            };
            if whole {
                inbox.intact.insert(from);
            }
            inbox.senders.push(from);
            inbox.remote_rows.push(RemoteRow { messages });
            inbox.statistics.push(statistics.into_vec());
            inbox.received_stats.insert(from, stats);
        }
        Ok(inbox)
    }

    /// Decodes the vectors and the statistics of a message.
    fn decode(
        &mut self,
        message: Message,
        job: &ExchangeJob<'_>,
        engine: &dyn Engine,
    ) -> Result<(Vec<Buffer>, Buffer), WireError> {
        let width = engine.layout().parameter_count();
        let statistics = job.statistic_count(engine);
        let sent = self.outgoing(message.from, message.stats, job);
        let encodings = sent.iter().map(|vector| self.encoding_of(vector, message.fresh));
        let encodings: Vec<Encoding> = encodings.collect();
        let units = encodings.iter().map(|encoding| encoding.units(width));
        let expected = units.sum::<usize>() + statistics;
        let found = message.values.len();
        if found != expected {
            return Err(WireError::Length { expected, found });
        }
        // The usual case: one uncompressed vector, which need not be copied.
        if sent.len() == 1 && statistics == 0 && encodings[0] == Encoding::F32 && !message.fresh {
            return Ok((vec![message.values], Buffer::default()));
        }
        let draw = [message.from.0 as u64, message.round];
        let (mut rest, mut vectors) = (&message.values[..], Vec::new());
        for (index, (outgoing, encoding)) in sent.iter().zip(encodings).enumerate() {
            let (units, after) = rest.split_at(encoding.units(width));
            rest = after;
            let vector = encoding.decode(units, width, &draw).ok_or(WireError::Header)?;
            if outgoing.public_copy.is_none() {
                vectors.push(vector.into());
                continue;
            }
            let key = (message.from, index);
            if message.fresh {
                self.public_copies.insert(key, vector.clone());
                vectors.push(vector.into());
            } else {
                let (round, exchange) = (message.round, message.exchange);
                let copy = self.public_copies.get_mut(&key);
                let copy = copy.ok_or(WireError::OutOfTurn { round, exchange })?;
                copy.iter_mut().zip(vector).for_each(|(c, d)| *c += d);
                vectors.push(copy.clone().into());
            }
        }
        Ok((vectors, rest.to_vec().into()))
    }
}
